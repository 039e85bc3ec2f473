"""Estimate the peak memory of a run before anything is allocated: never too low, and at most twice too high.

Where kinds of runs differ little, all are counted as the largest. What recorders take is declared with them
(`record_parts`), every other constant is here; `benchmarks/memory.py` compares the sum with the memory of real runs.
"""

from dataclasses import dataclass, field

from attnscope.base.model_config import ModelConfig
from attnscope.base.system.malloc import RETAINED_BLOCK
from attnscope.base.system.processor import count_threads
from attnscope.findings.record_parts import RECORD_PARTS, Quantities, TileSize
from attnscope.findings.row_statistics import STATISTICS, WITHIN
from attnscope.request.masks.terms import Function, MaskTerm, leaves
from attnscope.request.memory import DTYPE_BYTES, PROGRAM, embedding_parameters, head_parameters, layer_parameters

# Bytes
TOKEN = 450  # of a token as Python objects: its struct, its strings, its numbers in lists
VOCABULARY_ENTRY = 400  # of an entry of a tokenizer.json's vocabulary in `tokenizers`
MERGE = 560  # of a merge of a BPE, or of a piece of a Unigram, in addition
ENCODED = 850  # of a token in `tokenizers` while it encodes, in addition
COMPILED_LOOPS = 76 << 20  # of LLVM and the compiled loops
READING = 16 << 20  # of the thread that reads stored weights: its buffers, and its share of malloc
BUFFERS = 52 << 20  # of matrix products in addition, whatever their size
OF_A_THREAD = 16 << 20  # of another thread's products and small blocks, whatever their size
SHAPE = 4 << 20  # of a product's preparation for one width of tile
WRITING = 12 << 20  # of numbers while they are written one after the other
TOKEN_TEXT = 130  # of a token in JSON
UNIT = 12 << 10  # of a layer and head of a text as Python objects, and their names in JSON
DRAWN = 100  # of a number in a drawn table
PICTURE = 3600  # of a number in an .svg
KERNEL_CELL = 6  # of a cell of a kernel's mask: bool, and the number that is added
KERNEL_BIAS = 16  # of a cell if heads have biases: their distances, masked

# Sizes of tiles
TILE = 1 << 20  # smallest number of scores
TILE_ROWS = 32  # smallest number of rows
ENOUGH_ROWS = 128  # number of rows up to which a tile may have twice the scores
WINDOW_ROWS = 256  # largest number of rows under a window
SHAPES = 32  # largest number of widths that are prepared
NARROWER = 384  # tokens of a text per width, under a mask whose tiles become wider
KERNEL = 1 << 20  # cells of a mask that a kernel takes, for each padded text
PART = 1024  # tokens that an MLP takes at a time
RANKED_SINGLY = 8  # sources of a row that are selected one by one; more are sorted
WORTH_COMPILED_LOOPS = 1 << 23  # cells of a layer's recorded heads: from 12 heads and 837 tokens on

# Numbers of tensors, or of copies
STAGES = 3  # of a tile's size: two stages, and what recorders make of them
SINK = 3  # of a softmax with sinks, and of the copies that it needs
BIAS = 2  # of a bias and its distances
FUNCTION = 8  # of positions, int64, and results of a Python function that is called for every cell
LOGITS = 3  # of a token's logits: themselves, capped or ranked, and their probabilities
MEASURES = 3  # of a contributor, at most
COPIES = 3  # of a JSON text without its numbers, while it is written
HOLES = 4  # of a layer's input, left between the kept tensors of several layers
SPARE = 1.06  # fragmentation between short-lived tensors


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
    copied_elements: int = 0  # elements of the largest tensor whose parts are copied out as it is read
    streamed: bool = False  # blocks are read again in every pass, one while another runs
    tiled_queries: int = 0  # queries of a text in tiles
    masks: frozenset[tuple[MaskTerm, ...]] = frozenset()
    threads: int = field(default_factory=count_threads)
    predicted: int = 0  # tokens whose logits are computed at once; 0 without the head
    stages: int = 1  # kept matrices of a layer and head
    sides: int = 1  # similar runs whose findings are kept at the same time, to be compared

    @property
    def calls_functions(self) -> bool:
        """Whether a mask or scores come from Python functions."""
        return any(isinstance(term, Function) for mask in self.masks for term in leaves(mask))

    @property
    def kept(self) -> Quantities:
        """Sizes of what recorders keep."""
        return Quantities(
            texts=self.batch,
            units=self.units,
            sources=self.tokens,
            rows=self.rows,
            counted=max(self.rows, self.units * self.batch * self.tokens) if self.pool else self.rows,
            cells=self.cells,
            top=self.top,
            measures=MEASURES,
            statistics=len(STATISTICS),
            pool=min(self.pool, self.tokens),
        )


def estimate_memory(c: ModelConfig, dtype: str, d: MemoryDemand) -> dict[str, int]:
    """Estimate bytes by purpose; their sum is the peak.

    Returns:
        `program`; `weights`; `text` (tokens as Python objects, and their vocabulary); `activations` of the one layer
        that runs; `tile`; `kept` by recorders; `report`, where writing the findings takes more than running the model
        did.
    """
    size = DTYPE_BYTES[dtype]
    everything = d.batch * d.tokens
    parameters = embedding_parameters(c) + min(d.layers, 2 if d.streamed else d.layers) * layer_parameters(c)
    if d.predicted:
        parameters += head_parameters(c)
    # the largest parameter while it is drawn, before it becomes 16 bits wide
    draw_bytes = (size < 4) * 4 * c.d_model * max(c.vocab_size, c.max_positions or 0, c.d_mlp, c.n_heads * c.d_head)
    running = _activation_bytes(c, size, d)
    tile, beside_tiles = _tile_bytes(c, d)
    library = 0 if d.words else everything * ENCODED + c.vocab_size * VOCABULARY_ENTRY + d.n_merges * MERGE
    kept_values = sum(part.numbers(d.kept) + part.beside(d.kept) for part in RECORD_PARTS)
    compiled = everything * d.tiled_queries * d.heads >= WORTH_COMPILED_LOOPS
    # Texts may show different rows or columns.
    copied = d.cells if d.batch > 1 else 0
    report = 4 * copied + d.batch * d.units * UNIT + WRITING + COPIES * TOKEN_TEXT * everything
    report += (PICTURE if d.picture else DRAWN) * d.drawn
    return {
        "program": PROGRAM + COMPILED_LOOPS * compiled,
        "weights": (parameters + d.copied_elements) * size + (draw_bytes if d.words else READING),
        "text": everything * TOKEN + library + 8 * d.characters,
        "activations": running,
        "tile": tile + beside_tiles,
        "kept": 4 * (kept_values + LOGITS * d.predicted * c.vocab_size),
        "report": max(0, report - running - tile),
    }


def _activation_bytes(c: ModelConfig, size: int, d: MemoryDemand) -> int:
    """Return the bytes of the one layer that runs; `size` is the bytes of a number."""
    everything = d.batch * d.tokens
    # The MLP before and after its activation, and its gates.
    wide = 2 + c.gated + 3 * (c.glu_limit is not None or c.glu_plus_one)
    # A part's input normed, what the MLP makes of it, and the sum; the same of experts.
    narrow = 3 + 2 * bool(c.n_experts)
    in_part = min(PART, everything) * (wide * c.d_mlp + narrow * c.d_model + c.n_experts) * 4
    copy = everything * c.d_model * size
    holes = HOLES * copy * (copy < RETAINED_BLOCK and d.layers > 1)
    return int(SPARE * everything * _numbers_per_token(c, size, d) * size) + holes + in_part


def _numbers_per_token(c: ModelConfig, size: int, d: MemoryDemand) -> int:
    """Return the largest count of numbers that a layer holds per token: norms and what is recorded are float32."""
    q = c.n_heads * c.d_head
    kv = c.d_head + c.d_value
    o = c.n_heads * c.d_value
    turned = c.positions == "rope"
    wide = 4 // size
    tiled = d.layers > 1 and not _has_kernel(c)
    # A layer's input, the same normed, and what is made of it.
    sides = 2 * c.d_model + q + c.n_kv_heads * kv
    recorded = min(c.n_kv_heads, c.n_heads if tiled else d.heads)
    # The output as tiles fill it, and what the layer before left.
    attending = sides + wide * recorded * kv + (2 + tiled) * o
    leaving = max(sides, 3 * c.d_model) + o
    return max(c.d_model * max(4, 1 + 2 * wide), sides + q * turned, attending, leaving) + 2 * c.d_head * turned


def _tile_bytes(c: ModelConfig, d: MemoryDemand) -> tuple[int, int]:
    """Return the bytes of tiles and of a kernel's mask, which findings reuse, and of matrix products.

    Libraries keep the latter, or never take it, as processors differ.
    """
    a_row = d.batch * d.tokens
    scores, count = _tile_scores(d, d.tiled_queries, d.heads)
    unrecorded = STAGES + SINK * c.sinks + BIAS * c.has_bias + FUNCTION * d.calls_functions
    rows = min(d.tiled_queries, max(TILE_ROWS, scores // a_row))
    near = max((within for within in WITHIN if within < d.tokens), default=0)
    at_once = max(1, min(d.heads, scores // (a_row * rows)))
    largest = TileSize(scores, rows, at_once, raw=d.raw, within=near, kept=d.kept)
    tiles = int(count * (4 * unrecorded * scores + sum(part.tile(largest) for part in RECORD_PARTS)))
    if d.layers > 1 and not _has_kernel(c):
        # Layers that are not recorded go through tiles, too.
        scores, count = _tile_scores(d, d.tokens, c.n_heads)
        tiles = max(tiles, int(count * 4 * unrecorded * scores))
    widening = any(all(t.window is None for t in mask) and any(t.left_to_right for t in mask) for mask in d.masks)
    shapes = min(SHAPES, d.tokens // NARROWER, -(-d.tiled_queries // ENOUGH_ROWS)) * widening
    beside_tiles = BUFFERS + OF_A_THREAD * (d.threads - 1) + SHAPE * shapes
    return tiles + _kernel(c, d), beside_tiles


def _tile_scores(d: MemoryDemand, queries: int, heads: int) -> tuple[int, float]:
    """Count the scores in the largest tile of this many queries and heads, and such tiles that threads hold at once."""
    a_row = d.batch * d.tokens
    every = d.batch * d.tokens * queries * heads
    scores = min(max(TILE, min(2 * TILE, ENOUGH_ROWS * a_row), TILE_ROWS * a_row), every)
    windows = [min((term.window for term in mask if term.window is not None), default=d.tokens) for mask in d.masks]
    width = d.tokens if d.raw else min(d.tokens, 2 * max(windows, default=d.tokens) + WINDOW_ROWS)
    others = min(d.threads, -(-every // scores)) - 1
    return scores, 1 + others * min(1.0, d.batch * width * WINDOW_ROWS * d.heads / scores)


def _has_kernel(c: ModelConfig) -> bool:
    """Tell whether torch's kernel supports the attention of layers that are not recorded."""
    return c.softcap is None and not c.sinks


def _kernel(c: ModelConfig, d: MemoryDemand) -> int:
    """Return the bytes of a kernel's mask for heads or layers that are not recorded."""
    if d.layers == 1 or not _has_kernel(c):
        # The last layer's output is not needed; what no kernel knows goes through tiles.
        return 0
    if c.has_bias or d.calls_functions:
        return KERNEL_BIAS * min(max(KERNEL, d.batch * c.n_heads * d.tokens), d.batch * c.n_heads * d.tokens**2)
    return KERNEL_CELL * d.batch * min(max(KERNEL, d.tokens), d.tokens**2)
