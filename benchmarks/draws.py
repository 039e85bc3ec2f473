"""Draw stacks, texts and selections for `benchmarks/memory.py` at random, the same ones for the same seed.

Everything that `attnscope run` takes memory for is drawn: widths, heads, layers, masks and positions of a stack, the
number and lengths of texts, which layers, heads, rows, columns and stages are asked for, and where the findings go.
"""

import random
from dataclasses import dataclass
from pathlib import Path

_WORDS = "the river bank money water stone old tree cold wind runs slowly over under by near nobody noticed how".split()
_MASKS = (
    "causal",
    "bidirectional",
    "causal+window:256",
    "window:40",
    "prefix:64",
    "causal+block:300",
)
_POSITIONS = ("none", "sinusoidal", "rope", "alibi")
_NORMS = ("layernorm", "rmsnorm", "none")
_STAGES = ("scores", "scaled", "masked", "weights", "output")
_PAIRS = 150_000_000  # scores of a run, and …
_CELLS = 20_000_000  # … numbers in its findings, at most: more only take longer


@dataclass(frozen=True)
class Draw:
    """One run.

    Attributes:
        number: Which of the draws it is.
        config: Its stack, as TOML.
        texts: The texts, a line each.
        options: What follows `attnscope run --file … --config …`; `{folder}` stands for the folder of its files.
    """

    number: int
    config: str
    texts: str
    options: tuple[str, ...]

    def arguments(self, folder: Path) -> list[str]:
        """Write its files, and give the command line."""
        (folder / "stack.toml").write_text(self.config)
        (folder / "texts.txt").write_text(self.texts)
        (folder / "context.txt").write_text(self.texts)
        options = [option.replace("{folder}", str(folder)) for option in self.options]
        return [
            "run",
            "--file",
            str(folder / "texts.txt"),
            "--config",
            str(folder / "stack.toml"),
            *options,
        ]

    def __str__(self) -> str:
        stack = " ".join(
            line.replace(" = ", "=").replace("'", "") for line in self.config.splitlines()
        )
        lengths = [len(text.split()) for text in self.texts.splitlines()]
        options = [option if len(option) < 40 else f"{option[:37]}…" for option in self.options]
        return f"{len(lengths)} × {max(lengths)} tokens · {' '.join(options)} · {stack}"


def draw(seed: int, number: int) -> Draw:
    """Draw one run."""
    rng = random.Random(f"{seed} {number}")
    while True:
        stack = _stack(rng)
        lengths = _lengths(rng)
        options, cells, pairs = _selection(rng, stack, lengths)
        if cells <= _CELLS and pairs <= _PAIRS:
            break
    texts = "\n".join(" ".join(rng.choices(_WORDS, k=length)) for length in lengths) + "\n"
    if stack.get("cross_attention"):
        options += ["--context", " ".join(rng.choices(_WORDS, k=_log(rng, 1, 300)))]
    config = "\n".join(f"{name} = {_toml(value)}" for name, value in stack.items()) + "\n"
    return Draw(number, config, texts, tuple(options))


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _log(rng: random.Random, low: int, high: int) -> int:
    """A whole number from low to high, as likely to be small as to be large."""
    return min(high, int(low * (high / low) ** rng.random() * 1.0001))


def _stack(rng: random.Random) -> dict[str, object]:
    heads = rng.choice((1, 2, 3, 4, 4, 8, 8, 16, 64, 256))
    d_head = rng.choice([width for width in (2, 8, 16, 32, 64, 128) if heads * width <= 2048])
    d_value = d_head if rng.random() < 0.8 else rng.choice((4, 24))
    kv_heads = rng.choice([n for n in range(1, heads + 1) if heads % n == 0] + [heads] * 3)
    d_model = rng.choice((16, 64, 64, 256, 512, 1024))
    layers = rng.choice((1, 2, 2, 3, 4, 6, 12))
    stack: dict[str, object] = {
        "d_model": d_model,
        "n_layers": layers,
        "n_heads": heads,
        "n_kv_heads": kv_heads,
    }
    stack |= {"d_head": d_head, "d_value": d_value, "d_mlp": rng.choice((0, 64, 512, 2048))}
    stack |= {
        "mask": rng.choice(_MASKS),
        "positions": rng.choice(_POSITIONS),
        "norm": rng.choice(_NORMS),
    }
    if stack["norm"] == "none":
        stack["n_layers"] = min(2, layers)  # of more, numbers overflow
    else:
        stack["norm_order"] = rng.choice(("pre", "post", "output", "sandwich"))
        stack["qk_norm"] = rng.random() < 0.3
    for name in ("gated", "qkv_bias", "out_bias", "mlp_bias", "parallel"):
        stack[name] = rng.random() < 0.3
    if rng.random() < 0.15:
        stack["softcap"] = 20.0
    if rng.random() < 0.15:
        stack["sinks"] = True
    if rng.random() < 0.1:
        stack["cross_attention"] = True
    elif rng.random() < 0.1 and stack["d_mlp"] == 64:
        stack |= {"n_experts": 8, "experts_per_token": 2, "gated": True}
    if rng.random() < 0.2:
        stack |= {"positions": "learned", "max_positions": 5_000}
    return stack


def _lengths(rng: random.Random) -> list[int]:
    """Words of every text: mostly one text; else several of one length, or of many."""
    if rng.random() < 0.6:
        return [_log(rng, rng.choice((1, 300, 300)), 5_000)]
    count, longest = _log(rng, 2, 400), _log(rng, rng.choice((1, 30)), 600)
    return (
        [longest] * count if rng.random() < 0.4 else [rng.randint(1, longest) for _ in range(count)]
    )


def _selection(
    rng: random.Random, stack: dict[str, object], lengths: list[int]
) -> tuple[list[str], int, int]:
    """Options, numbers in the findings, and scores that are computed; about."""
    n_layers, n_heads = int(str(stack["n_layers"])), int(str(stack["n_heads"]))
    layer = rng.choice(("auto", "all", "mean", "0", "-1", f"0-{n_layers - 1}"))
    head = rng.choice(("auto", "all", "all", "mean", "0", f"0-{n_heads // 2}"))
    options = ["--layer", layer, "--head", head, "--top", str(rng.choice((1, 3, 3, 10, 40)))]
    options += ["--by", rng.choice(("weight", "value", "projected"))]
    stages = [stage for stage in _STAGES if rng.random() < 0.4] or ["weights"]
    options += ["--stage", ",".join(stages)] if rng.random() < 0.7 else []
    output = rng.choice(("", "", "heat", "json", "json", ".json", ".safetensors", ".txt", ".svg"))
    options += ["--output", f"{{folder}}/found{output}"] if output[:1] == "." else []
    options += ["--format", output] if output in ("heat", "json") else []
    shortest, longest = min(lengths), max(lengths)
    rows, columns = longest, longest
    if rng.random() < 0.3:
        rows = _log(rng, 1, shortest)
        options += ["--query", f"{shortest - rows}:{shortest}"]
    if rng.random() < 0.3:
        columns = _log(rng, 1, shortest)
        options += ["--key", f":{columns}"] if not stack.get("cross_attention") else []
    pooled = rng.random() < 0.3
    if pooled:
        options += ["--pool", str(rng.choice((1, 16, 64, 300, 1024)))]
    if output not in ("json", ".json", ".safetensors"):
        rows, columns = (
            n if option in options else min(n, 64)
            for n, option in ((rows, "--query"), (columns, "--key"))
        )
    options += ["--dtype", rng.choice(("bfloat16", "float16"))] if rng.random() < 0.2 else []
    options += ["--no-special"] if rng.random() < 0.2 else []
    if rng.random() < 0.2:
        options += ["--mask", rng.choice(("bidirectional", "causal", "own+window:100"))]
        options += ["--what-if", rng.choice(("stack", "same-scores"))]
    units = (1 if layer in ("auto", "mean", "0", "-1") else n_layers) * (
        n_heads if head in ("all",) else 1
    )
    units = units * (n_heads // 2 + 1) if "-" in head else units
    shown = (
        rows * (len(stages) * columns + 40)
        if not pooled or "--query" in options or "--key" in options
        else 0
    )
    cells = units * len(lengths) * (shown + pooled * min(1024, longest) ** 2)
    if output not in ("json", ".json", ".safetensors"):
        cells *= 500  # drawing takes long
    if "mean" in (layer, head):
        cells += 4 * len(lengths) * rows * longest
    watched = n_layers * n_heads if "auto" in (layer, head) else units
    watched = max(watched, n_heads if head == "mean" else 1, n_layers if layer == "mean" else 1)
    pairs = (watched + 0.2 * n_layers * n_heads) * len(lengths) * longest**2
    return options, int(cells), int(pairs)
