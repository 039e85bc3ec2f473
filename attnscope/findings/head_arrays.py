"""The numbers of a head over all rows of a text as a struct, whose fields are those of `head_averages`."""

from typing import TYPE_CHECKING

import msgspec

from attnscope.findings.arrays import Array, OfUnits
from attnscope.findings.head_averages import HEAD_AVERAGES

if TYPE_CHECKING:

    class HeadArrays(msgspec.Struct, frozen=True):
        """A type checker does not see the fields, which are those of HEAD_AVERAGES."""

        def __init__(self, **arrays: Array) -> None: ...
        def __getattr__(self, name: str) -> Array: ...

else:
    _DOC = (
        "Numbers of every head over the shown rows of tokens that are not special, or over all of them if none is.\n\n"
        "    Each array has one number for every unit. A row that may attend to nothing is left out; null if no row\n"
        "    counts, and where queries and keys are different texts if a number needs them to be the same.\n\n"
        "    Attributes:\n"
    )
    HeadArrays = msgspec.defstruct(
        "HeadArrays",
        [(average.name, OfUnits) for average in HEAD_AVERAGES],
        namespace={
            "__doc__": _DOC
            + "".join(f"        {a.name}: {a.meaning}\n" for a in HEAD_AVERAGES)
            + "    "
        },
        module=__name__,
        frozen=True,
    )
