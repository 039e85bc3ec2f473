"""Find the `transformers` class that a config means. Nothing is downloaded; code in the folder is not run."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from attnscope.base.errors import AttnscopeError, arg
from attnscope.checkpoints.families import FAMILIES
from attnscope.checkpoints.families.transformers_keys import reference_keys
from attnscope.checkpoints.families.trust import check_trust
from attnscope.checkpoints.folder import Folder
from attnscope.engines.transformers.interface import register
from attnscope.request.media import MediaKind

_COUNTS = re.compile(r"(\w+_)?(num|n)_(\w+_)?(layer|expert|block)s?|(\w+_)?layers|depth")
_MOST = 10_000
# main inputs of models that can run
TAKEN = "input_ids", "pixel_values", "input_features", "input_values"
# what drafting models take of another model, and have no cache for
_OTHERS_KEYS = "shared_kv_states"
_FLOAT_TAG = "__float__"
_SPECIAL_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


@dataclass(frozen=True)
class ModelClass:
    """The model class of a config."""

    model: Any
    config: Any
    # name of the part that is looked at, and that alone needs tensors; empty for all of it
    within: str = ""
    takes: str = "input_ids"  # main input of what is looked at


def find_model_class(folder: Folder, media: MediaKind | None = None) -> ModelClass:
    """Return the class of transformers that a folder's config means; its code, if it names any, is not looked at.

    Args:
        media: What the texts have besides characters; it decides between the towers of a model that compares texts
            with pictures (CLIP, SigLIP).
    """
    where = folder.config_path
    _check_counts(folder.config, str(where))
    hf = _transformers()
    config = _config(hf, folder)
    try:
        model_class = _model_class(hf, config)
        if model_class is None:
            message = f"transformers has no model for '{config.model_type}'"
            raise AttnscopeError(
                message, where=where, hint="attnscope needs a model that takes text or pictures"
            )
        compares = hasattr(model_class, "get_text_features")
        if media == "audio":
            tower = "audio"
        elif media == "image" and compares:
            tower = "vision"
        else:
            tower = "text"
        # MusicGen reads a text by an encoder of its own, and codes of sound by the rest
        apart = compares or media == "audio" or hasattr(config, "text_encoder")
        if apart and (found := _tower(model_class, config, tower)) is not None:
            return found
        # what stands for a class that needs another package raises here
        takes = model_class.main_input_name
        needs = signature(model_class.forward).parameters
    except (ImportError, ValueError) as e:
        reason = " ".join(str(e).split())[:200] or type(e).__name__
        raise AttnscopeError(
            f"transformers cannot import '{config.model_type}' ({reason})", where=where
        ) from e
    if _OTHERS_KEYS in needs and "cache" not in needs:
        message = f"'{config.model_type}' reads keys and values of the model that it drafts for ({_OTHERS_KEYS})"
        raise AttnscopeError(
            message, where=where, hint="attnscope shows models that read a text by themselves"
        )
    if takes not in TAKEN:
        message = f"'{config.model_type}' takes {takes}, not text or pictures"
        raise AttnscopeError(
            message, where=where, hint="attnscope shows attention between tokens or patches"
        )
    return ModelClass(model_class, config, takes=takes)


def _model_class(hf: Any, config: Any) -> Any:
    """Return the base class of a config; if it has none, the class that it names, or one that predicts tokens.

    The base class that transformers lists for MusicGen takes the config of its decoder alone.
    """
    base = hf.MODEL_MAPPING.get(type(config), None)
    has_base = base is not None and (
        isinstance(base, list | tuple) or base.config_class in type(config).__mro__
    )
    if not has_base and (named := named_class(config.architectures)) is not None:
        return named
    tables = (
        hf.MODEL_MAPPING,
        hf.MODEL_FOR_CAUSAL_LM_MAPPING,
        hf.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        hf.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    )
    found = next((table[type(config)] for table in tables if type(config) in table), None)
    if isinstance(found, list | tuple):
        return found[0]
    return found


def named_class(names: Any) -> Any:
    """Return the model of transformers that a config names; None if it names several, or none."""
    import transformers

    found = None
    if isinstance(names, list) and len(names) == 1:
        found = getattr(transformers, str(names[0]), None)
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
        return found
    return None


def part_of_config(model: Any, config: Any) -> str:
    """Return the name of the largest model inside a model that has this config; empty if there is none."""
    from transformers import PreTrainedModel

    parts = [
        (name, part)
        for name, part in model.named_modules()
        if name and isinstance(part, PreTrainedModel)
    ]
    of_config = [name for name, part in parts if part.config is config]
    of_type = [name for name, part in parts if type(part.config) is type(config)]
    return next(iter(of_config + of_type), "")


def _tower(model_class: Any, config: Any, kind: str) -> ModelClass | None:
    """Return the part of a model that reads texts, pictures or sounds alone; None if it has none.

    `kind` is `text` or `vision`, of models that compare texts with pictures (CLIP, SigLIP), `audio` (Qwen2-Audio), or
    `text` of those with an encoder for it (MusicGen).
    """
    import torch

    with torch.device("meta"):
        whole = model_class(config)
    of_part = getattr(config, f"{kind}_config", None) or getattr(config, f"{kind}_encoder", None)
    within = part_of_config(whole, of_part)
    if within:
        return ModelClass(model_class, config, within, whole.get_submodule(within).main_input_name)
    return None


def check_own_code(folder: Folder, model_class: ModelClass, *, trusted: bool) -> tuple[str, ...]:
    """Return notes on code that the config names and that is not run; see `families.trust.check_trust`."""
    native = FAMILIES.get(str(folder.config["model_type"]))
    upstreamed = native is None or native.upstreamed
    package = model_class.model.__module__.rpartition(".")[0]
    # BLIP's classes are in two files.
    modules = [
        vars(module)
        for name, module in list(sys.modules.items())
        if name.startswith(f"{package}.modeling")
    ]
    if native is not None:
        older = reference_keys(native.name).classes
    else:
        older = frozenset[str]()
    classes = older | {
        name for module in modules for name, value in module.items() if isinstance(value, type)
    }
    where = str(folder.config_path)
    return check_trust(folder.config, where, classes, upstreamed=upstreamed, trusted=trusted)


def _check_counts(config: dict[str, Any], where: str) -> None:
    """Refuse counts of layers and experts that would take hours to build before missing weights are noticed."""
    for name, value in config.items():
        if isinstance(value, dict):
            _check_counts(value, f"{where}: {name}")
        elif _COUNTS.fullmatch(name) and isinstance(value, int) and value > _MOST:
            raise AttnscopeError(
                f"{name} is {value}", where=where, hint=f"expected at most {_MOST:,}"
            )


def _transformers() -> Any:
    """Import transformers, and register our attention with it."""
    try:
        import transformers
        from transformers import AttentionInterface, AttentionMaskInterface  # noqa: F401  # too old without
    except ImportError as e:
        cause: BaseException = e
        while cause.__cause__ is not None:  # such as a torchvision of another release of torch
            cause = cause.__cause__
        message = f"transformers cannot be imported ({first_line(cause)})"
        hint = "pip install 'attnscope[transformers]'"
        if cause is not e:
            hint = "repair or remove the package that this error is of"
        raise AttnscopeError(message, where=arg("model"), hint=hint) from e
    hf: Any = transformers
    register()
    return hf


def _config(hf: Any, folder: Folder) -> Any:
    where = folder.config_path
    model_type = folder.config.get("model_type")
    if not isinstance(model_type, str) or model_type not in hf.CONFIG_MAPPING:
        message = "the key 'model_type' is missing"
        if model_type is not None:
            message = f"model_type is {str(model_type)[:80]!r}"
        raise AttnscopeError(
            message, where=where, hint=f"transformers {hf.__version__} has no such model"
        )
    if folder.config.get("quantization_config") is not None:
        raise AttnscopeError(
            "the checkpoint is quantised", where=where, hint="use one with floating-point weights"
        )
    with may_fail("transformers rejects it", where), quiet():
        return hf.CONFIG_MAPPING[model_type].from_dict(_with_floats(folder.config))


def _with_floats(value: Any) -> Any:
    """Replace `{"__float__": "Infinity"}` by the number: JSON has none for it, and transformers 5 writes this."""
    if isinstance(value, dict):
        tagged = None
        if set(value) == {_FLOAT_TAG}:
            tagged = _SPECIAL_FLOATS.get(str(value.get(_FLOAT_TAG)))
        if tagged is None:
            return {name: _with_floats(item) for name, item in value.items()}
        return tagged
    if isinstance(value, list):
        return [_with_floats(item) for item in value]
    return value


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' warnings and progress bars: attnscope's notes cover what matters."""
    import transformers

    logging: Any = transformers.logging
    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def may_fail(what: str, where: str | Path, hint: str | None = None) -> Iterator[None]:
    """Say what failed where a class of transformers, or code of the model, raises: it may raise anything."""
    try:
        yield
    except AttnscopeError:
        raise
    except Exception as e:
        raise AttnscopeError(f"{what} ({first_line(e)})", where=where, hint=hint) from e


def first_line(error: BaseException) -> str:
    """Return the first sentence of an error of transformers."""
    line = next(iter(str(error).strip().splitlines()), "")
    sentence = re.split(r"\. (?=[A-Z])", line)[0]
    return f"{type(error).__name__}: {sentence[:200]}"
