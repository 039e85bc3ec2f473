"""Heads whose roles are known: built by hand, and described in the literature."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from attnscope.request.run_config import TextInput
from attnscope.studies.heads.run import SurveyOptions, survey_heads
from tests.helpers import architectures
from tests.helpers.requests import requested

N_WORDS, N_POSITIONS = 13, 24
SHARP = 60.0  # scores: enough for weights of 1 within 1e-6
LETTERS = "abcdefghijklm"  # the last stands for unknown words
TOML = """
d_model = {width}
n_layers = 2
n_heads = 2
n_kv_heads = 2
d_head = 24
d_value = 24
d_mlp = 0
mask = "causal"
norm = "none"
positions = "learned"
max_positions = 24
weights = "weights.safetensors"
tokenizer = "tokenizer.json"
"""


def induction_circuit(folder: Path) -> Path:
    """An attention-only model of two layers whose heads do one thing each.

    The stream has three parts: which word (13), which position (24), and which word came before (13), all one-hot.
    L0H0 attends to the token before and copies its word into the third part; L0H1 attends to the first token. L1H0
    looks for a token whose third part is its own word, which is induction, and copies that token's word. L1H1 is
    uniform.
    """
    width = N_WORDS + N_POSITIONS + N_WORDS
    word, place, last = (
        range(N_WORDS),
        range(N_WORDS, N_WORDS + N_POSITIONS),
        range(N_WORDS + N_POSITIONS, width),
    )
    tensors = {
        "embed.tokens.weight": torch.eye(width)[:N_WORDS],
        "embed.positions.weight": torch.eye(width)[N_WORDS : N_WORDS + N_POSITIONS],
    }
    for layer in range(2):
        tensors |= {
            f"blocks.{layer}.attention.{name}.weight": torch.zeros(48, width) for name in "qkv"
        }
        tensors[f"blocks.{layer}.attention.out.weight"] = torch.zeros(width, 48)
    q, k, v, out = (tensors[f"blocks.0.attention.{name}.weight"] for name in ("q", "k", "v", "out"))
    for i in range(N_POSITIONS):
        q[i, place[i]] = SHARP
        q[24, place[i]] = SHARP  # head 1: every position asks …
        if i:
            k[i, place[i - 1]] = 1.0  # head 0: position i looks for i − 1
    k[24, place[0]] = 1.0  # … for the first
    for i in range(N_WORDS):
        v[i, word[i]] = out[last[i], i] = 1.0
    q, k, v, out = (tensors[f"blocks.1.attention.{name}.weight"] for name in ("q", "k", "v", "out"))
    for i in range(N_WORDS):
        q[i, word[i]], k[i, last[i]] = SHARP, 1.0
        v[i, word[i]] = out[word[i], i] = 1.0
    vocabulary = {letter: n for n, letter in enumerate(LETTERS)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="m"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(tensors, folder / "weights.safetensors")
    (folder / "circuit.toml").write_text(TOML.format(width=width))
    return folder / "circuit.toml"


def test_heads_that_were_built_by_hand(tmp_path):
    texts = (
        TextInput(" ".join(LETTERS[:12])),
        TextInput(" ".join(LETTERS[5::-1])),
        TextInput("a b a c d b a l"),
    )
    survey = survey_heads(
        requested(texts, config=str(induction_circuit(tmp_path))), SurveyOptions(draws=4)
    )
    assert survey.probes.repeated == 12
    assert survey.main == [["previous", "first"], ["induction", "uniform"]]
    values = {role.name: role.values for role in survey.roles}
    scale = 1 / np.sqrt(24) * SHARP  # a score of q·k = 60
    miss = 23 * np.exp(-scale)  # what the other keys get together, at most
    assert values["previous"][0, 0] > 1 - miss and values["previous"][0, 1] < 0.01
    assert values["first"][0, 1] > 1 - miss and values["first"][0, 0] == pytest.approx(
        0.0, abs=miss
    )
    # The very first token attends to itself in L0H0, so it seems to follow itself: one of twelve rows sees two keys.
    assert values["induction"][1, 0] == pytest.approx(11.5 / 12, abs=miss)
    # It looks at what followed either of two earlier copies; there are three keys for the very first token.
    assert survey.probes.tripled == 8
    assert values["second-order"][1, 0] == pytest.approx((7 / 2 + 1 / 3) / 8, abs=miss)
    assert values["retrieval"][1, 0] == 1.0
    assert values["induction"][0, 0] < miss and values["retrieval"][0].max() == 0.0
    assert values["uniform"][1, 1] == pytest.approx(1.0, abs=1e-6)
    assert (
        values["positional"][0, 0] == pytest.approx(1.0, abs=1e-3)
        and values["content"][0, 0] < 0.25
    )
    assert values["copying"][1, 0] == pytest.approx(1.0)  # it writes the word that it reads
    # the others never write what they read
    assert np.isnan(values["copying"][[0, 0, 1], [0, 1, 1]]).all()


# Wang et al., 2023 (Interpretability in the Wild).
GPT2 = {
    "induction": [(5, 1), (5, 5), (6, 9), (7, 2), (7, 10)],
    "previous": [(2, 2), (4, 11)],
    "duplicate": [(0, 1), (0, 10), (3, 0)],
}


def hub() -> Path:
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub"))


def gpt2_folder() -> Path | None:
    """GPT-2's weights in the local Hugging Face cache, if they are there."""
    for name in ("models--openai-community--gpt2", "models--gpt2"):
        for folder in sorted((hub() / name / "snapshots").glob("*")):
            if all(
                (folder / file).exists()
                for file in ("config.json", "tokenizer.json", "model.safetensors")
            ):
                return folder
    return None


def missed(survey) -> set[tuple[str, int, int]]:
    """Known heads of GPT-2 that are not among the twelve strongest of their role, or weak."""
    return {
        (role.name, layer, head)
        for role in survey.roles
        for layer, head in GPT2.get(role.name, [])
        if (role.values > role.values[layer, head]).sum() >= 12 or role.values[layer, head] <= 0.3
    }


@pytest.mark.skipif(
    gpt2_folder() is None, reason=f"GPT-2's weights are not in the Hugging Face cache {hub()}"
)
def test_known_heads_of_gpt2():
    assert missed(survey_heads(requested((), model=str(gpt2_folder())), SurveyOptions())) == set()


def test_how_known_heads_are_found(tmp_path, monkeypatch):
    """The same with a random model of as many heads in the place of GPT-2."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    assert gpt2_folder() is None
    sizes = {**architectures.ONE_PART["gpt2"], "n_layer": 12, "n_head": 12, "n_embd": 24}
    folder = tmp_path / "hub" / "models--openai-community--gpt2" / "snapshots" / "607a30d7"
    architectures.save(folder, architectures.make("gpt2", sizes))
    assert gpt2_folder() == folder
    survey = survey_heads(requested((), model=str(gpt2_folder())), SurveyOptions(draws=2))
    known = {(role, *head) for role, heads in GPT2.items() for head in heads}
    assert len(known) == 10 and missed(survey) == known
    for role in survey.roles:
        role.values[tuple(np.transpose(GPT2.get(role.name, np.empty((0, 2), int))))] = 0.95
    assert missed(survey) == set()
    (role,) = (role for role in survey.roles if role.name == "duplicate")
    role.values[0, 1], role.values[9:10] = 0.5, 0.9  # fourteen others are stronger
    assert missed(survey) == {("duplicate", 0, 1)}
