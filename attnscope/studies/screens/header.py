"""The lines around matrices: what produced them, which head this is, where to see more."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter

import numpy as np
from msgspec import structs

from attnscope.base.layer_kinds import count_attending, spell_legend, spell_map
from attnscope.findings.heads import STAGES, HeadReport
from attnscope.findings.images import ImageGrid, join_patches, name_patches, spell_prompt
from attnscope.findings.provenance import AddedKeys, MaskUse, Provenance, TokenizedText
from attnscope.findings.row_statistics import LAYER_STATISTICS, ROW_STATISTICS, Means
from attnscope.findings.run import Report, TextReport
from attnscope.findings.sound import Sound
from attnscope.findings.tokens import Token, describe_unknown
from attnscope.request.masks.expression import is_mask, parse_mask, spell_mask
from attnscope.request.masks.terms import Own
from attnscope.views.axes import format_positions
from attnscope.views.parts import Facts, OneLine, Text, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import (
    BEFORE_A_HEAD,
    NEW,
    UNKNOWN,
    Span,
    Spans,
    note,
    ours,
    token_span,
    untrusted,
)

# Characters that a header repeats in full, usually and verbose; of more, half as many.
_EDGE = re.compile("←|→|<-|->")  # of a cut
_LONGEST_TEXT = 120, 400
_SHORT_NAME = 8  # Characters of a folder's name that says little, such as `model` or `main`.
# Longest name of a model that is shown whole; of a longer one, the end is shown.
_LONGEST_PATH = 30
# of a path that says more of a machine than of a model
_ABSOLUTE = re.compile(r"[/\\~]|[A-Za-z]:[/\\]")
_UNKNOWN_WORDS = Span(" UNKNOWN WORDS ", "alarm")
_LONGEST_ROWS = 11  # Longest list of rows beside the length of the text.
_NAMED = 5  # number of unknown words, and hidden tokens, that are named
WORDS_HINT = "--words (whole words, not their bytes)"
WHAT_IF = {"stack": " in every layer", "same-scores": " in the softmax alone"}
_EXPLAINED = {
    "stack": "the whole model ran with this mask, so later layers read changed inputs",
    "same-scores": "the scores are those of the model's own mask; only the softmax changes",
}
_ADDED: dict[AddedKeys, str] = {
    "later": "later tokens",
    "far": "tokens outside its window",
    "other": "tokens",
}
Line = tuple[str, Spans | Text | OneLine]


def arrow(labels: Sequence[str]) -> Spans:
    """Write the labels of two sides of a comparison."""
    return *untrusted(labels[0]), Span(" → "), *untrusted(labels[1])


def random_weights_of(
    label: str, provenance: Provenance, first_provenance: Provenance
) -> Iterator[ViewPart]:
    """Warn of random weights of a further side of a comparison."""
    if provenance.weights == "random" != first_provenance.weights:
        yield paragraph((Span(" RANDOM WEIGHTS ", "alarm"), Span(" in "), *untrusted(label)))


def unknown_words(texts: Sequence[TokenizedText], model: Spans = ()) -> Iterator[ViewPart]:
    """Warn of words that the tokenizer (of a model, if several) does not know, before numbers of its tokens."""
    of = (Span(" of "), *model) if model else ()
    share, words = describe_unknown((text.text, text.pair, text.tokens) for text in texts)
    if share:
        word_spans = _joined(map(untrusted, words[:_NAMED]), ", ")
        more = ours(", …") if len(words) > _NAMED else ()
        share_of = Span(f" {share}"), *of, Span(f" (marked {UNKNOWN}): ")
        yield paragraph((_UNKNOWN_WORDS, *share_of, *word_spans, *more), remark=True)
    if pieces := sum(token.unknown for text in texts for token in text.context or ()):
        message = f"{counted(pieces, 'token')} of the context {'is' if pieces == 1 else 'are'}"
        message += f" unknown to the tokenizer (marked {UNKNOWN})"
        yield paragraph((_UNKNOWN_WORDS, Span(f" {message}")), remark=True)


def unknown_tokens(count: int, of: int) -> Iterator[ViewPart]:
    """Count unknown tokens in texts that are not shown; see `unknown_words`."""
    if count:
        text = f" {count:,} of {counted(of, 'token')} {'is' if count == 1 else 'are'} unknown to the tokenizer"
        yield paragraph((_UNKNOWN_WORDS, Span(text)), remark=True)


def path_items(path: str) -> list[Spans]:
    """Cut a path behind the names of folders, where a line may end."""
    return [untrusted(part) for part in re.findall(r"[^/\\]*[/\\]+|[^/\\]+", path)]


def report_header(
    provenance: Provenance,
    mask: MaskUse,
    settings: DisplaySettings,
    *,
    cuts: Sequence[str] = (),
    labelled: bool = False,
    compared: str = "",
) -> Iterator[ViewPart]:
    """Present the provenance, random weights first: model, mask, and unusual settings.

    `labelled`: the title of every head says that weights are random.
    `compared`: a setting that several values of are compared, so that it is left out.
    """
    if provenance.weights == "random" and not (labelled and settings.data_only):
        text = " untrained model: real arithmetic, meaningless patterns"
        yield paragraph((Span(" RANDOM WEIGHTS ", "alarm"), Span(text)))
    if provenance.family == "weights":
        text = " these are another program's weights: there are no scores behind them here"
        yield paragraph((Span(" GIVEN, NOT COMPUTED ", "alarm"), Span(text)))
    sizes = counted(provenance.n_layers, "layer")
    if provenance.attending:
        sizes += f" × {counted(provenance.n_heads, 'head')}"
    usual = {"cpu", "float32"} if not settings.verbose else set()
    of_machine = {"device": provenance.device, "dtype": provenance.dtype}
    machine = [
        value for name, value in of_machine.items() if value not in usual and name != compared
    ]
    are_given = provenance.weights == "given"
    usual_engine = provenance.engine == "native" or are_given or compared == "engine"
    engine = [] if usual_engine else [f"engine {provenance.engine}"]
    part = [untrusted(provenance.part)] if provenance.part else []
    items = [*part, ours(sizes), *map(untrusted, [*machine, *engine])]
    family = () if are_given else untrusted(f" ({provenance.family})")
    after = (*family, Span(" · "), *_joined(items, " · "))
    title = provenance.family if are_given else "model"
    if settings.verbose:
        folders = path_items(provenance.model or "?")
        lines: list[Line] = [(title, Text([*folders[:-1], (*folders[-1], *after)], ""))]
    else:
        lines = [(title, OneLine(untrusted(short_path(provenance.model)), after, end=True))]
    if kinds := provenance.layer_kinds:
        legend = f"  {count_attending(kinds)} ({spell_legend(kinds)})"
        lines.append(("layers", ours(spell_map(kinds, whole=settings.verbose) + legend)))
    if provenance.adapter is not None and compared != "adapter":
        lines.append(
            (
                "adapter",
                untrusted(
                    provenance.adapter if settings.verbose else short_path(provenance.adapter)
                ),
            )
        )
    if provenance.family != "weights" and compared != "mask":
        lines.append(("mask", describe_mask(mask, provenance.weights)))
        if effect := effect_of_mask(mask):
            lines += [("", effect)]
    if provenance.scale is not None:
        replaced = (
            f"scores × {provenance.scale:g} in every layer, in place of the model's own factor"
        )
        lines.append(("scale", ours(replaced, "warning")))
    if cuts:
        effects = {
            "; the weight of a cut edge is 0": any(_EDGE.search(cut) for cut in cuts),
            "; a cut head writes nothing, whatever its weights": not all(map(_EDGE.search, cuts)),
        }
        told = "".join(effect for effect, applies in effects.items() if applies)
        lines.append(("cut", (*untrusted(", ".join(cuts), "warning"), Span(told))))
    if settings.verbose and mask.what_if in _EXPLAINED:
        lines.append(("what if", ours(f"{mask.what_if}: {_EXPLAINED[mask.what_if]}")))
    if settings.verbose and provenance.values != "exact":  # a map says so itself
        lines.append(("values", untrusted(provenance.values)))
    if provenance.weights_hash is not None:
        lines.append(("weights", ours(f"SHA-256 {provenance.weights_hash}")))
    if provenance.tokenizer is not None:
        folder = re.sub(r"(?<=.)[/\\]tokenizer\.json$", "", provenance.tokenizer)
        whose = provenance.tokenizer if settings.verbose else short_path(folder)
        lines.append(
            ("tokens", (*untrusted(whose), Span(", in place of the model's own tokenizer")))
        )
    noted = [*provenance.notes, *(provenance.details if settings.verbose else [])]
    yield Facts([*lines, *(("note", note(remark)) for remark in noted)])


def describe_mask(mask: MaskUse, weights: str) -> Spans:
    """Describe a mask and its change, if it is not one of the model's own, or that which was given with its weights.

    `weights`: where these come from; see Provenance.
    """
    own = "given" if weights == "given" else "the model's own"
    if mask.what_if is None:
        whose = own
        if mask.trained:
            whose = f"one of the model's masks: {' or '.join((mask.own, *mask.trained))}"
        return untrusted(f"{mask.used} ({whose})")
    if mask.used == mask.own and mask.hidden is not None:
        hidden = untrusted(f"'{mask.hidden}' hidden", "warning")
        return (
            *untrusted(f"{mask.used} ({own}), with "),
            *hidden,
            Span(WHAT_IF.get(mask.what_if, "")),
        )
    used = untrusted(describe_used(mask), "warning")
    own_mask = untrusted(
        f"the {own} one is {mask.own}" if own == "given" else f"{own} is {mask.own}"
    )
    return *used, Span(f"{WHAT_IF.get(mask.what_if, '')}; "), *own_mask


def effect_of_mask(mask: MaskUse) -> Spans:
    """Say which keys a mask shows although the model's own hides them, or that it hides nothing; empty for neither."""
    if mask.added:
        own_note = ""
        if mask.hides and is_mask(mask.used):
            own_note = f" ({spell_mask((Own(), *parse_mask(mask.used)))} hides them, too)"
        shown_keys = " and ".join(_ADDED[addition] for addition in mask.added)
        return Span(f"shows {shown_keys}, which the model's own mask hides", "warning"), *untrusted(
            own_note
        )
    if mask.hides is False:
        alone = "" if mask.hidden is None else f"{mask.used} alone "
        return untrusted(f"{alone}hides nothing here that the model's own mask shows", "warning")
    return ()


def describe_used(mask: MaskUse) -> str:
    """Describe the mask, with the tokens that it hides."""
    if mask.hidden is None:
        return mask.used
    return f"{mask.used}, with '{mask.hidden}' hidden"


def short_path(name: str) -> str:
    """Shorten a long or absolute path to its last component, with the one before if that says little."""
    parts = [part for part in re.split(r"[/\\]", name) if part]
    whole = len(name) <= _LONGEST_PATH and not _ABSOLUTE.match(name)
    if whole or len(parts) < 2:
        return name
    if len(parts[-1]) > _SHORT_NAME:
        return parts[-1]
    return "/".join(parts[-2:])


def _joined(items: Iterable[Spans], between: str) -> Spans:
    joined: Spans = ()
    for item in items:
        joined += (*ours(between), *item) if joined else item
    return joined


def named_tokens(tokens: Sequence[Token], positions: Sequence[int]) -> Spans:
    """Name tokens, each after its position."""
    return _joined(
        ((Span(f"{position} "), token_span(tokens, position)) for position in positions), ", "
    )


def named_positions(tokens: Sequence[Token], positions: Sequence[int], limit: int) -> Spans:
    """Name tokens, each after its position, and patches of a picture together: at most so many, and how many more."""
    groups = join_patches(tokens, [[position] for position in positions])
    items: list[Spans] = []
    for group in groups[:limit]:
        name = name_patches(tokens, group)
        if name is None:
            items.append((Span(f"{group[0]} "), token_span(tokens, group[0])))
        else:
            items.append(ours(f"{format_positions(group)} {name}"))
    more = sum(map(len, groups[limit:]))
    return *_joined(items, " · "), Span(f" · and {more} more" if more else "")


def counted(count: int, what: str) -> str:
    """Count things: `1 token`, `1,024 tokens`."""
    if count == 1:
        return f"{count} {what}"
    return f"{count:,} {what}s"


def text_headers(texts: Sequence[TokenizedText], settings: DisplaySettings) -> list[Facts]:
    """Present texts, a report's with the numbers that its heads name and rows without keys; see `text_header`."""
    headers = []
    for n, text in enumerate(texts):
        name = "text"
        if len(texts) > 1:
            name = f"text {text.index if isinstance(text, TextReport) else n}"
        header = text_header(text, settings, name)
        if isinstance(text, TextReport) and any(text.heads.fully_masked):
            header = Facts([*header.lines, ("masked", fully_masked(text))])
        headers.append(header)
    return headers


def fully_masked(text: TextReport) -> Spans:
    """Say which rows may attend to nothing; nothing if all may attend to something."""
    of_heads = [set(positions) for positions in text.heads.fully_masked]
    rows = sorted(set().union(*of_heads))
    where = "" if all(positions == set(rows) for positions in of_heads) else " in some head"
    # a sink takes what no key may have
    has_sink = text.heads.rows is not None and text.heads.rows.sink is not None
    outcome = "" if has_sink else ", so a plain softmax gives NaN"
    return without_keys(text.tokens, rows, where + outcome) if rows else ()


def without_keys(tokens: Sequence[Token], rows: Sequence[int], where: str) -> Spans:
    """Say that rows may attend to nothing, and where, or what follows."""
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    meaning = f"{more}: no key is allowed{where}"
    kind = "row " if len(rows) == 1 else "rows "
    return Span(kind), *named_tokens(tokens, rows[:_NAMED]), Span(meaning)


def text_header(
    text: TokenizedText, settings: DisplaySettings, name: str = "text", *, around: int = 0
) -> Facts:
    """Present the text, its number of tokens, and the shown rows if they are not all.

    `around`: start of the word that has to be shown if not all of the text fits.
    """
    rows = list[int]()
    padding = 0
    hidden = list[int]()
    if isinstance(text, TextReport):
        if len(text.queries) < len(text.tokens):
            rows = text.queries
        padding = text.padding
        hidden = text.hidden
    n_generated = sum(token.made for token in text.tokens)
    generated = ""
    if n_generated:
        generated = f", {n_generated:,} of them generated (marked {NEW})"
    size = Span(f" · {counted(len(text.tokens) - padding, 'token')}{generated}")
    # A prompt with pictures is shown as it was given: its placeholders and its template are not.
    shown_text = text.text
    if isinstance(text, TextReport):
        if text.prompt and text.chat is None and not around:
            shown_text = text.prompt
    elif not around:
        shown_text = spell_prompt(text.text, text.tokens) or text.text
    lead, quoted, characters = _quoted(shown_text, settings, around)
    numbers = format_positions(rows) if rows else ""
    fits = len(numbers) <= _LONGEST_ROWS
    named_rows = ""
    if numbers and fits:
        named_rows = f" · {'row' if len(rows) == 1 else 'rows'} {numbers}"
    after = (*characters, size, Span(named_rows))
    line = (*lead, *quoted, *after) if settings.verbose else OneLine(quoted, after, lead=lead)
    lines: list[Line] = [(name, line)]
    if text.pair is not None:
        second = [i for i, token in enumerate(text.tokens) if token.segment == 1]
        _, quoted, characters = _quoted(text.pair, settings)
        lines.append(
            ("pair", (*quoted, *characters, Span(f" · tokens {format_positions(second)}")))
        )
    if isinstance(text, TextReport) and text.prompt:
        lines += [
            ("image", _picture(text.images, number)) for number in range(text.images[-1].image + 1)
        ]
    if isinstance(text, TextReport) and text.sound is not None:
        lines.append(("sound", _sound(text.sound)))
    elif text.context is not None:
        lines.append(
            (
                "context",
                ours(f"keys and values come from {len(text.context)} tokens of another text"),
            )
        )
    if padding:
        done = "its column is masked; its row is computed"
        if padding > 1:
            done = "their columns are masked; their rows are computed"
        message = f"{counted(padding, 'token')}, up to the longest text: {done}, but not used"
        lines.append(("padding", ours(message)))
    if hidden:
        hidden_tokens = [
            (token_span(text.sources, position), Span(f" {position}"))
            for position in hidden[:_NAMED]
        ]
        more = Span(f", and {len(hidden) - _NAMED} more" if len(hidden) > _NAMED else "")
        lines.append(("hidden", (*_joined(hidden_tokens, ", "), more)))
    if not fits:
        lines.append(("rows", ours(f"{numbers} (the text has 0–{len(text.tokens) - 1})")))
    return Facts(lines)


def _picture(grids: Sequence[ImageGrid], number: int) -> OneLine:
    own = [grid for grid in grids if grid.image == number]
    frames = f"{len(own)} frames of "
    sizes = [
        f"{frames * (grid.frame is not None)}{'thumbnail ' * grid.thumbnail}"
        f"{grid.shape[0]} × {grid.shape[1]} patches"
        for grid in own
        if not grid.frame
    ]
    return OneLine(untrusted(own[0].name), ours("".join(f" · {size}" for size in sizes)), end=True)


def _sound(sound: Sound) -> OneLine:
    window = f", from {sound.start:.2f} on" if sound.start else ""
    bands = f" in {sound.bands} bands" if sound.bands > 1 else ""
    facts = (
        f" · {sound.seconds:.2f} s · {sound.n_frames:,} frames of {sound.frame:g} s{bands}{window}"
    )
    return OneLine(untrusted(sound.name), ours(facts), end=True)


def token_ids(text: TokenizedText) -> Facts:
    """List the tokens of a text: position, token and id."""
    lines: list[Line] = []
    for name, tokens in (("ids", text.tokens), ("context", text.context or [])):
        items = [
            (Span(f"{n} ", "dim"), token_span(tokens, n), Span(f" {token.id}", "remark"))
            for n, token in enumerate(tokens)
        ]
        if items:
            lines.append((name, Text(items, " · ")))
    return Facts(lines, remark=False)


def _quoted(text: str, settings: DisplaySettings, around: int = 0) -> tuple[Spans, Spans, Spans]:
    """Quote a text: what is before a character, what is after it, and the length of a long one.

    Of a long text, quote the part around the character, or the start and the end.
    """
    longest = _LONGEST_TEXT[settings.verbose]
    if len(text) <= longest:
        return untrusted(text[:around]), untrusted(text[around:]), ()
    size = longest // 2
    length = (Span(f" · {len(text):,} characters"),)
    if not around:
        end = size // 3
        return (), (*untrusted(text[: size - end]), Span("…"), *untrusted(text[-end:])), length
    start = 0
    if around >= size // 2:
        start = min(around - size // 3, len(text) - size)
        start = text.find(" ", start, around) + 1 or start
    dots = [Span("…") if there else Span("") for there in (start > 0, start + size < len(text))]
    lead = untrusted(text[start:around])
    part = untrusted(text[max(start, around) : start + size])
    return (dots[0], *lead), (*part, dots[1]), length


def head_header(
    report: Report, text: TextReport, head: HeadReport, settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Present a layer and head, why it is shown, and its average row."""
    parts = [ours(f"text {text.index}")] if len(report.texts) > 1 else []
    reason = "" if settings.data_only else head.chosen or ""
    reason, *next_heads = re.split(BEFORE_A_HEAD, reason)
    if reason:
        parts += [untrusted(reason)]
    badge = RANDOM_WEIGHTS if report.provenance.weights == "random" else ()
    between = ours(" " if badge else "  ")  # the badge ends with a blank
    title = (Span(head_name(head), "title"), *badge, *(between if parts else ()))
    yield Text([(*title, *_joined(parts, "  ")), *map(untrusted, next_heads)], " ")
    # Tokens of a picture are no words, and their distance is not along the text.
    if not text.images and (facts := _row_facts(text, head)):
        if parts and "content weight" in str(head.chosen):
            facts[-1] += ";"
            facts.append(f"content weight: {_CONTENT_WEIGHT}")
        yield Text([ours(fact, "caption") for fact in facts], " ", remark=True)


_CONTENT_WEIGHT = "weight on other words that neither distance nor word explains"
_WHOLE = 1.005  # shares above it do not round to a whole: some keys are in several
RANDOM_WEIGHTS = (Span(" "), Span(" random weights ", "alarm"))


def head_name(head: HeadReport) -> str:
    """Name a layer and head, such as `L2H1`, or the heads of a mean."""
    layer = str(head.layer)
    which = str(head.head)
    if "mean" not in (layer, which):
        return f"L{layer}H{which}"
    if layer == which:
        return "mean of layers and heads"
    if which == "mean":
        return f"L{layer}, mean of heads"
    return f"H{which}, mean of layers"


def _row_facts(text: TextReport, head: HeadReport) -> list[str]:
    """Describe the average of all rows, or of those shown, without special tokens, as in the choice of a head."""
    sources = text.sources[: len(text.sources) - text.padding]
    # place in the header (see RowStatistic), name, keys of a weight, format, and group: commas join facts of one group
    shown_facts: list[tuple[int, str, str | None, str, str]] = [
        (statistic.place, name, statistic.on, "", "on" if statistic.on else name)
        for name, statistic in LAYER_STATISTICS.items()
    ]
    for statistic in ROW_STATISTICS:
        needs_token = statistic.key_token is None or any(map(statistic.key_token, sources))
        near = statistic.within is None or (
            head.means is not None and statistic.within < len(text.tokens)
        )
        if (statistic.on or statistic.phrase) and needs_token and near:
            if statistic.on:
                group = "on"
            elif statistic.within is None:
                group = statistic.name
            else:
                group = "within"
            shown_facts.append(
                (statistic.place, statistic.name, statistic.on, statistic.phrase or "", group)
            )
    rows = range(len(text.tokens)) if head.means is not None else text.queries
    words = np.array([not text.tokens[position].special for position in rows], dtype=bool)
    if head.means is None:
        means = _shown_means(head, words if words.any() else ~words)
    else:
        means = head.means
    missing = {name for _, name, *_ in shown_facts if getattr(means, name) is None}
    if not (means.first or means.special or means.self or means.other):
        missing.add("distance")  # a row whose keys are all cut has no weight at any distance
    shown_facts = sorted(
        (fact for fact in shown_facts if fact[1] not in missing), key=itemgetter(0)
    )
    facts = list[str]()
    for _, name, on, form, _ in shown_facts:
        value = getattr(means, name)
        of_weight = "" if facts else " of its weight"
        if name in LAYER_STATISTICS:
            form = LAYER_STATISTICS[name].phrase_of(value)
        facts.append(form.format(value) if on is None else f"{value:.2f}{of_weight} on {on}")
    names = [name for _, name, *_ in shown_facts]
    shares = {name: getattr(means, name) for _, name, on, *_ in shown_facts if on is not None}
    if shares.pop("punctuation", 0.0) > _WHOLE - 1:
        facts[names.index("punctuation")] += " (counted above, too)"
    if sum(shares.values()) > _WHOLE:
        # The first token may be special, or the row's own, and a special token may be the row's own.
        overlapping = max(
            names.index(name) for name in ("self", "first", "special") if name in names
        )
        facts[overlapping] += " (these overlap)"
    for n, (fact, following) in enumerate(pairwise(shown_facts)):
        facts[n] += "," if fact[-1] == following[-1] else ";"
    if not facts:
        return []
    if len(words) == 1:
        return [f"the row has {facts[0]}", *facts[1:]]
    whose = "a row" if words.all() or not words.any() else "the row of a word"
    return [f"on average, {whose} has {facts[0]}", *facts[1:]]


def _shown_means(head: HeadReport, counted: np.ndarray) -> Means:
    means: dict[str, float | None] = {}
    for name, values in structs.asdict(head.rows).items():
        means[name] = None
        if values is not None and (known := values[counted & np.isfinite(values)]).size:
            means[name] = float(known.mean())
    return Means(**means)


def notes(notes: Iterable[str]) -> Facts:
    """Present notes on what was left out, and which option shows it."""
    return Facts([("note", note(text)) for text in notes])


def more_of_report(report: Report, settings: DisplaySettings, *, thumbnails: bool) -> list[str]:
    """Name the options that show more than the parts of a report do.

    `thumbnails`: whether heads are thumbnails, which have weights alone.
    """
    heads = [head for text in report.texts for head in text.heads]
    of_one_head = ["--layer L --head H (of one head)"]
    if matrices := [text.mixing for text in report.texts if text.mixing is not None]:
        if any(len(mixing.units) > 1 for mixing in matrices):
            return of_one_head
        one_row = all(len(text.queries) == 1 for text in report.texts)
        return [
            *(["--key WORD", "--layer N --head N"] if one_row else ["--head all", "--query WORD"]),
            "--top K",
        ]
    if any(text.rollouts for text in report.texts):
        return ["--layer LAYERS", "--query WORD", "--top K"]
    if all(text.spans is not None for text in report.texts):
        is_one_span = all(
            len(text.spans.selected or ()) == 1 for text in report.texts if text.spans is not None
        )
        return ["--query SPAN", *([] if is_one_span else of_one_head), "--verbose (by layer)"]
    if settings.brief and any(head.received is not None for head in heads):
        means = "mean" in {name for head in heads for name in (head.layer, head.head)}
        return ["--least K", *(of_one_head if means else []), "--stage weights (the matrix)"]
    more = []
    if len({head.layer for head in heads}) < len(report.provenance.attending):
        more.append("--layer all")
    if len({head.head for head in heads}) < report.provenance.n_heads:
        more.append("--head all")
    if any(len(text.queries) > 1 for text in report.texts):
        more.append("--query WORD")
    maps = not any(text.queries for text in report.texts)
    if thumbnails:
        more.append(
            f"--layer L --head H ({'its map and most attended tokens' if maps else 'stages and contributors'})"
        )
    elif maps:
        more += ["--query ROWS", "--query ROWS --key COLUMNS", "--pool N"]
    else:
        missing = [
            stage
            for stage in STAGES
            if stage not in {stage for head in heads for stage in head.stages}
        ]
        if missing and all(text.words is None for text in report.texts):
            more.append(f"--stage {','.join(missing)}")
        pairs = (
            pair for text in report.texts if text.words is None for pair in pairwise(text.tokens)
        )
        if any(spell_one_character(*pair) for pair in pairs):
            more.append(WORDS_HINT)
        more.append("--top K")
    return more


def spell_one_character(token: Token, following: Token) -> bool:
    """Tell whether two tokens have parts of the same character."""
    return (token.start, token.end) == (following.start, following.end) != (None, None)


def splits_character(tokens: Sequence[Token], positions: Collection[int]) -> bool:
    """Tell whether some positions have a part of the tokens that spell one character."""
    for first, (token, following) in enumerate(pairwise(tokens)):
        same = spell_one_character(token, following)
        if same and (first in positions) != (first + 1 in positions):
            return True
    return False


def more_options(options: Iterable[str], settings: DisplaySettings) -> Iterator[ViewPart]:
    """Name options that show more, to a user of the command line."""
    if settings.options:
        lines: list[Line] = [("more", Text([ours(option) for option in options], " · "))]
        if settings.cut_command:
            words = [untrusted(word) for word in settings.cut_command]
            lines.append(("effect", Text(words, " ", command=True)))
        yield Facts(lines)
