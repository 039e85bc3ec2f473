"""One number for every head: the weight that some tokens give to others, or a statistic of their rows."""

from collections.abc import Sequence
from dataclasses import replace as replace_source
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import UsageError, arg
from attnscope.findings.arrays import Array
from attnscope.findings.head_findings import HeadScores, KeyContrast, MeasuredText
from attnscope.findings.merge_pieces import whole_words
from attnscope.findings.row_statistics import LAYER_STATISTICS, ROW_STATISTICS
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import PositionSelection
from attnscope.run.pass_plan import batches_by_length, plan_passes
from attnscope.run.plan import plan_texts
from attnscope.run.session import (
    Session,
    describe_mask_use,
    forbidden_cells,
    forward,
    prepare,
    provenance,
    warnings_of,
)
from attnscope.run.text_plan import TextPlan
from attnscope.studies.heads.run import ShownHeads, shown_heads

if TYPE_CHECKING:
    from attnscope.model.tile import Recorder

_OF_SEVERAL = ", summed over keys, averaged over queries"
OF_KEYS = {
    "weight": f"α from query to key{_OF_SEVERAL}.",
    "value": f"Contribution α·‖v‖ of key to query{_OF_SEVERAL}.",
    "projected": f"Contribution α·‖v W_O‖ of key to query{_OF_SEVERAL}.",
}
MEASURES = (
    OF_KEYS
    | {statistic.name: statistic.of_head for statistic in ROW_STATISTICS}
    | {name: statistic.of_head for name, statistic in LAYER_STATISTICS.items()}
)
_LARGEST = {statistic.name for statistic in ROW_STATISTICS if statistic.largest}


def ask_heads(
    run: RunConfig,
    measure: str,
    session: Session | None = None,
    against: PositionSelection | None = None,
    mixing: bool = False,
) -> HeadScores:
    """Measure one number for every head: one of MEASURES, minus that of other keys.

    In layers without softmax, `weight` is of shares of |M|; also in those that have attention as well if `mixing`.
    """
    session = session or Session(run.texts)
    source, run = session.open(run)
    if measure == "max_score" and source.stages is not None:
        hint = f"use {arg('measure', 'entropy')}, or give queries and keys"
        raise UsageError(
            "given weights come without scores", where=arg("measure", measure), hint=hint
        )
    run = replace(run, by=measure) if measure in OF_KEYS else run
    texts = plan_texts(replace(run, window=None, pool=None), source)
    rows = [_rows(run, text) for text in texts]
    groups = batches_by_length([max(len(text.tokens), len(text.context or ())) for text in texts])
    unchanged = run.own_mask and run.hide is None and run.scale is None and not run.cuts
    if source.mixing and measure == "weight" and unchanged:
        heads = shown_heads(source, mixing=mixing)
    else:
        heads = shown_heads(replace_source(source, mixing={}))
    longest = max(
        len(side) for text in texts for side in (text.tokens, text.context or text.tokens)
    )
    record_bytes = max(map(len, groups)) * prod(heads.shape) * longest * 4
    if heads.attention or not heads.shares:
        planned_source = source
    else:
        planned_source = replace_source(source, layers=None)
    plans = plan_passes(
        run, planned_source, [[texts[n] for n in group] for group in groups], record_bytes
    )
    model, device = session.load(plans[0], len(plans))
    subtracted_keys = [None if against is None else _against(against, run, text) for text in texts]
    largest = measure in _LARGEST
    count = np.zeros(heads.shape)
    engine = None
    total = np.full((2, *heads.shape), -np.inf if largest else 0.0)
    for group, plan in zip(groups, plans, strict=True):
        batch, engine = prepare(plan, model, device)
        keys = [texts[n].keys for n in group], [subtracted_keys[n] or [] for n in group]
        question = _Question(measure, batch, [rows[n] for n in group], keys, heads)
        of_attention = {layer: question.recorders[layer] for layer in heads.attention}
        of_shares = {layer: question.recorders[layer] for layer in heads.shares}
        step = ("measuring heads", session.progress)
        forward(plan, batch, engine, of_attention, step, share_recorders=of_shares)
        sums, counts = question.sums()
        total = np.maximum(total, sums) if largest else total + sums
        count = count + counts
    assert engine is not None
    if measure in LAYER_STATISTICS and not count.any():
        raise UsageError("no layer of the model has one", where=arg("measure", measure))
    with np.errstate(invalid="ignore", divide="ignore"):
        plus, minus_values = np.where(
            count > 0, total if largest else total / count, np.nan
        ).astype(np.float32)
    measured = []
    for text, here, minus in zip(texts, rows, subtracted_keys, strict=True):
        places = here, text.keys if measure in OF_KEYS else None, minus
        measured.append(
            MeasuredText(run.texts[text.number].text, None, text.tokens, text.context, *places)
        )
    notes = [note for text in texts for note in text.notes]
    mask = describe_mask_use(source, run, engine.describe_mask(), texts, plans[0].matrices)
    forbidden = [forbidden_cells(source, run, mask, text, plans[0].matrices) for text in texts]
    if forbidden[0] is not None and all(forbidden):
        notes.append(forbidden[0])
    values = plus
    contrast = None
    meaning = MEASURES[measure]
    one = (1, 1, 1)
    if all(
        (len(text.queries), len(text.keys or ()), len(text.against or [0])) == one
        for text in measured
    ):
        meaning = meaning.replace(_OF_SEVERAL, "")
    if against is not None:
        values = plus - minus_values
        contrast = KeyContrast(plus, minus_values)
        meaning = f"{meaning[:-1]}; key minus against."
    origin = provenance(source, run, device, warnings=warnings_of(texts))
    about = origin, mask, measure, meaning, values, measured, notes, contrast
    return HeadScores(*about, shares=heads.shares, channels=heads.channels)


def _against(against: PositionSelection, run: RunConfig, text: TextPlan) -> list[int]:
    """Return the keys whose weight is subtracted."""
    text_input = run.texts[text.number]
    words: tuple[str | None, ...] = text_input.text, text_input.pair
    sources = text.tokens
    spans = text.spans
    if text.context is not None:
        sources = text.context
        words = (text_input.context,)
        spans = None
    positions = sorted(against.find(sources, words, arg("against"), spans=spans))
    if run.words:
        return whole_words(text.tokens, positions)
    return positions


def _rows(run: RunConfig, text: TextPlan) -> list[int]:
    """Return the named rows, or all words; all tokens of a text without words."""
    words = [position for position, token in enumerate(text.tokens) if not token.special]
    if run.query is not None:
        return text.queries
    return words or list(range(len(text.tokens)))


class _Question:
    """The recorders of one batch of texts; `keys` are those of every text, and those that are subtracted."""

    def __init__(
        self,
        measure: str,
        batch: Any,
        rows: Sequence[list[int]],
        keys: tuple[Sequence[list[int]], Sequence[list[int]]],
        shown: ShownHeads,
    ) -> None:
        import torch

        from attnscope.model.recorders import ColumnRecorder, RowRecorder

        self._measure = measure
        device = batch.tokens.real.device
        every = sorted({row for text_rows in rows for row in text_rows})
        shown_rows = torch.zeros_like(batch.tokens.real)
        wanted = torch.zeros(2, *batch.sources.real.shape, dtype=torch.bool, device=device)
        for index, text_rows in enumerate(rows):
            shown_rows[index, torch.tensor(text_rows, device=device)] = True
            for side in (0, 1):
                wanted[
                    side, index, torch.tensor(keys[side][index], dtype=torch.int64, device=device)
                ] = True
        self._shown = shown_rows[:, every].cpu()
        self._wanted = wanted.cpu()
        counts = {**shown.attention, **shown.shares}
        names = () if measure in OF_KEYS or measure in LAYER_STATISTICS else (measure,)
        self._sizes = shown.shape
        self._rows = {
            layer: RowRecorder(range(count), every, batch.sources, names)
            for layer, count in counts.items()
        }
        self._columns: dict[int, ColumnRecorder] = {}
        if measure in OF_KEYS:
            for layer, count in counts.items():
                self._columns[layer] = ColumnRecorder(
                    range(count), every, shown_rows, batch.sources, by=measure
                )
        self.recorders: dict[int, list[Recorder]] = {
            layer: [rows] for layer, rows in self._rows.items()
        }
        for layer, columns in self._columns.items():
            self.recorders[layer].append(columns)

    def sums(self) -> tuple[Array, Array]:
        """Return sums over rows for both sets of keys, (2, layers, heads), and the number of rows, (layers, heads).

        A statistic of whole rows has one sum, twice, or its largest value. Fully masked rows do not count.
        """
        import torch

        # Of a layer without attention over tokens, no rows are counted.
        totals = np.zeros((2, *self._sizes))
        counts = np.zeros(self._sizes)
        for layer, rows in self._rows.items():
            live = self._shown[:, None] & ~rows.fully_masked.cpu()  # (B, H, rows)
            if self._columns:
                of_keys = self._columns[layer].compute().cpu().double()  # (B, H, K)
                total = (of_keys * self._wanted[:, :, None]).sum((1, 3))  # (2, H)
                count = live.sum((0, 2))
            elif self._measure in LAYER_STATISTICS and self._measure not in rows.of_layers:
                continue
            else:
                # (B, H, rows)
                values = (rows.recorded | rows.of_layers)[self._measure].cpu().double()
                is_known = live & ~values.isnan()
                count = is_known.sum((0, 2))
                if self._measure in _LARGEST:
                    total = values.masked_fill(~is_known, -torch.inf).amax((0, 2)).expand(2, -1)
                else:
                    total = (values.nan_to_num(0.0) * is_known).sum((0, 2)).expand(2, -1)
            totals[:, layer, : total.shape[-1]] = total.numpy()
            counts[layer, : len(count)] = count.numpy()
        return totals, counts
