"""The measuring command counts what is accepted, and says why the rest is not."""

import json
from pathlib import Path

import pytest

from tests.families.measure import main
from tests.helpers.published_configs import PUBLISHED


def test_files_are_counted_by_what_becomes_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpt2 = PUBLISHED["gpt2"]
    files = {
        "plain": gpt2,
        "noted": {**gpt2, "n_special": 0},
        "refused": {**gpt2, "alibi": True},
        "blocks": {
            **PUBLISHED["gpt-oss-20b-BF16"],
            "quantization_config": {"quant_method": "mxfp4"},
        },
        "quantised": {**gpt2, "quantization_config": {"quant_method": "gptq"}},
    }
    for name, raw in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(raw))
    (tmp_path / "broken.json").write_text("{")
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [
        ["refused", "broken.json"],
        ["accepted", "noted.json"],
        ["quantised", "quantised.json"],
        ["refused", "refused.json"],
    ]
    assert "unknown key 'alibi'" in lines[3]
    assert lines[-1] == "3 of 5 accepted (60.0%), besides 1 quantised"
    assert main([str(tmp_path), "--least", "0.98"]) == 1
    assert main([str(tmp_path), "--least", "0.5", "--all"]) == 0
    assert "accepted  plain.json" in capsys.readouterr().out


def test_every_published_config_is_accepted(tmp_path: Path) -> None:
    for name, raw in PUBLISHED.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(raw))
    assert main([str(tmp_path), "--least", "1"]) == 0
