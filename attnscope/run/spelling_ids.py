"""Spell token ids that were given in place of a text. Never imports torch."""

from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.checkpoints.source import ModelSource, check_tokens
from attnscope.checkpoints.tokenization.given import join_tokens
from attnscope.findings.tokens import Token
from attnscope.request.given_ids import GivenIds
from attnscope.request.run_config import TextInput


def spell_ids(text: TextInput, source: ModelSource) -> TextInput:
    """Return a text with the spelling of its ids; other texts unchanged."""
    if text.given is None or text.text:
        return text
    return replace(text, text=join_tokens(_tokens(text.given, source))[0])


def given_tokens(given: GivenIds, source: ModelSource, where: str) -> tuple[list[Token], list[int] | None, list[str]]:
    """Return the tokens of given ids, the position of each if it is not its place, and notes."""
    c = source.config
    tokens = join_tokens(_tokens(given, source))[1]
    check_tokens(source, tokens, where)
    positions, notes = given.positions, list[str]()
    if given.left or given.right:
        sides = [f"{count} {side}" for count, side in ((len(given.left), "before"), (given.right, "after")) if count]
        notes.append(f"padding tokens left out: {' and '.join(sides)} the text")
    if positions is None:
        positions = _counted(given, c.padding_id, c.position_offset)
    if positions is None or positions == tuple(range(len(tokens))):
        return tokens, None if c.padding_id is None or positions is None else list(positions), notes
    if c.positions in ("alibi", "sinusoidal"):
        hint = "leave position_ids out, and put padding after the text"
        raise UsageError(f"the model has {c.positions} positions, which cannot be given", where=where, hint=hint)
    rows = None if c.max_positions is None or c.positions != "learned" else c.max_positions + c.position_offset
    if rows is not None and max(positions) >= rows:
        message = f"position {max(positions)}, but the table of positions has {rows} rows"
        raise AttnscopeError(message, where=where, hint=f"use positions below {rows}")
    notes.append(f"position ids: {_ranges(positions)}")
    return tokens, list(positions), notes


def _counted(given: GivenIds, padding_id: int | None, offset: int) -> tuple[int, ...] | None:
    """Return positions as transformers counts them with padding before the text; None if they start at 0.

    Most models count all tokens; those with a padding id, such as RoBERTa, the tokens that have another id.
    """
    if padding_id is None:
        return tuple(range(len(given.left), len(given.left) + len(given.ids))) if given.left else None
    place, positions = sum(number != padding_id for number in given.left), []
    for number in given.ids:
        positions.append(padding_id if number == padding_id else place + offset)
        place += number != padding_id
    return tuple(positions)


def _tokens(given: GivenIds, source: ModelSource) -> list[Token]:
    tokens = []
    for number, type_id in zip(given.ids, given.types, strict=True):
        piece, spelled = source.tokenizer.spelled(number)
        special = source.tokenizer.made_token(number).special
        tokens.append(Token(number, piece, spelled, special=special, type_id=type_id))
    return tokens


def _ranges(positions: tuple[int, ...]) -> str:
    """Format positions, consecutive ones as a range."""
    runs: list[list[int]] = []
    for position in positions:
        if runs and position == runs[-1][-1] + 1:
            runs[-1].append(position)
        else:
            runs.append([position])
    ranges = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return ", ".join(ranges[:8]) + (f" and {len(ranges) - 8} more" if len(ranges) > 8 else "")
