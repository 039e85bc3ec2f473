"""Pages with Python and the notebook say what happens: every example runs, and gives what stands behind it."""

import ast
import os
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", ["python.md", "other-engines.md"])
def test_every_example_gives_what_the_page_says(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    outputs = 0
    blocks = re.findall(
        r"^```python\n(.*?)^```$",
        (DOCS / page).read_text().partition("\n## Recipes")[0],
        re.DOTALL | re.MULTILINE,
    )
    for block in blocks:
        for code, expected in statements(block):
            capsys.readouterr()
            tree = ast.parse(code)
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, page, "exec"), names)
            value = (
                None
                if last is None
                else eval(compile(ast.Expression(last.value), page, "eval"), names)
            )
            if expected is not None:
                printed = capsys.readouterr().out.strip()
                assert shortened(printed or repr(value), expected) == expected, code
                outputs += 1
    assert outputs == sum(block.count("#: ") for block in blocks) >= 6


def shortened(shown, expected):
    """What is shown, with `…` in place of digits that the page leaves out."""
    for before in expected.split("…")[:-1]:
        at = shown.find(before) + len(before)
        shown = shown[:at] + re.sub(r"^\d+", "…", shown[at:])
    return shown


def statements(block):
    """Pieces of code, each with the line that the page shows behind it; None where it shows none."""
    code: list[str] = []
    for line in block.splitlines():
        if line.startswith("#: "):
            yield "\n".join(code), line.removeprefix("#: ")
            code = []
        else:
            code.append(line)
    if "".join(code).strip():
        yield "\n".join(code), None


def test_the_notebook_runs_and_shows_what_it_shows(monkeypatch):
    # tqdm's, where Jupyter's widgets are missing
    monkeypatch.setenv("PYTHONWARNINGS", "ignore:IProgress not found")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    saved = nbformat.read(DOCS / "attnscope.ipynb", as_version=4)
    ran = nbclient.NotebookClient(
        nbformat.from_dict(saved), timeout=60, kernel_name="python3", coalesce_streams=True
    ).execute()
    cells = [
        (old, new)
        for old, new in zip(saved.cells, ran.cells, strict=True)
        if old.cell_type == "code"
    ]
    assert len(cells) >= 4
    if os.environ.get("ATTNSCOPE_SNAPSHOTS") == "write":
        for old, new in cells:
            old.outputs = new.outputs
        nbformat.write(saved, DOCS / "attnscope.ipynb")
    for old, new in cells:
        assert len(new.outputs) == 1, "nothing shows itself besides what a cell gives"
        assert shown(new) == shown(old), new.source


def shown(cell):
    """What a cell shows, as text."""
    return [output.get("text") or output["data"]["text/plain"] for output in cell.outputs]
