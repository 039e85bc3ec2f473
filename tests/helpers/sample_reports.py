"""Reports made by hand: real arithmetic on invented queries, keys and values, so that every number is known."""

import numpy as np
from msgspec.structs import asdict, replace

from attnscope.findings.heads import Top
from attnscope.findings.provenance import MaskUse, Provenance
from attnscope.findings.row_statistics import Rows
from attnscope.findings.run import Report, TextReport
from attnscope.findings.tokens import Token
from tests.helpers.heads import stacked
from tests.helpers.row_statistics import row_statistics

BANK = "The bank by the river"
HOSTILE = [
    "[/b]",
    "[red]",
    ":smile:",
    "\\",
    "\x1b[2J",
    "\x9b31m",
    "\u202eabc",
    "\x00",
    "\u200d",
    "\r\n",
    "[link=x]y[/]",
    "\u0301",
    "漢字仮名",
    " ",
    "",
    "e\u0301",
    "\ue000",
    "\u00a0",
]
SENTENCE = (
    "the river ran past an old bank while internationalization committees argued about money and water , "
    "so nobody there noticed how slowly the stones moved in the cold"
)
WORDS = SENTENCE.split()


def words(count):
    return [WORDS[i % len(WORDS)] for i in range(count)]


def tokens(spelled, *, special=(), second=()):
    return [
        Token(id=100 + i, piece=word, text=word, start=None if i in special else 2 * i,
              end=None if i in special else 2 * i + 1, special=i in special, segment=int(i in second))
        for i, word in enumerate(spelled)
    ]  # fmt: skip


def softmax(masked):
    high = masked.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        e = np.exp(masked - np.where(np.isfinite(high), high, 0))
        return (e / e.sum(axis=1, keepdims=True)).astype(np.float32)


def ranked(weights, norms, out_norms, top, by):
    value = weights * norms
    projected = None if out_norms is None else weights * out_norms
    measure = {"weight": weights, "value": value, "projected": projected}[by]
    kept = np.argsort(-np.nan_to_num(measure, nan=-1), axis=1, kind="stable")[:, :top]
    keys = np.where(np.take_along_axis(weights, kept, 1) > 0, kept, -1)

    def pick(matrix):
        return np.where(keys >= 0, np.take_along_axis(matrix, kept, 1), np.nan).astype(np.float32)

    numbers = pick(weights), pick(value), None if projected is None else pick(projected)
    return Top(keys, *numbers, by)


def statistics(weights, special, cross):
    found = row_statistics(weights, special, np.zeros(len(special)), aligned=not cross)
    return Rows(
        **{
            name: values.astype(np.float32)
            for name, values in found.items()
            if name != "punctuation"
        }
    )


def head_report(
    query_tokens, key_tokens, queries, keys, *, layer=2, head=1, allowed=None, seed=0, size=2.0, stages=None, top=3,
    by="weight", projected=False, softcap=None, bias=None, d_value=6, chosen=None, cross=False, sink=None,
):  # fmt: skip
    """Attributes of a HeadReport, of q·k of invented q and k; `allowed` is of (query, key), `sink` a logit."""
    rng = np.random.default_rng(seed)
    n, t = len(query_tokens), len(key_tokens)
    scores = (rng.standard_normal((n, 8)) @ rng.standard_normal((8, t)) * size).astype(np.float32)
    scale = 8**-0.5
    scaled = (scores * scale).astype(np.float32)
    if softcap is not None:
        scaled = (softcap * np.tanh(scaled / softcap)).astype(np.float32)
    see = np.array([[allowed is None or allowed(i, j) for j in range(t)] for i in range(n)])
    masked = np.where(see, scaled, -np.inf).astype(np.float32)
    weights, drained = softmax(masked), None
    if sink is not None:
        weights = softmax(np.column_stack((masked, np.full(n, sink, dtype=np.float32))))
        weights, drained = weights[:, :-1], weights[:, -1]
    v = rng.standard_normal((t, d_value)) * rng.choice([0.05, 1.0, 2.0], (t, 1))
    norms = np.linalg.norm(v, axis=1)
    cut = np.ix_(queries, keys)
    matrices = {
        "scores": scores[cut],
        "scaled": scaled[cut],
        "masked": masked[cut],
        "weights": weights[cut],
    }
    matrices["output"] = (weights @ v)[queries].astype(np.float32)
    rows = statistics(weights, [token.special for token in key_tokens], cross)
    rows = replace(rows, sink=drained)
    return dict(
        layer=layer,
        head=head,
        chosen=chosen,
        scale=scale,
        softcap=softcap,
        bias=bias,
        stages={name: matrices[name] for name in stages or ("scores", "masked", "weights")},
        fully_masked=[i for i in queries if not see[i].any()],
        top=ranked(weights[queries], norms, norms * 1.5 if projected else None, top, by),
        rows=Rows(
            **{name: values[queries] for name, values in asdict(rows).items() if values is not None}
        ),
        head_width=8,
    )


def text_report(
    query_tokens, *, context=None, queries=None, keys=None, heads=((2, 1),), index=0, seed=0, text="TEXT", pair=None,
    notes=(), **kw
):  # fmt: skip
    sources = query_tokens if context is None else context
    queries = list(range(len(query_tokens))) if queries is None else queries
    keys = list(range(len(sources))) if keys is None else keys
    made = [
        head_report(query_tokens, sources, queries, keys, layer=layer, head=head, seed=seed + n + 7 * index,
                    cross=context is not None, **kw)
        for n, (layer, head) in enumerate(heads)
    ]  # fmt: skip
    return TextReport(
        text, pair, query_tokens, context, index, queries, keys, stacked(made), list(notes)
    )


def report(
    *texts,
    weights="trained",
    own="causal",
    used="causal",
    what_if=None,
    trained=(),
    notes=(),
    n_layers=4,
    n_heads=4,
):
    made = Provenance(
        attnscope="0.1.0",
        torch="2.13.0",
        model="riverbank",
        family="llama",
        fingerprint="0123456789abcdef",
        engine="native",
        dtype="float32",
        device="cpu",
        weights=weights,
        n_layers=n_layers,
        n_heads=n_heads,
        notes=list(notes),
    )
    return Report(made, MaskUse(own, used, what_if, trained=list(trained)), list(texts))


def causal(query, key):
    return key <= query


def sized(count, **kw):
    """A report over so many tokens, under a causal mask."""
    spelled = words(count)
    kw = {"allowed": causal, "text": " ".join(spelled), **kw}
    return report(text_report(tokens(spelled), **kw))


def many_heads(layers, heads, count, **kw):
    """A report with every head of a model."""
    every = [(layer, head) for layer in range(layers) for head in range(heads)]
    return report(text_report(tokens(words(count)), heads=every, **kw))


def bank(**kw):
    """ "The bank by the river", as a trained model might see it in both directions."""
    chosen = "chosen automatically: most weight on other words (0.71)"
    text = text_report(tokens(BANK.split()), **{"text": BANK, "chosen": chosen, "seed": 3, **kw})
    return report(text, own="causal", trained=["bidirectional"], used="bidirectional")
