"""A study is a folder and a line: what the command line and Python offer of it follows from its declaration."""

import sys
from types import ModuleType

import msgspec
import pytest

import attnscope
from attnscope.cli import main
from attnscope.cli.app import build_app
from attnscope.request.options import RUN, number
from attnscope.studies import registry
from attnscope.studies.study import FindingsKind, Study, StudyCommand
from attnscope.views.parts import paragraph
from attnscope.views.spans import Span

TEXT = "The bank by the river"


class Lengths(msgspec.Struct):
    """How long each token is."""

    lengths: list[int]
    schema: str = "attnscope.lengths/1"


def answer(request):
    most = request.values["most"]
    return Lengths([len(word) for word in request.run.texts[0].text.split()][:most])


def show(findings, settings):
    yield paragraph((Span(f"lengths: {findings.lengths}"),))


@pytest.fixture
def lengths(monkeypatch):
    """The study `lengths`, as if there were a folder and a line of it."""
    module = ModuleType("attnscope.studies.lengths.study")
    kind = FindingsKind("lengths", "lengths:Lengths", "lengths.study:show")
    options = (*RUN, number("most", "Options", 1, "Number of words."))
    module.STUDY = Study(
        (kind,), StudyCommand("Count letters.", "attnscope lengths abc", answer, options)
    )
    module.Lengths, module.show = Lengths, show
    monkeypatch.setattr(Lengths, "__module__", "attnscope.findings.lengths")
    for name in ("attnscope.studies.lengths", module.__name__, Lengths.__module__):
        monkeypatch.setitem(sys.modules, name, module)
    studies = (*registry.STUDIES, "lengths")
    for holder in ("attnscope.studies.registry", "attnscope.api.functions"):
        monkeypatch.setattr(f"{holder}.STUDIES", studies)
    registry.kinds.cache_clear()
    yield
    registry.kinds.cache_clear()
    registry.study.cache_clear()
    vars(attnscope).pop("lengths", None)


def test_a_declared_study_has_a_command_a_function_and_files(
    lengths, monkeypatch, capsys, tmp_path
):
    for module in ("help_text", "app", "commands"):  # help imports the list of commands
        monkeypatch.setattr(f"attnscope.cli.{module}.COMMANDS", ["lengths"])
    monkeypatch.setattr("attnscope.cli.commands.STUDIES", registry.STUDIES)
    monkeypatch.setattr(
        "attnscope.cli._command", lambda name: __import__("typer").main.get_command(build_app(name))
    )
    assert main(["lengths", TEXT, "--most", "3"]) == 0
    assert "lengths: [3, 4, 2]" in capsys.readouterr().out
    assert main(["lengths", TEXT, "--json"]) == 0
    assert '"lengths":[3,4,2,3,5]' in capsys.readouterr().out
    assert main(["lengths", TEXT, "--most", "0"]) == 2
    assert "--most: 0 is out of range; use 1 or more" in capsys.readouterr().err
    assert main(["lengths", TEXT, "-o", str(tmp_path / "a.csv")]) == 2
    assert (
        "what lengths finds cannot be written as .csv; use .json .txt .svg .png .pdf .html"
        in capsys.readouterr().err
    )

    result = attnscope.lengths(TEXT, most=2)
    assert result.data == Lengths([3, 4])
    assert "lengths: [3, 4]" in result.text()
    result.save(tmp_path / "a.json")
    assert (
        tmp_path / "a.json"
    ).read_bytes() == b'{"lengths":[3,4],"schema":"attnscope.lengths/1"}\n'
    with pytest.raises(attnscope.AttnscopeError, match=r"^most: 0 is out of range; use 1 or more$"):
        attnscope.lengths(TEXT, most=0)
    with pytest.raises(attnscope.AttnscopeError, match=r"lengths\(\) has no argument 'fewest'"):
        attnscope.lengths(TEXT, fewest=0)


def test_every_kind_of_findings_names_a_class_and_formats_that_are_written():
    from attnscope.studies.formats import FILE_FORMATS

    endings = {form.ending for form in FILE_FORMATS}
    for kind in registry.kinds():
        assert issubclass(kind.findings_type(), msgspec.Struct)
        assert set(kind.formats) <= endings
