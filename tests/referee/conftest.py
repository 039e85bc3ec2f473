"""Folders of models for the whole session: each is made once."""

import pytest

from tests.referee.models import Models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("referee"))
