"""Functions take a model that is open, and tell who types the name of a command what to type."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attnscope
from attnscope.base.errors import AttnscopeError

TEXT = "The bank by the river"
CALLS: list[Callable[[Any], Any]] = [
    lambda model: attnscope.inspect(TEXT, model=model).weights,
    lambda model: attnscope.explain(TEXT, model=model, query=1).weights,
    lambda model: attnscope.ablate(TEXT, model=model, each="layer").values,
    lambda model: attnscope.heads(model, TEXT, measure="entropy").values,
    lambda model: (
        attnscope.compare(TEXT, "The bank by the town", model=model).changes[0].heads[0].difference
    ),
    lambda model: (
        attnscope.compare([TEXT, "The bank by the town"], model=model)
        .changes[0]
        .heads[0]
        .difference
    ),
    lambda model: np.array(attnscope.check(TEXT, model=model).passed),
]


def test_every_function_takes_an_open_model() -> None:
    with attnscope.open_model() as model:
        for call in CALLS:
            np.testing.assert_array_equal(call(model), call(None))
        assert attnscope.inspect(TEXT, model=model).weights.size, "the model is still open"


def test_settings_of_an_open_model_are_those_it_was_opened_with() -> None:
    with (
        attnscope.open_model() as model,
        pytest.raises(AttnscopeError, match="dtype: the model is open already"),
    ):
        attnscope.inspect(TEXT, model=model, dtype="bfloat16")


def test_commands_without_a_function_of_their_name_say_which_one_it_is() -> None:
    import attnscope.run.session  # from now on, `attnscope.run` is the package

    with pytest.raises(AttnscopeError, match=r"attnscope\.run is a package") as error:
        attnscope.run(TEXT)  # type: ignore[operator]
    assert "attnscope.inspect" in str(error.value.parts.hint)
    import attnscope.batch.dump

    with pytest.raises(AttnscopeError, match=r"attnscope\.batch is a package") as error:
        attnscope.batch("texts.txt", output="dump.jsonl")  # type: ignore[operator]
    assert "attnscope.write_dump" in str(error.value.parts.hint)
    with pytest.raises(AttributeError, match=r"use read_dump|read_dump\("):
        _ = attnscope.convert  # type: ignore[attr-defined]


def test_shares_of_patches_have_the_shape_of_values() -> None:
    other = "The bank by the town"
    patched = attnscope.ablate(TEXT, each="head", patch_from=other, target="[MASK]", at=4)
    assert patched.restored is not None
    assert patched.restored.shape == patched.values.shape == (4, 4)
    strongest = patched.strongest(1)[0]
    share = patched.restored[strongest.layer, strongest.head]
    change = patched.targets[0].other - patched.targets[0].logit
    assert share == pytest.approx(strongest.effect / change, rel=1e-4)
