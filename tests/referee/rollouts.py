"""Draw random calls of `attnscope run --measure`, and verify every number of them."""

import shlex
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from tests.helpers.effect_arithmetic import change_of, roll_out, shares
from tests.referee import draw, masks, runner, verify
from tests.referee.call import Call, places
from tests.referee.expected import ROUNDINGS, Number, U
from tests.referee.models import ROWS, Model, Models
from tests.referee.predicting import through
from tests.referee.reference import Allowed, Array, Layer
from tests.referee.verify import Json, Mismatch, Text, close, same

_MEASURES = ("rollout", "rollout-no-residual", "value-zeroing", "value-zeroing-rollout")


@dataclass(frozen=True)
class Flowing:
    """One call of `attnscope run`, with the measure and the layers that it covers."""

    call: Call
    measure: str
    layers: range

    def argv(self) -> list[str]:
        """The arguments after `attnscope`."""
        return [*self.call.argv(), "--measure", self.measure]

    def command(self) -> str:
        """The same, to be copied into a shell."""
        return "attnscope " + shlex.join(self.argv())


def call(models: Models, seed: int, number: int) -> Flowing:
    """Draw one call."""
    random, measure = Random(f"measure {seed}:{number}"), _MEASURES[number % 4]
    base = draw.call(models, seed, 1_300_000 + number, tuple(ROWS), divided=False)
    text = " ".join(base.texts[0].split()[:7])
    counts = [draw.count_tokens(models[base.model], text, None)]
    low = random.randrange(3)
    layers = range(low, random.randint(low, 2) + 1)
    base = replace(
        base, texts=(text,), pair=None, file=None, head=None, by=None, pool=None, stage=None, what_if=None,
        mask=None if masks.of_one_length(base.mask) else base.mask, layer=f"{low}-{layers[-1]}",
        query=draw.places(random, (text,), counts) if random.random() < 0.3 else None,
        key=draw.places(random, (text,), counts) if random.random() < 0.3 else None,
        hide=draw.hidden(seed, number, (text,), counts) if random.random() < 0.3 else None,
    )  # fmt: skip
    return Flowing(base, measure, layers)


def check(made: Flowing, models: Models) -> None:
    """Run one call and verify every number of its matrices."""
    (found,), model = runner.parsed(runner.output(made.argv()))["texts"], models[made.call.model]
    text = Text(model, made.call, 0)
    every = list(range(text.n))
    queries, keys = (
        every if typed is None else places(typed, text.words)
        for typed in (made.call.query, made.call.key)
    )
    same("queries and keys", (found["queries"], found["keys"]), (queries, keys))
    if "zeroing" in made.measure:
        matrices = [_zeroed(model, text, layer) for layer in made.layers]
        if made.measure.endswith("rollout"):
            product = matrices[0]
            for one in matrices[1:]:
                slack = one.slack @ product.value + one.value @ product.slack
                product = Number(one.value @ product.value, slack)
            matrices = [product]
    else:
        used = [text.layers[n].number("weights") for n in made.layers]
        off = sum(float(one.slack.mean(0).sum(-1).max()) for one in used)
        value = roll_out(
            [np.nan_to_num(one.value) for one in used], residual=made.measure == "rollout"
        )
        least = min(float(_least_row(np.nan_to_num(one.value), made.measure)) for one in used)
        matrices = [Number(value, np.full(value.shape, off / least + 8 * U))]
    covered = [[n] for n in made.layers] if made.measure == "value-zeroing" else [list(made.layers)]
    same(
        "rollouts",
        [(one["measure"], one["layers"]) for one in found["rollouts"]],
        [(made.measure, n) for n in covered],
    )
    for rollout, matrix in zip(found["rollouts"], matrices, strict=True):
        _rollout(rollout, matrix, made.call, text, (queries, keys))


def _least_row(weights: Array, measure: str) -> float:
    """What rows are divided by, at least: sinks leave less than 1."""
    sums = weights.mean(0).sum(-1)
    sums = sums[sums > 0] if measure != "rollout" else 0.5 * sums + 0.5
    return min([1.0, *sums])


def _zeroed(model: Model, text: Text, number: int) -> Number:
    """Value zeroing of one layer, by running the model without the value of each token."""

    visible = np.zeros((text.n, text.n), bool)

    def blend(gone: int) -> "object":
        def given(at: int, layer: Layer, used: Allowed, weights: Array) -> Array:
            values = layer.v.copy()
            if at == number and gone < 0:
                visible[:] = (weights > 0).any(0)
            if at == number and gone >= 0:
                values[:, gone] = 0.0
            return weights @ values

        return given

    whole, *others = (
        through(model, text, text.mask, blend(gone)).streams[number + 1]  # type: ignore[arg-type]
        for gone in range(-1, text.n)
    )
    cosines = np.array([change_of(whole, one)[0] for one in others]).T
    # float64 leaves rounding where nothing changes
    cosines = np.where(1 - cosines < 1e-12, 1.0, cosines)
    value = shares(1 - cosines)
    # A change below rounding may be listed or not; 1e-300 is above 0 and below every limit.
    value = np.where((value == 0) & visible & value.any(-1, keepdims=True), 1e-300, value)
    sums = (1 - cosines).sum(-1, keepdims=True)
    off = 8 * ROUNDINGS * U
    slack = off * np.sqrt(np.maximum(2 * (1 - cosines), 0)) + off**2
    slack = np.where(cosines == 1, 0, slack)
    total = slack.sum(-1, keepdims=True)
    return Number(value, (slack + value * total) / np.where(sums > 0, sums, 1) + 8 * U)


def _rollout(
    found: Json, matrix: Number, call: Call, text: Text, shown: tuple[list[int], list[int]]
) -> None:
    queries, keys = shown
    nothing = [q for q in queries if not matrix.value[q].any()]
    same("nothing", found["nothing"], nothing)
    value = matrix.value.copy()
    value[[q for q in range(text.n) if not value[q].any()]] = np.nan
    at = np.ix_(queries, keys)
    close("matrix", found["matrix"], Number(value[at], matrix.slack[at]))
    left_out = ["special tokens", "first token"] if call.no_special else []
    same("left out", found["left_out"], left_out)
    may = np.array([not call.no_special or (n > 0 and not text.special[n]) for n in range(text.n)])
    count = min(3 if call.top is None else call.top, text.n)
    for row, q in enumerate(queries):
        ranked = np.sort(np.where(may, matrix.value[q], 0.0))[::-1][:count]
        taken = [key for key in found["keys"][row] if key != -1]
        same(f"ranks of {q}", (len(found["keys"][row]), len(set(taken))), (count, len(taken)))
        if (
            not may[taken].all()
            or len(taken) > np.count_nonzero(ranked)
            or len(taken) < (ranked > 1e-30).sum()
        ):
            raise Mismatch(f"sources of {q}: {taken}, expected those of {ranked}")
        off = matrix.slack[q].max() * np.ones(len(taken))
        close(f"order of {q}", matrix.value[q, taken], Number(ranked[: len(taken)], 2 * off))
        close(
            f"values of {q}",
            verify.numbers(found["values"][row])[: len(taken)],
            Number(matrix.value[q, taken], off),
        )
