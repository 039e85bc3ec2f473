"""The model that is examined, as its user calls it."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.engines.transformers.backends import (
    BackendCall,
    OnCall,
    backend_of,
    kind_of,
    using_backend,
    watching,
)
from attnscope.engines.transformers.blocks import cache_argument
from attnscope.engines.transformers.opening import is_pretrained
from attnscope.studies.check.rounding import rounded_again
from attnscope.studies.doctor.any_tokenizer import AnyTokenizer
from attnscope.studies.doctor.operators import RoundedOperators

Call = Callable[[nn.Module, dict[str, Any]], Any]
OWN = "own"  # name of the backend of a module that has no attention interface
# what a loss takes and logits do not need
_NOT_GIVEN = ("labels", "shift_labels", "num_items_in_batch", "return_loss")


@dataclass
class Subject:
    """A model, how it is called, and what is known of it."""

    model: nn.Module
    words: AnyTokenizer
    kind: str | None  # `causal`, `bidirectional`, `encoder-decoder`, or None if unknown
    config: Any  # its config; None for a module without one
    call: Call | None = None
    # the transformers model itself or within wrappers (peft, torch.compile); None if there is none
    core: Any = None
    passes: int = 0  # number of forward passes so far
    seeds: set[int] = field(default_factory=set)  # seeds used so far
    interface: bool = False  # its attention was seen to run through the attention interface

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """Type of its weights."""
        kinds = [p.dtype for p in self.model.parameters() if p.is_floating_point()]
        if kinds:
            return max(set(kinds), key=kinds.count)
        return torch.float32

    @property
    def backend(self) -> str:
        """Name of the implementation of attention that it has."""
        return backend_of(self.core) or OWN

    @property
    def vocab_size(self) -> int | None:
        """Number of tokens that its config names; None if it is not known: a module may have other tables, too."""
        size = getattr(self.config, "vocab_size", None)
        return size if isinstance(size, int) else None

    @property
    def longest(self) -> int | None:
        """Largest number of positions that it was made for; None if unknown."""
        limit = getattr(self.config, "max_position_embeddings", None)
        if isinstance(limit, int) and limit >= 1:
            return limit - (self._after_padding or 0)
        return None

    @property
    def position_offset(self) -> int:
        """Position of the first token: after the padding index (RoBERTa), or as its `position_ids` begin (YOSO)."""
        if self._after_padding is not None:
            return self._after_padding
        held = [
            buffer
            for name, buffer in self.model.named_buffers()
            if name.rpartition(".")[2] == "position_ids"
        ]
        if held and held[0].numel():
            return int(held[0].flatten()[0])
        return 0

    @property
    def _after_padding(self) -> int | None:
        """Index after that of padding in the table of positions, whatever its class; None if it has no such index."""
        tables = [module for name, module in self.model.named_modules() if "position" in name]
        indices = (getattr(module, "padding_idx", None) for module in tables)
        return next((index + 1 for index in indices if isinstance(index, int)), None)

    @property
    def learned_positions(self) -> bool:
        """Whether positions are looked up or added, so that the same text elsewhere gives other numbers."""
        names = [
            name for name, module in self.model.named_modules() if isinstance(module, nn.Embedding)
        ]
        return any(
            name.rpartition(".")[2] in ("wpe", "position_embeddings", "embed_positions")
            for name in names
        )

    @property
    def rotary(self) -> bool:
        """Whether positions rotate queries and keys, so that only distances count."""
        names = [name for name, _ in self.model.named_buffers()]
        return any(name.endswith("inv_freq") for name in names) and not self.learned_positions

    def accepted(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members of a batch that `forward` takes and logits need."""
        inputs = {name: value for name, value in batch.items() if name not in _NOT_GIVEN}
        if self.call is not None:
            return inputs
        parameters = inspect.signature(self.model.forward).parameters.values()
        if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
            return inputs
        return {
            name: value
            for name, value in inputs.items()
            if name in {parameter.name for parameter in parameters}
        }

    def takes(self, name: str) -> bool:
        """Tell whether `forward` has an argument of this name."""
        model = self.model if self.core is None else self.core
        return self.call is None and name in inspect.signature(model.forward).parameters

    @property
    def cache_name(self) -> str | None:
        """Name under which `forward` takes and returns a cache; None if it takes none."""
        if self.call is None:
            return cache_argument(self.model if self.core is None else self.core)
        return None

    def run(self, batch: Mapping[str, Any], on_call: OnCall | None = None, **more: Any) -> Tensor:
        """Run a batch and return its logits, or hidden states, (B, T, D); `more` are arguments of `forward`."""
        output = first_tensor(self.raw(batch, on_call, **more))
        body = getattr(self.core, "base_model", None)
        if output is None and self.call is None and body is not None and body is not self.model:
            # a head for whole texts (classification, rewards) hides outputs of tokens: those of its body are compared
            self.model = body
            self.core = body
            output = first_tensor(self.raw(batch, on_call, **more))
        if output is None:
            message = f"{type(self.model).__name__} returns no (rows, tokens, width)"
            raise AttnscopeError(
                message, hint="pass call=, a function of model and batch that returns logits"
            )
        return output

    def raw(self, batch: Mapping[str, Any], on_call: OnCall | None = None, **more: Any) -> Any:
        """Run a batch and return what the model returns."""
        self.passes += 1
        inputs = {name: self._moved(value) for name, value in self.accepted(batch).items()}
        inputs |= {
            name: value for name, value in more.items() if name not in inputs and self.takes(name)
        }
        with ExitStack() as stack:
            if on_call is not None and self.core is not None:

                def see(call: BackendCall) -> Any:
                    self.interface = True
                    return on_call(call)

                stack.enter_context(watching(self.model, see))
            try:
                if self.call is None:
                    return self.model(**inputs)
                return self.call(self.model, inputs)
            except AttnscopeError:
                raise
            except Exception as e:  # a model of anyone may raise anything
                line = next(iter(str(e).splitlines()), "")[:300]
                raise AttnscopeError(
                    f"the model does not take the batch ({type(e).__name__}: {line})"
                ) from e

    def _moved(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self.device)
        return value

    @contextmanager
    def under(self, backend: str) -> Iterator[None]:
        """Use another implementation of attention."""
        if self.core is None:
            if backend != OWN:
                raise AttnscopeError(f"{type(self.model).__name__} has no attention interface")
            yield
            return
        with using_backend(self.core, backend):
            yield

    @contextmanager
    def rounded(self, seed: int, sums: list[Tensor | None]) -> Iterator[None]:
        """Round the output of every module once more; see studies.check.rounding.

        Attention outside the attention interface is in no module that could be rounded, so its operators are.
        """
        self.seeds.add(seed)
        with ExitStack() as stack:
            stack.enter_context(rounded_again(self.model, self.dtype, seed, sums))
            if not self.interface:
                stack.enter_context(RoundedOperators(seed))
            yield


def first_tensor(output: Any) -> Tensor | None:
    """Return the logits or hidden states of a model's output, (B, T, D); None without any."""
    get = output.get if isinstance(output, Mapping) else partial(getattr, output)
    preferred = [get(name, None) for name in ("logits", "prediction_logits", "last_hidden_state")]
    values = [output]
    if isinstance(output, Mapping):
        values = list(output.values())
    elif isinstance(output, tuple | list):
        values = list(output)
    return next(
        (value for value in (*preferred, *values) if isinstance(value, Tensor) and value.ndim == 3),
        None,
    )


def make_subject(model: Any, tokenizer: Any, call: Call | None, kind: str | None) -> Subject:
    """Return the subject of an examination."""
    if not isinstance(model, nn.Module):
        hint = "pass a folder, a transformers model, or any torch.nn.Module with call="
        raise UsageError(f"{type(model).__name__} is not a model", where="model", hint=hint)
    core = next((module for module in model.modules() if is_pretrained(module)), None)
    config: Any = getattr(model if core is None else core, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    if kind is None and core is not None:
        kind = kind_of(core)
    return Subject(model, AnyTokenizer(tokenizer, config), kind, config, call, core)
