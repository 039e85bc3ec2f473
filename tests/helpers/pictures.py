"""Reports on a picture whose weights are given, so that every number of a screen is known."""

import numpy as np
from msgspec import structs

import attnscope
from attnscope.findings.images import ImageGrid, encode_png
from attnscope.findings.run import Report

ROWS, COLUMNS = 3, 4
_SIDE = 6  # pixels of a patch


def random_weights(layers: int, heads: int, tokens: int, *, seed: int = 0) -> np.ndarray:
    """Return weights, (layers, heads, tokens, tokens), whose rows sum to 1 and differ a lot."""
    scores = np.random.default_rng(seed).normal(scale=2.0, size=(layers, heads, tokens, tokens))
    powers = np.exp(scores)
    weights: np.ndarray = (powers / powers.sum(-1, keepdims=True)).astype(np.float32)
    return weights


def pixels(seed: int = 1) -> np.ndarray:
    """Return a picture whose patches have different colours."""
    drawn: np.ndarray = np.random.default_rng(seed).integers(
        0, 256, (ROWS, COLUMNS, 3), dtype=np.uint8
    )
    return drawn.repeat(_SIDE, 0).repeat(_SIDE, 1)


def report_on_picture(
    weights: np.ndarray,
    *,
    beside: tuple[str, ...] = ("cls", "register:0"),
    seed: int = 1,
    **options: object,
) -> Report:
    """Return a report of given weights on a picture of ROWS × COLUMNS patches, whose tokens follow those beside it."""
    names = [
        *beside,
        *(f"image:{row},{column}" for row in range(ROWS) for column in range(COLUMNS)),
    ]
    report = attnscope.from_weights(list(weights), names, **options).data  # type: ignore[arg-type]
    grid = ImageGrid(
        "cat.png",
        0,
        1,
        np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) + len(beside),
        encode_png(pixels(seed)),
    )
    (text,) = report.texts
    tokens = [
        structs.replace(token, special=n < len(beside)) for n, token in enumerate(text.tokens)
    ]
    return structs.replace(report, texts=[structs.replace(text, images=[grid], tokens=tokens)])
