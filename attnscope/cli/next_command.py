"""The next command: after a result, one line on a terminal's standard error with what most people type then."""

import sys
from collections.abc import Callable, Sequence
from itertools import chain, count
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from attnscope.base.system.escape import quote_for_shell
from attnscope.cli.parameters import Given
from attnscope.cli.process import print_notice
from attnscope.request.options import COMMANDS, COMMON, Option
from attnscope.studies.registry import kind_of

_AROUND = 11  # columns before a command that is below other facts, and of a backslash behind it
_EDGES = 8  # queries, and keys, of the edges that one command cuts
SAMPLE = "The bank by the river"
# Options that say which model reads which text, and how: they mean the same in the next command.
_CARRIED = (
    "model", "adapter", "config", "tokenizer", "ignore_key", "trust_config", "engine", "part", "dtype", "device",
    "mask", "what_if", "scale", "hide", "pair", "context", "profile", "no_settings",
)  # fmt: skip


def is_read_along(options: Given) -> bool:
    """Tell whether someone reads along: on a terminal, and not with --quiet."""
    return not options.quiet and sys.stderr is not None and sys.stderr.isatty()


def suggest(words: Sequence[str], options: Given) -> None:
    """Print a command, if someone reads along."""
    if words and is_read_along(options):
        command = _quoted(words)
        print_notice("next", " ".join(command), command=command)


def _quoted(words: Sequence[str]) -> list[str]:
    """Return the words of a command as a shell reads them; an option stays with its value."""
    command = ["attnscope"]
    for word in map(quote_for_shell, words):
        if command[-1].startswith("-") and " " not in command[-1] and not word.startswith("-"):
            command[-1] += f" {word}"
        else:
            command.append(word)
    return command


def after(findings: Any, options: Given) -> list[str]:
    """Return the words of the command that follows some findings; none if nothing does."""
    follow_up = _AFTER.get(kind_of(findings).name)
    if follow_up is None:
        return []
    words = follow_up(findings, options.command_name, options)
    return words if words and _computes_the_same(options, words[0]) else []


def _computes_the_same(options: Given, next_command: str) -> bool:
    """Tell whether another command can be given every typed option that changes what the model computes."""
    if next_command == options.command_name:
        return True
    names = {option.name for option in COMMANDS[next_command]} - {
        "cuts"
    }  # ablate compares with and without
    return not ({"what_if", "scale", "cuts"} & options.typed) - names


def carried(command: str, next_command: str, words: Sequence[str]) -> list[str]:
    """Return the typed options about the model, as far as another command has them, too."""
    names = {option.name for option in (*COMMANDS[next_command], *COMMON)} & set(_CARRIED)
    return [
        word
        for option, typed in _typed_options(command, words)
        if option.name in names
        for word in typed
    ]


def _typed_options(command: str, words: Sequence[str]) -> list[tuple[Option, list[str]]]:
    """Return the options of a command line with the words that say them; arguments are left out."""
    by_flag = {
        flag: option
        for option in (*COMMANDS[command], *COMMON)
        if not option.argument
        for flag in (option.spelled, option.off, option.short)
        if flag
    }
    found = []
    remaining = list(words[: words.index("--")] if "--" in words else words)
    while remaining:
        word = remaining.pop(0)
        flag, equals, _ = word.partition("=")
        option = by_flag.get(flag)
        if option is None:
            continue
        typed = [word]
        if not option.is_flag and not equals and remaining:
            typed.append(remaining.pop(0))
        found.append((option, typed))
    return found


def _text_of(options: Given) -> list[str]:
    """Return the typed text as an argument; none if it came from elsewhere."""
    text = getattr(options, "text", None)
    if isinstance(text, str) and text != "-" and not text.startswith("-"):
        return [text]
    return []


def _after_run(report: Any, command: str, options: Given) -> list[str]:
    """Explain the strongest cell of a head: on `--key`, else one that is no sink's and no token's own, if there is."""
    import numpy as np

    text = _text_of(options)
    if not text or len(report.texts) != 1 or not report.texts[0].heads:
        return []
    of_text = report.texts[0]
    head = _strongest_head(of_text)
    if "mean" in (head.layer, head.head) or not head.top.weight.size:
        return []
    weights = head.top.weight
    keys = head.top.keys
    if _has_chosen_keys(of_text) and "weights" in head.stages:
        weights = head.stages["weights"]
        keys = np.broadcast_to(np.array(of_text.keys), weights.shape)
    elif of_text.context is None:
        queries = np.array(of_text.queries)[:, None]
        special = np.array([token.special for token in of_text.tokens])
        between_words = (keys > 0) & (keys != queries) & ~special[keys] & ~special[queries]
        if between_words.any():
            weights = np.where(between_words, weights, -1.0)
    row, rank = np.unravel_index(np.nanargmax(weights), weights.shape)
    cell = ["--query", str(of_text.queries[row]), "--key", str(int(keys[row, rank]))]
    head_options = ["--layer", str(head.layer), "--head", str(head.head)]
    return [
        "explain",
        *text,
        *cell,
        *head_options,
        *carried(command, "explain", options.command_line),
    ]


def _has_chosen_keys(text: Any) -> bool:
    return len(text.keys) < len(text.context or text.tokens)


def _strongest_head(text: Any) -> Any:
    """Return the head that gives most to the keys of `--key`; without them, the first."""
    import numpy as np

    heads = text.heads
    if _has_chosen_keys(text) and all("weights" in head.stages for head in heads):
        sums = [float(np.nan_to_num(head.stages["weights"]).sum()) for head in heads]
        return heads[sums.index(max(sums))]
    return heads[0]


def cut_command(report: Any, options: Given) -> list[str]:
    """Return the quoted words of the command that cuts the edges between `--query` and `--key` of a run.

    None if it would cut nothing, or if a screen could not show it as it is to be typed.
    """
    text = _text_of(options)
    if not text or len(report.texts) != 1 or not _computes_the_same(options, "ablate"):
        return []
    of_text = report.texts[0]
    is_plain = of_text.words is None and of_text.context is None and not of_text.generated
    few = len(of_text.queries) <= _EDGES and len(of_text.keys) <= _EDGES
    if not (is_plain and few and of_text.heads):
        return []
    head = _strongest_head(of_text)
    weights = head.stages.get("weights")
    if "mean" in (head.layer, head.head) or weights is None or not weights.any():
        return []
    sides = (",".join(map(str, side)) for side in (of_text.queries, of_text.keys))
    cut = f"L{head.layer}H{head.head}: {'<-'.join(sides)}"
    further = carried("run", "ablate", options.command_line)
    words = _quoted(["ablate", *text, "--cut", cut, *further])
    room = get_terminal_size((80, 24)).columns - _AROUND
    return words if max(map(len, words)) <= room else []


def _after_explain(explanation: Any, command: str, options: Given) -> list[str]:
    """Cut the edge that was explained."""
    text = _text_of(options)
    if not text or explanation.fully_masked:
        return []
    edge = (
        f"L{explanation.layer}H{explanation.head}: {explanation.query}<-{explanation.cells[0].key}"
    )
    return ["ablate", *text, "--cut", edge, *carried(command, "ablate", options.command_line)]


def _after_heads(findings: Any, command: str, options: Given) -> list[str]:
    """Cut the first listed head."""
    import numpy as np

    if hasattr(findings, "roles"):
        values = findings.roles[0].values
    else:
        values = findings.values
    if np.isnan(values).all():
        return []
    layer, head = divmod(int(np.nanargmax(values)), values.shape[1])
    text = _text_of(options) or [SAMPLE]
    return [
        "ablate",
        *text,
        "--cut",
        f"L{layer}H{head}",
        *carried(command, "ablate", options.command_line),
    ]


def _page(_findings: Any, command: str, options: Given) -> list[str]:
    """Write the same as a page, beside those that are there already."""
    if options.output is not None or options.format == "json":
        return []
    names = chain([f"{command}.html"], (f"{command}{number}.html" for number in count(2)))
    free = next(name for name in names if not Path(name).exists())
    return [command, *options.command_line, "-o", free]


def _after_check(_report: Any, command: str, options: Given) -> list[str]:
    return ["heads", *carried(command, "heads", options.command_line)]


_AFTER: dict[str, Callable[[Any, str, Given], list[str]]] = {
    "run": _after_run,
    "compare": _page,
    "explain": _after_explain,
    "heads": _after_heads,
    "measured-heads": _after_heads,
    "compared-heads": _page,
    "needle": _page,
    "ablate": _page,
    "effects": _page,
    "check": _after_check,
}  # kind of findings, to the command that follows them
