"""A key that the user wants ignored and that config.json does not have is noted, with both engines."""

import pytest

import attnscope


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_an_absent_key_is_noted(engine: str, minilm: object) -> None:
    report = attnscope.inspect(
        "a b", model=minilm, ignore_key=["foo"], engine=engine, layer=0, head=0
    )
    assert "--ignore-key: config.json has no foo" in report.provenance.notes
