"""The name of an input, of an output and what to keep in; a dump out: what `attnscope batch` does, without printing."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from attnscope.batch.files import Files
from attnscope.batch.header import SCHEMA, Grouping, Header, InputFacts, Settings
from attnscope.batch.journal import Journal
from attnscope.batch.reader import Input, how_many, selected
from attnscope.batch.records import decode, encode
from attnscope.batch.runner import Runner, Summary
from attnscope.batch.sinks import Lines, Shards, open_dump
from attnscope.batch.work import Model, how_many_units, run_config
from attnscope.config import RunConfig
from attnscope.errors import AttnscopeError
from attnscope.estimate import Demand, estimate
from attnscope.loading import limit_threads
from attnscope.pipeline import Session, mask_use, provenance
from attnscope.request import room
from attnscope.source import Source

_TOKENS, _VALUES, _WINDOW = 1024, 1 << 22, 1 << 24  # larger windows: little faster, and two are held at once
_BYTES = 40  # of memory for a number: in a recorder, as an array of its own, in a line, and what lies between

Tell = Callable[[Summary, int], None]


@dataclass(frozen=True)
class Order:
    """What the user asked of `attnscope batch`.

    Attributes:
        input: A file, or `-` for standard input.
        format: What the input holds; None for what its ending says.
        output: A .jsonl file, or a folder.
        settings: What to keep.
        run: Model, mask and machine; its texts and selection are not looked at.
        force: Start anew, whatever dump is there.
        strict: Stop at the first failure.
    """

    input: str
    format: str | None
    output: Path
    settings: Settings
    run: RunConfig
    force: bool = False
    strict: bool = False


def write_dump(order: Order, tell: Tell, files: Files | None = None, session: Session | None = None) -> Summary:
    """Write a dump, or go on with one.

    Args:
        order: What the user asked.
        tell: Called with how far it is and how many records there will be, whenever records are safe.
        files: The system.
        session: Has the model open already.

    Raises:
        AttnscopeError: The input, the model, the memory or the output do not allow it, or with `strict` a text failed.
        UsageError: A selection does not fit the model.
    """
    run = run_config(order.settings, order.run)
    with (
        Input(order.input, order.format, order.settings.column) as given,
        open_dump(order.output, force=order.force, files=files or Files()) as (journal, sink),
    ):
        texts = (item.text for item in given.items() if item.text is not None)
        session = session or Session(texts)
        session.source(run)
        facts = given.facts()
        total = how_many(facts.records, order.settings)
        model, header = _load(order.settings, run, session, facts, journal)
        if journal.written.header is None:
            journal.start(encode(header))
        tell(Summary(Counter(journal.written.counts), resumed=len(journal.written.indices)), total)
        if journal.written.ended:
            return Summary(Counter(journal.written.counts), resumed=len(journal.written.indices))
        return _run(order, model, sink, journal, header.grouping, given, lambda summary: tell(summary, total))


def _run(
    order: Order,
    model: Model,
    sink: Lines | Shards,
    journal: Journal,
    bounds: Grouping,
    given: Input,
    tell: Callable[[Summary], None],
) -> Summary:
    runner = Runner(model, sink, bounds, strict=order.strict, tell=tell)
    summary = runner.run(selected(given.items(), order.settings))
    journal.finish(summary.counts)
    return summary


def _load(
    settings: Settings, run: RunConfig, session: Session, facts: InputFacts, journal: Journal
) -> tuple[Model, Header]:
    """The model, and the header of a new dump or of the one that is there, which must ask for the same."""
    old = None if journal.written.header is None else decode(journal.written.header, Header)
    source = session.source(run)
    bounds, reread = _bounds(settings, run, source)
    bounds = bounds if old is None else old.grouping
    model = Model(run, settings, session, bounds.tokens, reread)
    bounds = msgspec.structs.replace(bounds, threads=limit_threads(bounds.threads))
    seen = "own" if source.engine == "transformers" else None  # what that is, only running a text shows
    mask = mask_use(source, run, seen)
    values = "pooled" if "pooled" in settings.keep and "stages" not in settings.keep else "exact"
    new = Header(SCHEMA, provenance(source, run, model.device, values), mask, settings, facts, bounds)
    if old is not None:
        _check_same(old, new, journal.path)
    return model, new


def _bounds(settings: Settings, run: RunConfig, source: Source) -> tuple[Grouping, str]:
    """How large groups may be, as large as is of use or as memory allows; why weights are read again in every pass.

    Raises:
        AttnscopeError: Not even a small group fits.
    """
    units = how_many_units(settings, source)
    layers, heads, tokens = source.config.n_layers, source.config.n_heads, 256
    cells, copied = units * tokens, source.copied
    asked = Demand(layers, 1, tokens, 1000, cells, 0, 0, False, heads=heads, copied=copied, tiled=tokens)
    spare, reread = room(run, source, asked)
    numbers = max(1, spare // _BYTES)
    window = min(_WINDOW, _power_of_two(numbers // 4))
    a_token = estimate(source.config, run.dtype, asked)["activations"] // tokens
    tokens = min(_TOKENS, _power_of_two(max(1, spare // 4 // a_token)))
    return Grouping(tokens, min(_VALUES, window), window, _power_of_two(numbers // 4), 0), reread


def _power_of_two(number: int) -> int:
    """The largest that is not above a number, so that a little more or less of free memory changes nothing."""
    return 1 << max(0, int(number).bit_length() - 1)


def _check_same(old: Header, new: Header, path: Path) -> None:
    """Refuse to go on with a dump that was made in another way; where its files are called something else is no matter.

    Raises:
        AttnscopeError: A setting, the model or the input differ.
    """
    was, now = ({**_flat(msgspec.to_builtins(header))} for header in (old, new))
    for name in ("provenance.model", "input.name"):
        was.pop(name), now.pop(name)
    for name in was | now:
        if was.get(name) != now.get(name):
            found = f"was begun with {name} = {was.get(name)!r}, now it is {now.get(name)!r}"
            raise AttnscopeError(found, where=path, hint="name another output, or give --force to start anew")


def _flat(nested: dict[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in nested.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found
