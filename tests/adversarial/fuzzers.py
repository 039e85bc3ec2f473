"""Cases made at random from a seed: command lines, config.json, TOML stacks, saved reports and dumps."""

import json
import random
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import click
import peft
import transformers as hf
from typer.main import get_command

from attnscope.batch.journal import seal, unseal
from attnscope.cli.app import build_app
from tests.adversarial.oracle import Case, Ending, fault, run
from tests.helpers import gguf_files
from tests.helpers.architectures import write_tokenizer
from tests.helpers.tiny_models import TABLE

ROOT = Path(__file__).parents[2]
TEXT = "the bank by the river was old"
_DIGITS = "9" * 400
_NUMBERS = [
    0,
    -1,
    1,
    2,
    3,
    5,
    7,
    1 << 31,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    1 << 64,
    10**20,
    10**30,
    -(10**20),
    10**400,
]
_FLOATS = [
    float("nan"),
    float("inf"),
    0.0,
    -0.0,
    0.5,
    -1.5,
    1e-320,
    1e-45,
    1e-8,
    1e20,
    1e39,
    1e308,
    -1e308,
    1.0,
    2.0,
]
_TEXTS = [
    "", " ", "a", "x" * 300, "\ud800", "\udcff", "\x1b[31m", "\0", "\u202e", "é", "²", "٣", "../x", "own", "mean",
    "gelu",
    "causal", "causal+window:3", "window:" + "9" * 25, "prefix:0", "block:2", "m.json", "-", "0", "1e999", "nan",
    _DIGITS,
]  # fmt: skip

_DEEP = {
    f"nested {depth} deep": "[" * depth + "]" * depth for depth in (10, 200, 2000)
}  # as json.dumps cannot write it


def odd(r: random.Random) -> Any:
    """A JSON value that somebody may have put in place of a sensible one."""
    return r.choice(
        [
            lambda: r.choice(_NUMBERS), lambda: r.choice(_FLOATS), lambda: r.choice(_TEXTS), lambda: None,
            lambda: r.random() < 0.5, lambda: [], lambda: {}, lambda: [odd(r) for _ in range(r.randint(1, 3))],
            lambda: {r.choice(["a", "theta", "rope_type", "factor", "scaling"]): odd(r)},
            lambda: r.randint(-3, 40), lambda: r.uniform(-2, 2), lambda: r.choice(list(_DEEP)),
        ]
    )()  # fmt: skip


def paths(value: Any, most: int = 12, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value within a JSON value; of long lists and objects, the first few."""
    yield prefix
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for _, (key, child) in zip(range(most), children, strict=False):
        yield from paths(child, most, (*prefix, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    """The value at a place."""
    for key in path:
        value = value[key]
    return value


def mutate(r: random.Random, original: Any, most: int = 3) -> Any:
    """A JSON value with a few places replaced, removed, doubled, shortened, or copied over another."""
    value = json.loads(json.dumps(original))
    for _ in range(r.randint(1, most)):
        places = [path for path in paths(value) if path]
        if not places:
            break
        path = _nearby(r, places)
        holder, last = at(value, path[:-1]), path[-1]
        action = r.choice(["replace", "replace", "remove", "copy", "nudge", "double", "cut"])
        if action == "remove":
            del holder[last]
        elif action == "copy":
            holder[last] = json.loads(json.dumps(at(value, r.choice(places))))
        elif action == "nudge" and type(holder[last]) in (int, float):
            holder[last] = holder[last] + r.choice([-1, 1, 100, 0.5]) if type(holder[last]) is float else max(
                -5, holder[last] + r.choice([-1, 1, 7, 100])
            )  # fmt: skip
        elif action == "double" and isinstance(holder[last], list):
            holder[last] = holder[last] * 2
        elif action == "cut" and isinstance(holder[last], list):
            holder[last] = holder[last][: len(holder[last]) // 2]
        else:
            holder[last] = odd(r)
    return value


def _nearby(r: random.Random, places: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """A place; shallow ones as often as the many deep ones."""
    depth = r.choice(sorted({len(place) for place in places}))
    return r.choice([place for place in places if len(place) == depth])


def as_json(value: Any) -> bytes:
    """JSON as a careless program writes it."""
    return _deepened(json.dumps(value))


def _deepened(text: str) -> bytes:
    for name, value in _DEEP.items():
        text = text.replace(f'"{name}"', value)
    return text.encode()


def damage(r: random.Random, data: bytes) -> bytes:
    """Bytes with a few flips, insertions and deletions, and perhaps cut."""
    changed = bytearray(data)
    for _ in range(r.randint(1, 4)):
        if not changed:
            break
        place = r.randrange(len(changed))
        action = r.choice(["flip", "insert", "delete", "cut", "text"])
        if action == "flip":
            changed[place] ^= 1 << r.randrange(8)
        elif action == "insert":
            changed[place:place] = r.randbytes(r.randint(1, 4))
        elif action == "text":
            changed[place:place] = r.choice(["0", ",", "\n", '"', "9" * 30, "é", "]"]).encode()
        elif action == "delete":
            del changed[place : place + r.randint(1, 8)]
        elif r.random() < 0.2:
            del changed[place:]
    return bytes(changed)


@cache
def _made(*argv: str) -> bytes:
    """What a command writes to out.*, from two texts."""
    texts = b"The bank by the river\n\nA bank, a river\n"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ending = run(Case(argv, {"texts.txt": texts}), folder)
        assert ending.code == 0, ending.err
        files = sorted(path for path in folder.iterdir() if path.name.startswith("out"))
        return files[0].read_bytes() if files else ending.out.encode()


def report(*options: str) -> bytes:
    """A saved Report of a small stack."""
    return _made("run", "The bank by the river", "--config", "causal", "--format", "json", *options)


def dump(*options: str) -> bytes:
    return _made(
        "batch",
        "texts.txt",
        "-o",
        "out.jsonl",
        "--config",
        "causal",
        "--layer",
        "0",
        "--head",
        "0,1",
        *options,
    )


def table(kind: str = ".csv") -> bytes:
    return _convert(dump(), "in.jsonl", f"out{kind}")


@cache
def _convert(data: bytes, source: str, target: str) -> bytes:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ending = run(Case(["convert", source, target], {source: data}), folder)
        assert ending.code == 0, ending.err
        return (folder / target).read_bytes()


# command lines


@cache
def _commands() -> dict[str, Any]:
    command: Any = get_command(build_app())
    return dict(command.commands)


_FILES = {
    "text.txt": b"The bank by the river\nA bank, a river\n",
    "mask.json": json.dumps([[i >= j for j in range(5)] for i in range(5)]).encode(),
    "x.jsonl": b'{"id": 1, "text": "The bank by the river"}\n{"id": "b", "text": "A bank"}\n',
}
_PICKS = ["0", "1", "-1", "all", "mean", "auto", "0,1", "0-1"]
_PLACES = ["0", "-1", "0:2", ":", "bank", "river", "0,2", "Bank"]
_USUAL: dict[str, list[str]] = {
    "--layer": _PICKS, "--head": _PICKS, "--query": _PLACES, "--key": _PLACES,
    "--mask": ["causal", "own", "window:2", "mask.json", "causal+window:2", "bidirectional", "prefix:2", "block:2",
    "own+window:1"],
    "--stage": ["weights", "scores,masked", "output", "scaled,weights", "none"], "--top": ["1", "3", "20"],
    "--by": ["value", "projected", "weight"], "--what-if": ["stack", "same-scores"], "--pool": ["1", "3", "64"],
    "--format": ["table", "heat", "json"], "--color": ["always", "never"], "--precision": ["0", "3", "9"],
    "--output": ["out.json", "out.svg", "out.txt", "out.safetensors", "out.jsonl", "out"],
    "--dtype": ["float32", "bfloat16", "float16"], "--device": ["cpu", "auto"], "--max-memory": ["8G", "100M", "1M"],
    "--model": ["riverbank"], "--config": ["causal", "sliding-window", "grouped-query", "multi-head", "four-tokens"],
    "--file": ["text.txt", "x.jsonl"], "--pair": ["A river"], "--context": ["A river"], "--part": ["cross"],
    "--from": ["txt", "jsonl"], "--shard": ["1/2"], "--skip": ["0", "1"], "--limit": ["1", "0"], "--column": ["text",
    "id"],
    "--keep": ["top,rows", "pooled", "columns", "rows"], "--tolerance": ["0", "1e-5", "1"],
}  # fmt: skip
_STRANGE = [
    "", " ", "-", "--", "-1-0", "--1", "0-", "1:0", "::", "5:", ":-99", _DIGITS, "-" + _DIGITS, "0-" + _DIGITS, "nan",
    "inf",
    "1e999", "-0", "²", "٣", "１", "\udcff", "a\udcffb", "\ud800", "\x1b[2J", "\u202e", "\u2028", "\0", "x" * 300,
    "x" * 5000,
    "é" * 200, ".", "..", "/", "/dev/null", "nowhere/x.json", "x.json", ".json", ".jsonl", "a.json/b.json", "cuda",
    "cuda:999", "cuda:7", "gpu", "mps", "window:" + "9" * 20, "window:" + _DIGITS, "prefix:" + "9" * 30, "block:0",
    "window:²", "own+own", "causal+", "+", "x.npy", "a\0.json", "0M", "9" * 30 + "T", "9" * 18, "1/0", "0/1", "5/2",
    "1/" + "9" * 30, "[/]", "a\nb", "\t", "10000000", "1,1,1", "0,", "all,0", "mean-1", "\udcff.json",
    "x" * 300 + ".json",
    "\udcff.jsonl", "x" * 300 + ".csv",
]  # fmt: skip


def arguments(r: random.Random) -> Case:
    """A command with options of every kind, most of them sensible."""
    command = r.choice([*_commands(), "run", "compare", "explain", "batch"])
    argv = [command]
    parameters = [p for p in _commands()[command].params if p.name not in ("help", "engine")]
    for parameter in parameters:
        if (
            isinstance(parameter, click.Argument)
            or getattr(parameter, "param_type_name", "") == "argument"
        ):
            count = r.choice([1, 1, 1, 2]) if parameter.nargs != 1 else r.choice([1, 1, 1, 1, 0])
            argv += [_first(r, command) for _ in range(count)]
        elif r.random() < 3 / len(parameters):
            argv += (
                [r.choice(parameter.opts)]
                if getattr(parameter, "is_flag", False)
                else _given(r, parameter)
            )
    if (
        command not in ("batch", "convert")
        and r.random() < 0.7
        and "--model" not in argv
        and "--config" not in argv
    ):
        argv += ["--config", r.choice(["causal", "sliding-window", "grouped-query", "multi-head"])]
    if command == "batch" and r.random() < 0.9:
        argv += [
            "--config",
            "causal",
            *([] if "-o" in argv or "--output" in argv else ["-o", "out.jsonl"]),
        ]
    if r.random() < 0.05:
        argv.insert(r.randint(0, len(argv)), r.choice(_STRANGE))
    files = {
        **_FILES,
        "a.json": report(),
        "b.json": report("--mask", "bidirectional"),
        "d.jsonl": dump(),
    }
    return Case(argv, {**files, "t.csv": table(".csv")})


def _first(r: random.Random, command: str) -> str:
    usual = {
        "batch": ["text.txt", "x.jsonl"],
        "convert": ["d.jsonl", "a.json", "t.csv", "out.csv", "out.json"],
    }
    if r.random() < 0.1:
        return r.choice(_STRANGE)
    return r.choice(
        usual.get(
            command,
            ["The bank by the river", "A bank", "bank " * 70, "a.json", "b.json", "The", "-"],
        )
    )


def _given(r: random.Random, parameter: Any) -> list[str]:
    usual = next((_USUAL[name] for name in parameter.opts if name in _USUAL), _STRANGE)
    value = r.choice(_STRANGE) if r.random() < 0.12 else r.choice(usual)
    name = r.choice(parameter.opts)
    return [f"{name}={value}"] if r.random() < 0.3 else [name, value]


# config.json


@cache
def checkpoint(name: str) -> tuple[Any, bytes, bytes]:
    """Config, tokenizer and weights of a tiny checkpoint of a family."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        hf.logging.disable_progress_bar()
        next(row for row in TABLE if row.name == name).save(path)
        write_tokenizer(path)
        found = [
            (path / file).read_bytes()
            for file in ("config.json", "tokenizer.json", "model.safetensors")
        ]
    return json.loads(found[0]), found[1], found[2]


_KEYS = {
    "rope_scaling": [
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 16},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 16},
        {"type": "linear", "factor": 2.0},
    ],
    "rope_theta": [1, 1.0, 1e-9, 10**30], "partial_rotary_factor": [0.5, 0.25, 2, 1e-9], "sliding_window": [1, 3,
    10**18],
    "attn_logit_softcapping": [1e-30, 50.0], "query_pre_attn_scalar": [1e-30, 10**300], "layer_types": [[], ["x"]],
    "head_dim": [1, 3, 8, 10**9], "num_key_value_heads": [1, 3], "attnscope": [{"trained_masks": ["\x1b[2J"]}, []],
    "rope_local_base_freq": [1, 10000.0], "rms_norm_eps": [0, 1e308],
}  # fmt: skip
FAMILIES = (
    "llama",
    "llama yarn",
    "bert",
    "gemma3",
    "gpt_neox",
    "gpt_oss",
    "gpt2",
    "mixtral",
    "smollm3",
)


def configs(r: random.Random) -> Case:
    """A checkpoint whose config.json is not what its weights were saved with."""
    config, tokenizer, weights = checkpoint(r.choice(FAMILIES))
    config = json.loads(json.dumps(config))
    if r.random() < 0.5:
        for name in r.sample(list(_KEYS), r.randint(1, 2)):
            config[name] = r.choice(_KEYS[name])
            if name.startswith("rope") and r.random() < 0.8:
                config.pop("rope_parameters", None)
    if r.random() < 0.8:
        config = mutate(r, config)
    data = as_json(config) if r.random() < 0.9 else damage(r, as_json(config))
    argv = ["info", "--model", ".", *r.choice([[], ["--cost"], ["--format", "json"]])]
    if r.random() < 0.5:
        argv = [
            "run",
            TEXT,
            "--model",
            ".",
            "--layer",
            "0",
            "--head",
            "0",
            *r.choice([[], ["--format", "json"]]),
        ]
    return Case(
        argv, {"config.json": data, "tokenizer.json": tokenizer, "model.safetensors": weights}
    )


# GGUF files, adapters


@cache
def _gguf(architecture: str, metadata: tuple[tuple[str, Any], ...] = ()) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        gguf_files.write(Path(folder) / "m.gguf", architecture, "Q8_0", dict(metadata))
        return (Path(folder) / "m.gguf").read_bytes()


def ggufs(r: random.Random) -> Case:
    """A GGUF file with damage in its header, or with values that were written by somebody else."""
    architecture = r.choice(list(gguf_files.MODELS))
    data = _gguf(architecture)
    kind = r.random()
    if kind < 0.5:
        data = _gguf(
            architecture,
            tuple((f"{architecture}.{r.choice(_METADATA)}", r.choice(_SAID)) for _ in range(2)),
        )
    elif kind < 0.7:
        header = len(data) - len(data) % 4096 if r.random() < 0.1 else 6000
        data = damage(r, data[:header]) + data[header:]
    else:
        changed = bytearray(data)
        # a value: the bytes behind a key, and the number of its type
        for _ in range(r.randint(1, 2)):
            key = r.choice(list(re.finditer(rb"[a-z0-9]+(?:[._][a-z0-9_]+){1,4}", data[:6000])))
            place = key.end() + r.choice([0, 0, 4, 4, 5, 8])
            changed[place : place + r.choice([1, 4, 8])] = r.choice(_VALUES)
        data = bytes(changed)
    argv = ["info", "--model", "m.gguf", *r.choice([[], ["--cost"]])]
    if r.random() < 0.6:
        argv = ["run", "abc z y", "--model", "m.gguf", "--layer", "0", "--head", "0"]
    return Case(argv, {"m.gguf": data})


_METADATA = (
    "context_length embedding_length block_count feed_forward_length attention.head_count attention.head_count_kv "
    "attention.layer_norm_rms_epsilon attention.key_length attention.value_length attention.sliding_window "
    "attention.sliding_window_pattern attention.causal attn_logit_softcapping rope.freq_base rope.freq_base_swa "
    "rope.dimension_count rope.scaling.type rope.scaling.factor rope.scaling.attn_factor "
    "rope.scaling.original_context_length expert_count vocab_size rope.unknown"
).split()
_SAID = [
    None, 0, 1, 2, 3, 64, 1 << 20, (1 << 32) - 1, True, False, 0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"), "",
    "none", "linear", "yarn", "longrope", "x", (2, 2), (2, 4), (0, 1), (True, False), (True, True), (1.5, 1.5),
]  # fmt: skip
_VALUES = [
    b"\0", b"\xff", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\x08\0\0\0", b"\x09\0\0\0",
    b"\x01\0\0\0", b"\xff" * 8, b"\0" * 7 + b"\x80", b"\x0c", b"x",
]  # fmt: skip


@cache
def _adapter() -> dict[str, bytes]:
    """A llama and a LoRA adapter of it, as peft saves them."""
    config, tokenizer, weights = checkpoint("llama")
    with tempfile.TemporaryDirectory() as name:
        model = next(row for row in TABLE if row.name == "llama").make()
        adapted = peft.get_peft_model(
            model, peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"])
        )
        adapted.save_pretrained(name)
        saved = {
            f"lora/{file.name}": file.read_bytes()
            for file in Path(name).iterdir()
            if file.suffix != ".md"
        }
    base = {
        "config.json": as_json(config),
        "tokenizer.json": tokenizer,
        "model.safetensors": weights,
    }
    return {f"base/{file}": data for file, data in base.items()} | saved


def adapters(r: random.Random) -> Case:
    """A LoRA adapter whose config is not what its weights were saved with, or whose weights are damaged."""
    files = dict(_adapter())
    if r.random() < 0.7:
        config = json.loads(files["lora/adapter_config.json"])
        if r.random() < 0.5:
            config |= {name: odd(r) for name in r.sample(_ADAPTER_KEYS, r.randint(1, 3))}
        files["lora/adapter_config.json"] = as_json(mutate(r, config))
    else:
        weights = files["lora/adapter_model.safetensors"]
        header = weights[:2000]
        files["lora/adapter_model.safetensors"] = damage(r, header) + weights[2000:]
    argv = ["run", TEXT, "--model", "base", "--adapter", "lora", "--layer", "0", "--head", "0"]
    return Case(r.choice([argv, ["info", "--model", "base", "--adapter", "lora"]]), files)


_ADAPTER_KEYS = [
    "r", "lora_alpha", "rank_pattern", "alpha_pattern", "target_modules", "layers_to_transform", "bias", "use_dora",
    "use_rslora", "modules_to_save", "fan_in_fan_out", "peft_type", "layers_pattern",
]  # fmt: skip


# TOML stacks

_FIELDS: dict[str, list[Any]] = {
    "d_model": [32, 16, 33, 1], "n_heads": [4, 1, 3], "n_layers": [2, 1, 3], "n_kv_heads": [2, 1, 4], "d_head": [8, 7,
    1, 2],
    "d_value": [8, 1], "d_mlp": [0, 16], "max_positions": [4, 64, 512], "mask": ["causal", "bidirectional",
    "causal+window:2"],
    "windows": [[], [1, 2]], "scale": [True, False, 0.5, 0.0, -1.0], "softcap": [1.0, 1e-30], "qkv_bias": [True],
    "sinks": [True, False], "qk_norm": [True, "whole"], "out_projection": [False, True], "cross_attention": [True],
    "positions": ["rope", "rope", "alibi", "learned", "sinusoidal", "none"], "position_offset": [0, 2, 600],
    "padding_id": [0, 1], "rope_layers": [[True, False], []], "n_segments": [0, 2], "embedding_norm": [True],
    "embedding_scale": [2.0, 0.0], "norm": ["layernorm", "rmsnorm", "none"], "norm_eps": [0.0, 1e-5],
    "residual": [False],
    "norm_order": ["pre", "post", "output", "sandwich"], "parallel": [True], "activation": ["relu", "silu"],
    "gated": [True],
    "glu_limit": [1.0], "n_experts": [0, 4], "experts_per_token": [0, 2, 5], "router_bias": [True],
    "rope": [{"theta": 1.0}, {"fraction": 0.5}, {"fraction": 2.0}, {"fraction": -1.0}, {"theta": 0.0}, {"theta": -1.0},
             {"scaling": {"kind": "yarn", "factor": 4.0, "original_max_positions": 16}},
             {"theta": 1.0, "scaling": {"kind": "yarn", "factor": 4.0, "original_max_positions": 16}},
             {"scaling": {"kind": "yarn", "factor": 4.0, "beta_fast": 0.0, "original_max_positions": 16}},
             {"scaling": {"kind": "llama3", "factor": 0.0}}, {"scaling": {"kind": "linear", "factor": 0.0}}],
    "rope_local": [{"theta": 100.0}], "seed": [0, 7, 1 << 63, 1 << 64], "tokenizer": ["words", "tokenizer.json"],
    "punctuation": ["keep", "drop"], "vocab_size": [1, 40, 10**6], "description": ["x", "\x1b"],
    "weights": ["w.safetensors"],
    "random_weights": [True],
}  # fmt: skip


def stacks(r: random.Random) -> Case:
    """A stack in TOML, with fields that go together, and some that don't."""
    fields = {name: r.choice(values) for name, values in _FIELDS.items() if r.random() < 0.22}
    if r.random() < 0.5:
        fields = mutate(r, fields)
        fields = fields if isinstance(fields, dict) else {}
    if r.random() < 0.1:
        shipped = r.choice(sorted((ROOT / "configs").glob("*.toml")))
        fields = mutate(r, tomllib.loads(shipped.read_text()))
    data = _deepened(
        "".join(f"{json.dumps(name)} = {_toml(value)}\n" for name, value in fields.items())
    )
    if r.random() < 0.1:
        data = damage(r, data)
    argv = ["info", "--config", "s.toml", *r.choice([[], ["--cost"], ["--format", "json"]])]
    if r.random() < 0.6:
        argv = [
            "run",
            "The bank by the river",
            "--config",
            "s.toml",
            *r.choice([[], ["--context", "A river"]]),
        ]
        argv += r.choice(
            [
                [],
                ["--head", "all"],
                ["--format", "json"],
                ["--mask", "bidirectional"],
                ["--by", "projected"],
            ]
        )
    return Case(argv, {"s.toml": data, "tokenizer.json": _tokenizer()})


@cache
def _tokenizer() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        return (Path(folder) / "tokenizer.json").read_bytes()


def _toml(value: Any) -> str:
    """A JSON value as TOML writes it; null as the word, which TOML does not know."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(name)} = {_toml(inner)}" for name, inner in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)


# saved reports


_REPORTS = [
    (), ("--layer", "all", "--head", "0,1"), ("--layer", "mean", "--head", "mean"), ("--pool", "3"), ("--by",
    "projected"),
    ("--query", "1", "--pool", "2"), ("--stage", "scores,scaled,masked,weights,output"), ("--key", "0:2"),
    ("--mask", "mask.json", "--layer", "0", "--head", "0"), ("--config", "life-is-short-cross", "--context", "A river"),
]  # fmt: skip


def reports(r: random.Random) -> Case:
    """Saved findings that were edited, or are of another kind, and what reads them."""
    if r.random() < 0.1:
        other = r.choice(
            [
                _made("compare", "A bank", "--config", "causal", "--format", "json"),
                _made(
                    "explain", "A bank", "--query", "1", "--config", "causal", "--format", "json"
                ),
            ]
        )
        data = as_json(mutate(r, json.loads(other))) if r.random() < 0.5 else other
        good = report()
    else:
        options = r.choice(_REPORTS[:-2])
        good = report(*options)
        data = as_json(mutate(r, json.loads(good))) if r.random() < 0.9 else damage(r, good)
    names = ["a.json", "b.json"] if r.random() < 0.7 else ["b.json", "a.json"]
    argv = [
        "compare",
        *names,
        *r.choice([[], ["--format", "json"], ["--tolerance", "0"], ["--format", "heat"]]),
    ]
    if r.random() < 0.3:
        argv = ["convert", "a.json", r.choice(["out.csv", "out.parquet"])]
    return Case(argv, {"a.json": data, "b.json": r.choice([good, data])})


# dumps


def dumps(r: random.Random) -> Case:
    """A dump whose lines carry right checksums over wrong content, or damage, and what reads it."""
    options = r.choice([(), ("--stage", "weights"), ("--keep", "top,rows,columns,pooled"), ("--keep", "columns"),
                        ("--by", "projected")])  # fmt: skip
    good = dump(*options)
    data = _resealed(r, good) if r.random() < 0.8 else damage(r, good)
    name, argv = (
        "in.jsonl",
        [
            "convert",
            "in.jsonl",
            r.choice(["out.csv", "out.parquet", "out.json", "out.jsonl", "out"]),
        ],
    )
    if r.random() < 0.25:
        document = mutate(r, json.loads(_convert(good, "in.jsonl", "out.json")))
        name, data = "in.json", as_json(document)
        argv[1] = "in.json"
    elif r.random() < 0.3:
        name = "out.jsonl"
        argv = [
            *"batch texts.txt -o out.jsonl --config causal --layer 0 --head 0,1".split(),
            *options,
        ]
    return Case(argv, {name: data, "texts.txt": b"The bank by the river\n\nA bank, a river\n"})


def _resealed(r: random.Random, data: bytes) -> bytes:
    """Some lines with other content, each with the checksum that it then needs."""
    bodies, crc = [], 0
    for line in data.splitlines(keepends=True):
        whole = unseal(line, crc)
        assert whole is not None
        bodies.append(whole[0])
        crc = whole[1]
    good = set(bodies)
    for _ in range(r.randint(1, 2)):
        which = r.randrange(len(bodies))
        action = r.choice(["mutate", "mutate", "mutate", "drop", "repeat", "raw", "last"])
        if action == "mutate":
            if bodies[which] not in good:
                continue
            changed = as_json(mutate(r, json.loads(bodies[which])))
            bodies[which] = changed if changed.endswith(b"}") else b'{"a":1}'
        elif action == "drop" and len(bodies) > 1:
            bodies.pop(which)
        elif action == "repeat":
            bodies.insert(which, r.choice(bodies))
        elif action == "raw":
            bodies[which] = r.choice(_RAW)
        else:
            bodies = bodies[:-1]
        if not bodies:
            break
    lines, crc = [], 0
    for body in bodies:
        line, crc = seal(body, crc)
        lines.append(line)
    return b"".join(lines)


_RAW = [b"{}", b'{"x}', b"[}", b'{"end":true}', b'{"index":"a"}', b'{"index":-1,"hash":"zz"}']

FUZZERS: dict[str, Callable[[random.Random], Case]] = {
    "arguments": arguments,
    "configs": configs,
    "ggufs": ggufs,
    "adapters": adapters,
    "stacks": stacks,
    "reports": reports,
    "dumps": dumps,
}


def make(which: str, seed: int, number: int) -> Case:
    """One case of a fuzzer; the same for the same seed and number."""
    return FUZZERS[which](random.Random(f"{which}/{seed}/{number}"))


@contextmanager
def working_folder() -> Iterator[Path]:
    """A folder that is emptied after every case by `judge`."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def judge(case: Case, folder: Path) -> tuple[Ending, str | None]:
    """How a case ends, and what is wrong with that; the folder is empty afterwards."""
    try:
        ending = run(case, folder)
        return ending, fault(case, ending)
    finally:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
