"""Record what the roles of heads are computed from: one pass for each batch of sequences, sums from tiles."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from attnscope.engines.protocol import Engine
from attnscope.findings.arrays import Array
from attnscope.findings.head_roles import NEAR
from attnscope.model.batch import Batch
from attnscope.model.recorders import ColumnRecorder, TargetRecorder, UniformRecorder, WordRecorder
from attnscope.model.recorders.patterns import FURTHEST
from attnscope.model.tile import Recorder
from attnscope.studies.heads.probes import Probe

BLOCKS = 16  # largest number of blocks of sequences; standard errors are computed between blocks
# What is measured on each kind of random sequence, and over how many rows.
_ROWS = {
    ("duplicate", "induction"): "copies",
    ("retrieval",): "copied",
    ("second-order",): "thirds",
}
# previous, next, self, local
_OFFSETS = [-1, 1, 0, *(sign * n for n in range(2, NEAR + 1) for sign in (-1, 1))]


class Sums:
    """Sums over the sequences of each block, from which roles are computed.

    Args:
        shape: Layers and heads.
        n_texts: Number of texts.

    Attributes:
        arrays: Name to (blocks, layers, heads, …), float64. Of texts: `rows` that count, the weight that these give in
            sum (`previous`, `next`, `self`, `local`, `first`, `special`, `punctuation`), `uniform`, and of words
            `offset_sums` and `offset_cells` by offset, `squares` and `content`; see WordRecorder. Of random tokens:
            `duplicate` and `induction` over `copies` rows, `retrieval` over `copied` ones, `second-order` over
            `thirds`. Of weights: `copying`.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        n_texts: int,
        n_draws: int,
        longest: int,
        *,
        blocks: int = BLOCKS,
    ) -> None:
        self._reach = max(0, min(FURTHEST, longest - 1))
        texts, draws = (min(blocks, n) for n in (n_texts, n_draws))
        shares = (
            "previous",
            "next",
            "self",
            "local",
            "first",
            "special",
            "punctuation",
            "uniform",
            "content",
        )
        self.arrays: dict[str, Array] = {
            name: np.zeros((texts, *shape)) for name in ("rows", *shares, "squares")
        }
        width = 2 * self._reach + 2
        self.arrays["offset_sums"] = np.zeros((texts, *shape, width))
        self.arrays["offset_cells"] = np.zeros((texts, shape[0], 1, width))
        if draws:
            drawn_names = (name for sum_names, rows in _ROWS.items() for name in (*sum_names, rows))
            self.arrays |= {name: np.zeros((draws, *shape)) for name in drawn_names}

    def add(self, name: str, layer: int, sequences: Sequence[int], values: Tensor | Array) -> None:
        """Add the values of some sequences, (sequences, heads, …), to their blocks."""
        total = self.arrays[name][:, layer, : values.shape[1]]
        numbers = values
        if isinstance(values, Tensor):
            numbers = values.cpu().double().numpy()
        np.add.at(total, np.array(sequences) % len(total), numbers)

    def add_offsets(self, layer: int, texts: Sequence[int], recorder: WordRecorder) -> None:
        """Add values by offset; a short text has fewer offsets, and one with padding more, which no row reads."""
        reach = recorder.reach or 0
        shared = min(reach, self._reach)
        width = self.arrays["offset_sums"].shape[-1]
        for name, values in (
            ("offset_sums", recorder.sums),
            ("offset_cells", recorder.cells[:, None]),
        ):
            wide = values.new_zeros(*values.shape[:-1], width)
            near = values[..., reach - shared : reach + shared + 1]
            wide[..., self._reach - shared : self._reach + shared + 1] = near
            wide[..., -1] = values[..., -1]
            self.add(name, layer, texts, wide)


def heads_of(engine: Engine) -> dict[int, int]:
    """Count the heads of every layer with attention."""
    return dict.fromkeys(engine.layers, engine.sizes[1])


class TextPass:
    """The recorders of one batch of texts, of all heads of layers that attend unless other `heads` are counted."""

    def __init__(
        self,
        batch: Batch,
        texts: Sequence[int],
        engine: Engine,
        heads: Mapping[int, int] | None = None,
    ) -> None:
        self._batch = batch
        self._texts = texts
        longest = max(batch.tokens.lengths)
        counted = counted_rows(batch)
        targets = _offset_targets(counted, batch.tokens.real)
        words = batch.sources.content()
        self._of_layers = {
            layer: (
                ColumnRecorder(range(count), range(longest), counted, batch.sources),
                TargetRecorder(range(count), range(longest), targets),
                WordRecorder(range(count), counted, words),
                UniformRecorder(range(count), counted),
            )
            for layer, count in (heads or heads_of(engine)).items()
        }
        self.recorders: dict[int, list[Recorder]] = {
            layer: list(four) for layer, four in self._of_layers.items()
        }

    def add_to(self, sums: Sums) -> None:
        """Add the recorded sums."""
        kinds = self._batch.sources.kinds
        special = kinds["special"].cpu().clone()
        special[:, 0] = False
        marks = kinds["punctuation"].cpu().clone()
        marks[:, 0] = False  # the first token is counted as that
        for layer, (columns, targets, on_words, uniform) in self._of_layers.items():
            mass = columns.compute().cpu().double()  # (B, H, K)
            sums_of_rows = uniform.rows_seen, uniform.shared, on_words.squares, on_words.excess
            # each read of a GPU waits for it
            rows, shared, squares, excess, *at_offsets = torch.stack(
                [*sums_of_rows, *targets.sums.unbind(-1)]
            ).cpu()
            measures = {"rows": rows, "uniform": shared, "squares": squares, "content": excess}
            # what is missing is a sink's
            measures["first"] = mass[..., 0] + (rows.double() - mass.sum(-1)).clamp_min(0.0)
            measures["special"], measures["punctuation"] = (
                (mass * keys[:, None]).sum(-1) for keys in (special, marks)
            )
            measures |= dict(zip(("previous", "next", "self"), at_offsets, strict=False))
            measures["local"] = torch.stack(at_offsets[3:], -1).sum(-1)
            for name, values in measures.items():
                sums.add(name, layer, self._texts, values)
            sums.add_offsets(layer, self._texts, on_words)


def counted_rows(batch: Batch) -> Tensor:
    """Return which rows are words with at least two tokens before them, (B, Q), bool."""
    counted = batch.tokens.real & ~batch.tokens.special
    counted[:, :2] = False
    return counted


def _offset_targets(counted: Tensor, real: Tensor) -> Tensor:
    """Return the keys at each of _OFFSETS from a counted row, (B, Q, N); −1 for no key."""
    size = counted.shape[1]
    # (Q, N)
    at = torch.arange(size, device=counted.device)[:, None] + torch.tensor(
        _OFFSETS, device=counted.device
    )
    there = (at >= 0) & (at < size) & real[:, at.clamp(0, size - 1)] & counted[:, :, None]
    return torch.where(there, at, -1)


class ProbePass:
    """The recorders of one batch of random tokens, sequences of one length; see TextPass."""

    def __init__(
        self,
        probes: Sequence[Probe],
        engine: Engine,
        device: torch.device,
        heads: Mapping[int, int] | None = None,
    ) -> None:
        self._probes = probes
        heads = heads or heads_of(engine)
        self._of_layers: dict[int, list[TargetRecorder]] = {layer: [] for layer in heads}
        for names in _ROWS:
            rows = sorted(
                {
                    row
                    for probe in probes
                    for n in names
                    if n in probe.targets
                    for row in probe.targets[n][0]
                }
            )
            places = {row: n for n, row in enumerate(rows)}
            targets = torch.full((len(probes), len(rows), len(names)), -1)
            for probe_index, probe in enumerate(probes):
                for n, name in enumerate(names):
                    for row, key in zip(
                        *probe.targets.get(name, (range(0), range(0))), strict=True
                    ):
                        targets[probe_index, places[row], n] = key
            targets = targets.to(device)
            for layer, recorders in self._of_layers.items():
                recorders.append(
                    TargetRecorder(
                        range(heads[layer]), rows, targets, strongest=names == ("retrieval",)
                    )
                )
        self.recorders: dict[int, list[Recorder]] = {
            layer: list(both) for layer, both in self._of_layers.items()
        }

    def add_to(self, sums: Sums) -> None:
        """Add the recorded sums."""
        for layer, recorders in self._of_layers.items():
            for (names, per), recorder in zip(_ROWS.items(), recorders, strict=True):
                mine = [i for i, probe in enumerate(self._probes) if names[0] in probe.targets]
                if not mine:
                    continue
                draws = [self._probes[i].draw for i in mine]
                of_probes = recorder.sums.cpu()
                for n, name in enumerate(names):
                    sums.add(name, layer, draws, of_probes[mine, :, n])
                rows = torch.tensor([[len(self._probes[i].targets[names[0]][0])] for i in mine])
                sums.add(per, layer, draws, rows.expand(-1, of_probes.shape[1]))


def copying_scores(engine: Engine) -> Array | str:
    """Compute Σ λ / Σ |λ| over the eigenvalues λ of W_V W_O of every head, (layers, heads); or say why not.

    The eigenvalues of the (D, D) product are those of the small (Ev, Ev) one in the other order, and zeros. Real parts
    are summed: complex eigenvalues come in pairs.
    """
    scores = np.full(engine.sizes, np.nan)
    for layer in engine.layers:
        with engine.holding(layer):
            pair = engine.value_and_output(layer)
            if isinstance(pair, str):
                return pair
            value, output = (matrix.detach().cpu().double().numpy() for matrix in pair)
        scores[layer] = _copying_of_heads(value, output, engine.sizes[1])
    return scores


def _copying_of_heads(value: Array, output: Array, heads: int) -> Array:
    output = output.reshape(len(output), heads, -1).transpose(1, 0, 2)  # (H, D, Ev)
    value = value.reshape(-1, output.shape[2], value.shape[1])  # (G, Ev, D)
    values = np.linalg.eigvals(np.repeat(value, heads // len(value), axis=0) @ output)  # (H, Ev)
    size = np.abs(values).sum(-1)
    scores: Array = np.where(size > 0, values.real.sum(-1) / np.where(size > 0, size, 1.0), np.nan)
    return scores
