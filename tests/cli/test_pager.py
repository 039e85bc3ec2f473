"""What is longer than the terminal goes through a pager, as in git."""

import pytest

from tests.helpers.cli_runner import on_terminal

TEXT = "The bank by the river"
COLOURS = {"TERM": "xterm-256color"}
LAST = b"(every digit)"


@pytest.fixture
def pager(tmp_path):
    """A pager that keeps what it gets in a file."""
    return tmp_path / "paged.txt", {"PAGER": f"tee {tmp_path / 'paged.txt'}", **COLOURS}


@pytest.mark.unix
def test_long_output_goes_through_the_pager_as_a_whole(pager):
    kept, env = pager
    code, seen = on_terminal("fine", "run", TEXT, env=env)
    plain_code, plain = on_terminal("fine", "run", TEXT, "--no-pager", env=env)
    assert (code, plain_code) == (0, 0)
    paged = kept.read_bytes()
    assert paged in plain.replace(b"\r\n", b"\n")
    assert paged.count(b"\n") > 24 and b"\x1b[" in paged and LAST in paged
    assert paged in seen.replace(b"\r\n", b"\n")


@pytest.mark.unix
@pytest.mark.parametrize(
    ("args", "lines"),
    [(["--no-pager"], "24"), ([], "200"), (["--format", "json"], "24")],
    ids=["no", "fits", "data"],
)
def test_no_pager_is_used(pager, args, lines):
    kept, env = pager
    code, seen = on_terminal("fine", "run", TEXT, *args, env={**env, "LINES": lines})
    assert code == 0 and seen and not kept.exists()


@pytest.mark.unix
@pytest.mark.parametrize(
    ("pager", "ends"), [("head -n 1", False), ("attnscope-no-such-pager", True), ("", True)]
)
def test_a_pager_that_stops_early_or_is_missing_is_no_error(pager, ends):
    code, seen = on_terminal("fine", "run", TEXT, env={"PAGER": pager, **COLOURS})
    assert code == 0
    assert (LAST in seen) == ends


@pytest.mark.unix
def test_less_passes_colours_through(tmp_path):
    """The pager is told so by LESS, unless the user has settings of their own."""
    script = tmp_path / "settings"
    script.write_text('#!/bin/sh\ncat > /dev/null; echo "LESS is $LESS"\n')
    script.chmod(0o755)
    for given, used in ((None, b"LESS is FRX"), ("-N", b"LESS is -N")):
        env = {"PAGER": str(script), **COLOURS} | ({} if given is None else {"LESS": given})
        assert used in on_terminal("fine", "run", TEXT, env=env)[1]
