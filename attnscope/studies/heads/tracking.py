"""A few numbers of every head on one text, again and again while a model is trained."""

from typing import Any

import numpy as np
from msgspec.structs import replace

from attnscope.request.run_config import RunConfig
from attnscope.run.pass_plan import plan_passes
from attnscope.run.plan import plan_texts
from attnscope.run.session import Session, forward, prepare

MEASURES = ("entropy", "first", "max_score")
Array = np.ndarray[Any, np.dtype[np.float64]]


class HeadTracker:
    """Measure every head of a model on a text that is tokenized and planned once."""

    def __init__(self, run: RunConfig, session: Session) -> None:
        self.session = session
        source = session.source(run)
        texts = plan_texts(replace(run, window=None, pool=None), source)
        record_bytes = (
            source.config.n_layers
            * source.config.n_heads
            * len(texts[0].tokens)
            * 4
            * len(MEASURES)
        )
        (self._plan,) = plan_passes(run, source, [texts], record_bytes)
        self._model, self.device = session.load(self._plan)
        words = [position for position, token in enumerate(texts[0].tokens) if not token.special]
        self._rows = words or list(range(len(texts[0].tokens)))

    def measure(self) -> dict[str, Array]:
        """Run the text; return each of MEASURES, (layers, heads).

        Entropy (bits) and weight on the first token are those of the average row of a word, the largest scaled score
        is that of all of these rows. NaN where no such row sees a key.
        """
        import torch

        from attnscope.model.recorders import RowRecorder

        c = self._plan.config
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            batch, engine = prepare(self._plan, self._model, self.device)
            recorders = {
                layer: RowRecorder(range(c.n_heads), self._rows, batch.sources, MEASURES)
                for layer in engine.layers
            }
            by_layer = {layer: [recorder] for layer, recorder in recorders.items()}
            forward(self._plan, batch, engine, by_layer, ("measuring heads", None))
        measures = {name: np.full(engine.sizes, np.nan) for name in MEASURES}
        for name, of_heads in measures.items():
            # (L, H, rows)
            values = torch.stack([recorder.recorded[name][0] for recorder in recorders.values()])
            values = values.cpu().double()
            mean = values.nanmean(-1)
            if name == "max_score":
                largest = values.nan_to_num(nan=-torch.inf).amax(-1)
                mean = largest.masked_fill(largest == -torch.inf, torch.nan)
            of_heads[list(recorders)] = mean.numpy()
        return measures
