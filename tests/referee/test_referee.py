"""Every number in the Reports of random calls equals what eager transformers and NumPy float64 give."""

import pytest

from attnscope.findings import row_statistics
from tests.helpers.draws import drawn
from tests.referee import __main__, draw, runner
from tests.referee.models import Models
from tests.referee.verify import Mismatch

CASES, PARTS = drawn(90), 3


@pytest.mark.parametrize("part", range(PARTS))
def test_every_number_of_a_report_is_right(models: Models, part: int) -> None:
    for number in range(part, CASES, PARTS):
        call = draw.call(models, 0, number)
        try:
            runner.check(call, models)
        except Mismatch as e:
            pytest.fail(f"{e}\n{call.command()}\npython -m tests.referee --seed 0 --case {number}")


def test_the_command_plays_the_same_cases(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["referee", "--case", "1"])
    assert __main__.main() == 0
    assert capsys.readouterr().out == "1 cases, 0 wrong\n"


def test_a_wrong_statistic_is_found_by_its_name(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a kind of tokens: no other statistic says how many there are."""
    call = next(
        call
        for call in (draw.call(models, 0, number, ("minilm",)) for number in range(100))
        if any("the" in text for text in call.texts)
    )
    real = row_statistics.KEY_TOKENS["punctuation"]
    monkeypatch.setitem(row_statistics.KEY_TOKENS, "punctuation", lambda token: real(token) or token.text == "the")
    with pytest.raises(Mismatch, match="punctuation"):
        runner.check(call, models)
