"""Options declared once, in dataclasses, become options of every command that takes them."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from attnscope.cli.option_groups import expand_groups


@dataclass(frozen=True, kw_only=True)
class Size:
    width: Annotated[int, typer.Option("--width")] = 3
    tall: Annotated[bool, typer.Option("--tall")] = False


@dataclass(frozen=True, kw_only=True)
class Name:
    name: Annotated[str, typer.Argument()]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["x"], (Name(name="x"), Size(), 1)),
        (["x", "--width", "5", "--tall", "--more", "2"], (Name(name="x"), Size(width=5, tall=True), 2)),
    ],
)
def test_spread(args, expected):
    seen = []

    def command(name: Name, size: Size, more: Annotated[int, typer.Option()] = 1) -> None:
        """Say so."""
        seen.append((name, size, more))

    app = typer.Typer(add_completion=False)
    app.command()(expand_groups(command))
    app(args, standalone_mode=False)
    assert seen == [expected]
    assert expand_groups(command).__doc__ == "Say so."
    assert expand_groups(command).__name__ == "command"
