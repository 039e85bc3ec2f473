"""A walk begins at the head that its question names, and tells unknown predictions from missing ones."""

from pathlib import Path

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from tests.explore.headless import walk_without_terminal

ANIMAL = "The animal crossed because it was tired"


def test_explore_begins_at_the_head_that_reads_the_named_cell_most(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screens = walk_without_terminal(monkeypatch)
    assert main(["explore", ANIMAL, "--query", "it", "--key", "animal"]) == 0
    weights = attnscope.inspect(ANIMAL, layer="all", head="all").weights[:, :, 4, 1]
    layer, head = np.unravel_index(weights.argmax(), weights.shape)
    assert f"L{layer}H{head}" in screens[0][0]
    assert f"--layer {layer} --head {head} --query it" in capsys.readouterr().out


def test_predictions_of_a_walk_that_begins_at_a_named_head(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "She sat by the [MASK] of the river"
    screens = walk_without_terminal(monkeypatch, "p")
    assert main(["explore", text, "--layer", "2", "--head", "0"]) == 0
    screen = "\n".join(screens[0])
    predictions = attnscope.inspect(text, predict=True).data.texts[0].predictions
    assert "no predictions" not in screen
    assert all(f"{100 * token.probability:.1f} %" in screen for token in predictions[0].tokens[:3])


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        ("The bank by the river", [], "the model predicts at [MASK]"),
        ("The bank by the river", ["--config", "causal"], "the model has no output head"),
    ],
)
def test_why_a_walk_has_no_predictions(
    text: str, options: list[str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    screens = walk_without_terminal(monkeypatch, "p")
    assert main(["explore", text, *options]) == 0
    assert reason.split()[0] in " ".join("".join(screens[0]).split())
    assert reason in _row_panel(screens[0])


def _row_panel(lines: list[str]) -> str:
    """Join the wrapped lines of the panel at the right."""
    start = next(index for index, line in enumerate(lines) if "no predictions" in line)
    column = lines[start].index("no predictions")
    return " ".join(
        " ".join(line[column:].replace("│", " ").split()) for line in lines[start : start + 3]
    )


def test_saved_findings_do_not_claim_that_there_are_no_predictions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    text = "She sat by the [MASK] of the river"
    assert main(["run", text, "--layer", "2", "--head", "0", "-o", str(report)]) == 0
    screens = walk_without_terminal(monkeypatch, "p")
    assert main(["explore", str(report)]) == 0
    assert "no predictions here; attnscope run" in _row_panel(screens[0])


def test_a_cut_without_predictions_is_called_a_change_of_hidden_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screens = walk_without_terminal(monkeypatch, "p")
    text = "The bank by the river"
    assert (
        main(
            ["explore", text, "--config", "causal", "--cut", "L0H1", "--layer", "0", "--head", "1"]
        )
        == 0
    )
    screen = "\n".join(screens[0])
    assert "change  of final states" in screen
    assert "prediction " not in screen
    effect = attnscope.ablate(text, config="causal", cut="L0H1")
    share = effect.data.effects[0].change.astype(np.float64) / effect.data.norms
    assert f" {100 * share.max():.0f} %" in screen
