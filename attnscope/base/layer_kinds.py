"""What a layer does with the tokens of a text, as data. Never imports torch.

A layer has one path or several side by side, each of a kind in `LAYER_KINDS`. A new kind is a row there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MIXING = "mixing"  # value of --measure for what mixes tokens without softmax


@dataclass(frozen=True)
class LayerKind:
    """A way in which a path of a layer reads the tokens of a text."""

    name: str  # in findings
    letter: str  # in a map
    attends: bool = False  # it weighs tokens by a softmax of scores, which attnscope shows
    mixes: bool = True  # what it gives for a token depends on other tokens
    # pattern of the names of the classes that compute it in transformers; empty for what is seen to attend
    classes: str = ""
    no_matrix: str = ""  # why attnscope shows no matrix of it, if it has no softmax


LAYER_KINDS = {
    kind.name: kind
    for kind in (
        LayerKind("softmax", "A", attends=True),
        LayerKind("window", "W", attends=True),
        LayerKind("sparse", "S", attends=True),
        LayerKind("gated delta", "G", classes=r"\w+GatedDeltaNet"),
        LayerKind("kimi delta", "K", classes=r"\w+DeltaAttention|Glm5NextTextLinearAttention"),
        LayerKind("mamba", "M", classes=r"\w*Mamba2?(Mixer|Layer)|BambaMixer|FalconH1Mixer"),
        LayerKind("lightning", "L", classes=r"\w+LightningAttention"),
        LayerKind("rwkv", "V", classes=r"RwkvSelfAttention"),
        LayerKind("mlstm", "X", classes=r"xLSTMLayer"),
        LayerKind(
            "convolution",
            "C",
            classes=r"\w+ShortConv",
            no_matrix="its matrix is a few diagonals, the same in every text",
        ),
        LayerKind("differential", "D", classes=r"DiffLlamaAttention"),
        LayerKind("recurrent", "R", classes=r"\w+RecurrentBlock"),
        LayerKind("mlp", "–", mixes=False, classes=r"\w+(MLP|Mlp|MoE|MOE|SparseMoeBlock)"),
        LayerKind("other", "?", no_matrix="attnscope does not know its kind"),
    )
}
BY_CHANNEL = ("mamba-1", "rwkv", "rg-lru")  # kinds of matrices, of which every channel has another
LayerPaths = tuple[str, ...]  # the kinds of a layer's paths


@dataclass(frozen=True)
class MixingLayer:
    """A path of a layer that has no softmax, and a matrix between tokens all the same (model.mixing)."""

    kind: str
    n_heads: int
    width: int  # numbers in a key, or the states of a channel

    @property
    def by_channel(self) -> bool:
        """Whether its heads are channels, each with a matrix of its own."""
        return self.kind in BY_CHANNEL


_GROUPS = 4  # largest number of equal groups of layers that a map writes out
_LONGEST = 64  # layers that a map without equal groups writes out


def attends(paths: LayerPaths) -> bool:
    """Tell whether a layer has attention over tokens."""
    return any(LAYER_KINDS[path].attends for path in paths)


def mixes_unseen(paths: LayerPaths) -> bool:
    """Tell whether a layer lets tokens read each other other than by its attention."""
    return any(LAYER_KINDS[path].mixes and not LAYER_KINDS[path].attends for path in paths)


def spell_unseen(layers: Sequence[LayerPaths]) -> str:
    """Say of which kinds of paths without softmax there is no matrix: `convolution: its matrix is …`."""
    there = {path for paths in layers for path in paths}
    reasons = [
        f"{kind.name}: {kind.no_matrix}"
        for kind in LAYER_KINDS.values()
        if kind.no_matrix and kind.name in there
    ]
    return "; ".join(reasons)


def letters(paths: LayerPaths) -> str:
    """Return the letters of a layer: `G`, or `A+M` if it has two paths."""
    return "+".join(LAYER_KINDS[path].letter for path in paths)


def spell_map(layers: Sequence[LayerPaths], *, whole: bool = False) -> str:
    """Write the layers as letters, in groups that repeat: `G G G A │ G G G A`.

    Many equal groups are written twice, with their number, unless `whole`.
    """
    marks = [letters(paths) for paths in layers]
    if len(marks) > 1 and len(set(marks)) == 1:
        return f"{marks[0]} in every layer"
    period = _period(marks)
    groups = [" ".join(marks[start : start + period]) for start in range(0, len(marks), period)]
    if len(groups) > _GROUPS and not whole:
        return f"{groups[0]} │ {groups[1]} │ … ({len(groups)} times)"
    if len(marks) > _LONGEST and len(groups) == 1 and not whole:
        return f"{' '.join(marks[:_LONGEST])} …"
    return " │ ".join(groups)


def _period(marks: Sequence[str]) -> int:
    """Return the length of the shortest group of at least two layers that the map repeats; else of all layers."""
    for period in range(2, len(marks) // 2 + 1):
        if len(marks) % period == 0 and list(marks) == list(marks[:period]) * (
            len(marks) // period
        ):
            return period
    return max(1, len(marks))


def spell_legend(layers: Sequence[LayerPaths]) -> str:
    """Say what the letters of a map mean: `A softmax, G gated delta`."""
    there = dict.fromkeys(path for paths in layers for path in paths)
    return ", ".join(
        f"{layer_kind.letter} {layer_kind.name}"
        for layer_kind in LAYER_KINDS.values()
        if layer_kind.name in there
    )


def count_attending(layers: Sequence[LayerPaths]) -> str:
    """Say how many layers can be shown: `8 of 32 layers have attention over tokens`."""
    count = sum(map(attends, layers))
    return f"{count:,} of {len(layers):,} layers {'has' if count == 1 else 'have'} attention over tokens"
