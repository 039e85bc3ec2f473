"""Folders of tiny models, each made once."""

import pytest

from tests.helpers.architectures import NO_TABLE, NO_TEXT, ONE_PART, TWO_PARTS, make, save


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A function that gives the folder of an architecture."""
    made = {}

    def folder(name):
        if name not in made:
            config = {**ONE_PART, **TWO_PARTS, **NO_TEXT, **NO_TABLE}[name]
            made[name] = save(tmp_path_factory.mktemp(name), make(name, config))
        return made[name]

    return folder
