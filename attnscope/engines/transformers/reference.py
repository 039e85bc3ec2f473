"""The stages of eager attention in `transformers`, as a reference for checks."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.folder import Folder
from attnscope.engines.protocol import EngineSettings, LoadedModel
from attnscope.engines.transformers.engine import OpenedModel, TransformersEngine
from attnscope.engines.transformers.interface import AttentionCapture, capturing
from attnscope.engines.transformers.loading import load_model
from attnscope.model.attention import attend
from attnscope.model.batch import Batch, TokenTensors
from attnscope.model.inputs import AttentionInputs

_ATTENTIONS = {"": "attentions", "encoder": "attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}


@dataclass(frozen=True)
class ReferenceInputs:
    """What a reference is computed of.

    Attributes:
        model: The checkpoint, or the model itself where it is in memory.
        dtype: Type that the model runs in.
        device: Where.
        part: Which part's attention; None where there is only one.
        batch: One text.
        encoder_texts: What an encoder reads where the decoder's own attention is looked at.
    """

    model: Folder | LoadedModel
    dtype: torch.dtype
    device: torch.device
    part: str | None
    batch: Batch
    encoder_texts: TokenTensors | None


def eager_stages(work: ReferenceInputs) -> list[dict[str, Tensor]]:
    """Return every layer's stages, (1, H, Q, K) each, by the textbook's formulas; weights are those of transformers.

    Raises:
        AttnscopeError: transformers is not installed, does not know the model, or gives no weights.
    """
    if isinstance(work.model, Folder):
        loaded = load_model(work.model, work.dtype)
    else:
        assert isinstance(work.model, OpenedModel)
        loaded = work.model.loaded
    loaded.model.to(work.device)
    engine = TransformersEngine(
        replace(loaded, chosen=loaded.resolve_part(work.part)), EngineSettings((), encoder_texts=work.encoder_texts)
    )
    layers: list[dict[str, Tensor]] = []

    def on_attention(part: str, _: nn.Module, inputs: AttentionInputs) -> Tensor:
        if part == engine.loaded.chosen:
            layers.append(_stages(inputs))
        output = attend(inputs)
        assert output is not None
        return output

    with torch.inference_mode(), capturing(AttentionCapture(loaded.model, on_attention)):
        engine.run(work.batch)
    for stages, weights in zip(layers, _weights(engine, work.batch, len(layers)), strict=True):
        stages["weights"] = weights.float()
        stages["output"] = stages["weights"] @ stages.pop("values")
    return layers


def _stages(inputs: AttentionInputs) -> dict[str, Tensor]:
    groups, spec = inputs.q.shape[1] // inputs.k.shape[1], inputs.spec
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
    return {"scores": scores, "scaled": scaled, "masked": masked, "values": v.float()}


def _weights(engine: TransformersEngine, batch: Batch, n_layers: int) -> list[Tensor]:
    """Return what transformers' own eager attention gives for `output_attentions`."""
    model = engine.loaded.model
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        found = getattr(engine.run(batch, output_attentions=True), _ATTENTIONS[engine.loaded.chosen], None)
    if found is None or len(found) != n_layers or any(one is None for one in found):
        raise AttnscopeError("transformers returns no attention weights for this model")
    return list(found)
