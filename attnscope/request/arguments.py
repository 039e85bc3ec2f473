"""Read single arguments, typed on the command line or given from Python, with usage errors."""

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from attnscope.base.errors import UsageError, arg, did_you_mean, suggestion

Dtype = Literal["float32", "bfloat16", "float16"]
EngineWord = Literal["auto", "native", "transformers"]
PartWord = Literal["encoder", "decoder", "cross"]
WhatIf = Literal["stack", "same-scores"]
By = Literal["weight", "value", "projected"]
# logit: not of a head, but what parts add to a prediction
RankBy = Literal["weight", "value", "projected", "logit"]
Each = Literal["head", "layer", "edge", "span"]
Replacement = Literal["zero", "mean", "resample"]
LARGEST_POOL = 1024
GENERATED = 4096  # largest --generate
# default texts of `check`: words, numbers and code, other scripts, one token again and again
CHECKED_TEXTS = (
    "The bank by the river was eroded",
    "if x >= 20.5: y = 7",
    "Straße, река, 河岸",
    "no no no no no no no no",
)
LESSON_NAMES = ("scores", "scale", "mask", "softmax", "output", "heads", "directions", "sinks")
# as in findings.run.STAGES, without NumPy
STAGES = ("scores", "scaled", "masked", "weights", "output")

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?)(?:i?b)?", re.IGNORECASE)
_LENGTH = re.compile(r"(\d+(?:\.\d+)?) ?(in|cm|mm|pt|px)")
_PIXELS = {"in": 96.0, "cm": 96 / 2.54, "mm": 96 / 25.4, "pt": 96 / 72, "px": 1.0}
_NARROWEST = 96.0  # pixels of a figure
_WIDEST = 9600.0
_MOST_MEMORY = float(1 << 62)
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?|mps")


def one_of(option: str, words: Any, text: str, *, hint: str | None = None) -> str:
    """Read one of the words of a Literal type; `hint` is for a word that is near none of them."""
    choices: tuple[str, ...] = get_args(words)
    if not isinstance(text, str) or text not in choices:
        # An array cannot be looked up.
        near = suggestion(str(text), choices)
        message = f"must be {', '.join(choices[:-1])} or {choices[-1]}, not '{text}'"
        raise UsageError(message, where=option, hint=near or hint)
    return text


def names(option: str, value: Any) -> tuple[str, ...]:
    """Read names joined by commas, or a list of them from Python."""
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(
        isinstance(name, str) and name.strip() for name in listed
    ):
        raise UsageError(
            f"{value!r:.80} is not a list of names", where=option, hint="separate names by commas"
        )
    return tuple(dict.fromkeys(name.strip() for name in listed))


def some_of(option: str, what: str, choices: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Read some of the known words, joined by commas; they are returned in the order of `choices`."""
    words = [part.strip() for part in text.split(",")]
    for word in words:
        if word not in choices:
            raise UsageError(
                f"unknown {what} '{word}'", where=option, hint=did_you_mean(word, choices)
            )
    return tuple(word for word in choices if word in words)


def stages(text: str) -> tuple[str, ...]:
    """Read stages joined by commas, or `none`."""
    if text == "none":
        return ()
    return some_of(arg("stages"), "stage", STAGES, text)


def number(option: str, low: int, high: int | None, text: Any) -> int:
    """Read a whole number within bounds."""
    bounds = f"{low} or more" if high is None else f"{low} to {high}"
    digits = str(text)
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise UsageError(f"must be a whole number, {bounds}, not '{digits}'", where=option)
    if int(digits) < low or (high is not None and int(digits) > high):
        raise UsageError(f"{digits} is out of range", where=option, hint=f"use {bounds}")
    return int(digits)


TASKS = 1000  # of a job array, which clusters limit to 1,001
THREADS = 1024  # that may be asked for
DRAWS = 2, 1000  # smallest and largest number of random sequences of each kind


def text_or_report(value: str) -> str | Path:
    """Return a text, or the path of a saved report (.json)."""
    if value.lower().endswith(".json"):
        return Path(value)
    return value


def text(option: str, value: str) -> str:
    """Read text that a file can hold; in what was typed, bytes that are not UTF-8 are halves of characters."""
    if not isinstance(value, str):
        raise UsageError(f"{value!r:.80} is not a text", where=option, hint="pass a str")
    try:
        value.encode()
    except UnicodeEncodeError as e:
        raise UsageError(f"'{value}' is not UTF-8", where=option) from e
    return value


def device(text: str) -> str:
    """Read `auto`, `cpu`, `cuda`, `cuda:N` or `mps`; whether the device exists is checked later."""
    if not _DEVICE.fullmatch(text):
        hint = suggestion(text, ("auto", "cpu", "cuda", "mps"))
        if text.startswith("gpu"):
            hint = "use auto"
        raise UsageError(
            f"must be auto, cpu, cuda, cuda:N or mps, not '{text}'", where=arg("device"), hint=hint
        )
    return text


def size(text: Any) -> int:
    """Read a number of bytes such as `800M` or `1.5G`; the letters are powers of 1024."""
    match = _SIZE.fullmatch(str(text).strip())
    if not match:
        raise UsageError(
            f"'{text}' is not a size",
            where=arg("max_memory"),
            hint="use 1.5G, 800M or a number of bytes",
        )
    count = float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ")
    if count < 1:
        raise UsageError("must be at least one byte", where=arg("max_memory"))
    if count > _MOST_MEMORY:
        raise UsageError(
            f"'{text}' is too large", where=arg("max_memory"), hint="use a size such as 1.5G"
        )
    return int(count)


def real(
    option: str,
    text: Any,
    *,
    what: str = "a number of at least 0",
    positive: bool = False,
    hint: str | None = None,
) -> float:
    """Read a finite number of at least 0, or above 0, which need not be whole."""
    value = _float(text)
    if not 0 <= value < math.inf or (positive and not value):
        raise UsageError(f"must be {what}, not '{text}'", where=option, hint=hint)
    return value


def scale(text: Any) -> float:
    """Return a factor of scores; 1 for `none`."""
    if text == "none":
        return 1.0
    return real(arg("scale"), text, what="a number above 0, or none", positive=True)


def tolerance(option: str, text: Any) -> float:
    """Read a tolerance."""
    return real(option, text, what="a number, 0 or more", hint="use a number such as 1e-5")


def figure_width(option: str, value: Any) -> float:
    """Read the width of a figure: a length with its unit, or `column`; return CSS pixels."""
    match = _LENGTH.fullmatch("3.25in" if value == "column" else str(value).strip())
    pixels = float(match[1]) * _PIXELS[match[2]] if match else math.nan
    if not _NARROWEST <= pixels <= _WIDEST:
        hint = "use 5.5in, 84mm, 397pt or column"
        raise UsageError(
            f"must be a width from 1in to 100in, or column, not '{value}'", where=option, hint=hint
        )
    return pixels


def _float(text: Any) -> float:
    """Return a number; NaN for anything else."""
    try:
        if isinstance(text, bool):
            return math.nan
        return float(text)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def resources(text: str) -> dict[str, float]:
    """Read amounts of named resources, such as `fast=1,disk=0.5`."""
    amounts = dict[str, float]()
    for pair in text.split(","):
        name, equals, amount = pair.partition("=")
        if not name or not equals:
            raise UsageError(f"must be NAME=N, not '{pair}'", where=arg("actor_resources"))
        amounts[name] = real(arg("actor_resources"), amount)
    return amounts


RAY_ADDRESS = re.compile(r"auto|local|ray://.+|[^=\s]+:\d+")


def with_ray_address(words: list[str]) -> list[str]:
    """Return a command line with `local` as the address of a `--ray` without one."""
    completed = list[str]()
    for index, word in enumerate(words):
        completed.append(word)
        following = words[index + 1] if index + 1 < len(words) else ""
        if word == "--ray" and not RAY_ADDRESS.fullmatch(following):
            completed.append("local")
    return completed


def workers(text: str) -> int | Literal["auto"]:
    """Read a number of worker processes, or `auto`."""
    if text == "auto":
        return "auto"
    return number(arg("workers"), 0, THREADS, text)


def series(option: str, low: float, high: float, text: str, *, integers: bool) -> tuple[float, ...]:
    """Read ascending numbers joined by commas; `…` or `...` continues the two before it to the next."""
    words = [word.strip() for word in text.split(",")]
    numbers: list[float] = []
    for index, word in enumerate(words):
        if word in ("…", "..."):
            if len(numbers) < 2 or index + 1 == len(words):
                raise UsageError(
                    f"'{word}' needs two numbers before it and one after",
                    where=option,
                    hint="write 0,0.1,…,1",
                )
            step = numbers[-1] - numbers[-2]
            end = _float(words[index + 1])
            count = (end - numbers[-1]) / step if step > 0 else -1.0
            if not 0 <= count <= _MOST_NUMBERS:
                raise UsageError(f"'{text}' has no end", where=option, hint="write 0,0.1,…,1")
            numbers += [round(numbers[-1] + step * n, 9) for n in range(1, int(count + 1e-9) + 1)]
            continue
        value = _float(word)
        if not low <= value <= high or (integers and value != int(value)):
            noun = "whole numbers" if integers else "numbers"
            raise UsageError(f"must be {noun} from {low:,} to {high:,}, not '{word}'", where=option)
        if not numbers or value > numbers[-1] + 1e-9:
            numbers.append(value)
        elif abs(value - numbers[-1]) > 1e-9:
            raise UsageError(f"'{text}' is not ascending", where=option, hint="sort the numbers")
    if len(numbers) > _MOST_NUMBERS:
        raise UsageError(
            f"{len(numbers)} numbers", where=option, hint=f"use at most {_MOST_NUMBERS}"
        )
    if integers:
        return tuple(int(value) for value in numbers)
    return tuple(numbers)


_MOST_NUMBERS = 200


def shard(text: str) -> tuple[int, int]:
    """Read `I/N`: the number of a shard, from 1, and how many there are.

    `slurm` stands for the task of a job array of SLURM, from its environment.
    """
    if text == "slurm":
        return _slurm_task()
    part, slash, total = text.partition("/")
    if not slash:
        raise UsageError(
            f"must be I/N, not '{text}'", where=arg("shard"), hint="use 1/4 for the first of four"
        )
    index = number(arg("shard"), 1, None, part)
    count = number(arg("shard"), 1, None, total)
    if index > count:
        raise UsageError(
            f"there is no shard {part} of {total}",
            where=arg("shard"),
            hint=f"use 1/{total} to {total}/{total}",
        )
    return index, count


def _slurm_task() -> tuple[int, int]:
    """Return the number of this process in its job array, from 1, and the size of the array."""
    names = ("ID", "COUNT", "MIN", "STEP")
    variables = {name: os.environ.get(f"SLURM_ARRAY_TASK_{name}", "") for name in names}
    integers = {
        name: int(value) for name, value in variables.items() if value.isascii() and value.isdigit()
    }
    if not {"ID", "COUNT"} <= integers.keys():
        hint = "submit the job with sbatch --array=1-64, or use I/N"
        raise UsageError(
            "SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT are not set",
            where=arg("shard"),
            hint=hint,
        )
    task = (integers["ID"] - integers.get("MIN", 1)) // max(1, integers.get("STEP", 1)) + 1
    if not 1 <= task <= integers["COUNT"]:
        message = f"task {integers['ID']} of {integers['COUNT']} has no shard"
        raise UsageError(
            message, where=arg("shard"), hint="submit an array without gaps, such as --array=1-64"
        )
    return task, integers["COUNT"]


def roles(text: str) -> tuple[str, ...]:
    """Read roles of heads, joined by commas: names, or titles and letters as screens show them."""
    from attnscope.findings.head_roles import ROLES

    for role in ROLES.values():  # a title may have a comma
        text = re.sub(re.escape(role.title), role.name, text, flags=re.IGNORECASE)
    names = {role.letter.lower(): role.name for role in ROLES.values()}
    names |= {role.letter: role.name for role in ROLES.values()}
    names |= {name: name for name in ROLES} | {"sink": "first"}
    words = [word.strip() for word in text.split(",")]
    spelled = ",".join(names.get(word, names.get(word.lower(), word)) for word in words)
    return some_of(arg("role"), "role", tuple(ROLES), spelled)


def check_targets(targets: Sequence[str]) -> None:
    """Refuse more than two tokens whose logits are compared."""
    if len(targets) > 2:
        message = f"given {len(targets)} times"
        raise UsageError(
            message, where=arg("target"), hint="give one token, or two for a difference"
        )


def measure(text: str) -> str:
    """Read the name of a measure of heads: a contribution, a statistic of rows, or `mixing`, whose roles are shown."""
    from attnscope.base.layer_kinds import MIXING
    from attnscope.findings.row_statistics import LAYER_STATISTICS, STATISTICS

    return one_of(
        arg("measure"), Literal[(*get_args(By), *STATISTICS, *LAYER_STATISTICS, MIXING)], text
    )


def explained_measure(text: str) -> str:
    """Read `weights` or `mixing`."""
    from attnscope.base.layer_kinds import MIXING
    from attnscope.findings.rollout import ATTENTION

    return one_of(arg("measure"), Literal[(ATTENTION, MIXING)], text)


def rollout_measure(text: str) -> str:
    """Read `weights`, `mixing`, or the name of a measure over layers."""
    from attnscope.base.layer_kinds import MIXING
    from attnscope.findings.rollout import ATTENTION, ROLLOUT_MEASURES

    return one_of(arg("measure"), Literal[(ATTENTION, *ROLLOUT_MEASURES, MIXING)], text)
