"""Decide whether a config.json describes a model of transformers, or one whose attention is in code of its own.

Code in a folder is never run, so its effect on attention is unknown: a `qwen2` whose own code is bidirectional has a
config like any other. Such a folder is refused, unless the user trusts the config alone.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attnscope.base.errors import AttnscopeError, arg
from attnscope.checkpoints.families.reader import format_json

# Entries of `auto_map` whose code turns texts, images or audio into inputs, and computes no attention.
_INPUTS = (
    "AutoTokenizer",
    "AutoProcessor",
    "AutoFeatureExtractor",
    "AutoImageProcessor",
    "AutoVideoProcessor",
)
_FRAMEWORKS = ("TF", "Flax")  # prefixes of the classes of other frameworks
_HINT = (
    "attnscope never runs a folder's code, and it may change attention; "
    f"{arg('trust_config', True)} uses the config alone"
)


def check_trust(
    raw: Mapping[str, Any], where: str, classes: Collection[str], *, upstreamed: bool, trusted: bool
) -> tuple[str, ...]:
    """Return notes on code that a config names and that is not run; the reference has that of `upstreamed` ones."""
    notes = list[str]()
    if raw.get("auto_map"):
        foreign = next(_foreign_code(raw, classes if upstreamed else ()), None)
        if foreign is not None and not trusted:
            message = f"the folder has its own model code ({foreign})"
            raise AttnscopeError(message, where=f"{where}: auto_map", hint=_HINT)
        notes.append("config.json refers to custom Python code (auto_map), which was not run")
        if foreign is not None:
            notes.append(
                f"--trust-config: the folder's own code may differ from what is shown ({foreign})"
            )
    class_name = _foreign_class(raw.get("architectures"), classes)
    if class_name is not None:
        if not trusted:
            message = f"architectures is {format_json(raw['architectures'])}"
            model = format_json(raw.get("model_type"))
            trust = f"{arg('trust_config', True)} reads the config as if it were one"
            hint = f"expected classes of {model} in transformers; {trust}"
            raise AttnscopeError(message, where=where, hint=hint)
        notes.append(
            f"--trust-config: {class_name} is not a class of transformers' {raw.get('model_type')}, and may differ"
        )
    return tuple(notes)


def _foreign_code(raw: Mapping[str, Any], classes: Collection[str]) -> Iterator[str]:
    """Return the code for a model or its config that the reference does not have under the same name."""
    auto_map = raw["auto_map"]
    model_type = raw.get("model_type")
    if not isinstance(auto_map, dict):
        yield format_json(auto_map)
        return
    for name, code in auto_map.items():
        if name in _INPUTS:
            continue
        module, _, class_name = str(code).rpartition("--")[2].rpartition(".")
        if name == "AutoConfig":
            is_known = module == f"configuration_{model_type}" and bool(classes)
        else:
            is_known = module == f"modeling_{model_type}" and class_name in classes
        if not is_known or not isinstance(code, str):
            yield format_json(code) if isinstance(code, str) else f"{name}: {format_json(code)}"


def _foreign_class(architectures: Any, classes: Collection[str]) -> str | None:
    """Return the first class that the reference lacks; capitals in the name may differ, as in LLaMA."""
    if architectures is None or architectures == []:
        return None
    if not isinstance(architectures, list) or not all(
        isinstance(class_name, str) for class_name in architectures
    ):
        return format_json(architectures)
    plain_names = {_plain(class_name) for class_name in classes}
    return next(
        (
            format_json(class_name)
            for class_name in architectures
            if _plain(class_name) not in plain_names
        ),
        None,
    )


def _plain(name: str) -> str:
    for framework in _FRAMEWORKS:
        name = name.removeprefix(framework)
    return name.lower()
