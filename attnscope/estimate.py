"""A model and what is asked of it in; the bytes that a run takes at its peak, before anything is allocated, out.

Every constant stands here, and `benchmarks/memory.py` holds the sum against what runs really take.
"""

from dataclasses import dataclass

from attnscope.config import ModelConfig
from attnscope.heap import KEPT
from attnscope.memory import DTYPE_BYTES, embedding_parameters, layer_parameters
from attnscope.selection import MaskTerm

PROGRAM = 256 << 20  # Python, torch for CPUs and the libraries that every run imports
TOKEN = 450  # a token as Python objects: its struct, its strings, its numbers in lists
WORD = 400  # an entry of a tokenizer.json's vocabulary, as `tokenizers` holds it
PAIRING = 560  # what a merge of a BPE takes besides, or a piece of a Unigram
ENCODED = 850  # what `tokenizers` holds of a token besides, while it encodes
TILE = 1 << 20  # scores in a tile, at least …
TILE_ROWS = 32  # … so many rows of them, …
ENOUGH_ROWS = 128  # … or so many, where these are twice the scores at most
STAGES = 4  # tensors of a tile's size: two stages, and what recorders make of them
BUFFERS = 22 << 20  # what products of matrices need besides, whatever their size
SHAPE = 4 << 20  # what a product of one width of tile is prepared as, …
SHAPES = 32  # … so many of them at most, …
NARROWER = 384  # … one for so many tokens of a text under a mask whose tiles become wider
STATISTICS = 16  # numbers that row statistics keep of a row
DIGITS = 13  # bytes of a float32 in JSON
COPIES = 2.5  # of a JSON text while it is written
TOKEN_TEXT = 130  # bytes of a token in JSON
PART = 1024  # tokens that an MLP takes at a time
SPARE = 1.06  # what lies between tensors that come and go
HOLES = 3  # what several layers' tensors leave between those of them that are kept, in inputs of a layer


@dataclass(frozen=True)
class Demand:
    """What a run asks for.

    Attributes:
        layers: Blocks that are loaded.
        batch: Texts.
        tokens: Tokens of the longest text.
        characters: Characters of all texts.
        cells: Matrix cells kept, over all texts, stages, layers and heads.
        rows: Rows kept, over all texts, layers and heads.
        top: Contributors a row.
        as_text: The findings are turned into JSON as a whole.
        counted: Rows of which statistics are kept, over all texts, layers and heads; those kept by default.
        pool: Runs of a pooled map; 0 for none.
        heads: Heads of a layer that are watched.
        words: Tokens are words; otherwise a tokenizer.json makes them.
        pairings: Merges of a BPE, or pieces of a Unigram.
        copied: Numbers in the largest tensor whose parts are copied out of it as it is read.
        reread: Blocks are not kept: one runs while the next one is read, in every pass.
        tiled: Queries of a text that tiles are made of.
        followed: A layer that is watched is not the last one.
        masks: The masks of the layers that run.
    """

    layers: int
    batch: int
    tokens: int
    characters: int
    cells: int
    rows: int
    top: int
    as_text: bool
    counted: int = 0
    pool: int = 0
    heads: int = 1
    words: bool = False
    pairings: int = 0
    copied: int = 0
    reread: bool = False
    tiled: int = 0
    followed: bool = False
    masks: frozenset[tuple[MaskTerm, ...]] = frozenset()


def estimate(c: ModelConfig, dtype: str, d: Demand) -> dict[str, int]:
    """Bytes by purpose; their sum is the peak.

    Returns:
        `program`; `weights`; `text` (tokens as Python objects, and their vocabulary); `activations` of the one layer
        that runs; `tile`; `kept` by recorders; `report`, where writing the findings takes more than running the model
        did.
    """
    size, everything = DTYPE_BYTES[dtype], d.batch * d.tokens
    parameters = embedding_parameters(c) + min(d.layers, 2 if d.reread else d.layers) * layer_parameters(c)
    running, tile = _running(c, size, d), _tile(d)
    library = 0 if d.words else everything * ENCODED + c.vocab_size * WORD + d.pairings * PAIRING
    values = d.cells + d.rows * 4 * d.top + max(d.rows, d.counted) * STATISTICS
    pooled = 2 * d.batch * d.pool * d.tokens + d.heads * everything if d.pool else 0
    report = 4 * d.cells + d.as_text * int(COPIES * (DIGITS * values + TOKEN_TEXT * everything))
    return {
        "program": PROGRAM,
        "weights": (parameters + d.copied) * size,
        "text": everything * TOKEN + library + 8 * d.characters,
        "activations": running,
        "tile": tile,
        "kept": 4 * (values + pooled),
        "report": max(0, report - running - tile),
    }


def _running(c: ModelConfig, size: int, d: Demand) -> int:
    """Bytes of the one layer that runs; `size` is that of a number."""
    everything = d.batch * d.tokens
    in_part = (1 + c.gated) * c.d_mlp + (c.n_experts + 2 * c.d_model) * bool(c.n_experts)
    one = everything * c.d_model * size
    holes = HOLES * one if one < KEPT and d.layers > 1 else 0
    return int(SPARE * everything * _per_token(c, size, d) * size) + holes + min(PART, everything) * in_part * 4


def _per_token(c: ModelConfig, size: int, d: Demand) -> int:
    """Numbers that a layer holds of a token where it holds most."""
    q, k, v, o = c.n_heads * c.d_head, c.n_kv_heads * c.d_head, c.n_kv_heads * c.d_value, c.n_heads * c.d_value
    rotary, wide = c.positions == "rope", 4 // size  # norms and what is watched are float32
    entering = c.d_model * max(4, 1 + 2 * wide)
    sides = 2 * c.d_model + q + k + v  # a layer's input, the same normed, and what is made of it
    projecting = sides + q * rotary
    watching = sides + wide * min(d.heads, c.n_kv_heads) * (c.d_head + c.d_value)
    leaving = max(sides, 3 * c.d_model) + o if d.layers > 1 else 0  # a layer that another one follows
    if d.followed:
        unbounded = any("window" not in _kinds(mask) for mask in d.masks)
        apart = d.heads < c.n_heads and unbounded  # heads that nobody watches
        watching += o * (1 + apart)
    return max(entering, projecting, watching, leaving) + 2 * c.d_head * rotary


def _kinds(mask: tuple[MaskTerm, ...]) -> set[str]:
    return {term.kind for term in mask}


def _tile(d: Demand) -> int:
    """Bytes of a tile, and of what its products need."""
    a_row = d.batch * d.tokens
    scores = min(max(TILE, min(2 * TILE, ENOUGH_ROWS * a_row), TILE_ROWS * a_row), a_row * d.tiled * d.heads)
    kinds = [_kinds(mask) for mask in d.masks]
    widening = any("window" not in mask and mask & {"causal", "prefix"} for mask in kinds)
    shapes = min(SHAPES, d.tokens // NARROWER, -(-d.tiled // ENOUGH_ROWS)) * widening
    return STAGES * 4 * scores + BUFFERS + SHAPE * shapes
