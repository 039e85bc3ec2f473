"""Models larger than the memory they may take: weights are read again in every pass, with the same numbers."""

import json
import os
import re
import shutil
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file

from attnscope.base.errors import AttnscopeError, ModelError
from attnscope.batch.dump import write_dump
from attnscope.batch.header import Settings
from attnscope.batch.loading import DumpConfig
from attnscope.cli import main
from attnscope.engines.opening import open_source
from attnscope.engines.torch_setup import choose_device
from attnscope.findings.codec import to_json
from attnscope.request.memory import format_bytes
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.run.plan import make_plan
from attnscope.run.session import Session, inspect
from attnscope.studies.check.run import check
from attnscope.studies.compare.runs import compare_runs
from attnscope.studies.explain.run import explain
from benchmarks.memory import required_memory
from tests.helpers.requests import changed, requested

TEXT = TextInput("The bank by the river was eroded")
AGAIN = "weights are read again in every pass: "
ROOMY = 1 << 40


def need(run: RunConfig, limit: int = ROOMY) -> dict[str, int]:
    """Bytes by purpose under this limit."""
    source = open_source(run, run.texts)
    limited = replace(run, max_memory=limit)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return required_memory(make_plan(limited, source))


def tight(run: RunConfig) -> RunConfig:
    """The same with a byte too little for all of its weights."""
    return replace(run, max_memory=sum(need(run).values()) - 1)


@pytest.fixture
def bert(minilm: Path) -> RunConfig:
    """A real model of six layers, whose text goes through it twice: once to choose a head."""
    return requested((TEXT,), model=str(minilm), max_memory=ROOMY)


def test_a_model_that_does_not_fit_runs_with_the_same_numbers_and_says_once_why_it_is_slow(
    bert: RunConfig,
) -> None:
    limited = tight(bert)
    whole = need(bert)
    weights, total, most = map(
        format_bytes, (whole["weights"], sum(whole.values()), limited.max_memory)
    )
    session = Session(limited.texts)
    with pytest.warns(UserWarning, match=AGAIN) as said:
        reports = [inspect(limited, session=session) for _ in range(2)]
    why = f"keeping all of them ({weights}) needs about {total}, but --max-memory is {most}"
    assert [str(one.message) for one in said] == [AGAIN + why]
    assert {to_json(report) for report in reports} == {to_json(inspect(bert))}
    (stack,) = (model.module for model in session.models.values())
    assert all(p.is_meta for p in stack.blocks.parameters())
    assert not any(p.is_meta for p in stack.embed.parameters())


def test_what_is_streamed_is_estimated_as_two_layers(bert: RunConfig) -> None:
    whole, two = need(bert), need(bert, tight(bert).max_memory)
    assert {name for name in whole if whole[name] != two[name]} == {"weights", "margin"}
    source = open_source(bert, ())
    layer = (384 * 384 + 384) * 4 + 384 * 1536 * 2 + 384 + 1536 + 4 * 384
    assert whole["weights"] - two["weights"] == (source.config.n_layers - 2) * layer * 4


def test_weights_are_kept_where_they_come_to_fit_and_dropped_where_they_do_not(
    bert: RunConfig,
) -> None:
    session = Session(bert.texts)

    def there() -> list[bool]:
        (stack,) = (model.module for model in session.models.values())
        return [not any(p.is_meta for p in block.parameters()) for block in stack.blocks]

    inspect(bert, session=session)
    assert all(there())
    with pytest.warns(UserWarning, match=AGAIN):
        inspect(tight(bert), session=session)
    assert not any(there())
    inspect(bert, session=session)
    assert all(there())


def test_what_does_not_fit_layer_by_layer_is_refused_and_says_what_helps(bert: RunConfig) -> None:
    least = sum(need(bert, tight(bert).max_memory).values())
    with pytest.warns(UserWarning, match=AGAIN):
        inspect(replace(bert, max_memory=least))
    with pytest.raises(AttnscopeError) as caught:
        inspect(replace(bert, max_memory=least - 1))
    said = f"needs about {format_bytes(least)} (program 264.0 MiB + weights, two layers at a time 59.0 MiB + text "
    assert said in str(caught.value)
    assert "select less with" in str(caught.value)


@pytest.mark.parametrize(
    ("reserve", "named"),
    [
        (-1, ["dtype", "threads", "layer", "max_memory"]),
        (-20, ["dtype", "max_memory"]),
        (-(1 << 20), ["max_memory"]),
    ],
)
def test_what_a_refusal_proposes_fits(bert: RunConfig, reserve: int, named: list[str]) -> None:
    run = replace(bert, threads=2)
    limit = max(1, sum(need(run, tight(run).max_memory).values()) + reserve * (1 << 20))
    with pytest.raises(AttnscopeError) as caught:
        need(run, limit)
    hint = str(caught.value.hint)
    assert re.findall("dtype|threads|layer|max_memory", hint) == named
    ways = {
        "dtype": changed(run, dtype="bfloat16"),
        "threads": changed(run, threads=1),
        "layer": changed(run, layer="0", head="0", query="0", key="0", stages=("weights",)),
        "max_memory": run,
    }
    raised = int(re.findall(r"max_memory='(\d+)M' or more", hint)[0]) << 20
    for name in named:
        assert sum(need(ways[name], raised if name == "max_memory" else limit).values()) <= raised


@pytest.mark.parametrize("layers", ["0", "0,1"])
def test_two_layers_are_kept_or_refused(bert: RunConfig, layers: str) -> None:
    few = changed(bert, layer=layers)
    with pytest.raises(AttnscopeError, match=r"\+ weights \d"):
        inspect(tight(few))


def test_random_weights_are_kept_or_refused(tmp_path: Path) -> None:
    (tmp_path / "stack.toml").write_text("d_model = 64\nn_layers = 9\n")
    run = requested((TEXT,), config=str(tmp_path / "stack.toml"))
    with pytest.raises(AttnscopeError, match=r"\+ weights \d"):
        inspect(tight(run))


def test_a_comparison_is_the_same(bert: RunConfig) -> None:
    sides = [(mask, changed(bert, mask=mask, key="0:")) for mask in ("own", "causal")]
    expected = compare_runs("mask", sides, None)
    with pytest.warns(UserWarning, match=AGAIN) as said:
        found = compare_runs("mask", [(mask, tight(run)) for mask, run in sides], None, None)
    assert len(said) == 1
    assert to_json(found) == to_json(expected)


@pytest.mark.parametrize("layer", ["auto", "4"])
def test_a_walk_is_the_same(bert: RunConfig, layer: str) -> None:
    run = changed(bert, query="bank", layer=layer, stages=())
    expected = explain(run)
    with pytest.warns(UserWarning, match=AGAIN):
        found = explain(tight(run))
    assert expected.rest_of_layer
    assert not found.rest_of_layer
    assert found.notes == [
        *expected.notes,
        "what follows attention in the layer is left out, as weights are read again in every pass",
    ]
    of_attention = {check.name: check for check in found.checks}
    checks = [check for check in expected.checks if check.name in of_attention]
    assert list(of_attention.values()) == checks
    whole = replace(expected, rest_of_layer=[], checks=checks, notes=found.notes)
    assert to_json(found) == to_json(whole)


def test_check_has_the_same_verdicts_but_for_the_whole_model_beside_it(bert: RunConfig) -> None:
    expected = check(bert)
    whole = changed(
        bert, layer="all", head="all", stages=("scores", "scaled", "masked", "weights", "output")
    )
    with pytest.warns(UserWarning, match=AGAIN):
        found = check(replace(bert, max_memory=tight(whole).max_memory))
    mine = [one for one in expected.checks if "eager" not in one.name]
    assert [one for one in found.checks if "eager" not in one.name] == mine
    assert [(one.verdict, one.note) for one in found.checks if "eager" in one.name] == [
        ("skipped", "the whole model does not fit in memory")
    ]


def test_a_dump_is_the_same(tmp_path: Path, minilm: Path) -> None:
    (tmp_path / "texts.txt").write_text(f"{TEXT.text}\n")

    def dump(name: str, limit: int) -> list[dict[str, object]]:
        # As many as the text would get depends on the limit, and rounding on how many they are.
        run = requested((), model=str(minilm), max_memory=limit, threads=1)
        write_dump(
            DumpConfig(str(tmp_path / "texts.txt"), None, tmp_path / name, Settings(), run),
            lambda *_: None,
        )
        lines = map(json.loads, (tmp_path / name).read_bytes().splitlines()[1:])
        # of the header, too
        return [{key: value for key, value in line.items() if key != "check"} for line in lines]

    expected = dump("whole.jsonl", ROOMY)
    with pytest.raises(AttnscopeError) as refused:
        dump("refused.jsonl", 1 << 20)
    least = re.search(r"needs about ([\d.]+) MiB .* two layers at a time", str(refused.value))
    assert least is not None  # the text itself takes some more, and all six layers another 28 MiB
    with pytest.warns(UserWarning, match=AGAIN):
        assert dump("streamed.jsonl", int((float(least[1]) + 12) * 2**20)) == expected


def spoilt(folder: Path, minilm: Path) -> Path:
    """The same model with one number of its last layer but one missing."""
    shutil.copytree(minilm, folder)
    os.chmod(folder / "model.safetensors", 0o644)
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.layer.4.attention.self.key.weight"][7, 5] = np.nan
    save_file(tensors, folder / "model.safetensors")
    return folder


NAN = "model.safetensors: encoder.layer.4.attention.self.key.weight: contains nan at [7, 5]; 1 of 147,456 are not finite"


@pytest.mark.parametrize("command", ["run", "compare", "explain", "check"])
def test_a_number_that_is_missing_in_a_late_layer_is_one_error(
    command: str, tmp_path: Path, minilm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = spoilt(tmp_path / "model", minilm)
    more = {"explain": ["--query", "bank"]}.get(command, [])
    assert main([command, TEXT.text, "--model", str(folder), *more]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert (
        said.err
        == f"attnscope: error: {folder}/{NAN}; the checkpoint is damaged: download it again\n"
    )


def test_a_dump_stops_at_weights_that_cannot_be_read(tmp_path: Path, minilm: Path) -> None:
    """And does not call every text a failure."""
    (tmp_path / "texts.txt").write_text("bank\nriver\n")
    run = requested((), model=str(spoilt(tmp_path / "model", minilm)))
    with pytest.raises(ModelError, match="contains nan at"):
        write_dump(
            DumpConfig(str(tmp_path / "texts.txt"), None, tmp_path / "d.jsonl", Settings(), run),
            lambda *_: None,
        )
    assert len((tmp_path / "d.jsonl").read_bytes().splitlines()) == 1, "a header, and no record"


def test_a_file_that_is_cut_between_loading_and_running_is_one_error(
    tmp_path: Path, minilm: Path
) -> None:
    shutil.copytree(minilm, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    os.chmod(file, 0o644)

    def cut(what: str, done: int, total: int) -> None:
        if what.startswith("attending"):
            os.truncate(file, 1 << 20)

    run = requested((TEXT,), model=str(tmp_path / "model"), layer="5", head="0")
    with pytest.raises(ModelError) as caught:
        inspect(run, Session(run.texts, cut))
    assert (
        str(caught.value)
        == f"{file}: changed while it was read; run again when it is no longer being written"
    )
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights")]


def test_a_device_is_accepted_where_torch_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("mps", 0) == torch.device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(AttnscopeError, match="no device 'mps'"):
        choose_device("mps", 0)
