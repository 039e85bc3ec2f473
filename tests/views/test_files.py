import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from attnscope.errors import UsageError
from attnscope.report import STAGES, from_json, to_json
from attnscope.views import formats
from tests.helpers.sample_reports import HOSTILE, bank, report, text_report, tokens
from tests.helpers.screens import draw


def export(*args, **options):
    return b"".join(formats.export(*args, **options))


def test_a_sink_goes_where_the_weights_go(tmp_path):
    made = report(text_report(tokens(["a", "b", "c"]), sink=0.5))
    head = json.loads(export(made, Path("x.json")))["texts"][0]["heads"][0]
    assert [sum(row) + sink for row, sink in zip(head["stages"]["weights"], head["sink"], strict=True)] == (
        pytest.approx([1.0] * 3)
    )
    (tmp_path / "x.safetensors").write_bytes(export(made, tmp_path / "x.safetensors"))
    with safe_open(tmp_path / "x.safetensors", "numpy") as f:
        assert f.get_tensor("text0.L2H1.sink").tolist() == made.texts[0].heads[0].sink.tolist()


@pytest.fixture
def made():
    return report(
        text_report(tokens(["a", "b"]), allowed=lambda query, key: query == 0, stages=STAGES, projected=True),
        text_report(tokens(["c"]), index=1, context=tokens(["x", "y"]), heads=[(0, 0), (1, 3)]),
        weights="random",
    )


def test_json_is_the_report_and_nothing_else(made):
    data = export(made, Path("x.json"))
    assert data == to_json(made) + b"\n"
    assert to_json(from_json(data)) == to_json(made)


def test_text_is_the_table_view_without_escapes(made):
    assert export(made, Path("x.txt")).decode() == draw(made, 120)
    assert export(made, Path("x.TXT"), width=60, precision=4).decode() == draw(made, 60, precision=4)


def test_svg_is_coloured_well_formed_and_loads_nothing():
    from xml.etree import ElementTree

    hostile = report(text_report(tokens([*HOSTILE, "<script>alert(1)</script>", '" onload="x'])))
    data = export(hostile, Path("x.svg"), width=100)
    root = ElementTree.fromstring(data)
    assert {element.tag.split("}")[1] for element in root.iter()} <= {
        "svg",
        "style",
        "defs",
        "clipPath",
        "rect",
        "text",
        "g",
        "circle",
    }
    assert b"url(http" not in data
    assert b"@font-face" not in data
    assert b"#fde725" in data
    assert "<script>alert(1)</script>" in "".join(root.itertext()).replace("\u00a0", " ")


def test_safetensors_hold_every_array_by_name(made, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(export(made, path))
    with safe_open(path, "numpy") as f:
        metadata = json.loads(f.metadata()["attnscope"])
        stored = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 (not a dict)
    assert metadata["provenance"]["weights"] == "random"
    assert metadata["schema"] == made.schema
    for text in made.texts:
        name = f"text{text.index}"
        assert stored.pop(f"{name}.queries").tolist() == text.queries
        assert stored.pop(f"{name}.keys").tolist() == text.keys
        assert stored.pop(f"{name}.ids").tolist() == [token.id for token in text.tokens]
        assert [token["text"] for token in metadata["texts"][name]["tokens"]] == [token.text for token in text.tokens]
        if text.context is not None:
            assert stored.pop(f"{name}.context_ids").tolist() == [token.id for token in text.context]
        for head in text.heads:
            facts = metadata["texts"][name]["heads"][f"L{head.layer}H{head.head}"]
            assert facts["fully_masked"] == head.fully_masked
            at = f"{name}.L{head.layer}H{head.head}"
            arrays = dict(head.stages)
            arrays |= {f"top.{field}": getattr(head.top, field) for field in ("keys", "weight", "value", "projected")}
            arrays |= {f"rows.{field}": getattr(head.rows, field) for field in head.rows.__struct_fields__}
            for field, array in arrays.items():
                if array is not None:
                    np.testing.assert_array_equal(stored.pop(f"{at}.{field}"), array)
    assert not stored


@pytest.mark.parametrize("ending", formats.endings("run"))
def test_the_same_report_gives_the_same_bytes_in_another_process(ending):
    program = (
        "from pathlib import Path; from hashlib import sha256; from tests.helpers.sample_reports import bank;"
        "from attnscope.views.formats import export;"
        f"print(sha256(b''.join(export(bank(), Path('x{ending}')))).hexdigest())"
    )
    runs = {subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout for _ in range(2)}
    assert len(runs) == 1


@pytest.mark.parametrize(("name", "found"), [("x.png", "'.png'"), ("x", "no extension"), (".json", "no extension")])
def test_another_ending_is_refused_with_those_there_are(name, found):
    with pytest.raises(UsageError) as e:
        export(bank(), Path(name))
    assert found in e.value.found
    assert str(e.value).startswith(f"{name}: ")
    assert e.value.hint == "use .json .txt .svg .safetensors"


def test_views_leave_torch_alone_and_files_leave_rich_alone():
    program = "import sys, attnscope.views.formats; assert 'rich' not in sys.modules; import attnscope.views.terminal;"
    subprocess.run([sys.executable, "-c", program + "assert 'torch' not in sys.modules"], check=True)
