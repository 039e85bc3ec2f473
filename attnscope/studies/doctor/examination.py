"""One examination: the model, the probes, the batches, and what is run of them; each pass at most once."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from msgspec.structs import replace
from torch import Tensor

from attnscope.base.errors import AttnscopeError
from attnscope.findings.doctor import OF_OUTPUT, Evidence
from attnscope.studies.check.measures import differences_of
from attnscope.studies.check.rounding import FLOOR
from attnscope.studies.doctor.any_tokenizer import ordinary_ids
from attnscope.studies.doctor.audit import RUNS, Audit, Finding
from attnscope.studies.doctor.batches import ExaminedBatch, probe
from attnscope.studies.doctor.subject import Subject

T = TypeVar("T")
NO_PROBES = "the vocabulary is not known; pass a batch or a tokenizer"
_FACTOR = 2.0
# In bfloat16 and float16, sums in the residual stream and in kernels round as well, where no module shows it. A sound
# model (SmolLM2 in bfloat16) came to 1.5 times the limit with a factor of 2, in one of 30 layers.
_LOW_FACTOR = 3.0


@dataclass
class Examination:
    """The model, backends, probes and batches that checks share."""

    subject: Subject
    backends: list[str]  # implementations of attention that run here
    refused: dict[str, str]  # why other backends do not run, by name
    rows: list[list[int]]  # token ids of the probes' texts; empty if the vocabulary is not known
    pad: int
    batches: list[ExaminedBatch]  # the user's, and the collator's
    texts: list[str]  # texts of the probes, as reports name them
    # token ids of the texts given to the collator; None without a collator
    features: list[list[int]] | None = None
    longest_probe: int = 512  # number of tokens
    with_backends: bool = True  # the user named the backends
    collator_error: str | None = None  # why the collator made no batch
    text_source: str = "own"  # whose the texts are: `own` or `given`
    # names of the tokens of a picture; None for a model that takes texts
    names: list[str] | None = None
    processor: Any = None  # the image processor of such a model; None if there is none
    probe_source: str = "own"  # and the probes, which may be `random` tokens in their place
    _made: dict[Hashable, Any] = field(default_factory=dict)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what a function returned when it was first called for a key."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    @property
    def two_halves(self) -> bool:
        """Whether the model has an encoder and a decoder."""
        return self.subject.kind == "encoder-decoder"

    @property
    def low(self) -> bool:
        """Whether the model has a type of less than 32 bits."""
        return self.subject.dtype != torch.float32

    @property
    def rounding_factor(self) -> float:
        """How far correct numbers may differ, in multiples of what rounding did in a few runs."""
        return _LOW_FACTOR if self.low else _FACTOR

    @property
    def examined(self) -> list[ExaminedBatch]:
        """A probe, if there is one, and the user's batches."""
        return ([self.probe("right")] if self.rows else []) + self.batches

    def texts_of(self, evidence: Evidence) -> str | None:
        """Tell whose texts evidence used, by the name of what it examined; None for none."""
        words = re.findall(r"\w+", evidence.examined)
        for batch in self.batches:
            if batch.name in words and "no" not in words:
                return batch.name
        if evidence.examined in ("the texts", "a pair of texts"):
            return self.text_source
        if "text" in words or "texts" in words:
            return self.probe_source
        return None

    def probe(self, side: str, *, with_positions: bool = False) -> ExaminedBatch:
        """Return the texts as one padded batch."""

        def make() -> ExaminedBatch:
            batch = probe(self.rows, side, self.pad, with_positions=with_positions)
            offset = self.subject.position_offset
            if with_positions and offset:
                positions = batch.given["position_ids"] + offset
                batch.given["position_ids"] = positions.masked_fill(
                    batch.padding, max(offset - 1, 0)
                )
            return self.with_decoder(batch)

        return self.once((side, with_positions), make)

    def long_probe(self) -> ExaminedBatch | None:
        """Return a text that is longer than the window; None if there is no window, or no such text."""
        width = getattr(self.subject.config, "sliding_window", None)
        limit = min(self.longest_probe, self.subject.longest or self.longest_probe)
        if not self.rows or not isinstance(width, int) or width + 2 > limit:
            return None
        tokens = [token for row in self.rows for token in row]
        count = min(max(width + 4, 12), limit)
        return self.once("long", lambda: self.alone((tokens * (count // len(tokens) + 1))[:count]))

    def with_decoder(self, batch: ExaminedBatch) -> ExaminedBatch:
        """Add a decoder's input to a batch if the model needs one and the batch has none."""
        if (
            self.two_halves
            and "decoder_input_ids" not in batch.given
            and "labels" not in batch.given
        ):
            count = min(6, min(map(len, self.rows)))
            ids = torch.tensor([row[:count] for row in self.rows])
            batch.given["decoder_input_ids"] = ids[torch.arange(len(batch.ids)) % len(ids)]
        return batch

    def decoder_of(self, batch: ExaminedBatch) -> ExaminedBatch | None:
        """Return the decoder's input in a batch, as a batch."""
        ids = batch.given.get("decoder_input_ids")
        if not self.two_halves or not isinstance(ids, Tensor):
            return None
        mask = batch.given.get("decoder_attention_mask")
        attended = None if mask is None else mask != 0
        if attended is None:
            padding = torch.zeros_like(ids, dtype=torch.bool)
        else:
            padding = ~attended
        return ExaminedBatch(f"decoder of {batch.name}", {}, ids, padding, attended=attended)

    def alone(self, ids: Sequence[int] | Tensor, **more: Any) -> ExaminedBatch:
        """Return one text by itself."""
        row = torch.as_tensor(ids).reshape(1, -1)
        inputs = {"input_ids": row, "attention_mask": torch.ones_like(row), **more}
        none = torch.zeros_like(row, dtype=torch.bool)
        return ExaminedBatch("a text alone", inputs, row, none, attended=~none)

    def output(self, batch: ExaminedBatch, backend: str) -> Tensor:
        """Return the logits of a batch."""
        return self.once(("output", batch, backend), lambda: self.run(batch.given, backend))

    def run(self, inputs: Mapping[str, Any], backend: str, **more: Any) -> Tensor:
        """Run a batch as training does, without a cache; returns the logits."""
        with self.subject.under(backend):
            return self.subject.run(inputs, **{"use_cache": False, **more})

    def limit(self, batch: ExaminedBatch, backend: str) -> float:
        """Return how far rounding moves the logits of a batch, as a share of the largest; see `check.rounding`."""

        def measure() -> float:
            plain = self.output(batch, backend)
            worst = 0.0
            sums: list[Tensor | None] = []
            for seed in range(RUNS):
                on_call = rounded_attention(seed) if self.low else None
                with self.subject.under(backend), self.subject.rounded(seed, sums):
                    moved = self.subject.run(batch.given, on_call, use_cache=False)
                gap = relative_gap(
                    moved, plain, batch.real if moved.shape[:2] == batch.ids.shape else None
                )[0]
                worst = max(worst, gap)
            return max(FLOOR, self.rounding_factor * worst)

        return self.once(("limit", batch, backend), measure)

    def spell(self, token_id: int) -> str:
        """Spell a token."""
        if self.names is not None:
            return self.names[token_id]
        if self.subject.words.known:
            return self.subject.words.spell(token_id)
        return f"#{token_id}"

    def token(self, batch: ExaminedBatch, row: int, token: int) -> str:
        """Name a token of a batch: `row 0 token 3 'bank'`."""
        return f"row {row} token {token} {self.spell(int(batch.ids[row, token]))!r}"

    def place(
        self,
        batch: ExaminedBatch,
        backend: str,
        index: Sequence[int],
        layer: str | None = None,
        head: int | None = None,
    ) -> str:
        """Name a place: backend, layer and head, row, tokens; `index` are a row, its query and key."""
        parts = [backend] if backend else []
        ids = batch.ids
        row, *tokens = index
        if layer is not None:
            parts.append(layer + ("" if head is None else f"H{head}"))
            if layer.startswith("decoder") and (decoder := self.decoder_of(batch)) is not None:
                ids = decoder.ids
        if row < len(ids):
            parts += [f"row {row}"] * (len(ids) > 1)
            for what, token in zip(("token", "key"), tokens, strict=False):
                if token < ids.shape[1]:
                    parts.append(f"{what} {token} {self.spell(int(ids[row, token]))!r}")
        return " ".join(parts)

    def other_tokens(self, ids: Tensor, where: Tensor, seed: int) -> Tensor:
        """Replace some tokens by other random ordinary ones.

        Raises:
            AttnscopeError: No other token is known.
        """
        self.subject.seeds.add(seed)
        size = self.subject.vocab_size or int(ids.max()) + 1
        pool = torch.tensor(ordinary_ids(size, self.subject.words.special) or range(size))
        generator = torch.Generator().manual_seed(seed)
        drawn_ids = pool[torch.randint(len(pool), ids.shape, generator=generator)].to(ids.device)
        again = pool[(torch.searchsorted(pool, drawn_ids.cpu()) + 1) % len(pool)].to(ids.device)
        drawn_ids = torch.where(drawn_ids == ids, again, drawn_ids).to(ids.dtype)
        if len(pool) < 2 and bool(((drawn_ids == ids) & where).any()):
            raise AttnscopeError("no other token is known to replace tokens by")
        return torch.where(where, drawn_ids, ids)


@dataclass(frozen=True)
class Case:
    """A batch under a backend, of which a check measures something."""

    exam: Examination
    batch: ExaminedBatch
    backend: str
    examined: str  # what is measured, as evidence names it

    def evidence(self, measure: "Measure") -> Evidence | None:
        """Return what a function measures; an error, and a reason in place of evidence, make it unknown."""
        try:
            told = measure(self)
        except AttnscopeError as e:
            told = e.message
        if isinstance(told, str):
            return unknown(self.examined, told)
        return told

    def read(self) -> Audit:
        """Read how the backend attends in the batch, once.

        Raises:
            AttnscopeError: The batch does not run.
        """

        def make() -> Audit | str:
            audit = Audit(
                self.exam.subject, self.batch, self.backend, self.exam.decoder_of(self.batch)
            )
            try:
                self.exam._made["output", self.batch, self.backend] = audit.run()
            except AttnscopeError as e:
                return e.line()
            return audit

        audit = self.exam.once(("audit", self.batch, self.backend), make)
        if isinstance(audit, str):
            raise AttnscopeError(audit)
        return audit

    def output(self) -> Tensor:
        """Return the logits of the batch."""
        return self.exam.output(self.batch, self.backend)

    def changed(self, where: Tensor, name: str = "input_ids", seed: int = 0, **more: Any) -> Tensor:
        """Return the logits with other tokens in some places of `name`, (B, T)."""
        ids = self.exam.other_tokens(self.batch.given[name], where, seed)
        return self.exam.run({**self.batch.given, name: ids}, self.backend, **more)

    def where(self, row: int, token: int) -> str:
        """Name a token of the batch under the backend."""
        return self.exam.place(self.batch, self.backend, (row, token))

    def compare(
        self,
        output: Tensor,
        reference: Tensor,
        rows: Tensor | None,
        reason: str | None = None,
        *,
        base: ExaminedBatch | None = None,
        shown: ExaminedBatch | None = None,
        at: tuple[int, Tensor] | None = None,
    ) -> Evidence:
        """Compare the logits of two ways to the same numbers, within what rounding explains.

        Args:
            output: (B, T, D).
            reference: Logits of the same tokens, computed another way.
            rows: Which tokens are compared, (B, T); None for all.
            base: The batch on which rounding is measured; None for that of the case.
            shown: The batch whose tokens are named, in the same way.
            at: The row of the batch that is compared, and positions of its tokens; None for all of it.
        """
        value, (row, token) = relative_gap(output, reference, rows)
        limit = FLOOR
        if not value <= limit or self.exam.low:
            limit = max(limit, self.exam.limit(base or self.batch, self.backend))
        location = None
        if value > 0:
            row, token = (row, token) if at is None else (at[0], int(at[1][token]))
            location = self.exam.place(shown or self.batch, self.backend, (row, token))
        if value <= limit:
            return ok(self.examined, value, limit, where=location, unit=OF_OUTPUT)
        if reason is not None and finite(value) is None:
            reason += ": some are not finite in one of the two"
        return wrong(self.examined, value, limit, location, reason, OF_OUTPUT)

    def place(self, finding: Finding) -> str:
        """Name the place of an audit's finding."""
        return self.exam.place(self.batch, self.backend, finding.index, finding.layer, finding.head)

    def finding(self, finding: Finding, reason: str | None = None) -> Evidence:
        """Turn an audit's finding into evidence."""
        value = finding.value
        limit = finding.limit
        cells = finding.cells
        location = self.place(finding) if value > 0 or cells else None
        if value <= limit and not cells:
            return ok(self.examined, value, limit, where=location, unit=finding.unit)
        if cells and not finding.note:
            pairs = f"{cells} {'pair' if cells == 1 else 'pairs'} of a query and a key"
            reason = f"{pairs}: {reason}" if reason else pairs
        return wrong(self.examined, value, limit, location, finding.note or reason, finding.unit)


# evidence, why there is none, or None for nothing to say
Measure = Callable[[Case], Evidence | str | None]


def measured(
    exam: Examination,
    batches: Sequence[ExaminedBatch],
    measure: Measure,
    examined: str = "{}, {}",
    backends: Sequence[str] | None = None,
) -> list[Evidence]:
    """Measure batches under every backend.

    Args:
        examined: What is measured, with places for the names of batch and backend.
        backends: None for all.
    """
    cases = [
        Case(exam, batch, backend, examined.format(batch.name, backend))
        for batch in batches
        for backend in (exam.backends if backends is None else backends)
    ]
    return [evidence for case in cases if (evidence := case.evidence(measure)) is not None]


def unknown(examined: str, reason: str) -> Evidence:
    """Return evidence with the verdict `unknown`."""
    return Evidence(examined, "unknown", reason=reason)


def inapplicable(examined: str, reason: str) -> Evidence:
    """Return evidence that there is nothing to examine."""
    return Evidence(examined, "inapplicable", reason=reason)


def depends(evidence: Evidence, reason: str) -> Evidence:
    """Return a difference whose meaning depends on how the model is called; other evidence unchanged."""
    if evidence.verdict != "wrong":
        return evidence
    return replace(evidence, verdict="depends", reason=reason)


def ok(
    examined: str,
    value: float | None = 0,
    limit: float | None = 0,
    reason: str | None = None,
    where: str | None = None,
    unit: str = "",
) -> Evidence:
    """Return evidence with the verdict `ok`; `unit` is that of the check unless it is named."""
    limit = None if limit is None else float(limit)
    return Evidence(examined, "ok", finite(value), limit, where, reason, unit=unit)


def wrong(
    examined: str,
    value: float | None,
    limit: float | None,
    where: str | None,
    reason: str | None,
    unit: str = "",
) -> Evidence:
    """Return evidence with the verdict `wrong`; see `ok`."""
    limit = None if limit is None else float(limit)
    return Evidence(examined, "wrong", finite(value), limit, where, reason, unit=unit)


def badness(evidence: Evidence) -> tuple[int, float]:
    """Return a key by which the worst evidence is largest: its verdict, and the value as a share of the limit."""
    verdict = ("inapplicable", "unknown", "ok", "depends", "wrong").index(evidence.verdict)
    value = evidence.value
    if value is None:
        return verdict, float("inf") if evidence.verdict == "wrong" else -1.0
    return verdict, abs(value) / (evidence.limit or 1.0)


def relative_gap(
    output: Tensor, reference: Tensor, rows: Tensor | None = None
) -> tuple[float, tuple[int, int]]:
    """Return the largest difference as a share of the largest magnitude (if above 1), and its row and token.

    Where one of two numbers is not finite and the other is, the difference is infinite.
    """
    # (B, T, D)
    output = output.float()
    reference = reference.float()
    gap = differences_of(output, reference).amax(-1)
    if rows is None:
        kept_rows = torch.ones_like(gap, dtype=torch.bool)
    else:
        kept_rows = rows.to(gap.device).expand(gap.shape)
    if not kept_rows.any():
        return 0.0, (0, 0)
    gap = gap.masked_fill(~kept_rows, 0.0)
    sizes = reference.abs().amax(-1)
    sizes = sizes.masked_fill(~kept_rows | ~sizes.isfinite(), 0.0)
    at = int(gap.argmax())
    return float(gap.max()) / max(1.0, float(sizes.max())), (at // gap.shape[1], at % gap.shape[1])


def finite(value: float | None) -> float | None:
    """Return a number for JSON; None if it is not finite."""
    if value is not None and abs(value) < float("inf"):
        return float(value)
    return None


def rounded_attention(seed: int) -> Callable[[Any], Tensor | None]:
    """Round scores, weights and output of a backend once more, in the backend's type."""
    step = [0]

    def on_call(call: Any) -> Tensor | None:
        step[0] += 1
        generator = torch.Generator().manual_seed(1000 * seed + step[0])
        unit = float(torch.finfo(call.q.dtype).eps) / 2

        def noise(shape: Any) -> Tensor:
            return (1 + unit * (torch.rand(shape, generator=generator) * 2 - 1)).to(call.q.device)

        q = (call.q.float() * noise(call.q.shape) * noise((*call.q.shape[:3], 1))).to(call.q.dtype)
        arguments = {"dropout": 0.0} if "dropout" in call.named else {}
        moved = call.again(q, (call.v.float() * noise(call.v.shape)).to(call.v.dtype), **arguments)
        rounded: Tensor = (moved.float() * noise(moved.shape)).to(call.output.dtype).transpose(1, 2)
        return rounded

    return on_call
