"""Folders of models, each made once."""

import pytest

from tests.referee.models import Models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("spans"))
