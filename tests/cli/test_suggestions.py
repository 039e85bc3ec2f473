"""What the product suggests works: options that errors and screens name are typed as they stand, and are accepted."""

import re
import shlex

import pytest

from attnscope.cli import main
from attnscope.studies.registry import options_of
from tests.cli.test_options import folder, stop_at_models

__all__ = ["folder"]  # a fixture
TEXT = "'The bank by the river'"
LONG = f"'{'The bank by the river was old. ' * 10}'"
MASKED = "'The bank by the [MASK]'"
# What a user types where a suggestion has a placeholder.
PLACEHOLDERS = {
    "MASK": "window:2", "TOKENS": "bank", "TOKEN": "bank", "WORD": "bank", "POSITION": "1", "PATH": "line.txt",
    "TEXT": "The key is 3.", "X": "0.1", "N": "2", "L": "2", "H": "0", "K": "2", "ROWS": "1:3", "COLUMNS": "0:2",
    "LAYERS": "0", "SPANS": "words",
    "STAGES": "weights", "SPAN": "1", "N,N": "64,96", "FILE": "chat.json", "L0H0: QUERY←KEY": "L0H0: bank←The",
}  # fmt: skip
# The same where it has none.
VALUES = {"layer": "1", "head": "1", "query": "bank", "key": "bank", "measure": "entropy", "model": "riverbank",
    "each": "head", "needle": "The answer is 3.", "role": "self", "replacement": "mean"}  # fmt: skip
REFUSED = [
    "run --haed 1", "run --layer 3-1", "run --mask casual", "run --what-if stakc", "run --precision 10",
    "run --device gpu", "run --dtype float61", "run --format tabel", "run --format heat -o out.svg",
    "run --json -o out.svg", "run --table rows", "run --what-if same-scores", "run -q rivr",
    "run --words --stage scores", "run --words --stage none", "run --words --stage weights,scores",
    "run --words --by value", "run --words --measure rollout", "run --target river", "run --by value --top 0",
    "run --ids --json", "run --keep-newline", "run --context 'the water'", "run --part encoder", "run --open --json",
    "run --measure rollout --pool 2", "run --measure rollout --stage scores", "run --measure rollout --by value",
    "run --measure rollout --head 1", "run --measure rollout --least 2", "run --measure rolout",
    "run --measure value-zeroing --what-if same-scores --mask causal", "run --spans turns --model chatty",
    "run --generate 2", "run --max-memory 200M", "run --cut bank", "run --qkv qkv.npz", "run --input-ids ids.json",
    "run --chat chat.json --model chatty", "explain -q bank --what-if same-scores", "explain", "explain -q bank,The",
    "explain -q bank --layer all", "explain -q bank --head 0,1", "compare --mask causal", "compare --stage scores",
    "compare --by value --top 0", "compare --layer 0 --layer 1 --what-if same-scores",
    "compare --summary --tolerance 0.1", "heads --what-if same-scores", "heads --query river", "heads --words",
    "heads --measure weight", "heads --measure entropy --key bank", "heads --against bank", "heads --role selv",
    "heads --context 'the water'", "heads --hide bank", "ablate", "ablate --cut L1H1 --each head",
    "ablate --cut L1H1 --top 2", "ablate --each edge", "ablate --each span", "ablate --each layer --head 0",
    "ablate --cut L1H1 --layer 0", "ablate --cut L1H1 --words", "ablate --cut L1H1 --answer bank",
    "ablate --cut L1H1 --draws 2", "ablate --cut L1H1 --reference 'the river'", "ablate --cut L1H1 --target river",
    "ablate --cut '*: bank←The' --replacement mean", "check --tolerance x", "rnu",
]  # fmt: skip
# Calls without TEXT, or with a file in its place.
REFUSED_ALONE = [
    "run", "run line.txt", "run chats.jsonl",
    "heads --answer 3. --mask causal --lengths 64", "'The bank'", "batch texts.txt -o out.jsonl --spans words",
    "batch texts.txt -o out.jsonl --what-if same-scores",
    "batch line.txt -o out.jsonl --key bank",
    "batch texts.txt -o out.jsonl --keep effects --what-if same-scores --mask causal",
]  # fmt: skip
SCREENS = [
    f"run {TEXT} --layer all --head all", f"run {TEXT} -q bank", f"run {TEXT} --least 2",
    f"run {TEXT} --measure rollout", f"run {TEXT} --spans words", f"run {LONG}",
    f"run {TEXT} --mask causal --generate 2", f"compare {TEXT}", f"explain {TEXT} -q bank",
    "heads --role previous --draws 2", f"heads {TEXT} --measure entropy", f"heads {TEXT} --key bank",
    f"heads {TEXT} --key bank --against river", f"ablate {MASKED} --cut L1H1", f"ablate {TEXT} --each layer",
    f"ablate {MASKED} --each layer", f"ablate {MASKED} --cut 'L1H1: bank←The'",
    f"ablate {TEXT} --each span --spans words",
]  # fmt: skip
SUGGESTED = re.compile(
    r"\b(?P<verb>remove|add|use|pass|raise|select)\b|(?P<all>one of them)|\bit\b|TEXT|"
    r"(?P<option>--[a-z][a-z-]+)(?: (?:'[^']*'|(?!(?:or|and|to|for|if|instead)\b)[^\s,;:)]+))?"
)


def known(words):
    """The options of a command by each way to spell them."""
    named = [option for option in options_of(words[0]) if not option.argument]
    return {
        name: option
        for option in named
        for name in (option.spelled, option.short, option.off)
        if name
    }


def without(words, spelled):
    """The words without an option and its value, or without TEXT."""
    if spelled == "TEXT":
        return [word for word in words if word not in (TEXT[1:-1], "line.txt")]
    declared, kept, rest = known(words), [], list(words)
    while rest:
        word = rest.pop(0)
        if word not in declared or declared[word] is not declared[spelled]:
            kept.append(word)
        elif not declared[word].is_flag:
            rest.pop(0)
    return kept


def with_options(words, typed):
    """The words with these options; each takes the place of the same one, unless it is repeated to compare."""
    declared, typed = known(words), shlex.split(typed)
    while typed:
        option, values = declared[typed.pop(0)], []
        if not option.is_flag and typed and typed[0] not in declared:
            value = typed.pop(0)
            values = [PLACEHOLDERS.get(value, value)]
        elif not option.is_flag:
            values = [VALUES[option.name]]
        kept = words if option.several == "compared" else without(words, option.spelled)
        if option.name in ("file", "chat"):
            kept = without(kept, "TEXT")
        words = [*kept, option.spelled, *values]
    return words


def hinted(words, line):
    """The commands that an error line suggests, one for each alternative."""
    message, _, hint = line.removeprefix("attnscope: error: ").rstrip().partition("; ")
    where = re.match(r"--[a-z-]+|TEXT", message)
    if near := re.search(r"did you mean '(.*)'\?", hint):
        wrong = re.findall(r"'([^']*)'", message)[-1]
        yield [word.replace(wrong, near[1]) for word in words]
        return
    if command := re.search(r"attnscope ([a-z]+ .*?)(?: to read.*)?$", hint):
        yield shlex.split(command[1])
        return
    if "--" not in hint and (value := re.match(r"use (?:.* such as )?(\S*?),?(?: |$)", hint)):
        yield with_options(words, f"{where[0]} {value[1]}")
        return
    if hint.endswith(" instead"):
        words = without(words, where[0])
    verb = ""
    # what stands after `instead of` is what is typed now
    for found in SUGGESTED.finditer(re.split("[:;] (?!QUERY)| instead of ", hint)[0]):
        if found["verb"]:
            verb = found["verb"]
        elif found["all"]:
            for option in re.findall(r"--[a-z-]+", message):
                yield without(words, option)
        elif verb == "remove":
            yield without(words, found["option"] or (where[0] if found[0] == "it" else found[0]))
        elif found["option"] and verb:
            yield with_options(words, found[0])


def shown(words, screen):
    """The commands that a screen suggests: its last line, and options in parentheses and after `such as`."""
    joined = " ".join(screen.split())
    more = re.search(r"^more {2,}(.*(?:\n {9}.*)*)", screen, re.MULTILINE)
    pieces = [] if more is None else re.sub(r"\s+", " ", more[1]).split(" · ")
    pieces += [piece.partition(": ")[0] for piece in re.findall(r"\((--[^()]*)\)", joined)]
    pieces += re.findall(r"such as (--query \S+ --key \S+)", joined)
    for piece in pieces:
        instead = re.search(r"\(instead of (--[a-z]+)\)", piece)
        kept = words if instead is None else without(words, instead[1])
        for options in re.sub(r" \([^()]*\)$", "", piece).split(", "):
            yield with_options(kept, options.removeprefix("or "))


@pytest.mark.parametrize("alone", [False, True])
def test_the_hint_of_an_error_is_followed(alone, folder, monkeypatch, capfd):
    stop_at_models(monkeypatch, folder)
    for line in REFUSED_ALONE if alone else REFUSED:
        words = shlex.split(line)
        words = words if alone else [words[0], TEXT[1:-1], *words[1:]]
        assert main(words) in (1, 2), line
        error = capfd.readouterr().err
        commands = [*hinted(words, error)]
        assert commands, error
        for command in commands:
            assert main(command) in (0, 130), (line, error, command, capfd.readouterr().err)


def test_the_options_that_a_screen_names_are_followed(folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    named = []
    for line in SCREENS:
        words = shlex.split(line)
        assert main(words) == 0, line
        named += [(line, command) for command in shown(words, capfd.readouterr().out)]
    assert len(named) > 3 * len(SCREENS)
    stop_at_models(monkeypatch, folder)
    for line, command in named:
        assert main(command) in (0, 130), (line, command, capfd.readouterr().err)
