"""Read what layers without softmax mix tokens by, where transformers computes it.

The functions that do so have the same names and arguments in every file of models, so that each kind has one reader.
What is read is handed over when the module that called the function ends: a gate is known only then.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.model.matmul import has_float64
from attnscope.model.mixing import MixingInputs
from attnscope.model.module_hooks import in_this_thread, listening

OnMixing = Callable[[MixingInputs], None]
_LIGHTNING = re.compile(r"\w+LightningAttention")
_GATED_NORM = re.compile(r"\w+RMSNormGated")
_RESET = -1e4  # log of a decay that leaves nothing, finite so that differences of sums are
_EPSILON = 1e-6  # of the L2 norm of queries and keys


def _by_head(tensor: Tensor) -> Tensor:
    """Return (B, T, H, …) as (B, H, T, …)."""
    return tensor.transpose(1, 2)


def _delta_rule(arguments: Mapping[str, Any], output: Any) -> MixingInputs:
    """Read a call of the gated delta rule, or of Kimi's, whose decay has a number for each channel."""
    q, k, g = (_by_head(arguments[name].float()) for name in ("query", "key", "g"))
    if arguments.get("use_qk_l2norm_in_kernel"):
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + _EPSILON) for x in (q, k))
    by_channel = g.ndim == 4
    kind = "gated delta"
    if by_channel:
        kind = "kimi delta"
    return MixingInputs(
        kind=kind,
        q=q * q.shape[-1] ** -0.5,
        k=k,
        v=_by_head(arguments["value"]),
        log_decay=g if by_channel else g[..., None],
        write=_by_head(arguments["beta"]),
        delta=True,
        output=_by_head(output[0]),
    )


def _state_space(arguments: Mapping[str, Any], output: Any) -> MixingInputs:
    """Read a scan of Mamba-2."""
    step = arguments["dt"]
    if arguments.get("dt_bias") is not None:
        step = step + arguments["dt_bias"].to(step.dtype)
    if arguments.get("dt_softplus"):
        step = F.softplus(step)
    # (B, H, T)
    step = _by_head(step.clamp(*arguments.get("dt_limit", (0.0, float("inf")))).float())
    skip = None
    if arguments.get("D") is not None:
        skip = arguments["D"].detach()
    return MixingInputs(
        kind="mamba",
        q=_by_head(arguments["C"]),
        k=_by_head(arguments["B"]),
        v=_by_head(arguments["hidden_states"]),
        log_decay=step[..., None],
        rates=arguments["A"].float()[:, None],
        write=step,
        skip=skip,
        output=_by_head(output[0] if isinstance(output, tuple) else output),
    )


def _channels(arguments: Mapping[str, Any], output: Any) -> MixingInputs:
    """Read a scan of Mamba-1, which has a state for each channel, and multiplies by the gate itself."""
    step = arguments["dt"]
    if arguments.get("delta_bias") is not None:
        step = step + arguments["delta_bias"].to(step.dtype)[..., None]
    if arguments.get("delta_softplus"):
        step = F.softplus(step)
    z = arguments.get("z")
    skip = None
    if arguments.get("D") is not None:
        skip = arguments["D"].detach()
    return MixingInputs(
        kind="mamba-1",
        q=arguments["C"].transpose(1, 2)[:, None],
        k=arguments["B"].transpose(1, 2)[:, None],
        v=arguments["hidden_states"][..., None],
        log_decay=step.float()[..., None],
        rates=arguments["A"].float(),
        write=step.float(),
        skip=skip,
        output=(output[0] if isinstance(output, tuple) else output)[..., None],
        gate=None if z is None else F.silu(z)[..., None],
        gated=z is not None,
    )


def _averages(arguments: Mapping[str, Any], output: Any) -> MixingInputs:
    """Read the average of RWKV-4, which has a weight of each channel."""
    k = arguments["key"].float().transpose(1, 2)[..., None]  # (B, H, T, 1)
    decay = -arguments["time_decay"].float().exp()
    return MixingInputs(
        kind="rwkv",
        q=torch.ones_like(k),
        k=k,
        v=arguments["value"].transpose(1, 2)[..., None],
        log_decay=decay[None, :, None, None].expand_as(k),
        bonus=arguments["time_first"].detach(),
        output=output[0].transpose(1, 2)[..., None],
    )


def _gated_recurrence(
    module: Any, x: Tensor, position_ids: Tensor, *, output: Tensor
) -> MixingInputs:
    """Read a recurrence of channels whose gates are of the channel's own input (De et al., 2024, "Griffin")."""
    blocks = x.float().view(*x.shape[:2], module.num_attention_heads, -1)
    input_gate, decay_gate = (
        (torch.einsum("bthi,hij->bthj", blocks, weight.float()) + bias.float()).flatten(2).sigmoid()
        for weight, bias in (
            (module.input_gate_weight, module.input_gate_bias),
            (module.recurrent_gate_weight, module.recurrent_gate_bias),
        )
    )
    log_decay = -8.0 * decay_gate * F.softplus(module.recurrent_param.float())
    reset = position_ids[..., None] == 0
    kept_size = (1 - (2 * log_decay).exp()).clamp_min(0).sqrt()
    write = input_gate * kept_size.masked_fill(reset, 1.0)
    # before the first token there is nothing to forget: its decay is what it would be elsewhere
    reset = reset & (torch.arange(x.shape[1], device=x.device)[:, None] > 0)
    ones = torch.ones_like(log_decay[:, None, :, :1])
    return MixingInputs(
        kind="rg-lru",
        q=ones,
        k=ones,
        v=x.transpose(1, 2)[..., None],
        log_decay=log_decay.masked_fill(reset, _RESET).transpose(1, 2)[..., None],
        write=write.transpose(1, 2),
        output=output.transpose(1, 2)[..., None],
    )


def _mlstm(
    module: Any,
    *,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    igate: Tensor,
    fgate: Tensor,
    output: Any,
    **_: Any,
) -> MixingInputs:
    """Read the memory of an xLSTM, whose rows are divided by their sum if that is more than 1 (Beck et al., 2024)."""
    log_decay = F.logsigmoid(fgate.float())
    # m, the logarithm of the largest term of each row, with 0 for the state before the text
    passed = log_decay.double() if has_float64(fgate.device) else log_decay
    passed = passed.cumsum(-1)
    largest = passed + (igate - passed).cummax(-1).values.clamp_min(0)
    return MixingInputs(
        kind="mlstm",
        q=query * query.shape[-1] ** -0.5,
        k=key,
        v=value,
        log_decay=log_decay[..., None],
        write=igate.float().exp(),
        output=output[0] if isinstance(output, tuple) else output,
        stabilizer=module.config.eps * largest.exp(),
    )


def _difference(
    module: Any, hidden: Tensor, rotation: tuple[Tensor, Tensor], output: Tensor
) -> MixingInputs:
    """Read differential attention: head h and the one half the heads further on are a pair (DiffLlama)."""
    shape = (*hidden.shape[:2], -1, module.head_dim)
    q, k, v = (
        _by_head(project(hidden).view(shape))
        for project in (module.q_proj, module.k_proj, module.v_proj)
    )
    q, k = sys.modules[type(module).__module__].apply_rotary_pos_emb(q, k, *rotation)
    k, v = (
        x.repeat_interleave(module.num_key_value_groups, 1)
        for x in (k, torch.cat(v.chunk(2, 1), -1))
    )
    first, second = (
        (getattr(module, f"lambda_q{n}") * getattr(module, f"lambda_k{n}")).float().sum().exp()
        for n in (1, 2)
    )
    return MixingInputs(
        kind="differential",
        q=torch.cat(q.chunk(2, 1), -1) * module.scaling,
        k=torch.cat(k.chunk(2, 1), -1),
        v=v,
        log_decay=q.new_zeros(1, 1, 1, 1).expand(*v.shape[:3], 1),
        subtracted=(first - second + module.lambda_init).expand(v.shape[1]),
        output=_by_head(output),
    )


def _falcon_gate(module: Any, projected: Tensor) -> Tensor:
    return F.silu((projected * module.mup_vector)[..., : module.intermediate_size])


_READERS: dict[str, Callable[[Mapping[str, Any], Any], MixingInputs]] = {
    "torch_chunk_gated_delta_rule": _delta_rule,
    "torch_recurrent_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "recurrent_kimi_delta_attention": _delta_rule,
    "mamba2_chunk_scan": _state_space,
    "mamba_selective_scan": _channels,
    "rwkv_linear_attention": _averages,
}


@contextmanager
def watching_mixing(model: nn.Module, on_mixing: OnMixing) -> Iterator[None]:
    """Hand what every layer without softmax mixes tokens by to a function, while the model runs in this thread."""
    calls = _MixingCalls(on_mixing)
    with ExitStack() as stack:
        for file in {type(module).__module__ for module in model.modules()}:
            names = vars(sys.modules[file])
            for name, read in _READERS.items():
                if name in names:
                    stack.enter_context(
                        _replaced(names, name, partial(calls.observe, names[name], read))
                    )
        stack.enter_context(_in_one_piece(model))
        stack.enter_context(
            listening([handle for module in model.modules() for handle in calls.hooks(module)])
        )
        yield


@contextmanager
def _in_one_piece(model: nn.Module) -> Iterator[None]:
    """Let an xLSTM run a long text in one piece, so that each layer is called once."""
    name = "max_inference_chunksize"
    config: Any = model.config
    size = getattr(config, name, None)
    if size is None:
        yield
        return
    setattr(config, name, sys.maxsize)
    try:
        yield
    finally:
        setattr(config, name, size)


class _MixingCalls:
    """What the modules that are running have called, and the gates behind it."""

    def __init__(self, on_mixing: OnMixing) -> None:
        self._on_mixing = on_mixing
        self._running: list[nn.Module] = []
        self._read: list[MixingInputs] = []  # by the innermost module that has called a function
        self._caller: nn.Module | None = None
        self._gate: Tensor | None = None

    def observe(
        self,
        original: Callable[..., Any],
        read: Callable[[Mapping[str, Any], Any], MixingInputs],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call a function of transformers, and read what it was given and what it gives."""
        output = original(*args, **kwargs)
        bound = inspect.signature(original).bind(*args, **kwargs).arguments
        self._read.append(read(bound, output))
        self._caller = self._running[-1]
        return output

    def hooks(self, module: Any) -> Iterator[Any]:
        """Listen to a module."""

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._running.append(module)
            if self._read and _GATED_NORM.fullmatch(type(module).__name__):
                self._read_gate(module, *args, **kwargs)

        def leave(module: nn.Module, _args: Any, _output: Any) -> None:
            self._running.pop()
            if self._read and module is self._caller:
                self._hand_over()

        yield module.register_forward_pre_hook(in_this_thread(enter), with_kwargs=True)
        yield module.register_forward_hook(in_this_thread(leave))
        if _LIGHTNING.fullmatch(type(module).__name__):
            yield from self._lightning_hooks(module)
        match type(module).__name__:
            case "RwkvSelfAttention":
                yield self._gate_hook(module.receptance, torch.sigmoid)
            case "FalconH1Mixer" if not module.mamba_rms_norm:
                yield self._gate_hook(module.in_proj, partial(_falcon_gate, module))
            case "RecurrentGemmaRecurrentBlock":
                yield self._gate_hook(module.linear_y, module.act_fn)
                yield self._output_hook(module, module.rg_lru, _gated_recurrence)
            case "DiffLlamaAttention":
                yield from self._difference_hooks(module)
            case "xLSTMLayer":
                if module.config.weight_mode == "single":
                    yield self._gate_hook(module.ogate_preact, torch.sigmoid)
                yield self._output_hook(module, module.mlstm_backend, _mlstm)

    def _read_gate(self, module: Any, _states: Tensor, gate: Tensor | None = None) -> None:
        """Read the gate that a norm is given: its activation is the norm's, by default that of Mamba-2."""
        if gate is not None:
            self._gate = _activation(getattr(module, "activation", "silu"))(gate.float())

    def _gate_hook(self, projection: nn.Module, activation: Callable[[Tensor], Tensor]) -> Any:
        """Read a gate that is an activation of what a module projects."""

        def read(_module: nn.Module, _args: Any, output: Tensor) -> None:
            self._gate = activation(output.float())

        return projection.register_forward_hook(in_this_thread(read))

    def _output_hook(
        self, caller: nn.Module, module: nn.Module, reader: Callable[..., MixingInputs]
    ) -> Any:
        """Read a module that is called where other layers call a function."""

        def read(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
        ) -> None:
            self._read.append(reader(module, *args, output=output, **kwargs))
            self._caller = caller

        return module.register_forward_hook(in_this_thread(read), with_kwargs=True)

    def _hand_over(self) -> None:
        """Hand over what a module has called: of several calls, one for each head of Mamba-1 (Zamba), all together."""
        inputs = self._read[0] if len(self._read) == 1 else _joined(self._read)
        if self._gate is not None:
            texts, heads, length, width = inputs.v.shape
            inputs = replace(
                inputs, gate=self._gate.reshape(texts, length, heads, width).transpose(1, 2)
            )
        self._read = []
        self._gate = None
        self._on_mixing(inputs)

    def _difference_hooks(self, module: Any) -> Iterator[Any]:
        """Listen to differential attention: what it is given, then what its norm takes."""
        given: dict[str, Any] = {}

        def keep(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given.update(kwargs, hidden_states=kwargs.get("hidden_states", *args[:1]))

        def read(_norm: nn.Module, args: tuple[Tensor, ...]) -> None:
            # in place of what it took while the module ran to show its values
            self._read = [
                _difference(module, given["hidden_states"], given["position_embeddings"], args[0])
            ]
            self._caller = module

        yield module.register_forward_pre_hook(in_this_thread(keep), with_kwargs=True)
        yield module.groupnorm.register_forward_pre_hook(in_this_thread(read))

    def _lightning_hooks(self, module: Any) -> Iterator[Any]:
        """Listen to lightning attention, which is no function: its projection, its norm, then its gate."""
        projected: list[Tensor] = []

        def keep(_module: nn.Module, _args: Any, output: Tensor) -> None:
            projected.append(output)

        def read(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
            self._read.append(_lightning(module, projected.pop(), args[0]))
            self._caller = module

        yield module.qkv_proj.register_forward_hook(in_this_thread(keep))
        yield module.norm.register_forward_pre_hook(in_this_thread(read))
        yield self._gate_hook(module.output_gate, torch.sigmoid)


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    from transformers.activations import ACT2FN

    activation: Callable[[Tensor], Tensor] = ACT2FN[name]
    return activation


def _joined(parts: list[MixingInputs]) -> MixingInputs:
    """Return calls for different heads as one."""
    by_head = ("q", "k", "v", "log_decay", "write", "output", "gate")
    joined: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts], 1) for name in by_head
    }
    of_layer: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in ("rates", "skip")
    }
    return replace(parts[0], **joined, **of_layer)


@contextmanager
def _replaced(names: dict[str, Any], name: str, function: Callable[..., Any]) -> Iterator[None]:
    original = names[name]
    names[name] = in_this_thread(function, original)
    try:
        yield
    finally:
        names[name] = original


def _lightning(module: Any, projected: Tensor, output: Tensor) -> MixingInputs:
    texts, length, _ = projected.shape
    heads = module.num_attention_heads
    q, k, v = torch.split(
        _by_head(module.act_fn(projected).view(texts, length, heads, -1)), module.head_dim, -1
    )
    return MixingInputs(
        kind="lightning",
        q=q,
        k=k,
        v=v,
        log_decay=-module.slope_rate.expand(texts, heads, length, 1),
        output=_by_head(output.view(texts, length, heads, -1)),
    )
