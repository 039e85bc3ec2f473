"""Every number that random calls of the commands give equals what eager transformers and NumPy float64 give."""

from dataclasses import replace

import pytest

from attnscope.engines.transformers import mixing as engine_mixing
from attnscope.findings import row_statistics
from tests.helpers.draws import drawn
from tests.referee import __main__, draw, mixing, runner
from tests.referee.models import Models
from tests.referee.verify import Mismatch

# Cases of a command, and the number of tests that they are divided into.
CASES = {"run": (90, 3), "compare": (16, 2), "explain": (20, 2), "batch": (16, 2)}
CASES |= dict.fromkeys(("predict", "ablate", "measure"), (6, 2)) | {"mixing": (12, 2)}


@pytest.mark.parametrize(
    ("kind", "part"), [(kind, part) for kind, (_, parts) in CASES.items() for part in range(parts)]
)
def test_every_number_is_right(models: Models, kind: str, part: int) -> None:
    (make, check), (count, parts) = __main__.KINDS[kind], CASES[kind]
    for number in range(part, drawn(count), parts):
        call = make(models, 0, number)
        try:
            check(call, models)
        except Mismatch as e:
            pytest.fail(
                f"{e}\n{call.command()}\npython -m tests.referee --of {kind} --seed 0 --case {number}"
            )


def test_the_command_plays_the_same_cases(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["referee", "--case", "1"])
    assert __main__.main() == 0
    assert capsys.readouterr().out == "1 cases, 0 wrong\n"


def test_a_wrong_statistic_is_found_by_its_name(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a kind of tokens: no other statistic says how many there are."""
    call = next(
        call
        for call in (draw.call(models, 0, number, ("minilm",)) for number in range(100))
        if any("the" in text for text in call.texts)
    )
    real = row_statistics.KEY_TOKENS["punctuation"]
    monkeypatch.setitem(
        row_statistics.KEY_TOKENS, "punctuation", lambda token: real(token) or token.text == "the"
    )
    with pytest.raises(Mismatch, match="punctuation"):
        runner.check(call, models)


def test_the_form_without_the_inverse_is_found(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a layer with the delta rule, in a text of several words."""
    calls = (mixing.call(models, 0, number) for number in range(100))
    call = next(
        call for call in calls if call.model_type == "qwen3_next" and len(call.argv[1].split()) > 5
    )
    mixing.check(call, models)
    monkeypatch.setattr("attnscope.model.mixing._Chunk.solve", lambda _chunk, scores: scores)
    with pytest.raises(Mismatch, match="matrix is not that of the recurrence"):
        mixing.check(call, models)


@pytest.mark.parametrize(
    ("model_type", "reader", "field"),
    [("xlstm", "_mlstm", "stabilizer"), ("recurrent_gemma", "_gated_recurrence", "write")],
)
def test_a_matrix_without_its_write_strength_or_divisor_is_found(
    models: Models, monkeypatch: pytest.MonkeyPatch, model_type: str, reader: str, field: str
) -> None:
    calls = (mixing.call(models, 0, number) for number in range(200))
    call = next(
        call for call in calls if call.model_type == model_type and len(call.argv[1].split()) > 20
    )
    mixing.check(call, models)
    real = getattr(engine_mixing, reader)
    monkeypatch.setattr(
        engine_mixing, reader, lambda *args, **named: replace(real(*args, **named), **{field: None})
    )
    with pytest.raises(Mismatch, match="matrix is not that of the recurrence"):
        mixing.check(call, models)
