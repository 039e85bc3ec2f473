"""Random arrays with random settings, and what attention makes of them in NumPy float64."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

WORDS = "the bank by river is wide and old stones lie under cold water where two paths meet".split()
SPELLINGS = {
    "heads": ("h", "heads"),
    "tokens": ("t", "tokens"),
    "width": ("d", "width"),
    "layers": ("l", "layers"),
    "texts": ("b", "batch"),
}


@dataclass
class DrawnMask:
    """The mask of a layer."""

    given: Any  # as `from_qkv` takes it
    # Function of rows (Q, 1) and columns (1, K) to where attention is allowed, (Q, K) or (heads, Q, K).
    allowed: Callable[[np.ndarray, np.ndarray], np.ndarray]
    # The same, to what is added to scaled scores; None for nothing.
    added: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None


@dataclass
class Drawn:
    """Arrays of some texts."""

    # `q`, `k` and perhaps `v`: layer to text to (heads, tokens, width), float64 of float32 or narrower values.
    parts: dict[str, dict[int, list[np.ndarray]]]
    settings: dict[int, dict[str, Any]]  # layer to scale, soft-cap, window and sinks; None for none
    masks: dict[int, DrawnMask]  # layer to its mask
    # Slope of a function that takes from scaled scores what grows with head and distance; None for none.
    score_mod: float | None
    dtype: str  # type of the arrays
    tokens: list[list[str]] = field(default_factory=list)  # words of every text

    @property
    def layers(self) -> list[int]:
        """Numbers of the layers."""
        return list(self.settings)

    def stages(self, layer: int, text: int) -> dict[str, np.ndarray]:
        """Every stage of a layer and text, (heads, queries, keys), float64; NaN in rows that see nothing."""
        q, k = self.parts["q"][layer][text], self.parts["k"][layer][text]
        share, s = len(q) // len(k), self.settings[layer]
        scores = np.stack([q[h] @ k[h // share].T for h in range(len(q))])
        scaled = scores * (s["scale"] if s["scale"] is not None else 1 / np.sqrt(q.shape[-1]))
        if s["softcap"] is not None:
            scaled = s["softcap"] * np.tanh(scaled / s["softcap"])
        n = k.shape[1]
        i, j = np.arange(n - q.shape[1], n)[:, None], np.arange(n)[None]
        mask = self.masks[layer]
        if mask.added is not None:
            scaled = scaled + mask.added(i, j)
        if self.score_mod is not None:
            scaled = scaled - self.score_mod * np.arange(len(q))[:, None, None] * np.abs(i - j)
        allowed = np.broadcast_to(mask.allowed(i, j), scaled.shape)
        if s["window"] is not None:
            allowed = allowed & (np.abs(i - j) < s["window"])
        masked = np.where(allowed, scaled, -np.inf)
        shifted = masked
        if s["sinks"] is not None:
            sink = np.broadcast_to(np.array(s["sinks"])[:, None, None], (*masked.shape[:2], 1))
            shifted = np.concatenate((masked, sink), -1)
        with np.errstate(invalid="ignore"):
            exponentials = np.exp(shifted - shifted.max(-1, keepdims=True))
            weights = (exponentials / exponentials.sum(-1, keepdims=True))[..., : masked.shape[-1]]
        weights = np.where(allowed.any(-1)[..., None], weights, np.nan)
        found = {"scores": scores, "scaled": scaled, "masked": masked, "weights": weights}
        if "v" in self.parts:
            v = self.parts["v"][layer][text]
            found["output"] = np.stack([weights[h] @ v[h // share] for h in range(len(q))])
        return found


MASKS = [
    ("causal", lambda i, j: j <= i),
    ("bidirectional", lambda i, j: (i >= 0) & (j >= 0)),
    ("causal+window:3", lambda i, j: (j <= i) & (i - j < 3)),
    ("prefix:2", lambda i, j: (j <= i) | (j < 2)),
    ("block:4", lambda i, j: i // 4 == j // 4),
    ("causal+(sink:1|window:2)", lambda i, j: (j <= i) & ((j < 1) | (i - j < 2))),
    (
        lambda b, h, q, k: (q >= k) & (q - k < h + 2),
        lambda i, j: (j <= i) & (i - j < np.arange(9)[:, None, None] + 2),
    ),
]


def draw_masks(
    rng: np.random.Generator, layers: list[int], lengths: list[int], heads: int, *, windows: bool
) -> dict[int, DrawnMask]:
    """Draw the mask that all layers share, or one for each: an expression, a function, a matrix or a bias."""

    def one() -> DrawnMask:
        kind, n = rng.random(), lengths[0]
        if len(lengths) > 1 or kind < 0.6:
            usable = [
                at for at, mask in enumerate(MASKS) if mask[0] != "causal+window:3" or not windows
            ]
            given, allowed = MASKS[usable[rng.integers(len(usable))]]
            return DrawnMask(
                given, lambda i, j: allowed(i, j)[:heads] if callable(given) else allowed(i, j)
            )
        if kind < 0.7:
            first = int(rng.integers(1, n + 1))
            sizes = [size for size in (first, n - first) if size]
            ends = np.repeat(np.arange(len(sizes)), sizes)
            return DrawnMask(f"docs:{','.join(map(str, sizes))}", lambda i, j: ends[i] == ends[j])
        matrix = rng.random((heads, n, n) if rng.random() < 0.5 else (n, n)) < 0.7
        if kind < 0.85:
            return DrawnMask(matrix, lambda i, j: matrix[..., i, j])
        bias = rng.normal(size=matrix.shape).astype(np.float32)
        added = np.where(matrix, bias, -np.inf if rng.random() < 0.5 else np.finfo(np.float32).min)
        return DrawnMask(
            added,
            lambda i, j: matrix[..., i, j],
            lambda i, j: np.where(matrix, bias, 0.0)[..., i, j],
        )

    shared = one()
    return (
        dict.fromkeys(layers, shared) if rng.random() < 0.6 else {layer: one() for layer in layers}
    )


def draw(rng: np.random.Generator) -> Drawn:
    """Draw arrays and settings."""
    kv_heads, share = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    width, value_width = int(rng.integers(1, 10)), int(rng.integers(1, 10))
    lengths = [int(n) for n in rng.integers(1, 12, size=rng.integers(1, 4))]
    layers = sorted(int(n) for n in rng.choice(6, size=rng.integers(1, 4), replace=False))
    dtype = str(
        rng.choice(["float32", "float64", "float16", "bfloat16"], p=[0.55, 0.15, 0.15, 0.15])
    )
    kinds = {"q": (kv_heads * share, width), "k": (kv_heads, width), "v": (kv_heads, value_width)}
    if rng.random() < 0.25:
        del kinds["v"]
    parts = {
        name: {
            layer: [_rounded(rng.normal(size=(heads, n, size)) * 2, dtype) for n in lengths]
            for layer in layers
        }
        for name, (heads, size) in kinds.items()
    }
    # a step of decoding; texts with an axis of their own have equally many queries
    if rng.random() < 0.3:
        last = min(lengths) if rng.random() < 0.5 else 1
        parts["q"] = {
            layer: [text[:, -last:] for text in texts] for layer, texts in parts["q"].items()
        }
    per_layer = rng.random() < 0.5
    first: dict[str, Any] = {}
    settings = {}
    for layer in layers:
        drawn = {
            "scale": float(rng.uniform(0.05, 0.6)) if rng.random() < 0.5 else None,
            "softcap": float(rng.uniform(1, 8)) if rng.random() < 0.4 else None,
            "window": int(rng.integers(1, 6)) if rng.random() < 0.4 else None,
            "sinks": rng.normal(size=kv_heads * share).round(3).tolist()
            if rng.random() < 0.4
            else None,
        }
        first = first or drawn
        settings[layer] = drawn if per_layer else first
    tokens = [[str(rng.choice(WORDS)) for _ in range(n)] for n in lengths]
    windows = any(each["window"] is not None for each in settings.values())
    masks = draw_masks(rng, layers, lengths, kv_heads * share, windows=windows)
    score_mod = float(rng.uniform(0.01, 0.3)) if rng.random() < 0.2 else None
    return Drawn(parts, settings, masks, score_mod, dtype, tokens)


def _rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    narrow = torch.from_numpy(values).to(
        torch.float32 if dtype == "float64" else getattr(torch, dtype)
    )
    return narrow.double().numpy()


def arguments(drawn: Drawn, rng: np.random.Generator) -> dict[str, Any]:
    """Arguments of `from_qkv` for drawn arrays, in a random form: layout, library, one array, list or dict."""
    one_text, packed = len(drawn.tokens) == 1, bool(rng.random() < 0.5)
    order = [str(axis) for axis in rng.permutation(["heads", "tokens", "width"])]
    given: dict[str, Any] = {}
    if not one_text and not packed:
        order.insert(int(rng.integers(4)), "texts")
        given["lengths"] = [len(words) for words in drawn.tokens]
    elif not one_text:
        given["cu_seqlens"] = np.cumsum([0, *map(len, drawn.tokens)])
        queries = [text.shape[1] for text in next(iter(drawn.parts["q"].values()))]
        if queries != [*map(len, drawn.tokens)]:
            given["cu_seqlens_q"] = np.cumsum([0, *queries])
    form = str(rng.choice(["dict", "list", "axis"]))
    place = int(rng.integers(len(order) + 1))
    library = str(rng.choice(["numpy", "torch", "swapped", "fortran", "jax"]))
    for name, layers in drawn.parts.items():
        arrays = {layer: _laid_out(texts, order) for layer, texts in layers.items()}
        if form == "dict":
            given[name] = {
                layer: _of_library(array, library, drawn.dtype) for layer, array in arrays.items()
            }
        elif form == "list":
            given[name] = [_of_library(array, library, drawn.dtype) for array in arrays.values()]
        else:
            given[name] = _of_library(
                np.stack([*arrays.values()], axis=place), library, drawn.dtype
            )
    if form != "dict":
        given["layers"] = drawn.layers
    full = [*order[:place], "layers", *order[place:]] if form == "axis" else order
    usual = (
        ["layers", "heads", "tokens", "width"] if form == "axis" else ["heads", "tokens", "width"]
    )
    if full != usual or rng.random() < 0.5:
        spelling = int(rng.integers(2))
        words = [SPELLINGS[axis][spelling] for axis in full]
        given["layout"] = (
            "".join(words) if spelling == 0 else str(rng.choice([",", " "])).join(words)
        )
    for name in ("scale", "softcap", "window", "sinks"):
        values = {layer: settings[name] for layer, settings in drawn.settings.items()}
        same = all(value == next(iter(values.values())) for value in values.values())
        given[name] = (
            next(iter(values.values()))
            if same
            else values
            if rng.random() < 0.5
            else [*values.values()]
        )
    masks = {layer: mask.given for layer, mask in drawn.masks.items()}
    shared = len({id(mask) for mask in drawn.masks.values()}) == 1
    given["mask"] = (
        masks[drawn.layers[0]] if shared else masks if rng.random() < 0.5 else [*masks.values()]
    )
    if isinstance(given["mask"], str) and given["mask"] == "causal" and rng.random() < 0.5:
        del given["mask"]
    if drawn.score_mod is not None:
        given["score_mod"] = lambda score, b, h, q, k: score - drawn.score_mod * h * (q - k).abs()
    return given | {"tokens": drawn.tokens[0] if one_text else drawn.tokens}


def _laid_out(texts: list[np.ndarray], order: list[str]) -> np.ndarray:
    """Texts (heads, tokens, width), packed or padded with numbers that must not be read, with their axes in order."""
    if "texts" in order:
        longest = max(text.shape[1] for text in texts)
        array = np.stack(
            [
                np.pad(text, ((0, 0), (0, longest - text.shape[1]), (0, 0)), constant_values=1e3)
                for text in texts
            ]
        )
        return array.transpose(
            [["texts", "heads", "tokens", "width"].index(axis) for axis in order]
        )
    array = np.concatenate(texts, axis=1)
    return array.transpose([["heads", "tokens", "width"].index(axis) for axis in order])


def _of_library(array: np.ndarray, library: str, dtype: str) -> Any:
    jax = _jax() if library == "jax" and dtype != "float64" else None
    if jax is not None:
        return jax.numpy.asarray(array, dtype=dtype)
    if library == "torch" or dtype == "bfloat16":  # NumPy has no bfloat16
        return torch.from_numpy(array.copy()).to(getattr(torch, dtype))
    narrow = array.astype(dtype)
    if library == "swapped":
        return narrow.astype(narrow.dtype.newbyteorder(">"))
    if library == "fortran":
        return np.asfortranarray(narrow[..., ::-1])[..., ::-1]  # also a negative stride
    return narrow


def _jax() -> Any:
    try:
        import jax
    except ImportError:
        return None
    return jax
