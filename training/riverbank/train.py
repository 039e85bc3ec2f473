"""Train the student on the prepared data, from the last checkpoint if there is one, and keep its curve."""

import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from transformers import BertConfig, BertForMaskedLM

from training.riverbank.batches import Document, collate, epoch, piece_counts
from training.riverbank.objective import Losses, key_weights, losses
from training.riverbank.prepare import Prepared
from training.riverbank.settings import CACHE, Settings

CHECKPOINT = CACHE / "checkpoint.pt"
PARTS = ("masked", "causal", "relation_both", "relation_past")


def new_student(settings: Settings) -> BertForMaskedLM:
    """An untrained student without dropout: few epochs of short texts don't overfit four million parameters."""
    config = BertConfig(
        architectures=["BertForMaskedLM"],
        vocab_size=settings.vocab_size,
        hidden_size=settings.d_model,
        num_hidden_layers=settings.n_layers,
        num_attention_heads=settings.n_heads,
        intermediate_size=settings.d_mlp,
        max_position_embeddings=settings.max_positions,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config._attn_implementation = "eager"
    return BertForMaskedLM(config)


class Training:
    """One run: student, optimiser, random state, and the curve so far."""

    def __init__(self, settings: Settings, prepared: Prepared) -> None:
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.documents = prepared.training
        self.weights = key_weights(
            torch.from_numpy(piece_counts(self.documents, settings.vocab_size))
        ).float()
        self.student = new_student(settings)
        table = self.student.bert.embeddings.word_embeddings.weight
        table.data.copy_(prepared.embeddings * settings.embedding_scale)
        self.optimiser = self._new_optimiser()
        self.draw = torch.Generator().manual_seed(settings.seed)
        self.step = 0
        self.seconds = 0.0
        self.curve: list[dict[str, float]] = []

    def _new_optimiser(self) -> torch.optim.AdamW:
        parameters = list(self.student.parameters())
        groups = [
            {
                "params": [p for p in parameters if p.ndim > 1],
                "weight_decay": self.settings.weight_decay,
            },
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.settings.learning_rate, betas=(0.9, 0.98))

    def run(self, progress: Progress) -> None:
        """Train to the last step, with a checkpoint and a point of the curve at regular steps."""
        task = progress.add_task("student", total=self.settings.steps, completed=self.step)
        recent: list[list[float]] = []
        for group in itertools.islice(
            endless(self.documents, self.settings), self.step, self.settings.steps
        ):
            started = time.monotonic()
            found = self.advance(group)
            self.seconds += time.monotonic() - started
            recent.append([float(getattr(found, part).detach()) for part in PARTS])
            progress.update(
                task,
                completed=self.step,
                description="student, nats {:.2f} {:.2f}".format(*recent[-1]),
            )
            if self.step % self.settings.checkpoint_every == 0 or self.step == self.settings.steps:
                means = torch.tensor(recent).mean(0).tolist()
                self.curve.append({"step": self.step, **dict(zip(PARTS, means, strict=True))})
                recent = []
                self.save(CHECKPOINT)

    def advance(self, group: list[int]) -> Losses:
        """One optimiser step on one batch."""
        for parameters in self.optimiser.param_groups:
            parameters["lr"] = self.settings.learning_rate * schedule(self.step, self.settings)
        batch = collate([self.documents[index] for index in group])
        found = losses(
            self.student, batch, self.weights, list(self.settings.relation_heads), self.draw
        )
        self.optimiser.zero_grad()
        found.total().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self.optimiser.step()
        self.step += 1
        return found

    def save(self, path: Path) -> None:
        """Write everything that a restart needs, whole or not at all."""
        state = {
            "settings": self.fingerprint(),
            "student": self.student.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "draw": self.draw.get_state(),
            "step": self.step,
            "seconds": self.seconds,
            "curve": self.curve,
        }
        unfinished = path.with_suffix(".unfinished")
        torch.save(state, unfinished)
        unfinished.replace(path)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint of the same settings; refuse one of others."""
        state: dict[str, Any] = torch.load(path, weights_only=True)
        if state["settings"] != self.fingerprint():
            raise SystemExit(f"{path} was made with other settings; remove it to start again")
        self.student.load_state_dict(state["student"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.draw.set_state(state["draw"])
        self.step, self.seconds, self.curve = state["step"], state["seconds"], state["curve"]

    def fingerprint(self) -> str:
        """The settings that a checkpoint depends on: all but the last step, which may be put off."""
        return json.dumps(
            {key: value for key, value in asdict(self.settings).items() if key != "steps"}
        )


def endless(documents: list[Document], settings: Settings) -> Iterator[list[int]]:
    """Batches of epoch after epoch."""
    for number in itertools.count():
        yield from epoch(documents, settings.batch_tokens, settings.seed, number)


def schedule(step: int, settings: Settings) -> float:
    """Linear warm-up, constant, then linear down to 2 % of the learning rate over the last three tenths."""
    left = (settings.steps - step) / (0.3 * settings.steps)
    return min(1.0, (step + 1) / settings.warmup) * max(0.02, min(1.0, left))
