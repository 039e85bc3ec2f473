"""Which processor a description of Linux names."""

from pathlib import Path

import pytest

from attnscope.base.system.machine import amd_family

CORE = (
    "processor\t: {}\nvendor_id\t: {}\ncpu family\t: {}\nmodel name\t: a: b\nflags\t\t: fpu vme\n\n"
)


@pytest.mark.parametrize(
    ("text", "family"),
    [
        (CORE.format(0, "AuthenticAMD", 25) + CORE.format(1, "AuthenticAMD", 99), 25),
        (CORE.format(0, "AuthenticAMD", 26), 26),
        (CORE.format(0, "GenuineIntel", 6), None),
        ("processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n", None),
        (CORE.format(0, "AuthenticAMD", "new"), None),
        ("", None),
    ],
)
def test_the_family_is_that_of_the_first_core(
    text: str, family: int | None, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert amd_family(tmp_path / "cpuinfo") == family


def test_without_a_description_nothing_is_known(tmp_path: Path) -> None:
    assert amd_family(tmp_path / "cpuinfo") is None
