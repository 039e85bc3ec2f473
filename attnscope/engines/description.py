"""Describe a model without loading it."""

from collections import Counter
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

from attnscope.base.model_config import ModelConfig
from attnscope.base.system.escape import as_unicode
from attnscope.checkpoints.families import FAMILIES, open_config
from attnscope.checkpoints.folder import read_config_file, without_mxfp4
from attnscope.checkpoints.samples import sample_names, samples_folder
from attnscope.checkpoints.stack_file import read_stack
from attnscope.checkpoints.tokenization.word_tokenizer import MissingTokenizer
from attnscope.engines.opening import open_source
from attnscope.findings.info import Description, KnownModels
from attnscope.request.memory import embedding_parameters, head_parameters, layer_parameters
from attnscope.request.options import on_command_line
from attnscope.request.run_config import RunConfig, TextInput

# the text from which a vocabulary of words is made
_SAMPLE_TEXT = TextInput("The bank by the river")


def describe(model: str | None, config: str | None, **options: Any) -> Description:
    """Describe a checkpoint from its headers, a TOML stack, or a config.json alone; `options` are those of a RunConfig.

    A checkpoint whose tokenizer cannot be used is described as well.
    """
    run = RunConfig((_SAMPLE_TEXT,), model=model, config=config, **options)
    if model is not None and model.endswith(".json") and Path(model).is_file():
        return _describe_file(Path(model), run)
    source = open_source(run, [_SAMPLE_TEXT])
    ours = source.engine == "native"
    c = source.config
    folder = source.folder
    dtypes: Counter[str] = Counter()
    for tensor in folder.tensors.values() if folder else ():
        dtypes[tensor.dtype] += prod(tensor.shape)
    from_text = source.tokenizer.name == "words"
    missing = list[str]()
    if isinstance(source.tokenizer, MissingTokenizer) and source.only_media is None:
        missing.append(f"no tokenizer: {source.tokenizer.error.line(on_command_line)}")
    mask = None
    if ours:
        mask = " or ".join(dict.fromkeys((c.describe_mask(), *source.trained_masks)))
    if source.only_media is None:
        tokenizer = source.tokenizer.name
    else:
        tokenizer = source.only_media
    tokenizer_size = None
    if not from_text:
        tokenizer_size = source.tokenizer.vocab_size
    return Description(
        name=source.name,
        family=source.family,
        weights=source.weights,
        fingerprint=source.fingerprint,
        config=c,
        engine=source.engine,
        mask=mask,
        attention_scale=c.attention_scale,
        parameters=_parameters(c) if ours else None,
        stored_parameters=sum(dtypes.values()) if folder else None,
        dtypes=dict(dtypes),
        tokenizer=tokenizer,
        tokenizer_size=tokenizer_size,
        files=(folder.files if folder else {}) | source.tokenizer_files,
        notes=[*source.notes, *missing, *source.details],
        ignored_keys=list(source.ignored_keys),
    )


def known_models() -> KnownModels:
    """List the bundled samples and configs, and the families that the native engine runs."""
    samples = samples_folder("sample_weights")
    configs = samples_folder("configs")

    def in_short(path: Path) -> str:
        opened = open_config(read_config_file(path)[1], str(path))
        return (
            f"{opened.family.name}, {opened.config.n_layers} layers × {opened.config.n_heads} heads"
        )

    return KnownModels(
        samples={
            name: in_short(samples / name / "config.json")
            for name in sample_names("sample_weights")
        },
        configs={
            name: read_stack(configs / f"{name}.toml").file.description
            for name in sample_names("configs")
        },
        families=sorted(FAMILIES),
    )


def _describe_file(path: Path, run: RunConfig) -> Description:
    """Describe a config.json, without weights and tokenizer."""
    data, raw = read_config_file(path)
    opened = open_config(
        without_mxfp4(raw), str(path), ignore=run.ignore_key, trusted=run.trust_config
    )
    c = opened.config
    return Description(
        name=as_unicode(str(path)),
        family=opened.family.name,
        weights="none",
        fingerprint=sha256(data).hexdigest()[:16],
        config=c,
        engine="native",
        mask=c.describe_mask(),
        attention_scale=c.attention_scale,
        parameters=_parameters(c),
        stored_parameters=None,
        dtypes={},
        tokenizer="none",
        tokenizer_size=0,
        files={path.name: len(data)},
        notes=list(opened.notes),
        ignored_keys=list(opened.ignored_keys),
    )


def _parameters(c: ModelConfig) -> int:
    return embedding_parameters(c) + c.n_layers * layer_parameters(c) + head_parameters(c)
