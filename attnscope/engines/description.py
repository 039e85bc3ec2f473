"""Describe a model without loading it."""

from collections import Counter
from math import prod

from attnscope.config import RunConfig, TextInput
from attnscope.engines.opening import describe_source
from attnscope.planning.memory import embedding_parameters, layer_parameters
from attnscope.report.info import Description

_SAMPLE_TEXT = TextInput("The bank by the river")  # what a tokenizer that is made from the text is made of here


def describe(
    model: str | None, config: str | None, adapter: str | None = None, tokenizer: str | None = None
) -> Description:
    """Open a checkpoint or a TOML stack as far as its headers, and say what it is.

    A checkpoint whose tokenizer cannot be used is described all the same.

    Raises:
        AttnscopeError: It cannot be read, or is not supported.
    """
    run = RunConfig((_SAMPLE_TEXT,), model=model, config=config, adapter=adapter, tokenizer=tokenizer)
    source = describe_source(run, [_SAMPLE_TEXT])
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
        mask=" or ".join(dict.fromkeys((c.describe_mask(), *source.trained_masks))),
        attention_scale=c.attention_scale,
        parameters=embedding_parameters(c) + c.n_layers * layer_parameters(c),
        stored_parameters=sum(dtypes.values()) if folder else None,
        dtypes=dict(dtypes),
        tokenizer=source.tokenizer.name,
        tokenizer_size=None if from_text else source.tokenizer.vocab_size,
        files=(folder.files if folder else {}) | source.tokenizer_files,
        notes=list(source.notes),
    )
