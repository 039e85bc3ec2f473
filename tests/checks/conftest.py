"""The folders that the tests of the transformers engine are made of."""

from tests.hosted.conftest import folders  # noqa: F401  # a fixture
