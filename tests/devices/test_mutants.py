"""The changes that `python -m tests.devices.mutants` counts as without effect are changes of lines that exist."""

from tests.devices.mutants import EQUIVALENT, ROOT, matches, mutants_of


def test_every_change_without_effect_is_still_in_the_code():
    named = set()
    for path in (ROOT / "attnscope").rglob("*.py"):
        source = path.read_bytes()
        for mutant in mutants_of(path) if b"device" in source or b".cpu()" in source else ():
            named |= {piece for piece in EQUIVALENT if matches(mutant, source, piece)}
    assert set(EQUIVALENT) == named
