"""Draw an Explanation: one query's arithmetic with its numbers, from top to bottom."""

from rich.console import Console
from rich.text import Text

from attnscope.report import ArithmeticCheck, Explanation, Report, TextReport, Vector
from attnscope.views.terminal.explain_rows import (
    in_one_line,
    put_blend,
    put_cell,
    put_keys,
    put_scaled,
    put_scores,
    put_softmax,
)
from attnscope.views.terminal.grid import INDENT, leading, number, put_indented
from attnscope.views.terminal.header import (
    put_facts,
    put_notes,
    put_options,
    put_report_header,
    put_text_header,
    put_unknown_words,
)
from attnscope.views.terminal.labels import Axis, say_shortened, token_axis, token_name
from attnscope.views.terminal.numbers import MASKED
from attnscope.views.terminal.screen import Screen, flow

_NAME = 11  # cells of a vector's name
_STREAM = 4  # residuals up to which each has its vector shown


def render_explanation(explanation: Explanation, console: Console, *, precision: int = 4, options: bool = True) -> None:
    """Print an explanation.

    Args:
        explanation: What to show.
        console: Where to.
        precision: Digits after the point.
        options: Name the options of the command line that show more.
    """
    screen, e = Screen(console, precision, options), explanation
    axis = token_axis(screen, "key" if e.context is None else "context", e.sources, e.keys)
    text = TextReport(0, e.text, e.pair, e.tokens, e.context, [*range(len(e.tokens))], [], [])
    put_unknown_words(screen, [text])
    put_report_header(screen, Report(e.provenance, e.mask, []))
    put_text_header(screen, text, 1)
    put_facts(screen, [("query", Text(f"{e.query} {token_name(screen, e.tokens[e.query])}"))])
    screen.say("")
    random = [(" ", ""), (" random weights ", "bold white on red")] if e.provenance.weights == "random" else []
    screen.say((f"L{e.layer}H{e.head}", "bold reverse"), *random, f"  {screen.safe(e.chosen)}" if e.chosen else "")
    _put_inputs(screen, e)
    _put_query_and_keys(screen, e, axis)
    _put_scores(screen, e, axis)
    _put_scaled(screen, e, axis)
    _put_weights(screen, e, axis)
    _put_output(screen, e, axis)
    _put_cells(screen, e)
    screen.say("")
    say_shortened(screen, {}, axis, axis.name_cells(screen.width))
    put_notes(screen, e.notes)
    more = ["--key WORD (another cell)", "--layer N --head N", "--top K (more keys)", "--format json (every number)"]
    put_options(screen, more, 9)


def _put_inputs(screen: Screen, e: Explanation) -> None:
    _title(screen, 1, f"what enters layer {e.layer}", "the vector that the query is made of")
    residual = [vector for vector in e.inputs if vector.name == "residual"]
    between = residual[1:-1] if len(residual) > _STREAM else []
    for vector in e.inputs:
        if vector not in between:
            _put_vector(screen, vector)
        elif vector is between[-1]:
            norms = [Text(f"{v.made} ‖·‖ {number(v.norm, screen.precision)}", "dim") for v in between]
            put_indented(screen, flow(norms, screen.width - INDENT - _NAME, ", "), INDENT + _NAME)
    _put_check(screen, e.check("embedding"), trivial=len(e.inputs) == 1 or e.inputs[1].name == "normed")
    _put_check(screen, e.check("embedding norm"))
    _put_check(screen, e.check("norm"))


def _put_query_and_keys(screen: Screen, e: Explanation, axis: Axis) -> None:
    _title(screen, 2, "query and keys", "the query of this token and the key of every token")
    for vector in e.query_steps:
        _put_vector(screen, vector)
    _put_check(screen, e.check("query"))
    _put_check(screen, e.check("position"), trivial=e.query_steps[-1].name != "q rotated")
    own = {"k rotated": "rotated, each by its own position"}
    steps = [own.get(vector.name, vector.made) for vector in e.cells[0].key_steps]
    shared = "" if e.group == e.head else f", of key/value head {e.group}"
    of = "" if e.context is None else " from the embedded context"
    screen.say("")
    _say(screen, f"k of every token{of}{shared}: {', '.join(steps)}")
    put_keys(screen, e, axis)
    _put_check(screen, e.check("key"))


def _put_scores(screen: Screen, e: Explanation, axis: Axis) -> None:
    norm = number(e.query_steps[-1].norm, screen.precision)
    _title(screen, 3, "scores: q·k", f"‖q‖ × ‖k‖ × the cosine between them; ‖q‖ is {norm}")
    put_scores(screen, e, axis)
    for cell in e.cells:
        screen.say("")
        put_cell(screen, e, cell)
    _put_check(screen, e.check("parts"))


def _put_scaled(screen: Screen, e: Explanation, axis: Axis) -> None:
    steps = [f"× {e.scale:.4g}", *([f"soft-capped at {e.softcap:g}"] if e.softcap is not None else [])]
    steps += [f"plus {e.bias} bias"] if e.bias is not None else []
    _title(screen, 4, f"scaled: {', '.join(steps)}; then masked", f"mask: {screen.safe(e.mask.used)}")
    put_scaled(screen, e, axis)
    _put_check(screen, e.check("scaled"))


def _put_weights(screen: Screen, e: Explanation, axis: Axis) -> None:
    said = "; the head's sink adds one score that belongs to no token" if e.sink is not None else ""
    _title(screen, 5, "weights: softmax", f"exp(masked − largest), divided by the sum{said}")
    if e.fully_masked:
        said = f"{MASKED}: no key is allowed, so there are no weights and no output"
        _say(screen, said, "bold yellow")
        return
    put_softmax(screen, e, axis)
    _put_check(screen, e.check("weights"))


def _put_output(screen: Screen, e: Explanation, axis: Axis) -> None:
    if e.fully_masked:
        return
    _title(screen, 6, "output: the weighted sum of the values", "each value vector × its weight, added up")
    put_blend(screen, e, axis)
    if e.sink is not None:
        share = number(e.sink.weight, screen.precision)
        _say(screen, f"the sink's {share} adds nothing: the sink has no value vector", "dim")
    _put_check(screen, e.check("output"))
    if e.projected is not None:
        screen.say("")
        _put_vector(screen, e.projected)


def _put_cells(screen: Screen, e: Explanation) -> None:
    """The whole way of each cell in depth, on one line."""
    if not e.fully_masked:
        _title(screen, 7, "in one line", "")
        for cell in e.cells:
            put_indented(screen, in_one_line(screen, e, cell))


def _title(screen: Screen, step: int, title: str, said: str) -> None:
    screen.say("")
    screen.say((f"{step}  {title}", "bold"))
    if said:
        _say(screen, said, "dim")


def _say(screen: Screen, said: str, style: str = "") -> None:
    put_indented(screen, Text(said, style))


def _put_vector(screen: Screen, vector: Vector) -> None:
    """Two lines: how it was made; its norm and first numbers."""
    put_indented(screen, Text.assemble((f"{vector.name:<{_NAME}}", "bold"), (vector.made, "dim")))
    norm = f"‖·‖ {number(vector.norm, screen.precision)}   "
    room = screen.width - INDENT - _NAME - len(norm)
    values = leading(vector.values, room, screen.precision)
    put_indented(screen, Text.assemble(norm, (values, "dim")), INDENT + _NAME)


def _put_check(screen: Screen, check: ArithmeticCheck | None, *, trivial: bool = False) -> None:
    """Whether a step holds when it is done again; where nothing was to be done, only if it does not."""
    if check is None or (trivial and check.holds):
        return
    if check.holds:
        said = f"holds to {check.difference:.1e}" if check.difference else "holds exactly"
        put_indented(screen, Text.assemble(("check: ", "dim"), (f"{check.said}, {said}", "green")))
        return
    said = f"DOES NOT HOLD: differs by {check.difference:.1e}, rounding explains {check.tolerance:.1e}"
    put_indented(screen, Text.assemble(("check: ", "dim"), (f"{check.said} {said}", "bold red")))
