"""A model's or config's name in; what it is, as plain data, out. Nothing is loaded, and no torch in here."""

from collections import Counter
from math import prod

import msgspec

from attnscope.config import ModelConfig, TextInput
from attnscope.memory import embedding_parameters, layer_parameters
from attnscope.source import open_source

_SAMPLE_TEXT = TextInput("The bank by the river")  # what a tokenizer that is made from the text is made of here


class Description(msgspec.Struct, frozen=True):
    """What `attnscope info` shows.

    Attributes:
        name: What the user named.
        family: `model_type` of a checkpoint, or `config`.
        weights: `trained` where they come from a checkpoint that does not say otherwise, or `random`.
        fingerprint: See report.Provenance.
        config: Every size and switch, in our names.
        mask: The model's own mask, in words; or all that it was trained under.
        attention_scale: Factor from scores to scaled.
        parameters: Parameters that attention depends on: embeddings and blocks.
        stored_parameters: Numbers in the checkpoint, heads and buffers included; None where there is no checkpoint.
        dtypes: Element types of the checkpoint's tensors and how many numbers each holds.
        tokenizer: Kind of the tokenizer, such as `WordPiece`.
        tokenizer_size: Words that it knows; None where they are made from the text.
        files: Name and size in bytes.
        notes: What was switched off or ignored while opening it.
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


def describe(model: str | None, config: str | None) -> Description:
    """Open a checkpoint or a TOML stack as far as its headers, and say what it is.

    Raises:
        AttnscopeError: It cannot be read, or is not supported.
    """
    source = open_source(model, config, [_SAMPLE_TEXT])
    c, folder = source.config, source.folder
    dtypes: Counter[str] = Counter()
    for tensor in folder.tensors.values() if folder else ():
        dtypes[tensor.dtype] += prod(tensor.shape)
    from_text = source.tokenizer.name == "words"
    return Description(
        name=source.name,
        family=source.family,
        weights=source.weights,
        fingerprint=source.fingerprint,
        config=c,
        mask=" or ".join(dict.fromkeys((c.mask_in_words(), *source.trained_masks))),
        attention_scale=c.attention_scale,
        parameters=embedding_parameters(c) + c.n_layers * layer_parameters(c),
        stored_parameters=sum(dtypes.values()) if folder else None,
        dtypes=dict(dtypes),
        tokenizer=source.tokenizer.name,
        tokenizer_size=None if from_text else source.tokenizer.vocab_size,
        files=folder.files if folder else {},
        notes=list(source.notes),
    )
