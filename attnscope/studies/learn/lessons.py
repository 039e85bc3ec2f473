"""The eight lessons: each is a title and a function that makes its steps of the numbers of a row.

A step is a sentence, a formula with the numbers put in, a question to predict, and the answer as the numbers have it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attnscope.base.errors import UsageError, arg
from attnscope.findings.lesson import Lesson, LessonRow, LessonStep
from attnscope.request.run_config import TextInput
from attnscope.studies.explain.arithmetic import Numbers, entropy, softmax
from attnscope.studies.learn.material import (
    BIDIRECTIONAL,
    CAUSAL,
    Material,
)
from attnscope.views.numbers import number_text, scale_text

_CHOICES = 5  # tokens to choose from
_TERMS = 3  # products of a dot product that a formula writes out
_NEARLY_ALL = 0.9  # weight from which a token is said to get nearly all of a row
_A_LITTLE = 0.3  # share of the residual stream's length below which a head is said to add little
_ROUNDING = 1e-4  # difference of weights that the order of sums explains


def _say(value: float, digits: int = 2) -> str:
    return number_text(float(value), digits)


def _strongest(values: Numbers, count: int = _CHOICES) -> list[int]:
    """Return the positions of the largest values, in the order of the text."""
    return sorted(np.argsort(-values, kind="stable")[:count].tolist())


def _pick(labels: Sequence[str], values: Numbers) -> tuple[list[str], int]:
    """Return labels to choose from, and which of them has the largest value."""
    places = _strongest(values)
    return [labels[index] for index in places], places.index(int(values.argmax()))


def _amounts(right: float, *wrong: float, digits: int = 2) -> tuple[list[str], int]:
    """Return different numbers to choose from, in ascending order, and which of them is right."""
    amounts = {_say(value, digits): value for value in (*wrong, right)}
    ordered = sorted(amounts, key=lambda text: amounts[text])
    return ordered, ordered.index(_say(right, digits))


def _table(labels: Sequence[str], *columns: Numbers) -> list[LessonRow]:
    return [
        LessonRow(
            label, [float(column[row]) if np.isfinite(column[row]) else None for column in columns]
        )
        for row, label in enumerate(labels)
    ]


def _scores(m: Material) -> list[LessonStep]:
    allowed = np.where(m.allowed, m.scores, -np.inf)
    best = int(allowed.argmax())
    key = m.explanation.key_vectors[best].astype(np.float64)
    products = m.query_vector * key
    order = np.argsort(-np.abs(products), kind="stable")[:_TERMS]
    terms = " + ".join(f"({_say(m.query_vector[d])} × {_say(key[d])})" for d in order)
    others = m.width - len(order)
    if others:
        terms += f" + … {others} more"
    label = m.labels[best]
    here = m.row_label
    choices, answer = _pick(m.labels, allowed)
    lengths = float(np.linalg.norm(m.query_vector)), float(np.linalg.norm(key))
    cosine = m.scores[best] / (lengths[0] * lengths[1])
    share = float(products[order].sum() / products.sum())
    doubled = int(np.where(m.allowed, 2 * m.scores, -np.inf).argmax()) == best
    return [
        LessonStep(
            "A score is the dot product of the query of one token with the key of another: how well they match.",
            f"q({here}) · k = {terms} = {_say(m.scores[best])}",
            f"This is the largest score of {here}. Which token is the key?",
            choices,
            answer,
            f"{label}, with {_say(m.scores[best])}.",
            ["q·k"],
            _table(m.labels, m.scores),
        ),
        LessonStep(
            "The same number is length × length × cosine: long vectors that point the same way score high.",
            f"‖q‖ × ‖k‖ × cos = {_say(lengths[0])} × {_say(lengths[1])} × {_say(cosine)} = {_say(m.scores[best])}",
            "If the query were twice as long, would another token have the largest score?",
            ["yes", "no"],
            int(doubled),
            "No: every score of the row doubles, and their order stays." if doubled else "Yes.",
        ),
        LessonStep(
            f"Each of the {m.width} dimensions adds its product, and products can cancel.",
            f"the {len(order)} largest products sum to {_say(products[order].sum())} of {_say(products.sum())}",
            f"What share of the score do these {len(order)} dimensions give?",
            *_amounts(share, share / 2, share + 1.0),
            f"{_say(share)} of it; {f'the other {others} give the rest' if others else 'there are no others'}.",
        ),
    ]


def _scale(m: Material) -> list[LessonStep]:
    scale = m.explanation.scale
    if scale >= 1:
        raise UsageError(
            f"this model multiplies its scores by {scale:g}, which narrows nothing",
            where=arg("model"),
            hint="choose another lesson, or another model",
        )
    root = float(np.sqrt(m.width))
    how = scale_text(scale, m.width)
    by = f"÷ {_say(root)}" if how.startswith("÷") else how
    best = int(np.where(m.allowed, m.scores, -np.inf).argmax())
    scores = m.scores[m.allowed]
    scaled = m.times_scale[m.allowed]
    with_scale = m.weights[m.allowed]
    without = softmax(m.unscaled[m.allowed])
    spread = float(scores.std()), float(scaled.std())
    return [
        LessonStep(
            "A dot product of more dimensions is a sum of more terms, so scores spread out; they are scaled back.",
            f"{_say(m.scores[best])} {how} = {_say(m.scores[best])} {by} = {_say(m.times_scale[best])}",
            f"The scores of this row spread by {_say(spread[0])} (standard deviation). By how much after {how}?",
            *_amounts(spread[1], spread[0], spread[0] / m.width, digits=3),
            f"By {_say(spread[1], 3)}: the deviation is scaled as every score is.",
            ["q·k", how],
            _table(m.labels, m.scores, m.times_scale),
        ),
        LessonStep(
            _without_scale(float(with_scale.max()), float(without.max())),
            f"entropy of the row: {_say(entropy(with_scale))} bits with {how}, {_say(entropy(without))} without",
            "How large would the largest weight be without the scale?",
            *_amounts(float(without.max()), float(with_scale.max()), 1 / len(scores), digits=3),
            f"{_say(without.max(), 3)} instead of {_say(with_scale.max(), 3)}; where a weight is 1, no gradient flows.",
            ["with", "without"],
            _table(
                [label for label, there in zip(m.labels, m.allowed, strict=True) if there],
                with_scale,
                without,
            ),
        ),
    ]


def _without_scale(before: float, after: float) -> str:
    """Say what becomes of the largest weight of a row without the scale."""
    if after <= before:
        return (
            "Without the scale, the scores would be larger, but not the largest weight of this row."
        )
    if after < _NEARLY_ALL:
        return "Without the scale, the softmax would see larger differences, and more weight would go to one token."
    return "Without the scale, the softmax would see large differences, and nearly all weight would go to one token."


def _mask(m: Material) -> list[LessonStep]:
    n = len(m.labels)
    unmasked = softmax(m.scaled)
    causal = np.asarray(m.explanation.keys) <= m.query
    hidden_first = causal.all()  # the last token sees every key: hide the strongest one instead
    visible = causal if not hidden_first else np.arange(n) != int(unmasked.argmax())
    name = "a causal mask"
    if hidden_first:
        name = f"the key {m.labels[int(unmasked.argmax())]} hidden"
    before = softmax(np.where(visible, m.scaled, -np.inf))
    left = float(unmasked[visible].sum())
    again = unmasked * visible / left
    equal = bool(np.allclose(again, before, atol=1e-6))
    first_masked = int((~visible).argmax())
    return [
        LessonStep(
            "A mask forbids keys: their scores become −∞ before the softmax, and exp(−∞) is 0.",
            f"with {name}: {m.labels[first_masked]} has {_say(m.scaled[first_masked])} → −∞, and exp(−∞) = 0",
            "How many keys may this token still read?",
            *_amounts(
                float(visible.sum()), float(n), float(max(1, n - int(visible.sum()))), 0.0, digits=0
            ),
            f"{int(visible.sum())} of {n}.",
            ["scaled", "masked"],
            _table(m.labels, m.scaled, np.where(visible, m.scaled, -np.inf)),
        ),
        LessonStep(
            "Why before the softmax? If weights were set to 0 after it, the row would no longer sum to 1.",
            f"weight of the hidden keys without a mask ({int((~visible).sum())} of {n}): {_say(1 - left, 3)}",
            "A mask after the softmax would make this row sum to",
            *_amounts(left, 1.0, (1 + left) / 2 if left < 0.5 else left / 2, digits=3),
            f"{_say(left, 3)}: the weight of the hidden keys is lost instead of shared out.",
            ["no mask", "mask after", "mask before"],
            _table(m.labels, unmasked, unmasked * visible, before),
        ),
        LessonStep(
            "What is left after the mask can be divided by its sum.",
            f"{_say(unmasked[visible].max(), 3)} / {_say(left, 3)} = {_say(again[visible].max(), 3)}",
            "Is the mask before the softmax the same as the mask after it, divided by the new sum?",
            ["yes, up to rounding", "no"],
            int(not equal),
            f"{'Yes: both give' if equal else 'No: before gives'} {_say(before.max(), 3)}. Before is one step, and "
            "also works if all that is left is tiny.",
        ),
    ]


def _softmax(m: Material) -> list[LessonStep]:
    masked = np.where(m.allowed, m.scaled, -np.inf)
    maximum = float(masked.max())
    powers = np.exp(masked - maximum)
    total = float(powers.sum())
    sharper = softmax(masked / 0.5)
    unchanged = bool(np.allclose(softmax(masked - 1.0), softmax(masked)))
    explanation = "Yes."
    if unchanged:
        explanation = "No: every exponential and their sum shrink by the same factor."
    spread = "less spread"
    if entropy(sharper) >= entropy(m.weights):
        spread = "as before, since no temperature makes equal scores differ"
    choices, answer = _pick(m.labels, m.weights)
    return [
        LessonStep(
            "The softmax takes the exponential of every score; the largest is subtracted first, so nothing overflows.",
            f"exp({_say(maximum)} − {_say(maximum)}) = 1; the row's sum is {_say(total, 4)}",
            "Does subtracting the largest score change the weights?",
            ["yes", "no"],
            int(unchanged),
            explanation,
            ["masked", "exp"],
            _table(m.labels, masked, powers),
        ),
        LessonStep(
            "Each exponential is divided by their sum, so that the row sums to 1.",
            f"1 / {_say(total, 4)} = {_say(1 / total, 4)}",
            "Which token gets the most weight?",
            choices,
            answer,
            f"{m.labels[int(m.weights.argmax())]}, with {_say(m.weights.max(), 3)}.",
            ["weight"],
            _table(m.labels, m.weights),
        ),
        LessonStep(
            "A temperature below 1 makes the differences larger, and the row sharper.",
            f"softmax(masked / 0.5): {_say(m.weights.max(), 3)} → {_say(sharper.max(), 3)}",
            f"The entropy of this row is {_say(entropy(m.weights))} bits. At half the temperature it is",
            *_amounts(entropy(sharper), entropy(m.weights) * 2 + 0.1, entropy(m.weights) + 0.05),
            f"{_say(entropy(sharper))} bits: {spread}.",
        ),
    ]


def _output(m: Material) -> list[LessonStep]:
    e = m.explanation
    values = e.value_vectors.astype(np.float64)
    norms = np.linalg.norm(values, axis=1)
    contributions = m.weights * norms
    blend = m.weights @ values
    order = np.argsort(-m.weights, kind="stable")[:_TERMS]
    terms = " + ".join(f"({_say(m.weights[k], 3)} × {_say(values[k, 0])})" for k in order)
    if len(order) < len(values):
        terms += " + …"
    choices, answer = _pick(m.labels, contributions)
    steps = [
        LessonStep(
            "The output is the sum of all value vectors, each times its weight.",
            f"dimension 0: {terms} = {_say(blend[0], 3)}",
            "Which token contributes most: the largest weight × length of its value?",
            choices,
            answer,
            f"{m.labels[int(contributions.argmax())]}: {_say(m.weights[int(contributions.argmax())], 3)} × "
            f"{_say(norms[int(contributions.argmax())])} = {_say(contributions.max())}.",
            ["weight", "‖v‖", "weight × ‖v‖"],
            _table(m.labels, m.weights, norms, contributions),
        ),
        LessonStep(
            "Values can cancel, so the output is never longer than its parts together.",
            f"‖Σ weight × v‖ = {_say(float(np.linalg.norm(blend)))} ≤ Σ weight × ‖v‖",
            "How long would the output be if all values pointed the same way?",
            *_amounts(float(contributions.sum()), float(np.linalg.norm(blend)), float(norms.sum())),
            f"{_say(contributions.sum())}, the sum of the lengths.",
        ),
    ]
    if e.projected is not None and e.inputs and m.temperature == 1.0:
        stream = [
            vector
            for vector in e.inputs
            if vector.name in ("residual", "sum", "embedding", "token")
        ][-1]
        share = e.projected.norm / stream.norm
        told = f"{_say(share)} of its length"
        if share < _A_LITTLE:
            told += ": this head corrects the stream a little"
        steps.append(
            LessonStep(
                "W_O maps the head's output back to the width of the model, where it is added to the residual stream.",
                f"‖W_O × output‖ = {_say(e.projected.norm)}; the residual stream before it has {_say(stream.norm)}",
                "How long is what this head adds, compared with what was there?",
                *_amounts(share, 1.0, 1 / share if share else 0.5),
                f"{told}.",
            )
        )
    return steps


def _heads(m: Material) -> list[LessonStep]:
    rows = m.layer_weights[:, m.query]  # (H, K)
    if len(rows) == 1:
        raise UsageError(
            "this model has one head in a layer, and the lesson compares several",
            where=arg("model"),
            hint="choose another lesson, or another model",
        )
    names = [f"L{m.layer}H{head}" for head in range(len(rows))]
    best = int(rows[m.head].argmax())
    label = m.labels[best]
    spreads = np.array([entropy(row) for row in rows])
    choices, answer = _pick(names, rows[:, best])
    wide, which = _pick(names, spreads)
    mean = rows.mean(0)
    return [
        LessonStep(
            "Every head has its own W_q, W_k and W_v, so the same token reads different tokens in each.",
            f"mean weight of the {len(rows)} heads on {label}: {_say(mean[best], 3)}",
            f"Which head of layer {m.layer} reads {label} most?",
            choices,
            answer,
            f"{names[int(rows[:, best].argmax())]}, with {_say(rows[:, best].max(), 3)}.",
            [f"on {label}"],
            _table(names, rows[:, best]),
        ),
        LessonStep(
            "Some heads pick one token, others spread over many: the entropy says how many bits of choice are left.",
            f"uniform over {rows.shape[1]} keys would be {_say(np.log2(rows.shape[1]))} bits",
            "Which head spreads most?",
            wide,
            which,
            f"{names[int(spreads.argmax())]}, with {_say(spreads.max())} bits.",
            ["entropy"],
            _table(names, spreads),
        ),
        LessonStep(
            "The mean over heads hides them: it is flatter than the heads it is made of.",
            f"largest weight of the mean row: {_say(mean.max(), 3)}",
            "The largest weight of a single head in this row is",
            *_amounts(float(rows.max()), float(mean.max()), 1 / len(rows), digits=3),
            f"{_say(rows.max(), 3)}, in {names[int(rows.max(1).argmax())]}.",
        ),
    ]


def _directions(m: Material) -> list[LessonStep]:
    both = m.weights_under(BIDIRECTIONAL)
    past = m.weights_under(CAUSAL)
    n = both.shape[1]
    later = np.triu(np.ones((n, n), dtype=bool), 1)
    ahead = float((both[m.head] * later).sum(1).mean())
    moved = np.abs(both[m.head] - past[m.head]).sum(1) / 2
    first_token = 0
    second = min(1, n - 1)
    names = [f"{query} {label.partition(' ')[2]}" for query, label in enumerate(m.labels)]
    choices, answer = _pick(names, moved)
    return [
        LessonStep(
            "A bidirectional model reads in both directions; a causal one only what comes before, since it predicts the"
            " next token.",
            f"L{m.layer}H{m.head}, bidirectional: on average {_say(ahead, 3)} of a row is on later tokens",
            "And under a causal mask?",
            *_amounts(float((past[m.head] * later).sum(1).mean()), ahead, 1 - ahead, digits=3),
            f"{_say((past[m.head] * later).sum())}: later tokens are forbidden.",
        ),
        LessonStep(
            "Under a causal mask, early tokens have few keys to choose from.",
            f"row {names[second]}: {second + 1} keys; row {names[n - 1]}: {n} keys",
            f"Under the causal mask, how much weight does the first token, {names[first_token]}, give to itself?",
            *_amounts(
                float(past[m.head, first_token, first_token]),
                float(both[m.head, first_token, first_token]),
                1 / n,
                digits=3,
            ),
            f"{_say(past[m.head, first_token, first_token], 3)}: it sees nothing else. Bidirectional: "
            f"{_say(both[m.head, first_token, first_token], 3)}.",
        ),
        LessonStep(
            "Changing the mask moves weight, and in later layers also changes what is read.",
            "moved share of a row: ½ Σ |difference|",
            "In which row does most weight move?",
            choices,
            answer,
            f"{names[int(moved.argmax())]}: {_say(moved.max(), 3)} of its weight.",
            ["moved"],
            _table(names, moved),
        ),
    ]


def _sinks(m: Material) -> list[LessonStep]:
    weights = m.layer_weights
    weight_on_first = weights[:, 1:, 0].mean(1)
    allowed = np.isfinite(m.text_report().heads[0].stages["masked"])
    even = allowed[1:, 0] / np.maximum(1, allowed[1:].sum(1))
    names = [f"L{m.layer}H{head}" for head in range(len(weight_on_first))]
    choices, answer = _pick(names, weight_on_first)
    text = m.run.texts[0].text
    longer = TextInput(f"{text} {text}")  # of words that the model knows
    padded = m.report(None, (m.run.texts[0], longer), show_padding=True).texts
    n = len(m.explanation.tokens)
    padding = padded[0].padding
    batched = padded[0].heads[m.head].stages["weights"][:n]  # (n, n + padding)
    difference = float(
        np.abs(m.text_report().heads[m.head].stages["weights"] - batched[:, :n]).max()
    )
    on_padding = float(batched[:, n:].sum())
    return [
        LessonStep(
            "A softmax cannot give nothing: a head without a target puts its weight somewhere, often on the first"
            " token, a sink.",
            f"weight of other tokens on the first, mean of the {len(names)} heads: {_say(weight_on_first.mean(), 3)}",
            f"Which head of layer {m.layer} gives the first token most?",
            choices,
            answer,
            f"{names[int(weight_on_first.argmax())]}, with {_say(weight_on_first.max(), 3)}. An even share would be "
            f"{_say(even.mean(), 3)}.",
            ["on the first"],
            _table(names, weight_on_first),
        ),
        LessonStep(
            "Texts of a batch are padded to one length, and the mask forbids the padding.",
            f"beside a text of {n + padding} tokens, this one gets {padding} padding tokens",
            "How much weight do they get?",
            *_amounts(on_padding, padding / (padding + n), 1.0, digits=3),
            f"{_say(on_padding)}: the rows sum to {_say(batched[:, :n].sum(1).min(), 3)} without them.",
        ),
        LessonStep(
            "Where padding changes the weights of a text, the mask is wrong.",
            f"softmax of {n} scores, or of {n} scores and {padding} × −∞",
            "Does this text get the same weights alone and in the batch?",
            ["yes, up to rounding", "no"],
            int(difference > _ROUNDING),
            f"{'Yes' if difference <= _ROUNDING else 'No'}: the largest difference of a weight is {difference:.0e}. "
            "attnscope check and doctor test this for a model and for a batch.",
        ),
    ]


@dataclass(frozen=True)
class LessonPlan:
    """A lesson: its title, and the function that makes its steps."""

    title: str
    make: Callable[[Material], list[LessonStep]]


LESSONS = {
    "scores": LessonPlan("Scores: how well a query and a key match", _scores),
    "scale": LessonPlan("Scale: why scores are divided by √d", _scale),
    "mask": LessonPlan("Mask: why it comes before the softmax", _mask),
    "softmax": LessonPlan("Softmax: from scores to weights", _softmax),
    "output": LessonPlan("Output: what a head writes", _output),
    "heads": LessonPlan("Heads: several questions at once", _heads),
    "directions": LessonPlan("Directions: causal and bidirectional", _directions),
    "sinks": LessonPlan("Sinks and padding: weight without meaning", _sinks),
}


def make_lesson(name: str, material: Material) -> Lesson:
    """Make a lesson of a row's numbers."""
    e = material.explanation
    plan = LESSONS[name]
    return Lesson(
        text=e.text,
        pair=e.pair,
        tokens=e.tokens,
        context=e.context,
        provenance=e.provenance,
        mask=e.mask,
        name=name,
        title=plan.title,
        layer=e.layer,
        head=e.head,
        query=e.query,
        temperature=material.temperature,
        steps=plan.make(material),
        chosen=e.chosen,
    )
