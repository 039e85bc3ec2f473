"""The folders that the tests of the transformers engine are made of."""

from tests.engines.transformers.conftest import folders  # noqa: F401  # a fixture
