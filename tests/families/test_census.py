"""The census of architectures: what it calls right is right, and its table is that of the installed transformers."""

import pytest
import torch
import transformers as hf

from attnscope.model.inputs import AttentionInputs
from tests.families.census import MEASURES, TABLE, Finding, document, examine, examine_apart


@pytest.mark.parametrize("model_type", ["llama", "bamba", "recurrent_gemma", "gemma3"])
def test_a_type_is_right_in_every_measure(model_type: str) -> None:
    finding = examine(model_type)
    assert (finding.verdict, finding.reason) == ("right", "")
    assert set(finding.differences) == {*MEASURES} - {"decoder"}


@pytest.mark.parametrize("model_type", ["nemotron_h_omni", "csm", "musicgen"])
def test_a_text_is_read_by_the_part_of_a_model_that_is_for_it(model_type: str) -> None:
    """Files with other names of modules, two tables of embeddings, and an encoder beside a decoder of sound."""
    finding = examine(model_type)
    assert (finding.verdict, finding.reason) == ("right", "")
    assert {"weights", "padded"} <= set(finding.differences)


def test_the_census_names_matrices_of_layers_without_softmax_and_why_there_are_none() -> None:
    kinds = {name: examine(name).mixing for name in ("recurrent_gemma", "lfm2", "gpt2")}
    assert kinds == {
        "recurrent_gemma": "rg-lru",
        "lfm2": "none (convolution: its matrix is a few diagonals, the same in every text)",
        "gpt2": "–",
    }


def test_a_planted_bug_is_called_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def interleaved(inputs: AttentionInputs, heads: torch.Tensor) -> torch.Tensor:
        return heads % inputs.k.shape[1]

    monkeypatch.setattr(AttentionInputs, "group", interleaved)
    assert examine("llama").verdict == "wrong"


def test_a_type_that_takes_no_text_is_left_out_with_a_reason() -> None:
    assert examine_apart("vit") == Finding("vit", "not text", reason="takes pixel_values")


def test_the_table_is_of_the_installed_release_and_knows_no_wrong_type() -> None:
    """Or the census has to be run again: `python -m tests.families.census`."""
    text = TABLE.read_text()
    assert f"`transformers` {hf.__version__}" in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert {row[1] for row in rows} <= {"right", "refused"}
    assert all(row[-1].removesuffix(" |").strip() for row in rows if row[1] == "refused")
    attending = [row[1] for row in rows if row[2] == "yes"]
    right = attending.count("right")
    assert f"softmax attention over text: {right} of {len(attending)} right" in text
    assert right >= 0.95 * len(attending)


def test_the_table_counts_its_rows() -> None:
    findings = [
        Finding("a", "right"),
        Finding("b", "wrong", reason="x | y"),
        Finding("c", "not text"),
        Finding("d", "refused", softmax=False),
    ]
    text = document(findings, ["d"])
    assert (
        "1 of 3 types are right, 1 wrong, 1 refused." in text
        and "Types with softmax attention over text: 1 of 2 right, 50.0%." in text
        and "1 types, of text or not, were not examined" in text
        and "x \\| y" in text
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("model_type", sorted(hf.CONFIG_MAPPING))
def test_no_type_is_wrong(model_type: str) -> None:
    finding = examine_apart(model_type)
    assert finding.verdict not in ("wrong", "crash"), finding.reason
