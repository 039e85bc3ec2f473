"""Estimate the peak memory of a run before anything is allocated: never too low, at most two and a half times too high.

Where kinds of runs differ little, all are counted as the largest. What recorders keep is declared with them
(`record_parts`), everything else is here; `benchmarks/memory.py` compares the sum with the memory of real runs.
"""

from dataclasses import dataclass, field

from attnscope.base.model_config import ModelConfig
from attnscope.base.system.machine import count_threads
from attnscope.findings.record_parts import RECORD_PARTS, Quantities
from attnscope.findings.row_statistics import STATISTICS
from attnscope.request.masks.terms import Function, MaskTerm, leaves
from attnscope.request.memory import (
    DTYPE_BYTES,
    PROGRAM,
    embedding_parameters,
    head_parameters,
    layer_parameters,
)

MARGIN = 0.03  # of the sum, as allocators and libraries differ
# Bytes
TOKEN = 1700  # of a token as Python objects, in `tokenizers` while it encodes, and in JSON
PIECE = 560  # of an entry of a vocabulary in `tokenizers`; also of a merge of a BPE
COMPILED_LOOPS = 76 << 20  # of LLVM and the compiled loops
READING = 16 << 20  # of the thread that reads stored weights: its buffers, and its share of malloc
BUFFERS = 64 << 20  # of matrix products in addition, whatever their size
OF_A_THREAD = 16 << 20  # of another thread's products and small blocks, whatever their size
SHAPE = 4 << 20  # of a product's preparation for one width of tile
WRITING = 12 << 20  # of numbers while they are written one after the other
UNIT = 12 << 10  # of a layer and head of a text as Python objects, and their names in JSON
DRAWN = 100  # of a number in a drawn table
PICTURE = 3600  # of a number in an .svg
KERNEL_CELL = 6  # of a cell of a kernel's mask: bool, and the number that is added
KERNEL_BIAS = 16  # of a cell if heads have biases: their distances, masked
# of a score of a tile: its stages, and what recorders make of them
SCORE = 52
MORE = 20  # of a score beside sinks or with a bias
FUNCTION = 32  # of a score that functions of the caller change
RANKED = 44  # of a contributor while a tile is ranked: positions and values, copied, and with gaps filled

# Sizes of tiles
# smallest number of scores, and of cells of a mask that a kernel takes, for each padded text
TILE = 1 << 20
TILE_ROWS = 32  # smallest number of rows
ENOUGH_ROWS = 128  # number of rows up to which a tile may have twice the scores
WINDOW_ROWS = 256  # largest number of rows under a window
SHAPES = 32  # largest number of widths that are prepared
NARROWER = 384  # tokens of a text per width, under a mask without a window
PART = 1024  # tokens that an MLP takes at a time
WORTH_COMPILED_LOOPS = 1 << 23  # cells of a layer's recorded heads: from 12 heads and 837 tokens on


@dataclass(frozen=True)
class MemoryDemand:
    """The sizes that determine the memory of a run."""

    layers: int  # loaded blocks
    batch: int  # texts that run at once
    tokens: int  # tokens of the longest text
    characters: int  # characters of all texts
    cells: int  # kept matrix cells, over all texts, stages, layers and heads
    rows: int  # kept rows, over all texts, layers and heads
    top: int
    units: int = 1  # layers and heads, or means over them, of one text
    raw: bool = False  # raw scores are kept
    drawn: int = 0  # drawn numbers; into an .svg, if `picture`
    picture: bool = False
    pool: int = 0
    heads: int = 1  # recorded heads of a layer
    words: bool = False  # tokens are words, without a tokenizer.json
    n_merges: int = 0
    # elements of the largest tensor whose parts are copied out as it is read
    copied_elements: int = 0
    streamed: bool = False  # blocks are read again in every pass, one while another runs
    tiled_queries: int = 0  # queries of a text in tiles
    masks: frozenset[tuple[MaskTerm, ...]] = frozenset()
    threads: int = field(default_factory=count_threads)
    predicted: int = 0  # tokens whose logits are computed at once; 0 without the head
    stages: int = 1  # kept matrices of a layer and head
    sides: int = 1  # similar runs whose findings are kept at the same time, to be compared


def estimate_memory(c: ModelConfig, dtype: str, d: MemoryDemand) -> dict[str, int]:
    """Estimate bytes by purpose, whose sum is the peak; `report` is what writing findings takes beyond running."""
    size = DTYPE_BYTES[dtype]
    everything = d.batch * d.tokens
    parameters = embedding_parameters(c) + min(
        d.layers, 2 if d.streamed else d.layers
    ) * layer_parameters(c)
    parameters += d.copied_elements + (head_parameters(c) if d.predicted else 0)
    # the largest parameter while it is drawn, before it becomes 16 bits wide
    largest = max(c.vocab_size, c.max_positions or 0, c.d_mlp, c.n_heads * c.d_head)
    draw_bytes = 4 * c.d_model * largest
    counted = max(d.rows, d.units * everything) if d.pool else d.rows
    kept = Quantities(
        d.batch,
        d.units,
        d.tokens,
        d.rows,
        counted,
        d.cells,
        d.top,
        3,
        len(STATISTICS),
        min(d.pool, d.tokens),
    )
    kept_values = sum(part.numbers(kept) + part.beside(kept) for part in RECORD_PARTS)
    # logits, the same capped or ranked, and probabilities
    kept_values += 3 * d.predicted * c.vocab_size
    running = _layer_bytes(c, size, d)
    tile = _tile_bytes(c, d, kept)
    # texts with different rows or columns are copied
    report = 4 * d.cells * (d.batch > 1) + d.batch * d.units * UNIT + WRITING
    report += (PICTURE if d.picture else DRAWN) * d.drawn
    # libraries keep these, or never take them, as processors differ
    widening = any(all(term.window is None for term in mask) for mask in d.masks)
    shapes = min(SHAPES, d.tokens // NARROWER) * widening
    compiled = everything * d.tiled_queries * d.heads >= WORTH_COMPILED_LOOPS
    purposes = {
        "program": PROGRAM + COMPILED_LOOPS * compiled,
        "weights": parameters * size + (draw_bytes if d.words else READING),
        "text": everything * TOKEN + (c.vocab_size + d.n_merges) * PIECE + 8 * d.characters,
        "activations": running,
        "tile": tile + BUFFERS + OF_A_THREAD * (d.threads - 1) + SHAPE * shapes,
        "kept": 4 * kept_values,
        "report": max(0, report - running - tile),
    }
    return {**purposes, "margin": int(MARGIN * sum(purposes.values()))}


def _layer_bytes(c: ModelConfig, size: int, d: MemoryDemand) -> int:
    """Return the bytes of the one layer that runs; `size` is the bytes of a number."""
    everything = d.batch * d.tokens
    # the MLP's branches; its input normed, what it makes of that, and the sum, the same of experts
    part = 6 * c.d_mlp + 5 * c.d_model + c.n_experts
    # a layer's input, the same normed, and what is made of it; queries; keys and values, also as 32 bits; the output as
    # tiles fill it, and what is left
    of_heads = 2 * c.n_heads * c.d_head + 3 * c.n_heads * c.d_value
    of_keys = (1 + 4 // size) * c.n_kv_heads * (c.d_head + c.d_value)
    attending = 3 * c.d_model + of_heads + of_keys
    # fragmentation between short-lived tensors takes 6 %, and that between kept ones of several layers four inputs
    numbers = 1.06 * max(5 * c.d_model, attending) + 4 * c.d_model
    return int(everything * numbers * size) + min(PART, everything) * part * 4


def _tile_bytes(c: ModelConfig, d: MemoryDemand, kept: Quantities) -> int:
    """Return the bytes of tiles and of a kernel's mask, which findings reuse."""
    calls_functions = any(isinstance(term, Function) for mask in d.masks for term in leaves(mask))
    score = SCORE + MORE * (c.sinks or c.has_bias) + FUNCTION * calls_functions
    # no kernel knows soft-caps and sinks, so that all layers have tiles
    tiles_all = d.layers > 1 and (c.softcap is not None or c.sinks)
    queries, tiled_heads = (d.tokens, c.n_heads) if tiles_all else (d.tiled_queries, d.heads)
    scores, count = _tile_scores(d, queries, tiled_heads)
    ranked = RANKED * min(d.top, d.tokens) * scores // d.tokens
    rows = min(d.tiled_queries, max(TILE_ROWS, scores // (d.batch * d.tokens)))
    heads = max(1, min(d.heads, scores // (d.batch * d.tokens * rows)))
    # the run numbers of queries and keys, and the sums of runs
    pooled = 4 * d.batch * heads * kept.pool * (rows + 2 * d.tokens + 3 * kept.pool)
    tiles = int(count * (score * scores + ranked + pooled))
    if d.layers == 1 or tiles_all:
        return tiles
    if c.has_bias or calls_functions:
        a_row = d.batch * c.n_heads * d.tokens
        return tiles + KERNEL_BIAS * min(max(TILE, a_row), a_row * d.tokens)
    return tiles + KERNEL_CELL * d.batch * min(max(TILE, d.tokens), d.tokens**2)


def _tile_scores(d: MemoryDemand, queries: int, heads: int) -> tuple[int, float]:
    """Count the scores in the largest tile of this many queries and heads, and such tiles that threads hold at once."""
    a_row = d.batch * d.tokens
    every = a_row * queries * heads
    scores = min(max(TILE, min(2 * TILE, ENOUGH_ROWS * a_row), TILE_ROWS * a_row), every)
    windows = [
        min((term.window for term in mask if term.window is not None), default=d.tokens)
        for mask in d.masks
    ]
    width = d.tokens if d.raw else min(d.tokens, 2 * max(windows, default=d.tokens) + WINDOW_ROWS)
    others = min(d.threads, -(-every // scores)) - 1
    return scores, 1 + others * min(1.0, d.batch * width * WINDOW_ROWS * d.heads / scores)
