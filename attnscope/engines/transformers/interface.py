"""Receive calls of the attention interface of `transformers` and compute them with `attend`."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor, nn

from attnscope.base.errors import AttnscopeError, arg
from attnscope.engines.transformers.followed import REFUSED, following
from attnscope.engines.transformers.taken_outputs import TakenOutputs
from attnscope.model.attention import attended
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.masks import intersect
from attnscope.request.masks.terms import Bidirectional, Causal, Mask, SlidingWindow

NAME = "attnscope"  # our name in the attention interface of `transformers`
RELATIVE = "relative position"  # name of a bias for every pair of positions
_CROSS = re.compile(
    r"(?i)\.(encoder_?attn|encdecattention|cross_?attn|cross_?attention|encoder_attention)\b"
)
_OUT = re.compile(r"o_proj|out_proj|c_proj|o|Wo|out_lin|dense|output\.dense|output")
# Arguments that models pass along, and that eager attention ignores as well, or uses as we do.
_INERT = frozenset(
    "position_ids cache_position position_embeddings cache past_key_values past_key_value token_type_ids "
    "cu_seq_lens_q cu_seq_lens_k cu_seqlens max_seqlen max_length_q max_length_k seq_idx input_ids padding_mask".split()
)


class StopForward(Exception):
    """Raised after the last recorded layer: the rest of the model need not run."""


@dataclass(frozen=True)
class ProvidedMask(Mask):
    """A mask that `transformers` made: (B or 1, H or 1, Q, K), True where allowed, or added to the scores."""

    tensor: Tensor
    floor: float | None  # for an added mask, values at or below this mask a key

    @property
    def per_head(self) -> bool:
        return self.tensor.shape[1] > 1

    def allowed(self, q: Tensor, k: Tensor, heads: Tensor | None = None) -> Tensor:
        """Look up the mask; a number above the floor allows a key."""
        part = self._cells(q, k, heads)
        if self.floor is None:
            return part
        return part > self.floor

    def bias(self, q: Tensor, k: Tensor, heads: Tensor) -> Tensor:
        """Return the bias on allowed keys, (B or 1, h or 1, Q, K); see AttentionSpec.bias."""
        part = self._cells(q, k, heads)
        return part.masked_fill(part <= (self.floor or 0.0), 0.0).float()

    def _cells(self, q: Tensor, k: Tensor, heads: Tensor | None) -> Tensor:
        if heads is None or not self.per_head:
            return self.tensor[..., q, k]
        return self.tensor[:, heads[:, None, None], q, k]


OnAttention = Callable[[str, nn.Module, AttentionInputs], Tensor]


class AttentionCapture:
    """One run of a model: maps modules to layers, and passes on their calls.

    `on_attention` receives the part (`encoder`, `decoder`, `cross`; empty if there is only one), the module and the
    call, and gives the output, (B, H, Q, Ev). `call_layers` has the layer of each call of a part, in order, if its
    modules do not know it. `gated` are the names of modules with a gate, `attending` of those whose calls are passed
    on; empty for all. `projection` is the output projection of the
    latest layer; None if it was not found. If `lean`, no mask is made where a plain causal one is meant, or a window:
    its size is that of a matrix. Then padding has to be behind the texts, where no token sees it.
    """

    def __init__(
        self,
        model: Any,
        on_attention: OnAttention,
        call_layers: Mapping[str, Sequence[int]] | None = None,
        gated: Collection[str] = (),
        attending: Collection[str] = (),
        *,
        lean: bool = False,
    ) -> None:
        self._model = model
        self.lean = lean
        self._on_attention = on_attention
        self._call_layers = call_layers or {}
        self.projection: nn.Module | None = None
        self._names = {id(module): name for name, module in model.named_modules()}
        self._attending = frozenset(attending)
        self._gated = {model.get_submodule(name) for name in gated}
        twice = {module for module in model.modules() if module in CALLED_TWICE}
        self.taken_outputs = TakenOutputs(self._gated | set(selecting_modules(model)) | twice)
        self._seen: Counter[str] = Counter()
        self._layers: set[tuple[str, int]] = set()
        self._found: dict[tuple[int, str], tuple[Tensor, bool]] = {}
        # queries and keys of each module's latest call, and the part of its output that belongs to a second call
        self._latest: dict[nn.Module, tuple[ref[Tensor], ref[Tensor]]] = {}
        self._second_output: dict[nn.Module, Tensor] = {}

    def run_attention(
        self,
        module: nn.Module,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        more: dict[str, Any],
    ) -> Tensor:
        """Return one layer's attention; the arguments are those of the attention interface of transformers."""
        if self.taken_outputs.instead is not None:
            self.taken_outputs.values.append(v)
            return self.taken_outputs.instead
        unwatched = self._attending and self._names.get(id(module)) not in self._attending
        latest = None if unwatched else self._latest.get(module)
        if latest is not None and latest[0]() is q and latest[1]() is k:
            # the second values of a module, whose first call has shown both (Diff Llama)
            CALLED_TWICE.add(module)
            second = self._second_output.pop(module, None)
            if second is not None:
                return second
            unwatched = True
        if unwatched:
            return attended(AttentionInputs(0, q, k, v, self._spec(q, k, mask, more, layer=0)))
        self._latest[module] = ref(q), ref(k)
        part, layer = self._locate(module)
        if q.ndim != 4 or q.shape[1] % k.shape[1]:
            raise unsupported_attention(
                f"queries of shape {list(q.shape)} and keys of shape {list(k.shape)}", layer
            )
        mask, before = self._selected(module, mask, more, q.shape[1], k.shape[2])
        spec = self._spec(q, k, mask, more, layer)
        unselective = None if before is None else provided_mask(before, q, k, layer)
        weight = self._out_weight(module, q.shape[1] * v.shape[-1])
        inputs = AttentionInputs(layer, q, k, v, spec, weight, unselective=unselective)
        if module not in CALLED_TWICE or self.taken_outputs.has_cache(module):
            return self._on_attention(part, module, inputs)
        values = self.taken_outputs.values_of(module, _output_like(inputs))
        output = self._on_attention(
            part, module, replace(inputs, v=torch.cat(values, -1), out_weight=None)
        )
        self._second_output[module] = output[..., v.shape[-1] :]
        return output[..., : v.shape[-1]]

    def following(self) -> AbstractContextManager[None]:
        """Follow the operators of a model that does not call the attention interface."""
        if through_interface(self._model):
            return nullcontext()
        return following(self._model, self.run_attention)

    def gate_of(self, module: nn.Module, inputs: AttentionInputs) -> Tensor | None:
        """Return the gate of a module that is running, (B, H, Q, Ev or 1); None if it has none."""
        if module not in self._gated or self.projection is None:
            return None
        gate = self.taken_outputs.gate(module, self.projection, _output_like(inputs))
        if gate is None:
            raise unsupported_attention("an output that no gate explains", inputs.layer)
        return gate

    def replace_taken(self, inputs: AttentionInputs, replace_: Callable[[Tensor], None]) -> None:
        """Let a function change what the output projection of the running module takes next, (B, H, Q, Ev)."""
        assert self.projection is not None
        self.taken_outputs.change_next(self.projection, _output_like(inputs), replace_)

    def _selected(
        self,
        module: nn.Module,
        mask: Tensor | None,
        more: dict[str, Any],
        n_heads: int,
        n_keys: int,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the mask that an indexer's choice of keys makes, and the one before; None without an indexer."""
        indices = more.pop("indices", None)
        if isinstance(indices, Tensor) and mask is not None:
            return selected_keys(mask, indices[:, None], n_keys), mask
        size = getattr(getattr(module, "indexer", None), "block_size", None)
        if (
            isinstance(blocks := more.get("block_indices"), Tensor)
            and mask is not None
            and isinstance(size, int)
        ):
            del more["block_indices"]
            return selected_keys(mask, blocks, n_keys, size, n_heads), mask
        before = None
        if has_indexer(module):
            before = self.taken_outputs.argument(module, "attention_mask")
        same = isinstance(before, Tensor) and mask is not None and before.shape == mask.shape
        return mask, before if same else None

    def _locate(self, module: nn.Module) -> tuple[str, int]:
        """Find part and layer: the module's own number, or the order of calls if that is missing or taken."""
        name = self._names.get(id(module), "")
        part = part_of(name) if self._model.config.is_encoder_decoder else ""
        if call_layers := self._call_layers.get(part):
            order = self._seen[part]
            self._seen[part] += 1
            return part, call_layers[order % len(call_layers)]
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int) or layer < 0 or (part, layer) in self._layers:
            layer = self._seen[part]
        self._seen[part] += 1
        self._layers.add((part, layer))
        return part, layer

    def _out_weight(self, module: nn.Module, width: int) -> Tensor | None:
        """Return the output projection, (D, H·Ev), under a usual name in the module or, as in BERT, beside it."""
        parent = self._names.get(id(module), "").rpartition(".")[0]
        for holder in (module, self._model.get_submodule(parent)):
            for name, child in holder.named_modules():
                # a module with modules inside, such as LoRA's, adds something to its weight
                plain = _OUT.fullmatch(name) and next(child.children(), None) is None
                weight = getattr(child, "weight", None) if plain else None
                if isinstance(weight, Tensor) and weight.ndim == 2:
                    laid = weight.T if type(child).__name__ == "Conv1D" else weight
                    if laid.shape[1] == width:
                        self.projection = child
                        return laid
        self.projection = None
        return None

    def _spec(
        self, q: Tensor, k: Tensor, mask: Tensor | None, more: dict[str, Any], layer: int
    ) -> AttentionSpec:
        settings = dict(more)
        scale = settings.pop("scaling", None)
        cap = settings.pop("softcap", None)
        sinks = settings.pop("s_aux", None)
        if isinstance(of_queries := settings.pop("sinks", None), Tensor):  # (B, H, Q, 1)
            sinks = of_queries[..., 0]
        position = settings.pop("position_bias", None)
        for name, value in settings.items():
            if isinstance(value, Tensor) and name not in _INERT:
                raise unsupported_attention(f"a tensor '{name}'", layer)
        given = None
        parts = list[Callable[[Tensor, Tensor, Tensor], Tensor]]()
        if position is not None and self._ask(position, "nothing", lambda t: ~t.any()):
            position = None  # 0 everywhere, as T5's is between its halves
        if position is not None:  # a table for all positions, (B or 1, H, Q, K)
            parts.append(lambda q, k, heads: position[:, heads][..., q, k].float())
        plain: Mask = Causal() if self.lean else Bidirectional()
        if mask is not None and self.lean and mask.dtype == torch.int32:
            plain = intersect((Causal(), SlidingWindow(int(mask))))
        elif mask is not None:
            given = provided_mask(mask, q, k, layer)
            floor = given.floor
            # it may hold numbers other than 0 and "never"
            if floor is not None and self._ask(
                given.tensor, "bias", lambda t: ((t != 0) & (t > floor)).any()
            ):
                parts.append(given.bias)

        def bias(q: Tensor, k: Tensor, heads: Tensor) -> Tensor:
            return sum((part(q, k, heads) for part in parts[1:]), start=parts[0](q, k, heads))

        bias_name = "position" if parts else None
        if position is not None:
            bias_name = RELATIVE
        return AttentionSpec(
            scale=float(q.shape[-1] ** -0.5 if scale is None else scale),
            mask=given or plain,
            softcap=cap,
            bias=bias if parts else None,
            bias_name=bias_name,
            sinks=sinks,
        )

    def _ask(self, tensor: Tensor, question: str, answer: Callable[[Tensor], Tensor]) -> bool:
        """Answer a question about a tensor, once if layers share it."""
        key = tensor.data_ptr(), question
        if key not in self._found:
            # kept, so that its memory is not reused
            self._found[key] = tensor, bool(answer(tensor))
        return self._found[key][1]


def _output_like(inputs: AttentionInputs) -> Tensor:
    """Return a tensor with the shape and type of the output of attention, (B, H, Q, Ev)."""
    return inputs.v.new_empty(1).expand(*inputs.q.shape[:3], inputs.v.shape[-1])


def provided_mask(mask: Tensor, q: Tensor, k: Tensor, layer: int) -> ProvidedMask:
    """Return the mask that transformers made for these queries and keys."""
    if (
        mask.ndim != 4
        or mask.shape[1] not in (1, q.shape[1])
        or mask.shape[2] not in (1, q.shape[2])
    ):
        raise unsupported_attention(f"a mask of shape {list(mask.shape)}", layer)
    floor = None if mask.dtype == torch.bool else torch.finfo(mask.dtype).min / 2
    keys = mask[..., : k.shape[2]]
    if keys.shape[2:] != (q.shape[2], k.shape[2]):  # one row for all queries, or one cell
        keys = keys.expand(-1, -1, q.shape[2], k.shape[2])
    return ProvidedMask(keys, floor)


def selected_keys(
    mask: Tensor, indices: Tensor, n_keys: int, size: int = 1, n_heads: int = 1
) -> Tensor:
    """Return a mask (B, 1 or H, Q, K) without the keys that an indexer leaves out.

    Args:
        indices: The blocks of keys that it selects, (B, heads of the indexer, Q, top); negative ones are none.
        size: Keys in a block.
        n_heads: Heads that those of the indexer serve, as many each.
    """
    n_blocks = -(-n_keys // size)
    rows = indices.new_zeros((*indices.shape[:3], n_blocks + 1), dtype=torch.bool)
    places = torch.where(indices < 0, n_blocks, indices).long()
    blocks = rows.scatter(-1, places, value=True)[..., :n_blocks]
    selected = blocks.repeat_interleave(size, dim=-1)[..., :n_keys]
    if indices.shape[1] > 1:
        selected = selected.repeat_interleave(n_heads // indices.shape[1], dim=1)
    if mask.dtype == torch.bool:
        return mask & selected
    return mask.expand(-1, selected.shape[1], -1, -1).masked_fill(
        ~selected, torch.finfo(mask.dtype).min
    )


def has_indexer(module: nn.Module) -> bool:
    """Tell whether a module has an indexer, which selects the keys of every query."""
    return any(type(child).__name__.endswith("Indexer") for child in module.children())


def selecting_modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules of a model that have an indexer."""
    return [module for module in model.modules() if has_indexer(module)]


def part_of(name: str) -> str:
    """Tell which part of a model with two halves a module belongs to, by its name."""
    # Seamless M4T has encoders of sound, too
    words = [word.removeprefix("text_") for word in name.split(".")]
    halves = [word for word in words if word in ("encoder", "decoder")]
    if halves[:1] != ["decoder"]:
        return "encoder"
    if _CROSS.search("." + name):
        return "cross"
    return "decoder"


def unsupported_attention(what: str, layer: int) -> AttnscopeError:
    """Return the error for attention with unsupported features."""
    message = f"layer {layer} passes {what} to its attention"
    return AttnscopeError(message, where=arg("model"), hint=REFUSED)


def check_sizes(inputs: AttentionInputs, expected: tuple[int, ...]) -> None:
    """Refuse attention that is not between the tokens: texts, queries and keys are counted."""
    texts, _, queries, _ = inputs.q.shape
    n_keys = inputs.k.shape[2]
    if (texts, queries, n_keys) != expected:
        raise unsupported_attention(
            f"{queries} queries and {n_keys} keys, not one for each token,", inputs.layer
        )


# Modules that pass two sets of values with the same queries and keys, one after the other, as a first run has shown.
CALLED_TWICE: WeakSet[nn.Module] = WeakSet()
# Modules by which each token attends to what earlier layers gave for it, not to other tokens (Inkling 2).
OVER_LAYERS: WeakSet[nn.Module] = WeakSet()
# Models that were seen to compute attention by operators of their own.
FOLLOWED: WeakSet[nn.Module] = WeakSet()
# The attention that modules of borrowed models have otherwise. Entries stay: a call in another thread may end later.
OWN_ATTENTION: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
_active: ContextVar[AttentionCapture] = ContextVar("attnscope_session")


@contextmanager
def capturing(session: AttentionCapture) -> Iterator[None]:
    """Send the attention calls of models that run inside the block to this session."""
    token = _active.set(session)
    try:
        with session.taken_outputs.listening(), session.following():
            yield
    except StopForward:
        pass
    finally:
        _active.reset(token)


def first_queries(
    model: nn.Module, run: Callable[..., Any], inputs: Mapping[str, Any]
) -> Tensor | None:
    """Run a model, or a part of it, up to its first attention, whose queries it returns, (B, H, Q, E); None for none."""
    queries: list[Tensor] = []

    def on_attention(part: str, module: nn.Module, attention: AttentionInputs) -> Tensor:
        queries.append(attention.q)
        raise StopForward

    with torch.inference_mode(), capturing(AttentionCapture(model, on_attention)):
        run(**inputs)
    return next(iter(queries), None)


def through_interface(model: Any) -> bool:
    """Tell whether a model runs through the attention interface of transformers; else its operators are followed."""
    return bool(model.config._attn_implementation == NAME)


def register() -> None:
    """Register our attention with transformers, with the masks of its eager attention."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)


def _mask(*args: Any, **named: Any) -> Tensor | None:
    """Return the mask of eager attention; in a lean session, that of a kernel, which is None for a plain causal one."""
    from transformers.masking_utils import eager_mask, sdpa_mask

    session = _active.get(None)
    if session is None or not session.lean:
        mask: Tensor | None = eager_mask(*args, **named)
        return mask
    if (window := _plain_window(**named)) is not None:
        return window
    mask = sdpa_mask(
        *args, **named | {"attention_mask": None, "allow_is_bidirectional_skip": False}
    )
    return mask


def _plain_window(
    *,
    q_length: int,
    kv_length: int,
    mask_function: Callable[[int, int, Tensor, Tensor], Tensor],
    local_size: int | None = None,
    allow_is_causal_skip: bool = False,
    device: torch.device | str = "cpu",
    **_: Any,
) -> Tensor | None:
    """Return the length of a causal sliding window in place of its mask, (1, 1, 1, 1); None for any other mask.

    A mask of a long text would take more memory than all the rest. Chunks have a length, too; their last two rows are
    not those of a window.
    """
    if local_size is None or not allow_is_causal_skip or q_length != kv_length:
        return None
    keys = torch.arange(kv_length, device=device)
    for query in (kv_length - 1, kv_length - 2):
        visible = mask_function(0, 0, keys.new_tensor(query), keys)
        if not torch.equal(visible, (keys <= query) & (keys > query - local_size)):
            return None
    return torch.full((1, 1, 1, 1), local_size, dtype=torch.int32, device=device)


def _own_attention(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return the attention that a module of a borrowed model has otherwise; the masks of eager attention suit it."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    files = (vars(sys.modules[base.__module__]) for base in type(module).__mro__)
    eager = next(
        (names["eager_attention_forward"] for names in files if "eager_attention_forward" in names),
        None,
    )
    own: Callable[..., tuple[Tensor, Tensor | None]] = ALL_ATTENTION_FUNCTIONS.get(
        OWN_ATTENTION[module], eager
    )
    return own


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention in place of transformers' own, (B, Q, H, Ev)."""
    session = _active.get(None)
    if session is None:
        # The owner of a borrowed model runs it in another thread.
        return _own_attention(module)(module, query, key, value, attention_mask, **more)
    output = session.run_attention(module, query, key, value, attention_mask, more)
    return output.transpose(1, 2).contiguous(), None
