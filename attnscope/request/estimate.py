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

MARGIN = 0.03  # of the sum, as allocators and libraries differ; what follows, to RANKED, is bytes
TOKEN = 1700  # of a token as Python objects, in `tokenizers` while it encodes, and in JSON
PIECE = 560  # of an entry of a vocabulary in `tokenizers`; also of a merge of a BPE
COMPILED_LOOPS = 76 << 20  # of LLVM and the compiled loops
BUFFERS = 80 << 20  # of matrix products, whatever their size, and of the thread that reads weights
OF_A_THREAD = 16 << 20  # of another thread's products and small blocks, whatever their size
SHAPE = 4 << 20  # of a product's preparation for one width of tile
WRITING = 12 << 20  # of numbers while they are written one after the other
UNIT = 12 << 10  # of a layer and head of a text as Python objects, and their names in JSON
DRAWN = 100  # of a number in a drawn table
PICTURE = 3600  # of a number in an .svg
KERNEL_CELL = 6  # of a cell of a kernel's mask: bool, and the number that is added
KERNEL_BIAS = 16  # of a cell if heads have biases: their distances, masked
SCORE = 52  # of a score of a tile: its stages, and what recorders make of them
MORE = 52  # of a score beside sinks, with a bias, or that functions of the caller change
RANKED = 44  # of a contributor while a tile is ranked: positions and values, copied, and with gaps filled
TILE = 1 << 20  # smallest number of scores, and of cells of a kernel's mask for each text
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
    copied_elements: int = 0  # of the largest tensor whose parts are copied out as it is read
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
    layers = min(d.layers, 2) if d.streamed else d.layers
    parameters = embedding_parameters(c) + layers * layer_parameters(c) + d.copied_elements
    if d.predicted:
        parameters += head_parameters(c)
    # the largest parameter while it is drawn, before it becomes 16 bits wide
    largest = max(c.vocab_size, c.max_positions or 0, c.d_mlp, c.n_heads * c.d_head)
    counted = max(d.rows, d.units * everything) if d.pool else d.rows
    pool = min(d.pool, d.tokens)
    quantities = Quantities(
        d.batch, d.units, d.tokens, d.rows, counted, d.cells, d.top, 3, len(STATISTICS), pool
    )
    values = sum(part.numbers(quantities) + part.beside(quantities) for part in RECORD_PARTS)
    # logits, the same capped or ranked, and probabilities
    values += 3 * d.predicted * c.vocab_size
    running = _layer_bytes(c, size, d)
    narrow = bool(d.masks) and all(any(term.window for term in mask) for mask in d.masks)
    tile = _tile_bytes(c, d, pool, narrow=narrow)
    # texts with different rows or columns are copied
    report = 4 * d.cells * (d.batch > 1) + d.batch * d.units * UNIT + WRITING
    report += (PICTURE if d.picture else DRAWN) * d.drawn
    # libraries keep these, or never take them, as processors differ
    shapes = 0 if narrow else min(SHAPES, d.tokens // NARROWER)
    compiled = everything * d.tiled_queries * d.heads >= WORTH_COMPILED_LOOPS
    purposes = {
        "program": PROGRAM + COMPILED_LOOPS * compiled,
        "weights": parameters * size + 4 * c.d_model * largest * d.words,
        "text": everything * TOKEN + (c.vocab_size + d.n_merges) * PIECE + 8 * d.characters,
        "activations": running,
        "tile": tile + BUFFERS + OF_A_THREAD * (d.threads - 1) + SHAPE * shapes,
        "kept": 4 * values,
        "report": max(0, report - running - tile),
    }
    return {**purposes, "margin": int(MARGIN * sum(purposes.values()))}


def _layer_bytes(c: ModelConfig, size: int, d: MemoryDemand) -> int:
    """Return the bytes of the one layer that runs; `size` is the bytes of a number."""
    everything = d.batch * d.tokens
    # the MLP's branches; its input normed, what it makes of that, and the sum, the same of experts
    part = 6 * c.d_mlp + 5 * c.d_model + c.n_experts
    # a layer's input, the same normed, and what is made of it; queries; keys and values, also as 32 bits; the output as
    # tiles fill it, and what is left, which the last layer does not need
    goes_on = d.layers > 1 or d.predicted > 0
    of_heads = 2 * c.n_heads * c.d_head + 3 * c.n_heads * c.d_value * goes_on
    of_keys = (1 + 4 // size) * c.n_kv_heads * (c.d_head + c.d_value)
    attending = 3 * c.d_model + of_heads + of_keys
    # fragmentation between short-lived tensors takes 6 %, and that between kept ones of several layers four inputs
    numbers = 1.06 * max(5 * c.d_model, attending) + 4 * c.d_model * goes_on
    return int(everything * numbers * size) + min(PART, everything) * part * 4


def _tile_bytes(c: ModelConfig, d: MemoryDemand, pool: int, *, narrow: bool) -> int:
    """Return the bytes of tiles and of a kernel's mask, which findings reuse; as if all heads of a layer had tiles."""
    a_row = d.batch * d.tokens
    every = a_row * d.tokens * c.n_heads
    # scores of the largest tile, and how many such tiles threads hold at once
    scores = min(max(TILE, min(2 * TILE, ENOUGH_ROWS * a_row), TILE_ROWS * a_row), every)
    widest = max((term.window or 0 for mask in d.masks for term in mask), default=0)
    if narrow and not d.raw:
        width = min(d.tokens, 2 * widest + WINDOW_ROWS)
    else:
        width = d.tokens
    tiled = every if c.softcap or c.sinks else a_row * d.tiled_queries * d.heads
    others = min(d.threads, -(-tiled // scores)) - 1
    count = 1 + others * min(1.0, d.batch * width * WINDOW_ROWS * d.heads / scores)
    calls_functions = any(isinstance(term, Function) for mask in d.masks for term in leaves(mask))
    has_bias = c.positions == "alibi" or c.relative_bias is not None or c.disentangled is not None
    score = SCORE + MORE * (c.sinks or has_bias or calls_functions)
    ranked = RANKED * min(d.top, d.tokens) * scores // d.tokens
    # the run numbers of queries and keys, and the sums of runs
    heads = max(1, min(d.heads, scores // (a_row * min(d.tiled_queries, TILE_ROWS))))
    pooled = 12 * d.batch * heads * pool * (d.tokens + pool)
    biases = KERNEL_BIAS * min(max(TILE, a_row * c.n_heads), every)
    mask = KERNEL_CELL * d.batch * min(max(TILE, d.tokens), d.tokens**2)
    return int(count * (score * scores + ranked + pooled)) + biases + mask
