"""The tasks of docs/tasks.md: at most three commands each, and 60 lines on a terminal of 80 columns."""

import re
import shlex

import pytest

from attnscope.cli import main
from tests.test_docs import DOCS, folder, inputs

TASKS = re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", (DOCS / "tasks.md").read_text(), re.MULTILINE)
__all__ = ["folder", "inputs"]  # fixtures


def commands_of(page):
    blocks = re.findall(r"^```(?:sh|console)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [
        line.removeprefix("$ ")
        for block in blocks
        for line in re.findall(r"^(?:\$ )?attnscope .*", block, re.MULTILINE)
    ]


def test_all_six_are_there_and_take_no_more_commands_than_they_did():
    assert len(TASKS) == 6
    assert all(
        len(commands_of(page)) <= most
        for (_, page), most in zip(TASKS, (2, 1, 1, 1, 2, 1), strict=True)
    )


@pytest.mark.parametrize(("title", "page"), TASKS, ids=[title for title, _ in TASKS])
def test_a_task_is_short(title, page, folder, capfd):
    asked = commands_of(page)
    assert 1 <= len(asked) <= 3
    for line in asked:
        if ".pdf" in line:
            pytest.importorskip("typst", reason="typst is not installed")
        assert main(shlex.split(line)[1:]) == 0
    shown = capfd.readouterr().out
    assert len(shown.splitlines()) <= 60
    assert max(map(len, shown.splitlines()), default=0) <= 80
