"""Every command on a GPU says what it says on the CPU, by the JSON that it writes."""

import contextlib
import io
import json
import math
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers as hf

from attnscope.base.errors import Exit
from attnscope.cli import main
from tests.devices.simulation import counts
from tests.helpers.tiny_models import TABLE, VOCAB, raise_weights

TEXT = "'The bank by the river was eroded and the bank by the river fell'"
MASKED = "'She sat by the [MASK] of the river'"
SHORT = "'the bank of the river'"
SENTENCES = (
    "'The bank fell. The river was by. The bank of the river. The bank by a river. The river fell.'"
)
COMMANDS = [
    f"run {TEXT} --layer all --head all --stage scores,scaled,masked,weights,output --top 10",
    f"run {TEXT} --layer all --head mean --by projected --no-special",
    f"run {TEXT} --layer mean --head mean --by value",
    f"run {TEXT} --pool 5 --layer all --head all",
    f"run {TEXT} --mask own+window:4 --what-if same-scores --layer 1 --head all",
    f"run {TEXT} --mask causal --hide river --layer 1 --head 0",
    f"run {TEXT} --mask block:3 --layer all --head 0 --dtype bfloat16",
    f"run {TEXT} --measure rollout",
    f"run {TEXT} --measure value-zeroing",
    f"run {TEXT} --measure value-zeroing-rollout",
    f"run {MASKED} --predict --layer 0",
    "run --file {texts} --layer all --head all --show-padding",
    "run 'Life is short eat dessert first' --config life-is-short-cross --context 'Life is short'",
    "run 'life is short eat dessert first' --config sliding-window --layer all --head all",
    f"run {TEXT} --config transformer-layer --layer all --head all --by projected",
    "run 'bank river' --config padded-batch",
    f"run {TEXT} --model {{minilm}} --engine transformers --layer 2 --head 3",
    f"run {TEXT} --model {{minilm}} --layer auto --head auto --key river",
    "run 'the bank' --model {gpt2} --generate 4 --layer 1 --head 0",
    f"run {SHORT} --model {{gpt2}} --by logit --layer all --head all",
    f"run {SHORT} --model {{gpt2}} --predict --engine transformers --layer all --head all",
    f"run {SHORT} --model {{llama}} --generate 3 --layer all --head all",
    f"run {SHORT} --model {{llama}} --layer 0 --head all --dtype bfloat16",
    f"run {SHORT} --model {{llama}} --by logit --target bank --layer all --head all",
    f"run {SHORT} --model {{gpt_oss}} --layer all --head all",
    f"run {SHORT} --model {{gemma2}} --layer all --head all --measure rollout",
    f"run {SHORT} --model {{mixtral}} --layer all --head all",
    f"explain {TEXT} --layer 1 --head 1 --query 13 --key 1",
    f"explain {SHORT} --model {{llama}} --layer 1 --head 1 --query river",
    f"explain {SHORT} --model {{gpt_oss}} --layer 1 --head 1 --query river",
    f"explain {SHORT} --model {{gemma2}} --layer 1 --head 1 --query river",
    "explain 'life is short eat dessert first' --config sliding-window --layer 0 --head 0 --query 2",
    "heads --draws 3",
    "heads --draws 3 --model {llama}",
    "heads --needle 'The bank was eroded' --lengths 32 --depths 0,0.5 --model {gpt2}",
    f"heads {TEXT} --measure entropy",
    f"heads {TEXT} --query bank --key river",
    f"ablate {MASKED} --cut '*: [MASK]←river' --cut L1",
    f"ablate {MASKED} --each head",
    f"ablate {MASKED} --each edge --layer 1 --head 1",
    f"ablate {MASKED} --each layer --with mean",
    f"ablate {SHORT} --model {{gpt2}} --each head --engine transformers",
    f"compare {TEXT}",
    f"compare {TEXT} 'an old river'",
    f"check {SHORT}",
    f"check {SHORT} --model {{gpt_oss}}",
    "check 'life is short eat dessert first' --config sliding-window",
    f"check {SHORT} --model {{t5}} --engine transformers --part encoder",
    f"run {TEXT} --spans sentences --layer all --head all",
    f"run {TEXT} --spans sentences --layer mean --head mean",
    f"heads {SENTENCES} --role receiver",
    f"heads {SHORT} --pair 'an old river' --role alignment --model {{minilm}}",
    f"ablate {SHORT} --model {{gpt2}} --each head --target river",
    f"ablate {SENTENCES} --model {{gpt2}} --each span --spans sentences",
    f"run {SHORT} --model {{gpt2}} --mask own+docs:2,3 --layer all --head all",
    "run --qkv {arrays} --layer all --head all --by value --stage weights,output --spans sentences",
    "explain --qkv {arrays} --layer 1 --head 1 --query river",
    "compare --qkv {arrays} --model {llama} --tolerance 1",
    f"run {SHORT} --model {{gpt2}} --measure value-zeroing --mask own+docs:2,3",
    f"run {SHORT} --model {{gpt_oss}} --spans sentences --layer all --head all",
    "doctor --model {llama} --attn eager,sdpa",
    "batch {texts} --keep top,rows",
    "batch {texts} --keep columns,pooled,top --by projected",
    "batch {texts} --stage weights",
    "batch {texts} --keep effects --model {gpt2}",
    "batch {texts} --keep spans --spans sentences",
]
MODELS = ("gpt2", "llama", "gpt_oss", "gemma2", "mixtral")
UNEQUAL = {"device", "provenance", "seconds", "window", "grouping", "checks", "passes"}
FEWEST_LAUNCHES = 20  # of a command that computes on the device


@dataclass
class Workplace:
    """Models and texts in files, and what commands gave on the CPU.

    Attributes:
        folder: Where files are written.
        names: What stands in braces in a command.
        on_cpu: Command to its exit code and JSON.
    """

    folder: Path
    names: dict[str, str]
    on_cpu: dict[str, tuple[int, Any]] = field(default_factory=dict)

    def run(self, command: str, device: str) -> tuple[int, Any]:
        """Run a command on a device; return its exit code, and the JSON that it wrote."""
        for name, path in self.names.items():
            command = command.replace(f"{{{name}}}", path)
        words = [*shlex.split(command), "--device", device, "--quiet"]
        if words[0] in ("check", "doctor"):
            with contextlib.redirect_stdout(
                io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
            ) as printed:
                if (code := main([*words, "--json"])) == Exit.BUG:
                    return code, None
            return code, json.loads(printed.buffer.getvalue())
        out = self.folder / ("out.jsonl" if words[0] == "batch" else "out.json")
        out.unlink(missing_ok=True)
        if (code := main([*words, "-o", str(out)])) == Exit.BUG:
            return code, None
        lines = out.read_text().splitlines() if out.suffix == ".jsonl" else [out.read_text()]
        return code, [json.loads(line) for line in lines]

    def expected(self, command: str) -> tuple[int, Any]:
        """What the command gives on the CPU."""
        if command not in self.on_cpu:
            self.on_cpu[command] = self.run(command, "cpu")
        return self.on_cpu[command]


def write_tokenizer(folder: Path, words: Sequence[str]) -> None:
    """Write a tokenizer of these words, separated by spaces."""
    vocabulary = {word: n for n, word in enumerate(["[UNK]", *sorted(set(words))])}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def write_arrays(path: Path) -> Path:
    """Write two layers of queries, keys and values before their rotation, with sinks, a mask and a bias."""
    draw, tokens = np.random.default_rng(0), "the bank of the river".split()
    sizes = {"q": (2, 4, 5, 8), "k": (2, 2, 5, 8), "v": (2, 2, 5, 8)}
    arrays: dict[str, Any] = {
        name: draw.standard_normal(size, np.float32) for name, size in sizes.items()
    }
    bias = np.where(np.tri(5, dtype=bool), draw.standard_normal((4, 5, 5), np.float32), -np.inf)
    rope = json.dumps({"theta": 100.0, "interleaved": True})
    more: dict[str, Any] = {
        "layer.0.mask": bias,
        "layer.1.mask": "causal",
        "layer.1.sinks": np.ones(4),
        "rope": rope,
    }
    np.savez(path, **arrays, **more, tokens=tokens)
    return path


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    folder = tmp_path_factory.mktemp("devices")
    texts = folder / "texts.txt"
    texts.write_text("The bank by the river\nan old river ran by the bank of the city\nriver\n" * 3)
    names = {"texts": str(texts)}
    for name in MODELS:
        row = next(row for row in TABLE if row.name == name)
        path = folder / name
        row.save(path)
        names[name] = str(path)
    sizes = {
        "vocab_size": VOCAB,
        "d_model": 24,
        "d_kv": 6,
        "num_heads": 4,
        "num_layers": 2,
        "d_ff": 40,
    }
    names["t5"] = str(folder / "t5")  # it has a position bias
    model = hf.T5ForConditionalGeneration(hf.T5Config(**sizes, decoder_start_token_id=0))
    raise_weights(model.eval()).save_pretrained(names["t5"])
    for name in (*MODELS, "t5"):
        write_tokenizer(folder / name, "The bank by the river was eroded and fell of a".split())
    (folder / "llama" / "generation_config.json").write_text('{"repetition_penalty": 1.3}')
    names["arrays"] = str(write_arrays(folder / "arrays.npz"))
    return Workplace(folder, names)


def differences(found: Any, expected: Any, tolerance: float, where: str = "") -> Iterator[str]:
    """Where two pieces of JSON differ by more than rounding; texts, such as choices between equals, may."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in found.keys() | expected.keys():
            if key not in UNEQUAL and "crc" not in key and "hash" not in key:
                yield from differences(
                    found.get(key), expected.get(key), tolerance, f"{where}.{key}"
                )
    elif isinstance(found, list) and isinstance(expected, list):
        if len(found) != len(expected):
            yield f"{where}: {len(found)} and {len(expected)}"
        for n, (one, other) in enumerate(zip(found, expected, strict=False)):
            yield from differences(one, other, tolerance, f"{where}[{n}]")
    elif (
        isinstance(found, int | float)
        and isinstance(expected, int | float)
        and not isinstance(found, bool)
    ):
        if not math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance):
            yield f"{where}: {found} and {expected}"
    elif found != expected and not isinstance(found, str):
        yield f"{where}: {found} and {expected}"


@pytest.mark.cuda
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_on_a_gpu_says_what_it_says_on_the_cpu(
    gpu: str, workplace: Workplace, command: str
) -> None:
    counts.reset()
    compare(workplace, command, gpu)
    assert gpu == "cuda:0" or counts.launches >= FEWEST_LAUNCHES, (
        "nothing was computed on the device"
    )


@pytest.mark.cuda
@pytest.mark.parametrize("command", ["batch {long} --keep top,rows --model {wide}"])
def test_a_long_text_on_a_gpu_has_the_rows_that_it_has_on_the_cpu(
    gpu: str, workplace: Workplace, command: str
) -> None:
    """Real GPUs compute it by the fused kernel, whose rounding may exchange keys of nearly equal weight."""
    config = hf.GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=2048)
    workplace.names["wide"], workplace.names["long"] = (
        str(workplace.folder / "wide"),
        str(workplace.folder / "long.txt"),
    )
    raise_weights(hf.GPT2LMHeadModel(config).eval()).save_pretrained(workplace.names["wide"])
    words = "The bank by the river was eroded and fell of a".split()
    write_tokenizer(workplace.folder / "wide", words)
    Path(workplace.names["long"]).write_text(" ".join(np.random.default_rng(0).choice(words, 1500)))
    found, expected = workplace.run(command, gpu)[1], workplace.expected(command)[1]
    assert found[1]["status"] == expected[1]["status"] == "ok"
    unequal = [name for name in differences(found, expected, 2e-3) if ".keys[" not in name]
    assert unequal == []
    assert len(list(differences(found, expected, 2e-3))) < 100


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if not command.startswith("doctor")]
)
def test_a_command_on_a_device_without_float64(
    simulated: str, workplace: Workplace, command: str
) -> None:
    compare(workplace, command, "mps")


@pytest.fixture(autouse=True)
def _models_of_the_command(
    request: pytest.FixtureRequest, workplace: Workplace, command: str
) -> None:
    if "{minilm}" in command:
        workplace.names["minilm"] = str(request.getfixturevalue("minilm"))


def compare(workplace: Workplace, command: str, device: str) -> None:
    (code, found), (expected_code, expected) = (
        workplace.run(command, device),
        workplace.expected(command),
    )
    assert code == expected_code
    if command.startswith(("check", "doctor")) and code != Exit.USAGE:
        checks = [
            {check["name"]: check["verdict"] for check in report["checks"]}
            for report in (found, expected)
        ]
        assert checks[0] == checks[1]
    if "--dtype bfloat16" in command:
        # a sum in another order may be rounded to a neighbour, and so on in every later layer
        exact = largest_errors(
            expected, workplace.expected(command.replace("--dtype bfloat16", ""))[1]
        )
        errors = largest_errors(
            found, workplace.expected(command.replace("--dtype bfloat16", ""))[1]
        )
        assert errors.keys() == exact.keys() > {"weights"}
        assert {
            name: error for name, error in errors.items() if error > 2 * exact[name] + 2e-3
        } == {}
    else:
        assert list(differences(found, expected, 2e-3))[:5] == []


def largest_errors(found: Any, expected: Any) -> dict[str, float]:
    """The largest difference between numbers of two pieces of JSON with the same names, whose places do not count."""
    errors: dict[str, float] = defaultdict(float)

    def compare(one: Any, other: Any, name: str) -> None:
        if isinstance(one, dict):
            for key in one.keys() & other.keys():
                compare(one[key], other[key], key)
        elif isinstance(one, list):
            for sides in zip(one, other, strict=True):
                compare(*sides, name)
        elif isinstance(one, float) and isinstance(other, float):
            errors[name] = max(errors[name], abs(one - other))

    compare(found, expected, "")
    return errors
