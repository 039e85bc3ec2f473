"""What attacks and fuzzers found, as it was found: a refusal in one line that names the place, or the right answer."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.batch.journal import seal, unseal
from attnscope.checkpoints.tokenization.hugging_face import load_tokenizer
from attnscope.findings.codec import from_json
from tests.adversarial.fuzzers import as_json, checkpoint, dump, report
from tests.adversarial.oracle import Case, Ending, fault, run
from tests.helpers.tokenizer_files import content, write

TEXT = "The bank by the river"
DIGITS = "9" * 400


def ended(folder: Path, argv: list[str], files: dict[str, bytes] | None = None) -> Ending:
    case = Case(argv, files or {})
    ending = run(case, folder)
    assert fault(case, ending) is None, ending
    return ending


def refusal(
    folder: Path, argv: list[str], files: dict[str, bytes] | None = None, code: int = 1
) -> str:
    ending = ended(folder, argv, files)
    assert ending.code == code, ending
    return ending.err.removeprefix("attnscope: error: ").removesuffix("\n")


# what is typed


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["run", TEXT, "--layer=-1-0"],
            "--layer: the range '-1-0' starts with a negative number; count both ends from 0",
        ),
        (["run", TEXT, "--head", f"0-{DIGITS}"], f"--head: cannot read '0-{DIGITS}'"),
        (["run", TEXT, "--layer", "9" * 5000], "--layer: cannot read '999"),
        (["run", TEXT, "--query", "9" * 5000], "--query: '999"),
        (
            ["run", TEXT, "--mask", "window:1" + "0" * 20],
            "--mask: the size of 'window:100000000000000000000' is too",
        ),
        (["run", TEXT, "--mask", "prefix:" + "9" * 5000], "--mask: the size of 'prefix:999"),
        (["run", TEXT, "--max-memory", DIGITS + "T"], f"--max-memory: '{DIGITS}T' is too large"),
    ],
    ids=lambda value: value[2][:16] if isinstance(value, list) else "",
)
def test_found_command_lines_are_refused_in_one_line(
    tmp_path: Path, argv: list[str], said: str
) -> None:
    assert refusal(tmp_path, [*argv, "--config", "causal"], code=2).startswith(said)


def test_a_window_as_large_as_it_may_be(tmp_path: Path) -> None:
    found = [
        ended(
            tmp_path,
            ["run", TEXT, "--mask", mask, "--config", "causal", "--format", "json", "--layer", "0"],
        )
        for mask in (
            "bidirectional",
            f"window:{'9' * 18}",
            f"block:{'9' * 18}",
            f"prefix:{'9' * 18}",
        )
    ]
    weights = [json.loads(each.out)["texts"][0]["heads"]["stages"]["weights"][0] for each in found]
    assert all(each == weights[0] for each in weights)


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    line = refusal(tmp_path, ["run", TEXT, "--device", "cuda:999", "--config", "causal"])
    assert line == "--device: no device 'cuda:999'; use --device cpu, or auto"


def test_a_line_of_an_error_has_an_end(tmp_path: Path) -> None:
    assert 900 < len(refusal(tmp_path, ["run", TEXT, "--by", "x" * 10_000], code=2)) < 1500


def test_a_comparison_without_anything_in_common(tmp_path: Path) -> None:
    argv = [
        "compare",
        "bank",
        "water stones",
        "--query",
        "0",
        "--config",
        "causal",
        "--format",
        "heat",
    ]
    assert "no shown row or column is in both" in ended(tmp_path, argv).out


# config.json


def _config(name: str, **changes: Any) -> dict[str, bytes]:
    config, tokenizer, weights = checkpoint(name)
    changed = as_json({**config, **changes})
    return {"config.json": changed, "tokenizer.json": tokenizer, "model.safetensors": weights}


YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 10000.0,
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"num_hidden_layers": 10**399},
            "num_hidden_layers is 1000000000000000000000000000000000000000000000000",
        ),
        (
            {"intermediate_size": 10**310},
            "intermediate_size is 1000000000000000000000000000000000000000000000000000",
        ),
        (
            {"rms_norm_eps": 10**399},
            "rms_norm_eps is 1000000000000000000000000000000000000000000000000000000000000",
        ),
        (
            {"hidden_act": "\ud800"},
            "contains half of a surrogate pair (U+D800), which is not valid text",
        ),
        (
            {"attention_bias": "\udcff"},
            "contains half of a surrogate pair (U+DCFF), which is not valid text",
        ),
        (
            {"rope_parameters": {**YARN, "rope_theta": 1}},
            "YaRN cannot scale rotary positions with theta 1",
        ),
        (
            {"rope_parameters": {**YARN, "beta_fast": 0}},
            "beta_fast is 0; expected a number above 0",
        ),
        (
            {"rope_parameters": {**YARN, "factor": 10**399}},
            "factor is 10000000000000000000000000000000000000000000",
        ),
        ({"attnscope": {"trained_masks": ["\x1b[2J"]}}, r"unknown mask '\x1b[2J'"),
        (
            {
                "rope_parameters": {
                    **YARN,
                    "rope_type": "llama3",
                    "low_freq_factor": 4.0,
                    "high_freq_factor": 4.0,
                }
            },
            "low_freq_factor 4 is not below high_freq_factor 4",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize(
    "argv", [["info", "--format", "json"], ["run", "the bank"]], ids=["info", "run"]
)
def test_found_configs_are_refused_with_the_key(
    tmp_path: Path, changes: dict[str, Any], said: str, argv: list[str]
) -> None:
    line = refusal(tmp_path, [*argv, "--model", "."], _config("llama", **changes))
    assert line.startswith("config.json: ")
    assert said in line


# TOML


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        (f"n_layers = {DIGITS}", "n_layers = 999"),
        (
            "seed = 9223372036854775808",
            "seed = 9223372036854775808: Expected int <= 9223372036854775807",
        ),
        ("windows = " + "[" * 3000 + "]" * 3000, "is nested too deeply"),
        ("n_heads = " + "9" * 5000, "not TOML: "),
        (
            'positions = "rope"\nrope = {fraction = 2.0}',
            "rope = {'fraction': 2.0}: Expected float <= 1.0",
        ),
        (
            'positions = "rope"\nrope = {fraction = -1.0}',
            "rope = {'fraction': -1.0}: Expected float > 0.0",
        ),
        (
            'positions = "rope"\nrope = {theta = 0.0}',
            "rope = {'theta': 0.0}: Expected float >= 1e-30",
        ),
        (
            'positions = "rope"\nrope = {theta = 1.0, scaling = {kind = "yarn", factor = 4.0, '
            "original_max_positions = 16}}",
            "YaRN cannot scale rotary positions with theta 1",
        ),
        (
            'positions = "rope"\nrope = {scaling = {kind = "yarn", factor = 4.0, beta_fast = 0.0, '
            "original_max_positions = 16}}",
            "Expected float >= 1e-30, in rope.scaling.beta_fast",
        ),
        (
            'positions = "rope"\nrope = {scaling = {kind = "yarn", factor = 4.0}}',
            "rotary scaling 'yarn' has no original_max_positions",
        ),
    ],
    ids=lambda value: "" if "=" not in value else value[-30:],
)
@pytest.mark.parametrize("argv", [["info"], ["run", TEXT]], ids=["info", "run"])
def test_found_toml_stacks_are_refused_with_the_key(
    tmp_path: Path, toml: str, said: str, argv: list[str]
) -> None:
    line = refusal(tmp_path, [*argv, "--config", "s.toml"], {"s.toml": toml.encode()})
    assert line.startswith("s.toml")
    assert said in line


# tokenizers


def _after_a_template(kind: str, first: str, last: str) -> dict[str, Any]:
    """A tokenizer whose template is followed by another post-processor, which counts the template's tokens as texts."""
    value = content(kind)
    ids = {token["content"]: token["id"] for token in value["added_tokens"]}
    one = [
        {"SpecialToken": {"id": first, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": last, "type_id": 0}},
    ]  # fmt: skip
    template = {
        "type": "TemplateProcessing", "single": one,
        "pair": [*one, {"Sequence": {"id": "B", "type_id": 0}}, {"SpecialToken": {"id": last, "type_id": 0}}],
        "special_tokens": {w: {"id": w, "ids": [ids[w]], "tokens": [w]} for w in (first, last)},
    }  # fmt: skip
    bytes_ = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    }
    value["post_processor"] = {"type": "Sequence", "processors": [template, bytes_]}
    return value


@pytest.mark.parametrize(
    ("kind", "first", "last"), [("roberta", "<s>", "</s>"), ("wordpiece", "[CLS]", "[SEP]")]
)
def test_a_tokenizer_with_another_post_processor_after_its_template(
    tmp_path: Path, kind: str, first: str, last: str
) -> None:
    tokenizer = load_tokenizer(write(tmp_path, _after_a_template(kind, first, last)))
    tokens = tokenizer.encode("The bank")
    assert [tokens[0].text, tokens[-1].text] == [first, last]
    inner = tokens[1:-1]
    assert all(token.segment == 0 and not token.special for token in inner)
    assert "".join("The bank"[token.start : token.end] for token in inner) == "Thebank"
    with pytest.raises(
        AttnscopeError, match="does not tell which of the two texts a token belongs to"
    ):
        tokenizer.encode("The bank", "by the river")


# records of a batch


def test_a_record_nested_a_thousand_deep_fails_alone(tmp_path: Path) -> None:
    deep = {
        depth: '{"text": "A bank", "more": ' + "[" * depth + "]" * depth + "}"
        for depth in (99, 100, 1000, 100_000)
    }
    strings = '{"text": "A bank", "more": "' + "[" * 1000 + '\\"{"}'
    lines = [*deep.values(), strings, '{"text": "The river"}']
    files = {"x.jsonl": "\n".join(lines).encode()}
    ending = ended(tmp_path, ["batch", "x.jsonl", "-o", "d.jsonl", "--config", "causal"], files)
    assert ending.code == 3
    records = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()[1:-1]]
    assert [record["status"] for record in records] == [
        "ok",
        "failed",
        "failed",
        "failed",
        "ok",
        "ok",
    ]
    assert all(
        re.search(r"nested (more than 100 deep|too deeply)", record["error"])
        for record in records[1:4]
    )
    assert ended(tmp_path, ["convert", "d.jsonl", "one.json"]).code == 0
    assert ended(tmp_path, ["convert", "one.json", "again.jsonl"]).code == 0
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "d.jsonl").read_bytes()


# saved reports


Change = Callable[[dict[str, Any]], object]
READ_REPORTS = [["compare", "a.json", "a.json"], ["convert", "a.json", "o.csv"]]
HEAD: Callable[[dict[str, Any]], dict[str, Any]] = lambda r: r["texts"][0]["heads"]  # noqa: E731


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: HEAD(r)["stages"]["weights"][0].pop(), "heads.stages.weights has shape [1, 4, 5], expected [1, 5"),
        (lambda r: HEAD(r)["stages"]["weights"][0][0].pop(), "inhomogeneous"),
        (lambda r: HEAD(r)["stages"].update(weights=[]), "heads.stages.weights has shape [0, 0, 0]"),
        (lambda r: HEAD(r)["stages"].update(weights=[1.0, 2.0]), "has 1 axes, expected 3"),
        (lambda r: HEAD(r)["stages"].update(weights={"a": 1}), "something other than numbers of type float32"),
        (lambda r: HEAD(r)["stages"]["weights"][0][0].__setitem__(0, 1e39), "something other than numbers of type"),
        (lambda r: HEAD(r)["stages"]["weights"][0][0].__setitem__(0, 10**400), "than numbers of type float32"),
        (lambda r: HEAD(r)["stages"].update(more=[[[1.0]]]), "heads.stages has 'more', not one of scores"),
        (lambda r: HEAD(r)["rows"].update(entropy=[[1.0]]), "heads.rows.entropy has shape [1, 1], expected [1, 5]"),
        (lambda r: HEAD(r)["top"]["keys"][0][0].__setitem__(0, 5), "heads.top.keys has a position of"),
        (lambda r: HEAD(r)["top"]["keys"][0][0].__setitem__(0, 1.5), "something other than whole numbers"),
        (lambda r: HEAD(r)["top"]["keys"][0][0].__setitem__(0, 10**30), "something other than whole numbers"),
        (lambda r: HEAD(r)["top"].update(keys=[]), "heads.top.keys has shape [0, 0, 0], expected [1, 5"),
        (lambda r: HEAD(r)["top"].update(weight=[[[1.0]]]), "heads.top.weight has shape [1, 1, 1], expected [1, 5"),
        (lambda r: HEAD(r)["top"].update(by="projected"), "heads.top.by is 'projected', which top does not have"),
        (lambda r: HEAD(r)["units"][0].__setitem__(0, -1), "heads.units[0] has the layer -1, neither a number"),
        (lambda r: HEAD(r)["units"].append([0, 0]), "heads.top.keys has shape [1, 5, 3], expected [2, 5, 3]"),
        (lambda r: HEAD(r).pop("top"), "heads.top is missing"),
        (lambda r: HEAD(r)["rows"].pop("entropy"), "heads.rows.entropy is missing"),
        (lambda r: HEAD(r)["scale"].append(1.0), "heads.scale has shape [2], expected [1] (unit)"),
        (lambda r: HEAD(r)["rows"].update(sink=[[0.5]]), "heads.rows.sink has shape [1, 1], expected [1, 5]"),
        (lambda r: HEAD(r).update(fully_masked=[[99]]), "heads.fully_masked has a position of 5 or more"),
        (lambda r: r["texts"][0].update(queries=[0, 1, 2, 3, 9]), "queries is not an ascending list of positions"),
        (lambda r: r["texts"][0].update(queries=[0, 1, 2, 4, 3]), "queries is not an ascending list of positions"),
        (lambda r: r["texts"][0].update(keys=[-1]), "keys is not an ascending list of positions below 5"),
        (lambda r: r["texts"][0].update(tokens=[]), "tokens is empty"),
        (lambda r: r.update(texts=[]), "texts is empty"),
        (lambda r: r.update(mask="[" * 3), "not an attnscope report"),
    ],
    ids=range(28),
)  # fmt: skip
@pytest.mark.parametrize(
    "argv",
    [["compare", "a.json", "a.json"], ["convert", "a.json", "o.csv"]],
    ids=["compare", "convert"],
)
def test_reports_with_wrong_shapes(
    tmp_path: Path, change: Change, said: str, argv: list[str]
) -> None:
    value = json.loads(report())
    change(value)
    line = refusal(tmp_path, argv, {"a.json": json.dumps(value).encode()})
    assert line.startswith("a.json: ")
    assert said in line


POOLED: Callable[[dict[str, Any]], dict[str, Any]] = lambda r: HEAD(r)["pooled"]  # noqa: E731


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda r: POOLED(r)["weights"][0].pop(),
            "heads.pooled.weights has shape [1, 2, 3], expected [1, 3, 3]",
        ),
        (
            lambda r: POOLED(r).update(queries=[]),
            "heads.pooled.queries does not run from 0 to 5, the number of tokens",
        ),
        (
            lambda r: POOLED(r).update(keys=[0, 5, 5, 5]),
            "heads.pooled.keys does not run from 0 to 5, the number of tokens",
        ),
        (
            lambda r: HEAD(r).update(columns=[[1.0]]),
            "heads.columns has shape [1, 1], expected [1, 5] (unit, source)",
        ),
        (
            lambda r: HEAD(r).update(pooled=None),
            "heads.pooled is missing, and there are no queries",
        ),
    ],
    ids=range(5),
)
def test_reports_with_wrong_maps(change: Change, said: str) -> None:
    value = json.loads(report("--pool", "3"))
    change(value)
    with pytest.raises(AttnscopeError) as error:
        from_json(json.dumps(value).encode())
    assert said in str(error.value)


def test_a_report_with_a_map_alone_becomes_a_table_without_rows(tmp_path: Path) -> None:
    assert (
        ended(tmp_path, ["convert", "a.json", "o.csv"], {"a.json": report("--pool", "3")}).code == 0
    )
    assert (tmp_path / "o.csv").read_text().count("\n") == 1


def test_json_that_is_nested_too_deeply(tmp_path: Path) -> None:
    deep = report().replace(b'"notes":[]', b'"more":' + b"[" * 100_000, 1)
    for argv in (["compare", "a.json", "a.json"], ["convert", "a.json", "o.csv"]):
        assert "nested too deeply" in refusal(tmp_path, argv, {"a.json": deep})


def test_json_that_is_not_utf8(tmp_path: Path) -> None:
    for argv in (["compare", "a.json", "a.json"], ["convert", "a.json", "o.csv"]):
        refusal(
            tmp_path,
            argv,
            {"a.json": report().replace(b'"attnscope.report', b'"\x9battnscope.report')},
        )


# dumps whose lines carry the right checksums


def _resealed(data: bytes, number: int, change: Change | bytes) -> bytes:
    """A dump one line of which holds something else, under checksums that are right."""
    before = after = 0
    lines = []
    for n, line in enumerate(data.splitlines(keepends=True)):
        whole = unseal(line, before)
        assert whole is not None
        body, before = whole
        if n == number and isinstance(change, bytes):
            body = change
        elif n == number and not isinstance(change, bytes):
            value = json.loads(body)
            change(value)
            body = json.dumps(value, separators=(",", ":")).encode()
        sealed, after = seal(body, after)
        lines.append(sealed)
    return b"".join(lines)


RECORDS: list[tuple[Change | bytes, str]] = [
    (
        lambda r: r["top"]["keys"][0][0].__setitem__(0, 5),
        "record 0: top.keys has a position of 5 or more",
    ),
    (lambda r: r["top"]["keys"][0].pop(), "is not a dump"),
    (
        lambda r: r["top"].update(weight=[[[0.5]]]),
        "record 0: top.weight has shape [1, 1, 1], expected [",
    ),
    (lambda r: r.pop("top"), "record 0: top is missing"),
    (
        lambda r: r["rows"].update(entropy=[[0.5]]),
        "record 0: rows.entropy has shape [1, 1], expected [",
    ),
    (lambda r: r.update(units=[]), "expected [0, 5"),
    (
        lambda r: r.update(queries=[0, 1, 2, 3, 7]),
        "record 0: queries is not an ascending list of positions below 5",
    ),
    (lambda r: r.update(fields=[]), "is not a dump"),
    (lambda r: r["top"]["keys"][0][0].__setitem__(0, 10**12), "is not a dump"),
]


@pytest.mark.parametrize(("change", "said"), RECORDS, ids=range(len(RECORDS)))
def test_records_with_wrong_content(tmp_path: Path, change: Change, said: str) -> None:
    files = {"d.jsonl": _resealed(dump(), 1, change)}
    for target in ("o.csv", "o.json", "o"):
        assert said in refusal(tmp_path, ["convert", "d.jsonl", target], files)


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (0, b'{"schema":"attnscope.dump/1"}'),
        (1, b'{"index":-1,"hash":"0123456789abcdef","status":"ok"}'),
        (1, b'{"index":0,"hash":"hash","status":"ok"}'),
        (1, b'{"index":0,"hash":"0123456789abcdef","status":"ok","shard":"../x.safetensors"}'),
        (1, b'{"index":"a"}'),
        (1, b'{"x}'),
        (1, b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"),
        (4, b'{"end":null,"records":3}'),
        (4, b'{"end":true}'),
    ],
    ids=range(9),
)
def test_dumps_that_cannot_be_gone_on_with(tmp_path: Path, number: int, change: bytes) -> None:
    data = _resealed(dump(), number, change)
    files = {"d.jsonl": data, "texts.txt": b"The bank by the river\n\nA bank, a river\n"}
    argv = [
        "batch",
        "texts.txt",
        "-o",
        "d.jsonl",
        "--config",
        "causal",
        "--layer",
        "0",
        "--head",
        "0,1",
    ]
    line = refusal(tmp_path, argv, files)
    assert line.startswith("d.jsonl")
    assert (tmp_path / "d.jsonl").read_bytes() == data


@pytest.mark.parametrize(
    "change",
    [
        lambda places: places["top.keys"].update(dtype="F32"),
        lambda places: places["top.keys"].update(dtype="F64"),
        lambda places: places["top.keys"].update(shape=[1]),
        lambda places: places["top.keys"].update(data_offsets=[0, 10**9]),
        lambda places: places["top.keys"].update(data_offsets="all"),
        lambda places: places["top.keys"].update(data_offsets=[-1, 3], shape=[1]),
        lambda places: places["top.keys"].update(data_offsets=[0, 4], shape=[-1, -1]),
        lambda places: places.update({"top.more": places["top.keys"]}),
        lambda places: places.update({"more": places["top.keys"]}),
        lambda places: places.pop("top.keys"),
        lambda places: places.pop("rows.entropy"),
        lambda places: places["top.keys"].update(dtype="F32", shape=[5, 2, 3]),
        lambda places: places["top.keys"].update(dtype="I32", shape=[5, 2, 3]),
        lambda places: places["top.keys"].update(dtype="I16"),
        lambda places: places["top.keys"].update(shape=[60]),
        lambda places: places["rows.entropy"].update(dtype="U16"),
        lambda places: places["rows.entropy"].update(shape=[20]),
        lambda places: places["rows.entropy"].update(shape=[2, 10]),
        lambda places: places.pop("top.keys/offsets"),
        lambda places: places["top.keys/offsets"].update(shape=[1, 3]),
        lambda places: places["top.keys/offsets"].update(dtype="I32", shape=[6]),
        lambda places: places.update({"top.keys/offsets": places["texts"]}),
        lambda places: places.update({"top.keys/texts": places["top.keys"]}),
        lambda places: places.pop("texts"),
        lambda places: places["texts"].update(shape=[1, 2]),
        lambda places: places["texts"].update(dtype="I32", shape=[4]),
        lambda places: places.update(texts={"dtype": "I64", "shape": [0], "data_offsets": [0, 0]}),
    ],
    ids=range(27),
)
def test_shards_with_another_header(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    from zlib import crc32

    assert ended(tmp_path, ["convert", "d.jsonl", "shards"], {"d.jsonl": dump()}).code == 0
    (shard,) = (tmp_path / "shards").glob("*.safetensors")
    data = shard.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    places = json.loads(data[8:end])
    change(places)
    text = json.dumps(places).encode()
    shard.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])
    index = tmp_path / "shards" / "index.jsonl"
    check = f"{crc32(shard.read_bytes()):08x}"
    for number in (1, 3):
        index.write_bytes(
            _resealed(index.read_bytes(), number, lambda record: record.update(shard_check=check))
        )
    assert str(refusal(tmp_path, ["convert", "shards", "o.csv"])).startswith("shards")
