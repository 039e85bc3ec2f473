"""Draw random calls of `attnscope explain` and verify every number of the Explanation, the model's vectors included."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from tests.referee import draw, masks, reference, runner, verify
from tests.referee.call import Call, places
from tests.referee.expected import ROUNDINGS, Attention, Number, U
from tests.referee.models import Model, Models
from tests.referee.verify import Json, Mismatch, Text, close, numbers, same

_Q = ("q_proj", "query", "q_lin", "c_attn", "query_key_value", "qkv_proj", "q", "Wqkv")
_K = ("k_proj", "key", "k_lin", "c_attn", "query_key_value", "qkv_proj", "k", "Wqkv")
_TABLES = {
    "token": ("word_embeddings", "embed_tokens", "wte", "embed_in"),
    "segment": ("token_type_embeddings",),
    "position": ("position_embeddings", "wpe"),
}


@dataclass(frozen=True)
class Explaining:
    """One call of `attnscope explain`."""

    call: Call  # the same as a call of `attnscope run`
    top: int | None  # keys shown; None for all

    @property
    def argv(self) -> list[str]:
        """The arguments after `attnscope`."""
        words = ["explain", *self.call.argv()[1:]]
        return words if self.top is None else [*words, "--top", str(self.top)]

    def command(self) -> str:
        """The same, to be copied into a shell."""
        return "attnscope " + shlex.join(self.argv)


def call(models: Models, seed: int, number: int) -> Explaining:
    """Draw one call."""
    random = Random(f"explain {seed}:{number}")
    base = draw.call(models, seed, 900_000 + number, divided=False)
    text, n_layers = base.texts[0], 6 if base.model == "minilm" else 3
    count = draw.count_tokens(models[base.model], text, base.pair)
    if len(base.texts) > 1 and masks.of_one_length(base.mask):
        base = replace(base, mask=None, what_if=None)
    keys = random.sample(range(count), min(count, random.choice((1, 1, 2))))
    made = replace(
        base,
        texts=(text,),
        file=None,
        layer=random.choice((None, "auto", "-1", *map(str, range(n_layers)))),
        head=random.choice((None, "0", "1", "-1")),
        query=str(random.choice((random.randrange(count), -1))),
        key=",".join(map(str, keys)) if random.random() < 0.5 else None,
        stage=None, top=None, by=None, pool=None, no_special=False,
    )  # fmt: skip
    return Explaining(made, random.choice((None, None, 1, 3, 70)))


@dataclass
class _Found:
    """What a model of transformers computes on the way, each by the number of its layer."""

    streams: list[Any] = field(default_factory=list)  # what enters each layer, (T, D)
    # Names of the attention's linear modules to what goes in and comes out, (T, …).
    linear: list[dict[str, tuple[Any, Any]]] = field(default_factory=list)
    # `q_norm` or `k_norm` to what comes out
    normed: list[dict[str, Any]] = field(default_factory=list)
    # names of embeddings to what comes out, (T, D)
    tables: dict[str, Any] = field(default_factory=dict)


@contextmanager
def _listening(model: nn.Module, n_layers: int) -> Iterator[_Found]:
    found, hooks = _Found(), []
    lists = [
        (name, m)
        for name, m in model.named_modules()
        if isinstance(m, nn.ModuleList) and len(m) == n_layers
    ]
    _, blocks = min(lists, key=lambda pair: len(pair[0]))

    def enters(_: nn.Module, given: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        stream = given[0] if given else named["hidden_states"]
        found.streams.append(stream[0].numpy().copy())
        found.linear.append({})
        found.normed.append({})

    def linear(name: str) -> Callable[..., None]:
        def keep(_: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
            found.linear[-1].setdefault(name, (given[0][0].numpy().copy(), out[0].numpy().copy()))

        return keep

    def normed(name: str) -> Callable[..., None]:
        def keep(_: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> None:
            found.normed[-1][name] = out[0].numpy().copy()

        return keep

    def table(name: str) -> Callable[..., None]:
        def keep(_: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> None:
            found.tables[name] = out.reshape(-1, out.shape[-1]).numpy().copy()

        return keep

    for block in blocks:
        hooks.append(block.register_forward_pre_hook(enters, with_kwargs=True))
        for name, module in block.named_modules():
            last = name.rpartition(".")[2]
            if isinstance(module, nn.Linear | Conv1D) and last in (*_Q, *_K):
                hooks.append(module.register_forward_hook(linear(last)))
            elif last in ("q_norm", "k_norm"):
                hooks.append(module.register_forward_hook(normed(last)))
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            hooks.append(module.register_forward_hook(table(name.rpartition(".")[2])))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def check(made: Explaining, models: Models) -> None:
    """Run one call and verify every number of it."""
    _Check(runner.parsed(runner.output(made.argv)), made, models[made.call.model]).all()


def _vectors(value: Any, scale: Any) -> Number:
    """A vector of the model; its rounding is that of the largest on its way."""
    return Number(
        np.asarray(value), np.full(np.shape(value), ROUNDINGS * U * max(float(np.max(scale)), 1.0))
    )


class _Check:
    """One Explanation against the reference."""

    def __init__(self, found: Json, made: Explaining, model: Model) -> None:
        self.found, self.made, self.call, self.model = found, made, made.call, model
        self.text = Text(model, self.call, 0)
        self.layer, self.head, self.query = (found[name] for name in ("layer", "head", "query"))
        expression = masks.expression(self.call.mask, self.call.hide, self.text.words)
        change = None
        if expression != "own" and self.call.what_if != "same-scores":
            change = lambda own: masks.allowed(expression, own)  # noqa: E731
        types = self.text.encoding.type_ids if model.segments else None
        with _listening(reference.load(model.path), len(self.text.layers)) as self.seen:
            reference.run(model.path, self.text.encoding.ids, types, change)
        self.a: Attention = self.text.layers[self.layer]
        self.dead = bool(self.a.dead[self.query])

    def all(self) -> None:
        """Every part of it."""
        found, a, n = self.found, self.a, self.text.n
        verify._tokens(found["tokens"], self.text)
        words = [token["text"] for token in found["tokens"]]
        same("query", [self.query], places(str(self.call.query), words))
        self._unit()
        close("scale", found["scale"], Number(np.array(a.layer.scale), np.array(0.0)))
        same("softcap", found["softcap"], a.layer.softcap)
        same("bias", (found["bias"], found["row"]["bias"]), (None, None))
        same("fully_masked", found["fully_masked"], self.dead)
        self._inputs()
        self._steps("query_steps", found["query_steps"], "q", self.query)
        for cell in found["cells"]:
            self._cell(cell)
        self._keys(n)
        self._row()
        self._softmax()
        self._blend()
        for one in found["checks"]:
            if one["difference"] > one["tolerance"]:
                raise Mismatch(
                    f"check {one['name']}: {one['difference']} beyond {one['tolerance']}"
                )

    def _unit(self) -> None:
        """Layer and head are those that were named, or one of the best; the group is the head's."""
        shown = [{name: self.found[name] for name in ("layer", "head", "chosen")}]
        units = verify.named_units(self.call, [self.text], shown)
        same("unit", (self.layer, self.head), units[0][0])
        width = self.a.layer.k.shape[-1]
        keys = self._split(self._linear(_K), "k").shape[1] if self.seen.linear else 0
        same("width", len(self.found["query_steps"][-1]["values"]), width)
        same("group", self.found["group"], self.head * keys // len(self.a.raw))

    def _linear(self, names: Sequence[str]) -> tuple[str, Any, Any]:
        there = self.seen.linear[self.layer]
        name = next(name for name in names if name in there)
        return name, *there[name]

    def _split(self, linear: tuple[str, Any, Any], letter: str) -> Any:
        """What comes out of a projection, by head: (T, heads, E)."""
        name, _, out = linear
        heads, width = len(self.a.raw), self.a.layer.q.shape[-1]
        if name == "query_key_value":
            return out.reshape(len(out), heads, 3, width)[:, :, 0 if letter == "q" else 1]
        if name in ("c_attn", "Wqkv"):
            return out.reshape(len(out), 3, heads, width)[:, 0 if letter == "q" else 1]
        if name == "qkv_proj":
            keys = (out.shape[1] // width - heads) // 2
            return out.reshape(len(out), -1, width)[:, :heads] if letter == "q" else (
                out.reshape(len(out), -1, width)[:, heads : heads + keys]
            )  # fmt: skip
        return out.reshape(len(out), -1, width)

    def _inputs(self) -> None:
        """What enters the layer: the embedding's parts, or the stream as each layer found it; at the end x."""
        found, streams = self.found["inputs"], self.seen.streams
        for vector in found:
            norm = np.linalg.norm(numbers(vector["values"]))
            close(
                f"norm of {vector['name']}",
                vector["norm"],
                Number(np.array(norm), np.array(8 * U * norm)),
            )
        scale = max(np.linalg.norm(stream, axis=-1).max() for stream in streams[: self.layer + 1])
        named = [vector["name"] for vector in found]
        x = self._linear(_Q)[1][self.query]
        close("x", found[-1]["values"], _vectors(x, [scale, np.linalg.norm(x)]))
        if self.layer:
            expected = ["residual"] * (self.layer + 1)
            same("inputs", named[: self.layer + 1], expected)
            same("inputs", named[self.layer + 1 :] in ([], ["normed"]), True)
            for stream, vector in zip(streams[: self.layer + 1], found, strict=False):
                close("residual", vector["values"], _vectors(stream[self.query], scale))
            return
        before = [vector for vector in found if vector["name"] != "normed"]
        close("embedding", before[-1]["values"], _vectors(streams[0][self.query], scale))
        parts = [vector for vector in found if vector["name"] in _TABLES]
        if len(parts) > 1:
            total = next(vector for vector in found if vector["name"] == "sum")
            summed = np.sum([numbers(part["values"]) for part in parts], 0)
            close(
                "sum",
                total["values"],
                Number(summed, np.full(summed.shape, 16 * U * np.abs(summed).max())),
            )
            for part in parts:
                self._row_of_table(part)
        there = [
            name
            for name, tables in _TABLES.items()
            if any(table in self.seen.tables for table in tables)
        ]
        if self.model.segments:
            same("parts", [name for name in _TABLES if name in named], there)

    def _row_of_table(self, part: Json) -> None:
        tables = [
            self.seen.tables[name] for name in _TABLES[part["name"]] if name in self.seen.tables
        ]
        rows = [table[min(self.query, len(table) - 1)] for table in tables]
        if rows:
            close(part["name"], part["values"], _vectors(rows[0], 1e-3))

    def _steps(self, where: str, found: list[Json], letter: str, at: int) -> None:
        """A query or key as projected, normed and rotated."""
        group = self.head if letter == "q" else self.found["group"]
        projected = self._split(self._linear(_Q if letter == "q" else _K), letter)[at, group]
        scale = np.linalg.norm(projected)
        close(f"{where} projected", found[0]["values"], _vectors(projected, scale))
        names = [vector["name"] for vector in found]
        same(
            f"{where} normed",
            f"{letter} normed" in names,
            f"{letter}_norm" in self.seen.normed[self.layer],
        )
        if f"{letter} normed" in names:
            self._normed(where, found[names.index(f"{letter} normed")], letter, at, group)
        used = (self.a.layer.q if letter == "q" else self.a.layer.k)[self.head, at]
        close(f"{where} used", found[-1]["values"], _vectors(used, np.linalg.norm(used)))

    def _normed(self, where: str, vector: Json, letter: str, at: int, group: int) -> None:
        out, width = self.seen.normed[self.layer][f"{letter}_norm"], self.a.layer.q.shape[-1]
        shapes = [out.reshape(self.text.n, -1, width)[at, group]]
        if out.ndim == 3 and out.shape[1] == self.text.n:
            shapes.append(out[group, at])  # some models turn heads before they norm
        wrong = []
        for expected in shapes:
            try:
                return close(
                    f"{where} normed",
                    vector["values"],
                    _vectors(expected, np.linalg.norm(expected)),
                )
            except Mismatch as e:
                wrong.append(e)
        raise wrong[0]

    def _cell(self, cell: Json) -> None:
        """A dot product, what makes it, and the key that it is of."""
        a, key = self.a, cell["key"]
        same("allowed", cell["allowed"], bool(a.used[self.query, key]))
        score = a.number("scores")[self.head, self.query, key]
        close("cell.score", cell["score"], score)
        close("cell.total", cell["total"], score)
        self._steps(f"key {key}", cell["key_steps"], "k", key)
        q, k = a.layer.q[self.head, self.query], a.layer.k[self.head, key]
        turned = [self.found["query_steps"], cell["key_steps"]]
        pre = [steps[-2]["values"] if "rotated" in steps[-1]["name"] else None for steps in turned]
        dims = sorted(dim for part in cell["parts"] for dim in part["dims"])
        same("dims", dims, list(range(len(q))))
        sizes = [abs(part["product"]) for part in cell["parts"]]
        same("order of parts", sizes, sorted(sizes, reverse=True))
        for part in cell["parts"]:
            at = part["dims"]
            close("part.q", part["q"], _vectors(q[at], np.linalg.norm(q)))
            close("part.k", part["k"], _vectors(k[at], np.linalg.norm(k)))
            off = ROUNDINGS * U * max(np.linalg.norm(q) * np.linalg.norm(k), 1.0)
            close("part.product", part["product"], Number((q[at] * k[at]).sum(), np.array(off)))
            exact = sum(one * other for one, other in zip(part["q"], part["k"], strict=True))
            close(
                "part.product",
                part["product"],
                Number(np.array(exact), np.array(1e-12 * (1 + abs(exact)))),
            )
            same("a pair is turned", part["wavelength"] is not None, len(at) == 2)
            if part["wavelength"] is None:
                same("part.before", part["before"], None)
            else:
                self._pair(part, [numbers(one)[at] for one in pre], key)

    def _pair(self, part: Json, before: list[Any], key: int) -> None:
        """A rotated pair: turned by its position over the wavelength, and as much longer as the model makes it."""
        plain = float(before[0] @ before[1])
        off = ROUNDINGS * U * float(np.linalg.norm(before[0]) * np.linalg.norm(before[1]))
        close("part.before", part["before"], Number(np.array(plain), np.array(off)))
        for x, y, at in ((before[0], part["q"], self.query), (before[1], part["k"], key)):
            angle = 2 * np.pi * at / part["wavelength"]
            turned = np.array(
                [
                    x[0] * np.cos(angle) - x[1] * np.sin(angle),
                    x[1] * np.cos(angle) + x[0] * np.sin(angle),
                ]
            )
            # yarn scales rotated vectors
            longer = np.linalg.norm(y) / max(float(np.linalg.norm(x)), 1e-30)
            slack = 200 * U * (1 + at) * float(np.linalg.norm(y)) + 1e-30
            close("rotated pair", y, Number(turned * longer, np.full(2, slack)))

    def _keys(self, n: int) -> None:
        """The keys that are shown: those in depth, then the heaviest, then the barred ones."""
        shown, cells = self.found["keys"], [cell["key"] for cell in self.found["cells"]]
        words = [token["text"] for token in self.found["tokens"]]
        score = self.a.number("scores")[self.head, self.query]
        used = self.a.used[self.query]
        if self.call.key is not None:
            same("cells", sorted(cells), places(self.call.key, words))
        else:
            (best,) = cells
            may = used | ~used.any()
            if not may[best] or score.value[best] < score.value[may].max() - 2 * score.slack.max():
                raise Mismatch(f"cell: {best} of {score.value}")
        same("keys", shown, sorted(set(shown)))
        count = n if self.made.top is None else min(n, max(self.made.top, len(cells)))
        same("number of keys", len(shown), count)
        weights = self.a.number("weights")[self.head, self.query]
        free = [key for key in shown if key not in cells]
        left = [key for key in range(n) if key not in shown]
        if any(used[left]) and not all(used[free]):
            raise Mismatch(f"keys: {shown} holds a barred one in place of an allowed one")
        if any(used[left]) and free:
            lightest, heaviest = weights.value[free].min(), weights.value[left].max()
            if lightest < heaviest - 2 * weights.slack.max():
                raise Mismatch(f"keys: {shown} of {weights.value}")
        same("rest", self.found["rest"] is None, not left)

    def _row(self) -> None:
        """Norms, scores, and what becomes of them."""
        found, a, at = self.found, self.a, self.found["keys"]
        head, query, layer = self.head, self.query, self.a.layer
        row = found["row"]
        k, v = layer.k[head, at], layer.v[head, at]
        close(
            "key_vectors", found["key_vectors"], _vectors(k, np.linalg.norm(layer.k[head], axis=-1))
        )
        close(
            "value_vectors",
            found["value_vectors"],
            _vectors(v, np.linalg.norm(layer.v[head], axis=-1)),
        )
        close(
            "key_norms",
            row["key_norms"],
            _vectors(np.linalg.norm(k, axis=-1), np.linalg.norm(k, axis=-1)),
        )
        close(
            "value_norms",
            row["value_norms"],
            _vectors(np.linalg.norm(v, axis=-1), np.linalg.norm(v, axis=-1)),
        )
        close("scores", row["scores"], a.number("scores")[head, query, at])
        raw = a.number("scores")[head, query, at]
        times = Number(raw.value * layer.scale, raw.slack * abs(layer.scale))
        close("times_scale", row["times_scale"], times)
        same("capped", row["capped"] is None, layer.softcap is None)
        if layer.softcap is not None:
            close("capped", row["capped"], a.number("scaled")[head, query, at])
        close("scaled", row["scaled"], a.number("scaled")[head, query, at])
        close("masked", row["masked"], a.number("masked")[head, query, at])
        close("weights", row["weights"], a.number("weights")[head, query, at])

    def _softmax(self) -> None:
        """Exponentials, their maximum and sum, and what goes to the sink and to the rest."""
        found, a = self.found, self.a
        sinks = a.layer.sinks
        if self.dead:
            nothing = (None, None, None, [None] * len(found["keys"]))
            same("softmax", (found["maximum"], found["exponential_sum"], found["sink"], found["row"]["exponentials"]),
                 nothing)  # fmt: skip
            return
        masked, delta = a.masked[self.head, self.query], float(a.delta[self.head])
        top = masked.max() if sinks is None else max(masked.max(), sinks[self.head])
        powers = np.exp(masked - top)
        off = np.minimum(powers * np.expm1(2 * delta), 1.0) + 2 * U
        sink = 0.0 if sinks is None else float(np.exp(sinks[self.head] - top))
        close("maximum", found["maximum"], Number(np.array(top), np.array(delta)))
        close("exponentials", found["row"]["exponentials"], Number(powers, off)[found["keys"]])
        total = Number(
            np.array(powers.sum() + sink), np.array(off.sum() + sink * np.expm1(2 * delta))
        )
        close("exponential_sum", found["exponential_sum"], total)
        same("sink", found["sink"] is None, sinks is None)
        if sinks is not None:
            close("sink.logit", found["sink"]["logit"], Number(sinks[self.head], np.array(0.0)))
            drained = Number(np.array(sink), np.array(sink * np.expm1(2 * delta) + 2 * U))
            close("sink.exponential", found["sink"]["exponential"], drained)
            close(
                "sink.weight", found["sink"]["weight"], a.statistic("sink")[self.head, self.query]
            )
        self._rest(Number(powers, off))

    def _rest(self, powers: Number) -> None:
        """What the keys that are not shown add up to."""
        rest = self.found["rest"]
        if rest is None:
            return
        used = self.a.used[self.query]
        left = [key for key in range(self.text.n) if key not in self.found["keys"]]
        of = [key for key in left if used[key]]
        same("rest", (rest["allowed"], rest["barred"]), (len(of), len(left) - len(of)))
        close(
            "rest.exponentials",
            rest["exponentials"],
            Number(powers.value[of].sum(), powers.slack[of].sum()),
        )
        weights = self.a.number("weights")[self.head, self.query, of]
        close("rest.weight", rest["weight"], Number(weights.value.sum(), weights.slack.sum()))
        values = self.a.layer.v[self.head, of]
        blend = weights.value @ values
        off = weights.slack @ np.abs(values) + ROUNDINGS * U * np.abs(values).max(initial=0.0)
        close("rest.blend", rest["blend"], Number(blend, off))

    def _blend(self) -> None:
        """The output, and what the output projection makes of it."""
        found, a = self.found, self.a
        if self.dead:
            same("output", (found["blend"], found["output"], found["projected"]), ([], [], None))
            return
        output = a.number("output")[self.head, self.query]
        close("blend", found["blend"], output)
        close("output", found["output"], output)
        assert a.layer.out is not None
        out = a.layer.out[self.head]
        off = output.slack @ np.abs(out) + ROUNDINGS * U * np.abs(output.value) @ np.abs(out)
        close("projected", found["projected"]["values"], Number(output.value @ out, off))
