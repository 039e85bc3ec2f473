"""The numbers that lessons are made of: the explanation of one row, and the weights of all heads of its layer."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import UsageError, arg
from attnscope.findings.explain import Explanation
from attnscope.findings.run import Report, TextReport
from attnscope.findings.tokens import spell_piece
from attnscope.request.masks.expression import parse_mask
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import parse_indices, parse_positions
from attnscope.run.session import ProgressCallback, Session, inspect
from attnscope.studies.explain.arithmetic import Numbers, scaled, softmax
from attnscope.studies.explain.run import explain

_LONGEST = 64  # tokens of a lesson's text
CAUSAL = "causal"
BIDIRECTIONAL = "bidirectional"


@dataclass
class Material:
    """One text, row and head. Everything but the explanation is computed when a lesson asks for it."""

    run: RunConfig  # of the row: one text, layer, head and query
    explanation: Explanation
    session: Session
    temperature: float = 1.0

    @property
    def layer(self) -> int:
        """The layer."""
        return self.explanation.layer

    @property
    def head(self) -> int:
        """The head."""
        return self.explanation.head

    @property
    def query(self) -> int:
        """Position of the row's token."""
        return self.explanation.query

    @property
    def labels(self) -> list[str]:
        """Every key as a screen names it, such as `1 bank`."""
        return [
            f"{key} {spell_piece(self.explanation.sources, key)}" for key in self.explanation.keys
        ]

    @property
    def row_label(self) -> str:
        """The row's token as a screen names it."""
        return f"{self.query} {spell_piece(self.explanation.tokens, self.query)}"

    @property
    def width(self) -> int:
        """Dimensions of queries and keys, E."""
        return self.explanation.head_width

    @cached_property
    def scores(self) -> Numbers:
        """q·k of every key, (K,)."""
        return self.explanation.row.scores.astype(np.float64)

    @cached_property
    def times_scale(self) -> Numbers:
        """Scores × scale, (K,), before a soft-cap or position bias."""
        return self.explanation.row.times_scale.astype(np.float64)

    @cached_property
    def scaled(self) -> Numbers:
        """Input of the softmax before the mask, divided by the temperature, (K,)."""
        return self.explanation.row.scaled.astype(np.float64) / self.temperature

    @cached_property
    def unscaled(self) -> Numbers:
        """Input of the softmax without the scale, before the mask, divided by the temperature, (K,)."""
        row = self.explanation.row
        bias = None if row.bias is None else row.bias.astype(np.float64)
        _, _, unscaled = scaled(self.scores, 1.0, self.explanation.softcap, bias)
        return unscaled / self.temperature

    @cached_property
    def allowed(self) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Whether the mask allows each key, (K,)."""
        return np.isfinite(self.explanation.row.masked)

    @cached_property
    def weights(self) -> Numbers:
        """The row's weights, (K,): the model's, or at another temperature the softmax of its scores."""
        if self.temperature == 1.0:
            return np.nan_to_num(self.explanation.row.weights.astype(np.float64))
        return softmax(np.where(self.allowed, self.scaled, -np.inf))

    @cached_property
    def query_vector(self) -> Numbers:
        """The query as attention used it, (E,)."""
        return self.explanation.query_steps[-1].values.astype(np.float64)

    @cached_property
    def layer_weights(self) -> Numbers:
        """Weights of all heads of the layer under the run's mask, (H, Q, K)."""
        return self.weights_under(None)

    def text_report(self, mask: str | None = None) -> TextReport:
        """Return all heads of the layer under a mask, None for the run's own."""
        return self.report(mask, self.run.texts).texts[0]

    def report(
        self, mask: str | None, texts: tuple[TextInput, ...], *, show_padding: bool = False
    ) -> Report:
        """Return all heads of the layer over texts."""
        changes: dict[str, Any] = {"show_padding": show_padding}
        if mask is not None:
            changes["mask"] = parse_mask(mask)
        run = replace(
            self.run,
            texts=texts,
            query=None,
            key=None,
            layer=parse_indices(str(self.layer), "layer"),
            head=parse_indices("all", "head"),
            stages=("masked", "weights"),
            **changes,
        )
        return inspect(run, self.session)

    def weights_under(self, mask: str | None) -> Numbers:
        """Return weights of all heads of the layer, (H, Q, K), if the whole model runs under a mask."""
        heads = self.text_report(mask).heads
        return np.nan_to_num(
            np.stack([head.stages["weights"] for head in heads]).astype(np.float64)
        )


def gather(
    run: RunConfig, temperature: float = 1.0, progress: ProgressCallback | None = None
) -> Material:
    """Explain the row that lessons are about: the named one, or the last word of the text."""
    session = Session(run.texts, progress)
    if run.query is None:
        report = inspect(replace(run, head=parse_indices("0", "head"), layer=parse_indices("0", "layer"), stages=()),
                        session)  # fmt: skip
        tokens = report.texts[0].tokens
        words = [index for index, token in enumerate(tokens) if not token.special] or [0]
        run = replace(run, query=parse_positions(str(words[-1])))
    explanation = explain(replace(run, window=None, top=3), session)
    _check(explanation)
    return Material(run, explanation, session, temperature)


def _check(explanation: Explanation) -> None:
    """Refuse a row that lessons cannot be made of."""
    n = len(explanation.tokens)
    if not 2 <= n <= _LONGEST or explanation.context is not None:
        hint = f"pass one with 2 to {_LONGEST} tokens"
        if explanation.context is not None:
            what = "cross-attention has no lessons"
        else:
            what = f"the text has {n} token{'' if n == 1 else 's'}"
        raise UsageError(what, where=arg("text"), hint=hint)
    if explanation.fully_masked or not np.isfinite(explanation.row.masked).any():
        raise UsageError(
            "the mask allows this row no key", where=arg("mask"), hint="use another mask or query"
        )
    if not explanation.row.scores.any():
        raise UsageError(
            "every q·k of this row is 0", where=arg("query"), hint="choose another row or head"
        )
    if explanation.sink is not None:
        hint = "use attnscope explain, which shows it"
        raise UsageError(
            "this model's heads have learned sinks, which lessons leave out",
            where=arg("model"),
            hint=hint,
        )
