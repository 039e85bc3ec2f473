"""The texts of tests at scale."""

import pytest

from tests.scale.test_merge import SHORT_BLOCKS, lines


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with a file of 150 texts."""
    (tmp_path / "texts.txt").write_text("".join(f"{line}\n" for line in lines(150)))
    monkeypatch.setattr(*SHORT_BLOCKS)
    monkeypatch.chdir(tmp_path)
    return tmp_path
