"""Statistics of attention while a model is trained, for the trainers of transformers and Lightning."""

import random
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from attnscope.api.options import texts_of
from attnscope.api.running import new_session, opened, running
from attnscope.base.errors import UsageError
from attnscope.request.run_config import RunConfig

if TYPE_CHECKING:
    from attnscope.run.session import InMemory
    from attnscope.studies.heads.tracking import HeadTracker

_BASES = (
    ("transformers", "TrainerCallback"),
    ("lightning.pytorch", "Callback"),
    ("pytorch_lightning", "Callback"),
)


class AttentionStatistics:
    """A callback that measures every head on a fixed text, every N steps.

    For each layer and head it logs `attention/entropy/L0H0` (in bits, of a word's row on average),
    `attention/first/L0H0` (its weight on the first token) and `attention/max_score/L0H0` (the largest scaled
    score of these rows, which QK-Clip limits). Nothing of the model, its gradients or the state of random numbers
    changes.

    An instance is a callback of every trainer whose library is imported when it is created. In a
    `transformers.Trainer`, numbers join the next logs and `state.log_history`; after `attach(trainer)` they also reach
    integrations such as TensorBoard, as an entry of their own.

    Args:
        text: The text.
        every: Steps of the optimizer from one measurement to the next.
        tokenizer: Tokenizer of the model; None for the trainer's `processing_class`, or the `tokenizer` of a Lightning
            module.
        prefix: Begin of the names.

    Attributes:
        history: Every step that was measured, with its numbers.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make an instance of the callback classes of libraries that are imported, too."""
        base_classes = [
            getattr(sys.modules[name], base) for name, base in _BASES if name in sys.modules
        ]
        missing = [base for base in base_classes if not issubclass(cls, base)]
        return object.__new__(type(cls.__name__, (cls, *missing), {}) if missing else cls)

    def __init__(
        self, text: str, every: int = 100, *, tokenizer: Any = None, prefix: str = "attention"
    ) -> None:
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise UsageError(f"must be a whole number, 1 or more, not {every!r:.80}", where="every")
        (self._text,) = texts_of(text, {})
        self._every = every
        self._tokenizer = tokenizer
        self._prefix = prefix
        self._log: Callable[[dict[str, float]], None] | None = None
        self._pending: dict[str, float] = {}
        self._open: tuple[Any, HeadTracker, Mapping[str, InMemory]] | None = None
        self.history: list[tuple[int, dict[str, float]]] = []

    def attach(self, trainer: Any) -> Self:
        """Add the callback to a `transformers.Trainer`, and log through it."""
        trainer.add_callback(self)
        self._log = trainer.log
        return self

    def measure(self, model: Any, tokenizer: Any = None) -> dict[str, float]:
        """Measure every head of a model of transformers now.

        Args:
            model: The model.
            tokenizer: Its tokenizer; None for the one of the callback.

        Returns:
            Name to number; a head none of whose rows sees a key is left out.

        Raises:
            AttnscopeError: The model, the tokenizer or the text do not allow it.
        """
        states = random.getstate()
        tracker, live = self._tracker(model, self._tokenizer if tokenizer is None else tokenizer)
        with running(tracker.session, live):
            statistics = tracker.measure()
        random.setstate(states)
        return {
            f"{self._prefix}/{name}/L{layer}H{head}": float(value)
            for name, values in statistics.items()
            for (layer, head), value in np.ndenumerate(values)
            if not np.isnan(value)
        }

    def _tracker(self, model: Any, tokenizer: Any) -> "tuple[HeadTracker, Mapping[str, InMemory]]":
        """Return what measures the model, opened once, and the model in memory."""
        from attnscope.studies.heads.tracking import HeadTracker

        open_tracker = self._open
        if (
            open_tracker is None
            or open_tracker[0] is not model
            or open_tracker[1].device != next(model.parameters()).device
        ):
            values, live = opened(model, {"tokenizer": tokenizer})
            session = new_session(live)
            with running(session, live):
                tracker = HeadTracker(RunConfig(**{**values, "texts": (self._text,)}), session)
            open_tracker = self._open = model, tracker, live
        return open_tracker[1:]

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **more: Any
    ) -> None:
        """Measure after a step of a `transformers.Trainer`, in its main process."""
        if state.global_step % self._every or not state.is_world_process_zero:
            return
        tokenizer = self._tokenizer or more.get("processing_class") or more.get("tokenizer")
        numbers = self.measure(model, tokenizer)
        self.history.append((state.global_step, numbers))
        if self._log is None:
            self._pending = numbers
            control.should_log = True
        else:
            self._log(numbers)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Add the numbers to the logs of a `transformers.Trainer`."""
        numbers = self._pending
        self._pending = {}
        if numbers:
            state.log_history[-1].update(numbers)
            if logs is not None:
                logs.update(numbers)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """Measure after a step of Lightning's Trainer, in its main process, once for each step of the optimizer."""
        step = trainer.global_step
        if (
            step % self._every
            or not step
            or not trainer.is_global_zero
            or (self.history and self.history[-1][0] == step)
        ):
            return
        from attnscope.engines.transformers.opening import is_pretrained, pretrained_inside

        inner = None if is_pretrained(pl_module) else pretrained_inside(pl_module)
        model = pl_module if inner is None else pl_module.get_submodule(inner)
        numbers = self.measure(model, self._tokenizer or getattr(pl_module, "tokenizer", None))
        self.history.append((step, numbers))
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step=step)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Let go of the model; trainers call this with arguments of their own."""
        self._open = None
