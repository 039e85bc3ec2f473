"""Compute the pattern of one head that a figure shows beside the map of all."""

from msgspec import structs

from attnscope.base.errors import AttnscopeError
from attnscope.findings.head_findings import HeadRoles, HeadScores
from attnscope.findings.run import Report
from attnscope.request.run_config import TextInput
from attnscope.request.selection import IndexSelection, PositionSelection
from attnscope.run.session import inspect
from attnscope.studies.heads.example_screen import ShownHead, shown_head
from attnscope.studies.heads.page import repeated_tokens
from attnscope.studies.heads.texts import TEXTS
from attnscope.studies.study import Request

_SHOWN = 24  # rows and columns


def run_example(request: Request, found: HeadRoles | HeadScores) -> Report | None:
    """Run a head on the first text, or on random tokens written twice if these show its role.

    None if there is no such head, if it is a layer's without softmax, or if memory does not hold its weights.
    """
    shown = shown_head(found)
    if shown is None or shown.layer in found.shares or request.run.media_kind is not None:
        return None
    session = request.session
    text = (*request.run.texts, TextInput(TEXTS[0]))[0]
    rows, keys = _window(found, shown)
    run = structs.replace(
        request.run,
        texts=(text,),
        layer=IndexSelection.of([shown.layer]),
        head=IndexSelection.of([shown.head]),
        query=PositionSelection.of([rows]),
        key=PositionSelection.of([keys]),
        words=False,
        by="weight",
        stages=("weights",),
        window=None,
        predict=None,
    )
    try:
        if isinstance(found, HeadRoles) and shown.on_random:
            source, opened = session.open(run)
            random = repeated_tokens(source, opened.texts[0], found.probes.seed)
            run = structs.replace(run, texts=(random,))
        return inspect(run, session)
    # such as too little memory: the figure has its map all the same
    except AttnscopeError:
        return None


def _window(found: HeadRoles | HeadScores, shown: ShownHead) -> tuple[slice, slice]:
    """Return the rows and columns that are shown: of random tokens, the second copy on the first."""
    if isinstance(found, HeadRoles) and shown.on_random:
        begin = len(found.probes.before)
        second = begin + found.probes.repeated
        return slice(second, second + _SHOWN), slice(begin, begin + _SHOWN + 1)
    last = 0
    if isinstance(found, HeadScores) and found.texts[0].keys:
        last = max(found.texts[0].queries[0], found.texts[0].keys[0])
    first = max(0, last + 1 - _SHOWN)
    return slice(first, first + _SHOWN), slice(first, first + _SHOWN)
