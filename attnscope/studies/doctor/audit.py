"""Read from a running backend which keys it lets a query see, and how it turns scores into weights.

An implementation of attention is linear in the values: run once more on values that are rows of the identity, it
returns its own weights. With queries of zero, these are equal on all keys that it lets a query see, and exactly 0 on
others, whatever the content, the type of the numbers and the implementation. Neither needs weights that a backend
returns, so kernels that return none are read as well.
"""

from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from attnscope.engines.transformers.backends import BackendCall
from attnscope.findings.doctor import OF_ROW, PAIRS
from attnscope.studies.check.rounding import FLOOR
from attnscope.studies.doctor.batches import ExaminedBatch
from attnscope.studies.doctor.subject import Subject

RUNS = 3  # random roundings whose largest effect is a limit
_FACTOR = 2.0
_BUDGET = 3e9  # multiplications beyond which layers that share a mask are read once
NO_INTERFACE = "the model's attention does not run through the interface of transformers, so masks cannot be read"


@dataclass(frozen=True)
class Finding:
    """The worst observation of one kind."""

    value: float
    limit: float  # the largest value that is ok
    layer: str  # with its stack in an encoder-decoder
    # row of the batch, and positions of the query and, if there is one, of the key
    index: tuple[int, ...]
    head: int | None = None  # None for all
    cells: int = 0  # number of wrong pairs of a query and a key
    note: str = ""  # what it is
    unit: str = ""  # what the value is; empty for that of the check

    @property
    def share(self) -> float:
        """Value as a share of the limit."""
        if self.value != self.value:
            return float("inf")
        return self.value / max(self.limit, 1e-300)


@dataclass
class Audit:
    """Read how a backend attends in a batch."""

    subject: Subject
    batch: ExaminedBatch
    backend: str
    # the decoder's input in an encoder-decoder; `batch` is then the encoder's
    decoder: ExaminedBatch | None = None
    layers: int = 0  # number of layers that were read
    # by check
    read: set[str] = field(default_factory=set)  # checks that masks were read for
    leaks: dict[str, Finding] = field(default_factory=dict)  # keys that queries see and should not
    # keys that queries should see and do not
    hidden: dict[str, Finding] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)  # other measurements
    skipped: dict[str, str] = field(default_factory=dict)  # why it was not measured
    # the widest observed window, by width of a configured one
    widest: dict[int, int] = field(default_factory=dict)
    returned: int = 0  # layers that returned weights
    _masks: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)

    @property
    def unread(self) -> str | None:
        """Why masks were not read; None if they were."""
        if self.layers:
            return self.skipped.get("masks")
        return NO_INTERFACE

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
            self.skipped["masks"] = (
                "the mask adds numbers to scores, or the backend takes no other values"
            )
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
        if fits and call.q.ndim == 4 and len(call.q) == len(queries.ids):
            return queries, keys
        return None

    def _measure(self, name: str, call: BackendCall, values: Tensor, limit: float) -> None:
        """Keep the largest value, (B, H, Q) or (B, H, Q, K)."""
        row, head, *tokens = _index(values)
        value = float(values[row, head, *tokens])
        self._worst(
            self.findings, name, Finding(value, limit, layer_name(call), (row, *tokens[:2]), head)
        )

    def _scores(self, call: BackendCall, queries: ExaminedBatch, keys: ExaminedBatch) -> None:
        scores = (call.q.double() @ _wide(call.k, call.q).double().mT).abs()  # (B, H, Q, K)
        barred = (
            queries.padding.to(scores.device)[:, None, :, None]
            | keys.padding.to(scores.device)[:, None, None]
        )
        # also the scale is applied after the product in eager attention: the product itself has to fit
        self._measure(
            "score_range",
            call,
            scores.masked_fill(barred, 0.0),
            float(torch.finfo(call.q.dtype).max),
        )

    def _uniform(self, call: BackendCall) -> Tensor | None:
        """Return weights of zero queries, (B, H, Q, K), above 0 on allowed keys; None if the mask prevents that."""
        if isinstance(call.mask, Tensor) and call.mask.is_floating_point():
            numbers = call.mask[(call.mask != 0) & (call.mask > -1e3)]
            if numbers.numel() and not bool((numbers == 1).all()):
                return None
        # a key that calls with the same mask share
        key = (
            call.part,
            id(call.mask),
            call.function,
            call.named.get("sliding_window"),
            type(call.module),
        )
        repeated = self._is_large(call)
        if repeated and key in self._masks:
            return self._masks[key]
        bias = call.named.get("position_bias")
        if bias is None:
            arguments = {}
        else:
            arguments = {"position_bias": bias.masked_fill(bias > -1e3, 0.0)}
        try:
            weights = weights_of(call, torch.zeros_like(call.q), **arguments)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return None
        if repeated:
            self._masks[key] = weights
        return weights

    def _is_large(self, call: BackendCall) -> bool:
        """Tell whether reading the weights of every layer takes too long."""
        n_keys = call.k.shape[2]
        width = call.v.shape[-1]
        work = call.q.shape[:3].numel() * n_keys * (call.q.shape[-1] + width)
        layers = getattr(self.subject.config, "num_hidden_layers", None) or 1
        return bool(work * -(-n_keys // width) * layers > _BUDGET)

    def _masks_of(
        self, call: BackendCall, queries: ExaminedBatch, keys: ExaminedBatch, seen: Tensor
    ) -> None:
        device = seen.device
        real = queries.real.to(device)[:, :, None] & keys.real.to(device)[:, None]  # (B, Q, K)
        causal = self._is_causal(call)
        if call.part != "cross":
            window, told = window_of(self.subject.config, call)
        else:
            window = None
            told = True
        own = queries is keys
        expected = real
        if own:
            expected = queries.expected(causal=bool(causal), window=window).to(device)
        distance = torch.arange(seen.shape[2], device=device)[:, None] - torch.arange(
            seen.shape[3], device=device
        )
        rows = queries.real.to(device)[:, :, None]
        barred_by_mask = keys.padding if keys.attended is None else ~keys.attended
        padding = keys.padding.to(device)[:, None]
        stated = barred_by_mask.to(device)[:, None]
        has_mask = keys.attended is not None or keys.allowed is not None
        forbidden = {"padding": rows & padding & stated} if has_mask else {}
        forbidden["padding_mask"] = rows & padding & ~stated if has_mask else rows & padding
        if own:
            same_document = real
            if queries.documents is not None:
                documents = queries.documents.to(device)
                same_document = real & (documents[:, :, None] == documents[:, None])
                forbidden["packed_documents"] = real & ~same_document
            if causal and queries.allowed is None:
                forbidden["future"] = real & (distance < 0) & ~expected
            if window is not None:
                forbidden["window"] = same_document & (
                    (distance >= window) if causal else (distance.abs() > window)
                )
            if queries.allowed is not None:
                forbidden["mask_4d"] = rows & ~expected
        anywhere = seen.any(1)  # (B, Q, K)
        for name, barred in forbidden.items():
            self._leak(name, call, seen, barred & anywhere)
            self.read.add(name)
        everywhere = seen.all(1)
        if own and causal is not None and told:
            lacking = expected & real & ~everywhere
            later = distance < 0
            if queries.allowed is not None:
                split = {"mask_4d": lacking}
            elif not causal:
                split = {"backend": lacking}
                if window is not None:
                    split["window"] = lacking & ~later
            else:
                earlier = "backend" if window is None else "window"
                split = {"prefix": lacking & later, earlier: lacking & ~later}
            for name, cells in split.items():
                self._hide(name, call, seen, cells)
        if own and queries.prefix is not None:
            self.read.add("prefix")
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
        if self.subject.kind is None:
            return None
        return self.subject.kind == "causal"

    def _leak(self, name: str, call: BackendCall, seen: Tensor, cells: Tensor) -> None:
        if not cells.any():
            return
        leaks = seen & cells[:, None]
        weights = weights_of(call, call.q).masked_fill(~leaks, 0.0)
        value = float(weights.sum(-1).max())
        if not value > 0:
            weights = leaks.float()
            value = 0.0
        row, head, token = _index(weights.sum(-1))  # (B, H, Q)
        key = int(weights[row, head, token].argmax())
        self._worst(
            self.leaks,
            name,
            Finding(
                value,
                0.0,
                layer_name(call),
                (row, token, key),
                head,
                int(cells.sum()),
                unit=OF_ROW,
            ),
        )

    def _hide(self, name: str, call: BackendCall, seen: Tensor, cells: Tensor) -> None:
        if not cells.any():
            return
        row, token, key = cells.nonzero()[0].tolist()
        head = int((~seen[row, :, token, key]).nonzero()[0])
        count = int(cells.sum())
        self._worst(
            self.hidden,
            name,
            Finding(
                float(count), 0.0, layer_name(call), (row, token, key), head, count, unit=PAIRS
            ),
        )

    def _empty_rows(self, call: BackendCall, queries: ExaminedBatch, empty: Tensor) -> None:
        bad = ~call.output.isfinite().flatten(2).all(-1)  # (B, Q)
        rows = bad if bad.any() else empty
        if not rows.any():
            return
        row, token = rows.nonzero()[0].tolist()
        what = "padding" if queries.padding[row, token] else "a token"
        note = f"attention gives numbers that are not finite for {what}"
        if rows is empty:
            note = "tokens of a text that may attend to nothing"
        count = int(rows.sum())
        finding = Finding(float(count), 0.0, layer_name(call), (row, token), cells=count, note=note)
        self._worst(self.leaks, "fully_masked", finding)

    def _numbers(
        self, call: BackendCall, queries: ExaminedBatch, seen: Tensor, uniform: Tensor
    ) -> None:
        real = queries.real.to(seen.device)
        self._arithmetic(call, seen, real)
        self._sinks(call, seen, real, uniform)
        self._softcap(call, seen, real)
        if isinstance(call.weights, Tensor) and call.weights.shape == seen.shape:
            self.returned += 1
            if "returned_weights" in self.findings and self._is_large(call):
                return
            recomputed = weights_of(call, call.q)
            gap = (
                (call.weights.double() - recomputed.double())
                .abs()
                .masked_fill(~real[:, None, :, None], 0.0)
            )
            self._measure(
                "returned_weights", call, gap, max(1e-5, 4 * float(torch.finfo(call.q.dtype).eps))
            )

    def _arithmetic(self, call: BackendCall, seen: Tensor, real: Tensor) -> None:
        """Compare the output with float64 on the same queries, keys, values and mask."""
        exact = Formula(call, seen, call.named.get("softcap"))
        expected = exact.output()  # (B, H, Q, Ev)
        rows = (real[:, None] & seen.any(-1))[..., None]
        gap = (call.output.transpose(1, 2).double() - expected).abs().masked_fill(~rows, 0.0)
        size = max(1.0, float(expected.masked_fill(~rows, 0.0).abs().max()))
        limit = FLOOR
        if not float(gap.max()) / size <= limit:
            for seed in range(RUNS):
                self.subject.seeds.add(seed)
                moved = (exact.output(seed) - expected).abs().masked_fill(~rows, 0.0)
                limit = max(limit, _FACTOR * float(moved.max()) / size)
        self._measure("backend", call, gap.amax(-1) / size, limit)

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
            self.skipped.setdefault(
                "sinks", f"the sinks take at most {share:.0e} of a row: too little to be seen"
            )
            return
        self._measure("sinks", call, gap, limit)

    def _softcap(self, call: BackendCall, seen: Tensor, real: Tensor) -> None:
        cap = softcap_of(self.subject.config)
        if cap is None:
            return
        exact = Formula(call, seen, cap)
        largest = float(exact.scaled().abs().masked_fill(~seen, 0.0).max())
        if not largest > 0:
            return
        raised = (call.q.double() * (2 * cap / largest)).to(call.q.dtype)
        with_cap, without = (
            replace(exact, call=replace(call, q=raised), cap=c).weights() for c in (cap, None)
        )
        rows = real[:, None, :, None] & seen
        apart = float((with_cap - without).abs().masked_fill(~rows, 0.0).max())
        if apart < 0.02:
            self.skipped.setdefault("softcap", "weights with and without a soft-cap are alike")
            return
        gap = (weights_of(call, raised).double() - with_cap).abs().masked_fill(~rows, 0.0)
        self._measure("softcap", call, gap, apart / 3)

    @staticmethod
    def _worst(worst_findings: dict[str, Finding], name: str, finding: Finding) -> None:
        worst = worst_findings.get(name)
        if worst is None or (finding.share, finding.cells) > (worst.share, worst.cells):
            worst_findings[name] = finding


@dataclass(frozen=True)
class Formula:
    """The textbook's attention in float64, from the inputs of a backend."""

    call: BackendCall
    seen: Tensor  # keys that the backend lets each query see, (B, H, Q, K)
    cap: float | None  # the soft-cap

    def scaled(self, rounded: "Rounding | None" = None) -> Tensor:
        """Scaled scores, (B, H, Q, K)."""
        q = self.call.q.double()
        k = _wide(self.call.k, self.call.q).double()
        scale = self.call.named.get("scaling")
        scores = q @ k.mT
        if rounded is not None and rounded.seed is not None:
            sums = sqrt(q.shape[-1]) * (q.square() @ k.square().mT).sqrt() * rounded.of_sum
            scores = rounded(scores + sums * rounded.noise(scores))
        return scores * (q.shape[-1] ** -0.5 if scale is None else float(scale))

    def weights(self, seed: int | None = None) -> Tensor:
        """Weights, (B, H, Q, K); with a seed, every step is rounded at random to the type of the queries."""
        call = self.call
        cap = self.cap
        rounded = Rounding(call.q.dtype, seed, call.q.device)
        scores = rounded(self.scaled(rounded))
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
        rounded = Rounding(
            self.call.q.dtype, None if seed is None else seed + 1000, self.call.q.device
        )
        weights = self.weights(seed)
        v = _wide(self.call.v, self.call.q).double()
        output = weights @ v
        if rounded.seed is not None:
            sums = sqrt(v.shape[2]) * (weights.square() @ v.square()).sqrt() * rounded.of_sum
            output = output + sums * rounded.noise(output)
        return rounded(output)


class Rounding:
    """Round numbers at random by up to half a step of a type; without a seed, not at all."""

    def __init__(self, dtype: torch.dtype, seed: int | None, device: torch.device) -> None:
        self.seed = seed
        self._device = device
        self._unit = float(torch.finfo(dtype).eps) / 2
        self.of_sum = float(torch.finfo(torch.float32).eps) / 2  # all kernels add in float32
        self._generator = torch.Generator().manual_seed(0 if seed is None else seed)

    def noise(self, like: Tensor) -> Tensor:
        """Return numbers between -1 and 1."""
        return (torch.rand(like.shape, generator=self._generator) * 2 - 1).to(self._device).double()

    def __call__(self, values: Tensor) -> Tensor:
        """Return the values, rounded."""
        if self.seed is None:
            return values
        return values * (1 + self._unit * self.noise(values))


def weights_of(call: BackendCall, q: Tensor, **arguments: Any) -> Tensor:
    """Return the weights that a backend gives these queries, (B, H, Q, K)."""
    n_keys = call.k.shape[2]
    width = call.v.shape[-1]
    if "dropout" in call.named:
        arguments = {"dropout": 0.0, **arguments}
    parts = []
    for start in range(0, n_keys, width):
        v = torch.zeros_like(call.v)
        count = min(width, n_keys - start)
        v[:, :, start : start + count, :count] = torch.eye(count, dtype=v.dtype, device=v.device)
        parts.append(call.again(q, v, **arguments)[..., :count])
    return torch.cat(parts, -1).nan_to_num(0.0)


def sinks_of(call: BackendCall) -> Tensor | None:
    """Return the sinks of a layer, (H,), from its module if the backend was not given them."""
    own = getattr(call.module, "sinks", None)
    sinks = own if isinstance(own, Tensor) and own.ndim == 1 else call.named.get("s_aux")
    if isinstance(sinks, Tensor) and sinks.shape == call.q.shape[1:2]:
        return sinks.detach()
    return None


def softcap_of(config: Any) -> float | None:
    """Return the soft-cap that a config names; None for none."""
    cap = getattr(config, "attn_logit_softcapping", None)
    if isinstance(cap, int | float) and cap:
        return float(cap)
    return None


def layer_number(call: BackendCall) -> int:
    """Return the number of a layer: the module's own, or the order of calls."""
    own = getattr(call.module, "layer_idx", None)
    if isinstance(own, int) and not call.part:
        return own
    return call.layer


def layer_name(call: BackendCall) -> str:
    """Return the name of a layer, such as `L3`."""
    return f"{call.part} L{layer_number(call)}".strip()


def window_of(config: Any, call: BackendCall) -> tuple[int | None, bool]:
    """Return the window that a config gives a layer (None for none), and whether its kind is known."""
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    layer = layer_number(call)
    width = window if isinstance(window, int) and window > 0 else None
    if isinstance(kinds, list | tuple) and layer < len(kinds):
        layer_type = kinds[layer]
        if layer_type == "sliding_attention":
            return width, width is not None
        return None, layer_type == "full_attention"
    if getattr(config, "use_sliding_window", True) is False:
        return None, True
    other_keys = (
        "attention_window",
        "local_attention",
        "attention_chunk_size",
        "window_size",
        "attention_types",
    )
    if width is None and any(getattr(config, name, None) for name in other_keys):
        return None, False
    return width, True


def _wide(tensor: Tensor, like: Tensor) -> Tensor:
    """Repeat key/value heads for their query heads."""
    return tensor.repeat_interleave(like.shape[1] // tensor.shape[1], dim=1)


def _index(values: Tensor) -> tuple[int, ...]:
    """Return the indices of the largest value."""
    return tuple(int(n) for n in torch.unravel_index(values.argmax(), values.shape))
