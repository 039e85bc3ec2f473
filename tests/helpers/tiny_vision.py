"""Tiny random vision models of transformers, each saved with its image processor, and pictures."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf

from tests.helpers.tiny_models import raise_weights

PATCH = 8
_SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}
_SEEN = {**_SIZES, "image_size": 32, "patch_size": PATCH}
# Square, or the processor's own: the smaller side is resized, and the middle cropped.
_RESIZED = {"size": {"height": 32, "width": 32}}
_CROPPED = {
    "size": {"shortest_edge": 36},
    "crop_size": {"height": 32, "width": 32},
    "do_center_crop": True,
}


@dataclass(frozen=True)
class VisionRow:
    """A vision model: its class, what differs from the defaults of its config, and its processor."""

    name: str
    model: type[hf.PreTrainedModel]
    config: dict[str, Any]
    processor: str
    settings: dict[str, Any]
    before: tuple[str, ...]  # tokens before the patches
    # whether the model is one half of one that also reads texts
    towers: bool = field(default=False)
    # rows and columns of the patches of a picture of 30 × 44 pixels
    shape: tuple[int, int] = field(default=(4, 4))

    def make(self) -> hf.PreTrainedModel:
        torch.manual_seed(sum(map(ord, self.name)))
        config = self.model.config_class(**self.config)
        return raise_weights(self.model._from_config(config, attn_implementation="eager").eval())

    def save(self, path: Path) -> hf.PreTrainedModel:
        """Write model and processor into a folder, and return the part of the model that sees pictures."""
        model = self.make()
        model.save_pretrained(path)
        getattr(hf, self.processor)(**self.settings).save_pretrained(path)
        return model.vision_model if self.towers else model


def _text(**more: Any) -> dict[str, Any]:
    return {**_SIZES, "vocab_size": 60, "max_position_embeddings": 48, **more}


VISION = [
    VisionRow("vit", hf.ViTModel, _SEEN, "ViTImageProcessorPil", _RESIZED, ("cls",)),
    VisionRow(
        "deit", hf.DeiTModel, _SEEN, "DeiTImageProcessorPil", _CROPPED, ("cls", "distillation")
    ),
    VisionRow(
        "beit",
        hf.BeitModel,
        {**_SEEN, "use_relative_position_bias": True},
        "BeitImageProcessorPil",
        _RESIZED,
        ("cls",),
    ),
    VisionRow(
        "dinov2",
        hf.Dinov2Model,
        {**_SEEN, "mlp_ratio": 2},
        "BitImageProcessorPil",
        _CROPPED,
        ("cls",),
    ),
    VisionRow(
        "dinov2_with_registers",
        hf.Dinov2WithRegistersModel,
        {**_SEEN, "mlp_ratio": 2, "num_register_tokens": 3},
        "BitImageProcessorPil",
        _CROPPED,
        ("cls", "register:0", "register:1", "register:2"),
    ),
    VisionRow(
        "dinov3",
        hf.DINOv3ViTModel,
        {**_SEEN, "hidden_size": 32, "num_register_tokens": 2},
        "ViTImageProcessorPil",
        _RESIZED,
        ("cls", "register:0", "register:1"),
    ),
    VisionRow(
        "clip",
        hf.CLIPModel,
        {"vision_config": _SEEN, "text_config": _text()},
        "CLIPImageProcessorPil",
        _CROPPED,
        ("cls",),
        towers=True,
    ),
    VisionRow(
        "siglip",
        hf.SiglipModel,
        {"vision_config": _SEEN, "text_config": _text()},
        "SiglipImageProcessorPil",
        _RESIZED,
        (),
        towers=True,
    ),
    VisionRow(
        "siglip2",
        hf.Siglip2Model,
        {
            "vision_config": {**_SIZES, "patch_size": PATCH, "num_patches": 9},
            "text_config": _text(projection_size=_SIZES["hidden_size"]),
        },
        "Siglip2ImageProcessorPil",
        {"patch_size": PATCH, "max_num_patches": 16},  # 1 of which is padding
        (),
        towers=True,
        shape=(3, 5),
    ),
]


def picture(height: int = 30, width: int = 44, seed: int = 0) -> np.ndarray:
    """A picture of smooth colours, (height, width, 3), uint8."""
    draw = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    from PIL import Image

    return np.asarray(Image.fromarray(draw).resize((width, height), Image.Resampling.BICUBIC))
