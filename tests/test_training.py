"""The parts of the recipe that a wrong result wouldn't show: its losses, its restart, and its reading of WordNet."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))  # the recipe isn't part of the installed package

from training.riverbank.batches import Document
from training.riverbank.corpus import read_synsets, short_documents
from training.riverbank.fused import weighted_cross_entropy
from training.riverbank.objective import relation_loss
from training.riverbank.prepare import Prepared
from training.riverbank.settings import Settings
from training.riverbank.train import Training, endless

TINY = Settings(
    vocab_size=50, d_model=16, n_layers=2, n_heads=2, d_mlp=32, max_positions=16, relation_heads=((1, 0),), steps=6,
    batch_tokens=60, warmup=2,
)  # fmt: skip


def tiny_training() -> Training:
    draw = np.random.default_rng(0)
    documents = []
    for _ in range(20):
        size = int(draw.integers(4, 12))
        relation = draw.integers(0, 256, (size, size), dtype=np.uint8)
        documents.append(
            Document(
                draw.integers(3, 50, size, dtype=np.int16),
                np.arange(size, dtype=np.int16),
                relation,
            )
        )
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    embeddings = torch.from_numpy(draw.normal(size=(50, 16))).float()
    return Training(TINY, Prepared(tokenizer, documents, embeddings))


def advance(training: Training, start: int, stop: int) -> None:
    groups = endless(training.documents, TINY)
    for number, group in zip(range(stop), groups, strict=False):
        if number >= start:
            training.advance(group)


def test_fused_cross_entropy_is_cross_entropy() -> None:
    torch.manual_seed(0)
    states, table = (
        torch.randn(600, 32, requires_grad=True),
        torch.randn(70, 32, requires_grad=True),
    )
    bias, wanted, scale = (
        torch.randn(70, requires_grad=True),
        torch.randint(70, (600,)),
        torch.rand(600),
    )
    leaves = [states, table, bias]
    ours = torch.autograd.grad(
        weighted_cross_entropy(states, table, bias, wanted, scale)[0], leaves
    )
    plain = functional.cross_entropy(states @ table.T + bias, wanted, reduction="none")
    for our, their in zip(ours, torch.autograd.grad((plain * scale).sum(), leaves), strict=True):
        assert (our - their).norm() < 0.01 * their.norm()  # bfloat16 products


def test_relation_loss_is_zero_at_the_target_and_only_there() -> None:
    target, others = torch.randn(2, 5, 5), ~torch.eye(5, dtype=torch.bool).expand(2, 5, 5)
    attention = target.masked_fill(~others, -1e4).softmax(-1)[None]
    assert float(relation_loss(attention, target, others, torch.ones(2, 5))) == pytest.approx(
        0, abs=1e-5
    )
    assert float(relation_loss(attention.flip(-1), target, others, torch.ones(2, 5))) > 0.1


def test_restart_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole, first, second = tiny_training(), tiny_training(), tiny_training()
    advance(whole, 0, 6)
    advance(first, 0, 3)
    first.save(tmp_path / "checkpoint.pt")
    second.load(tmp_path / "checkpoint.pt")
    advance(second, 3, 6)
    assert second.step == whole.step == 6
    for name, tensor in whole.student.state_dict().items():
        assert torch.equal(tensor, second.student.state_dict()[name]), name


def test_wordnet_line_becomes_documents(tmp_path: Path) -> None:
    line = (
        "09213565 17 n 01 bank 0 000 | sloping land (especially the slope beside a body of water); "
        '"they pulled the canoe up on the bank"; "he sat on the bank of the river"  \n'
    )
    for part in ("noun", "verb", "adj", "adv"):
        (tmp_path / f"data.{part}").write_text(
            "  1 licence\n" + (line if part == "noun" else ""), encoding="latin-1"
        )
    (synset,) = read_synsets(tmp_path)
    assert short_documents(synset) == [
        "bank: sloping land (especially the slope beside a body of water).",
        "they pulled the canoe up on the bank.",
        "he sat on the bank of the river.",
    ]
