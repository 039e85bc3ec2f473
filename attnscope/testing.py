"""One function for tests: the attention of a model and a batch is sound.

from attnscope.testing import assert_attention_is_sound

def test_attention(model, batch, tokenizer):
    assert_attention_is_sound(model, batch, tokenizer)
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from attnscope.api.doctoring import DoctorResult
from attnscope.api.functions import doctor


def assert_attention_is_sound(
    model: Any,
    batch: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    collator: Callable[..., Any] | None = None,
    *,
    known: Collection[str] = (),
    required: Collection[str] = (),
    **options: Any,
) -> DoctorResult:
    """Fail if a check of `attnscope.doctor` is wrong.

    Args:
        model: See attnscope.doctor.
        batch: See attnscope.doctor.
        tokenizer: See attnscope.doctor.
        collator: See attnscope.doctor.
        known: Names of checks that may be wrong.
        required: Names of checks that must be ok: a check that cannot tell or does not apply fails, too.
        **options: See attnscope.doctor.

    Returns:
        What was found.

    Raises:
        AssertionError: A check is wrong, with its number, place and repair.
        AttnscopeError: An argument is invalid, or the model cannot be used.
        KeyError: There is no check of a name.
    """
    __tracebackhide__ = True
    result = doctor(model, batch, tokenizer, collator, **options)
    for name in (*known, *required):
        result[name]
    lines = []
    for check in result.checks:
        untold = check.verdict not in ("ok", "wrong") and check.name in required
        if untold or (check.verdict == "wrong" and check.name not in known):
            value_text = ""
            if check.value is not None:
                value_text = f" ({check.value:.3g}, limit {check.limit} {check.unit})"
            location = f" at {check.where}" if check.where else ""
            lines.append(f"{check.name}: {check.told}{location}{value_text}: "
                         f"{check.reason or check.title}\n  repair: {check.repair}")  # fmt: skip
    if lines:
        raise AssertionError("attention is not sound\n" + "\n".join(lines))
    return result
