"""Compare every text model of the installed transformers with eager transformers, and write docs/architectures.md.

    python -m tests.families.census                      every type, and the table
    python -m tests.families.census qwen2_vl falcon_h1   these types, and a line for each
    python -m tests.families.census --minutes 20         as many types as fit, and the table of those

Each type is built as a tiny random folder, in a process of its own. Its weights are compared in every layer with
attention, alone, in a padded batch and in a decoder, then logits, a continuation, and the predictions after one head is
cut, against a model of transformers whose attention function is watched.
"""

import argparse
import json
import multiprocessing
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers as hf

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.base.layer_kinds import mixes_unseen, spell_unseen
from attnscope.checkpoints.families import native_family
from tests.helpers.architectures import write_tokenizer
from tests.helpers.hybrids import HYBRIDS
from tests.helpers.tiny_models import raise_weights
from tests.helpers.watched_attention import WatchedAttention

TABLE = Path(__file__).parent.parent.parent / "docs" / "architectures.md"
TEXT, SHORT = "the bank by the river was old", "the river"
# of float32 after layers of large random weights: another order of sums changes 5e-5
TOLERANCE = 1e-4
_SECONDS = 300  # that one type may take
_MOST_PARAMETERS = 120_000_000
VOCAB = 128
# Sizes of fields by their name, the first that fits; a model with fields of other names keeps their defaults.
_SIZES: tuple[tuple[tuple[str, ...], int], ...] = (
    (("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size", "entity_vocab_size"), VOCAB),
    (("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "depth",
      "num_decoder_layers", "num_encoder_layers"), 4),
    (("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
      "decoder_attention_heads", "swa_num_attention_heads"), 4),
    (("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads"), 2),
    (("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "projection_dim", "word_embed_proj_dim",
      "out_hidden_size", "vision_dim"), 32),
    (("head_dim", "d_kv", "qk_nope_head_dim", "v_head_dim", "swa_head_dim"), 8),
    (("qk_rope_head_dim", "rotary_dim"), 4),
    (("intermediate_size", "ffn_dim", "d_ff", "d_inner", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner", "hidden_dim",
      "moe_intermediate_size", "shared_expert_intermediate_size", "ffn_hidden_size", "intermediate_size_mlp"), 40),
    (("max_position_embeddings", "n_positions", "max_seq_len", "max_source_positions", "max_target_positions"), 64),
    (("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    (("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k"), 2),
    (("n_group", "topk_group", "n_input_layers", "n_output_layers"), 1),
    (("q_lora_rank", "kv_lora_rank"), 16),
    (("sliding_window", "sliding_window_size", "window_size", "local_attention"), 4),
    (("mamba_d_ssm",), 64),
    (("mamba_n_heads", "mamba_d_head", "mamba_num_heads", "mamba_head_dim", "linear_key_head_dim",
      "linear_value_head_dim"), 8),
    (("mamba_d_state", "ssm_state_size", "mamba_chunk_size", "chunk_size"), 16),
    (("linear_num_value_heads",), 4),
    (("linear_num_key_heads",), 2),
    (("indexer_n_heads", "indexer_head_dim", "index_n_heads"), 8),
    (("indexer_budget", "index_topk"), 4),
    (("indexer_compress_ratio", "index_kpool"), 2),
    (("text_hidden_size",), 32),
    (("adapter_hidden_size", "projector_hidden_size", "vision_adapter_dim"), 32),
    (("indexer_kv_heads", "n_shared_experts"), 1),
    (("image_size",), 16),
    (("patch_size",), 4),
)  # fmt: skip
_BY_NAME = {name: size for names, size in _SIZES for name in names}
_UNSET = (
    "vocab_size",
    "n_routed_experts",
    "n_shared_experts",
    "moe_intermediate_size",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "indexer_n_heads",
    "indexer_head_dim",
    "indexer_budget",
    "indexer_compress_ratio",
    "indexer_kv_heads",
)  # fmt: skip; fields that are set even if a config has none by default
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


@dataclass
class Finding:
    """What came of one type."""

    model_type: str
    verdict: str  # `right`, `wrong`, `refused`, `crash`, `not text` or `not built`
    model: str = ""  # class of transformers
    engine: str = ""
    layers: str = ""  # those with attention, and all
    # kinds of paths without softmax whose matrix is shown, and why that of others is not
    mixing: str = "–"
    reason: str = ""  # of what is not right
    softmax: bool = True  # it has softmax attention over the tokens of a text
    differences: dict[str, float] = field(default_factory=dict)  # largest of each of MEASURES

    def line(self) -> str:
        """Return the row of the table."""
        cells = [
            f"{self.differences[name]:.0e}" if name in self.differences else "–"
            for name in MEASURES
        ]
        escaped = self.reason.replace("|", "\\|").replace("<", "&lt;")
        softmax = "yes" if self.softmax else "no"
        cells = [
            f"`{self.model_type}`",
            self.verdict,
            softmax,
            self.engine,
            self.layers,
            *cells,
            self.mixing,
            escaped,
        ]
        return f"| {' | '.join(cells)} |"


# Types that compute no softmax over keys: states, a Fourier transform, hashes, and low-rank products in its place.
_NO_SOFTMAX = frozenset({"falcon_mamba", "fnet", "mamba", "mamba2", "mra", "rwkv", "xlstm", "yoso"})
# The part of a model that reads text alone, where its class does not, or where it is called otherwise.
_TEXT_PART = {
    "llama4": "language_model",
    "clvp": "text_encoder_model",
    "bridgetower": "text_model",
    "dia": "encoder",
    "pe_audio": "text_model",
    "musicgen": "text_encoder",
    "musicgen_melody": "text_encoder",
    "shieldgemma2": "model",
}
_DRAFTS = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
# Fields without which a class refuses its own defaults.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma4_assistant": {"text_config": {"model_type": "gemma4_text", **_DRAFTS}}
}
# Types that random weights do not show, and why.
_NOT_RANDOM = {
    "fastspeech2_conformer_with_hifigan": "random weights make sounds so long that they fill the memory"
}
# Classes that checkpoints of a type are saved with, where transformers' own tables name others.
_SAVED_AS = {
    "shieldgemma2": "ShieldGemma2ForImageClassification",
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
}

MEASURES = ("weights", "padded", "decoder", "logits", "continuation", "cut")


def default_config(config_class: Any) -> Any:
    """Return the config of a class without arguments, or with those that its own defaults lack."""
    return config_class(**_DEFAULTS.get(config_class.model_type, {}))


def text_class(config_class: Any) -> Any:
    """Return the class that a checkpoint of this config is saved with: one that predicts, or the base model."""
    tables = ("CAUSAL_LM", "MULTIMODAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM")
    default = default_config(config_class)
    if default.model_type in _SAVED_AS:
        return getattr(hf, _SAVED_AS[default.model_type])
    if hasattr(default, "text_config"):  # the class for its text alone takes the config of the text
        tables = ("MULTIMODAL_LM", "CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM")
    for name in reversed(tables) if default.is_encoder_decoder else tables:
        table: Any = getattr(hf, f"MODEL_FOR_{name}_MAPPING")
        if config_class in table:
            return table[config_class]
    if config_class not in hf.MODEL_MAPPING:
        return None
    found = hf.MODEL_MAPPING[config_class]
    return found[0] if isinstance(found, list | tuple) else found


def main_input(config_class: Any, kind: Any) -> str:
    """Return the name of what a model takes; `input_ids` if it takes text."""
    if kind is None:
        return "no text"
    name = str(kind.main_input_name)
    base: Any = hf.MODEL_MAPPING.get(config_class, kind)
    base = base[0] if isinstance(base, list | tuple) else base
    takes = [*signature(kind.forward).parameters]
    if name == "input_ids" and name not in takes:  # the name that a class has by default
        return takes[1]
    return (
        str(base.main_input_name)
        if base.main_input_name in ("input_features", "input_values")
        else name
    )


def small_config(
    config_class: Any, fixed: Mapping[str, Any] = MappingProxyType({}), **changes: Any
) -> Any:
    """Return a config with small sizes, in its nested configs as well; `fixed` are given to their classes as they are.

    `fixed` has a mapping for each nested config that has such fields.
    """
    default = default_config(config_class)
    fields = {name: value for name, value in vars(default).items() if not name.startswith("_")}
    chosen: dict[str, Any] = {}
    attributes = {
        **fields,
        **{name: fields.get(real) for name, real in config_class.attribute_map.items()},
    }
    for name, value in attributes.items():
        if isinstance(value, hf.PreTrainedConfig):
            nested = fixed.get(name, {})
            chosen[name] = small_config(type(value), nested, **changes)
        elif name in _IDS:
            chosen[name] = _IDS[name]
        elif (
            name.endswith(("_token_id", "_token_index"))
            and isinstance(value, int)
            and value >= VOCAB
        ):
            chosen[name] = (
                VOCAB
                - 1
                - len([other for other in chosen if other.endswith(("_token_id", "_token_index"))])
            )
        elif name in _BY_NAME and (type(value) is int or (value is None and name in _UNSET)):
            chosen[name] = _BY_NAME[name]
    if "qk_rope_head_dim" in chosen:
        chosen.pop("head_dim", None)  # follows from the parts of a head (latent attention)
    table = fields.get("rope_parameters")
    if table and not (
        isinstance(table, dict) and table.get("rope_type") == "default"
    ):  # such as the axial one of images
        changes = {name: value for name, value in changes.items() if name != "rope_parameters"}
    written = default.to_dict()
    chosen |= {
        name: value for name, value in changes.items() if name in attributes or name in written
    }
    nested_configs = {
        name for name, value in attributes.items() if isinstance(value, hf.PreTrainedConfig)
    }
    return config_class(
        **chosen | {name: value for name, value in fixed.items() if name not in nested_configs}
    )


_ROPE = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
}
_PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_HALF_ROPE = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 0]},
    "num_key_value_heads": 4,
}
_KIMI = {
    "linear_attn_config": {"num_heads": 4, "head_dim": 8, "short_conv_kernel_size": 3, "kda_layers": [1, 3],
                           "full_attn_layers": [2, 4]},
    "num_key_value_heads": 4,
}  # fmt: skip
_HYBRID: dict[str, Any] = {}  # the config of a hybrid type that is written by hand
_CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"num_hidden_layers": 8},
    {"attn_layer_indices": [1, 3], "layer_group_size": 2, "full_attention_interval": 2},
    {"num_key_value_heads": 4},
    {
        "num_key_value_heads": 4,
        "per_layer_config": {"1": {"num_attention_heads": 2, "num_key_value_heads": 2}},
    },
    {"sliding_window": 4},
    {"num_experts_per_tok": 1},
    {"attention_types": [[["global", "local"], 2]]},
    {"rope_parameters": dict.fromkeys(("full_attention", "sliding_attention"), _PLAIN_ROPE)},
    {"layer_types": ["mamba", "attention"] * 2},
    {"layer_types": ["linear_attention", "full_attention"] * 2, "num_key_value_heads": 4},
    {"layer_types": ["conv", "full_attention"] * 2},
    _KIMI,
    _ROPE,
    _HALF_ROPE,
    {**_ROPE, "head_dim": 8},
    {"head_dim": 16},
    {"head_dim": 4, "num_key_value_heads": 4},
    {"hidden_size": 64},
    {"hidden_size": 48},
    {"hidden_size": 128, "projection_dim": 128},
    {"coordinate_size": 6, "shape_size": 4},
    {
        "rope_parameters": {**_PLAIN_ROPE, "mrope_section": [1, 1, 2]},
        "moe_intermediate_size": [40, 40],
    },
)


# Fields of single types.
_FIELDS: dict[str, dict[str, Any]] = {
    # published configs have it, and the class has no default
    "qwen2_5_omni_thinker": {"vision_start_token_id": 6},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 6},
    # ids of the two words that it decides between
    "shieldgemma2": {"yes_token_index": 5, "no_token_index": 6},
    # the default shares keys of more layers than there are
    "gemma3n_text": {"num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2,
                     "num_hidden_layers": 4, "activation_sparsity_pattern": [0.0] * 4},
    "glm5_next_text": {"num_key_value_heads": 4, "qk_rope_head_dim": 0, "num_hidden_layers": 4,
                       "layer_types": ["linear_attention", "full_attention"] * 2},
    # published configs have a base for rotary positions
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0},
             "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32}},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    # less than the text
    "longformer": {"attention_window": 4},
    "led": {"attention_window": 4},
    "longt5": {"local_radius": 2},
    # layers with a window have sizes of their own
    "dots3_note_text": {
        "num_key_value_heads": 4, "num_hidden_layers": 4, "layer_types": ["indexed_attention", "sliding_attention"] * 2,
        "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_q_lora_rank": 16, "swa_kv_lora_rank": 16,
        "swa_head_dim": 12, "swa_qk_nope_head_dim": 8, "swa_v_head_dim": 8, "shared_experts_intermediate_size": 40,
    },
    "gemma4_assistant": {"text_config": {**_DRAFTS, "num_kv_shared_layers": 4}},
    # sizes of nested configs that depend on each other, on a list, or on a table of names
    "apertus1p5": {
        "text_config": {"vocab_size": 256}, "image_token_offset": 128, "audio_token_offset": 192,
        "vision_config": {"base_channels": 32, "codebook_size": 64, "num_res_blocks": 1},
        "audio_config": {"codebook_size": 64, "codebook_dim": 32, "decoder_hidden_size": 32, "decoder_num_layers": 1,
                         "decoder_intermediate_size": 40},
    },
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "chameleon": {"vq_config": {"base_channels": 32}, "vocabulary_map": {"<image>": 5}},
    "csm": {"codec_config": {"upsample_groups": 32}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"] * 2}},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 40}},
    "emu3": {"vq_config": {"base_channels": 32, "codebook_size": 64}, "vocabulary_map": {"<image>": 5}},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 8}},
    "gradium_phonon_tts": {"flow_head_config": {"condition_dim": 32}, "num_key_value_heads": 4},
    "granite4_vision": {"spatial_target_layers": [0, 1, 2, 3], "deepstack_layer_map": [[-1, 1]],
                        "vision_config": {"hidden_size": 64}, "downsample_rate": "1/2"},
    "kyutai_speech_to_text": {"codec_config": {"upsample_groups": 32}},
    "molmo2": {"adapter_config": {"vision_feature_layer": [2, 1]}},
    "nemo_speechlm": {
        "audio_config": {
            "asr_config": {"num_key_value_heads": 4},
            "diarization_config": {"head_config": {"audio_hidden_size": 32}, "audio_config": {"num_key_value_heads": 4}},
        },
        "word_timestamp_config": {"num_key_value_heads": 4},
    },
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "pocket_tts": {"flow_head_config": {"condition_dim": 32}},
    "t5gemma2_encoder": {"text_config": {"dropout_rate": 0.0}},
    "vibevoice": {"audio_config": {"num_filters": 2}, "semantic_model_config": {"num_filters": 2}},
    "vibevoice_asr": {"acoustic_tokenizer_encoder_config": {"num_filters": 2},
                      "semantic_tokenizer_encoder_config": {"num_filters": 2}},
}  # fmt: skip
_FIELDS["glm5_next"] = {"text_config": _FIELDS["glm5_next_text"]}
_FIELDS["dots3_note"] = {
    "text_config": _FIELDS["dots3_note_text"],
    "vision_config": {"adapter_in_dim": 32, "adapter_out_dim": 32, "per_layer_config": None},
    "audio_config": {"adapter_input_size": 32, "adapter_out_dim": 32},
}


def build(model_type: str, kind: Any, **settings: Any) -> Any:
    """Return a tiny random model that has attention over two tokens; else one that can be built, or raise why not.

    `settings` are fields of its config.
    """
    config_class = hf.CONFIG_MAPPING[model_type]
    built = None
    reason: Exception | None = None
    for changes in (_HYBRID, *_CHANGES) if model_type in HYBRIDS else _CHANGES:
        try:
            if changes is _HYBRID:
                config = config_class(**HYBRIDS[model_type])
            else:
                config = small_config(
                    config_class, _FIELDS.get(model_type, {}), **{**changes, **settings}
                )
            if model_type == "encoder-decoder":
                config.decoder.is_decoder = True
                config.decoder.add_cross_attention = True
            with torch.device("meta"):
                count = sum(
                    p.numel()
                    for p in kind._from_config(config, attn_implementation="eager").parameters()
                )
            if count > _MOST_PARAMETERS:
                raise ValueError(f"{count:,} parameters")
            torch.manual_seed(0)
            model = raise_weights(
                kind._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
            )
            built = model if built is None else built
            if watch_attention(model, torch.tensor([[5, 6]])).weights:
                return model
        except Exception as e:  # whatever its config makes of small sizes
            reason = reason or e
    if built is None:
        raise reason or ValueError("no config")
    return built


def examine(model_type: str) -> Finding:
    """Build a type, and compare what attnscope shows of it."""
    if model_type in _NOT_RANDOM:
        return Finding(model_type, "not built", reason=_NOT_RANDOM[model_type])
    try:
        config_class = hf.CONFIG_MAPPING[model_type]
        kind = text_class(config_class)
        takes = main_input(config_class, kind)
    # transformers names a class that it does not have, or that needs another package
    except Exception as e:
        return Finding(model_type, "not built", reason=_said(e))
    if takes != "input_ids":
        return Finding(model_type, "not text", reason=f"takes {takes}")
    try:
        model = build(model_type, kind)
    except Exception as e:
        return Finding(model_type, "not built", kind.__name__, reason=_said(e))
    native = native_family({"model_type": model_type, "architectures": [kind.__name__]})
    finding = Finding(model_type, "right", kind.__name__, "native" if native else "transformers")
    finding.softmax = model_type not in _NO_SOFTMAX
    with tempfile.TemporaryDirectory() as folder:
        try:
            model.save_pretrained(folder)
            write_tokenizer(Path(folder))
            # as it is read: sinusoidal positions, for one, are not stored
            model = kind.from_pretrained(
                folder, attn_implementation="eager", dtype=torch.float32
            ).eval()
        except Exception as e:  # small sizes that its conversion of weights does not take
            return Finding(model_type, "not built", kind.__name__, reason=_said(e))
        try:
            _compare(model, folder, finding)
        except AttnscopeError as e:
            finding.verdict, finding.reason = (
                "refused",
                f"{e.message}; {e.hint}".removesuffix("; None"),
            )
        except Exception as e:
            finding.verdict, finding.reason = "crash", _said(e)
    worst = {
        name: gap
        for name, gap in finding.differences.items()
        if not gap <= TOLERANCE * (10 if name == "logits" else 1)
    }
    if worst and finding.verdict == "right":
        finding.verdict, finding.reason = (
            "wrong",
            ", ".join(f"{name} differ by {gap:.1e}" for name, gap in worst.items()),
        )
    return finding


def _compare(model: Any, folder: str, finding: Finding) -> None:
    options: dict[str, Any] = {"model": folder, "engine": finding.engine}
    shown: dict[str, Any] = {"layer": "all", "head": "all", "stages": ("weights",)}
    halves = text_part(model).config.is_encoder_decoder
    if halves:
        _compare_decoder(model, options | shown, finding)
        options["part"] = "encoder"
    report = attnscope.inspect([TEXT, SHORT], **options, **shown)
    finding.mixing = mixing_kinds(report.data.provenance.layer_kinds, options)
    if not report.data.texts[0].heads:
        message = "no layer of this model has attention over tokens"
        raise AttnscopeError(
            message, hint="attnscope run and attnscope heads show its [matrices](hybrids.md)"
        )
    gaps = []
    for text in report.data.texts:
        ids = torch.tensor([[token.id for token in text.tokens]])
        watched = watch_attention(model, ids)
        ours: dict[int, list[Any]] = {}
        for head in text.heads:
            ours.setdefault(int(head.layer), []).append(
                torch.from_numpy(head.stages["weights"].copy())
            )
        theirs = watched.weights[: len(ours)] if halves else watched.weights
        finding.layers = f"{len(ours)} of {max(len(ours), _count_layers(model))}"
        if len(ours) != len(theirs):
            raise ValueError(f"{len(ours)} layers are shown, eager transformers has {len(theirs)}")
        mine = [torch.stack(heads) for heads in ours.values()]
        gaps.append(
            max(float((a - b[0][: len(a)]).abs().max()) for a, b in zip(mine, theirs, strict=True))
        )
    finding.differences |= {"weights": gaps[0], "padded": gaps[1]}
    predictions = None if halves else attnscope.inspect(TEXT, **options).predictions
    if not predictions:
        return
    prediction = predictions[0]
    ids = torch.tensor([[token.id for token in report.data.texts[0].tokens]])
    watched = watch_attention(model, ids)
    prompt = ids[:, : prediction.position + 1] if model.can_generate() else ids
    logits = watched.logits[0, prediction.position]
    finding.differences["logits"] = max(
        abs(float(logits[token.id]) - token.logit) for token in prediction.tokens
    )
    causal = all(float(weights.triu(1).abs().max()) == 0 for weights in watched.weights)
    # a cache of keys is not that of a text that is read both ways
    if not (model.can_generate() and causal):
        return
    longer = attnscope.inspect(TEXT, **options, generate=3).data.texts[0]
    with torch.inference_mode():
        continued = text_part(model).generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=3, do_sample=False
        )
    finding.differences["continuation"] = float(
        [token.id for token in longer.tokens] != continued[0].tolist()
    )
    layer = int(report.data.texts[0].heads[0].layer)
    cut: Any = attnscope.ablate(TEXT, **options, cut=f"L{layer}H1").data.effects[0]
    if cut.predictions and watched.cuts:
        at = cut.predictions[0].position
        after = watch_attention(model, ids, cut=(0, 1)).logits[0, at].softmax(-1)
        finding.differences["cut"] = max(
            abs(float(after[t.id]) - t.after) for t in cut.predictions[0].tokens
        )


@torch.inference_mode()
def _compare_decoder(model: Any, options: dict[str, Any], finding: Finding) -> None:
    """Compare the weights of the second of two halves: between its own tokens, and on those of the first."""
    texts: dict[str, Any] = {}
    for part in ("decoder", "cross"):
        try:
            texts[part] = attnscope.inspect(SHORT, **options, context=TEXT, part=part).data.texts[0]
        except AttnscopeError as e:
            finding.verdict = "refused"
            finding.reason = f"{part}: {e.message}; {e.hint}"
            return
    ids = torch.tensor([[token.id for token in texts["cross"].tokens]])
    read = torch.tensor([[token.id for token in texts["cross"].sources]])
    output = model(
        input_ids=read,
        decoder_input_ids=ids,
        use_cache=False,
        **_more_inputs(model, read),
        output_attentions=True,
    )
    gaps = []
    for part, text in texts.items():
        expected = output[f"{part}_attentions"]
        for head in text.heads:
            theirs = expected[head.layer][0, head.head]
            gaps.append(
                float((torch.from_numpy(head.stages["weights"].copy()) - theirs).abs().max())
            )
    finding.differences["decoder"] = max(gaps)


def mixing_kinds(layers: list[Any], options: dict[str, Any]) -> str:
    """Name the kinds of layers without softmax whose matrices are shown, and say why those of others are not."""
    if not any(map(mixes_unseen, layers)):
        return "–"
    reasons = spell_unseen(layers)
    try:
        text = attnscope.inspect(
            TEXT, **options, measure="mixing", layer="all", head=0, top=1
        ).data.texts[0]
    except AttnscopeError as e:
        return f"none ({reasons or e.message})"
    shown = dict.fromkeys(text.mixing.kinds)
    missed = [
        n
        for n, paths in enumerate(layers)
        if mixes_unseen(paths) and n not in {u.layer for u in text.mixing.units}
    ]
    others = f"; not of layers {missed} ({reasons})" if missed else ""
    return ", ".join(shown) + others


def text_part(model: Any) -> Any:
    """Return the part of a model that reads text alone; the model, if all of it does."""
    model_type = model.config.model_type
    if model_type in _TEXT_PART or (
        hasattr(model, "get_text_features") and not model.can_generate()
    ):
        return model.get_submodule(_TEXT_PART.get(model_type, "text_model"))
    return model


@torch.inference_mode()
def watch_attention(
    model: Any, ids: torch.Tensor, cut: tuple[int, int] | None = None
) -> WatchedAttention:
    """Run eager transformers, and see its weights and logits; `cut` is a call of attention, and a head."""
    model_type = model.config.model_type
    runs = text_part(model)
    halves = runs.config.is_encoder_decoder
    more = {"decoder_input_ids": ids} if halves else {}
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **_more_inputs(model, ids)}
    with WatchedAttention(cut) as watched:
        output = runs(**inputs, **more)
    # without what each token attends to in earlier layers (Inkling 2)
    watched.weights = [
        weights for weights in watched.weights if weights.shape[1:3] != (ids.shape[1], 1)
    ]
    seen = watched.weights
    if halves:  # its decoder may call the attention interface where its encoder does not
        with WatchedAttention() as of_encoder:
            model.get_encoder()(**inputs)
        seen = of_encoder.weights
    if not seen:  # it computes attention by operators of its own
        output = runs(**inputs, **more, output_attentions=True)
        weights = output.get("encoder_attentions") or output["attentions"]
        # what SqueezeBERT and ProphetNet return as attentions are scores
        scores = model_type in ("squeezebert", "prophetnet")
        watched.weights = [layer.softmax(-1) if scores else layer for layer in weights]
        if model_type in ("longformer", "led", "longt5"):
            watched.weights = [between_tokens(layer, ids.shape[1]) for layer in weights]
        watched.cuts = False
    watched.logits = output.get("logits", output.get("prediction_logits"))
    return watched


def _more_inputs(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return what a model needs beside token ids: no place on a page, and the first language."""
    if model.config.model_type in ("bros", "udop"):
        return {"bbox": torch.zeros(*ids.shape, 4)}
    if model.config.model_type == "xmod":
        return {"lang_ids": torch.zeros(len(ids), dtype=torch.int64)}
    return {}


def between_tokens(weights: torch.Tensor, n: int) -> torch.Tensor:
    """Return the weights between n tokens, (B, H, n, n), of those that models return for the keys near each token.

    These are (B, H, N, 2 w + 1) of Longformer and LED, and (B, blocks, H, size, 3 size) of LongT5.
    """
    heads = weights.shape[1] if weights.ndim == 4 else weights.shape[2]
    all_keys = torch.zeros(len(weights), heads, n, n)
    for q in range(n):
        for k in range(n):
            if weights.ndim == 4:
                place = k - q + weights.shape[3] // 2
                row = weights[:, :, q]
            else:
                size = weights.shape[3]
                place = k - (q // size - 1) * size
                row = weights[:, q // size, :, q % size]
            if 0 <= place < row.shape[2]:
                all_keys[:, :, q, k] = row[:, :, place]
    return all_keys


def _count_layers(model: Any) -> int:
    text = text_part(model).config.get_text_config()
    return int(getattr(text, "num_hidden_layers", 0) or 0)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def _child(model_type: str, pipe: Any) -> None:
    """Examine a type in a process of its own, which ends after a while whatever it does."""
    signal.alarm(_SECONDS)
    torch.set_num_threads(1)
    logging: Any = hf.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    pipe.send(asdict(examine(model_type)))


def examine_apart(model_type: str) -> Finding:
    """Return what came of a type; a process that ends is a crash."""
    context = multiprocessing.get_context("fork")
    mine, other = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(model_type, other))
    process.start()
    other.close()
    try:
        return Finding(**mine.recv())
    except EOFError:
        process.join()
        return Finding(model_type, "crash", reason=f"the process ended with {process.exitcode}")
    finally:
        process.join()


def document(findings: list[Finding], left: list[str]) -> str:
    """Return docs/architectures.md."""
    counts = Counter(finding.verdict for finding in findings)
    text = [finding for finding in findings if finding.verdict not in ("not text", "not built")]
    right = counts["right"]
    attending = [finding for finding in text if finding.softmax]
    shown = sum(finding.verdict == "right" for finding in attending)
    others = "".join(
        f", {counts[verdict]} {verdict}"
        for verdict in ("wrong", "refused", "crash")
        if counts[verdict]
    )
    lines = [
        "# Architectures",
        "",
        "![What a checkpoint has: which layers have attention over tokens, and which are of another kind](layers.svg)",
        "",
        f"Every type of model in `transformers` {hf.__version__} that takes text, built as a tiny random folder and "
        "compared with eager `transformers`: the largest difference of weights in all layers with attention, alone and "
        "in a padded batch, of the decoder of two halves (its own tokens, and those of the encoder), of logits, of a "
        "continuation (0 or 1), and of predictions after a head is cut.",
        "The next to last column names the kinds of layers without softmax whose [exact matrix](hybrids.md) is shown, "
        "and says why that of others is not.",
        "`python -m tests.families.census` writes this file.",
        "",
        f"{right} of {len(text)} types are right{others}.",
        f"Types with softmax attention over text: {shown} of {len(attending)} right, "
        f"{shown / max(len(attending), 1):.1%}.",
        f"{counts['not built']} more could not be built from small sizes, and {counts['not text']} take no text.",
    ]
    if left:
        lines.append(
            f"The last run had a limit of time: {len(left)} types, of text or not, were not examined."
        )
    lines += [
        "",
        "| type | verdict | softmax | engine | layers with attention "
        "| weights | padded | decoder | logits | continuation | cut | matrices without softmax | reason |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
        *(finding.line() for finding in sorted(text, key=lambda finding: finding.model_type)),
    ]
    unbuilt = sorted(
        f"- `{finding.model_type}`: {_why_unbuilt(finding.reason)}"
        for finding in findings
        if finding.verdict == "not built"
    )
    if unbuilt:
        lines += ["", "Not built:", "", *unbuilt]
    return "\n".join(lines) + "\n"


def _why_unbuilt(reason: str) -> str:
    """Return why a model could not be built from small sizes, without paths of this machine."""
    if reason in _NOT_RANDOM.values():
        return reason
    if package := re.search(r"requires the (\S+) library", reason):
        return f"needs the package {package[1]}"
    if name := re.search(r"Could not find (\w+) neither in", reason):
        return f"transformers names its class {name[1]}, but does not export it"
    if count := re.search(r"ValueError: ([\d,]+) parameters", reason):
        return f"{count[1]} parameters, since some of its sizes cannot be set"
    sentence = re.split(r"\w+Error: ", reason.partition(". ")[0])[-1]
    return f"transformers does not take the small sizes: {sentence}"


def main() -> int:
    """Examine types; 1 if any is wrong or crashes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*", help="types to examine; all, and the table, without")
    parser.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="time after which no other type is begun",
    )
    parser.add_argument(
        "--log", type=Path, help="file of findings, a JSON line each; those that it holds are kept"
    )
    asked = parser.parse_args()
    findings, begun = [], time.monotonic()
    if asked.log and asked.log.exists():
        findings = [Finding(**json.loads(line)) for line in asked.log.read_text().splitlines()]
    held = {finding.model_type for finding in findings}
    types = [name for name in asked.types or sorted(hf.CONFIG_MAPPING) if name not in held]
    if types:
        torch.set_num_threads(1)
        examine("gpt2")  # so that the processes share what it imports
    while types and time.monotonic() - begun < asked.minutes * 60:
        finding = examine_apart(types.pop(0))
        findings.append(finding)
        if finding.verdict != "not text":
            print(finding.line(), flush=True)
        if asked.log:
            with asked.log.open("a") as file:
                file.write(json.dumps(asdict(finding)) + "\n")
    if not asked.types:
        TABLE.write_text(document(findings, types))
    return int(any(finding.verdict in ("wrong", "crash") for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
