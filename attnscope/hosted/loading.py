"""An opened folder in; a `transformers` model that hands its attention to us, and what it looks like, out.

Nothing is fetched and no code of the folder runs: the config becomes the class that transformers itself has for it, and
the tensors come through our own reader. What the folder does not hold is refused, where transformers would invent it.
"""

import inspect
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.errors import AttnscopeError, UsageError, did_you_mean
from attnscope.folder import Folder
from attnscope.hosted.interface import NAME, Session, register, running
from attnscope.model.attention import attend
from attnscope.model.call import Call
from attnscope.model.tensors import read_tensors

PARTS = ("encoder", "decoder", "cross")
_AFTER = re.compile(r"(.*\.)?pooler\..*")  # what no attention depends on, and checkpoints leave out


@dataclass(frozen=True)
class Part:
    """The attention of one part of a model: one stack of layers.

    Attributes:
        n_layers: Layers.
        n_heads: Query heads in a layer.
        n_kv_heads: Key/value heads.
        d_head: Width of a query.
        d_value: Width of a value.
        scale: Factor on q·k in the first layer.
        projects: The output projection of every layer was found.
    """

    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_value: int
    scale: float
    projects: bool


@dataclass(frozen=True)
class Guest:
    """A loaded model.

    Attributes:
        model: The model of transformers, without heads for tasks.
        parts: Its attention by part; under an empty name where there is only one.
        vocab_size: Rows of the token embedding.
        d_model: Width of the token embedding.
        max_positions: Longest text; None where nothing limits it.
        n_segments: Rows of the segment embedding; 0 where there is none.
        start: The id that a decoder starts with; None where there is none.
        notes: What was left out of the folder.
        chosen: The part whose attention is looked at; empty where there is only one.
    """

    model: Any
    parts: dict[str, Part]
    vocab_size: int
    d_model: int
    max_positions: int | None
    n_segments: int
    start: int | None
    notes: tuple[str, ...]
    chosen: str = ""

    def part(self, name: str | None) -> str:
        """The part that the user means.

        Raises:
            UsageError: The model has none of this name, or several and none was named.
        """
        known = [part for part in self.parts if part]
        if name is None and not known:
            return ""
        if name is None:
            raise UsageError("the model has several parts", where="--part", hint=f"name one of {', '.join(known)}")
        if not known:
            raise UsageError(
                f"the model has no part '{name}'", where="--part", hint="it has only one: leave --part out"
            )
        if name not in known:
            raise UsageError(f"the model has no part '{name}'", where="--part", hint=did_you_mean(name, known))
        return name


def load_guest(folder: Folder, dtype: torch.dtype) -> Guest:
    """Load a checkpoint with transformers, and find out what its attention looks like.

    Raises:
        AttnscopeError: transformers is not installed, does not know the model, does not show its attention, or the
            folder lacks weights.
    """
    hf = _transformers()
    config = _config(hf, folder)
    model, notes = _model(hf, config, folder, dtype)
    table = model.get_input_embeddings()
    text = config.get_text_config()
    return Guest(
        model=model,
        parts=_probe(model, folder),
        vocab_size=table.num_embeddings,
        d_model=table.embedding_dim,
        max_positions=_longest(model, text),
        n_segments=_segments(model, config),
        start=getattr(config, "decoder_start_token_id", None) if config.is_encoder_decoder else None,
        notes=notes,
    )


def _transformers() -> Any:
    """The library, told never to use the network and to keep quiet."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")
    try:
        import transformers
        from transformers import AttentionInterface, AttentionMaskInterface  # noqa: F401  # too old without
    except ImportError as e:
        found = f"transformers cannot be imported ({str(e).splitlines()[0]})"
        raise AttnscopeError(found, where="--engine transformers", hint="install attnscope[transformers]") from e
    hf: Any = transformers
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    register()
    return hf


def _config(hf: Any, folder: Folder) -> Any:
    where = folder.path / "config.json"
    kind = folder.config.get("model_type")
    if not isinstance(kind, str) or kind not in hf.CONFIG_MAPPING:
        found = "the key 'model_type' is missing" if kind is None else f"model_type is {str(kind)[:80]!r}"
        raise AttnscopeError(found, where=where, hint=f"transformers {hf.__version__} has no such model")
    if folder.config.get("quantization_config") is not None:
        raise AttnscopeError("the checkpoint is quantised", where=where, hint="take one with floating-point weights")
    try:
        return hf.CONFIG_MAPPING[kind].from_dict(folder.config)
    except Exception as e:  # whatever a class of transformers makes of a strange value
        raise AttnscopeError(f"transformers refuses it ({_first_line(e)})", where=where) from e


def _model(hf: Any, config: Any, folder: Folder, dtype: torch.dtype) -> tuple[Any, tuple[str, ...]]:
    where = folder.path / "config.json"
    if type(config) not in hf.MODEL_MAPPING:
        found = f"transformers has no model for '{config.model_type}'"
        raise AttnscopeError(found, where=where, hint="attnscope needs one that takes text")
    kind = hf.MODEL_MAPPING[type(config)]
    kind = kind[0] if isinstance(kind, list | tuple) else kind
    tensors = dict(read_tensors(folder, folder.tensors))
    try:
        model, info = kind.from_pretrained(
            None,
            config=config,
            state_dict=tensors,
            dtype=dtype,
            attn_implementation=NAME,
            output_loading_info=True,
            trust_remote_code=False,
            local_files_only=True,
        )
    except KeyError as e:
        if e.args != (NAME,):
            raise AttnscopeError(f"transformers cannot load it ({_first_line(e)})", where=folder.path) from e
        raise _hidden(config.model_type, folder) from e
    except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as e:
        raise AttnscopeError(f"transformers cannot load it ({_first_line(e)})", where=folder.path) from e
    return model.eval(), _account(info, folder)


def _account(info: dict[str, Any], folder: Folder) -> tuple[str, ...]:
    """Refuse what transformers would make up; note what it does not use."""
    missing = sorted(name for name in info["missing_keys"] if not _AFTER.fullmatch(name))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        hint = "transformers would fill it with random numbers; fetch the checkpoint again"
        raise AttnscopeError(f"the tensor '{missing[0]}'{more} is missing", where=folder.path, hint=hint)
    if info.get("mismatched_keys"):
        name = str(sorted(map(str, info["mismatched_keys"]))[0])
        raise AttnscopeError(f"the tensor {name} has another shape than config.json says", where=folder.path)
    unused = sorted(info["unexpected_keys"])
    if not unused:
        return ()
    shown = ", ".join(unused[:3]) + (f" and {len(unused) - 3} more" if len(unused) > 3 else "")
    return (f"tensors that attention does not use: {shown}",)


def _hidden(family: str, folder: Folder) -> AttnscopeError:
    found = f"'{family}' does not run through transformers' attention interface"
    hint = "its scores cannot be seen from outside, and attnscope shows nothing else instead"
    return AttnscopeError(found, where=folder.path, hint=hint)


def _probe(model: Any, folder: Folder) -> dict[str, Part]:
    """Run two tokens, and see which parts, layers and heads there are."""
    seen: dict[str, dict[int, tuple[Call, bool]]] = {}

    def watch(part: str, module: nn.Module, call: Call) -> Tensor:
        seen.setdefault(part, {})[call.layer] = call, call.out_weight is not None
        output = attend(call)
        assert output is not None
        return output

    ids = torch.full((1, 2), min(5, model.get_input_embeddings().num_embeddings - 1))
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    session = Session(model, watch)
    try:
        with torch.inference_mode(), running(session):
            model(input_ids=ids, attention_mask=torch.ones_like(ids), **more)
    except AttnscopeError:
        raise
    except Exception as e:  # two tokens are a text that every language model takes
        found = f"transformers cannot run two tokens through it ({_first_line(e)})"
        raise AttnscopeError(found, where=folder.path, hint="attnscope needs a model that takes text") from e
    if not seen:
        raise _hidden(model.config.model_type, folder)
    return {part: _facts(list(layers.values()), 1 + max(layers), folder) for part, layers in seen.items()}


def _facts(calls: list[tuple[Call, bool]], n_layers: int, folder: Folder) -> Part:
    shapes = {(c.q.shape[1], c.k.shape[1], c.q.shape[-1], c.v.shape[-1]) for c, _ in calls}
    if len({heads for heads, *_ in shapes}) > 1:
        raise AttnscopeError("its layers have different numbers of heads", where=folder.path)
    first = calls[0][0]
    heads, groups, width, value = first.q.shape[1], first.k.shape[1], first.q.shape[-1], first.v.shape[-1]
    return Part(n_layers, heads, groups, width, value, first.rule.scale, all(projects for _, projects in calls))


def _longest(model: Any, config: Any) -> int | None:
    longest = getattr(config, "max_position_embeddings", None)
    if not isinstance(longest, int) or longest < 1:
        return None
    counted = [m.padding_idx for n, m in _tables(model) if "position" in n and m.padding_idx is not None]
    return longest - 1 - counted[0] if counted else longest  # positions that start behind the padding's (RoBERTa)


def _tables(model: nn.Module) -> Iterable[tuple[str, nn.Embedding]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, nn.Embedding))


def _segments(model: Any, config: Any) -> int:
    takes = "token_type_ids" in inspect.signature(model.forward).parameters
    return int(getattr(config, "type_vocab_size", 0) or 0) if takes else 0


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}"
