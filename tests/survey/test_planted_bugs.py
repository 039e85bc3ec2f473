"""A bug planted where roles are measured changes a number that the reference does not have."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnscope.findings import head_roles
from attnscope.model.recorders import KeyTokens, UniformRecorder, patterns
from attnscope.request.run_config import TextInput
from attnscope.studies.heads import measure
from attnscope.studies.heads import run as survey_run
from attnscope.studies.heads.measure import ProbePass, Sums
from attnscope.studies.heads.run import SurveyOptions, survey_heads
from tests.helpers import architectures
from tests.helpers import head_roles as reference
from tests.helpers.requests import requested
from tests.survey.test_roles import found_and_expected

TEXTS = (
    "the bank, by the river, was old. and we sat on it all day",
    "we sat on the old bank. water ran by it",
    "the river ran, all day, and it was old and we sat",
)
DRAWS = 3
VALUE_OUTPUT = {
    "bert": (
        "encoder.layer.{}.attention.self.value.weight",
        "encoder.layer.{}.attention.output.dense.weight",
    ),
    "gpt_oss": ("layers.{}.self_attn.v_proj.weight", "layers.{}.self_attn.o_proj.weight"),
}
Plant = tuple[Any, str, Any]


def copying_expected(kind: str, folder: Path) -> np.ndarray:
    weights = reference.Eager(folder).model.state_dict()
    found = np.zeros((2, 4))
    for layer in range(2):
        value, output = (weights[name.format(layer)].numpy() for name in VALUE_OUTPUT[kind])
        width = output.shape[1] // 4
        for head in range(4):
            shared = head // (4 // (len(value) // width))
            part = value[shared * width : (shared + 1) * width]
            found[layer, head] = reference.copying(
                part, output[:, head * width : (head + 1) * width]
            )
    return found


class Case:
    """A folder, and what the reference says of every role of its heads."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder = architectures.save(
            folder, architectures.make(kind, architectures.ONE_PART[kind])
        )
        _, self.expected = found_and_expected(self.folder, TEXTS, draws=DRAWS)
        self.expected["copying"] = copying_expected(kind, self.folder), np.full((2, 4), np.nan)

    def wrong(self, tolerance: float = 1e-3) -> set[str]:
        """Roles with another value in a survey, and, as `previous_error`, with another standard error."""
        run = requested(tuple(TextInput(text) for text in TEXTS), str(self.folder))
        return {
            name
            for role in survey_heads(run, SurveyOptions(draws=DRAWS)).roles
            for name, ours, theirs in zip(
                (role.name, f"{role.name}_error"),
                (role.values, role.errors),
                self.expected[role.name],
                strict=True,
            )
            if not np.allclose(ours, theirs, rtol=0, atol=tolerance, equal_nan=True)
        }


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return {kind: Case(kind, tmp_path_factory.mktemp(kind)) for kind in VALUE_OUTPUT}


def targets_moved(role: str, by: int) -> Callable[[], Plant]:
    """The keys of a role on random tokens are so many places further."""

    def plant() -> Plant:
        made = ProbePass.__init__

        def moved(self: ProbePass, probes: Any, *rest: Any) -> None:
            def one(name: str, rows: range, keys: range) -> tuple[range, range]:
                return rows, range(keys.start + by, keys.stop + by) if name == role else keys

            some = [
                replace(p, targets={name: one(name, *both) for name, both in p.targets.items()})
                for p in probes
            ]
            made(self, some, *rest)

        return ProbePass, "__init__", moved

    return plant


def offset_moved(place: int, by: int) -> Callable[[], Plant]:
    """The previous, next or own token is another one."""

    def plant() -> Plant:
        offsets = list(measure._OFFSETS)
        offsets[place] += by
        return measure, "_OFFSETS", offsets

    return plant


def computed_otherwise(
    role: str, compute: Callable[[Mapping[str, Any]], Any]
) -> Callable[[], Plant]:
    def plant() -> Plant:
        roles = [
            replace(one, compute=compute) if one.name == role else one
            for one in head_roles.HEAD_ROLES
        ]
        return survey_run, "HEAD_ROLES", tuple(roles)

    return plant


def mean_of_offsets(sums: Mapping[str, Any]) -> np.ndarray:
    """`positional` around the mean of the offsets' means, not of the weights."""
    n, total = sums["offset_cells"], sums["offset_sums"]
    means = np.where(n > 0, total / np.where(n > 0, n, 1), 0.0)
    middle = means.sum(-1) / (n > 0).sum(-1)
    every = sums["squares"] - n.sum(-1) * middle**2
    return np.asarray((n * (means - middle[..., None]) ** 2).sum(-1) / every)


def predicted_by_itself() -> Plant:
    """`content` beyond means that the weight itself is part of."""
    return patterns, "above_mean", lambda weights, total, count: weights - total / count


def predicted_by_offset_only() -> Plant:
    """A token that every row attends to counts as content."""
    right = torch.minimum
    return (
        patterns.torch,
        "minimum",
        lambda a, b, out=None: b.clone() if out is None else right(a, b, out=out),
    )


def error_of_other_n() -> Plant:
    """The standard error is too large by √(n / (n − 1))."""
    right = head_roles.jackknife

    def wrong(sums: Any, role: Any) -> Any:
        value, error = right(sums, role)
        return value, error * np.sqrt(len(sums["rows"]) / (len(sums["rows"]) - 1))

    return survey_run, "jackknife", wrong


def special_tokens_are_rows() -> Plant:
    def counted(batch: Any) -> torch.Tensor:
        found: torch.Tensor = batch.tokens.real.clone()
        found[:, :2] = False
        return found

    return measure, "counted_rows", counted


def second_token_is_a_row() -> Plant:
    def counted(batch: Any) -> torch.Tensor:
        found: torch.Tensor = batch.tokens.real & ~batch.tokens.special
        found[:, :1] = False
        return found

    return measure, "counted_rows", counted


def special_tokens_are_words() -> Plant:
    return KeyTokens, "content", lambda self: self.real


def hidden_keys_are_uniform() -> Plant:
    right = UniformRecorder.update

    def every_key(self: Any, tile: Any) -> Any:
        return right(self, replace(tile, masked=torch.zeros_like(tile.masked)))

    return UniformRecorder, "update", every_key


def negative_copying() -> Plant:
    right = measure._copying_of_heads
    return measure, "_copying_of_heads", lambda *given: -right(*given)


def size_of_eigenvalues() -> Plant:
    """Numbers that cancel are added up by their size."""

    def wrong(value: Any, output: Any, heads: int) -> Any:
        return np.ones((heads,))

    return measure, "_copying_of_heads", wrong


def heads_share_in_turns() -> Plant:
    """Query heads take key/value heads in turn, not in groups."""
    right = np.repeat
    return (
        measure.np,
        "repeat",
        lambda array, times, axis: (
            np.tile(array, (times, 1, 1)) if array.ndim == 3 else right(array, times, axis)
        ),
    )


def blocks_by_the_half() -> Plant:
    """Two texts share a block of the jackknife."""
    right = Sums.add

    def halved(self: Sums, name: str, layer: int, sequences: Any, found: Any) -> None:
        right(self, name, layer, [n // 2 for n in sequences], found)

    return Sums, "add", halved


PLANTS: dict[str, tuple[str, Callable[[], Plant], str]] = {
    "previous, one too far": ("gpt_oss", offset_moved(0, -1), "previous"),
    "next, one too far": ("bert", offset_moved(1, 1), "next"),
    "self, one back": ("gpt_oss", offset_moved(2, -1), "self"),
    "local window, one too far": ("bert", offset_moved(-1, 1), "local"),
    "induction, one too far": ("gpt_oss", targets_moved("induction", 1), "induction"),
    "induction, the token itself": ("bert", targets_moved("induction", -1), "induction"),
    "duplicate, one too far": ("gpt_oss", targets_moved("duplicate", 1), "duplicate"),
    "second copy": ("bert", targets_moved("second-order", 15), "second-order"),
    "retrieval, one back": ("bert", targets_moved("retrieval", -1), "retrieval"),
    "standard error": ("bert", error_of_other_n, "previous_error"),
    "blocks": ("bert", blocks_by_the_half, "uniform_error"),
    "special tokens are rows": ("bert", special_tokens_are_rows, "previous"),
    "the second token is a row": ("gpt_oss", second_token_is_a_row, "first"),
    "special tokens are words": ("bert", special_tokens_are_words, "content"),
    "uniform over hidden keys": ("gpt_oss", hidden_keys_are_uniform, "uniform"),
    "positional, mean of means": (
        "bert",
        computed_otherwise("positional", mean_of_offsets),
        "positional",
    ),
    "content, predicted by itself": ("gpt_oss", predicted_by_itself, "content"),
    "content, predicted by its offset only": ("bert", predicted_by_offset_only, "content"),
    "copying, the sign": ("bert", negative_copying, "copying"),
    "copying, sizes": ("bert", size_of_eigenvalues, "copying"),
    "copying, groups": ("gpt_oss", heads_share_in_turns, "copying"),
}


def test_a_survey_without_a_bug_is_right(cases):
    assert {kind: case.wrong(1e-4) for kind, case in cases.items()} == {
        "bert": set(),
        "gpt_oss": set(),
    }


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(cases, monkeypatch, name):
    kind, plant, role = PLANTS[name]
    with monkeypatch.context() as patch:
        patch.setattr(*plant())
        assert role in cases[kind].wrong()
