"""Plain data behind `attnscope info`: what a model is, and what its attention costs."""

import msgspec

from attnscope.base.model_config import ModelConfig

# Fields of ModelConfig that are known of a model that transformers runs.
TRANSFERRED = (
    *(
        "vocab_size",
        "d_model",
        "n_layers",
        "n_heads",
        "n_kv_heads",
        "d_head",
        "d_value",
        "max_positions",
        "scale",
    ),
    *("n_segments", "cross_attention", "layer_kinds"),
)


class Description(msgspec.Struct, frozen=True):
    """What `attnscope info` shows.

    Attributes:
        name: The model's name, as the user gave it.
        family: `model_type` of a checkpoint, or `config`.
        weights: `trained` if they come from a checkpoint that does not state otherwise, `random`, or `none` for a
            config.json alone.
        fingerprint: See provenance.Provenance.
        config: The fields of ModelConfig; of a model that transformers runs, those in TRANSFERRED.
        engine: What runs it: `native`, or `transformers`.
        mask: The model's own mask, in words, or all masks that it was trained under; None if only a run shows it.
        attention_scale: Factor from scores to scaled.
        parameters: Number of parameters that attention depends on: embeddings and blocks; None
            if transformers runs it.
        stored_parameters: Numbers in the checkpoint, heads and buffers included; None without a checkpoint.
        dtypes: Element types of the checkpoint's tensors, and how many numbers each has.
        tokenizer: Kind of the tokenizer, such as `WordPiece`; `none` for a config.json alone, or if none can be used;
            `image` for a vision model, whose tokens are patches.
        tokenizer_size: Size of its vocabulary; None if the vocabulary is made from the text.
        files: Name and size in bytes of each file.
        notes: What was switched off or ignored when the model was opened.
        ignored_keys: See provenance.Provenance.
    """

    name: str
    family: str
    weights: str
    fingerprint: str
    config: ModelConfig
    engine: str
    mask: str | None
    attention_scale: float
    parameters: int | None
    stored_parameters: int | None
    dtypes: dict[str, int]
    tokenizer: str
    tokenizer_size: int | None
    files: dict[str, int]
    notes: list[str] = []
    ignored_keys: list[str] = []


class KnownModels(msgspec.Struct, frozen=True):
    """What `attnscope info --list` shows.

    Attributes:
        samples: Bundled checkpoints by name, for `--model`, with a description.
        configs: Bundled configs by name, for `--config`, with a description.
        families: Supported values of `model_type` in a config.json.
    """

    samples: dict[str, str]
    configs: dict[str, str]
    families: list[str]


TOP = 3


class CostRow(msgspec.Struct, frozen=True):
    """Cost of one text of T tokens, over all layers and heads.

    A multiply and an add are two FLOPs, as usual (Kaplan et al., 2020, section 2.1).

    Attributes:
        tokens: T.
        qk_flops: FLOPs of q·k for the pairs that the mask allows: 2 · head width each.
        av_flops: FLOPs of weights·v for the same pairs: 2 · value width each.
        projection_flops: FLOPs of the query, key, value and output projections of every token.
        scores_bytes: Bytes of T×T scores as float32.
        weights_bytes: Bytes of T×T weights as float32.
        kept_bytes: Bytes that attnscope keeps instead: the top 3 sources (position, weight, α·‖v‖) and the statistics
            of every row, and a 64×64 map with the column sums; for up to 64 tokens, the matrices themselves.
        fits: Whether T is within the number of positions of the model.
    """

    tokens: int
    qk_flops: int
    av_flops: int
    projection_flops: int
    scores_bytes: int
    weights_bytes: int
    kept_bytes: int
    fits: bool
