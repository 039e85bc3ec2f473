"""Open and load models once for several runs."""

import gc
import warnings
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from attnscope.checkpoints.source import ModelSource
from attnscope.config import RunConfig, TextInput
from attnscope.engines.opening import open_native
from attnscope.engines.transformers.opening import open_transformers
from attnscope.errors import AttnscopeError, UsageError
from attnscope.planning.run_plan import RunPlan
from attnscope.system.threads import count_threads

if TYPE_CHECKING:
    import torch

    from attnscope.engines.transformers.loading import TransformersModel
    from attnscope.model.stack import Stack

_WORTH_A_THREAD = 1 << 30  # multiplications; for less, waking a second thread costs more than it saves

ProgressCallback = Callable[[str, int, int], None]  # what is being done, how much of it is done, and how much there is


class ModelLoader:
    """What several runs open and load, kept.

    Args:
        texts: The texts of all of them: a vocabulary that is made from the texts is made from these.
        progress: Told what is being done.
    """

    def __init__(self, texts: Iterable[TextInput], progress: ProgressCallback | None = None) -> None:
        self.texts, self.progress = texts, progress
        self.on_progress: ProgressCallback = progress or (lambda what, done, total: None)
        self.sources: dict[tuple[str | None, ...], ModelSource] = {}
        self.stacks: dict[tuple[str, ...], Stack | TransformersModel] = {}

    def source(self, run: RunConfig) -> ModelSource:
        """The model that a run names, opened once."""
        uses_transformers = run.engine == "transformers"
        name = (run.model, run.config, *((run.part, run.dtype) if uses_transformers else ()))
        if run.part is not None and not uses_transformers:
            raise UsageError("only --engine transformers knows parts", where="--part", hint="add --engine transformers")
        if name not in self.sources:
            self.sources[name] = (
                open_transformers(run) if uses_transformers else open_native(run.model, run.config, self.texts)
            )
        return self.sources[name]

    def load(
        self, run: RunConfig, source: ModelSource, plan: RunPlan
    ) -> "tuple[Stack | TransformersModel, torch.device]":
        """The layers of a model that a request needs, loaded once where that is deep enough, and where they lie.

        Raises:
            AttnscopeError: They cannot be loaded, or there is no such device.
        """
        import_torch()  # everything that can be refused without it has been
        import torch

        from attnscope.model.stack import Stack

        torch.set_num_threads(1 if plan.multiplications < _WORTH_A_THREAD else self._threads)
        device = _device(run.device)
        if source.engine == "transformers":
            return source.load(plan.n_layers_run, getattr(torch, run.dtype), device), device
        key = run.model or "", run.config or "", run.dtype, str(device)
        found = self.stacks.get(key)
        if not isinstance(found, Stack) or len(found.blocks) < plan.n_layers_run:
            self.on_progress("loading", 0, 1)
            found = self.stacks[key] = source.load(plan.n_layers_run, getattr(torch, run.dtype), device)
        if isinstance(found, Stack):
            if plan.stream_reason and found.weights.keep:
                say = f"weights are read again in every pass, layer by layer: {plan.stream_reason}"
                warnings.warn(say, stacklevel=2)
            found.weights.keep = not plan.stream_reason
        return found, device

    @cached_property
    def _threads(self) -> int:
        """As many threads as torch was given, and the machine has for this process."""
        import torch

        return min(torch.get_num_threads(), count_threads())


def import_torch() -> None:
    """Import torch with the garbage collector off, which would walk its lasting objects again and again (0.1 s)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        if was_on:
            gc.freeze()
            gc.enable()


def _device(name: str) -> "torch.device":
    import torch

    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if (
        kind == "cuda" and int(index or 0) >= torch.cuda.device_count()
    ):  # torch keeps an index in 8 bits, and 999 as -25
        raise AttnscopeError(f"no device '{name}' here", where="--device", hint="use --device cpu, or auto")
    return torch.device("cuda:0" if name == "cuda" else name)


def limit_threads(wanted: int) -> int:
    """Let torch use so many threads, or as many as it likes for 0; how many it uses.

    The number of threads decides the order of some sums, and so their last bits.
    """
    import torch

    if wanted:
        torch.set_num_threads(wanted)
    return torch.get_num_threads()
