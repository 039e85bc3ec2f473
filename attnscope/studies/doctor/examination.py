"""One examination: the model, the probes, the batches, and what is run of them; each pass at most once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnscope.base.errors import AttnscopeError
from attnscope.findings.doctor import Evidence, Soundness
from attnscope.studies.check.rounding import FLOOR
from attnscope.studies.doctor.any_tokenizer import ordinary_ids
from attnscope.studies.doctor.audit import AttentionPlace, Audit, Finding
from attnscope.studies.doctor.batches import ExaminedBatch, probe
from attnscope.studies.doctor.subject import Subject

_RUNS, _FACTOR = 3, 2.0
# In bfloat16 and float16, sums in the residual stream and in kernels round as well, where no module shows it. A sound
# model (SmolLM2 in bfloat16) came to 1.5 times the limit with a factor of 2, in one of 30 layers.
LOW_FACTOR = 3.0


@dataclass
class Examination:
    """The model, backends, probes and batches that checks share.

    Attributes:
        subject: The model.
        backends: Implementations of attention that run here.
        refused: Why other backends do not run, by name.
        rows: Token ids of the probes' texts; empty if the vocabulary is not known.
        batches: The user's batches, and those of the collator.
        texts: Texts of the probes, as reports name them.
        features: Token ids of the texts given to the collator; None without a collator.
        longest_probe: Number of tokens of the longest probe.
        with_backends: Whether the user named the backends.
        collator_error: Why the collator made no batch.
        replaced: Results of replacing documents, kept for other checks.
    """

    subject: Subject
    backends: list[str]
    refused: dict[str, str]
    rows: list[list[int]]
    pad: int
    batches: list[ExaminedBatch]
    texts: list[str]
    features: list[list[int]] | None = None
    longest_probe: int = 512
    with_backends: bool = True
    collator_error: str | None = None
    replaced: dict[tuple[int, str, int, bool], Evidence] = field(default_factory=dict)
    _audits: dict[tuple[int, str], Audit | str] = field(default_factory=dict)
    _outputs: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    _limits: dict[tuple[int, str], float] = field(default_factory=dict)
    _probes: dict[str, ExaminedBatch] = field(default_factory=dict)
    _reference: dict[str, Any] = field(default_factory=dict)

    @property
    def two_halves(self) -> bool:
        """Whether the model has an encoder and a decoder."""
        return self.subject.kind == "encoder-decoder"

    def probe(self, side: str, *, with_positions: bool) -> ExaminedBatch:
        """Return the texts as one padded batch."""
        name = f"{side} {with_positions}"
        if name not in self._probes:
            batch = probe(self.rows, side, self.pad, with_positions=with_positions)
            offset = self.subject.position_offset
            if with_positions and offset:
                positions = batch.given["position_ids"] + offset
                batch.given["position_ids"] = positions.masked_fill(batch.padding, max(offset - 1, 0))
            self._probes[name] = self.with_decoder(batch)
        return self._probes[name]

    def with_decoder(self, batch: ExaminedBatch) -> ExaminedBatch:
        """Add a decoder's input to a batch if the model needs one and the batch has none."""
        if self.two_halves and "decoder_input_ids" not in batch.given and "labels" not in batch.given:
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
        padding = torch.zeros_like(ids, dtype=torch.bool) if attended is None else ~attended
        return ExaminedBatch(f"decoder of {batch.name}", {}, ids, padding, attended=attended)

    def alone(self, ids: Sequence[int] | Tensor, **more: Any) -> ExaminedBatch:
        """Return one text by itself."""
        row = torch.as_tensor(ids).reshape(1, -1)
        given = {"input_ids": row, "attention_mask": torch.ones_like(row), **more}
        none = torch.zeros_like(row, dtype=torch.bool)
        return ExaminedBatch("a text alone", given, row, none, attended=~none)

    def audit(self, batch: ExaminedBatch, backend: str) -> Audit:
        """Read how a backend attends in a batch; result and error are remembered."""
        key = id(batch), backend
        if key not in self._audits:
            audit = Audit(self.subject, batch, backend, self.decoder_of(batch))
            try:
                self._outputs[key] = audit.run()
                self._audits[key] = audit
            except AttnscopeError as e:
                self._audits[key] = e.line()
        known = self._audits[key]
        if isinstance(known, str):
            raise AttnscopeError(known)
        return known

    def output(self, batch: ExaminedBatch, backend: str) -> Tensor:
        """Return the logits of a batch."""
        key = id(batch), backend
        if key not in self._outputs:
            self._outputs[key] = self.run(batch.given, backend)
            self._probes.setdefault(f"{id(batch)}", batch)  # kept, so that its id stays its own
        return self._outputs[key]

    def run(self, given: Mapping[str, Any], backend: str, **more: Any) -> Tensor:
        """Run a batch as training does, without a cache; returns the logits."""
        with self.subject.under(backend):
            return self.subject.run(given, **{"use_cache": False, **more})

    def limit(self, batch: ExaminedBatch, backend: str) -> float:
        """Return how far rounding moves the logits of a batch, as a share of the largest; see `check.rounding`."""
        key = id(batch), backend
        if key not in self._limits:
            plain, low = self.output(batch, backend), self.subject.dtype != torch.float32
            sums: list[Tensor | None] = []
            worst = 0.0
            for seed in range(_RUNS):
                on_call = _rounded_attention(seed) if low else None
                with self.subject.under(backend), self.subject.rounded(seed, sums):
                    moved = self.subject.run(batch.given, on_call, use_cache=False)
                gap = relative_gap(moved, plain, batch.real if moved.shape[:2] == batch.ids.shape else None)[0]
                worst = max(worst, gap)
            self._limits[key] = max(FLOOR, (LOW_FACTOR if low else _FACTOR) * worst)
        return self._limits[key]

    def compare(
        self, examined: str, output: Tensor, reference: Tensor, base: ExaminedBatch, backend: str, *,
        where: Callable[[int, int], str], rows: Tensor | None = None, reason: str | None = None,
    ) -> Evidence:  # fmt: skip
        """Compare the logits of two ways to the same numbers, within what rounding explains.

        Args:
            output: (B, T, D).
            reference: Logits of the same tokens, computed another way.
            base: The batch on which rounding is measured.
            rows: Which tokens are compared, (B, T); None for all.
            reason: Meaning of a difference.
        """
        value, at = relative_gap(output, reference, rows)
        limit = FLOOR
        if not value <= limit or self.subject.dtype != torch.float32:
            limit = max(limit, self.limit(base, backend))
        verdict: Soundness = "ok" if value <= limit else "wrong"
        place = where(*at) if value > 0 else None
        if reason is not None and finite(value) is None:
            reason += ": some are not finite in one of the two"
        return Evidence(examined, verdict, finite(value), limit, place, reason if verdict == "wrong" else None)

    def spell(self, number: int) -> str:
        """Spell a token."""
        return self.subject.words.spell(number) if self.subject.words.known else f"#{number}"

    def place(self, place: AttentionPlace, batch: ExaminedBatch) -> str:
        """Name a place: backend, layer and head, row, tokens."""
        named = [place.backend] if place.backend else []
        if place.layer is not None:
            named.append(place.layer + ("" if place.head is None else f"H{place.head}"))
        ids = batch.ids
        if place.layer is not None and place.layer.startswith("decoder") and (d := self.decoder_of(batch)) is not None:
            ids = d.ids
        if place.row is not None and place.row < len(ids):
            if len(ids) > 1:
                named.append(f"row {place.row}")
            if place.token is not None and place.token < ids.shape[1]:
                named.append(f"token {place.token} {self.spell(int(ids[place.row, place.token]))!r}")
            if place.key is not None and place.key < ids.shape[1]:
                named.append(f"key {place.key} {self.spell(int(ids[place.row, place.key]))!r}")
        return " ".join(named)

    def at(
        self, batch: ExaminedBatch, backend: str, row: int | None = None, places: Tensor | None = None
    ) -> Callable[[int, int], str]:
        """Return a function that names a row and token of a batch.

        Args:
            row: The only compared row; None for the row that the function is given.
            places: Positions of the tokens that are compared; None for all.
        """

        def name(of_row: int, token: int) -> str:
            position = token if places is None else int(places[token])
            return self.place(AttentionPlace(backend, None, None, of_row if row is None else row, position), batch)

        return name

    def finding(self, finding: Finding, batch: ExaminedBatch, backend: str, reason: str | None = None) -> Evidence:
        """Turn an audit's finding into evidence."""
        verdict: Soundness = "ok" if finding.value <= finding.limit and not finding.cells else "wrong"
        note = finding.note or reason
        if finding.cells and not finding.note:
            pairs = "pair" if finding.cells == 1 else "pairs"
            note = f"{finding.cells} {pairs} of a query and a key" + (f": {reason}" if reason else "")
        examined = f"{batch.name}, {backend}"
        place = self.place(finding.place, batch) if finding.value > 0 or finding.cells else None
        return Evidence(
            examined, verdict, finite(finding.value), finding.limit, place, note if verdict == "wrong" else None
        )

    def other_tokens(self, ids: Tensor, where: Tensor, seed: int = 0) -> Tensor:
        """Replace some tokens by other random ordinary ones.

        Raises:
            AttnscopeError: No other token is known.
        """
        self.subject.seeds.add(seed)
        size = self.subject.vocab_size or int(ids.max()) + 1
        pool = torch.tensor(ordinary_ids(size, self.subject.words.special) or range(size))
        generator = torch.Generator().manual_seed(seed)
        drawn = pool[torch.randint(len(pool), ids.shape, generator=generator)].to(ids.device)
        again = pool[(torch.searchsorted(pool, drawn.cpu()) + 1) % len(pool)].to(ids.device)
        drawn = torch.where(drawn == ids, again, drawn).to(ids.dtype)
        if len(pool) < 2 and bool(((drawn == ids) & where).any()):
            raise AttnscopeError("no other token is known to replace tokens by")
        return torch.where(where, drawn, ids)


def relative_gap(output: Tensor, reference: Tensor, rows: Tensor | None = None) -> tuple[float, tuple[int, int]]:
    """Return the largest difference as a share of the largest magnitude (if above 1), and its row and token.

    Where one of two numbers is not finite and the other is, the difference is infinite.
    """
    output, reference = output.float(), reference.float()
    gap = (output - reference).abs().amax(-1)  # (B, T)
    if not bool(gap.isfinite().all()):
        equal = (output == reference) | (output.isnan() & reference.isnan())
        both = output.isfinite() & reference.isfinite()
        gap = (output - reference).abs().masked_fill(~both, torch.inf).masked_fill(equal, 0.0).amax(-1)
    kept = torch.ones_like(gap, dtype=torch.bool) if rows is None else rows.to(gap.device).expand(gap.shape)
    if not kept.any():
        return 0.0, (0, 0)
    gap = gap.masked_fill(~kept, 0.0)
    sizes = reference.abs().amax(-1)
    sizes = sizes.masked_fill(~kept | ~sizes.isfinite(), 0.0)
    at = int(gap.argmax())
    return float(gap.max()) / max(1.0, float(sizes.max())), (at // gap.shape[1], at % gap.shape[1])


def finite(value: float) -> float | None:
    """Return a number for JSON; None if it is not finite."""
    return value if abs(value) < float("inf") else None


def _rounded_attention(seed: int) -> Callable[[Any], Tensor | None]:
    """Round scores, weights and output of a backend once more, in the backend's type."""
    step = [0]

    def on_call(call: Any) -> Tensor | None:
        step[0] += 1
        generator = torch.Generator().manual_seed(1000 * seed + step[0])
        unit = float(torch.finfo(call.q.dtype).eps) / 2

        def noise(shape: Any) -> Tensor:
            return (1 + unit * (torch.rand(shape, generator=generator) * 2 - 1)).to(call.q.device)

        q = (call.q.float() * noise(call.q.shape) * noise((*call.q.shape[:3], 1))).to(call.q.dtype)
        named = {"dropout": 0.0} if "dropout" in call.named else {}
        moved = call.again(q, (call.v.float() * noise(call.v.shape)).to(call.v.dtype), **named)
        rounded: Tensor = (moved.float() * noise(moved.shape)).to(call.output.dtype).transpose(1, 2)
        return rounded

    return on_call
