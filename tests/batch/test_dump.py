"""Dumps of real models: numbers are those of each text alone; resuming, refusing and failing work end to end."""

import gzip
import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.base.system.file_system import FileSystem
from attnscope.batch import records
from attnscope.batch.dump import write_dump
from attnscope.batch.dump_reader import Dump
from attnscope.batch.header import Settings
from attnscope.batch.loading import DumpConfig
from attnscope.batch.records import arrays_of
from attnscope.batch.sinks import open_dump
from attnscope.batch.windows import MIN_PADDED_TOKENS as PADDABLE
from attnscope.findings.heads import STAGES
from attnscope.findings.row_statistics import STATISTICS
from attnscope.request.options import on_command_line
from attnscope.request.run_config import TextInput
from attnscope.run.session import Session, inspect
from tests.helpers.faulty_files import Crash, Faulty
from tests.helpers.requests import changed, requested
from tests.helpers.schemas import validate

TEXTS = (
    "The bank by the river was eroded",
    "bank",
    "A bank that lends money by the river is still a bank, by and large, and the river does not mind it at all",
    "the the the the",
    "",
    "Rivers erode banks",
)


def dump(
    tmp_path,
    texts=TEXTS,
    name="dump.jsonl",
    *,
    files=None,
    strict=False,
    force=False,
    settings=None,
    total=None,
    **run,
):
    source = tmp_path / "texts.txt"
    source.write_text("".join(f"{text}\n" for text in texts))
    given = requested(texts=(), **({"config": "bidirectional"} if "model" not in run else {}) | run)
    order = DumpConfig(
        str(source),
        None,
        tmp_path / name,
        settings or Settings(),
        given,
        force=force,
        strict=strict,
    )
    told = []
    summary = write_dump(
        order, lambda summary, total: told.append((summary.reached, summary.records, total)), files
    )
    assert told[-1] == (summary.records, summary.records, total or len(texts))
    assert [reached for reached, _, _ in told] == sorted(reached for reached, _, _ in told)
    assert all(reached >= records for reached, records, _ in told)
    return summary


def found(tmp_path, name="dump.jsonl"):
    return list(Dump(tmp_path / name).records())


PADDED = (*TEXTS, *(TEXTS[2].rpartition(", and")[0] + " down" * n for n in (0, 1, 1, 4)))
FULL = Settings(
    keep=("top", "rows", "columns", "pooled", "stages"),
    stages=STAGES,
    top=5,
    by="projected",
    pool=4,
)


def rounding(report, stage="masked"):
    """How far a number of a padded text may be from that of the text alone, as docs/dumps.md promises."""
    scores = np.stack([head.stages[stage] for head in report.heads])
    return 1e-6 * max(1, np.abs(scores[np.isfinite(scores)]).max())


def test_padded_texts_have_the_numbers_of_each_text_alone(tmp_path, minilm):
    """To 1e-6 of the largest score that enters a softmax, as docs/dumps.md says, and scores to 1e-6 of their own."""
    dump(tmp_path, PADDED, settings=FULL, model=str(minilm))
    session = Session(())
    for record, text in zip(found(tmp_path), PADDED, strict=True):
        if not text:
            assert record.status == "skipped"
            continue
        alone = requested(
            (TextInput(text),), model=str(minilm), layer="all", head="all", stages=STAGES, top=5
        )
        (report,) = inspect(msgspec.structs.replace(alone, by="projected"), session=session).texts
        assert record.tokens == report.tokens
        assert record.units == [(head.layer, head.head) for head in report.heads]
        limit = rounding(report)
        for unit, head in enumerate(report.heads):
            near = {"rtol": limit, "atol": limit}
            for stage in STAGES:
                loose = limit if stage in ("weights", "output") else rounding(report, stage)
                np.testing.assert_allclose(
                    record.stages[stage][unit], head.stages[stage], rtol=0, atol=loose
                )
            for measure in ("weight", "value", "projected"):
                np.testing.assert_allclose(
                    getattr(record.top, measure)[unit], getattr(head.top, measure), **near
                )
            for name in STATISTICS:
                np.testing.assert_allclose(
                    getattr(record.rows, name)[unit], getattr(head.rows, name), **near
                )
            weights = head.stages["weights"]
            np.testing.assert_allclose(record.columns[unit], weights.sum(0), **near)
            keys = record.top.keys[unit]
            picked = np.take_along_axis(weights, np.maximum(keys, 0), 1)
            np.testing.assert_allclose(
                picked[keys >= 0], record.top.weight[unit][keys >= 0], **near
            )


def test_weights_of_many_padded_texts_are_those_of_each_alone(tmp_path, minilm):
    """Real texts of 5 to 50 tokens, many of them padded; to 1e-6 of the largest score, whatever the weight."""
    data = Path(__file__).parents[2] / "benchmarks" / "data" / "glosses.txt.gz"
    texts = gzip.decompress(data.read_bytes()).decode().splitlines()[:25]
    dump(
        tmp_path, texts, settings=Settings(keep=("stages",), stages=("weights",)), model=str(minilm)
    )
    lengths, session = set(), Session(())
    for record, text in zip(found(tmp_path), texts, strict=True):
        stages = ("masked", "weights")
        alone = requested(
            (TextInput(text),), model=str(minilm), layer="all", head="all", stages=stages, top=1
        )
        (report,) = inspect(alone, session=session).texts
        weights = np.stack([head.stages["weights"] for head in report.heads])
        np.testing.assert_allclose(record.stages["weights"], weights, rtol=0, atol=rounding(report))
        lengths.add(len(record.tokens))
    assert len([length for length in lengths if length >= PADDABLE]) > 10


@pytest.mark.parametrize("config", ["bidirectional", "causal", "sliding-window", "grouped-query"])
def test_padding_changes_nothing(tmp_path, config):
    """Words are numbered by the whole input, so that each text alone is run with all the others skipped."""
    dump(tmp_path, PADDED, name="together.jsonl", settings=FULL, config=config)
    together = found(tmp_path, "together.jsonl")
    for i, text in enumerate(PADDED):
        if text:
            settings = msgspec.structs.replace(FULL, skip=i, limit=1)
            dump(tmp_path, PADDED, name=f"{i}.jsonl", settings=settings, config=config, total=1)
            (alone,) = found(tmp_path, f"{i}.jsonl")
            for name, array in arrays_of(alone).items():
                # 1 for weights and their sums
                scale = max(1.0, np.abs(array[np.isfinite(array)]).max())
                found_here = arrays_of(together[i])[name]
                np.testing.assert_allclose(
                    found_here, array, rtol=0, atol=1e-6 * scale, err_msg=name
                )


@pytest.mark.parametrize(
    ("layer", "head"), [("mean", "mean"), ("0", "mean"), ("mean", "1,3"), ("1,0", "-1")]
)
def test_selections_are_those_of_run(tmp_path, layer, head):
    text = TEXTS[0]
    settings = Settings(
        layer=layer,
        head=head,
        keep=("top", "rows", "stages"),
        stages=("weights",),
        top=2,
        query="bank,4:6",
        key="0:2",
    )
    dump(tmp_path, [text], settings=settings)
    (record,) = found(tmp_path)
    run = requested(
        (TextInput(text),),
        config="bidirectional",
        layer=layer,
        head=head,
        stages=("weights",),
        top=2,
    )
    (report,) = inspect(changed(run, query="bank,4:6", key="0:2")).texts
    assert record.queries == report.queries
    assert record.keys == report.keys
    assert record.units == [(one.layer, one.head) for one in report.heads]
    for unit, one in enumerate(report.heads):
        np.testing.assert_allclose(record.stages["weights"][unit], one.stages["weights"], atol=1e-6)
        np.testing.assert_array_equal(record.top.keys[unit], one.top.keys)
        np.testing.assert_allclose(record.rows.entropy[unit], one.rows.entropy, atol=1e-6)


def test_a_word_that_some_texts_lack_fails_those_alone(tmp_path):
    summary = dump(tmp_path, settings=Settings(query="river"))
    assert summary.counts == {"ok": 2, "failed": 3, "skipped": 1}
    assert "river" in found(tmp_path)[1].error


def test_hidden_tokens_are_those_of_each_text(tmp_path):
    """A text that lacks the word fails alone; the header says what was hidden, so that no dump is resumed without."""
    summary = dump(tmp_path, settings=Settings(keep=("stages",), stages=("weights",)), hide="river")
    assert summary.counts == {"ok": 2, "failed": 3, "skipped": 1}
    records = found(tmp_path)
    assert "--hide: 'river' is not in the text" in records[1].error
    for record in records:
        if record.status == "ok":
            hidden = [token.text == "river" for token in record.tokens]
            assert any(hidden)
            np.testing.assert_array_equal(
                record.stages["weights"] == 0,
                np.broadcast_to(hidden, record.stages["weights"].shape),
            )
    with pytest.raises(AttnscopeError, match="with hide='river', now it is without hide"):
        dump(tmp_path, settings=Settings(keep=("stages",), stages=("weights",)))


def test_every_line_keeps_to_the_published_schema(tmp_path):
    dump(tmp_path, settings=FULL)
    dump(tmp_path, name="folder", settings=FULL)
    for path in (tmp_path / "dump.jsonl", tmp_path / "folder" / "index.jsonl"):
        for line in path.read_bytes().splitlines():
            kind = {"schema": "header", "index": "record", "end": "end"}[
                next(iter(json.loads(line)))
            ]
            validate(json.loads(line), kind)


def test_shards_load_in_one_line_and_hold_the_same(tmp_path):
    dump(tmp_path, settings=FULL)
    dump(tmp_path, name="folder", settings=FULL)
    shards = sorted((tmp_path / "folder").glob("*.safetensors"))
    (arrays,) = map(load_file, shards)
    done = [record for record in found(tmp_path) if record.status == "ok"]
    assert arrays["texts"].tolist() == [record.index for record in done]
    assert arrays["rows.entropy"].shape == (
        sum(len(record.tokens) for record in done),
        len(done[0].units),
    )
    for record, other in zip(found(tmp_path), found(tmp_path, "folder"), strict=True):
        assert records.encode(record) == records.encode(other)
    for number, record in enumerate(done):
        start, end = arrays["rows.entropy/offsets"][number : number + 2]
        np.testing.assert_array_equal(arrays["rows.entropy"][start:end].T, record.rows.entropy)
        start, end = arrays["stages.weights/offsets"][number : number + 2]
        matrices = arrays["stages.weights"][start:end].reshape(
            arrays["stages.weights/shape"][number]
        )
        np.testing.assert_array_equal(matrices, record.stages["weights"])


@pytest.mark.parametrize("name", ["dump.jsonl", "folder"])
def test_what_a_sink_takes_is_in_the_dump(tmp_path, name):
    stack = tmp_path / "sinks.toml"
    stack.write_text(
        'd_model = 16\nn_heads = 2\nn_layers = 2\nmask = "causal"\npositions = "rope"\nsinks = true\n'
    )
    dump(
        tmp_path,
        name=name,
        settings=Settings(keep=("rows", "stages"), stages=("weights",)),
        config=str(stack),
    )
    records = [one for one in found(tmp_path, name) if one.status == "ok"]
    assert len(records) == len(TEXTS) - 1
    for record in records:
        assert (record.rows.sink > 0).all()
        np.testing.assert_allclose(
            record.stages["weights"].sum(-1) + record.rows.sink, 1, atol=1e-6
        )


def test_without_sinks_a_dump_says_nothing_of_them(tmp_path):
    dump(tmp_path)
    assert b'"sink"' not in (tmp_path / "dump.jsonl").read_bytes()
    assert all(one.rows.sink is None for one in found(tmp_path) if one.status == "ok")


@pytest.mark.parametrize(
    ("keep", "values"),
    [(("pooled",), "pooled"), (("pooled", "stages"), "exact"), (("top",), "exact")],
)
def test_the_header_says_whether_maps_stand_for_matrices(tmp_path, keep, values):
    dump(
        tmp_path,
        settings=Settings(keep=keep, stages=("weights",) if "stages" in keep else (), pool=4),
    )
    assert Dump(tmp_path / "dump.jsonl").header.provenance.values == values


@pytest.mark.parametrize("name", ["dump.jsonl", "folder"])
@pytest.mark.parametrize("at", [9, 14, 16])
def test_a_crashed_dump_goes_on_to_the_same_bytes(tmp_path, name, at):
    dump(tmp_path, name="whole" + name[4:] if name != "folder" else "whole")
    whole = tmp_path / ("whole" + name[4:] if name != "folder" else "whole")
    with pytest.raises(Crash):
        dump(tmp_path, name=name, files=Faulty(at - (name != "folder") * 4, "crash"))
    dump(tmp_path, name=name)
    target = tmp_path / name
    for path in [target] if name != "folder" else sorted(target.iterdir()):
        other = whole if name != "folder" else whole / path.name
        assert path.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": Settings(top=4)}, "started with --top 3, now it is --top 4"),
        ({"settings": Settings(layer="0")}, "started with --layer all, now it is --layer 0"),
        (
            {"settings": Settings(limit=2), "total": 2},
            "started without --limit, now it is --limit 2",
        ),
        (
            {"settings": Settings(query="the bank")},
            "started without --query, now it is --query 'the bank'",
        ),
        ({"settings": Settings(shard=(1, 2))}, "started without --shard, now it is --shard 1/2"),
        (
            {"settings": Settings(special=False)},
            "started without --no-special, now it is --no-special",
        ),
        (
            {"settings": Settings(keep=("top", "stages"), stages=("weights",))},
            "started with --keep top,rows, now it is --keep top",
        ),
        (
            {"settings": Settings(keep=("top", "rows", "stages"), stages=("scores", "weights"))},
            "started without --stage, now it is --stage scores,weights",
        ),
        (
            {"settings": Settings(statistics=("entropy",), digits=4)},
            "--keep top,rows, now it is --keep brief",
        ),
        ({"mask": "causal"}, "started without --mask, now it is --mask causal"),
        ({"hide": "0"}, "started without --hide, now it is --hide 0"),
        ({"dtype": "bfloat16"}, "started with --dtype float32, now it is --dtype bfloat16"),
        (
            {"config": "causal"},
            "was started with another model, adapter, tokenizer or file of arrays",
        ),
        (
            {"texts": (*TEXTS[:-1], "Rivers erode")},
            "was started with another input, or the input has changed since",
        ),
    ],
)
def test_a_changed_setting_is_refused(tmp_path, change, message):
    dump(tmp_path)
    before = (tmp_path / "dump.jsonl").read_bytes()
    with pytest.raises(AttnscopeError) as caught:
        dump(tmp_path, **change)
    assert message in caught.value.line(on_command_line)
    assert (tmp_path / "dump.jsonl").read_bytes() == before
    dump(tmp_path, **change, force=True)
    assert (tmp_path / "dump.jsonl").read_bytes() != before


def test_the_same_dump_again_is_left_as_it_is(tmp_path):
    first = dump(tmp_path)
    before = (tmp_path / "dump.jsonl").stat().st_mtime_ns
    again = dump(tmp_path)
    assert again.counts == first.counts
    assert again.resumed == len(TEXTS)
    assert (tmp_path / "dump.jsonl").stat().st_mtime_ns == before


def test_a_model_elsewhere_with_the_same_fingerprint_is_the_same(tmp_path, minilm):
    dump(tmp_path, TEXTS[:2], model=str(minilm), settings=Settings(layer="0"))
    copy = shutil.copytree(minilm, tmp_path / "copy")
    dump(tmp_path, TEXTS[:2], model=str(copy), settings=Settings(layer="0"))


def test_a_text_that_is_too_long_fails_alone(tmp_path, minilm):
    long = "bank " * 600
    summary = dump(
        tmp_path, [TEXTS[0], long, TEXTS[1]], model=str(minilm), settings=Settings(layer="0")
    )
    assert summary.counts == {"ok": 2, "failed": 1}
    assert summary.failures == [
        "2: 602 tokens, but the model takes at most 512; pass --truncate to truncate the text"
    ]
    settings = Settings(layer="0", truncate=True)
    summary = dump(
        tmp_path, [TEXTS[0], long, TEXTS[1]], name="cut.jsonl", model=str(minilm), settings=settings
    )
    assert summary.counts == {"ok": 3}
    assert found(tmp_path, "cut.jsonl")[1].notes == ["truncated from 602 to 512 tokens"]


def test_strict_stops_at_the_first_failure_and_keeps_what_came_before(tmp_path, minilm):
    texts = [TEXTS[0], "bank " * 600, TEXTS[1]]
    with pytest.raises(AttnscopeError, match=r"texts.txt:2: 602 tokens"):
        dump(tmp_path, texts, model=str(minilm), strict=True, settings=Settings(layer="0"))
    assert (tmp_path / "dump.jsonl").read_bytes().count(b'"status":"ok"') == 1
    summary = dump(tmp_path, texts, model=str(minilm), settings=Settings(layer="0"))
    assert summary.counts == {"ok": 2, "failed": 1}


def test_overflow_in_one_text_fails_that_text_alone(tmp_path, monkeypatch):
    """A group whose scores are not finite is done text by text."""
    from attnscope.batch import worker

    real = worker.start_frame
    spoilt = []

    def start_frame(plan, *rest):
        if any(text_plan.tokens[0].text == "Rivers" for text_plan in plan.text_plans):
            spoilt.append(len(plan.text_plans))
            raise AttnscopeError("7 scores are not finite", where="L0H0")
        return real(plan, *rest)

    monkeypatch.setattr(worker, "start_frame", start_frame)
    # three words each, so one group
    texts = (*TEXTS[:2], *TEXTS[3:], "The bank erodes", "banks erode Rivers")
    summary = dump(tmp_path, texts)
    assert summary.counts == {"ok": 5, "failed": 1, "skipped": 1}
    assert spoilt == [3, 1]
    assert summary.failures == ["5: L0H0: 7 scores are not finite"]


def test_memory_bounds_the_groups_and_refuses_what_never_fits(tmp_path, minilm):
    with pytest.raises(AttnscopeError, match=r"needs about .* max_memory is 10.0 MiB"):
        dump(tmp_path, model=str(minilm), max_memory=10 << 20)
    dump(tmp_path, ["the " * 12] * 9, max_memory=376 << 20, threads=1, settings=Settings(top=1))
    small = Dump(tmp_path / "dump.jsonl").header.grouping
    dump(
        tmp_path,
        ["the " * 12] * 9,
        name="roomy.jsonl",
        max_memory=4 << 30,
        threads=1,
        settings=Settings(top=1),
    )
    roomy = Dump(tmp_path / "roomy.jsonl").header.grouping
    assert small.window < roomy.window


def test_the_header_does_not_depend_on_free_memory(tmp_path, monkeypatch):
    """Bytes of a dump follow from what was asked; too little memory is refused, not worked around."""
    from attnscope.request import memory

    for name, free in (("little.jsonl", 3 << 30), ("much.jsonl", 300 << 30)):
        monkeypatch.setattr(memory, "available_memory", lambda free=free: free)
        dump(tmp_path, name=name)
    assert (tmp_path / "little.jsonl").read_bytes() == (tmp_path / "much.jsonl").read_bytes()
    monkeypatch.setattr(memory, "available_memory", lambda: 790 << 20)
    with pytest.raises(
        AttnscopeError, match=r"a group of texts needs .* half of the free memory is .*max_memory"
    ):
        dump(tmp_path, name="none.jsonl")
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.parametrize("name", ["dump.jsonl", "dump"])
def test_a_text_that_memory_could_not_hold_is_done_when_there_is_more(tmp_path, monkeypatch, name):
    from attnscope.batch import loading as module

    texts = [*TEXTS[:3], "the bank " * 300, *TEXTS[3:]]
    real = module._group_limits

    def memory_holds(numbers):
        def bounds(*asked):
            grouping, _, _, memory = real(*asked)
            return msgspec.structs.replace(grouping, values=8000, window=20000), numbers, "", memory

        monkeypatch.setattr(module, "_group_limits", bounds)

    memory_holds(1 << 30)
    dump(tmp_path, texts, name=f"roomy-{name}")
    memory_holds(8000)
    summary = dump(tmp_path, texts, name=name)
    assert summary.counts == {"ok": 5, "failed": 1, "skipped": 1}
    # tokens, heads, sources with 2 numbers each, and statistics
    numbers = 600 * 8 * (3 * 2 + len(STATISTICS))
    assert summary.failures == [f"4: {numbers:,} numbers are more than memory holds"]
    memory_holds(1 << 30)
    assert dump(tmp_path, texts, name=name).counts == {"ok": 6, "skipped": 1}
    files = [
        sorted(path.iterdir()) if path.is_dir() else [path]
        for path in (tmp_path / f"roomy-{name}", tmp_path / name)
    ]
    for one, other in zip(*files, strict=True):
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("query", [None, "0", "1:3", "4"])
@pytest.mark.parametrize("config", ["bidirectional", "life-is-short-cross"])
def test_runs_of_a_pooled_map_are_those_of_the_whole_text(tmp_path, config, query):
    """Also under cross-attention, where rows and columns stand for two texts, and where few rows are shown."""
    source, size = tmp_path / "texts.jsonl", 3
    cross = {"context": "dessert first eat"} if "cross" in config else {}
    texts = ["Life is short eat dessert first", "Life is short eat dessert first first is"]
    source.write_text("".join(json.dumps({"text": text} | cross) + "\n" for text in texts))
    for name, rows in (("whole", None), ("shown", query)):
        settings = Settings(keep=("pooled", "stages"), stages=("weights",), pool=size, query=rows)
        order = DumpConfig(
            str(source), None, tmp_path / f"{name}.jsonl", settings, requested((), config=config)
        )
        assert write_dump(order, lambda summary, total: None).counts == {"ok": 2}
    for whole, shown in zip(
        found(tmp_path, "whole.jsonl"), found(tmp_path, "shown.jsonl"), strict=True
    ):
        weights = whole.stages["weights"]
        for unit, (n, m) in ((unit, weights.shape[1:]) for unit in range(len(weights))):
            expected = np.full((min(size, n), min(size, m)), np.nan)
            for run in range(len(expected)):
                rows = [q for q in shown.queries if q * len(expected) // n == run]
                for at in range(len(expected[0]) if rows else 0):
                    keys = [k for k in range(m) if k * len(expected[0]) // m == at]
                    expected[run, at] = weights[unit][np.ix_(rows, keys)].sum() / len(rows)
            np.testing.assert_allclose(shown.pooled.weights[unit], expected, atol=1e-6)


@pytest.mark.parametrize("option", ["layer", "head"])
def test_auto_is_refused(tmp_path, option):
    with pytest.raises(
        UsageError, match="auto cannot be used, since it would choose differently for every text"
    ):
        dump(tmp_path, settings=Settings(**{option: "auto"}))


@pytest.mark.unix
def test_a_second_writer_is_refused(tmp_path):
    from attnscope.base.system.file_system import FileSystem
    from attnscope.batch.sinks import open_dump

    dump(tmp_path)
    with (
        open_dump(tmp_path / "dump.jsonl", force=False, files=FileSystem()),
        pytest.raises(AttnscopeError, match="another process is writing to it"),
    ):
        dump(tmp_path, force=True)


@pytest.mark.parametrize("kind", ["link", "something", "folder"])
def test_a_target_that_is_something_else_is_refused(tmp_path, kind):
    target = tmp_path / "dump.jsonl"
    if kind == "link":
        target.symlink_to(tmp_path / "elsewhere")
    elif kind == "something":
        target.write_text("precious")
    else:
        target = tmp_path / "dump"
        target.mkdir()
        (target / "precious.txt").write_text("precious")
    with pytest.raises(AttnscopeError, match=r"symbolic link|is not a dump|with other files"):
        dump(tmp_path, name=target.name)
    assert kind != "something" or target.read_text() == "precious"


@pytest.mark.parametrize("there", [False, True], ids=["new", "there already"])
def test_a_folder_that_a_dump_makes_and_leaves_empty_is_gone(tmp_path, there):
    target = tmp_path / "dump"
    if there:
        target.mkdir()
    with open_dump(target, force=False, files=FileSystem()):
        assert target.is_dir()
    assert target.exists() == there
    assert [*tmp_path.rglob("*")] == [target] * there
