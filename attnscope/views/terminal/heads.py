"""Draw what every head does: a picture of layers × heads, and the strongest heads."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from attnscope.report import Matrix, Report, TextReport
from attnscope.report.head_roles import ROLES
from attnscope.report.heads import HeadSurvey, MeasuredHeads, MeasuredText, RoleValues
from attnscope.views.terminal.colours import Scale, ramp_style, readable_on
from attnscope.views.terminal.header import put_facts, put_notes, put_options, put_report_header, put_text_header
from attnscope.views.terminal.heat import SHADES
from attnscope.views.terminal.labels import token_name
from attnscope.views.terminal.screen import Screen, flow

_STRONGEST = 10  # heads that are listed of one role or measure
_UNCLEAR = "·"
_DARK = (34, 34, 34)  # what a weak role's colour fades to
_GAP = "  "
_LEAST = 0.005  # below it a value reads 0.00


@dataclass(frozen=True)
class Listing:
    """Which heads are listed below a picture.

    Attributes:
        top: How many of each role or measure; None for as many as fit on a line, or for ten.
        sort: In which order those are that have the largest values.
    """

    top: int | None = None
    sort: Literal["value", "layer"] = "value"

    def heads(self, values: Matrix, most: int) -> list[tuple[int, int]]:
        """Layers and heads that are listed; those without a value are none of them."""
        flat = np.where(np.isnan(values), -np.inf, values).ravel()
        order = [int(n) for n in np.argsort(-flat, kind="stable")[: self.top or most] if flat[n] > -np.inf]
        return [divmod(n, values.shape[1]) for n in (sorted(order) if self.sort == "layer" else order)]


def render_survey(
    survey: HeadSurvey, console: Console, *, options: bool = True, listing: Listing | None = None
) -> None:
    """Print the roles of every head.

    Args:
        survey: What to show.
        console: Where to.
        options: Name the options of the command line that show more.
        listing: Which heads are listed.
    """
    screen, listing = Screen(console, 2, options), listing or Listing()
    put_report_header(screen, Report(survey.provenance, survey.mask, []))
    put_facts(screen, [(name, Text(screen.note(said))) for name, said in _probes(survey)])
    screen.say("")
    if len(survey.roles) <= 3:
        for role in survey.roles:
            _put_role(screen, role, listing)
            screen.say("")
    else:
        _put_main_roles(screen, survey)
        screen.say("")
        _put_strongest(screen, survey, listing)
        screen.say("")
        clear = int((survey.main >= 0).sum())
        none = survey.main.size - clear
        screen.say((f"{none} of {survey.main.size} heads have no clear role", "bold"), f" ({_UNCLEAR} in the picture)")
    put_notes(screen, survey.notes)
    put_options(
        screen,
        [
            "--role induction (its values for every head)",
            "--top K (more heads)",
            "--format json, -o heads.csv (every number)",
        ],
        9,
    )


def render_measured(
    measured: MeasuredHeads,
    console: Console,
    *,
    precision: int = 2,
    options: bool = True,
    listing: Listing | None = None,
) -> None:
    """Print one number for every head.

    Args:
        measured: What to show.
        console: Where to.
        precision: Digits after the point.
        options: Name the options of the command line that show more.
        listing: Which heads are listed.
    """
    screen, listing = Screen(console, precision, options), listing or Listing()
    put_report_header(screen, Report(measured.provenance, measured.mask, []))
    for number, text in enumerate(measured.texts):
        put_text_header(
            screen, TextReport(number, text.text, None, text.tokens, text.context, [], [], []), len(measured.texts)
        )
        put_facts(screen, list(_asked(screen, text)))
    screen.say("")
    screen.say((measured.measure, "bold reverse"), f"  {screen.note(measured.meaning)}")
    put_numbers(screen, measured.values)
    screen.say("")
    put_ranking(screen, measured.values, None, listing)
    screen.say("")
    put_notes(screen, measured.notes)
    put_options(screen, ["--measure entropy", "--top K (more heads)", "--format json (every number)"], 9)


def _probes(survey: HeadSurvey) -> Iterator[tuple[str, str]]:
    probes = survey.probes
    whose = "attnscope's own" if probes.shipped else "yours"
    said = f"{probes.texts} ({whose}), {probes.tokens:,} tokens"
    if probes.unknown:
        said += f", {probes.unknown:,} of which stand for words that the tokenizer does not know"
    yield "texts", said
    if probes.repeated:
        needle = f", and {probes.needle} of them as a needle" if probes.needle else ""
        framed = " ".join([*probes.before, "…", *probes.after]) if probes.before or probes.after else ""
        inside = f", in {framed}" if framed else ""
        said = f"{probes.draws} × {probes.repeated} random tokens, repeated once{needle}{inside}; seed {probes.seed}"
        yield "probes", said


def _asked(screen: Screen, text: MeasuredText) -> Iterator[tuple[str, Text]]:
    sources = text.tokens if text.context is None else text.context
    for name, places, tokens in (("query", text.queries, text.tokens), ("key", text.keys, sources)):
        if places is not None and len(places) < len(tokens):
            named = [Text(f"{place} {token_name(screen, tokens[place])}") for place in places[:_STRONGEST]]
            if len(places) > _STRONGEST:
                named.append(Text(f"and {len(places) - _STRONGEST} more"))
            yield name, Text(" · ").join(named)


def _put_main_roles(screen: Screen, survey: HeadSurvey) -> None:
    """Print the picture: the letter of each head's main role, its strength as a shade."""

    def cell(layer: int, head: int, width: int) -> Text:
        place = int(survey.main[layer, head])
        if place < 0:
            return Text(_UNCLEAR.center(width), "dim")
        role = survey.roles[place]
        return _letter(screen, role, float(role.values[layer, head]), width)

    width = 3 if _label(survey.main.shape[0]) + 3 * survey.main.shape[1] <= screen.width else 2
    _put_picture(screen, survey.main.shape, width, cell)


def _letter(screen: Screen, role: RoleValues, strength: float, width: int) -> Text:
    """A role's letter, the stronger the brighter its colour; without colours, with a shade beside it."""
    if not screen.colours:
        return Text(f"{role.letter}{_shade(strength)}".ljust(width))
    style = _role_style(role.name, strength, screen.colours)
    return Text(role.letter.center(width), style)


def _role_style(name: str, strength: float, colours: int) -> Style:
    rgb = bytes.fromhex(ROLES[name].colour[1:]) if name in ROLES else bytes((150, 150, 150))
    if colours <= 16:
        return Style(color=Color.from_rgb(*rgb), bold=True)
    share = min(1.0, max(0.0, strength))
    red, green, blue = (round(dark + (one - dark) * share) for one, dark in zip(rgb, _DARK, strict=True))
    return Style(bgcolor=Color.from_rgb(red, green, blue), color=readable_on(red, green, blue))


def _shade(strength: float) -> str:
    shades = SHADES[1:]
    return shades[min(len(shades) - 1, max(0, int(strength * len(shades))))]


def _label(layers: int) -> int:
    """Cells of the labels of layers, and of the gap behind them."""
    return max(len("layer"), len(f"L{layers - 1}")) + len(_GAP)


def _put_picture(
    screen: Screen,
    shape: tuple[int, ...],
    width: int,
    cell: Callable[[int, int, int], Text],
    layers: Sequence[int] | None = None,
) -> None:
    """Print a cell for every head, a layer a line; heads that do not fit side by side follow in blocks.

    Args:
        screen: Where to.
        shape: Layers and heads.
        width: Cells of each.
        cell: Draws the cell of a layer and head, so wide.
        layers: Layers that are printed; None for all.
    """
    layers, heads = range(shape[0]) if layers is None else layers, shape[1]
    label = _label(shape[0])
    at_once = max(1, (screen.width - label) // width)
    for first in range(0, heads, at_once):
        some = range(first, min(first + at_once, heads))
        if first:
            screen.say("")
        digits = len(str(heads - 1))
        if width > digits:
            numbers = ["".join(str(head).center(width) if width < 4 else str(head).rjust(width) for head in some)]
        else:  # read downwards
            numbers = ["".join(f"{head:>{digits}}"[d].ljust(width) for head in some) for d in range(digits)]
        for n, line in enumerate(numbers):
            screen.put(
                Text(("head" if not n else "").rjust(label - len(_GAP)) + _GAP + line, "dim"),
                width=label + width * len(some),
            )
        for layer in layers:
            row = Text.assemble((f"L{layer}".rjust(label - len(_GAP)) + _GAP, "dim"))
            for head in some:
                row.append_text(cell(layer, head, width))
            screen.put(row, width=label + width * len(some))


def _put_strongest(screen: Screen, survey: HeadSurvey, listing: Listing) -> None:
    """Print a line for each role: how many heads have it as their main role, and its strongest heads."""
    counts = [int((survey.main == place).sum()) for place in range(len(survey.roles))]
    titles = [role.title for role in survey.roles]
    name = max(map(cell_len, titles)) + 2
    table = Table(box=None, padding=0, pad_edge=False, header_style="dim")
    table.add_column(Text("role"), width=name + 2, no_wrap=True)
    table.add_column(Text("heads"), width=5, justify="right", no_wrap=True)
    room = screen.width - name - 2 - 5 - len(_GAP)
    title = f"strongest, {_plus_minus(screen)} standard error"
    table.add_column(Text(_GAP + (title if cell_len(title) <= room else "strongest")), overflow="fold")
    for role, count in zip(survey.roles, counts, strict=True):
        table.add_row(*_role_row(screen, role, count, room, listing))
    screen.put(table)


def _role_row(screen: Screen, role: RoleValues, count: int, room: int, listing: Listing) -> tuple[Text, Text, Text]:
    chip = Text(role.letter, _role_style(role.name, 1.0, screen.colours) if screen.colours else "bold")
    title = Text.assemble(chip, f" {role.title}")
    said = [(layer, head) for layer, head in listing.heads(role.values, 64) if abs(role.values[layer, head]) >= _LEAST]
    found = [
        Text(
            f"L{layer}H{head} {_value(screen, role, layer, head)}",
            "" if role.values[layer, head] >= role.clear else "dim",
        )
        for layer, head in said
    ]
    if not found:
        measured = not np.isnan(role.values).all()
        return (
            title,
            Text("0" if measured else "–", "dim"),
            Text(_GAP + ("no head" if measured else "not measured"), "dim"),
        )
    if listing.top is None:
        used, kept = 0, 0
        for one in found:
            used += cell_len(one.plain) + len(_GAP)
            if used > room + len(_GAP):
                break
            kept += 1
        found = found[: max(1, kept)]
    number = Text("–" if ROLES[role.name].rank is None else str(count), "" if count else "dim")
    listed = flow(found, room, _GAP)
    lines = [Text(_GAP) + line for line in listed.split("\n")]
    return title, number, Text("\n").join(lines)


def _value(screen: Screen, role: RoleValues, layer: int, head: int) -> str:
    error = float(role.errors[layer, head])
    return f"{role.values[layer, head]:.2f}" + ("" if np.isnan(error) else f" {_plus_minus(screen)}{error:.2f}")


def _plus_minus(screen: Screen) -> str:
    return "+-" if screen.ascii else "±"


def _put_role(screen: Screen, role: RoleValues, listing: Listing) -> None:
    """Print the value of one role for every head."""
    screen.say((f"{role.letter} {role.title}", "bold reverse"), f"  {screen.note(role.meaning)} ({role.source})")
    if np.isnan(role.values).all():
        screen.say(("not measured", "dim"))
        return
    put_numbers(screen, role.values)
    screen.say("")
    put_ranking(screen, role.values, role.errors, listing)


def put_numbers(screen: Screen, values: Matrix) -> None:
    """Print a number for every head, shaded from the smallest to the largest; shades alone where numbers do not fit."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    scale = Scale(-max(-low, high), max(-low, high), True) if low < 0 else Scale(0.0, high, False)
    digits = max(1, screen.precision)
    texts = [["–" if np.isnan(value) else f"{value:z.{digits}f}" for value in row] for row in values.tolist()]
    width = max(len(text) for row in texts for text in row) + 1
    numbered = _label(values.shape[0]) + width * values.shape[1] <= screen.width
    width = width if numbered else 2

    def cell(layer: int, head: int, width: int) -> Text:
        place = scale.place(float(values[layer, head]))
        if place is None:
            return Text("–".rjust(width), "dim")
        style = ramp_style(place, scale.signed, screen.colours) if screen.colours else ""
        if numbered:
            return Text(texts[layer][head].rjust(width), style)
        return Text(
            " " * width if screen.colours else SHADES[min(len(SHADES) - 1, int(place * len(SHADES)))] * width, style
        )

    shown = [layer for layer in range(len(values)) if np.isfinite(values[layer]).any()]
    _put_picture(screen, values.shape, width, cell, shown)
    if not numbered:
        screen.say((f"shades from {scale.low:.{digits}f} to {scale.high:.{digits}f}", "dim"))


def put_ranking(screen: Screen, values: Matrix, errors: Matrix | None, listing: Listing) -> None:
    """Print the heads with the largest values."""
    found = listing.heads(values, _STRONGEST)
    digits = max(2, screen.precision)
    items = []
    for layer, head in found:
        error = float("nan") if errors is None else float(errors[layer, head])
        items.append(
            f"L{layer}H{head} {values[layer, head]:z.{digits}f}"
            + ("" if np.isnan(error) else f" {_plus_minus(screen)}{error:.{digits}f}")
        )
    _put_items(screen, "strongest", items)


def _put_items(screen: Screen, title: str, items: Sequence[str]) -> None:
    label = len(title) + len(_GAP)
    listed = flow([Text(item) for item in items], screen.width - label, _GAP)
    lines = listed.split("\n")
    screen.put(Text.assemble((title, "bold"), _GAP, lines[0]), width=screen.width)
    for line in lines[1:]:
        screen.put(Text(" " * label) + line)
