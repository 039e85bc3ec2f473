"""A model and what is asked of it in; the bytes that a run takes at its peak, before anything is allocated, out.

Every constant stands here, and `benchmarks/memory.py` holds the sum against what runs really take.
"""

from dataclasses import dataclass

from attnscope.config import ModelConfig
from attnscope.memory import DTYPE_BYTES, embedding_parameters, layer_parameters

PROGRAM = 256 << 20  # Python, torch for CPUs and the libraries that every run imports
TOKEN = 450  # a token as Python objects: its struct, its strings, its numbers in lists
WORD = 320  # an entry of a tokenizer.json's vocabulary
ENCODED = 850  # what `tokenizers` holds of a token besides, while it encodes
TILE = 1 << 20  # scores in a tile, at least …
TILE_ROWS = 32  # … so many rows of them, …
ENOUGH_ROWS = 128  # … or so many, where these are twice the scores at most
STAGES = 4  # tensors of a tile's size: two stages, and what recorders make of them
BUFFERS = 22 << 20  # what products of matrices need besides, whatever their size
SHAPE = 3 << 20  # what a product of one width of tile is prepared as, …
SHAPES = 16  # … so many of them at most, …
NARROWER = 256  # … one for so many tokens of a text under a mask whose tiles become wider
STATISTICS = 16  # numbers that row statistics keep of a row
DIGITS = 13  # bytes of a float32 in JSON
COPIES = 2.5  # of a JSON text while it is written
TOKEN_TEXT = 130  # bytes of a token in JSON
PART = 1024  # tokens that an MLP takes at a time
SPARE = 1.06  # what lies between tensors that come and go


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
        copied: Numbers in the largest tensor whose parts are copied out of it as it is read.
        reread: Blocks are not kept: one runs while the next one is read, in every pass.
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
    copied: int = 0
    reread: bool = False


def estimate(c: ModelConfig, dtype: str, d: Demand) -> dict[str, int]:
    """Bytes by purpose; their sum is the peak.

    Returns:
        `program`; `weights`; `text` (tokens as Python objects, and their vocabulary); `activations` of the one layer
        that runs; `tile`; `kept` by recorders; `report`, where writing the findings takes more than running the model
        did.
    """
    size, everything = DTYPE_BYTES[dtype], d.batch * d.tokens
    parameters = embedding_parameters(c) + min(d.layers, 2 if d.reread else d.layers) * layer_parameters(c)
    in_part = (1 + c.gated) * c.d_mlp + (c.n_experts + 2 * c.d_model) * bool(c.n_experts)
    running = int(SPARE * everything * _per_token(c, d) * size) + min(PART, everything) * in_part * 4
    shapes = min(SHAPES, d.tokens // NARROWER) * (c.mask == "causal")
    a_row = d.batch * d.tokens
    scores = max(TILE, min(2 * TILE, ENOUGH_ROWS * a_row), TILE_ROWS * a_row)
    tile = STAGES * 4 * scores + BUFFERS + SHAPE * shapes
    values = d.cells + d.rows * 4 * d.top + max(d.rows, d.counted) * STATISTICS
    pooled = 2 * d.batch * d.pool * d.tokens + d.heads * everything if d.pool else 0
    report = 4 * d.cells + d.as_text * int(COPIES * (DIGITS * values + TOKEN_TEXT * everything))
    return {
        "program": PROGRAM,
        "weights": (parameters + d.copied) * size,
        "text": everything * TOKEN + (not d.words) * (everything * ENCODED + c.vocab_size * WORD) + 8 * d.characters,
        "activations": running,
        "tile": tile,
        "kept": 4 * (values + pooled),
        "report": max(0, report - running - tile),
    }


def _per_token(c: ModelConfig, d: Demand) -> int:
    """Numbers that a layer holds of a token where it holds most."""
    q, k, v, o = c.n_heads * c.d_head, c.n_kv_heads * c.d_head, c.n_kv_heads * c.d_value, c.n_heads * c.d_value
    watched = min(d.heads, c.n_heads) * (c.d_head + c.d_value)
    going_on = c.d_model + 2 * o if d.layers > 1 else 0  # output of a layer that another one follows
    attending = 2 * c.d_model + q + 2 * k + v + 2 * watched + going_on
    rotary = 2 * c.d_head * (c.positions == "rope")
    return max(attending, 4 * c.d_model) + rotary
