"""The command line and Python refuse the same combinations of options, in the same words."""

import json
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest

import attnscope
from attnscope.base.errors import PYTHON_NAMES, AttnscopeError, UsageError
from attnscope.checkpoints.samples import samples_folder
from attnscope.cli import main
from attnscope.request.combinations import check_combinations
from attnscope.request.options import COMMANDS, on_command_line, option_in, rules
from attnscope.request.run_config import InspectArguments
from attnscope.studies.ablate.arguments import AblateArguments
from attnscope.studies.compare.arguments import CompareArguments
from attnscope.studies.explain.arguments import ExplainArguments
from attnscope.studies.heads.arguments import HeadsArguments
from attnscope.studies.registry import options_of
from tests.helpers.draws import drawn

TEXT = "the bank [MASK]"
ARGUMENTS = {
    "run": InspectArguments,
    "explain": ExplainArguments,
    "heads": HeadsArguments,
    "ablate": AblateArguments,
    "compare": CompareArguments,
}
CHAT = [{"role": "user", "content": "the bank"}]
# values of options as they are typed, which Python takes, too
WORDS = {
    "pair": ["river"],
    "context": ["river"],
    "model": ["riverbank", "chatty"],
    "config": ["single-head"],
    "tokenizer": ["riverbank"],
    "adapter": ["no-such-folder"],
    "qkv": ["qkv.npz"],
    "ignore_key": ["nothing"],
    "layer": ["1", "all", "auto", "mean", "L1H0"],
    "head": ["1", "all", "mean"],
    "query": ["bank"],
    "key": ["the"],
    "mask": ["causal", "own"],
    "hide": ["the"],
    "stages": ["weights", "scores,weights", "none"],
    "spans": ["words"],
    "cuts": ["L1H1", "L0H0: bank<-the"],
    "measure": ["rollout", "value-zeroing", "mixing", "weights"],
    "target": ["bank"],
    "role": ["self"],
    "needle": ["The bank is 3."],
    "answer": [" bank"],
    "reference": ["river"],
    "patch_from": ["the river [MASK]"],
    "at": ["bank"],
    "against": ["the"],
    "device": ["cpu"],
    "max_memory": ["8G"],
}
OF_HEADS = {"measure": ["entropy", "weight", "mixing"]}
# typed value and value in Python
OTHERS = {
    "chat": [("chat.json", CHAT)],
    "input_ids": [("ids.json", [1, 2, 3])],
    "scale": [("0.5", 0.5)],
    "tolerance": [("0.1", 0.1)],
    "relative": [("0.1", 0.1)],
    "lengths": [("64", 64)],
    "depths": [("0.5", 0.5)],
    "stages": [("none", ())],
}
# both are refused, and each face says what its own way to give them is
ELSEWHERE = {"filler", "others", "image", "audio", "part"}


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A folder with files to name, where nothing is loaded: what is refused is refused before."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.json").write_text(json.dumps(CHAT))
    (tmp_path / "ids.json").write_text("[1, 2, 3]")
    np.savez("qkv.npz", **dict.fromkeys("qkv", np.eye(4, dtype=np.float32)[None, None]))
    shutil.copytree(samples_folder("sample_weights") / "riverbank", tmp_path / "chatty")
    (tmp_path / "chatty" / "chat_template.jinja").write_text("{{ messages[0].content }}")

    def stop(*_args, **_named):
        raise KeyboardInterrupt

    monkeypatch.setattr("attnscope.run.session.Session.load", stop)


def values_of(command, option):
    """Return what may be given for an option: pairs of typed words and the value in Python."""
    if option.name in OTHERS and option.name != "stages":
        return [([option.spelled, typed], value) for typed, value in OTHERS[option.name]]
    if option.is_flag:
        return [([option.spelled], option.off is not False)]
    words = WORDS.get(option.name, ())
    if command == "heads":
        words = OF_HEADS.get(option.name, words)
    if command == "explain" and option.name == "measure":
        words = ["mixing", "weights"]
    if option.bounds is not None:
        low, _ = option.bounds
        return [([option.spelled, str(n)], n) for n in (low, low + 1)]
    if not words and isinstance(option.complete, tuple):
        words = option.complete
    python = {typed: value for typed, value in OTHERS.get(option.name, ())}
    return [([option.spelled, word], python.get(word, word)) for word in words]


def common_options(command):
    """Return the options that both faces have, by name, without the text."""
    names = {
        {argument: name for name, argument in PYTHON_NAMES.items()}.get(argument, argument)
        for argument in ARGUMENTS[command].__annotations__
    } | {"model", "tokenizer"}
    options = {option.name: option for option in options_of(command) if not option.argument}
    return {
        name: option
        for name, option in options.items()
        if name in names - ELSEWHERE and values_of(command, option)
    }


def typed_line(words, capsys):
    """Return the error that a command line ends with; None if it would load a model."""
    capsys.readouterr()
    code = main(words)
    err = capsys.readouterr().err
    assert code in (1, 2, 130), (words, code, err)
    return None if code == 130 else err.strip().split("\n")[-1].removeprefix("attnscope: error: ")


def python_line(command, text, arguments):
    """Return the error of a call, spelled as the command line would."""
    function = getattr(attnscope, "inspect" if command == "run" else command)
    try:
        if command == "heads":
            function(text=text, **arguments)
        else:
            function(*([] if text is None else [text]), **arguments)
    except AttnscopeError as error:
        return error.line(on_command_line)
    except KeyboardInterrupt:
        return None
    raise AssertionError("nothing was loaded")


def differences(command, cases, capsys):
    """Yield calls that the faces refuse differently."""
    for text, given in cases:
        words = [command, *([] if text is None else [text]), "--json"]  # Python has data
        arguments = {}
        for name, (typed, value) in given.items():
            words += typed
            arguments[PYTHON_NAMES.get(name, name)] = value
        lines = typed_line(words, capsys), python_line(command, text, arguments)
        if lines[0] != lines[1]:
            yield words, lines


def drawn_cases(command, count, seed):
    options = common_options(command)
    chance = random.Random(seed)
    for _ in range(count):
        names = chance.sample(sorted(options), chance.choice((1, 2, 2, 2, 3)))
        text = None if {"chat", "input_ids", "qkv", "needle"}.intersection(names) else TEXT
        if text is None and chance.random() < 0.2:
            text = TEXT
        needed = {"explain": {"query": (["--query", "bank"], "bank")}}.get(command, {})
        yield (
            text,
            needed | {name: chance.choice(values_of(command, options[name])) for name in names},
        )


@pytest.mark.parametrize("command", ARGUMENTS)
def test_both_faces_refuse_the_same_options_in_the_same_words(command, stopped, capsys):
    cases = list(drawn_cases(command, drawn(40), seed=len(command)))
    found = list(differences(command, cases, capsys))
    assert not found, "\n".join(f"{words}\n  {lines[0]}\n  {lines[1]}" for words, lines in found)


def is_read(option, word):
    """Tell whether an option of some command takes a value."""
    if option.read is None:
        return True
    try:
        option.read(word)
    except AttnscopeError:
        return False
    return True


@pytest.mark.parametrize("command", COMMANDS)
def test_conditions_name_options_and_values_that_a_command_takes(command):
    every_option = [option for options in COMMANDS.values() for option in options]
    for option in options_of(command):
        listed = [*rules(option.needs), *rules(option.excludes)]
        own = [f"{option.name}={values}" for values, _ in listed if values]
        for condition in (*own, *(each for _, conditions in listed for each in conditions)):
            name = option_in(condition)
            named = [other for other in every_option if other.name == name]
            assert named or name == "score_mod", (command, option.name, condition)
            wanted = condition.partition("=")[2].removeprefix("!")
            for word in wanted.split("|") if wanted and not wanted.startswith(".") else ():
                assert any(is_read(other, word) for other in named), (command, condition, word)


def test_every_condition_of_a_row_is_refused():
    for command in COMMANDS:
        table = {option.name: option for option in options_of(command)}
        for option in table.values():
            for own_values, excluded in rules(option.excludes):
                own = given(table, f"{option.name}={own_values}")
                for condition in excluded:
                    if option_in(condition) in table:
                        values = dict([own, given(table, condition)])
                        with pytest.raises(UsageError, match="cannot be used together"):
                            check_combinations([replace(option, needs=())], values)
            for own_values, needed in rules(option.needs):
                if any(f"={table['keep'].default}" in each for each in needed if "keep" in table):
                    continue  # the default is enough
                own = given(table, f"{option.name}={own_values}")
                with pytest.raises(UsageError, match="applies only to"):
                    check_combinations(list(table.values()), dict([own]))


def given(table, condition):
    """Return an option with a value under which a condition holds."""
    name, _, wanted = condition.partition("=")
    option = table[name.removesuffix("!")]
    negated = name.endswith("!") or wanted.startswith("!")
    if wanted and not negated:
        word = wanted.split("|")[0]
        return option.name, f"a{word}" if word.startswith(".") else word
    if option.is_flag:
        return option.name, option.off is not False
    return option.name, ("other",) if option.several == "yes" else "other"
