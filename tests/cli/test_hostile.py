"""Hostile folders, texts and outputs through the real pipeline: one clean error line, and no other effect."""

import json
import re
import subprocess
import time

import numpy as np
import pytest
from safetensors.numpy import save_file

from attnscope.cli import main
from attnscope.findings.codec import from_json
from tests.helpers.cli_runner import environment
from tests.helpers.fork_server import Process

HOSTILE = [
    "[/]",
    "[red]",
    ":smile:",
    "\\",
    "\x1b[2J",
    "\x9b31m",
    "\u202e",
    "\u200d",
    "\ufeff",
    "\x07",
    "\ue000",
]


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    for name in ("ATTNSCOPE_MODEL", "ATTNSCOPE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "120")


def error(capfd, *args, code=1):
    """The one line on stderr that a command ends with."""
    started = time.monotonic()
    assert main(list(args)) == code
    assert time.monotonic() - started < 5
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("attnscope: error: ")
    assert err.count("\n") == 1
    assert err[:-1].isprintable()
    return err.removeprefix("attnscope: error: ")[:-1]


def folder(path, config, weights=True):
    if config is not None:
        (path / "config.json").write_bytes(
            config if isinstance(config, bytes) else json.dumps(config).encode()
        )
    (path / "tokenizer.json").write_text("{}")
    if weights:
        save_file({"a": np.zeros(2, dtype=np.float32)}, path / "model.safetensors")
    return str(path)


@pytest.mark.parametrize("args", [("run", "x"), ("info",)])
@pytest.mark.parametrize(
    "config",
    [None, b"", b'{"model_type": "be', b'\xef\xbb\xbf{"model_type": 1}', '{"a": 1}'.encode("utf-16"), b"[" * 100_000,
     b"null", b"[]", b'{"model_type": NaN}', b'{"a": 1, "a": 1}'],
)  # fmt: skip
def test_a_file_that_is_no_config_is_refused_with_its_path(capfd, tmp_path, args, config):
    line = error(capfd, *args, "--model", folder(tmp_path, config))
    assert line.startswith(f"{tmp_path}")
    assert "config.json" in line


def test_unknown_family(capfd, tmp_path):
    line = error(
        capfd, "run", "x", "--model", folder(tmp_path, {"model_type": "\x1b[2Jbert\u202e"})
    )
    assert "[2Jbert" in line
    assert "transformers" in line and "has no such model" in line


def test_heads_that_do_not_divide_the_width(capfd, tmp_path):
    path = tmp_path / "odd.toml"
    path.write_text("d_model = 32\nn_heads = 5\n")
    assert error(capfd, "run", "x", "--config", str(path)).startswith(
        f"{path}: d_model is 32, but n_heads is 5"
    )


@pytest.mark.parametrize(
    ("text", "found"), [("", "is empty"), (" \t", "is blank"), ("\u3000", "is blank")]
)
def test_a_text_of_no_tokens_is_refused(capfd, text, found):
    assert found in error(capfd, "run", text, "--config", "causal")


def test_text_that_is_not_unicode(capfd):
    assert error(capfd, "run", "a\udcffb", "--config", "causal").startswith("TEXT: character 1 ")


def test_a_name_with_control_characters(capfd):
    assert error(capfd, "run", "x", "--model", "\x1b]0;a\x07\u202eb").startswith(
        r"\x1b]0;a\x07\u202eb: no such"
    )


def test_too_much_memory_is_refused_with_the_sum(capfd, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("river bank " * 100_000)
    line = error(
        capfd,
        "run",
        "--file",
        str(path),
        "--config",
        "sliding-window",
        "--head",
        "all",
        "--format",
        "json",
    )
    assert re.match(
        r"needs about \d+\.\d TiB \(program .* \+ kept .*\), but half of the free memory is ", line
    )
    assert "--key" in line


@pytest.mark.parametrize("format", ["table", "heat"])
@pytest.mark.parametrize("color", ["never", "always"])
def test_hostile_tokens_are_visible(capfd, format, color):
    text = " x ".join(HOSTILE)
    args = ["run", text, "--config", "bidirectional", "--format", format, "--color", color]
    assert main(args) == 0
    out, err = capfd.readouterr()
    assert err == ""
    plain_text = re.sub(r"\x1b\[[0-9;]*m", "", out) if color == "always" else out
    assert not re.search(
        r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200d\u202a-\u202e\ufeff\ue000]", plain_text
    )
    for piece in ("\\\\", "\\x1b", "\\x9b", "\\u202e", "\\ue000", "\\x07"):
        assert piece in plain_text


def test_hostile_text_survives_in_json(capfd):
    text = " x ".join(HOSTILE)
    assert main(["run", text, "--config", "bidirectional", "--format", "json"]) == 0
    out, _ = capfd.readouterr()
    assert from_json(out.encode()).texts[0].text == text
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", out)


@pytest.mark.parametrize("ending", [".json", ".txt", ".svg", ".safetensors"])
def test_outputs_that_cannot_be_written(capfd, tmp_path, ending):
    old, link = tmp_path / f"old{ending}", tmp_path / f"link{ending}"
    old.write_bytes(b"old")
    link.symlink_to(old)
    run = ("run", "The bank", "--config", "causal", "--output")
    assert error(capfd, *run, str(old)) == f"{old}: exists; pass --force to overwrite it"
    assert error(capfd, *run, str(link), "--force").startswith(
        f"{link}: is a symbolic link to '{old}'"
    )
    assert error(capfd, *run, f"{tmp_path}/gone/new{ending}").startswith(
        f"{tmp_path}/gone: no such folder"
    )
    assert error(capfd, *run, str(tmp_path)) == f"{tmp_path}: is a folder; add a file name"
    old.chmod(0o444)
    assert error(capfd, *run, str(old), "--force").startswith(f"{old}: is read-only")
    assert old.read_bytes() == b"old"
    assert sorted(tmp_path.iterdir()) == sorted([old, link])
    old.chmod(0o644)
    assert main([*run, str(old), "--force", "--quiet"]) == 0
    assert old.read_bytes() != b"old"
    assert sorted(tmp_path.iterdir()) == sorted([old, link])


def test_head_of_a_real_run():
    words = " ".join(f"w{i}" for i in range(64))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Process(
        "", "run", words, "--config", "causal", "--head", "all", **pipes, env=environment()
    ) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == b""
