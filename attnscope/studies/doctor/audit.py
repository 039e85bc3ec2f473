"""Read from a running backend which keys it lets a query see, and how it turns scores into weights.

An implementation of attention is linear in the values: run once more on values that are rows of the identity, it
returns its own weights. With queries of zero, these are equal on all keys that it lets a query see, and exactly 0 on
others, whatever the content, the type of the numbers and the implementation. Neither needs weights that a backend
returns, so kernels that return none are read as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from attnscope.engines.transformers.backends import BackendCall
from attnscope.studies.check.rounding import FLOOR
from attnscope.studies.doctor.batches import ExaminedBatch
from attnscope.studies.doctor.subject import Subject

_RUNS, _FACTOR = 3, 2.0
_BUDGET = 3e9  # multiplications beyond which layers that share a mask are read once


@dataclass(frozen=True)
class AttentionPlace:
    """Backend, layer, head, row and tokens of an observation.

    Attributes:
        layer: Layer, with its stack in an encoder-decoder.
        head: Head; None for all.
        key: Position of the key; None for none.
    """

    backend: str
    layer: str | None = None
    head: int | None = None
    row: int | None = None
    token: int | None = None
    key: int | None = None


@dataclass(frozen=True)
class Finding:
    """The worst observation of one kind.

    Attributes:
        limit: The largest value that is ok.
        cells: Number of wrong pairs of a query and a key.
        note: What it is.
    """

    value: float
    limit: float
    place: AttentionPlace
    cells: int = 0
    note: str = ""

    @property
    def share(self) -> float:
        """Value as a share of the limit."""
        return float("inf") if self.value != self.value else self.value / max(self.limit, 1e-300)


@dataclass
class Audit:
    """Read how a backend attends in a batch.

    Attributes:
        subject: The model.
        decoder: The decoder's input in an encoder-decoder; `batch` is then the encoder's.
        layers: Number of layers that were read.
        leaks: By check, keys that queries see and should not.
        hidden: By check, keys that queries should see and do not.
        findings: By check, other measurements.
        skipped: By check, why it was not measured.
        widest: By width of a configured window, the widest one observed.
        returned: Layers that returned weights.
    """

    subject: Subject
    batch: ExaminedBatch
    backend: str
    decoder: ExaminedBatch | None = None
    layers: int = 0
    leaks: dict[str, Finding] = field(default_factory=dict)
    hidden: dict[str, Finding] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    widest: dict[int, int] = field(default_factory=dict)
    returned: int = 0
    _masks: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)

    def run(self) -> Tensor:
        """Run the batch under the backend, and read every call; returns the logits."""
        with self.subject.under(self.backend):
            return self.subject.run(self.batch.given, self.see, use_cache=False)

    def see(self, call: BackendCall) -> None:
        """Read one call of the backend."""
        sides = self._sides(call)
        if sides is None:
            return
        queries, keys = sides
        self.layers += 1
        self._scores(call, queries, keys)
        uniform = self._uniform(call)
        if uniform is None:
            self.skipped["masks"] = "the mask adds numbers to scores, or the backend takes no other values"
            return
        seen = uniform > 0
        self._masks_of(call, queries, keys, seen)
        self._numbers(call, queries, seen, uniform)

    def _sides(self, call: BackendCall) -> tuple[ExaminedBatch, ExaminedBatch] | None:
        """Return the batches of queries and keys; None if they do not fit the call."""
        decoder = self.decoder or self.batch
        queries = decoder if call.part in ("decoder", "cross") else self.batch
        keys = decoder if call.part == "decoder" else self.batch
        fits = call.q.shape[2] == queries.ids.shape[1] and call.k.shape[2] == keys.ids.shape[1]
        return (queries, keys) if fits and call.q.ndim == 4 and len(call.q) == len(queries.ids) else None

    def _place(self, call: BackendCall, index: Sequence[int] = (), head: int | None = None) -> AttentionPlace:
        layer = layer_name(call)
        row, token, key = (*index, None, None, None)[:3]
        return AttentionPlace(self.backend, layer, head, row, token, key)

    def _scores(self, call: BackendCall, queries: ExaminedBatch, keys: ExaminedBatch) -> None:
        scores = (call.q.double() @ _wide(call.k, call.q).double().mT).abs()  # (B, H, Q, K)
        barred = queries.padding.to(scores.device)[:, None, :, None] | keys.padding.to(scores.device)[:, None, None]
        scores = scores.masked_fill(barred, 0.0)
        at = _index(scores, int(scores.argmax()))
        # also the scale is applied after the product in eager attention: the product itself has to fit
        limit = float(torch.finfo(call.q.dtype).max)
        finding = Finding(float(scores[at]), limit, self._place(call, (at[0], at[2], at[3]), at[1]))
        self._keep("score_range", finding)

    def _uniform(self, call: BackendCall) -> Tensor | None:
        """Return weights of zero queries, (B, H, Q, K), above 0 on allowed keys; None if the mask prevents that."""
        if isinstance(call.mask, Tensor) and call.mask.is_floating_point():
            numbers = call.mask[(call.mask != 0) & (call.mask > -1e3)]
            if numbers.numel() and not bool((numbers == 1).all()):
                return None
        key, repeated = self._mask_key(call), self._is_large(call)
        if repeated and key in self._masks:
            return self._masks[key]
        bias = call.named.get("position_bias")
        named = {} if bias is None else {"position_bias": bias.masked_fill(bias > -1e3, 0.0)}
        try:
            weights = weights_of(call, torch.zeros_like(call.q), **named)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return None
        if repeated:
            self._masks[key] = weights
        return weights

    def _mask_key(self, call: BackendCall) -> tuple[Any, ...]:
        """Return a key that calls with the same mask share."""
        return call.part, id(call.mask), call.function, call.named.get("sliding_window"), type(call.module)

    def _is_large(self, call: BackendCall) -> bool:
        """Tell whether reading the weights of every layer takes too long."""
        n_keys, width = call.k.shape[2], call.v.shape[-1]
        work = call.q.shape[0] * call.q.shape[1] * call.q.shape[2] * n_keys * (call.q.shape[-1] + width)
        layers = getattr(self.subject.config, "num_hidden_layers", None) or 1
        return bool(work * -(-n_keys // width) * layers > _BUDGET)

    def _masks_of(self, call: BackendCall, queries: ExaminedBatch, keys: ExaminedBatch, seen: Tensor) -> None:
        device = seen.device
        real = queries.real.to(device)[:, :, None] & keys.real.to(device)[:, None]  # (B, Q, K)
        causal = self._is_causal(call)
        window, told = window_of(self.subject.config, call) if call.part != "cross" else (None, True)
        own = queries is keys
        expected = queries.expected(causal=bool(causal), window=window).to(device) if own else real
        distance = torch.arange(seen.shape[2], device=device)[:, None] - torch.arange(seen.shape[3], device=device)
        rows = queries.real.to(device)[:, :, None]
        barred_by_mask = keys.padding if keys.attended is None else ~keys.attended
        padding, stated = keys.padding.to(device)[:, None], barred_by_mask.to(device)[:, None]
        has_mask = keys.attended is not None or keys.allowed is not None
        forbidden = {"padding": rows & padding & stated} if has_mask else {}
        forbidden["padding_mask"] = rows & padding & ~stated if has_mask else rows & padding
        if own:
            documents = None if queries.documents is None else queries.documents.to(device)
            same_document = real if documents is None else real & (documents[:, :, None] == documents[:, None])
            if documents is not None:
                forbidden["packed_documents"] = real & ~same_document
            if causal and queries.allowed is None:
                forbidden["future"] = real & (distance < 0) & ~expected
            if window is not None:
                forbidden["window"] = same_document & ((distance >= window) if causal else (distance.abs() > window))
            if queries.allowed is not None:
                forbidden["mask_4d"] = rows & ~expected
        anywhere = seen.any(1)  # (B, Q, K)
        for name, barred in forbidden.items():
            self._leak(name, call, seen, barred & anywhere)
            self.findings.setdefault(f"read {name}", Finding(0.0, 0.0, self._place(call)))
        everywhere = seen.all(1)
        if own and causal is not None and told:
            lacking = expected & real & ~everywhere
            later = distance < 0
            split = {"mask_4d": lacking} if queries.allowed is not None else {
                "prefix": lacking & later if causal else lacking & False,
                "window": lacking & ~later if window is not None else lacking & False,
                "backend": lacking if not causal else lacking & ~later if window is None else lacking & False,
            }  # fmt: skip
            for name, cells in split.items():
                self._hide(name, call, seen, cells)
        if own and queries.prefix is not None:
            self.findings.setdefault("read prefix", Finding(0.0, 0.0, self._place(call)))
        if window is not None and own:
            reach = torch.where(seen.any(1) & real, distance, -1)
            self.widest[window] = max(self.widest.get(window, 0), int(reach.max()) + bool(causal))
            if not told or seen.shape[3] <= window + 1:
                self.skipped["window"] = f"the window of {window} tokens is longer than the texts"
        empty = rows[..., 0] & ~seen.any(1).any(-1)
        if own and not expected.any(-1)[rows[..., 0]].all():
            empty |= rows[..., 0] & ~expected.any(-1)
        self._empty_rows(call, queries, empty)

    def _is_causal(self, call: BackendCall) -> bool | None:
        if call.part:
            return call.part == "decoder"
        return None if self.subject.kind is None else self.subject.kind == "causal"

    def _leak(self, name: str, call: BackendCall, seen: Tensor, cells: Tensor) -> None:
        if not cells.any():
            return
        weights = weights_of(call, call.q).masked_fill(~(seen & cells[:, None]), 0.0)
        mass = weights.sum(-1)  # (B, H, Q)
        if not float(mass.max()) > 0:
            mass = (seen & cells[:, None]).float().sum(-1)
            weights = (seen & cells[:, None]).float()
            value = 0.0
        else:
            value = float(mass.max())
        row, head, token = _index(mass, int(mass.argmax()))
        key = int(weights[row, head, token].argmax())
        finding = Finding(value, 0.0, self._place(call, (row, token, key), head), int(cells.sum()))
        self._worst(self.leaks, name, finding)

    def _hide(self, name: str, call: BackendCall, seen: Tensor, cells: Tensor) -> None:
        if not cells.any():
            return
        row, token, key = (int(n) for n in cells.nonzero()[0])
        head = int((~seen[row, :, token, key]).nonzero()[0])
        count = int(cells.sum())
        self._worst(self.hidden, name, Finding(float(count), 0.0, self._place(call, (row, token, key), head), count))

    def _empty_rows(self, call: BackendCall, queries: ExaminedBatch, empty: Tensor) -> None:
        output = call.output  # (B, Q, H, Ev)
        bad = ~output.isfinite().flatten(2).all(-1)
        if bad.any():
            row, token = (int(n) for n in bad.nonzero()[0])
            what = "padding" if queries.padding[row, token] else "a token"
            note = f"attention gives numbers that are not finite for {what}"
            self._worst(self.leaks, "fully_masked", Finding(
                float(bad.sum()), 0.0, self._place(call, (row, token)), int(bad.sum()), note))  # fmt: skip
        elif empty.any():
            row, token = (int(n) for n in empty.nonzero()[0])
            note = "tokens of a text that may attend to nothing"
            self._worst(self.leaks, "fully_masked", Finding(
                float(empty.sum()), 0.0, self._place(call, (row, token)), int(empty.sum()), note))  # fmt: skip

    def _numbers(self, call: BackendCall, queries: ExaminedBatch, seen: Tensor, uniform: Tensor) -> None:
        real = queries.real.to(seen.device)
        self._arithmetic(call, seen, real)
        self._sinks(call, seen, real, uniform)
        self._softcap(call, seen, real)
        if isinstance(call.weights, Tensor) and call.weights.shape == seen.shape:
            self.returned += 1
            if "returned_weights" in self.findings and self._is_large(call):
                return
            kept = weights_of(call, call.q)
            gap = (call.weights.double() - kept.double()).abs().masked_fill(~real[:, None, :, None], 0.0)
            at = _index(gap, int(gap.argmax()))
            limit = max(1e-5, 4 * float(torch.finfo(call.q.dtype).eps))
            self._keep("returned_weights", Finding(
                float(gap[at]), limit, self._place(call, (at[0], at[2], at[3]), at[1])))  # fmt: skip

    def _arithmetic(self, call: BackendCall, seen: Tensor, real: Tensor) -> None:
        """Compare the output with float64 on the same queries, keys, values and mask."""
        exact = Formula(call, seen)
        expected = exact.output()  # (B, H, Q, Ev)
        rows = (real[:, None] & seen.any(-1))[..., None]
        gap = (call.output.transpose(1, 2).double() - expected).abs().masked_fill(~rows, 0.0)
        size = max(1.0, float(expected.masked_fill(~rows, 0.0).abs().max()))
        at = _index(gap, int(gap.argmax()))
        value, limit = float(gap[at]) / size, FLOOR
        if not value <= limit:
            for seed in range(_RUNS):
                self.subject.seeds.add(seed)
                moved = (exact.output(seed) - expected).abs().masked_fill(~rows, 0.0)
                limit = max(limit, _FACTOR * float(moved.max()) / size)
        self._keep("backend", Finding(value, limit, self._place(call, (at[0], at[2]), at[1])))

    def _sinks(self, call: BackendCall, seen: Tensor, real: Tensor, uniform: Tensor) -> None:
        sinks = sinks_of(call)
        if sinks is None:
            return
        count = seen.sum(-1).double()  # (B, H, Q)
        expected = count / (count + sinks.double().exp()[:, None])
        rows = real[:, None] & (count > 0)
        gap = (uniform.double().sum(-1) - expected).abs().masked_fill(~rows, 0.0)
        limit = max(FLOOR, 2 * float(torch.finfo(call.q.dtype).eps))
        share = float((1 - expected).masked_fill(~rows, 0.0).max())
        if share <= 2 * limit:
            self.skipped.setdefault("sinks", f"the sinks take at most {share:.0e} of a row: too little to be seen")
            return
        at = _index(gap, int(gap.argmax()))
        self._keep("sinks", Finding(float(gap[at]), limit, self._place(call, (at[0], at[2]), at[1])))

    def _softcap(self, call: BackendCall, seen: Tensor, real: Tensor) -> None:
        cap = softcap_of(self.subject.config)
        if cap is None:
            return
        exact = Formula(call, seen, cap=cap)
        largest = float(exact.scaled().abs().masked_fill(~seen, 0.0).max())
        if not largest > 0:
            return
        raised = (call.q.double() * (2 * cap / largest)).to(call.q.dtype)
        with_cap, without = (replace(exact, call=replace(call, q=raised), cap=c).weights() for c in (cap, None))
        rows = real[:, None, :, None] & seen
        apart = float((with_cap - without).abs().masked_fill(~rows, 0.0).max())
        if apart < 0.02:
            self.skipped.setdefault("softcap", "weights with and without a soft-cap are alike")
            return
        gap = (weights_of(call, raised).double() - with_cap).abs().masked_fill(~rows, 0.0)
        at = _index(gap, int(gap.argmax()))
        place = self._place(call, (at[0], at[2], at[3]), at[1])
        self._keep("softcap", Finding(float(gap[at]), apart / 3, place))

    def _keep(self, name: str, finding: Finding) -> None:
        self._worst(self.findings, name, finding)

    @staticmethod
    def _worst(kept: dict[str, Finding], name: str, finding: Finding) -> None:
        known = kept.get(name)
        if known is None or (finding.share, finding.cells) > (known.share, known.cells):
            kept[name] = finding


@dataclass(frozen=True)
class Formula:
    """The textbook's attention in float64, from the inputs of a backend.

    Attributes:
        seen: Keys that the backend lets each query see, (B, H, Q, K).
        cap: The soft-cap; NaN for the call's own.
    """

    call: BackendCall
    seen: Tensor
    cap: float | None = float("nan")

    def scaled(self) -> Tensor:
        """Scaled scores, (B, H, Q, K)."""
        call = self.call
        scale = call.named.get("scaling")
        factor = call.q.shape[-1] ** -0.5 if scale is None else float(scale)
        return call.q.double() @ _wide(call.k, call.q).double().mT * factor

    def weights(self, seed: int | None = None) -> Tensor:
        """Weights, (B, H, Q, K); with a seed, every step is rounded at random to the type of the queries."""
        call = self.call
        rounded = Rounding(call.q.dtype, seed, call.q.device)
        scores = self.scaled()
        if rounded.seed is not None:
            q, k = call.q.double(), _wide(call.k, call.q).double()
            scale = call.named.get("scaling")
            factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
            sums = sqrt(q.shape[-1]) * (q.square() @ k.square().mT).sqrt() * rounded.of_sum
            scores = rounded((q @ k.mT) + sums * rounded.noise(scores)) * factor
        scores = rounded(scores)
        cap = call.named.get("softcap") if self.cap is not None and self.cap != self.cap else self.cap
        if cap is not None:
            scores = rounded(rounded(rounded(scores / cap).tanh()) * cap)
        bias = call.named.get("position_bias")
        if bias is not None:
            scores = rounded(scores + bias.double())
        scores = scores.masked_fill(~self.seen, -torch.inf)
        sinks = sinks_of(call)
        if sinks is not None:
            column = sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)
            weights = torch.cat((scores, column), -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        return rounded(weights.nan_to_num(0.0))

    def output(self, seed: int | None = None) -> Tensor:
        """Output, (B, H, Q, Ev); see weights."""
        rounded = Rounding(self.call.q.dtype, None if seed is None else seed + 1000, self.call.q.device)
        weights, v = self.weights(seed), _wide(self.call.v, self.call.q).double()
        output = weights @ v
        if rounded.seed is not None:
            sums = sqrt(v.shape[2]) * (weights.square() @ v.square()).sqrt() * rounded.of_sum
            output = output + sums * rounded.noise(output)
        return rounded(output)


class Rounding:
    """Round numbers at random by up to half a step of a type; without a seed, not at all."""

    def __init__(self, dtype: torch.dtype, seed: int | None, device: torch.device) -> None:
        self.seed, self._device = seed, device
        self._unit = float(torch.finfo(dtype).eps) / 2
        self.of_sum = float(torch.finfo(torch.float32).eps) / 2  # all kernels add in float32
        self._generator = torch.Generator().manual_seed(0 if seed is None else seed)

    def noise(self, like: Tensor) -> Tensor:
        """Return numbers between -1 and 1."""
        return (torch.rand(like.shape, generator=self._generator) * 2 - 1).to(self._device).double()

    def __call__(self, values: Tensor) -> Tensor:
        """Return the values, rounded."""
        return values if self.seed is None else values * (1 + self._unit * self.noise(values))


def weights_of(call: BackendCall, q: Tensor, **named: Any) -> Tensor:
    """Return the weights that a backend gives these queries, (B, H, Q, K)."""
    n_keys, width = call.k.shape[2], call.v.shape[-1]
    if "dropout" in call.named:
        named = {"dropout": 0.0, **named}
    parts = []
    for start in range(0, n_keys, width):
        v = torch.zeros_like(call.v)
        count = min(width, n_keys - start)
        v[:, :, start : start + count, :count] = torch.eye(count, dtype=v.dtype, device=v.device)
        parts.append(call.again(q, v, **named)[..., :count])
    return torch.cat(parts, -1).nan_to_num(0.0)


def sinks_of(call: BackendCall) -> Tensor | None:
    """Return the sinks of a layer, (H,), from its module if the backend was not given them."""
    own = getattr(call.module, "sinks", None)
    sinks = own if isinstance(own, Tensor) and own.ndim == 1 else call.named.get("s_aux")
    return sinks.detach() if isinstance(sinks, Tensor) and sinks.shape == call.q.shape[1:2] else None


def softcap_of(config: Any) -> float | None:
    """Return the soft-cap that a config names; None for none."""
    cap = getattr(config, "attn_logit_softcapping", None)
    return float(cap) if isinstance(cap, int | float) and cap else None


def layer_number(call: BackendCall) -> int:
    """Return the number of a layer: the module's own, or the order of calls."""
    own = getattr(call.module, "layer_idx", None)
    return own if isinstance(own, int) and not call.part else call.layer


def layer_name(call: BackendCall) -> str:
    """Return the name of a layer, such as `L3`."""
    return f"{call.part} L{layer_number(call)}".strip()


def window_of(config: Any, call: BackendCall) -> tuple[int | None, bool]:
    """Return the window that a config gives a layer (None for none), and whether its kind is known."""
    kinds, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    number = layer_number(call)
    width = window if isinstance(window, int) and window > 0 else None
    if isinstance(kinds, list | tuple) and number < len(kinds):
        kind = kinds[number]
        if kind == "sliding_attention":
            return width, width is not None
        return None, kind == "full_attention"
    if getattr(config, "use_sliding_window", True) is False:
        return None, True
    other_keys = ("attention_window", "local_attention", "attention_chunk_size", "window_size", "attention_types")
    if width is None and any(getattr(config, name, None) for name in other_keys):
        return None, False
    return width, True


def _wide(tensor: Tensor, like: Tensor) -> Tensor:
    """Repeat key/value heads for their query heads."""
    return tensor.repeat_interleave(like.shape[1] // tensor.shape[1], dim=1)


def _index(tensor: Tensor, flat: int) -> tuple[int, ...]:
    return tuple(int(n) for n in torch.unravel_index(torch.tensor(flat), tensor.shape))
