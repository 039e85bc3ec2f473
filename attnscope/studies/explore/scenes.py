"""Make scenes of a walk from findings about a text."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from msgspec import structs

from attnscope.base.errors import UsageError
from attnscope.base.system.escape import quote_for_shell
from attnscope.checkpoints.source import DEFAULT_MODEL
from attnscope.engines.arrays.files import ENDINGS
from attnscope.findings.head_averages import HEAD_AVERAGES
from attnscope.findings.head_findings import RoleValues
from attnscope.findings.head_roles import HEAD_ROLES
from attnscope.findings.heads import HeadRef, HeadReport, Top
from attnscope.findings.images import CLS, IN_MEMORY, kinds_of
from attnscope.findings.predictions import Prediction, PredictionKind
from attnscope.findings.provenance import MaskUse, Provenance
from attnscope.findings.row_statistics import ROW_STATISTICS
from attnscope.findings.run import Report, TextReport
from attnscope.findings.sound import Sound
from attnscope.findings.tokens import BEGINS_WORD, MASKS, Token
from attnscope.request.masks.expression import MASK_FILES, mask_files, parse_mask
from attnscope.studies.screens.header import report_header, short_path
from attnscope.studies.screens.pictures import kind_name, picture_scale
from attnscope.studies.screens.sound import sound_of_keys
from attnscope.views.axes import source_kind, token_axis
from attnscope.views.parts import Facts, joined
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, Spans, token_span
from attnscope.views.walk.scene import (
    UNITS,
    WALKED,
    Forecast,
    HeadNumber,
    Number,
    Passage,
    RankedSources,
    RunCommand,
    Scene,
    ScenePicture,
    SceneRoles,
    WalkHead,
)

Rows = Mapping[str, np.ndarray]
# Name, meaning and measure (see HeadNumber) of the numbers along units that records have, by their field and path in it.
_OF_UNITS = {
    **{("heads", average.name): (average.name, average.meaning, "") for average in HEAD_AVERAGES},
    ("effects", "kl"): (
        "effect (kl)",
        "KL(before ‖ after) of the predictions in bits if the head is cut.",
        "kl",
    ),
    ("effects", "hidden"): (
        "effect (hidden)",
        "Relative change of the final hidden state if the head is cut.",
        "hidden",
    ),
}


def text_scene(
    report: Report,
    text: TextReport,
    command: RunCommand | None = None,
    sizes: tuple[Sequence[Number], Sequence[Number]] | None = None,
    heads: Sequence[HeadReport] | None = None,
) -> Scene:
    """Return the scene of one text of a report.

    Args:
        command: See Scene; None for the report's own.
        sizes: All layers and heads of the model; None for those of the report.
        heads: Heads to walk through; None for those of the text.
    """
    heads = list(text.heads) if heads is None else heads
    axes = sizes or head_axes([head.ref for head in heads])
    places = {(axes[0].index(head.layer), axes[1].index(head.head)): head for head in heads}
    rows = {indices: rows_of(head) for indices, head in places.items()}
    chosen_heads = [indices for indices, head in places.items() if head.chosen]
    if sizes:
        stages = set(WALKED)
    else:
        stages = {stage for head in heads for stage in head.stages}
    scene = scene_of(report, text, axes, rows, stages)
    if command is not None:
        scene = replace(scene, command=command)
    width = max(
        (head.stages["output"].shape[1] for head in heads if "output" in head.stages), default=0
    )
    if chosen_heads:
        first = chosen_heads[0]
    else:
        first = min(places, default=(0, 0))
    return replace(scene, width=width, first=first)


def scene_of(
    report: Report,
    text: TextReport,
    sizes: tuple[Sequence[Number], Sequence[Number]],
    rows: Mapping[tuple[int, int], Rows],
    stages: Container[str],
) -> Scene:
    """Return the scene of one text, with statistics of its heads.

    Args:
        text: Its heads are not looked at.
        sizes: Numbers of the layers, and of the heads.
        rows: Row statistics by indices of layer and head.
        stages: Stages that some head has.
    """
    queries = text.queries or list(range(len(text.tokens)))
    keys = text.keys or list(range(len(text.sources)))
    kinds = kinds_of(text.images, text.sources) if text.images else {}
    pictures = list({grid.image: grid.name for grid in text.images}.values())
    given = text.text if text.prompt is None else text.prompt
    generated = sum(token.made for token in text.tokens)
    settings = DisplaySettings(2, options=False)
    header = report_header(
        report.provenance, report.mask, settings, cuts=report.cuts, labelled=True
    )
    return Scene(
        model=report.provenance.model,
        facts=[
            (name, joined(value))
            for part in header
            if isinstance(part, Facts)
            for name, value in part.lines
        ],
        notes=text.notes,
        layers=sizes[0],
        heads=sizes[1],
        queries=token_axis("query", text.tokens, queries),
        keys=token_axis(source_kind(text), text.sources, keys),
        sources=token_axis(source_kind(text), text.sources),
        passages=list(passages(text, (queries, keys))),
        stages=[stage for stage in WALKED if stage in stages] or ["weights"],
        aligned=text.context is None,
        predictions=[forecast(text, prediction) for prediction in text.predictions],
        start=_start(text, queries),
        pictures=[ScenePicture(grid.prefix, grid.pixels, grid.tokens) for grid in text.images],
        kinds=[(kind_name(text, kind), positions) for kind, positions in kinds.items()],
        picture_scale=picture_scale(text) if text.images else None,
        levels=_levels(text, keys),
        numbers=head_numbers(
            rows, (len(sizes[0]), len(sizes[1])), counted_rows(text.tokens, text.queries)
        ),
        # A later window of a sound is chosen by a second of --query or --key alone.
        command=None
        if text.sound is not None and text.sound.start > 0
        else run_command(
            report.provenance,
            report.mask,
            given,
            text.pair,
            pictures=pictures,
            generated=generated,
            text_argument=None if text.sound is None else _sound_options(text, text.sound),
        ),
        mask=report.mask.used,
        random=report.provenance.weights == "random",
        units=units_known(words="weights" in stages, spans=text.spans is not None),
    )


def _start(text: TextReport, queries: Sequence[int]) -> int | None:
    """Return the row to begin at: the first that a prediction is about, else a mask token, else the last word."""
    if text.images and (
        cls := [n for n, query in enumerate(queries) if text.tokens[query].piece == CLS]
    ):
        return cls[0]
    about = [
        prediction.position for prediction in text.predictions if prediction.position in queries
    ]
    if about:
        return queries.index(about[0])
    # a model without an output head predicts nothing at its mask token
    masks = [n for n, query in enumerate(queries) if text.tokens[query].piece in MASKS]
    if masks:
        return masks[0]
    return next(
        (n for n in range(len(queries) - 1, -1, -1) if not text.tokens[queries[n]].special), None
    )


def _levels(text: TextReport, keys: Sequence[int]) -> list[float]:
    """Return the loudness of every key, 0 for a token before the frames; empty if keys are no frames."""
    sound = sound_of_keys(text)
    if sound is None:
        return []
    return [float(sound.levels[key - sound.before]) if key >= sound.before else 0.0 for key in keys]


def units_known(*, words: bool, spans: bool) -> list[str]:
    """Return the units that positions can have: tokens, words, spans."""
    return [unit for unit, is_known in zip(UNITS, (True, words, spans), strict=True) if is_known]


def ordered(numbers: Iterable[Number]) -> list[Number]:
    """Return numbers of layers or heads, unique and ascending; `mean` is last."""
    return sorted(dict.fromkeys(numbers), key=lambda number: (isinstance(number, str), number))


def head_axes(units: Sequence[HeadRef]) -> tuple[list[Number], list[Number]]:
    """Return the numbers of the layers, and of the heads."""
    return ordered(unit.layer for unit in units), ordered(unit.head for unit in units)


def stages_of(stages: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the stages in the order of their computation."""
    return {name: stages[name] for name in WALKED if name in stages}


def unit_numbers(
    record: object, places: Sequence[tuple[int, int]], shape: tuple[int, int]
) -> list[HeadNumber]:
    """Return the numbers of a record of a dump that are along units, for every head."""
    numbers = []
    for (part, array), (name, meaning, measure) in _OF_UNITS.items():
        values = getattr(getattr(record, part), array, None)
        if values is not None:
            grid = np.full(shape, np.nan, dtype=np.float32)
            grid[tuple(np.array(places).T)] = values
            numbers.append(HeadNumber(name, meaning, grid, measure))
    return numbers


def walk_head(text: TextReport, head: HeadReport) -> WalkHead:
    """Return a head of a report as a walk shows it."""
    fully_masked = set(head.fully_masked)
    masked = frozenset(n for n, position in enumerate(text.queries) if position in fully_masked)
    sources = None
    if text.queries and head.top.keys.shape[1]:
        sources = ranked_sources(head.top)
    return WalkHead(
        head.layer,
        head.head,
        head.scale,
        head.softcap,
        head.bias,
        stages_of(head.stages),
        masked_rows=masked,
        sources=sources,
        rows=rows_of(head) if text.queries else {},
        map=head.pooled,
        chosen=head.chosen or "",
        score_mod=head.score_mod,
        width=head.head_width,
    )


def ranked_sources(top: Top) -> RankedSources:
    """Return the strongest sources of every query."""
    return RankedSources(top.by, top.keys, top.measures, top.left_out)


def rows_of(head: HeadReport) -> dict[str, np.ndarray]:
    """Return the known row statistics, by name."""
    values = {} if head.rows is None else structs.asdict(head.rows)
    return {
        name: row for name, row in values.items() if row is not None and not np.isnan(row).all()
    }


def counted_rows(tokens: Sequence[Token], queries: Sequence[int]) -> np.ndarray:
    """Return which rows an average counts, bool: words, or all rows if there are none."""
    words = np.array([not tokens[position].special for position in queries], dtype=bool)
    return words if words.any() else ~words


def head_numbers(
    rows: Mapping[tuple[int, int], Rows], shape: tuple[int, int], counted: np.ndarray
) -> list[HeadNumber]:
    """Return row statistics, averaged or the largest, for every head."""
    numbers = []
    for statistic in ROW_STATISTICS:
        values = np.full(shape, np.nan, dtype=np.float32)
        for indices, head_rows in rows.items():
            row = head_rows.get(statistic.name)
            if row is not None and len(row) == len(counted):
                visible = row[counted & np.isfinite(row)]
                if visible.size:
                    values[indices] = (
                        visible.max() if statistic.largest else visible.mean(dtype=np.float64)
                    )
        if np.isfinite(values).any():
            numbers.append(HeadNumber(statistic.name, statistic.of_head, values))
    return numbers


def passages(
    text: TextReport, shown_positions: tuple[Sequence[int], Sequence[int]]
) -> Iterator[Passage]:
    """Yield a text piece by piece, its tokens with what is between them, and then the context.

    The patches of each picture, which are drawn elsewhere, and the placeholder that they have in the text are its name.

    Args:
        shown_positions: Positions of the queries and of the keys.
    """
    texts = text.text, text.pair
    rows, columns = (
        {position: n for n, position in enumerate(positions)} for positions in shown_positions
    )
    patches = {
        int(position): grid.prefix for grid in text.images for position in grid.tokens.ravel()
    }
    named: set[str] = set()
    behind_picture = False
    reached = [0, 0]
    for position, token in enumerate(text.tokens):
        if position in patches:
            if patches[position] not in named:
                yield Passage(Span(f" [{patches[position]}] "))
            named.add(patches[position])
            behind_picture = True
            continue
        cell = rows.get(position, -1), columns.get(position, -1) if text.context is None else -1
        characters: str = texts[token.segment] or "" if token.segment < 2 else ""
        name = token_span(text.tokens, position)
        if token.start is None or token.end is None or token.end <= reached[token.segment]:
            if token.special and position and text.tokens[position - 1].special is False:
                yield Passage(Span(" "))
            if token.made and token.piece.startswith(BEGINS_WORD):
                yield Passage(Span(" "))
            yield Passage(name, *cell)
            is_frame = text.sound is not None and token.start is None
            if (token.special or is_frame) and position < len(text.tokens) - 1:
                yield Passage(Span(" "))
            continue
        at = max(token.start, reached[token.segment])
        if at > reached[token.segment]:
            between = characters[reached[token.segment] : at]
            yield Passage(
                Span(
                    between[len(between.rstrip()) :] if behind_picture else between,
                    origin="untrusted",
                )
            )
        behind_picture = False
        reached[token.segment] = token.end
        # Special tokens around a picture have the characters of its placeholder.
        spelled = "" if text.images and token.special else characters[at : token.end]
        yield Passage(Span(spelled or name.text, name.look, name.origin), *cell)
    for segment, segment_text in enumerate(texts):
        rest = (segment_text or "")[reached[segment] :]
        unheard = text.sound is not None and not reached[segment]  # the name of a file of sound
        if (
            rest
            and not (behind_picture or unheard)
            and any(token.segment == segment for token in text.tokens)
        ):
            yield Passage(Span(rest, origin="untrusted"))
    for position in range(len(text.context or ())):
        yield Passage(Span("\n" if position == 0 else " "))
        yield Passage(token_span(text.context or (), position), -1, columns.get(position, -1))


def prediction_title(kind: PredictionKind, tokens: Sequence[Token], position: int) -> Spans:
    """Say where a prediction is: `after 10 too`, `in place of 4 [MASK]`."""
    where = "after " if kind == "next" else "in place of "
    return (Span(where, "dim"), Span(f"{position} "), token_span(tokens, position))


def forecast(text: TextReport, prediction: Prediction) -> Forecast:
    """Return a prediction as a walk shows it."""
    return Forecast(
        prediction_title(prediction.kind, text.tokens, prediction.position),
        [Span(token.text, "", "token") for token in prediction.tokens],
        [token.probability for token in prediction.tokens],
        [token.logit for token in prediction.tokens],
        position=prediction.position,
    )


def head_roles(
    roles: Sequence[RoleValues],
    main_roles: Sequence[Sequence[str | None]],
    measured: str,
    sizes: tuple[Sequence[Number], Sequence[Number]],
) -> SceneRoles:
    """Return the roles of a scene's heads; `sizes` are the numbers of its layers, and of its heads."""
    layers, heads = sizes
    colours = {role.name: role.colour for role in HEAD_ROLES}
    names = [role.name for role in roles]
    main = np.full((len(layers), len(heads)), -1)
    strength = np.full(main.shape, np.nan, dtype=np.float32)
    for (i, layer), (j, head) in product(enumerate(layers), enumerate(heads)):
        if (
            isinstance(layer, int)
            and isinstance(head, int)
            and (name := main_roles[layer][head]) in names
        ):
            main[i, j] = names.index(name)
            strength[i, j] = roles[main[i, j]].values[layer, head]
    return SceneRoles(
        names,
        [role.letter for role in roles],
        [colours.get(name, "#888888") for name in names],
        [role.meaning for role in roles],
        [role.clear for role in roles],
        main,
        strength,
        measured,
    )


def _sound_options(text: TextReport, sound: Sound) -> str:
    """Return what names a sound on a command line, after the text that was said if it was given."""
    told = f"{quote_for_shell(text.text)} " if sound.told else ""
    return f"{told}--audio {quote_for_shell(sound.name)}"


def run_command(
    provenance: Provenance,
    mask: MaskUse,
    text: str,
    pair: str | None = None,
    context: str | None = None,
    text_argument: str | None = None,
    pictures: Sequence[str] = (),
    generated: int = 0,
) -> RunCommand | None:
    """Return the command that repeats a run, as far as a report knows it; None if arrays or pictures in memory were
    given, or a function or array as a mask.

    Args:
        text_argument: How the command names the text, such as `--file texts.txt`; None for the text itself.
        pictures: Their names.
        generated: Number of tokens that the model generated.
    """
    if mask.used != mask.own and not _is_typed(mask.used):
        return None
    if provenance.weights == "given":
        from_file = provenance.family == "arrays" and provenance.model.lower().endswith(ENDINGS)
        if not from_file:
            return None
        path = quote_for_shell(provenance.model)
        shared_path = quote_for_shell(_shared(provenance.model))
        return RunCommand(f"--qkv {path}", mask_options(mask), shared_words=f"--qkv {shared_path}")
    if any(IN_MEMORY.fullmatch(name) for name in pictures):
        return None
    piped = text_argument is None and text.startswith("-")
    words = ["-" if piped else quote_for_shell(text) if text_argument is None else text_argument]
    if pictures and not text:  # of a vision model
        words = []
    options = {"--pair": pair, "--context": context}
    if provenance.family == "config":
        options["--config"] = provenance.model
    elif provenance.model != DEFAULT_MODEL:
        options["--model"] = provenance.model
    options |= {"--adapter": provenance.adapter, "--tokenizer": provenance.tokenizer}
    options |= {"--engine": provenance.engine, "--dtype": provenance.dtype}
    options["--part"] = provenance.part
    for key in provenance.ignored_keys:
        words += ["--ignore-key", quote_for_shell(key)]
    typed_options = {
        option: value
        for option, value in options.items()
        if value is not None and value not in ("native", "float32")
    }

    def spell(values: Mapping[str, str], files: Sequence[str]) -> str:
        quoted = [f"--image {quote_for_shell(file)}" for file in files]
        quoted += [f"{option} {quote_for_shell(value)}" for option, value in values.items()]
        return " ".join([*words, *quoted, *([f"--generate {generated}"] if generated else [])])

    shared_options = {
        option: _shared(value) if option in _PATHS else value
        for option, value in typed_options.items()
    }
    printed_text = quote_for_shell(text) if piped else None
    shared_pictures = [_shared(file) for file in pictures]
    shared_words = spell(shared_options, shared_pictures)
    return RunCommand(
        spell(typed_options, pictures), mask_options(mask), printed_text, shared_words
    )


_PATHS = ("--config", "--model", "--adapter", "--tokenizer")


def _shared(path: str) -> str:
    """Name a file or folder for readers on other machines: an absolute path by its end."""
    if Path(path).is_absolute():
        return short_path(path)
    return path


def _is_typed(mask: str) -> bool:
    """Tell whether a mask is an expression of words and files, which Python's functions and arrays are not."""
    try:
        file_names = mask_files(parse_mask(mask))
    except UsageError:
        return False
    return all(name.endswith(MASK_FILES) for name in file_names)


def mask_options(mask: MaskUse) -> dict[str, str]:
    """Return the options that name a mask, with their quoted values; none for the model's own."""
    if mask.what_if is None and mask.used == mask.own:
        return {}
    options = {
        "--mask": None if mask.used == mask.own else mask.used,
        "--what-if": mask.what_if if mask.what_if == "same-scores" else None,
        "--hide": mask.hidden,
    }
    return {
        option: quote_for_shell(value) for option, value in options.items() if value is not None
    }
