"""The options in the help of a command, those that it accepts, and the option table are the same."""

import json
import re
import shlex
import shutil

import numpy as np
import pytest

from attnscope.checkpoints.samples import samples_folder
from attnscope.cli import main
from attnscope.request.options import COMMANDS, COMMON
from attnscope.studies.registry import options_of
from tests.helpers import tiny_models
from tests.helpers.architectures import write_tokenizer

TEXT = "'the bank [MASK]'"
CHAT = [{"role": "user", "content": "the bank"}]
NEEDLE = "--needle 'The bank is 3.' --mask causal --lengths 64"
BASE = {
    "run": TEXT,
    "compare": TEXT,
    "explain": f"{TEXT} -q 1",
    "heads": TEXT,
    "ablate": f"{TEXT} --cut L0H0",
    "learn": f"scores {TEXT} --plain",
    "explore": TEXT,
    "batch": "texts.txt -o out.jsonl --force",
    "merge": "part1.jsonl part2.jsonl -o whole.jsonl --force",
    "verify": "dump.jsonl",
    "convert": "dump.jsonl out.csv --force",
    "import": "old new",
    "check": TEXT,
    "doctor": "",
    "info": "",
    "pull": "org/name",
    "help": "run",
}
# What is typed after an option; a key begins with a command that needs something else. A second text replaces BASE.
ARGUMENTS = {
    "file": ("texts.txt", ""),
    "effects": "--output page.html",
    "batch": "batch.json",
    "batch target": "it --keep effects",
    "batch patch_from": "it --keep effects",
    "explain file": ("line.txt", "-q 1"),
    "ablate file": ("line.txt", "--cut L0H0"),
    "chat": ("chat.json --model chatty", ""),
    "explain chat": ("chat.json --model chatty", "-q 1"),
    "ablate chat": ("chat.json --model chatty", "--cut L0H0"),
    "batch chat": ("chats.jsonl --model chatty", "-o out.jsonl --force"),
    "keep_newline": ("", "-"),
    "explain keep_newline": ("", "- -q 1"),
    "ablate keep_newline": ("", "- --cut L0H0"),
    "pair": "river --model {minilm}",
    "context": "river --config cross.toml",
    "heads context": "river --config cross.toml --key river",
    "model": "riverbank",
    "adapter": "none",
    "config": "single-head",
    "tokenizer": "riverbank",
    "qkv": ("qkv.npz", ""),
    "explain qkv": ("qkv.npz", "-q 1"),
    "batch qkv": ("qkv.npz", "-o out.jsonl --force"),
    "ignore_key": "nothing",
    "layer": "1",
    "ablate layer": ("1 --each layer", TEXT),
    "head": "1",
    "ablate head": ("1 --each head", TEXT),
    "query": "bank",
    "heads query": "bank --key the",
    "ablate query": ("bank --each edge", TEXT),
    "key": "bank",
    "batch key": "bank --stage weights",
    "ablate key": ("bank --each edge --layer 0", TEXT),
    "mask": "causal",
    "compare mask": "own --mask causal",
    "what_if": "same-scores --mask causal",
    "scale": "0.5",
    "width": "5in -o figure.svg --force",
    "labels": "positions -o figure.svg --force",
    "font": "serif -o figure.svg --force",
    "only": "map -o figure.svg --force",
    "map_scale": "max",
    "ramp": "log",
    "compare what_if": "same-scores --mask own --mask causal",
    "hide": "the",
    "heads hide": "the --key bank",
    "stages": "weights",
    "top": "2",
    "ablate top": ("2 --each head", TEXT),
    "by": "value",
    "spans": "words",
    "batch spans": "words --keep spans",
    "cuts": "L1H1",
    "pool": "2",
    "batch pool": "2 --keep pooled",
    "measure": "rollout",
    "heads measure": "entropy",
    "explain measure": "weights",
    "show_padding": ("--file texts.txt", ""),
    "generate": "1 --mask causal",
    "ablate generate": ("1 --each span --spans words --model decoder", TEXT),
    "target": "river --by logit --model decoder",
    "ablate target": "river",
    "least": "1",
    "input_ids": ("ids.json", ""),
    "table": "rows -o out.csv --force",
    "batch table": ("contributors -o tables.parquet/", "texts.txt"),
    "convert table": "contributors",
    "help json": ("", ""),
    "help skill": ("", ""),
    "temperature": "0.5",
    "format": "json",
    "batch input_format": "txt",
    "output": "{command}.json",
    "batch output": ("batch.jsonl", "texts.txt"),
    "merge output": ("merge.jsonl", "part1.jsonl part2.jsonl"),
    "precision": "1",
    "color": "never",
    "device": "cpu",
    "dtype": "bfloat16",
    "max_memory": "8G",
    "threads": "1",
    "engine": "auto",
    "tolerance": "0.1",
    "words": "",
    "heads words": "--key bank",
    "ablate words": ("--each edge --layer 0", TEXT),
    "relative": "0.1 --tolerance 0.1",
    "against": "the --key bank",
    "role": "self",
    "draws": ("2", ""),
    "ablate draws": "1 --with resample",
    "needle": (f"{NEEDLE[9:]}", ""),
    "answer": (f"3. {NEEDLE}", ""),
    "ablate answer": ("bank --each span --spans words --mask causal", TEXT),
    "filler": (f"texts.txt {NEEDLE}", ""),
    "lengths": (f"64 {NEEDLE[:-13]}", ""),
    "depths": (f"0.5 {NEEDLE}", ""),
    "seed": ("1", ""),
    "ablate seed": "1 --with resample --draws 1",
    "sort": "layer",
    "each": ("layer", TEXT),
    "replacement": "mean",
    "patch_from": "'the river [MASK]'",
    "others": "texts.txt --with resample --draws 1",
    "reference": "river --with mean",
    "at": "bank",
    "keys": "keys.toml",
    "column": "text",
    "skip": "0",
    "limit": "1",
    "shard": "1/1",
    "keep": "top",
    "max_minutes": "1",
    "workers": "1",
    "sbatch": "2",
    "batch status": ("", "texts.txt -o dump.jsonl"),
    "input": "texts.txt",
    "attn": "eager",
    "longest_probe": "16",
}
ELSEWHERE = {
    "part": "needs transformers",
    "ray": "starts a cluster",
    "audio": "needs a model that hears",
    "image": "needs a model that sees",
} | dict.fromkeys(("actors", "actor_cpus", "actor_gpus", "actor_resources"), "needs a cluster")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with everything that ARGUMENTS names."""
    path = tmp_path_factory.mktemp("options")
    for name, text in {
        "texts.txt": "the bank\nthe river was\n",
        "line.txt": "the bank by\n",
        "chat.json": json.dumps(CHAT),
        "chats.jsonl": json.dumps(CHAT),
        "ids.json": "[1, 2, 3]",
        "batch.json": "[[1, 2, 3]]",
        "keys.toml": "",
        "cross.toml": "d_model = 8\ncross_attention = true\n",
    }.items():
        (path / name).write_text(text)
    np.savez(path / "qkv.npz", **dict.fromkeys("qkv", np.eye(4, dtype=np.float32)[None, None]))
    shutil.copytree(samples_folder("sample_weights") / "riverbank", path / "chatty")
    (path / "chatty" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    next(row for row in tiny_models.TABLE if row.name == "gpt2").save(path / "decoder")
    write_tokenizer(path / "decoder")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        dumps = (
            ["-o", "dump.jsonl"],
            *(["-o", f"part{n}.jsonl", "--shard", f"{n}/2"] for n in (1, 2)),
        )
        assert [main(["batch", "texts.txt", "--quiet", *words]) for words in dumps] == [0, 0, 0]
    return path


@pytest.fixture
def stopped(folder, monkeypatch):
    """Every command ends with 130 when a model is to be loaded: all that it refuses is refused before."""
    stop_at_models(monkeypatch, folder)


def stop_at_models(monkeypatch, folder):
    """Do what the fixture `stopped` does, from now on."""

    def stop(*_args, **_named):
        raise KeyboardInterrupt

    monkeypatch.chdir(folder)
    for stopped in (
        "attnscope.run.session.Session.load",
        "attnscope.studies.doctor.checkpoint.find_model_class",
        "attnscope.checkpoints.convert_pickle.folder.import_folder",
        "attnscope.checkpoints.pulling.pull",
        "attnscope.views.explore.terminal.walk",
    ):
        monkeypatch.setattr(stopped, stop)
    for check in ("_check_terminal", "_at_terminal"):
        monkeypatch.setattr(f"attnscope.cli.explore.{check}", lambda: None)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_lists_the_options_that_a_command_accepts(
    command, stopped, minilm, monkeypatch, capfd
):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([command, "--help"]) == 0
    listed = set(
        re.findall(r"(?<![\w-])--[a-z][a-z-]*", "\n".join(_first_column(capfd.readouterr().out)))
    )
    options = [option for option in options_of(command) if not option.argument]
    names = {option.off or option.spelled for option in options if not option.hidden}
    assert listed == names | {option.spelled for option in COMMON} | {"--help", "--version"}
    for option in options:
        if option.name in ELSEWHERE:
            continue
        typed = ARGUMENTS.get(f"{command} {option.name}", ARGUMENTS.get(option.name, ""))
        after, base = typed if isinstance(typed, tuple) else (typed, BASE[command])
        words = [
            command,
            *shlex.split(base),
            option.spelled,
            *shlex.split(after.format(command=command, minilm=minilm)),
        ]
        with open("texts.txt") as piped:
            monkeypatch.setattr("sys.stdin", piped)
            code = main(words)
        assert code in (0, 130), (shlex.join(words), capfd.readouterr().err)


def _first_column(text):
    return [
        re.split(r" {2,}", line.strip())[0] for line in text.splitlines() if line.startswith("  -")
    ]
