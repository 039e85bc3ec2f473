"""The stages of eager attention in `transformers`, as a reference for checks."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.folder import Folder
from attnscope.engines.protocol import EngineSettings, LoadedModel
from attnscope.engines.transformers.engine import OpenedModel, TransformersEngine
from attnscope.engines.transformers.interface import capturing, through_interface
from attnscope.engines.transformers.loading import TransformersModel, load_model
from attnscope.engines.transformers.near_keys import from_band, from_blocks
from attnscope.model.attention import attended
from attnscope.model.batch import Batch, TokenTensors
from attnscope.model.inputs import AttentionInputs

_ATTENTIONS = {
    "": "attentions",
    "encoder": "attentions",
    "decoder": "decoder_attentions",
    "cross": "cross_attentions",
}


@dataclass(frozen=True)
class ReferenceInputs:
    """Inputs of a reference computation."""

    loaded: TransformersModel
    batch: Batch
    # texts of the encoder if the decoder's self-attention is shown
    encoder_texts: TokenTensors | None


def load_reference(
    model: Folder | LoadedModel, dtype: torch.dtype, device: torch.device, part: str | None
) -> TransformersModel:
    """Return a model of transformers: a checkpoint, or the one in memory; `part` is that whose attention is shown."""
    if isinstance(model, Folder):
        loaded = load_model(model, dtype)
    else:
        assert isinstance(model, OpenedModel)
        loaded = model.loaded
    loaded.model.to(device)
    return replace(loaded, chosen=loaded.resolve_part(part))


def eager_stages(work: ReferenceInputs) -> list[dict[str, Tensor]]:
    """Return every layer's stages, (1, H, Q, K) each, by textbook formulas, with transformers' weights.

    Of a model whose operators are followed, weights and output alone.
    """
    loaded = work.loaded
    engine = TransformersEngine(loaded, EngineSettings((), encoder_texts=work.encoder_texts))
    layers: list[dict[str, Tensor]] = []

    def on_attention(part: str, _: nn.Module, inputs: AttentionInputs) -> Tensor:
        if part == engine.loaded.chosen:
            layers.append(_stages(inputs))
        return attended(inputs)

    with torch.inference_mode(), capturing(loaded.capture(on_attention)):
        engine.run(work.batch)
    for stages, weights in zip(layers, _weights(engine, work.batch), strict=True):
        stages["weights"] = weights.float()
        left = stages.pop("left")
        # without the sink, which scales the output (Granite)
        if bool((stages["weights"].sum(-1) - 1 > -1e-4).all()):
            stages["weights"] = stages["weights"] * left[..., None]
        stages["output"] = stages["weights"] @ stages.pop("values")
    if through_interface(loaded.model):
        return layers
    # Operators may add the same number to all scores of a row (BLOOM), or multiply queries where we multiply scores.
    return [{"weights": stages["weights"], "output": stages["output"]} for stages in layers]


def _stages(inputs: AttentionInputs) -> dict[str, Tensor]:
    groups = inputs.q.shape[1] // inputs.k.shape[1]
    spec = inputs.spec
    k, v = (x.repeat_interleave(groups, dim=1) for x in (inputs.k, inputs.v))
    scores = (inputs.q @ k.mT).float()
    scaled = scores * spec.scale
    if spec.softcap is not None:
        scaled = torch.tanh(scaled / spec.softcap) * spec.softcap
    q_at = torch.arange(scores.shape[2], device=scores.device)[:, None]
    k_at = torch.arange(scores.shape[3], device=scores.device)[None]
    if spec.bias is not None:
        scaled = scaled + spec.bias(q_at, k_at, torch.arange(scores.shape[1], device=scores.device))
    allowed = spec.mask.allowed(q_at, k_at)
    masked = scaled if allowed is None else scaled.masked_fill(~allowed, -torch.inf)
    total = masked.logsumexp(-1)
    sinks = spec.sink_logits()
    # of weights on keys
    if sinks is None:
        left = torch.ones_like(total)
    else:
        left = (total - total.logaddexp(sinks)).exp()
    return {"scores": scores, "scaled": scaled, "masked": masked, "values": v.float(), "left": left}


def _weights(engine: TransformersEngine, batch: Batch) -> list[Tensor]:
    """Return `output_attentions` of transformers' eager attention, of the layers that have attention over tokens."""
    model = engine.loaded.model
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            weights = getattr(
                engine.run(batch, output_attentions=True), _ATTENTIONS[engine.loaded.chosen], None
            )
    finally:
        model.set_attn_implementation(implementation)  # for the next text
    # some models return those of other layers, too
    if weights is not None and len(weights) == engine.sizes[0]:
        weights = [weights[layer] for layer in engine.layers]
    if (
        weights is None
        or len(weights) != len(engine.layers)
        or any(layer is None for layer in weights)
    ):
        weights = None
    # SqueezeBERT and ProphetNet return scores under this name
    if weights is None or any(
        bool((layer.sum(-1) > 1.01).any()) or bool((layer < 0).any()) for layer in weights
    ):
        raise AttnscopeError("transformers returns no attention weights for this model")
    if engine.loaded.chosen in ("decoder", "cross"):
        return list(weights)
    return [_between_tokens(layer, batch.tokens.real.shape[1]) for layer in weights]


def _between_tokens(weights: Tensor, n: int) -> Tensor:
    """Return the weights between n tokens, (B, H, n, n); some models return those of near keys (see near_keys)."""
    if weights.ndim == 5:
        weights = from_blocks(weights, 0.0)
    elif weights.shape[3] != n:
        weights = from_band(weights.transpose(1, 2), 0.0)
    return weights[:, :, :n, :n]
