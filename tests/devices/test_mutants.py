"""The changes that `python -m tests.devices.mutants` counts as without effect are changes of lines that exist."""

from tests.devices.mutants import EQUIVALENT, every_mutant


def test_every_change_without_effect_is_still_in_the_code():
    mutants = every_mutant()
    assert [
        piece for piece in EQUIVALENT if not any(mutant.matches(piece) for mutant in mutants)
    ] == []
