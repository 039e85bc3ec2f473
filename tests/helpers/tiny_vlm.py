"""Tiny random language models that read pictures, each saved with its processor and a tokenizer of words."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers as hf

from tests.helpers.tiny_models import raise_weights

WORDS = "what is on the left ? a cat sits here user assistant".split()
QUESTION = "what is on the left ?"
_VOCAB = 120
_TEXT = {"vocab_size": _VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 40, "max_position_embeddings": 512, "bos_token_id": 1,
         "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
_SEEN = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}
_CHAT = (
    "{% for message in messages %}<|user|>{% for part in message.content %}"
    "{% if part.type == 'image' %}IMAGE{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}<|assistant|>"
)


@dataclass(frozen=True)
class PromptRow:
    """A model, and how its processor is made of a tokenizer."""

    name: str
    make: Callable[[dict[str, int]], hf.PreTrainedModel]  # of the ids of its special tokens
    processor: Callable[[Any, Path], None]  # saves the processor's files into a folder
    special: dict[str, str]  # special tokens by the name that the tokenizer has for them
    image: str  # what stands for a picture in a template
    # rows and columns of each grid of a picture
    shapes: list[tuple[int, int]] = field(default_factory=list)

    def save(self, path: Path, *, template: bool = False) -> hf.PreTrainedModel:
        """Write model, tokenizer and processor into a folder."""
        tokenizer = _tokenizer(self.special)
        ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in self.special.items()}
        torch.manual_seed(sum(map(ord, self.name)))
        model = raise_weights(self.make(ids).eval())
        model.set_attn_implementation("eager")
        model.save_pretrained(path)
        self.processor(tokenizer, path)
        tokenizer.save_pretrained(path)
        if template:
            (path / "chat_template.jinja").write_text(_CHAT.replace("IMAGE", self.image))
        return model


def _tokenizer(special: dict[str, str]) -> Any:
    names = ["<pad>", "<s>", "</s>", "<unk>", "<|user|>", "<|assistant|>", "\n", *special.values()]
    vocabulary = {word: n for n, word in enumerate([*dict.fromkeys(names), *WORDS])}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    plain.add_special_tokens(list(dict.fromkeys(names)))
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens={
            name: token for name, token in special.items() if not name.startswith("_")
        },
    )


def _save(processor: Any, path: Path) -> None:
    processor.save_pretrained(path)


def _saved(make: Callable[[Any], Any]) -> Callable[[Any, Path], None]:
    return lambda tokenizer, path: _save(make(tokenizer), path)


_SQUARE = {"size": {"height": 32, "width": 32}}


def _llava(ids: dict[str, int]) -> hf.PreTrainedModel:
    return hf.LlavaForConditionalGeneration(
        hf.LlavaConfig(
            text_config=hf.LlamaConfig(**_TEXT),
            vision_config=hf.CLIPVisionConfig(**_SEEN, image_size=32, patch_size=8),
            image_token_id=ids["image_token"],
            vision_feature_layer=-1,
        )
    )


def _llava_processor(tokenizer: Any) -> Any:
    images = hf.CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    return hf.LlavaProcessor(
        images,
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


_HYBRID = {"num_hidden_layers": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
           "linear_num_value_heads": 4}  # fmt: skip


def _qwen(version: str) -> Callable[[dict[str, int]], hf.PreTrainedModel]:
    def make(ids: dict[str, int]) -> hf.PreTrainedModel:
        config_class = getattr(hf, f"{version}Config")
        rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}
        vision: dict[str, Any] = {
            "depth": 2,
            "num_heads": 4,
            "patch_size": 4,
            "spatial_merge_size": 2,
        }
        if version == "Qwen2VL":
            vision |= {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2}
        else:
            vision |= {"hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 40}
        if version == "Qwen2_5_VL":
            vision |= {"window_size": 16, "fullatt_block_indexes": [1]}
        text = {**_TEXT, "rope_parameters": rope}
        if version == "Qwen3VL":
            vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 16}
            text |= {"head_dim": 8}
        if version == "Qwen3_5":
            vision |= {"num_position_embeddings": 16}
            text |= _HYBRID | {
                "head_dim": 16,
                "rope_parameters": rope | {"partial_rotary_factor": 0.5},
            }
        config = config_class(
            text_config=text,
            vision_config=vision,
            image_token_id=ids["image_token"],
            video_token_id=ids["video_token"],
            vision_start_token_id=ids["vision_start_token"],
            vision_end_token_id=ids["vision_end_token"],
        )
        return getattr(hf, f"{version}ForConditionalGeneration")(config)

    return make


def _qwen_processor(tokenizer: Any, path: Path) -> None:
    images = hf.Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, size={"shortest_edge": 64, "longest_edge": 40 * 64}
    )
    images.save_pretrained(path)


_QWEN = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}


def _gemma3(ids: dict[str, int]) -> hf.PreTrainedModel:
    return hf.Gemma3ForConditionalGeneration(
        hf.Gemma3Config(
            text_config={**_TEXT, "head_dim": 8, "sliding_window": 8},
            vision_config={**_SEEN, "image_size": 32, "patch_size": 4},
            mm_tokens_per_image=16,
            image_token_id=ids["image_token"],
            boi_token_id=ids["boi_token"],
            eoi_token_id=ids["eoi_token"],
        )
    )


def _gemma4(ids: dict[str, int]) -> hf.PreTrainedModel:
    return hf.Gemma4ForConditionalGeneration(
        hf.Gemma4Config(
            text_config={
                **_TEXT,
                "head_dim": 8,
                "global_head_dim": 8,
                "sliding_window": 8,
                "num_hidden_layers": 3,
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
                "vocab_size_per_layer_input": _VOCAB,
                "hidden_size_per_layer_input": 8,
                "use_bidirectional_attention": "vision",
            },
            vision_config={
                **_SEEN,
                "num_key_value_heads": 4,
                "head_dim": 8,
                "patch_size": 4,
                "pooling_kernel_size": 3,
                "position_embedding_size": 64,
            },
            audio_config=None,
            image_token_id=ids["image_token"],
            boi_token_id=ids["boi_token"],
            eoi_token_id=ids["eoi_token"],
            video_token_id=ids["_video"],
            audio_token_id=ids["audio_token"],
        )
    )


def _gemma4_processor(tokenizer: Any, path: Path) -> None:
    images = hf.Gemma4ImageProcessorPil(patch_size=4, max_soft_tokens=70, pooling_kernel_size=3)
    images.save_pretrained(path)
    (path / "processor_config.json").write_text('{"processor_class": "Gemma4Processor"}')


_GEMMA4 = {
    "image_token": "<|image|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "audio_token": "<|audio|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
    "_video": "<|video|>",
}


def _gemma3_processor(tokenizer: Any) -> Any:
    return hf.Gemma3Processor(hf.Gemma3ImageProcessorPil(**_SQUARE), tokenizer, image_seq_length=16)


def _paligemma(ids: dict[str, int]) -> hf.PreTrainedModel:
    return hf.PaliGemmaForConditionalGeneration(
        hf.PaliGemmaConfig(
            text_config={**_TEXT, "head_dim": 8, "model_type": "gemma"},
            vision_config={
                **_SEEN,
                "image_size": 32,
                "patch_size": 8,
                "model_type": "siglip_vision_model",
            },
            image_token_id=ids["image_token"],
            projection_dim=32,
        )
    )


def _paligemma_processor(tokenizer: Any) -> Any:
    images = hf.SiglipImageProcessorPil(**_SQUARE)
    images.image_seq_length = 16
    return hf.PaliGemmaProcessor(images, tokenizer)


def _idefics3(name: str) -> Callable[[dict[str, int]], hf.PreTrainedModel]:
    def make(ids: dict[str, int]) -> hf.PreTrainedModel:
        config_class = getattr(hf, f"{name}Config")
        config = config_class(
            text_config={**_TEXT, "model_type": "llama"},
            vision_config={**_SEEN, "image_size": 32, "patch_size": 4},
            image_token_id=ids["image_token"],
            scale_factor=2,
        )
        return getattr(hf, f"{name}ForConditionalGeneration")(config)

    return make


def _idefics3_processor(name: str) -> Callable[[Any, Path], None]:
    def save(tokenizer: Any, path: Path) -> None:
        images = getattr(hf, f"{name}ImageProcessorPil")(
            size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
        )
        images.save_pretrained(path)
        settings = f'{{"processor_class": "{name}Processor", "image_seq_len": 16}}'
        (path / "processor_config.json").write_text(settings)

    return save


_IDEFICS = {
    "image_token": "<image>",
    "_fake": "<fake_token_around_image>",
    "_global": "<global-img>",
    **{f"_row{r}{c}": f"<row_{r}_col_{c}>" for r in range(1, 4) for c in range(1, 4)},
    "_end": "<end_of_utterance>",
}


def _internvl(ids: dict[str, int]) -> hf.PreTrainedModel:
    return hf.InternVLForConditionalGeneration(
        hf.InternVLConfig(
            text_config={**_TEXT, "model_type": "qwen2"},
            vision_config={**_SEEN, "image_size": [32, 32], "patch_size": [4, 4]},
            image_token_id=ids["context_image_token"],
            image_seq_length=16,
            downsample_ratio=0.5,
        )
    )


def _internvl_processor(tokenizer: Any, path: Path) -> None:
    images = hf.GotOcr2ImageProcessorPil(**_SQUARE, crop_to_patches=True, max_patches=6)
    images.save_pretrained(path)
    settings = '{"processor_class": "InternVLProcessor", "image_seq_length": 16}'
    (path / "processor_config.json").write_text(settings)


_INTERN = {
    "context_image_token": "<IMG_CONTEXT>",
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "video_token": "<video>",
}


def _pixtral(ids: dict[str, int]) -> hf.PreTrainedModel:
    return hf.LlavaForConditionalGeneration(
        hf.LlavaConfig(
            text_config=hf.MistralConfig(**_TEXT, head_dim=8),
            vision_config=hf.PixtralVisionConfig(**_SEEN, image_size=64, patch_size=8),
            image_token_id=ids["image_token"],
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        )
    )


def _pixtral_processor(tokenizer: Any, path: Path) -> None:
    """The class itself needs torchvision."""
    images = hf.PixtralImageProcessorPil(
        size={"longest_edge": 48}, patch_size={"height": 8, "width": 8}
    )
    images.save_pretrained(path)
    (path / "processor_config.json").write_text(
        '{"processor_class": "PixtralProcessor", "patch_size": 8}'
    )


def _mistral3(ids: dict[str, int]) -> hf.PreTrainedModel:
    return hf.Mistral3ForConditionalGeneration(
        hf.Mistral3Config(
            text_config=hf.MistralConfig(**_TEXT, head_dim=8),
            vision_config=hf.PixtralVisionConfig(**_SEEN, image_size=64, patch_size=4),
            image_token_index=ids["image_token"],
            spatial_merge_size=2,
        )
    )


def _mistral3_processor(tokenizer: Any, path: Path) -> None:
    """Save Pixtral's, with two patches in a row and column to a token."""
    images = hf.PixtralImageProcessorPil(
        size={"longest_edge": 48}, patch_size={"height": 4, "width": 4}
    )
    images.save_pretrained(path)
    settings = '{"processor_class": "PixtralProcessor", "patch_size": 4, "spatial_merge_size": 2}'
    (path / "processor_config.json").write_text(settings)


_PIXTRAL = {
    "image_token": "[IMG]",
    "image_break_token": "[IMG_BREAK]",
    "image_end_token": "[IMG_END]",
}

# Of a picture of 30 × 44 pixels.
PROMPTS = [
    PromptRow(
        "llava", _llava, _saved(_llava_processor), {"image_token": "<image>"}, "<image>", [(4, 4)]
    ),
    PromptRow(
        "qwen2_vl",
        _qwen("Qwen2VL"),
        _qwen_processor,
        _QWEN,
        "<|vision_start|><|image_pad|><|vision_end|>",
        [(4, 6)],
    ),
    PromptRow(
        "qwen2_5_vl",
        _qwen("Qwen2_5_VL"),
        _qwen_processor,
        _QWEN,
        "<|vision_start|><|image_pad|><|vision_end|>",
        [(4, 6)],
    ),
    PromptRow(
        "qwen3_vl",
        _qwen("Qwen3VL"),
        _qwen_processor,
        _QWEN,
        "<|vision_start|><|image_pad|><|vision_end|>",
        [(4, 6)],
    ),
    PromptRow(
        "gemma3",
        _gemma3,
        _saved(_gemma3_processor),
        {
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
        "<start_of_image>",
        [(4, 4)],
    ),
    PromptRow(
        "paligemma",
        _paligemma,
        _saved(_paligemma_processor),
        {"image_token": "<image>"},
        "<image>",
        [(4, 4)],
    ),
    PromptRow(
        "idefics3",
        _idefics3("Idefics3"),
        _idefics3_processor("Idefics3"),
        _IDEFICS,
        "<image>",
        [(8, 8), (4, 4)],
    ),
    PromptRow(
        "smolvlm",
        _idefics3("SmolVLM"),
        _idefics3_processor("SmolVLM"),
        _IDEFICS,
        "<image>",
        [(8, 8), (4, 4)],
    ),
    PromptRow(
        "internvl", _internvl, _internvl_processor, _INTERN, "<IMG_CONTEXT>", [(8, 12), (4, 4)]
    ),
    PromptRow(
        "qwen3_5",
        _qwen("Qwen3_5"),
        _qwen_processor,
        _QWEN,
        "<|vision_start|><|image_pad|><|vision_end|>",
        [(4, 6)],
    ),
    PromptRow("gemma4", _gemma4, _gemma4_processor, _GEMMA4, "<|image|>", [(6, 10)]),
    PromptRow("mistral3", _mistral3, _mistral3_processor, _PIXTRAL, "[IMG]", [(4, 6)]),
    PromptRow("pixtral", _pixtral, _pixtral_processor, _PIXTRAL, "[IMG]", [(4, 6)]),
]
