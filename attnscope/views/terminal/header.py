"""The lines around matrices: what produced them, which head this is, where to see more."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from rich.table import Table
from rich.text import Text

from attnscope.report import STAGES, HeadReport, Means, Report, TextReport
from attnscope.report.row_statistics import ROW_STATISTICS
from attnscope.report.tokens import describe_unknown
from attnscope.views.terminal.labels import UNKNOWN, spans
from attnscope.views.terminal.screen import ROOMY, Screen, flow

NAMES = 9  # Width of the names before values.
LONGEST_TEXT = 400  # Characters of a text that its header repeats in full; of a longer one it has the first half.
_WARNING = "bold white on red"
_UNKNOWN = " UNKNOWN WORDS "
_NAMED = 5  # unknown words that are named
_WHAT_IF = {
    "stack": "the whole model ran with this mask, so later layers see changed inputs",
    "same-scores": "the scores are those of the model's own mask; only the softmax changes",
}


def put_unknown_words(screen: Screen, texts: Iterable[TextReport]) -> None:
    """Print how many words the tokenizer does not know, before anything that is computed from its tokens."""
    texts = list(texts)
    share, words = describe_unknown((text.text, text.pair, text.tokens) for text in texts)
    if share:
        named = ", ".join(map(screen.safe, words[:_NAMED])) + ", …" * (len(words) > _NAMED)
        screen.say((_UNKNOWN, _WARNING), f" {share} (marked {UNKNOWN}): {named}")
    if pieces := sum(token.unknown for text in texts for token in text.context or ()):
        said = f"{_counted(pieces, 'token')} of the context {'is' if pieces == 1 else 'are'}"
        screen.say((_UNKNOWN, _WARNING), f" {said} unknown to the tokenizer (marked {UNKNOWN})")


def put_report_header(screen: Screen, report: Report) -> None:
    """Print what produced the numbers: model, mask, device; random weights first of all."""
    made = report.provenance
    if made.weights == "random":
        screen.say((" RANDOM WEIGHTS ", _WARNING), " untrained model: real arithmetic, meaningless patterns")
    engine = [] if made.engine == "native" else [f"engine {made.engine}"]
    sizes = f"{_counted(made.n_layers, 'layer')} × {_counted(made.n_heads, 'head')}"
    part = [made.part] if made.part else []
    names = [f"{made.model} ({made.family})", *part]
    parts = [
        *map(screen.safe, names),
        sizes,
        screen.safe(made.device),
        screen.safe(made.dtype),
        *map(screen.safe, engine),
    ]
    mask = report.mask
    lines: list[tuple[str, Text]] = [("model", Text(" · ".join(parts)))]
    if made.adapter is not None:
        lines.append(("adapter", Text(screen.safe(made.adapter))))
    if mask.what_if is None:
        whose = "the model's own" if mask.own == mask.used else f"one of the model's masks: {mask.own}"
        lines.append(("mask", Text(screen.safe(f"{mask.used} ({whose})"))))
    else:
        lines.append(("mask", Text(screen.safe(f"{mask.used}; the model's own is {mask.own}"))))
        explained = _WHAT_IF.get(mask.what_if, "")
        what_if = Text.assemble((screen.safe(mask.what_if), "bold yellow"), f": {explained}" if explained else "")
        lines.append(("what if", what_if))
    if made.values != "exact":
        lines.append(("values", Text(screen.safe(made.values))))
    if made.weights_hash is not None:
        lines.append(("weights", Text(f"SHA-256 {made.weights_hash}")))
    if made.tokenizer is not None:
        lines.append(("tokenizer", Text(f"{screen.safe(made.tokenizer)} (in place of the model's own)")))
    put_facts(screen, [*lines, *(("note", Text(screen.note(note))) for note in made.notes)])


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def put_text_header(screen: Screen, text: TextReport, count: int) -> None:
    """Print which text this is and how many tokens it has."""
    name = "text" if count == 1 else f"text {text.index}"
    lines = [(name, Text(f"{_quoted(screen, text.text)} · {_counted(len(text.tokens), 'token')}"))]
    if text.pair is not None:
        second = [i for i, token in enumerate(text.tokens) if token.segment == 1]
        lines.append(("pair", Text(f"{_quoted(screen, text.pair)} · tokens {spans(second)}")))
    if text.context is not None:
        lines.append(("context", Text(f"keys and values come from {len(text.context)} tokens of another text")))
    if 0 < len(text.queries) < len(text.tokens):
        lines.append(("rows", Text(f"{spans(text.queries)} of 0–{len(text.tokens) - 1}")))
    put_facts(screen, lines)


def put_head_header(screen: Screen, report: Report, text: TextReport, head: HeadReport) -> None:
    """Print which layer and head this is, how it came to be shown, and what its rows look like on average."""
    parts: list[tuple[str, str]] = [(head_name(head), "bold reverse")]
    if report.provenance.weights == "random":
        parts += [(" ", ""), (" random weights ", _WARNING)]
    if len(report.texts) > 1:
        parts.append((f"  text {text.index}", ""))
    if head.chosen:
        parts.append((f"  {screen.safe(head.chosen)}", ""))
    screen.say(*parts)
    if facts := _row_facts(text, head):
        screen.put(flow([Text(fact, "dim") for fact in facts], screen.width, " "))


def head_name(head: HeadReport) -> str:
    """`L2H1`, or what a mean is over."""
    layer, which = str(head.layer), str(head.head)
    if "mean" not in (layer, which):
        return f"L{layer}H{which}"
    if layer == which:
        return "mean of layers and heads"
    return f"L{layer}, mean of heads" if which == "mean" else f"H{which}, mean of layers"


def _row_facts(text: TextReport, head: HeadReport) -> list[str]:
    """Means over all rows, or over those shown; special tokens do not count, as they do not in the choice of a head."""
    forms = {5: [("sink", "{:.2f} on the sink")]}  # by their place, see RowStatistic.place
    for one in ROW_STATISTICS:
        some = one.key_token is None or any(map(one.key_token, text.sources))
        near = one.within is None or (head.means is not None and one.within < len(text.tokens))
        if one.phrase is not None and some and near:
            forms.setdefault(one.place, []).append((one.name, one.phrase))
    said = dict(form for place in sorted(forms) for form in forms[place])
    shown = range(len(text.tokens)) if head.means is not None else text.queries
    words = np.array([not text.tokens[position].special for position in shown], dtype=bool)
    found = _shown_means(head, words if words.any() else ~words) if head.means is None else head.means
    known = [name for name in said if getattr(found, name) is not None]
    facts = [said[name].format(getattr(found, name)) for name in known]
    for n, (phrase, following) in enumerate(pairwise(said[name] for name in known)):
        facts[n] += "," if _quantity(phrase) == _quantity(following) else ";"
    whose = "average row" if words.all() or not words.any() else "average row of words"
    return [f"{whose}: {facts[0]}", *facts[1:]] if facts else []


def _quantity(phrase: str) -> str:
    """Return the word after a phrase's number ("on", "within", "bits"): commas separate phrases that share it."""
    return phrase.partition("}")[2].split()[0]


def _shown_means(head: HeadReport, counted: np.ndarray) -> Means:
    """Averages of the shown rows that count."""
    values = {name: getattr(head.rows, name) for name in head.rows.__struct_fields__}
    if head.sink is not None:
        values["sink"] = head.sink
    known = {name: each[counted & np.isfinite(each)] for name, each in values.items() if each is not None}
    return Means(**(dict.fromkeys(values) | {name: float(each.mean()) for name, each in known.items() if each.size}))


def put_notes(screen: Screen, notes: Iterable[str]) -> None:
    """Print what was left out, and which option shows it."""
    put_facts(screen, [("note", Text(screen.note(note))) for note in notes])


def put_more(screen: Screen, report: Report) -> None:
    """Print the options that show what this screen of a report does not."""
    heads = [head for text in report.texts for head in text.heads]
    stages = {stage for head in heads for stage in head.stages}
    more = []
    if len({head.layer for head in heads}) < report.provenance.n_layers:
        more.append("--layer all")
    if len({head.head for head in heads}) < report.provenance.n_heads:
        more.append("--head all")
    if any(len(text.queries) > 1 for text in report.texts):
        more.append("--query WORD")
    if any(text.queries for text in report.texts):
        if missing := [stage for stage in STAGES if stage not in stages]:
            more.append(f"--stage {','.join(missing)}")
        more.append("--top K")
    else:
        more += ["--query ROWS", "--query ROWS --key COLUMNS", "--pool N"]
    more.append("--format json (every digit)")
    put_options(screen, more)


def put_options(screen: Screen, options: Iterable[str], indent: int = NAMES) -> None:
    """Print options that show more, where the screen is the command line's."""
    if screen.options:
        put_facts(screen, [("more", flow(map(Text, options), screen.width - indent, " · "))])


def put_facts(screen: Screen, lines: list[tuple[str, Text]]) -> None:
    """Print `name  value` lines with the values in one column, wrapped inside it."""
    if screen.width < ROOMY:
        for name, value in lines:
            screen.say((f"{name}: ", "dim"), value)
        return
    if not lines:
        return
    names = max(NAMES, *(len(name) + 2 for name, _ in lines))
    table = Table.grid(padding=0)
    table.add_column(width=names, no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(Text(name, "dim"), value)
    screen.put(table)


def _quoted(screen: Screen, text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return screen.safe(text)
    first = LONGEST_TEXT // 2
    return f"{screen.safe(text[:first])}… (the first {first} of {len(text):,} characters)"
