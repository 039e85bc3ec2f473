"""The walkthrough of RXNMapper with its real weights: every command and number of `docs/rxnmapper.md`."""

import importlib.util
import re
import subprocess
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from attnscope.cli import main
from tests.helpers.unpickling import unpickle_here

PAGE = (Path(__file__).parents[2] / "docs" / "rxnmapper.md").read_text()
REACTION = "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F"
# From the mapping in the package's README: the atoms of the product in order, and the tokens of the reactants that they
# come from. Both rings are written from their two substituted carbons on, the product's from the sulfur's.
SOURCES = {40: 1, 41: 2, 43: 4, 45: 6, 46: 24, 48: 23, 49: 22, 50: 21, 51: 20, 52: 18, 54: 17}
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("rxnmapper") is None, reason="needs: pip install --no-deps rxnmapper"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the commands of the page have run; what the last one printed is in `printed`."""
    place = tmp_path_factory.mktemp("rxnmapper")
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    install, *lines = block.splitlines()
    assert install == "pip install --no-deps rxnmapper"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("COLUMNS", "80")
        unpickle_here(patch)
        for line in lines:
            # The shell expands the command line, and attnscope runs here.
            shell = ["bash", "-c", f"attnscope() {{ printf '%s\\0' \"$@\"; }}; {line}"]
            words = subprocess.run(shell, capture_output=True, text=True, check=True).stdout.split(
                "\0"
            )
            with redirect_stdout(StringIO()) as printed:
                assert main(words[:-1]) == 0
            (place / "printed").write_text(printed.getvalue())
    return place


def test_the_sulfur_of_the_product_looks_at_the_only_sulfur(folder: Path) -> None:
    assert re.search(r"\n +6 S +0\.92 ", (folder / "printed").read_text())


def test_every_number_of_the_page_is_printed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    code, shown = block.split("#: ")
    *lines, last = code.strip().splitlines()
    names: dict[str, object] = {}
    exec("\n".join(lines), names)
    assert str(eval(last, names)) == shown.strip()


def test_the_strongest_reactant_of_all_11_atoms_is_their_source(folder: Path) -> None:
    """By the weights of transformers' own eager attention, too."""
    import torch
    from transformers import AlbertModel

    import attnscope

    report = attnscope.inspect(
        REACTION, model=folder / "rxnmapper", engine="transformers", layer=10, head=5
    )
    assert {atom: int(report.weights[0, 0, atom, :39].argmax()) for atom in SOURCES} == SOURCES
    model = AlbertModel.from_pretrained(folder / "rxnmapper", attn_implementation="eager").eval()
    ids = torch.tensor([[token.id for token in report.data.texts[0].tokens]])
    with torch.inference_mode():
        weights = model(ids, output_attentions=True).attentions[10][0, 5].numpy()
    assert abs(weights - report.weights[0, 0]).max() < 1e-5
    assert {atom: int(weights[atom, :39].argmax()) for atom in SOURCES} == SOURCES


def test_the_other_heads_do_something_else_and_layers_add_up(folder: Path) -> None:
    import attnscope

    report = attnscope.inspect(
        REACTION,
        model=folder / "rxnmapper",
        engine="transformers",
        layer="all",
        head="all",
        stages="weights",
    )
    atoms = list(SOURCES)
    found = report.weights[:, :, atoms, 1:39].argmax(-1) + 1  # (12, 8, 11)
    right = (found == list(SOURCES.values())).sum(-1)
    assert sorted(right[10])[-2:] == [2, 11]
    assert [right[0, 5], right[3, 5], right[4, 5]] == [3, 9, 10]
    assert (right[5:, 5] == 11).all()
