"""Progress of a forward pass: reported in the order of the work and in proportion to it."""

import pytest
import torch

from attnscope.base.model_config import ModelConfig
from attnscope.model.hooks import AttentionHooks
from attnscope.model.progress import ForwardProgress, LayerCost
from attnscope.model.randomize import make_random
from attnscope.model.recorders import MatrixRecorder, RowRecorder
from attnscope.request.masks.terms import Bidirectional, Causal, SlidingWindow
from tests.helpers.key_tokens import key_tokens

T, HEADS = 256, 2
CONFIG = ModelConfig(
    vocab_size=50,
    d_model=16,
    n_layers=3,
    n_heads=HEADS,
    n_kv_heads=HEADS,
    d_head=8,
    d_value=8,
    d_mlp=16,
)
LOADS = [LayerCost(1000.0, 500.0)] * 3


def run(recorders, mask, *, metered=True, loads=LOADS, elements=4096):
    """What was told: words, and thousandths."""
    told = []
    stack = make_random(CONFIG, 0, 3, torch.float32, torch.device("cpu"))
    ids = torch.randint(50, (1, T), generator=torch.Generator().manual_seed(0))
    meter = ForwardProgress(
        "attending",
        lambda what, done, total: told.append((what, done, total)),
        loads,
        HEADS,
        recorders,
    )
    recorded = meter.recorders if metered else recorders
    stack.run((ids, torch.zeros_like(ids)), [mask] * 3, Bidirectional(),
              AttentionHooks(recorded, tile_elements=elements),
              progress=meter.layer if metered else None)  # fmt: skip
    return told


def rows(heads=range(HEADS)):
    real = torch.ones(1, T, dtype=torch.bool)
    return RowRecorder(heads, range(T), key_tokens(~real, real))


@pytest.mark.parametrize(
    "mask", [Causal(), Bidirectional(), SlidingWindow(16)], ids=lambda mask: type(mask).__name__
)
def test_work_is_told_in_order_up_to_its_end(mask):
    told = run({0: [rows()], 2: [rows([1])]}, mask)
    parts = [done for _, done, _ in told]
    assert parts == sorted(parts)
    assert parts[-1] == told[-1][2] == 1000
    assert len(set(parts)) > 8
    layers = [f"attending · layer {n} of 3" for n in (1, 2, 3)]
    assert [*dict.fromkeys(what for what, *_ in told)] == layers


def test_an_unwatched_layer_counts_less_than_a_watched_one():
    told = run({0: [rows()], 2: [rows()]}, Causal())
    recorded, both = (
        next(done for what, done, _ in told if what.endswith(f"layer {n} of 3")) for n in (2, 3)
    )
    assert recorded == pytest.approx(1000 * 4 / 10, abs=1)
    assert both - recorded == pytest.approx(1000 * 2 / 10, abs=1)


def test_a_tile_counts_as_much_as_it_holds():
    """Of causal tiles the last one has about as many keys as all queries; equal steps would be wrong by half."""
    told = [
        done
        for what, done, _ in run(
            {0: [rows()]}, Causal(), loads=[LayerCost(0.0, 1.0)] * 3, elements=2048
        )
    ]
    steps = [b - a for a, b in zip([0, *told], told, strict=False)]
    tiles = steps[: len(steps) // HEADS]
    assert max(tiles) > 3 * tiles[0]


class Spy:
    """A recorder of nothing that remembers where tiles lie."""

    heads, rows, needs_scores, needs_masked, n_strongest = (), (), False, False, 0

    def __init__(self):
        self.tiles = []

    def score_range(self):
        return None

    def update(self, tile):
        self.tiles.append((tile.q0, tile.q1, tile.k0, tile.k1, tile.heads.tolist()))


def test_only_what_somebody_else_wants_is_computed():
    alone, metered = Spy(), Spy()
    for spy, with_meter in ((alone, False), (metered, True)):
        run(
            {2: [MatrixRecorder(["weights"], [1], [7, 200], range(T)), spy]},
            Causal(),
            metered=with_meter,
        )
    assert metered.tiles == alone.tiles
    assert [(q0, q1, heads) for q0, q1, _, _, heads in alone.tiles] == [
        (7, 8, [1]),
        (200, 201, [1]),
    ]
