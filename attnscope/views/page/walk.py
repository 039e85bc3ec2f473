"""A walk as data: scenes, heads and the table of keys. `web/src/model.ts` reads it."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np

from attnscope.base.system.escape import quote_for_shell
from attnscope.findings.heads import HeadRef
from attnscope.findings.row_statistics import STATISTICS
from attnscope.views.axes import SINK, Axis
from attnscope.views.numbers import scale_text
from attnscope.views.page.container import Array, Container
from attnscope.views.page.derived import (
    are_in_matrices,
    keys_of_rows,
    keys_of_sources,
    lists_its_matrix,
    norms,
)
from attnscope.views.page.elements import ELSEWHERE, pasted, spans_of, text_of
from attnscope.views.settings import TypedCommand
from attnscope.views.spans import Span
from attnscope.views.walk.cell import compared_masks, later_steps
from attnscope.views.walk.effects import (
    ENDINGS,
    WORDS_OF_EFFECTS,
    effect_text,
    effect_word,
    effect_words,
    tied_names,
)
from attnscope.views.walk.glossary import GLOSSARY, phrase_of
from attnscope.views.walk.keys import ACTIONS, ON_PAGES, spell_key, spell_keys
from attnscope.views.walk.scene import (
    EFFECT_OF_HEAD,
    EFFECT_OF_LAYER,
    Alignment,
    HeadNumber,
    Number,
    Passage,
    Scene,
    SceneEffects,
    SceneRoles,
    Source,
    Variant,
    WalkHead,
)

# Decimals of rounded statistics.
DECIMALS = {"distance": 1}
# Decimals of other statistics, and of weights.
_STATISTIC = 2
_WEIGHT = 3
# Heads that an answer names.
_NAMED = 3
# Characters of a text in the list of texts.
_BEGINNING = 30
# Different tokens of a span that stand behind its name.
_MARKS = 2
# Statistics of rounded heads.
_SUMMARY = (
    "entropy",
    "gate",
    "first",
    "special",
    "self",
    "other",
    "distance",
    "sink",
    "unselected",
)


_STAGES = {
    "scores": "q·k, before scaling",
    "scaled": "scores × scale",
    "masked": "scaled; hatched is not allowed",
    "weights": "softmax of masked",
    "map": "map of weights between runs of tokens",
}
_PHRASES = {
    **{name: phrase_of(name) for name in (*_SUMMARY, "punctuation")},
    "entropy": "entropy, bits",
    "gate": "gate on the output",
    "unselected": "missed by the indexer",
    "distance": "mean distance, tokens",
    "value": "× ‖v‖",
    "projected": "× ‖v W‖",
}
# Statistics that say nothing of patches: these are no words, and their distance is not along the text.
_OF_WORDS = {"first", "special", "other", "distance", "punctuation"}
_WORDS = {
    # what to do before anything was chosen
    "begin": "Point at a word or tap it: what it reads is coloured. Click a cell: its weight in all heads.",
    # behind the first word of a pair: how the second is chosen
    "pair": "is the query. Now click the key: another word or part of the text.",
    # of the strongest head
    "ofCell": ", the most of all heads",
    "ofListed": ", the most of the heads that list it",
    "ofRow": ", the most of this row in any head, past sinks and the word itself",
    # how many are listed, which of them has the largest effect, and how large that is
    "more": "Of the {} heads that are known to have most of it, {} matters most: {}.",
    "open": "Open",
    "begin_roles": "Point at a word or tap it: what it reads is coloured. Click a head: its matrix opens.",
    "begin_patch": "Click a patch, or a word: what it reads is coloured. Point at a patch: its weight. Click a head: its map.",
    "begin_spans": "Point at a part of the text or tap it: what it reads is coloured.",
    "heads": "Heads",
    "grid": "layers and heads",
    # of a row and of a column; {} is its token
    "what": "what {} reads",
    "who": "who reads {}",
    "reading": "reads",
    "mostly": "reads most",
    "readBy": "is read by",
    "goes": "is read",
    "nothing": "nothing that is listed",
    "under": "under the pointer",
    "own": "Without sinks, each picture has its own scale, up to its largest weight elsewhere.",
    "shows": "What every head shows",
    "strong": "Strongest heads",
    "past": "Without sinks and the word itself.",
    "without": "left out of the ranking:",
    "less": "other rows, with less",
    "patch": "; arrow keys choose a patch as the query",
    "exact": "exact float32",
    "map": "map of the whole text, exact float32",
    "sources": "the strongest sources of every row, exact float32",
    "summary": f"summary, rounded to {_WEIGHT} decimals",
    "digits": "Numbers are float32, rounded as cells have room; point at one for all digits.",
    "rounded": f"Of this head, the page keeps weights rounded to {_WEIGHT} decimals, statistics to {_STATISTIC} "
    f"(distance to {DECIMALS['distance']}).",
    "absent": "The sources of this row are not listed on this page. The nearest row that is:",
    "find": "Find a token",
    "gains": "gains most",
    "loses": "loses most",
    "difference": "No difference is shown: a side has no exact matrix of this head, or other tokens.",
    "bounds": "≤, grey: not among the sources that are listed",
    "command": "This matrix in a terminal:",
    "elsewhere": ELSEWHERE,
    "single": "only one side has it",
    "states": "the final states of all tokens change by ",
    "sunk": ", in which the sink of the head takes part",
    "unmoved": "Less than 0.005 of the weight of every row moved in this head.",
    "rest": "The weight of all tokens that are weaker than those above.",
    "settled": "Without sinks, the colours would stay: this head reads no other token, or one as strongly as sinks.",
    # of a row step by step, before its largest score
    "largest": "The largest masked score of the row is",
    "power": "The weight of a key is e^(masked − ",
    "divided": "), divided by the sum of these,",
    "another": "pinned: go to another head, with [ and ] or a click, to compare it with this one",
    "weights": "Only weights are known of this head; its map shows them.",
    "none": "This page does not hold this stage of this head.",
    "notAllowed": "The mask forbids this cell: 0 in every head whose scores this page holds.",
    # what is said of the scale, and of a key that leads nowhere
    "sqrt": "colours follow the root of weights",
    "linear": "colours follow weights",
    "log": "colours follow the logarithm of weights",
    "sinks": "sinks are in the scale",
    "sinkless": "sinks are out of the scale",
    "embeddings": "nothing is below: this layer reads embeddings",
    "below": "this page does not show it in the layer below",
    "unfound": "nothing was found",
    "unclear": "no clear role",
    "uncopied": "the browser did not let this page copy",
    "rests": "nothing that is listed but sinks and itself",
    "alone": "in the layer below, it reads sinks and itself alone",
    "pin": "compare other heads with this one (c)",
    "unpin": "no longer compare heads with this one (c)",
    "lines": "Queries on the left, sources on the right",
    "text": "The text; arrow keys go from token to token",
    "unexplained": "This page does not hold the scores of this row, it is a mean of rows, or it may attend to no key.",
}
_FULLER = "A fuller colour is a stronger role."
# Help of actions that do something else, or less, than in a terminal.
_PAGE_HELP = {
    "zoom_in": "Larger cells.",
    "zoom_out": "Smaller cells, down to the whole matrix.",
    "digits": "Numbers in cells, or none.",
    "display": "Heads by this cell or row, or as thumbnails, roles or one number.",
    "lens": "This cell, or this row, in all heads; then the digit before a head goes there.",
    "write": "Save a figure, the matrix, or this page.",
    "help": "All keys, and what the words mean.",
    "stage": "Next stage: scores, scaled, masked, weights.",
}
# Actions that the help has in one line, by the first of them.
_TOGETHER = {
    "left": ("From cell to cell; in the map of heads, from head to head.", "down up right"),
    "page_up": ("Up or down by one screen.", "page_down"),
    "first_key": ("First or last token of the row.", "last_key"),
    "first_query": ("First or last row.", "last_query"),
    "next_match": ("Next or previous match.", "previous_match"),
    "previous_text": ("Previous or next text.", "next_text"),
    "previous_head": ("Previous or next head.", "next_head"),
    "previous_layer": ("The same head one layer below or above.", "next_layer"),
    "stage": ("Next or previous stage: scores, scaled, masked, weights.", "previous_stage"),
    "mask": ("Next or previous side.", "previous_mask"),
    "zoom_in": ("Larger or smaller cells.", "zoom_out"),
    "heads_panel": ("Heads, matrix, row, or text.", "matrix_panel row_panel text_panel"),
}
# Names of keys in browsers and in the table.
_BROWSER_KEYS = {
    "ArrowLeft": "left",
    "ArrowRight": "right",
    "ArrowUp": "up",
    "ArrowDown": "down",
    "PageUp": "pageup",
    "PageDown": "pagedown",
    "Home": "home",
    "End": "end",
    "Enter": "enter",
    "Backspace": "backspace",
    " ": "space",
}


# Names of folders and files that are those of any model: the hub's snapshots, and what programs write.
_SAYS_NOTHING = re.compile(r"models?|weights|snapshots|checkpoint(-\d+)?|[0-9a-f]{40}|\.\.?")
# What follows the name of a span that has the name of another: `the (2)`.
_REPEATED = re.compile(r" \(\d+\)$")
Node = dict[str, Any]


@dataclass(frozen=True)
class Wording:
    """What a walk says of numbers that are no attention; all else stays as it is."""

    words: Mapping[str, str]
    phrases: Mapping[str, str]
    glossary: Mapping[str, str]
    stages: Mapping[str, str]
    idle: Sequence[str]  # actions that do nothing


@dataclass(frozen=True)
class Walk:
    """Findings to walk through: a part that only a page draws."""

    source: Source
    # the command of a comparison, to which a place adds the options `selects`; None if none can be typed
    compared_by: TypedCommand | None = None
    selects: Sequence[str] = ("layer", "head", "query")
    wording: Wording = Wording({}, {}, {}, {}, ())


def lowered_walk(walk: Walk, container: Container) -> list[Node]:
    """Return the node of a walk; its arrays go into the container."""
    source = walk.source
    wording = walk.wording
    effect = {"effect": f"{GLOSSARY['effect']} {WORDS_OF_EFFECTS}"}
    glossary = {**GLOSSARY, **effect, **wording.glossary}
    scenes = []
    for text in range(len(source.texts)):
        for mask_index, mask in enumerate(source.masks):
            variant = Variant(text, mask)
            if (scene := source.scene(variant)) is not None:
                scenes.append(
                    {"text": text, "mask": mask_index, **_scene(walk, variant, scene, container)}
                )
    # a comparison has one title on all of its sides
    for text in range(len(source.texts)):
        sides = [scene for scene in scenes if scene["text"] == text]
        for field in ("maskName", "model"):
            names = ", ".join(dict.fromkeys(side[field] for side in sides))
            for side in sides:
                side[field] = names
    return [
        {
            "k": "walk",
            "texts": [
                _choice(text if source.named else f"{n} {text}")
                for n, text in enumerate(source.texts)
            ],
            "masks": [text_of(Span(mask, origin="untrusted")) for mask in source.masks],
            "keys": _keys(scenes, len(source.texts), len(source.masks), wording.idle),
            "browserKeys": _BROWSER_KEYS,
            "stageHelp": {**_STAGES, **wording.stages},
            "glossary": glossary,
            "terms": _terms(glossary, scenes),
            "phrases": {**_PHRASES, **wording.phrases},
            "words": {**_WORDS, **wording.words},
            "selects": list(walk.selects),
            "scenes": scenes,
        }
    ]


def _terms(glossary: Mapping[str, str], scenes: Sequence[Node]) -> dict[str, str]:
    """Return what the words of these scenes mean, by what panels call them: without statistics that none shows."""
    names = set(_PHRASES)
    terms = {}
    for scene in scenes:
        names.update(number["name"] for number in scene["numbers"])
    for name, meaning in glossary.items():
        if name in names or name not in STATISTICS:
            terms[_PHRASES.get(name, phrase_of(name))] = meaning
    for scene in scenes:
        if scene["roles"]:
            terms.update(zip(scene["roles"]["names"], scene["roles"]["meanings"], strict=True))
    return terms


def _choice(text: str) -> str:
    """Return the beginning of a text, for a list of texts."""
    written = text_of(Span(text, origin="untrusted"))
    if len(written) <= _BEGINNING:
        return written
    return f"{written[:_BEGINNING]}…"


def _keys(scenes: Sequence[Node], texts: int, masks: int, idle_too: Sequence[str]) -> list[Node]:
    """Return the actions that do something on a page with these scenes; a browser keeps keys with Ctrl for itself.

    `together` is the text and the keys of a line of the help, if actions share one; None of those that are in another's.
    """
    keys: dict[str, Node] = {}
    idle = {
        "text": texts < 2,
        "mask": masks < 2,
        "roles": not any(scene["roles"] for scene in scenes),
        "predictions": not any(scene["predictions"] for scene in scenes),
        "stage": all(len(scene["stages"]) < 2 for scene in scenes),
        "explain": not any(
            "masked" in unit["stages"] for scene in scenes for unit in scene["units"]
        ),
        **dict.fromkeys(idle_too, True),
    }
    for action in (*ACTIONS, *ON_PAGES):
        if action.page and not idle.get(
            action.name.removeprefix("next_").removeprefix("previous_")
        ):
            page_action = replace(
                action, keys=tuple(key for key in action.keys if "+" not in key[1:])
            )
            keys[action.name] = {
                "name": action.name,
                "keys": list(page_action.keys),
                "spelled": spell_keys(page_action, between=" or "),
                "help": _PAGE_HELP.get(action.name, action.help),
                "group": action.group,
            }
    for first, (help_text, others) in _TOGETHER.items():
        if first in keys:
            lines = [keys[first], *(keys[name] for name in others.split())]
            spelled = zip(*(line["keys"] for line in lines), strict=False)
            keys[first]["together"] = [
                help_text,
                " or ".join(" ".join(map(spell_key, alike)) for alike in spelled),
            ]
            for line in lines[1:]:
                line["together"] = None
    return list(keys.values())


def _scene(walk: Walk, variant: Variant, scene: Scene, container: Container) -> Node:
    heads = _walked_heads(walk.source, variant, scene)
    exact = {indices: head for indices, head in heads.items() if head.exact}
    rounded = {indices: head for indices, head in heads.items() if not head.exact}
    groups = [
        *_group(scene, exact, container, exact=True),
        *_group(scene, rounded, container, exact=False),
    ]
    return {
        "size": scene.size or "×".join(map(_count, (scene.layers, scene.heads))),
        "layers": list(scene.layers),
        "heads": list(scene.heads),
        **_axes(scene),
        "passages": _text_pieces(scene),
        "stages": [stage for stage in scene.stages if stage in _STAGES],
        "measure": scene.measure,
        "hatched": scene.unit != "tokens" or scene.measure != "weight",
        "begin": _begin(scene),
        "aligned": scene.aligned,
        "predictions": [
            {"position": item.position, "title": spans_of(item.title),
             "tokens": [text_of(token) for token in item.tokens], "probabilities": list(item.probabilities)}
            for item in scene.predictions
        ],
        **_displays(scene, container),
        "roles": _roles(scene.roles, container),
        "effects": _effects(scene.effects, container),
        "noEffects": f"Not measured: {scene.no_effects}. " * bool(scene.no_effects),
        **_command(scene),
        "comparison": pasted(_comparison(walk, variant)),
        "first": list(scene.first),
        "start": _start(scene, exact.get(scene.first), groups),
        "startKey": scene.start_key,
        "display": scene.display,
        "answer": _answer(scene, heads),
        "model": text_of(Span(_model_name(scene.model), origin="untrusted")),
        "maskName": text_of(Span(scene.mask, origin="untrusted")),
        "pairs": _pairs(scene.alignment, _marks(scene)),
        "random": scene.random,
        "levels": [round(level, _STATISTIC) for level in scene.levels],
        "pictures": _pictures(scene, rounded, container),
        "units": [_head(indices, head, container) for indices, head in heads.items()],
        "groups": groups,
    }  # fmt: skip


def _count(numbers: Sequence[Number]) -> str:
    """Count layers or heads, but not the mean of them, unless there is nothing else."""
    return str(max(1, sum(isinstance(number, int) for number in numbers)))


def _division(scene: Scene) -> list[str]:
    """Return the option that divides a text into these words or spans, if there is one."""
    if scene.unit == "words":
        return ["--words"]
    if not scene.division:
        return []
    return [f"--spans {quote_for_shell(scene.division)}"]


def _walked_heads(
    source: Source, variant: Variant, scene: Scene
) -> dict[tuple[int, int], WalkHead]:
    """Return the heads of a scene by layer and head; those of a picture without what is said of words."""
    heads = {}
    for layer in range(len(scene.layers)):
        for column in range(len(scene.heads)):
            head = source.head(variant, layer, column)
            if head is None:
                continue
            if scene.picture_scale is not None:
                rows = {name: row for name, row in head.rows.items() if name not in _OF_WORDS}
                head = replace(head, rows=rows)
            heads[layer, column] = head
    return heads


def _axes(scene: Scene) -> Node:
    """Return the axes of queries, keys and sources; one with the entries of another is the name of that."""
    marks = _marks(scene)
    queries, keys, sources = (
        _axis(axis, marks) for axis in (scene.queries, scene.keys, scene.sources)
    )
    axes: Node = {"queries": queries, "keys": keys, "sources": sources}
    if _same(keys, queries):
        axes["keys"] = "queries"
    if _same(sources, queries):
        axes["sources"] = "queries"
    elif _same(sources, keys):
        axes["sources"] = "keys"
    if scene.unit == "spans":
        assert scene.members is not None
        # a span is typed by its name, not by a position
        queries["positions"] = [quote_for_shell(name.text) for name in scene.queries.names]
        queries["numbers"] = list(map(str, range(len(scene.queries.names))))
        first = [n for n, tokens in enumerate(scene.members[0]) if 0 in tokens]
        queries["special"] = sorted({*queries["special"], *first})
    return axes


def _marks(scene: Scene) -> dict[str, str]:
    """Return the tokens of spans that are no part of the text, such as `[CLS]` of `(first)`, if they are few."""
    tokens: dict[str, dict[str, None]] = {}
    if scene.unit == "spans":
        for passage in scene.passages:
            index = max(passage.query, passage.key)
            if index >= 0 and scene.queries.special[index]:
                name = scene.queries.names[index].text
                tokens.setdefault(name, {})[text_of(passage.span).strip()] = None
    return {name: " ".join(texts) for name, texts in tokens.items() if len(texts) <= _MARKS}


def _text_pieces(scene: Scene) -> list[list[Any]]:
    """Return the text as pieces, each with its query and key; −1 for none."""
    if scene.pictures:
        return list(_passages(scene.passages))
    passages = _read(scene.passages)
    if scene.unit == "tokens":
        return list(_passages(passages))
    # what was generated is text here: its tokens have no marks
    unmarked = (
        replace(passage, span=replace(passage.span, origin="token"))
        if passage.span.origin == "new token"
        else passage
        for passage in passages
    )
    return _named_runs(scene, _passages(list(unmarked)))


def _begin(scene: Scene) -> str:
    """Return the name of the words that say what to do first."""
    if scene.unit == "spans":
        return "begin_spans"
    if scene.pictures:
        return "begin_patch"
    return "begin"


def _displays(scene: Scene, container: Container) -> Node:
    """Return the numbers of heads, and what the panel of heads can show."""
    numbers = [
        item
        for item in scene.numbers
        if item.varies or item.name in (EFFECT_OF_HEAD, scene.display)
    ]
    displays = {"lens": "cell or row", "thumbnails": "thumbnails"}
    if scene.roles is not None:
        displays["roles"] = "roles"
    for item in numbers:
        displays[item.name] = phrase_of(item.name)
    return {
        "numbers": [_head_number(item, container) for item in numbers],
        "displays": displays,
    }


def _command(scene: Scene) -> Node:
    """Return the command of a scene, and whether it names a file of another folder."""
    if scene.command is None:
        return {"command": "", "elsewhere": False}
    return {
        "command": pasted(scene.command.spell(*_division(scene), shared=True)),
        "elsewhere": scene.command.shared_words not in (None, scene.command.words),
    }


def _start(scene: Scene, first_head: WalkHead | None, groups: Sequence[Node]) -> int | None:
    """Return the row to begin at: of a long text, the nearest one of which anything is shown."""
    is_whole = first_head is not None and "weights" in first_head.stages
    if scene.start_key is not None or is_whole:
        return scene.start
    usual = len(scene.queries.names) - 1
    if scene.start is not None:
        usual = scene.start
    listed = next((group["rows"] for group in groups if list(scene.first) in group["units"]), ())
    return min(listed, key=lambda row: abs(row - usual), default=scene.start)


def _head_number(item: HeadNumber, container: Container) -> Node:
    words = None
    if item.measure and item.name != EFFECT_OF_LAYER:
        words = effect_words(item.measure)
    return {
        "name": item.name,
        "meaning": item.meaning,
        "values": container.exact(item.values),
        "ending": ENDINGS.get(item.measure, ""),
        "words": words,
    }


def _roles(roles: SceneRoles | None, container: Container) -> Node | None:
    if roles is None:
        return None
    fields = ("names", "letters", "colours", "meanings")
    node: Node = {field: list(getattr(roles, field)) for field in fields}
    node["main"] = container.add(roles.main.astype(np.int32))
    node["strength"] = container.exact(roles.strength)
    node["measured"] = f"{roles.measured} {_FULLER}"
    node["texts"] = list(roles.texts)
    node["rows"] = None
    if roles.rows is not None:
        node["rows"] = container.add(roles.rows.astype(np.int32))
    return node


def _pairs(alignment: Alignment | None, marks: Mapping[str, str]) -> Node | None:
    if alignment is None:
        return None
    return {
        "queries": [list(pair) for pair in alignment.queries],
        "keys": [list(pair) for pair in alignment.keys],
        "rows": _axis(alignment.rows, marks),
        "columns": _axis(alignment.columns, marks),
    }


def _pictures(
    scene: Scene, heads: Mapping[tuple[int, int], WalkHead], container: Container
) -> Node | None:
    if scene.picture_scale is None:
        return None
    grids = [
        {
            "name": picture.name,
            "pixels": container.picture(picture.pixels),
            "shape": picture.sources.shape,
            "sources": picture.sources.ravel().tolist(),
        }
        for picture in scene.pictures
    ]
    return {
        "grids": grids,
        "kinds": [[name, list(sources)] for name, sources in scene.kinds],
        "high": scene.picture_scale.high,
        "rows": _pictured_rows(heads, container),
    }


def _answer(scene: Scene, heads: Mapping[tuple[int, int], WalkHead]) -> str:
    """Say where there is most of what heads show first; empty for the lens, which says so of every cell."""
    if scene.answer:
        return scene.answer
    count = len(scene.layers) * len(scene.heads)
    if scene.display == "roles" and scene.roles is not None:
        main = scene.roles.main[scene.roles.main >= 0]
        names = Counter(scene.roles.names[role] for role in main.tolist())
        roles = ", ".join(f"{number} {name}" for name, number in names.most_common(_NAMED))
        roles += " …" if len(names) > _NAMED else "."
        opened = _opened(scene, scene.roles)
        return (
            f"{main.size} of {count} heads have a clear role{': ' if names else ''}{roles}{opened}"
        )
    first_head = heads.get(scene.first)
    if scene.display == "thumbnails" and first_head is not None and first_head.chosen:
        return f"{first_head.name} is {first_head.chosen}."
    if scene.display == "thumbnails":  # of heads that nobody chose, such as those of a dump
        measured = [number for number in scene.numbers if number.measure]
    else:
        measured = [number for number in scene.numbers if number.name == scene.display]
    if not measured or count < 2 or not np.isfinite(measured[0].values).any():
        return ""
    number = measured[0]
    units = [str(HeadRef(layer, head)) for layer in scene.layers for head in scene.heads]
    values = number.values.ravel()
    if number.name == EFFECT_OF_LAYER:  # every head has that of its layer
        units = [f"L{layer}" for layer in scene.layers]
        values = number.values[:, 0]
    sizes = np.where(np.isfinite(values), np.abs(values), -1.0)
    order = np.argsort(-sizes, kind="stable")[: int(np.isfinite(values).sum())].tolist()
    if number.name.startswith("effect"):
        what = "Largest effect" + " of a cut" * (scene.display != number.name)
    else:
        what = f"Largest {phrase_of(number.name)}"
    texts = [effect_text(float(values[n]), number.measure) for n in order]
    tied = list(takewhile(texts[0].__eq__, texts))
    if len(tied) > 1:
        return f"{what}: {texts[0]} in {tied_names([units[n] for n in order[: len(tied)]])}."
    largest = [f"{units[n]} {text}" for n, text in zip(order, texts[:_NAMED], strict=False)]
    if number.measure:
        largest[0] += f" ({effect_word(float(values[order[0]]), number.measure).lower()})"
    then = ", ".join(largest[1:])
    if then:
        then = f", then {then}"
    return f"{what}: {largest[0]}{then}."


def _opened(scene: Scene, roles: SceneRoles) -> str:
    """Say which head the page opens at, and why: it is the strongest of its role or of another one, or what its role is."""
    role = int(roles.main[scene.first])
    layer, head = scene.first
    ref = HeadRef(scene.layers[layer], scene.heads[head])
    name = None
    if role >= 0:
        name = roles.names[role]
    strength = f"{roles.strength[scene.first]:.2f}"
    if roles.chosen_by is not None and roles.chosen_by[0] != name:
        _, title, value = roles.chosen_by
        is_too = "it has no clear role"
        if name is not None:
            is_too = f"its main role is {name} ({strength}; clear from {roles.clear[role]:g})"
        return f" It opens at {ref}, the strongest head of {title} ({value:.2f}); {is_too}."
    if name is None:
        return ""
    shown = [f"{value:.2f}" for value in np.sort(roles.strength[roles.main == role])]
    if shown[-1] != strength:
        what = f"{'an' if name[0] in 'aeiou' else 'a'} {name} head"
    elif shown.count(strength) == 1:
        what = f"the strongest {name} head"
    else:
        what = f"one of the strongest {name} heads"
    return f" It opens at {ref}, {what} ({strength}; clear from {roles.clear[role]:g})."


def _effects(effects: SceneEffects | None, container: Container) -> Node | None:
    if effects is None:
        return None
    node: Node = {
        "positions": list(effects.positions),
        "preposition": effects.preposition,
        "tokens": [text_of(Span(token, origin="token")) for token in effects.tokens],
        "before": None,
        "after": None,
    }
    for name in ("before", "after"):
        numbers = getattr(effects, name)
        if numbers is not None:
            node[name] = container.exact(numbers)
    return node


def _comparison(walk: Walk, variant: Variant) -> str:
    """Return the command that compares a side with the first, or the first with the second; empty for none."""
    source = walk.source
    scene = source.scene(variant)
    assert scene is not None
    if scene.unit == "spans" and scene.command is None:
        return ""
    if walk.compared_by is not None:
        return walk.compared_by.spell(left_out=(*walk.selects, "summary"))
    reference, *others = source.masks
    if not others:
        return ""
    sides = [reference, variant.mask if variant.mask != reference else others[0]]
    before, after = (source.scene(replace(variant, mask=mask)) for mask in sides)
    if before is None or after is None:
        return ""
    compared = compared_masks(before, after)
    if compared is None:
        return ""
    return compared.spell(*_division(scene), command="compare", shared=True)


def _pictured_rows(heads: Mapping[tuple[int, int], WalkHead], container: Container) -> Node | None:
    """Return all weights of heads that have no exact numbers on the page, by their roots; None if there are none."""
    weights_of = {
        indices: head.stages["weights"]
        for indices, head in heads.items()
        if "weights" in head.stages
    }
    if not weights_of:
        return None
    first_head = heads[next(iter(weights_of))]
    weights = container.roots(np.stack(list(weights_of.values())))
    return {
        "units": [list(indices) for indices in weights_of],
        "start": first_head.start,
        "weights": weights,
    }


def _model_name(model: str) -> str:
    """Return the last part of a path that says which model it is, without the ending of a file of weights."""
    parts = [part.removesuffix(".gguf") for part in re.split(r"[/\\]", model) if part]
    says_something = (part for part in reversed(parts) if not _SAYS_NOTHING.fullmatch(part))
    # the hub's cache has folders such as models--org--name
    return next(says_something, model).rpartition("models--")[2].rpartition("--")[2]


def _axis(axis: Axis, marks: Mapping[str, str]) -> Node:
    positions = list(axis.positions)
    numbers = [axis.number(n) for n in range(len(positions))]
    return {
        "kind": axis.kind,
        "names": [
            " ".join(filter(None, (text_of(name), marks.get(name.text)))) for name in axis.names
        ],
        "positions": len(positions) if positions == list(range(len(positions))) else positions,
        "numbers": None if numbers == [str(position) for position in positions] else numbers,
        "special": [n for n, special in enumerate(axis.special) if special],
        "sink": [n for n, position in enumerate(positions) if position == SINK],
        "total": axis.total,
    }


def _same(axis: Node, other: Node) -> bool:
    """Tell whether two axes have the same entries, whatever their titles."""
    return {**axis, "kind": ""} == {**other, "kind": ""}


def _read(passages: Sequence[Passage]) -> Sequence[Passage]:
    """Return what was read of a text; the end of one that was truncated is counted."""
    last = passages[-1] if passages else Passage(Span(""))
    if last.query >= 0 or last.key >= 0 or not any(map(str.isalnum, last.span.text)):
        return passages
    cut = f" … {len(last.span.text.strip()):,} characters are cut off"
    return [*passages[:-1], Passage(Span(cut))]


def _passages(passages: Sequence[Passage]) -> Iterator[list[Any]]:
    """Yield a text piece by piece; line breaks between tokens are kept, breaks within follow their token."""
    for passage in passages:
        lines = passage.span.text.split("\n")
        if passage.query >= 0 or passage.key >= 0:
            yield [text_of(passage.span), passage.query, passage.key]
            if len(lines) > 1:
                yield ["\n", -1, -1]
        else:
            spelled = (
                text_of(replace(passage.span, text=line)) if line.strip(" ") else line
                for line in lines
            )
            yield ["\n".join(spelled), -1, -1]


def _named_runs(scene: Scene, pieces: Iterable[list[Any]]) -> list[list[Any]]:
    """Join the neighbouring pieces of a word or span; name a span before its first run, unless it begins with its name."""
    runs: list[list[Any]] = []
    between = ""
    for text, query, key in pieces:
        if query < 0 and key < 0:
            between += text
            continue
        if runs and runs[-1][1:] == [query, key]:
            runs[-1][0] += between + text
        else:
            runs += [[between, -1, -1], [text, query, key]]
        between = ""
    runs.append([between, -1, -1])
    if scene.unit == "words":
        return [run for run in runs if run[0]]
    unnamed = {n for n, outside in enumerate(scene.queries.special) if not outside}
    before = ""
    named: list[list[Any]] = []
    for run in runs:
        text, query, _ = run
        if query in unnamed:
            unnamed.remove(query)
            name = text_of(scene.queries.names[query])
            bare = _REPEATED.sub("", name)
            beginnings = (one.replace("␣", " ").strip() for one in (text, before + text))
            if not any(one.startswith(bare) for one in beginnings):
                # not within a word that begins in another span
                in_word = before[-1:].isalnum() and text[:1].isalnum()
                named.insert(len(named) - in_word, [f"[{name}] ", -1, -1])
        before += text
        if text:
            named.append(run)
    return named


def _head(indices: tuple[int, int], head: WalkHead, container: Container) -> Node:
    later = later_steps(head)
    plain_scale = None
    if head.scale is not None and not later:
        plain_scale = float(np.float32(head.scale))
    stages = {name: head.stages[name] for name in _STAGES if name in head.stages and head.exact}
    scaling = []
    if head.scale is not None:
        scaling = [scale_text(head.scale, head.width, digits=3), *later]
    return {
        "at": list(indices),
        "layer": head.layer,
        "head": head.head,
        "name": head.name,
        "scaling": " ".join(scaling),
        "stages": container.stages(stages, scale=plain_scale),
        "start": head.start,
        "masked": sorted(head.masked_rows),
        "chosen": head.chosen,
        "exact": head.exact,
        "map": _map(head, container),
    }


def _map(head: WalkHead, container: Container) -> Node | None:
    if head.map is None or not head.exact:
        return None
    return {
        "queries": list(head.map.queries),
        "keys": list(head.map.keys),
        "weights": container.exact(np.where(head.map.weights == 0, np.nan, head.map.weights)),
    }


def _group(
    scene: Scene, heads: Mapping[tuple[int, int], WalkHead], container: Container, *, exact: bool
) -> Iterator[Node]:
    """Yield the stacked sources, statistics and maps of heads with equal kinds of them."""
    by_shape: dict[Any, dict[tuple[int, int], WalkHead]] = {}
    for indices, head in heads.items():
        sources = None
        if head.sources is not None:
            # another pass may have computed the matrix, with other last digits
            is_in_matrix = exact and lists_its_matrix(scene, head)
            shape = head.sources.places.shape
            sources = (shape, head.sources.by, *head.sources.measures, is_in_matrix)
        if head.map is None or exact:
            runs = None
        else:
            runs = (tuple(head.map.queries), tuple(head.map.keys))
        by_shape.setdefault((sources, tuple(head.rows), runs), {})[indices] = head
    for alike in by_shape.values():
        yield _alike(scene, alike, container, exact=exact)


def _alike(
    scene: Scene, heads: Mapping[tuple[int, int], WalkHead], container: Container, *, exact: bool
) -> Node:
    first_head = next(iter(heads.values()))
    listed = _listed(list(heads.values()))
    node: Node = {
        "units": [list(indices) for indices in heads],
        "rows": listed.tolist(),
        "exact": exact,
    }

    if first_head.sources is not None and listed.size:
        ranked = [head.sources for head in heads.values() if head.sources is not None]
        # (ranks, heads, rows)
        places = np.stack([sources.places[listed].T for sources in ranked], axis=1)
        size = np.int16 if len(scene.sources.positions) < 1 << 15 else np.int32
        node["by"] = first_head.sources.by
        node["leftOut"] = list(first_head.sources.left_out)
        # how far each source is back, which repeats more often than where it is
        node["back"] = container.add((listed - places).astype(size))
        measures = [
            name
            for name in first_head.sources.measures
            if exact or name in ("weight", first_head.sources.by)
        ]
        stacked = {
            name: np.stack([sources.measures[name][listed].T for sources in ranked], axis=1)
            for name in measures
        }
        if exact:
            node["measures"] = _exact_measures(scene, heads, stacked, places, listed, container)
        else:
            node["measures"] = {
                name: container.falling(numbers, _WEIGHT)
                if name == first_head.sources.by
                else container.rounded(numbers, _WEIGHT)
                for name, numbers in stacked.items()
            }
    names = [name for name in first_head.rows if name in _PHRASES and (exact or name in _SUMMARY)]
    node["statistics"] = {}
    for name in names if listed.size else ():
        numbers = np.stack([head.rows[name][listed] for head in heads.values()])
        reference = None
        if not exact:
            reference = container.rounded(numbers, DECIMALS.get(name, _STATISTIC))
        else:
            keys = np.broadcast_to(keys_of_rows(scene, name)[listed], numbers.shape)
            if not are_in_matrices(list(heads.values()), keys, listed, numbers):
                reference = container.exact(numbers)
        node["statistics"][name] = reference
    if first_head.map is not None and not exact:
        maps = np.stack([head.map.weights for head in heads.values() if head.map is not None])
        # NaN is kept apart from weights that are rounded to 0
        maps = np.where(maps == 0, np.nan, maps)
        axes = {"queries": list(first_head.map.queries), "keys": list(first_head.map.keys)}
        node["map"] = {**axes, "weights": container.rounded(maps, _WEIGHT)}
    return node


def _listed(heads: Sequence[WalkHead]) -> Array:
    """Return the indices of queries that any of these heads lists anything of."""
    is_listed = np.zeros(0, dtype=bool)
    for head in heads:
        arrays: list[Array] = [np.isfinite(array) for array in head.rows.values()]
        if head.sources is not None:
            arrays.append(np.asarray((head.sources.places >= 0).any(axis=1)))
        for array in arrays:
            is_listed = array if is_listed.size != array.size else is_listed | array
    return np.flatnonzero(is_listed)


def _exact_measures(
    scene: Scene,
    heads: Mapping[tuple[int, int], WalkHead],
    measures: Mapping[str, Array],
    places: Array,
    rows: Array,
    container: Container,
) -> Node:
    """Return references to the numbers of sources, (ranks, heads, rows), that the page can't compute.

    None stands for weights that are in matrices; other measures are norms of values if products with these are exact.
    """
    keys = keys_of_sources(scene, places)
    weights = measures["weight"]
    node: Node = {}
    for name, numbers in measures.items():
        if name == "weight":
            is_known = are_in_matrices(list(heads.values()), keys, rows, numbers)
            node[name] = None if is_known else container.exact(numbers)
        elif (found := norms(weights, numbers, keys, len(scene.keys.positions))) is not None:
            node[name] = {"norms": container.exact(found)}
        else:
            node[name] = container.exact(numbers)
    return node
