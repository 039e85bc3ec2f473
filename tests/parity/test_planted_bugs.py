"""Bugs that have been made in tools like this one, planted on purpose: each fails the parity check by a wide margin."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from torch import Tensor, nn

from attnscope.base.model_config import Disentangled, ModelConfig, RelativeBias, Rope
from attnscope.checkpoints.families import FAMILIES
from attnscope.checkpoints.families.spec import Chunk, Stacked
from attnscope.model.inputs import AttentionInputs
from attnscope.model.layers import MLP
from attnscope.model.stack import Stack
from tests.helpers import native_stages, reference_stages
from tests.helpers.stage_differences import TOLERANCE, differences
from tests.helpers.tiny_models import TABLE, VOCAB
from tests.helpers.token_batches import batch

LARGE = 0.01  # a thousand times what parity allows


def _same(config: ModelConfig) -> ModelConfig:
    return config


def _untouched(stack: Stack) -> None:
    """Leave the loaded model as it is."""


@dataclass(frozen=True)
class Bug:
    """A mistake in the config that a family makes, or in the model that a loader fills."""

    row: str
    config: Callable[[ModelConfig], ModelConfig] = _same
    stack: Callable[[Stack], None] = _untouched


def _set(**fields: object) -> Callable[[ModelConfig], ModelConfig]:
    return lambda config: msgspec.structs.replace(config, **fields)


def _swap_queries_and_keys(stack: Stack) -> None:
    for block in stack.blocks:
        block.attention.q, block.attention.k = block.attention.k, block.attention.q


def _zero(*names: str) -> Callable[[Stack], None]:
    def spoil(stack: Stack) -> None:
        for name, parameter in stack.named_parameters():
            if name.endswith(names):
                parameter.data.zero_()

    return spoil


def _forget_qk_norm(stack: Stack) -> None:
    for block in stack.blocks:
        block.attention.q_norm = block.attention.k_norm = None


def _forget_embedding_norm(stack: Stack) -> None:
    stack.embed.norm = nn.Identity()


def _forget_distances_norm(stack: Stack) -> None:
    stack.embed.distances_norm = nn.Identity()


def _forget_sinks(stack: Stack) -> None:
    for block in stack.blocks:
        block.attention.sinks = None


def _in_experts(
    change: Callable[[MLP], tuple[nn.Module, nn.Module, nn.Module]],
) -> Callable[[Stack], None]:
    def spoil(stack: Stack) -> None:
        for block in stack.blocks:
            for expert in block.mlp.experts:
                expert.gate, expert.up, expert.down = change(expert)

    return spoil


def _reverse_experts(stack: Stack) -> None:
    for block in stack.blocks:
        block.mlp.experts = nn.ModuleList(reversed(block.mlp.experts))


def _transpose_down(stack: Stack) -> None:
    """Shapes do not show it where an expert is as wide as the model, as in gpt-oss."""
    for block in stack.blocks:
        for expert in block.mlp.experts:
            expert.down.weight = nn.Parameter(expert.down.weight.T.contiguous())


_BOUNDED = "gpt_oss no biases, one of three, other limit"
BUGS = {
    "queries and keys swapped (bert)": Bug("bert", stack=_swap_queries_and_keys),
    "queries and keys swapped (gpt2)": Bug("gpt2", stack=_swap_queries_and_keys),
    "queries and keys swapped (llama)": Bug(
        "llama ungrouped, biases", stack=_swap_queries_and_keys
    ),
    "rope removed": Bug("llama", _set(positions="none")),
    "wrong theta": Bug("llama", _set(rope=Rope(theta=500000.0))),
    "rope scaling forgotten (linear)": Bug("llama linear", _set(rope=Rope(theta=5000.0))),
    "rope scaling forgotten (llama3)": Bug("llama llama3", _set(rope=Rope(theta=5000.0))),
    "rope scaling forgotten (yarn)": Bug("llama yarn", _set(rope=Rope(theta=5000.0))),
    "whole head rotated": Bug("gpt_neox", _set(rope=Rope(fraction=1.0))),
    "residual in sequence": Bug("gpt_neox", _set(parallel=False)),
    "no scale": Bug("llama", _set(scale=1.0)),
    "scale of the head's width": Bug("gemma2", _set(scale=None)),
    "no soft-cap": Bug("gemma2", _set(softcap=None)),
    "norm without plus one": Bug("gemma2", _set(norm_plus_one=False)),
    "embedding not scaled": Bug("gemma2", _set(embedding_scale=None)),
    "window one too long": Bug("mistral", _set(windows=(5, 5, 5))),
    "window one too short": Bug("mistral", _set(windows=(3, 3, 3))),
    "windows on the wrong layers": Bug("gemma2", _set(windows=(None, 4, None))),
    "causal mask forgotten": Bug("bert decoder", _set(mask="bidirectional")),
    "segments forgotten": Bug("bert", stack=_zero("embed.segments.weight")),
    "positions forgotten": Bug("distilbert", stack=_zero("embed.positions.weight")),
    "positions not offset": Bug(
        "roberta", _set(padding_id=None, position_offset=0, max_positions=48)
    ),
    "biases forgotten": Bug("qwen2", stack=_zero("q.bias", "k.bias")),
    "norm forgotten on queries and keys": Bug("qwen3", stack=_forget_qk_norm),
    "norm after, not before": Bug("gpt2", _set(norm_order="post")),
    "sinks forgotten": Bug("gpt_oss", stack=_forget_sinks),
    "gate not bounded": Bug(_BOUNDED, _set(glu_limit=None)),
    "no one added": Bug("gpt_oss", _set(glu_plus_one=False)),
    "another activation": Bug("gpt_oss", _set(activation="silu")),
    "router without its bias": Bug("gpt_oss", stack=_zero("router.bias")),
    "an expert too few": Bug("mixtral", _set(experts_per_token=1)),
    "an expert too many": Bug("mixtral", _set(experts_per_token=3)),
    "gate and up swapped": Bug("mixtral", stack=_in_experts(lambda e: (e.up, e.gate, e.down))),
    "experts in another order": Bug("gpt_oss", stack=_reverse_experts),
    "bias by distance forgotten": Bug("mpnet", stack=_zero("relative_bias.weight")),
    "buckets of other distances": Bug("mpnet", _set(relative_bias=RelativeBias(max_distance=20))),
    "position table shifted": Bug(
        "mpnet", _set(padding_id=None, position_offset=0, max_positions=48)
    ),
    "linear bias forgotten": Bug("bloom", _set(positions="none")),
    "embedding not normed": Bug("bloom", stack=_forget_embedding_norm),
    "given scale not read": Bug("mpt six heads", _set(scale=None)),
    "norm of the MLP forgotten": Bug("falcon new decoder", stack=_zero("norm_mlp.weight")),
    "in sequence": Bug("falcon new decoder", _set(parallel=False)),
    "scaled": Bug("gpt_neo", _set(scale=None)),
    "local layers global": Bug("gpt_neo", _set(windows=())),
    "distances forgotten": Bug(
        "deberta_v2", stack=_zero("embed.distances.weight", "distances_norm.bias")
    ),
    "distances not normed": Bug("deberta_v2", stack=_forget_distances_norm),
    "one part forgotten": Bug(
        "deberta_v2", _set(disentangled=Disentangled(8, 48, False, True, True, True))
    ),
    "distances not in buckets": Bug(
        "deberta_v2", _set(disentangled=Disentangled(8, shared=True, norm=True))
    ),
    "scale of one part": Bug("deberta_v2", _set(scale=None)),
    "shares of the chosen experts alone": Bug("olmoe", _set(experts_share=True)),
    "shares of all experts": Bug("qwen3_moe", _set(experts_share=False)),
    "windows forgotten (olmo3)": Bug("olmo3", _set(windows=())),
    "window to one side a token too long": Bug("modernbert", _set(windows=(None, 5, None))),
    "rotary of the full layers in all": Bug("modernbert", _set(rope_local=None)),
    "halves rotated, not neighbours (glm)": Bug("glm", _set(rope=Rope(fraction=0.5))),
    "halves rotated, not neighbours (cohere)": Bug("cohere", _set(rope=Rope(5e5))),
    "what layers add not scaled": Bug("granite", _set(residual_scale=None)),
    "scores scaled by the head's width": Bug("granite", _set(scale=None)),
    "factor on embeddings forgotten": Bug("granitemoe", _set(embedding_scale=None)),
    "full layers rotated": Bug("cohere2", _set(rope_layers=())),
    "norms behind forgotten": Bug("glm4", stack=_zero("norm_attention_out.weight")),
    "scores of T5 scaled": Bug("t5", _set(scale=None)),
    "bias of T5 forgotten": Bug("t5", stack=_zero("relative_bias.weight")),
    "gate of T5 forgotten": Bug("t5 gated", stack=_zero("mlp.gate.weight")),
    "down not transposed": Bug(_BOUNDED, stack=_transpose_down),
}


def _difference(row_name: str, folder: Path, bug: Bug) -> float:
    row = next(row for row in TABLE if row.name == row_name)
    theirs = row.save(folder)
    stack = native_stages.open_stack(folder, bug.config)
    bug.stack(stack)
    padding = getattr(theirs.config, "pad_token_id", None) or 0
    b = batch([14, 9], vocabulary=VOCAB, padding=padding, segments=stack.config.n_segments)
    found = differences(
        native_stages.run(stack, b.ids, b.lengths, b.segments),
        reference_stages.run(theirs, b.ids, b.lengths, b.segments),
        b.lengths,
    )
    return max(found.values())


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_a_planted_bug_fails_parity(bug: Bug, tmp_path: Path) -> None:
    assert _difference(bug.row, tmp_path, bug) > LARGE


def test_wrong_order_of_grouped_heads_fails_parity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interleaved(inputs: AttentionInputs, heads: Tensor) -> Tensor:
        return heads % inputs.k.shape[1]

    monkeypatch.setattr(AttentionInputs, "group", interleaved)
    assert _difference("llama", tmp_path, Bug("llama")) > LARGE


def test_reading_interleaved_chunks_as_plain_thirds_fails_parity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = FAMILIES["gpt_neox"]
    plain = {
        n: Chunk(e.module, e.part) if isinstance(e, Chunk) else e for n, e in family.modules.items()
    }
    monkeypatch.setattr(
        "tests.helpers.native_stages.family_for", lambda *_: replace(family, modules=plain)
    )
    assert _difference("gpt_neox", tmp_path, Bug("gpt_neox")) > LARGE


def test_reading_alternating_rows_as_halves_fails_parity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = FAMILIES["gpt_oss"]
    halves = {
        n: replace(e, alternating=False) if isinstance(e, Stacked) else e
        for n, e in family.modules.items()
    }
    monkeypatch.setattr(
        "tests.helpers.native_stages.family_for", lambda *_: replace(family, modules=halves)
    )
    assert _difference("gpt_oss", tmp_path, Bug("gpt_oss")) > LARGE


def test_without_a_bug_the_same_check_passes(tmp_path: Path) -> None:
    """The margin above means something only if nothing planted is nothing found."""
    assert _difference("gemma2", tmp_path, Bug("gemma2")) < TOLERANCE
