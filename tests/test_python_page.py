"""docs/python.md and the notebook say what happens: every example runs, and gives what stands behind it."""

import ast
import os
import re
from pathlib import Path

import pytest

from attnscope.cli import main

DOCS = Path(__file__).parent.parent / "docs"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (DOCS / "python.md").read_text(), re.DOTALL | re.MULTILINE)


def test_every_example_gives_what_the_page_says(tmp_path, monkeypatch, capsys):
    from transformers import PreTrainedTokenizerFast

    from attnscope.checkpoints.locating import locate

    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("The bank by the river\nan old river\n")
    assert main(["batch", "texts.txt", "-o", "dump.jsonl", "--quiet"]) == 0
    words = PreTrainedTokenizerFast(tokenizer_file=str(locate("riverbank").path / "tokenizer.json"))
    names = {"attnscope_tokenizer": words}
    outputs = 0
    for block in BLOCKS:
        for code, expected in statements(block):
            capsys.readouterr()
            tree = ast.parse(code)
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "docs/python.md", "exec"), names)
            value = None if last is None else eval(compile(ast.Expression(last.value), "docs/python.md", "eval"), names)
            if expected is not None:
                printed = capsys.readouterr().out.strip()
                assert (printed or repr(value)) == expected, code
                outputs += 1
    assert outputs == sum(block.count("#: ") for block in BLOCKS) > 10


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


def test_the_notebook_runs_and_shows_what_it_shows():
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    saved = nbformat.read(DOCS / "attnscope.ipynb", as_version=4)
    ran = nbclient.NotebookClient(nbformat.from_dict(saved), timeout=60, kernel_name="python3").execute()
    cells = [(old, new) for old, new in zip(saved.cells, ran.cells, strict=True) if old.cell_type == "code"]
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
