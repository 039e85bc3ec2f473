"""Values that commands take without pydantic are those that Typer would have made of them."""

from pathlib import Path
from typing import Any

import pytest
import typer
from typer._coercion import build_runtime_param
from typer.main import get_command

from attnscope.base.errors import AttnscopeError
from attnscope.cli.app import build_app
from attnscope.cli.help import take_plain_values

VALUES = [
    "",
    "1",
    "-3",
    "x",
    "float32",
    "table",
    "all",
    "0-2,5",
    "é",
    "there",
    "missing",
    "\udcff",
    True,
    7,
    0.5,
    None,
]
VALUES += [(), ("1", "a"), ["x"]]


def _outcome(coerce: Any, value: Any, parameter: Any, context: Any) -> tuple[Any, ...]:
    try:
        found = coerce(value, param=parameter, ctx=context)
        return type(found), found
    except (typer.BadParameter, AttnscopeError) as e:
        return type(e), str(e)
    except Exception as e:  # what a parser says of values that no command line holds
        return (type(e),)


@pytest.mark.parametrize("name", ["run", "batch", "import"])
def test_every_option_takes_what_typer_would(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").touch()
    command: Any = get_command(build_app([name]))
    command = command.commands[name]
    context = typer.Context(command)
    take_plain_values(command.params)
    compared = 0
    for parameter in command.params:
        plain, theirs = (
            parameter.get_runtime_param(),
            build_runtime_param(parameter.type_descriptor),
        )
        assert type(plain).__module__ == "attnscope.cli.help"
        for value in VALUES:
            assert _outcome(plain.coerce, value, parameter, context) == _outcome(
                theirs.coerce, value, parameter, context
            )
            compared += 1
    assert compared >= 19 * len(command.params)
