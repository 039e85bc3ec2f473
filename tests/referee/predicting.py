"""Draw random calls of `attnscope run` that predict, generate or take a logit apart, and verify every number of these.

A text that was continued is verified as one of `attnscope run`, too: what each new token attended to.
"""

import shlex
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import transformers as hf

from tests.helpers.effect_arithmetic import log_softmax
from tests.referee import draw, masks, reference, runner, verify
from tests.referee.call import Call, places
from tests.referee.expected import ROUNDINGS, Number, U
from tests.referee.models import ROWS, Model, Models
from tests.referee.reference import Array, Pass
from tests.referee.verify import Json, Mismatch, Text, close, same

MASK = "<mask>"
SHOWN = 5


@dataclass(frozen=True)
class Predicting:
    """One call of `attnscope run`."""

    call: Call  # what the Report must be
    kind: str  # `predict`, `generate` or `logit`
    count: int = 0  # tokens that are generated, at most
    targets: tuple[str, ...] = ()  # tokens whose logit is taken apart, as typed

    def argv(self) -> list[str]:
        """The arguments after `attnscope`."""
        more = {
            "predict": ["--predict"],
            "generate": ["--predict", "--generate", str(self.count)],
            "logit": [
                "--by",
                "logit",
                *(word for target in self.targets for word in ("--target", target)),
            ],
        }
        return [*self.call.argv(), *more[self.kind]]

    def command(self) -> str:
        """The same, to be copied into a shell."""
        made = self.call.command()
        return made.removesuffix(shlex.join(self.call.argv())) + shlex.join(self.argv())


def predicts(name: str) -> str | None:
    """What a model predicts, under both engines: `next`, `masked`, or nothing."""
    if name not in ROWS:
        return None
    row = ROWS[name]
    if reference.tied_base(row.model, row.model.config_class(**row.config)):
        return "next"
    kind = row.model.__name__
    if not kind.endswith(("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForPreTraining")):
        return None
    return "masked" if kind.endswith(("ForMaskedLM", "ForPreTraining")) else "next"


def call(models: Models, seed: int, number: int) -> Predicting:
    """Draw one call."""
    random = Random(f"predict {seed}:{number}")
    kind = ("predict", "generate", "logit")[number % 3]
    fits = {
        "predict": [name for name in ROWS if predicts(name)],
        "generate": [name for name in ROWS if predicts(name) == "next"],
        "logit": [name for name in ROWS if predicts(name) == "next" and "bert" not in name],
    }
    name = random.choice(fits[kind])
    base = draw.call(models, seed, 900_000 + number, (name,), divided=False)
    base = replace(base, more=("--format", "json", "--quiet", "--max-memory", "4G"))
    if kind == "predict":
        return Predicting(
            _with_masks(random, base, models[name]) if predicts(name) == "masked" else base, kind
        )
    base = replace(base, what_if=None if base.what_if == "same-scores" else base.what_if)
    if kind == "logit":
        words = random.sample(models[name].words, random.choice((1, 1, 2)))
        at = draw.places(
            random, base.texts, [draw.count_tokens(models[name], t, base.pair) for t in base.texts]
        )
        one = at if at.lstrip("-").isdigit() and len(base.texts) == 1 else None
        base = replace(base, engine=None, by=None, query=one, top=3)
        return Predicting(base, kind, targets=tuple(words) if random.random() < 0.8 else ())
    own = base.engine == "transformers" or masks.of_one_length(base.mask)
    base = replace(
        base, texts=base.texts[:1], file=None, pair=None, hide=None, mask=None if own else base.mask
    )
    base = replace(base, what_if=base.what_if if base.mask else None)
    least = [draw.count_tokens(models[name], base.texts[0], None) - models[name].after + 1]
    for option in ("query", "key"):
        if getattr(base, option) is not None:
            base = replace(base, **{option: draw.places(random, base.texts, least)})
    return Predicting(base, kind, random.choice((1, 2, 3, 5)))


def _with_masks(random: Random, base: Call, model: Model) -> Call:
    """The same call of texts that lack a word or two."""
    texts = []
    for text in base.texts:
        words = text.split()
        for at in random.sample(range(len(words)), min(len(words), random.choice((1, 2)))):
            words[at] = MASK
        texts.append(" ".join(words))
    if base.file is not None:
        base.file.write_text("".join(text + "\n" for text in texts))
    counts = [draw.count_tokens(model, text, base.pair) for text in texts]
    changed = replace(base, texts=tuple(texts), hide=None)
    for name in ("query", "key"):
        if getattr(base, name) is not None:
            changed = replace(changed, **{name: draw.places(random, tuple(texts), counts)})
    return changed


def check(made: Predicting, models: Models) -> None:
    """Run one call and verify every number of what it predicts."""
    found, model, asked = (
        runner.parsed(runner.output(made.argv())),
        models[made.call.model],
        made.call,
    )
    if made.kind == "generate":
        asked = replace(asked, grown=_generated(found["texts"][0], made, model))
    texts = [Text(model, asked, i) for i in range(len(asked.texts))]
    if made.kind != "logit":
        verify.report(found, asked, model)
    for one, text in zip(found["texts"], texts, strict=True):
        expression = text.mask if asked.what_if != "same-scores" else "own"
        whole = through(model, text, expression)
        kind, positions = predicted_places(model, text)
        if made.kind == "logit" and asked.query is not None:
            positions = places(asked.query, text.words)
        _predictions(one["predictions"], (kind, positions), whole, model)
        same("attributed", one["attribution"] is not None, made.kind == "logit")
        if made.kind == "logit":
            same("attribution.position", [one["attribution"]["position"]], positions)
            _attribution(one["attribution"], made.targets, positions[0], whole, model)


def through(
    model: Model, text: Text, expression: str, blend: reference.Blend = reference.plain_blend
) -> Pass:
    """One text through the whole model, under a mask."""
    return reference.run_through(
        model.path,
        list(text.encoding.ids),
        text.types,
        lambda own: masks.allowed(expression, own),
        blend,
    )


def predicted_places(model: Model, text: Text) -> tuple[str, list[int]]:
    """What is predicted, and where."""
    kind = predicts(model.name)
    assert kind is not None
    if kind == "masked":
        return kind, [i for i, piece in enumerate(text.encoding.tokens) if piece == MASK]
    return kind, [verify.closed_at(text.encoding) - 1]


def logit_slack(logits: Array) -> float:
    """By how much a logit may be off: each is a sum over hidden numbers, and hidden numbers over layers."""
    return 4 * ROUNDINGS * U * max(1.0, float(np.abs(logits).max()))


def _predictions(
    found: list[Json], expected: tuple[str, list[int]], whole: Pass, model: Model
) -> None:
    kind, positions = expected
    same(
        "predictions",
        [(one["kind"], one["position"]) for one in found],
        [(kind, at) for at in positions],
    )
    assert whole.logits is not None
    for one in found:
        most_probable(
            f"prediction at {one['position']}", one["tokens"], whole.logits[one["position"]], model
        )


def most_probable(where: str, found: list[Json], logits: Array, model: Model) -> None:
    """The five most probable tokens, with logit, probability and spelling."""
    off, share = logit_slack(logits), np.exp(log_softmax(logits))
    ids = [token["id"] for token in found]
    same(where, len(set(ids)), min(SHOWN, len(logits)))
    close(
        where + " order",
        np.sort(logits)[::-1][: len(ids)],
        Number(logits[ids], np.full(len(ids), 2 * off)),
    )
    close(
        where + " logit",
        [token["logit"] for token in found],
        Number(logits[ids], np.full(len(ids), off)),
    )
    close(
        where + " probability",
        [token["probability"] for token in found],
        Number(share[ids], share[ids] * np.expm1(2 * off)),
    )
    spelling(where, found, model)


def spelling(where: str, found: list[Json], model: Model) -> None:
    """Pieces of whole words spell themselves."""
    expected = [verify.spelled(verify.tokenizer_of(model.path), token["id"]) for token in found]
    same(where + " pieces", [token["piece"] for token in found], expected)
    same(where + " texts", [token["text"] for token in found], expected)


def _generated(found: Json, made: Predicting, model: Model) -> tuple[int, ...]:
    """The ids that the text was continued by, after a look at each choice."""
    plain = Text(model, made.call, 0)
    kept, ids = verify.closed_at(plain.encoding), list[int]()
    ends = hf.AutoConfig.from_pretrained(model.path).eos_token_id
    for n, one in enumerate(found["generated"]):
        text = Text(model, replace(made.call, grown=tuple(ids)), 0) if ids else plain
        same("generated", (one["kind"], one["position"]), ("next", kept + n - 1))
        begun = reference.run_through(
            model.path, list(text.encoding.ids[: kept + n]),
            None if text.types is None else list(text.types[: kept + n]),
            lambda own: masks.allowed(made.call.mask or "own", own),
        )  # fmt: skip
        assert begun.logits is not None
        most_probable(f"generated {n}", one["tokens"], begun.logits[-1], model)
        ids.append(one["tokens"][0]["id"])
    same("generated ids", [token["id"] for token in found["tokens"][kept:]], ids)
    same("made", [token["made"] for token in found["tokens"]], [False] * kept + [True] * len(ids))
    over = bool(ids) and ids[-1] == ends
    if ends in ids[:-1] or (len(ids) != made.count and not over):
        raise Mismatch(f"generated: {ids}, of {made.count} until {ends}")
    return tuple(ids)


def _attribution(found: Json, named: tuple[str, ...], at: int, whole: Pass, model: Model) -> None:
    """What each part adds, by the frozen scale of the final norm."""
    net = reference.load_with_head(model.path)
    assert whole.logits is not None
    cap = getattr(net.config, "final_logit_softcapping", None)
    logits = whole.logits[at] if cap is None else np.arctanh(whole.logits[at] / cap) * cap
    same("softcap", found["softcap"], cap)
    off, tokenizer = logit_slack(logits), verify.tokenizer_of(model.path)
    targets = [tokenizer.token_to_id(word) for word in named]
    given = [one for one in (found["target"], found["against"]) if one is not None]
    if not targets:
        close("target", logits.max(), Number(logits[found["target"]["id"]], np.array(2 * off)))
        targets = [found["target"]["id"]]
    same("targets", [one["id"] for one in given], targets)
    spelling("targets", given, model)
    close(
        "target logits",
        [one["logit"] for one in given],
        Number(logits[targets], np.full(len(targets), off)),
    )
    close(
        "total",
        found["total"],
        Number(logits[targets[0]] - logits[targets[1:]].sum(), np.array(2 * off)),
    )
    direction, constant = _direction(net, whole.streams[-1][at], targets)
    parts = _parts(whole, at, direction)
    scale = sum(float(np.abs(one).sum()) for one in parts.values()) + abs(constant)
    slack = 4 * ROUNDINGS * U * max(1.0, scale)
    expected: dict[str, Any] = {
        "embedding": parts["embedding"],
        "constant": constant,
        "heads": parts["sources"].sum(-1),
        "mlps": parts["mlps"],
        "attention_biases": parts["biases"],
        "sources": parts["sources"].sum((0, 1)),
    }
    for name, value in expected.items():
        close(name, found[name], Number(np.array(value), np.full(np.shape(value), slack)))
    total = sum(np.sum(verify.numbers(found[name])) for name in expected if name != "sources")
    close("sum of parts", total, Number(np.array(found["total"]), np.array(1e-6 * max(1.0, scale))))
    edges = [(edge["layer"], edge["head"], edge["source"]) for edge in found["edges"]]
    same("edges", len(set(edges)), len(edges))
    for least in (0.0, 1e-30):  # what float32 can hold
        there = min(20, np.count_nonzero(np.abs(parts["sources"]) > least))
        if len(edges) > there if least == 0.0 else len(edges) < there:
            raise Mismatch(f"edges: {len(edges)}, expected {there}")
    there = np.array([parts["sources"][edge] for edge in edges])
    close(
        "edges",
        [edge["value"] for edge in found["edges"]],
        Number(there, np.full(len(there), slack)),
    )
    largest = np.sort(np.abs(parts["sources"]), axis=None)[::-1][: len(edges)]
    close("strongest edges", np.abs(there), Number(largest, np.full(len(there), 2 * slack)))


def _direction(net: Any, x: Array, targets: list[int]) -> tuple[Array, float]:
    """What a number of the residual stream adds to the logit, or difference, and what is added in any case."""
    head, base = net.get_output_embeddings(), net.base_model
    norm = next(
        getattr(base, name) for name in ("norm", "ln_f", "final_layer_norm") if hasattr(base, name)
    )
    rows, signs = head.weight.detach().numpy()[targets], np.array([1.0, -1.0])[: len(targets)]
    row = (
        signs
        @ rows
        * getattr(net.config, "logit_scale", 1.0)
        / getattr(net.config, "logits_scaling", 1.0)
    )
    bias = 0.0 if head.bias is None else float(signs @ head.bias.detach().numpy()[targets])
    weight = norm.weight.detach().numpy()
    if "LayerNorm" in type(norm).__name__:
        direction = (
            row
            * weight
            / np.sqrt(x.var() + (norm.eps if hasattr(norm, "eps") else norm.variance_epsilon))
        )
        added = (
            0.0 if getattr(norm, "bias", None) is None else float(row @ norm.bias.detach().numpy())
        )
        return direction - direction.mean(), bias + added
    if net.config.model_type.startswith("gemma"):
        weight = 1 + weight
    return row * weight / np.sqrt((x**2).mean() + net.config.rms_norm_eps), bias


def _parts(whole: Pass, at: int, direction: Array) -> dict[str, Array]:
    """What the embedding, each source through each head, biases of output projections and MLPs add."""
    sources, biases, mlps = [], [], []
    for n, layer in enumerate(whole.layers):
        assert layer.out is not None
        weights = whole.weights[n][:, at]  # (H, K)
        through = layer.v @ layer.out @ (direction * whole.after_norm[n][at])  # (H, K)
        added = float(whole.attended[n][at] @ direction)
        sources.append(weights * through)
        biases.append(added - sources[-1].sum())
        mlps.append(float((whole.streams[n + 1][at] - whole.streams[n][at]) @ direction) - added)
    return {
        "embedding": np.array(whole.streams[0][at] @ direction),
        "sources": np.array(sources),
        "biases": np.array(biases),
        "mlps": np.array(mlps),
    }
