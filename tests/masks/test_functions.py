"""Masks and scores from Python functions, as FlexAttention calls them, in every function and both engines."""

from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

import attnscope
from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.model import attention
from attnscope.model.attention import attend
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.masks import FunctionMask
from attnscope.model.recorders import MatrixRecorder
from attnscope.request.masks.terms import SlidingWindow
from attnscope.studies.explore.scenes import run_command, walk_head
from attnscope.views.walk.cell import CellNumbers, arithmetic

TEXT = "The bank by the river was closed"
Array = np.ndarray[Any, np.dtype[Any]]
every_engine = pytest.mark.parametrize("engine", ["native", "transformers"])


def softmax(scores: Array) -> Array:
    """NumPy's, with NaN in rows of −inf."""
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)


def scaled(engine: str, text: Any = TEXT) -> Array:
    """Scaled scores of layer 0, which no mask changes, (heads, queries, keys)."""
    return np.asarray(
        attnscope.inspect(text, layer=[0], head="all", stages="scaled", engine=engine).scaled
    )[0]


@every_engine
def test_a_function_masks_every_head_in_its_own_way(engine: str) -> None:
    report = attnscope.inspect(
        TEXT,
        layer="all",
        head="all",
        engine=engine,
        mask=lambda b, h, q, k: (q >= k) & ((h % 2 == 0) | (q - k < h)),
    )
    h, q, k = np.ogrid[:4, :7, :7]
    allowed = (q >= k) & ((h % 2 == 0) | (q - k < h))
    assert np.array_equal(
        np.isfinite(np.asarray(report.masked)), np.broadcast_to(allowed, (4, 4, 7, 7))
    )
    expected = softmax(np.where(allowed, scaled(engine), -np.inf))
    assert np.allclose(np.asarray(report.weights)[0], expected, atol=1e-5)
    assert report.data.mask.what_if == "stack"
    assert report.data.mask.used.startswith("function:lambda in line ")


@every_engine
def test_a_function_knows_the_text(engine: str) -> None:
    """Also where texts are padded."""
    texts = [TEXT, "The river", "The bank was closed"]
    report = attnscope.inspect(
        texts, layer=[1], head=[2], mask=lambda b, h, q, k: k <= q + b, engine=engine
    )
    for number, text in enumerate(report.texts):
        n = len(text.data.tokens)
        masked = np.asarray(text.masked)[0, 0]
        assert np.array_equal(np.isfinite(masked), np.tri(n, k=number, dtype=bool))


@every_engine
@pytest.mark.parametrize("what_if", ["stack", "same-scores"])
def test_a_function_of_scores_changes_them_before_the_mask(engine: str, what_if: Any) -> None:
    report = attnscope.inspect(
        TEXT,
        layer=[0],
        head="all",
        stages=("scaled", "masked", "weights"),
        mask="causal",
        what_if=what_if,
        score_mod=lambda score, b, h, q, k: torch.where(
            k == 3, -torch.inf, 0.5 * score - h * (q - k)
        ),
        engine=engine,
    )
    h, q, k = np.ogrid[:4, :7, :7]
    expected = np.where(k == 3, -np.inf, 0.5 * scaled(engine) - h * (q - k))
    assert np.allclose(np.asarray(report.scaled)[0], expected, atol=1e-4)
    expected = softmax(np.where(k <= q, expected, -np.inf))
    assert np.allclose(np.asarray(report.weights)[0], expected, atol=1e-5)
    assert "with score_mod:lambda in line" in report.data.mask.used


def test_every_view_names_the_functions_that_changed_scores() -> None:
    """A mask in place of the arrays' own leaves their function in force, and says so."""

    def louder(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return 2 * score + 1

    q, k, v = np.random.default_rng(1).normal(size=(3, 2, 4, 8)).astype(np.float32)
    given = attnscope.from_qkv(
        q, k, v, score_mod=louder, layer=0, head=1, stages="scaled,masked,weights"
    )
    for options, mask, functions in (
        ({}, "causal, with score_mod:louder", "score_mod:louder"),
        ({"mask": "causal"}, "causal, with score_mod:louder", "score_mod:louder"),
        ({"mask": "bidirectional"}, "bidirectional, with score_mod:louder", "score_mod:louder"),
        (
            {"score_mod": louder},
            "causal, with score_mod:louder, with score_mod:louder",
            "score_mod:louder, then ",
        ),
    ):
        report = given.inspect(layer=0, head=1, stages="masked,weights", **options)
        assert report.data.mask.used == mask
        assert (report.data.mask.what_if is None) == (mask == given.data.mask.own)
        assert f"masked   scores ÷ √8 (head width), changed by {functions}" in report.text(
            width=200
        )
    expected = 2 * q[1] @ k[1].T / np.sqrt(8) + 1
    assert np.allclose(given.scaled[0, 0], expected, atol=1e-5)
    report = attnscope.inspect(TEXT, score_mod=louder)
    assert run_command(report.data.provenance, report.data.mask, TEXT) is None, (
        "no command line repeats it"
    )
    report = attnscope.inspect(TEXT, mask="causal|sink:2")
    assert (
        run_command(report.data.provenance, report.data.mask, TEXT)
        .spell()
        .endswith("--mask 'causal|sink:2'")
    )
    head = walk_head(given.data.texts[0], given.data.texts[0].heads[0])
    cell = CellNumbers(
        {"scores": 1.0, "scaled": 1.71}, True, False, None, None, None, None, False, None
    )
    assert arithmetic(head, cell) == ["q·k 1.00 ÷ √8 changed by score_mod:louder = 1.71"]


def test_rows_without_a_finite_score_are_masked() -> None:
    report = attnscope.inspect(
        TEXT,
        layer=[0],
        head="all",
        score_mod=lambda s, b, h, q, k: torch.where((q == 2) & (h == 1), -torch.inf, s),
    )
    weights = np.asarray(report.weights)[0]
    assert np.isnan(weights[1, 2]).all()
    assert np.isfinite(np.delete(weights, 1, 0)).all()
    assert [head.fully_masked for head in report.data.texts[0].heads] == [[], [2], [], []]


def test_later_layers_read_what_the_function_made() -> None:
    """Under `stack` a function that says what `causal` says changes every layer as that does."""
    said = attnscope.inspect(TEXT, layer="all", head="all", mask="causal")
    for options in (
        {"mask": lambda b, h, q, k: q >= k},
        {"score_mod": lambda s, b, h, q, k: torch.where(q >= k, s, -torch.inf)},
    ):
        report = attnscope.inspect(TEXT, layer="all", head="all", **options)
        assert np.allclose(np.asarray(report.weights), np.asarray(said.weights), atol=1e-5)


def test_other_commands_take_functions() -> None:
    function = lambda b, h, q, k: (q - k).abs() < 3  # noqa: E731
    effects = [
        np.asarray(attnscope.ablate(TEXT, each="head", mask=mask).effect)
        for mask in (function, "window:3")
    ]
    assert np.allclose(*effects, atol=1e-5)
    measured = [
        attnscope.heads("riverbank", TEXT, measure="first", mask=mask).data
        for mask in (function, "window:3")
    ]
    assert np.allclose(measured[0].values, measured[1].values, atol=1e-6)
    compared = attnscope.compare(
        TEXT, mask=[function, "window:3"], layer="all", head="all", tolerance=1e-5
    )
    assert compared.data.verdict is not None


def test_a_function_is_called_tile_by_tile_and_never_with_the_whole_matrix() -> None:
    calls = []

    def banded(b: Any, h: Any, q: Any, k: Any) -> Any:
        calls.append(1)
        return (q - k).abs() < 9

    q, k, v = torch.randn(3, 1, 2, 50, 8, generator=torch.Generator().manual_seed(3))
    outputs = []
    for mask in (FunctionMask(banded, 1, 2, 64, torch.device("cpu")), SlidingWindow(9)):
        recorder = MatrixRecorder(["weights"], range(2), range(50), range(50))
        attend(AttentionInputs(0, q, k, v, AttentionSpec(0.4, mask)), [recorder], tile_elements=100)
        outputs.append(recorder.compute()["weights"])
    assert torch.allclose(*outputs, atol=1e-6)
    assert len(calls) == 50, "one call for each tile of two rows of one head"


def drawn_ranges(seed: int) -> tuple[FunctionMask, Any]:
    """A mask of a long text with holes, and its truth table by FlexAttention, (B, H, Q, K)."""
    random = Random(seed)
    n, width, head = random.randint(520, 700), random.randint(1, 200), random.randrange(2)
    documents = torch.tensor([random.randrange(4) for _ in range(n)]).sort().values
    parts = [
        lambda b, h, q, k: (q - k).abs() < width,
        lambda b, h, q, k: documents[q] == documents[k],
        lambda b, h, q, k: torch.where(h == head, q >= k, (q >= 300) & (k < 40)),
        lambda b, h, q, k: (b == 1) | (q + k > n),
    ]
    first, second = random.sample(parts, 2)
    function = lambda b, h, q, k: first(b, h, q, k) & second(b, h, q, k)  # noqa: E731
    mask = FunctionMask(function, 2, 2, n, torch.device("cpu"))
    return mask, create_mask(function, 2, 2, n, n, device="cpu").numpy()


@pytest.mark.parametrize("seed", range(6))
def test_ranges_of_a_function_hold_what_it_allows(seed: int) -> None:
    mask, allowed = drawn_ranges(seed)
    n, random = allowed.shape[-1], Random(seed)
    narrowest = n
    for _ in range(20):
        q0 = random.randrange(n)
        q1 = random.randint(q0 + 1, min(n, q0 + 150))
        seen, everywhere = allowed[:, :, q0:q1].any((0, 1, 2)), allowed[:, :, q0:q1].all((0, 1, 2))
        k0, k1 = mask.key_range(q0, q1, n)
        assert not seen[:k0].any()
        assert not seen[k1:].any()
        a, b = mask.all_visible_range(q0, q1, n)
        assert everywhere[a:b].all()
        narrowest = min(narrowest, k1 - k0)
    assert narrowest < n, "no block is skipped"


def test_blocks_without_an_allowed_key_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window over 2,000 tokens costs what the term of the same meaning costs, and gives the same."""
    cells: list[int] = []
    tile_blocks = attention.tile_blocks

    def counted(*args: Any) -> Any:
        for block in tile_blocks(*args):
            cells.append((block.q1 - block.q0) * (block.k1 - block.k0))
            yield block

    monkeypatch.setattr(attention, "tile_blocks", counted)
    n = 2000
    q, k, v = torch.randn(3, 1, 1, n, 4, generator=torch.Generator().manual_seed(3))
    totals, outputs = [], []
    near = FunctionMask(lambda b, h, q, k: (q - k).abs() < 50, 1, 1, n, torch.device("cpu"))
    for mask in (near, SlidingWindow(50)):
        recorder = MatrixRecorder(["weights"], range(1), range(n), range(0, n, 40))
        attend(AttentionInputs(0, q, k, v, AttentionSpec(0.5, mask)), [recorder])
        totals.append(sum(cells))
        outputs.append(recorder.compute()["weights"])
        cells.clear()
    assert totals[0] < 1.4 * totals[1] < 0.3 * n * n
    assert torch.allclose(*outputs, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": lambda b, h, q, k: True}, "the function fails: ValueError"),
        ({"mask": lambda b, h, q, k: q + k}, r"returns torch.int64, not torch.bool"),
        ({"mask": lambda q, k: q >= k}, "the function fails: TypeError"),
        ({"score_mod": lambda s, b, h, q, k: s / 0}, "returns NaN or inf"),
        ({"score_mod": "relu"}, "str cannot be called"),
    ],
)
def test_what_a_function_may_not_do_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(AttnscopeError, match=message):
        attnscope.inspect(TEXT, **options)


def test_an_explanation_has_no_function_of_scores() -> None:
    with pytest.raises(UsageError, match="the arithmetic that is explained has no such function"):
        attnscope.explain(TEXT, query="bank", score_mod=lambda s, b, h, q, k: s)
