"""Plain data behind `attnscope info`: what a model is, and what its attention costs."""

import msgspec

from attnscope.config import ModelConfig


class Description(msgspec.Struct, frozen=True):
    """What `attnscope info` shows.

    Attributes:
        name: What the user named.
        family: `model_type` of a checkpoint, or `config`.
        weights: `trained` where they come from a checkpoint that does not say otherwise, `random`, or `none` of a
            config.json alone.
        fingerprint: See report.Provenance.
        config: Every size and switch, in our names.
        mask: The model's own mask, in words; or all that it was trained under.
        attention_scale: Factor from scores to scaled.
        parameters: Parameters that attention depends on: embeddings and blocks.
        stored_parameters: Numbers in the checkpoint, heads and buffers included; None where there is no checkpoint.
        dtypes: Element types of the checkpoint's tensors and how many numbers each holds.
        tokenizer: Kind of the tokenizer, such as `WordPiece`; `none` of a config.json alone, or where none can be used.
        tokenizer_size: Words that it knows; None where they are made from the text.
        files: Name and size in bytes.
        notes: What was switched off or ignored while opening it.
        ignored_keys: See report.Provenance.
    """

    name: str
    family: str
    weights: str
    fingerprint: str
    config: ModelConfig
    mask: str
    attention_scale: float
    parameters: int
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
        samples: Bundled checkpoints by name, for `--model`, and what each is.
        configs: Bundled configs by name, for `--config`, and what each is.
        families: Supported values of `model_type` in a config.json.
    """

    samples: dict[str, str]
    configs: dict[str, str]
    families: list[str]


TOP = 3


class CostRow(msgspec.Struct, frozen=True):
    """What one text of T tokens takes, over all layers and heads.

    A multiply and an add are two FLOPs, as usual (Kaplan et al., 2020, section 2.1).

    Attributes:
        tokens: T.
        qk_flops: q·k for the pairs that the mask allows: 2 · head width each.
        av_flops: weights·v for the same pairs: 2 · value width each.
        projection_flops: Query, key, value and output projections of every token.
        scores_bytes: T×T scores as float32.
        weights_bytes: T×T weights as float32.
        kept_bytes: What attnscope keeps in their place: the top 3 sources (position, weight, α·‖v‖) and ten statistics
            of every row, and a 64×64 map with the mass of every column; of up to 64 tokens, the matrices themselves.
        fits: T is not longer than the model's positions.
    """

    tokens: int
    qk_flops: int
    av_flops: int
    projection_flops: int
    scores_bytes: int
    weights_bytes: int
    kept_bytes: int
    fits: bool
