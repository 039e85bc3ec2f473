"""A model for tests of chats and spans."""

import pytest

from tests.chat import span_cuts


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """The folder of a tiny GPT-2, and the same model of transformers."""
    path = tmp_path_factory.mktemp("gpt2")
    return path, span_cuts.save(path)
