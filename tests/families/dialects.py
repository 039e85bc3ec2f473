"""Random config.json files of every native family, in every dialect that transformers reads.

A case is a whole file: sizes, switches and rotary parameters that are legal for its family, and beside them what
published checkpoints and hand-made ones do to them: keys left out, null, moved, said twice, or named as in an older
release.
"""

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from attnscope.checkpoints.families import FAMILIES
from attnscope.checkpoints.families.spec import ACTIVATIONS

VOCAB, POSITIONS = 40, 48
ABSENT = object()  # the key is left out
ACTS = [*ACTIVATIONS, "gelu_fast", "mish"]
LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Case:
    """A drawn config.json."""

    seed: int  # what it was drawn from
    raw: dict[str, Any]  # the file
    # the checkpoint is saved with a head for language modelling, so that its names have a prefix
    with_head: bool

    @property
    def model_type(self) -> str:
        """The family's name in the file."""
        return str(self.raw["model_type"])


def draw(seed: int, model_types: tuple[str, ...] = tuple(FAMILIES)) -> Case:
    """Draw the config.json of this number; families take turns."""
    rng = Random(seed)
    model_type = model_types[seed % len(model_types)]
    keys = _DRAWN[model_type](_Drawing(rng, model_type))
    keys |= _spoilt(rng, keys)
    raw = {
        "model_type": model_type,
        **{name: value for name, value in keys.items() if value is not ABSENT},
    }
    return Case(seed, json.loads(json.dumps(raw)), rng.random() < 0.3)


def _spoilt(rng: Random, keys: dict[str, Any]) -> dict[str, Any]:
    """One key less, null, or of another number, in one file of five."""
    if rng.random() > 0.2:
        return {}
    name = rng.choice(sorted(keys))
    value = keys[name]
    other = value + rng.choice([1, 2]) if type(value) in (int, float) else ABSENT
    return {name: rng.choice([ABSENT, ABSENT, None, other])}


class _Drawing:
    """Chooses values for one file."""

    def __init__(self, rng: Random, model_type: str) -> None:
        self.rng, self.model_type = rng, model_type
        self.n_layers, self.n_heads, self.d_head = (
            rng.choice([1, 2, 3, 3]),
            rng.choice([2, 4]),
            rng.choice([4, 8, 8]),
        )
        self.width = self.n_heads * self.d_head

    def of(self, *usual: Any, odd: tuple[Any, ...] = ()) -> Any:
        """One of the usual values, or in one file of 25, where there are any, of the odd ones."""
        return self.rng.choice(odd if odd and self.rng.random() < 0.04 else usual)

    def common(self) -> dict[str, Any]:
        """What every file may say, and no attention depends on."""
        dtype = self.of("float32", "bfloat16", "float16", None)
        found = {
            "torch_dtype": self.of(ABSENT, dtype),
            "dtype": self.of(ABSENT, ABSENT, dtype),
            "architectures": self.of(ABSENT, ["Model"]),
            "transformers_version": self.of(ABSENT, "4.30.2", "5.0.0"),
            "use_cache": self.of(ABSENT, True, False),
            "tie_word_embeddings": self.of(ABSENT, True, False),
            "initializer_range": self.of(ABSENT, 0.02),
            "bos_token_id": self.of(ABSENT, 1),
            "eos_token_id": self.of(ABSENT, 2, [2, 3]),
            "pad_token_id": self.of(0, 1, 4, odd=(ABSENT, None)),
            "chunk_size_feed_forward": self.of(ABSENT, ABSENT, 0),
            "pruned_heads": self.of(ABSENT, ABSENT, {}),
            "is_decoder": self.of(ABSENT, ABSENT, False),
            "add_cross_attention": self.of(ABSENT, ABSENT, False),
        }
        return {name: value for name, value in found.items() if value is not ABSENT}

    def llama_like(self) -> dict[str, Any]:
        """Sizes and switches of the families that follow Llama."""
        return {
            **self.common(),
            "vocab_size": VOCAB,
            "hidden_size": self.width,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "intermediate_size": self.of(20, 28),
            "max_position_embeddings": POSITIONS,
            "num_key_value_heads": self.of(1, 2, self.n_heads, odd=(ABSENT, None)),
            "hidden_act": self.of("silu", *ACTIVATIONS, ABSENT, odd=(*ACTS, None)),
            "rms_norm_eps": self.of(1e-6, 1e-5, 1e-3, ABSENT),
            "attention_dropout": self.of(ABSENT, 0.0, 0.1),
        }

    def biases(self) -> dict[str, Any]:
        """Switches of biases."""
        return {
            "attention_bias": self.of(ABSENT, True, False),
            "mlp_bias": self.of(ABSENT, True, False),
        }

    def theta(self) -> float:
        """The base of rotary positions."""
        return self.of(20.0, 500.0, 10000, 1e6)

    def scaling(
        self, kinds: tuple[str, ...] = ("default", "linear", "llama3", "yarn")
    ) -> dict[str, Any]:
        """A rotary table without its base."""
        kind = self.of(*kinds, odd=("dynamic", "longrope", "su", "ntk", None))
        table: dict[str, Any] = {self.of("rope_type", "rope_type", "type"): kind}
        if self.rng.random() < 0.06:
            table["type"] = self.of(kind, "linear")
        if kind != "default":
            table["factor"] = self.of(2.0, 4, 8.0, 1.5, odd=(0.5, None, ABSENT))
        if kind == "llama3":
            table |= {
                "low_freq_factor": self.of(1.0, 1, 0.5),
                "high_freq_factor": self.of(4.0, 2.0, odd=(ABSENT,)),
            }
        if kind == "longrope" and self.model_type == "phi3":
            del table["factor"]
            for name in ("short_factor", "long_factor"):
                pairs = self.of(self.d_head // 2, odd=(self.d_head // 4,))
                table[name] = [self.of(1.0, 1.5, 3) + pair for pair in range(pairs)]
            table |= {
                "factor": self.of(ABSENT, ABSENT, 2.0),
                "attention_factor": self.of(ABSENT, ABSENT, 1.3),
            }
        if kind in ("llama3", "yarn"):
            table["original_max_position_embeddings"] = self.of(8, 12, 24, ABSENT, odd=(None,))
        if kind == "yarn":
            table |= {
                "beta_fast": self.of(ABSENT, ABSENT, 32, 3.5, 2, odd=(0, None)),
                "beta_slow": self.of(ABSENT, ABSENT, 1, 0.3, odd=(0, None)),
                "attention_factor": self.of(ABSENT, ABSENT, 1.3, odd=(None,)),
                "mscale": self.of(ABSENT, ABSENT, 1.5, 0.707, 1, odd=(0, None)),
                "mscale_all_dim": self.of(ABSENT, ABSENT, 0.5, 0.707, 1, odd=(0, None)),
                "truncate": self.of(ABSENT, ABSENT, True, False, odd=(None,)),
            }
        return {name: value for name, value in table.items() if value is not ABSENT}

    def rotary(
        self, theta: str = "rope_theta", fraction: tuple[str, ...] = (), **more: Any
    ) -> dict[str, Any]:
        """Rotary parameters in the older dialect, in the newer one, or in a mixture."""
        base, share = self.theta(), self.of(0.25, 0.5, 1.0)
        table = self.scaling(**more) if self.rng.random() < 0.6 else {}
        older: dict[str, Any] = {
            theta: self.of(base, base, ABSENT),
            "rope_scaling": self.of(table or None, table, odd=({},)),
        }
        if fraction:
            older[fraction[0]] = self.of(share, share, ABSENT)
        newer = {"rope_theta": base, **table}
        if fraction and self.rng.random() < 0.7:
            newer["partial_rotary_factor"] = share
        if self.rng.random() < 0.1:
            newer.pop("rope_theta")
        dialect = self.of(*["older", "newer"] * 4, "both", "moved", "neither", "other name")
        if dialect == "older":
            return older
        if dialect == "newer":
            return {"rope_parameters": newer}
        if dialect == "both":
            return {**older, "rope_parameters": newer}
        if dialect == "moved":  # beside the table, as half-converted files have them
            outside = {
                name: newer.pop(name)
                for name in ("rope_theta", "partial_rotary_factor")
                if name in newer
            }
            return {**outside, self.of("rope_parameters", "rope_scaling"): newer}
        if dialect == "other name":
            return {
                "rope_theta": base,
                "partial_rotary_factor": share,
                "rotary_pct": self.of(share, ABSENT),
            }
        return {}

    def windows(self, *odd: Any) -> dict[str, Any]:
        """A window and the list of layers that have it."""
        return {
            "sliding_window": self.of(2, 3, 5, odd=odd or (None, ABSENT)),
            "layer_types": self.of(ABSENT, ABSENT, [self.of(*LAYER_TYPES) for _ in range(self.n_layers)], odd=(
                None, [], ["full_attention"] * (self.n_layers + 1), ["chunked_attention"] * self.n_layers)),
        }  # fmt: skip


def _bert(d: _Drawing) -> dict[str, Any]:
    return {
        **d.common(),
        "vocab_size": VOCAB,
        "hidden_size": d.width,
        "num_hidden_layers": d.n_layers,
        "num_attention_heads": d.n_heads,
        "intermediate_size": 20,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": d.of(1, 2, 3, odd=(ABSENT, None, 0)),
        "layer_norm_eps": d.of(1e-12, 1e-5, 1e-3, ABSENT),
        "hidden_act": d.of("gelu", *ACTIVATIONS, ABSENT, odd=(*ACTS, None)),
        "hidden_dropout_prob": d.of(ABSENT, 0.1),
        "is_decoder": d.of(ABSENT, False, True),
        "position_embedding_type": d.of(ABSENT, "absolute", odd=("relative_key", None)),
    }


def _distilbert(d: _Drawing) -> dict[str, Any]:
    return {
        **d.common(),
        "vocab_size": VOCAB,
        d.of("dim", odd=("hidden_size",)): d.width,
        d.of("n_layers", odd=("num_hidden_layers",)): d.n_layers,
        d.of("n_heads", odd=("num_attention_heads",)): d.n_heads,
        "hidden_dim": 20,
        "max_position_embeddings": POSITIONS,
        "activation": d.of("gelu", *ACTIVATIONS, ABSENT, odd=(*ACTS, None)),
        "sinusoidal_pos_embds": d.of(ABSENT, True, False),
        "tie_weights_": d.of(ABSENT, True),
        "is_decoder": d.of(ABSENT, ABSENT, False, odd=(True,)),
        "layer_norm_eps": d.of(ABSENT, odd=(1e-3,)),
    }


def _gpt2(d: _Drawing) -> dict[str, Any]:
    return {
        **d.common(),
        "vocab_size": VOCAB,
        d.of("n_embd", odd=("hidden_size",)): d.width,
        d.of("n_layer", odd=("num_hidden_layers",)): d.n_layers,
        d.of("n_head", odd=("num_attention_heads",)): d.n_heads,
        d.of("n_positions", odd=("max_position_embeddings",)): POSITIONS,
        "n_ctx": d.of(ABSENT, POSITIONS),
        "n_inner": d.of(ABSENT, None, 20),
        "activation_function": d.of("gelu_new", *ACTIVATIONS, ABSENT, odd=(*ACTS, None)),
        "layer_norm_epsilon": d.of(1e-5, 1e-3, ABSENT),
        "scale_attn_weights": d.of(ABSENT, True, False),
        "scale_attn_by_inverse_layer_idx": d.of(ABSENT, False, odd=(True, None)),
        "reorder_and_upcast_attn": d.of(ABSENT, False, True),
    }


def _gpt_neox(d: _Drawing) -> dict[str, Any]:
    rotary = d.rotary("rotary_emb_base", ("rotary_pct",))
    # as transformers 4.46 wrote them, beside the names of its own dialect
    if d.rng.random() < 0.15:
        rotary |= {"rope_theta": rotary.get("rotary_emb_base", 500.0)}
    if d.rng.random() < 0.15:
        rotary |= {"partial_rotary_factor": rotary.get("rotary_pct", 0.5)}
    return {
        **d.common(),
        **rotary,
        "vocab_size": VOCAB,
        "hidden_size": d.n_heads * 8,
        "num_hidden_layers": d.n_layers,
        "num_attention_heads": d.n_heads,
        "intermediate_size": 20,
        "max_position_embeddings": POSITIONS,
        "hidden_act": d.of("gelu", *ACTIVATIONS, ABSENT, odd=(*ACTS, None)),
        "layer_norm_eps": d.of(1e-5, 1e-3, ABSENT),
        "use_parallel_residual": d.of(ABSENT, True, False),
        "attention_bias": d.of(ABSENT, True, False),
    }


def _llama(d: _Drawing) -> dict[str, Any]:
    return {
        **d.llama_like(),
        **d.biases(),
        **d.rotary(),
        "head_dim": d.of(ABSENT, None, d.d_head, 10),
        "pretraining_tp": d.of(ABSENT, 1, 2),
        "rope_interleaved": d.of(ABSENT, False, odd=(True,)),
    }


def _mistral(d: _Drawing) -> dict[str, Any]:
    window = d.of(None, 2, 3, 5, odd=(ABSENT, 1, 100))
    return {
        **d.llama_like(),
        **d.rotary(),
        "head_dim": d.of(ABSENT, None, 10),
        "sliding_window": window,
    }


def _mixtral(d: _Drawing) -> dict[str, Any]:
    experts = d.of(1, 3, 4)
    return {
        **_mistral(d),
        "num_local_experts": d.of(experts, odd=(ABSENT,)),
        "num_experts_per_tok": d.of(1, min(2, experts), odd=(ABSENT, None)),
        "router_aux_loss_coef": d.of(ABSENT, 0.02),
        "output_router_logits": d.of(ABSENT, False),
    }


def _qwen2(d: _Drawing) -> dict[str, Any]:
    return {
        **d.llama_like(),
        **d.rotary(),
        **d.windows(),
        "use_sliding_window": d.of(True, False, ABSENT, odd=(None,)),
        "max_window_layers": d.of(0, 1, 2, 28, odd=(ABSENT, None)),
        "use_mrope": d.of(ABSENT, ABSENT, False),
    }


def _qwen3(d: _Drawing) -> dict[str, Any]:
    keys = {
        **_qwen2(d),
        "head_dim": d.of(8, 10, odd=(ABSENT, None)),
        "attention_bias": d.of(ABSENT, True, False),
    }
    del keys["use_mrope"]
    return keys


def _gemma2(d: _Drawing) -> dict[str, Any]:
    return {
        **d.llama_like(),
        **d.rotary(),
        **d.windows(),
        "attention_bias": d.of(ABSENT, True, False),
        "head_dim": d.of(8, 10, odd=(ABSENT, None)),
        "hidden_activation": d.of("gelu_pytorch_tanh", *ACTIVATIONS, ABSENT, odd=(*ACTS, None)),
        "query_pre_attn_scalar": d.of(4, 8, 20, odd=(ABSENT, 4.5)),
        "attn_logit_softcapping": d.of(None, 1.0, 50.0, odd=(ABSENT,)),
        "final_logit_softcapping": d.of(ABSENT, 30.0),
        "use_bidirectional_attention": d.of(ABSENT, False, odd=(None, True)),
    }


def _gemma3(d: _Drawing) -> dict[str, Any]:
    kinds = ("default", "default", "linear", "yarn")
    tables = {kind: {"rope_theta": d.theta(), **d.scaling(kinds)} for kind in LAYER_TYPES}
    for table in tables.values():
        if d.rng.random() < 0.15:
            del table["rope_theta"]
    older = {
        "rope_theta": d.of(ABSENT, d.theta()),
        "rope_local_base_freq": d.of(ABSENT, d.theta(), odd=(None,)),
        "rope_scaling": d.of(ABSENT, None, d.scaling(kinds)),
    }
    rotary = d.of(older, {"rope_parameters": tables}, {**older, "rope_parameters": tables}, odd=(
        {"rope_parameters": None}, {"rope_parameters": {}},
        {"rope_parameters": {LAYER_TYPES[0]: tables[LAYER_TYPES[0]]}}, {"rope_parameters": d.scaling()},
        {"rope_parameters": {**tables, LAYER_TYPES[1]: None}},
    ))  # fmt: skip
    keys = {
        **_gemma2(d),
        **dict.fromkeys(
            (
                "rope_theta",
                "rope_scaling",
                "rope_parameters",
                "rotary_pct",
                "partial_rotary_factor",
            ),
            ABSENT,
        ),
        **rotary,
        "sliding_window_pattern": d.of(ABSENT, ABSENT, 2, 3, 6, odd=(None, 1, 0)),
        "_sliding_window_pattern": d.of(ABSENT, ABSENT, ABSENT, 2, 6, odd=(None,)),
    }
    return keys


def _phi3(d: _Drawing) -> dict[str, Any]:
    return {
        **d.llama_like(),
        **d.rotary(
            fraction=("partial_rotary_factor",), kinds=("default", "default", "longrope", "linear")
        ),
        "sliding_window": d.of(ABSENT, None, 2, 5),
        "original_max_position_embeddings": d.of(ABSENT, ABSENT, 12, 48),
        "head_dim": d.of(ABSENT, odd=(10, None)),
        "embd_pdrop": d.of(ABSENT, 0.1),
        "attention_bias": d.of(ABSENT, False, odd=(True,)),
    }


def _olmo2(d: _Drawing) -> dict[str, Any]:
    return {
        **d.llama_like(),
        **d.rotary(),
        "attention_bias": d.of(ABSENT, True, False),
        "head_dim": d.of(ABSENT, odd=(10, None)),
    }


def _smollm3(d: _Drawing) -> dict[str, Any]:
    return {
        **d.llama_like(),
        **d.biases(),
        **d.rotary(),
        **d.windows(),
        "use_sliding_window": d.of(True, False, ABSENT),
        "no_rope_layers": d.of(ABSENT, [d.of(0, 1) for _ in range(d.n_layers)], odd=(
            None, [], [1] * 9, [2] * d.n_layers, [True] * d.n_layers)),
        "no_rope_layer_interval": d.of(ABSENT, 1, 2, 3, odd=(None, 0)),
        "max_window_layers": d.of(ABSENT, 1),
        "head_dim": d.of(ABSENT, ABSENT, odd=(10, None)),
    }  # fmt: skip


def _gpt_oss(d: _Drawing) -> dict[str, Any]:
    experts = d.of(1, 3, 4)
    return {
        **d.llama_like(),
        **d.rotary(),
        **d.windows(),
        "attention_bias": d.of(ABSENT, True, False),
        "head_dim": d.of(8, 10, odd=(ABSENT, None)),
        "num_local_experts": d.of(experts, odd=(ABSENT,)),
        "num_experts_per_tok": d.of(1, min(2, experts), odd=(ABSENT, None)),
        "experts_per_token": d.of(ABSENT, 2),
        "swiglu_limit": d.of(ABSENT, 0.4, 7.0, odd=(None,)),
        "swiglu_alpha": d.of(ABSENT, ABSENT, 1.702, odd=(1.5,)),
        "initial_context_length": d.of(ABSENT, 4096),
    }


def _mpnet(d: _Drawing) -> dict[str, Any]:
    bert = _bert(d)
    unread = ("type_vocab_size", "position_embedding_type", "is_decoder", "directionality")
    return {
        **{name: value for name, value in bert.items() if name not in unread},
        "relative_attention_num_buckets": d.of(ABSENT, 32, odd=(16, None)),
    }


def _bloom(d: _Drawing) -> dict[str, Any]:
    return {
        **d.common(),
        "vocab_size": VOCAB,
        d.of("hidden_size", "n_embed"): d.width,
        d.of("n_layer", "num_hidden_layers"): d.n_layers,
        d.of("n_head", "num_attention_heads"): d.n_heads,
        "layer_norm_epsilon": d.of(1e-5, 1e-3, ABSENT),
        "apply_residual_connection_post_layernorm": d.of(ABSENT, False, odd=(True, None)),
        "slow_but_exact": d.of(ABSENT, False, odd=(True,)),
        "pretraining_tp": d.of(ABSENT, 1, 2),
        "attention_softmax_in_fp32": d.of(ABSENT, True),
    }


def _mpt(d: _Drawing) -> dict[str, Any]:
    attention = {
        "alibi": d.of(ABSENT, True, odd=(False,)),
        "alibi_bias_max": d.of(ABSENT, 8, odd=(None, 4, 0)),
        "clip_qkv": d.of(ABSENT, None, odd=(0.5, 6.0, 0)),
        "softmax_scale": d.of(ABSENT, None, 0.3),
        "qk_ln": d.of(ABSENT, False, odd=(True,)),
        "prefix_lm": d.of(ABSENT, False, odd=(True,)),
        "attn_type": d.of(ABSENT, "multihead_attention", odd=("multiquery_attention",)),
        "attn_impl": d.of(ABSENT, "torch", "triton"),
    }
    return {
        **d.common(),
        "vocab_size": VOCAB,
        "d_model": d.width,
        "n_heads": d.n_heads,
        "n_layers": d.n_layers,
        "max_seq_len": POSITIONS,
        "attn_config": d.of(
            {name: value for name, value in attention.items() if value is not ABSENT}, odd=(ABSENT,)
        ),
        "layer_norm_epsilon": d.of(1e-5, 1e-3, ABSENT),
        "expansion_ratio": d.of(ABSENT, 4, odd=(2,)),
        "no_bias": d.of(ABSENT, True, odd=(False,)),
    }


def _falcon(d: _Drawing) -> dict[str, Any]:
    return {
        **d.common(),
        **d.rotary(),
        "vocab_size": VOCAB,
        "hidden_size": d.width,
        "num_hidden_layers": d.n_layers,
        "num_attention_heads": d.n_heads,
        "num_kv_heads": d.of(ABSENT, 1, 2, d.n_heads, odd=(None,)),
        "ffn_hidden_size": d.of(ABSENT, 20, odd=(None,)),
        "max_position_embeddings": d.of(ABSENT, POSITIONS),
        "new_decoder_architecture": d.of(ABSENT, True, False, odd=(None,)),
        "multi_query": d.of(ABSENT, True, False),
        "parallel_attn": d.of(ABSENT, True, True, False),
        "num_ln_in_parallel_attn": d.of(ABSENT, ABSENT, 1, 2, odd=(None, 3)),
        "bias": d.of(ABSENT, True, False),
        "alibi": d.of(ABSENT, False, odd=(True,)),
        "activation": d.of(ABSENT, *ACTIVATIONS, odd=(*ACTS, None)),
        "layer_norm_epsilon": d.of(1e-5, 1e-3, ABSENT),
    }


def _deberta_v2(d: _Drawing) -> dict[str, Any]:
    kinds = d.of("p2c|c2p", "c2p", ["c2p", "p2c"], ["p2c"], ABSENT, odd=("p2p", []))
    return {
        **{
            name: value
            for name, value in _bert(d).items()
            if name not in ("position_embedding_type", "directionality")
        },
        "type_vocab_size": d.of(ABSENT, 0, 1, 2),
        "relative_attention": d.of(ABSENT, True, True, True, False, odd=(None,)),
        "pos_att_type": kinds,
        "position_buckets": d.of(ABSENT, -1, 4, 6, 8, odd=(0, 1, None)),
        "max_relative_positions": d.of(ABSENT, -1, 12, 20, odd=(1, None)),
        "norm_rel_ebd": d.of(ABSENT, "none", "layer_norm", odd=("x", None)),
        "share_att_key": d.of(ABSENT, True, False, odd=(None,)),
        "position_biased_input": d.of(ABSENT, True, False),
        "attention_head_size": d.of(ABSENT, ABSENT, d.d_head, odd=(3,)),
        "conv_kernel_size": d.of(ABSENT, ABSENT, 0, odd=(3,)),
    }


def _gpt_neo(d: _Drawing) -> dict[str, Any]:
    kinds = [d.of("global", "local") for _ in range(d.n_layers)]
    return {
        **d.common(),
        "vocab_size": VOCAB,
        "hidden_size": d.width,
        "num_layers": d.n_layers,
        "num_heads": d.n_heads,
        "intermediate_size": d.of(ABSENT, None, 20),
        "max_position_embeddings": POSITIONS,
        "attention_types": d.of(
            [[kinds, 1]], [[[kind], 1] for kind in kinds], odd=(ABSENT, [[kinds, 2]], [["x"], 1])
        ),
        "attention_layers": d.of(ABSENT, kinds, odd=(["global"] * d.n_layers,)),
        "window_size": d.of(ABSENT, 2, 5, odd=(None,)),
        "activation_function": d.of("gelu_new", *ACTIVATIONS, ABSENT, odd=(*ACTS, None)),
        "layer_norm_epsilon": d.of(1e-5, 1e-3, ABSENT),
    }


def _experts(d: _Drawing, *names: str) -> dict[str, Any]:
    experts = d.of(1, 3, 4)
    return {
        d.of(*names): experts,
        "num_experts_per_tok": d.of(1, min(2, experts), odd=(ABSENT, None)),
        "norm_topk_prob": d.of(ABSENT, True, False),
        "router_aux_loss_coef": d.of(ABSENT, 0.02),
    }


def _qwen3_moe(d: _Drawing) -> dict[str, Any]:
    keys = {**_qwen3(d), **_experts(d, "num_experts", "num_experts", "num_local_experts")}
    keys |= {"moe_intermediate_size": d.of(8, 12), "mlp_only_layers": d.of(ABSENT, [], odd=([0],))}
    return {**keys, "layer_types": ABSENT, "decoder_sparse_step": d.of(ABSENT, 1, odd=(2,))}


def _olmoe(d: _Drawing) -> dict[str, Any]:
    return {
        **_olmo2(d),
        **_experts(d, "num_experts"),
        "clip_qkv": d.of(ABSENT, None, odd=(0.5,)),
    }


def _olmo3(d: _Drawing) -> dict[str, Any]:
    typed = {
        name: value
        for name, value in _gemma3(d).items()
        if "rope" in name and name != "rope_local_base_freq"
    }
    return {
        **_olmo2(d),
        **typed,
        **d.windows(),
        "rotary_pct": ABSENT,
        "partial_rotary_factor": ABSENT,
    }


def _modernbert(d: _Drawing) -> dict[str, Any]:
    typed = {
        name: value
        for name, value in _gemma3(d).items()
        if name in ("rope_parameters", "rope_scaling")
    }
    return {
        **d.common(),
        **typed,
        "vocab_size": VOCAB,
        "hidden_size": d.width,
        "num_hidden_layers": d.n_layers,
        "num_attention_heads": d.n_heads,
        "intermediate_size": 20,
        "max_position_embeddings": POSITIONS,
        "global_rope_theta": d.of(ABSENT, d.theta()),
        "local_rope_theta": d.of(ABSENT, d.theta()),
        "local_attention": d.of(2, 5, 6, odd=(ABSENT, 1)),
        "global_attn_every_n_layers": d.of(ABSENT, 1, 2, 3),
        "layer_types": d.windows()["layer_types"],
        "norm_eps": d.of(1e-5, 1e-3, ABSENT),
        "norm_bias": d.of(ABSENT, True, False),
        "attention_bias": d.of(ABSENT, True, False),
        "mlp_bias": d.of(ABSENT, True, False),
        "hidden_activation": d.of("gelu", *ACTIVATIONS, ABSENT, odd=(*ACTS, None)),
    }


def _glm(d: _Drawing) -> dict[str, Any]:
    return {
        **d.llama_like(),
        **d.rotary(fraction=("partial_rotary_factor",)),
        "attention_bias": d.of(ABSENT, True, False),
        "head_dim": d.of(8, 12, odd=(ABSENT, None)),
    }


def _granite(d: _Drawing) -> dict[str, Any]:
    return {
        **_llama(d),
        "rope_interleaved": ABSENT,
        "pretraining_tp": ABSENT,
        "attention_multiplier": d.of(ABSENT, 0.4, 0.1, odd=(None,)),
        "embedding_multiplier": d.of(ABSENT, 3.0, 12),
        "residual_multiplier": d.of(ABSENT, 0.22, 2),
        "logits_scaling": d.of(ABSENT, 8.0, 2),
    }


def _granitemoe(d: _Drawing) -> dict[str, Any]:
    keys = {**_granite(d), **_experts(d, "num_local_experts")}
    return {**keys, "mlp_bias": ABSENT, "norm_topk_prob": ABSENT}


def _cohere(d: _Drawing) -> dict[str, Any]:
    keys = {**d.llama_like(), **d.rotary(), "attention_bias": d.of(ABSENT, True, False)}
    del keys["rms_norm_eps"]
    return {
        **keys,
        "layer_norm_eps": d.of(1e-5, 1e-3, ABSENT),
        "logit_scale": d.of(ABSENT, 0.25, 2.0),
        "use_qk_norm": d.of(ABSENT, False, odd=(True,)),
    }


def _cohere2(d: _Drawing) -> dict[str, Any]:
    return {**_cohere(d), **d.windows(), "sliding_window_pattern": d.of(ABSENT, 2, 3, odd=(None,))}


def _t5(d: _Drawing) -> dict[str, Any]:
    return {
        **d.common(),
        "architectures": d.of(["T5EncoderModel"], odd=(["T5ForConditionalGeneration"],)),
        "vocab_size": VOCAB,
        "d_model": d.width,
        "d_kv": d.of(d.d_head, 10),
        "d_ff": 20,
        "num_layers": d.n_layers,
        "num_heads": d.n_heads,
        "relative_attention_num_buckets": d.of(8, 12, 32, ABSENT),
        "relative_attention_max_distance": d.of(10, 20, 128, ABSENT),
        "feed_forward_proj": d.of(
            "relu", "gated-gelu", "gated-silu", "gelu", ABSENT, odd=("gated-mish",)
        ),
        "layer_norm_epsilon": d.of(1e-6, 1e-3, ABSENT),
        "is_encoder_decoder": d.of(ABSENT, True, False),
    }


_DRAWN = {
    "bert": _bert,
    "roberta": _bert,
    "distilbert": _distilbert,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "olmo2": _olmo2,
    "smollm3": _smollm3,
    "gpt_oss": _gpt_oss,
    "mpnet": _mpnet,
    "bloom": _bloom,
    "mpt": _mpt,
    "falcon": _falcon,
    "gpt_neo": _gpt_neo,
    "deberta-v2": _deberta_v2,
    "qwen3_moe": _qwen3_moe,
    "olmoe": _olmoe,
    "olmo3": _olmo3,
    "modernbert": _modernbert,
    "glm": _glm,
    "glm4": _glm,
    "granite": _granite,
    "granitemoe": _granitemoe,
    "cohere": _cohere,
    "cohere2": _cohere2,
    "t5": _t5,
}
