import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from safetensors import safe_open

from attnscope.base.errors import UsageError
from attnscope.findings.array_files import METADATA, from_arrays
from attnscope.findings.attribution import Attribution, LogitEdge, TargetToken
from attnscope.findings.codec import from_json, to_json
from attnscope.findings.heads import STAGES
from attnscope.studies import formats
from tests.helpers.heads import heads_of, of_head, stacked
from tests.helpers.sample_reports import bank, report, text_report, tokens
from tests.helpers.screens import draw


def export(*args, **options):
    return b"".join(formats.export(*args, **options))


def test_a_sink_goes_where_the_weights_go(tmp_path):
    made = report(text_report(tokens(["a", "b", "c"]), sink=0.5))
    (head,) = heads_of(json.loads(export(made, Path("x.json")))["texts"][0])
    assert [
        sum(row) + sink
        for row, sink in zip(head["stages"]["weights"], head["rows"]["sink"], strict=True)
    ] == (pytest.approx([1.0] * 3))
    (tmp_path / "x.safetensors").write_bytes(export(made, tmp_path / "x.safetensors"))
    with safe_open(tmp_path / "x.safetensors", "numpy") as f:
        assert f.get_tensor("rows.sink")[0, 0].tolist() == made.texts[0].heads[0].rows.sink.tolist()


@pytest.fixture
def made():
    return report(
        text_report(
            tokens(["a", "b"]), allowed=lambda query, key: query == 0, stages=STAGES, projected=True
        ),
        text_report(tokens(["c"]), index=1, context=tokens(["x", "y"]), heads=[(0, 0), (1, 3)]),
        weights="random",
    )


def test_json_is_the_report_and_nothing_else(made):
    data = export(made, Path("x.json"))
    assert data == to_json(made) + b"\n"
    assert to_json(from_json(data)) == to_json(made)


def test_text_is_the_table_view_without_escapes(made):
    assert export(made, Path("x.txt")).decode() == draw(made, 120)
    assert export(made, Path("x.TXT"), columns=60, precision=4).decode() == draw(
        made, 60, precision=4
    )


def stored(findings, path):
    """The arrays and the metadata of a file of findings, as other libraries read them."""
    path.write_bytes(export(findings, path))
    if path.suffix == ".npz":
        with np.load(path) as file:
            return {name: file[name] for name in file.files if name != METADATA}, json.loads(
                file[METADATA].item()
            )
    with safe_open(path, "numpy") as file:
        names = list(file.keys())
        tensors = {name: file.get_tensor(name) for name in names}
        return tensors, json.loads(file.metadata()["attnscope"])


def arrays_of(head):
    arrays = dict(head.stages)
    arrays |= {
        f"top.{field}": getattr(head.top, field)
        for field in ("keys", "weight", "value", "projected")
    }
    arrays |= {f"rows.{field}": getattr(head.rows, field) for field in head.rows.__struct_fields__}
    return {name: array for name, array in arrays.items() if array is not None}


def test_every_member_of_an_npz_is_an_array(tmp_path):
    (tmp_path / "x.npz").write_bytes(export(bank(), tmp_path / "x.npz"))
    with np.load(tmp_path / "x.npz") as file:
        shapes = {name: file[name].shape for name in file.files}
    assert shapes["metadata"] == ()
    assert shapes["weights"] == (1, 1, 5, 5)


@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
def test_a_file_of_arrays_holds_what_the_parts_of_a_model_add_to_a_logit(ending):
    rng = np.random.default_rng(3)
    heads, biases, mlps, sources = (
        rng.standard_normal(n).astype(np.float32) for n in ((4, 4), 4, 4, 3)
    )
    target = TargetToken(7, "Ġx", " x", 1.5)
    added = Attribution(
        2, target, None, 1.5, 0.1, heads, biases, mlps, 0.2, sources, [LogitEdge(0, 1, 2, -0.5)]
    )
    (text,) = report(text_report(tokens(["a", "b", "c"]), sink=0.5)).texts
    made = report(structs.replace(text, attribution=added))
    assert to_json(from_arrays(export(made, Path(f"x{ending}")), ending)) == to_json(made)


@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
def test_a_file_of_arrays_has_every_number_of_several_texts(made, tmp_path, ending):
    found, metadata = stored(made, tmp_path / f"x{ending}")
    assert metadata["provenance"]["weights"] == "random"
    assert metadata["schema"] == made.schema
    assert metadata["axes"].keys() == found.keys()
    assert all(len(metadata["axes"][name]) == array.ndim for name, array in found.items())
    for text in made.texts:
        name = f"text{text.index}"
        assert found.pop(f"{name}.queries").tolist() == text.queries
        assert found.pop(f"{name}.keys").tolist() == text.keys
        assert found.pop(f"{name}.ids").tolist() == [token.id for token in text.tokens]
        stored_text = metadata["texts"][text.index]
        assert [token["text"] for token in stored_text["tokens"]] == [
            token.text for token in text.tokens
        ]
        if text.context is not None:
            assert found.pop(f"{name}.context_ids").tolist() == [token.id for token in text.context]
        assert found.pop(f"{name}.layers").tolist() == [head.layer for head in text.heads]
        assert found.pop(f"{name}.heads").tolist() == [head.head for head in text.heads]
        of_text = {field: found.pop(f"{name}.{field}") for field in arrays_of(text.heads[0])}
        for n, head in enumerate(text.heads):
            assert stored_text["heads"]["fully_masked"][n] == head.fully_masked
            assert stored_text["heads"]["top"]["keys"] == {"array": f"{name}.top.keys"}
            for field, array in arrays_of(head).items():
                one = of_text[field][n] if len(text.heads) > 1 else of_text[field][0, 0]
                np.testing.assert_array_equal(one, array)
    assert not found


@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
@pytest.mark.parametrize(
    ("heads", "axes"),
    [
        ([(0, 1), (0, 2), (3, 1), (3, 2), (4, 1), (4, 2)], ["layer", "head"]),
        ([(0, 2), (0, 1), (3, 1), (3, 2)], ["unit"]),
        ([(0, 1), (3, 1), (3, 2)], ["unit"]),
        ([("mean", 0), ("mean", 1)], ["layer", "head"]),
    ],
)
def test_a_stage_of_one_text_is_one_array(heads, axes, ending, tmp_path):
    words = tokens(["a", "b", "c"])
    made = report(text_report(words, heads=heads, stages=STAGES, sink=0.5))
    found, metadata = stored(made, tmp_path / f"x{ending}")
    assert metadata["axes"]["weights"] == [*axes, "query", "key"]
    assert metadata["axes"]["output"] == [*axes, "query", "width"]
    assert metadata["axes"]["rows.entropy"] == metadata["axes"]["rows.sink"] == [*axes, "query"]
    layers = [-1 if layer == "mean" else layer for layer, _ in heads]
    if axes == ["unit"]:
        assert (found["layers"].tolist(), found["heads"].tolist()) == (
            layers,
            [head for _, head in heads],
        )
    for n, (layer, (_, number)) in enumerate(zip(layers, heads, strict=True)):
        at = (n,)
        if axes != ["unit"]:
            at = (found["layers"].tolist().index(layer), found["heads"].tolist().index(number))
        for name, array in arrays_of(made.texts[0].heads[n]).items():
            np.testing.assert_array_equal(found[name][at], array)


def test_values_of_several_widths_are_one_array_with_nothing_behind_the_narrow_ones(tmp_path):
    words = tokens(["a", "b"])
    text = text_report(words, heads=[(0, 0), (1, 0)], stages=("weights", "output"))
    heads = [of_head(text.heads, n) for n in (0, 1)]
    heads[1]["stages"]["output"] = np.ones((2, 9), dtype=np.float32)
    made = report(structs.replace(text, heads=stacked(heads)))
    assert [head.stages["output"].shape for head in made.texts[0].heads] == [(2, 6), (2, 9)]
    found, metadata = stored(made, tmp_path / "x.npz")
    assert (found["output"][0, 0, :, :6] == text.heads[0].stages["output"]).all()
    assert np.isnan(found["output"][0, 0, :, 6:]).all() and (found["output"][1] == 1).all()
    assert metadata["axes"]["output"] == ["layer", "head", "query", "width"]
    assert metadata["texts"][0]["heads"]["widths"] == [6, 9]


def test_the_same_report_gives_the_same_bytes_in_another_process():
    endings = (".json", ".txt", ".svg", ".png", ".safetensors", ".npz")
    program = (
        "from pathlib import Path; from hashlib import sha256; from tests.helpers.sample_reports import bank;"
        "from attnscope.studies.formats import export;"
        f"[print(e, sha256(b''.join(export(bank(), Path('x' + e)))).hexdigest()) for e in {endings}]"
    )
    run = [sys.executable, "-c", program]
    there, elsewhere = (
        subprocess.run(run, capture_output=True, text=True, check=True).stdout for _ in range(2)
    )
    assert there == elsewhere
    assert [line.split()[0] for line in there.splitlines()] == [*endings]


@pytest.mark.parametrize(
    ("name", "found"), [("x.jpg", "'.jpg'"), ("x", "no extension"), (".json", "no extension")]
)
def test_another_ending_is_refused_with_those_there_are(name, found):
    with pytest.raises(UsageError) as e:
        export(bank(), Path(name))
    assert found in e.value.message
    assert str(e.value).startswith(f"{name}: ")
    assert (
        e.value.hint
        == "use .json .txt .svg .png .pdf .html .safetensors .npz .srt .vtt .csv .parquet"
    )


def test_views_leave_torch_alone_and_files_leave_rich_alone():
    program = "import sys, attnscope.studies.formats; assert 'rich' not in sys.modules; import attnscope.views.terminal;"
    subprocess.run(
        [sys.executable, "-c", program + "assert 'torch' not in sys.modules"], check=True
    )
