"""What a dump keeps of cut heads equals `transformers` with a hook on the output projection, in every kind of dump."""

import json
from pathlib import Path

import numpy as np
import pytest

import attnscope
from attnscope.base.errors import UsageError
from attnscope.batch import loading
from attnscope.batch.convert import convert
from attnscope.batch.dump import write_dump
from attnscope.batch.dump_reader import Dump
from attnscope.batch.header import Settings
from attnscope.batch.loading import DumpConfig
from attnscope.cli import main
from attnscope.request.run_config import TextInput
from attnscope.run.session import inspect
from tests.ablation.test_effects import cut_heads, gpt2, ids_of, seen  # noqa: F401 (a fixture among them)
from tests.helpers.effect_arithmetic import divergence
from tests.helpers.faulty_files import Crash, Faulty
from tests.helpers.requests import requested
from tests.helpers.schemas import validate

TEXTS = ("the bank by the river was old and we sat", "river", "we sat on it all day")
MASKED = ("the old [MASK] by the river", "the bank", "a [MASK] [MASK] on the bank")


def dump(path: Path, texts, settings, files=None, **run):
    source = path.parent / "texts.txt"
    source.write_text("".join(text + "\n" for text in texts))
    order = DumpConfig(str(source), None, path, settings, requested((), **run))
    return write_dump(order, lambda summary, total: None, files)


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_every_head_of_every_text(gpt2, tmp_path, engine):  # noqa: F811
    path, model = gpt2
    settings = Settings(layer="2,0", head="0-1", keep=("effects",))
    dump(tmp_path / "dump.jsonl", TEXTS, settings, model=path, engine=engine)
    for record in Dump(tmp_path / "dump.jsonl").records():
        assert record.units == [(2, 0), (2, 1), (0, 0), (0, 1)]
        before, hidden, weights = seen(model, ids_of(record))
        at, words = len(record.tokens) - 2, slice(1, -1)
        assert record.positions == [at]
        for n, place in enumerate(record.units):
            with cut_heads(model, place):
                after, changed, _ = seen(model, ids_of(record))
            assert record.effects.kl[n] == pytest.approx(
                divergence(before, after), rel=1e-4, abs=1e-6
            )
            moved = np.linalg.norm(changed[at] - hidden[at]) / np.linalg.norm(hidden[at])
            assert record.effects.hidden[n] == pytest.approx(moved, rel=1e-4)
            if at:  # of one word, no other is left
                off_sink = weights[place][words, words].sum(-1).mean()
                assert record.effects.weight[n] == pytest.approx(off_sink, abs=1e-6)


@pytest.mark.parametrize("name", ["dump.jsonl", "dump"])
def test_records_are_those_of_ablate_and_tables_theirs(tmp_path, name):
    """A text without a mask token, which has no KL divergence, lies in one shard with others that have it."""
    settings = Settings(keep=("columns", "effects", "stages"), stages=("weights",))
    dump(tmp_path / name, MASKED, settings, model="riverbank")
    records = list(Dump(tmp_path / name).records())
    assert [record.positions for record in records] == [[2], [], [1, 2]]
    for record, text in zip(records, MASKED, strict=True):
        one = attnscope.ablate(text, each="head", model="riverbank").data
        (effects,) = one.effects
        assert record.units == list(zip(one.layers, one.heads, strict=True))
        assert (record.effects.kl is None) == (effects.kl is None) == (not record.positions)
        if effects.kl is not None:
            np.testing.assert_allclose(record.effects.kl, effects.kl, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(record.effects.hidden, effects.hidden, rtol=1e-5)
        np.testing.assert_allclose(record.effects.weight, one.weights, rtol=1e-5)
        (seen,) = inspect(
            requested((TextInput(text),), layer="all", head="all", stages=("weights",))
        ).texts
        np.testing.assert_allclose(
            record.stages["weights"], [h.stages["weights"] for h in seen.heads], atol=1e-6
        )
    if name == "dump.jsonl":
        for line in (tmp_path / name).read_bytes().splitlines():
            value = json.loads(line)
            validate(
                value, {"schema": "header", "index": "record", "end": "end"}[next(iter(value))]
            )
    table = attnscope.read_dump(tmp_path / name).to_pandas("effects")
    assert list(table.columns) == ["index", "id", "layer", "head", "kl", "hidden", "weight"]
    for record in records:
        rows = table[table["index"] == record.index]
        assert list(zip(rows["layer"], rows["head"], strict=True)) == record.units
        for measure in ("hidden", "weight"):
            np.testing.assert_array_equal(rows[measure], getattr(record.effects, measure))
        kl = np.full(len(rows), np.nan) if record.effects.kl is None else record.effects.kl
        np.testing.assert_array_equal(rows["kl"], kl)


@pytest.mark.parametrize("name", ["dump.jsonl", "dump"])
def test_an_interrupted_dump_goes_on_to_the_same_bytes(tmp_path, name, monkeypatch):
    # a window for each text
    monkeypatch.setattr(loading, "_ON_CPU", loading._ON_CPU._replace(work=1.0))
    settings = Settings(layer="0-1", keep=("effects",))
    dump(tmp_path / f"whole-{name}", MASKED, settings)
    with pytest.raises(Crash):
        dump(tmp_path / name, MASKED, settings, Faulty(20 if name == "dump" else 10, "crash"))
    summary = dump(tmp_path / name, MASKED, settings)
    assert 0 < summary.resumed < 3
    for one in [tmp_path / name] if name != "dump" else sorted((tmp_path / name).iterdir()):
        whole = tmp_path / f"whole-{name}"
        assert one.read_bytes() == (whole if name != "dump" else whole / one.name).read_bytes()


def test_the_command_line_keeps_effects_and_other_parts(tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(MASKED))
    asked = ["batch", str(tmp_path / "texts.txt"), "--layer", "3", "--quiet", "-o"]
    assert main([*asked, str(tmp_path / "a.jsonl"), "--keep", "effects,columns"]) == 0
    assert Dump(tmp_path / "a.jsonl").header.settings.keep == ("columns", "effects")
    assert main([*asked, str(tmp_path / "b.jsonl"), "--keep", "all"]) == 0
    assert Dump(tmp_path / "b.jsonl").header.settings.keep == ("top", "rows", "columns", "pooled")
    assert convert(tmp_path / "a.jsonl", tmp_path / "a.csv", "effects", force=False) == (
        12,
        "rows of effects",
    )
    assert main([*asked, str(tmp_path / "c.jsonl"), "--keep", "effects", "--head", "mean"]) == 2
    assert "--head: a mean cannot be cut" in capsys.readouterr().err
    same = ["--keep", "effects", "--mask", "window:2", "--what-if", "same-scores"]
    assert main([*asked, str(tmp_path / "c.jsonl"), *same]) == 2
    assert "--what-if: cutting heads runs the whole model" in capsys.readouterr().err
    with pytest.raises(UsageError, match="the dump has no table 'rows'"):
        attnscope.read_dump(tmp_path / "a.jsonl").to_pandas("rows")


PATCHED = (
    {
        "text": "the bank by the river was old",
        "good": "water",
        "bad": "ran",
        "other": "the bank by the water was old",
    },
    {
        "text": "we sat on it all day",
        "good": "river",
        "bad": "old",
        "other": "we ran on it all day",
    },
    {"text": "the river ran", "good": "we", "bad": "day", "other": "the water ran"},
    {"text": "it was old", "good": "day", "bad": "the", "other": "it was all"},
)


@pytest.mark.parametrize("patched", [False, True])
def test_targets_and_other_texts_of_each_record_are_those_of_ablate(
    gpt2,  # noqa: F811
    tmp_path,
    capsys,
    patched,
):
    """And their means over texts are NumPy's, with its standard deviation over the root of their number."""
    path, _ = gpt2
    lines = tmp_path / "texts.jsonl"
    lines.write_text("\n".join(map(json.dumps, PATCHED)))
    options = [
        "--target",
        "{good}",
        "--target",
        "{bad}",
        *(["--patch-from", "{other}"] if patched else []),
    ]
    dumped = str(tmp_path / "dump.jsonl")
    asked = ["batch", str(lines), "--model", str(path), "--keep", "effects", "-o", dumped]
    assert main([*asked, *options]) == 0
    said = capsys.readouterr().err
    records = list(Dump(tmp_path / "dump.jsonl").records())
    for record, given in zip(records, PATCHED, strict=True):
        more = {"patch_from": given["other"]} if patched else {}
        alone = attnscope.ablate(
            given["text"], each="head", model=path, target=[given["good"], given["bad"]], **more
        ).data
        (effects,) = alone.effects
        assert record.units == list(zip(alone.layers, alone.heads, strict=True))
        np.testing.assert_allclose(record.effects.target, effects.target, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(record.effects.kl, effects.kl, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(record.effects.hidden, effects.hidden, rtol=1e-5)
    table = attnscope.read_dump(dumped).to_pandas("mean_effects")
    assert main(["convert", dumped, str(tmp_path / "mean.csv"), "--table", "mean_effects"]) == 0
    (header, *rows) = [line.split(",") for line in (tmp_path / "mean.csv").read_text().splitlines()]
    assert header == list(table.columns) and len(rows) == len(records[0].units)
    for name in ("kl", "hidden", "weight", "target"):
        values = np.array([getattr(record.effects, name) for record in records], np.float64)
        mean, error = values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))
        np.testing.assert_allclose(table[name], mean, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(table[f"{name}_error"], error, rtol=1e-5, atol=1e-9)
        place = header.index(name)
        assert [np.float32(row[place]) for row in rows] == table[name].tolist()
        if name == "target":
            strongest = int(np.abs(mean).argmax())
            layer, head = records[0].units[strongest]
            assert (
                f"L{layer}H{head} {mean[strongest]:+.3f} ± {error[strongest]:.3f}"
                in said.replace("−", "-")
            )


def test_a_record_without_the_member_that_is_named_fails_alone(gpt2, tmp_path, capsys):  # noqa: F811
    path, _ = gpt2
    lines = tmp_path / "texts.jsonl"
    lines.write_text(
        "\n".join(
            map(json.dumps, [PATCHED[0], {"text": "the bank"}, {**PATCHED[1], "other": "we"}])
        )
    )
    asked = [
        "batch",
        str(lines),
        "--model",
        str(path),
        "-o",
        str(tmp_path / "dump.jsonl"),
        "--quiet",
    ]
    assert main([*asked, "--keep", "effects", "--target", "{good}", "--patch-from", "{other}"]) == 3
    statuses = [record.status for record in Dump(tmp_path / "dump.jsonl").records()]
    assert statuses == ["ok", "failed", "failed"]
    errors = [record.error for record in Dump(tmp_path / "dump.jsonl").records()]
    assert (
        "the record has no text 'good'" in errors[1]
        and "patches go from token to token" in errors[2]
    )
    assert main([*asked, "--force", "--target", "{good}"]) == 2
    assert "--target: applies only to --keep effects; add --keep effects" in capsys.readouterr().err


def test_effects_count_toward_memory(tmp_path, monkeypatch):
    """Fixed sizes toward every group, those of a text toward its own: a text that is too long fails alone."""
    plain, cut = (
        loading._group_limits(Settings(keep=keep), requested(()), _riverbank())
        for keep in ((), ("effects",))
    )
    assert cut[1] < plain[1]
    assert cut[3].estimate - plain[3].estimate > 24 << 23
    real = loading._group_limits
    monkeypatch.setattr(
        loading, "_group_limits", lambda *asked: (real(*asked)[0], 900, "", real(*asked)[3])
    )
    summary = dump(
        tmp_path / "dump.jsonl", ("the old bank", "the old bank " * 8), Settings(keep=("effects",))
    )
    assert summary.counts == {"ok": 1, "failed": 1}
    c = _riverbank().config
    numbers = 4 * 16 + 24 * (4 * c.n_layers * c.d_model + 24 * c.d_model) // 40
    assert summary.failures == [f"2: {numbers:,} numbers are more than memory holds"]


def _riverbank():
    from attnscope.engines.opening import open_source

    return open_source(requested(()), ())
