"""docs/doctor.md says what happens: its examples run, and every check has its section."""

import re
from pathlib import Path

import pytest
import transformers as hf

from attnscope.studies.doctor.checks import CHECKS
from tests.doctor.bugs import BUGS
from tests.test_python_page import statements

PAGE = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
EXAMPLES = PAGE.partition("# Three bugs that no loss curve shows\n")[2].partition(
    "\n# The checks\n"
)[0]


def test_every_example_gives_what_the_page_says(capsys):
    import ast

    names, outputs = {}, 0
    try:
        for block in re.findall(r"^```python\n(.*?)^```$", EXAMPLES, re.DOTALL | re.MULTILINE):
            for code, expected in statements(block):
                capsys.readouterr()
                tree = ast.parse(code)
                last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
                exec(compile(tree, "docs/doctor.md", "exec"), names)
                value = (
                    None
                    if last is None
                    else eval(compile(ast.Expression(last.value), "page", "eval"), names)
                )
                if expected is not None:
                    assert (capsys.readouterr().out.strip() or repr(value)) == expected, code
                    outputs += 1
    finally:
        hf.AttentionInterface._global_mapping.pop("fast", None)
    assert outputs == 8


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_check_has_a_section_and_a_bug_that_it_finds(check):
    section = PAGE.partition(f"\n## {check.name}\n")[2].partition("\n## ")[0]
    assert check.title in section and check.why in section and f"Repair: {check.repair}" in section
    assert check.name == "packed_with_cache" or any(bug.check == check.name for bug in BUGS), (
        "its verdict is never wrong"
    )
