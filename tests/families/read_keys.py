"""List the config keys that transformers reads, and the classes of its models, from the sources of its releases.

    pip download --no-deps --dest wheels transformers==5.0.0 …
    python -m tests.families.read_keys wheels/*.whl

writes `attnscope/checkpoints/families/transformers_keys.json`, from which `families/unknown_keys.py` knows which keys
of a config nobody reads. The list is longer than what is truly read: every name that a family's own files hold as an
attribute, a string or an argument counts, and so does every name that shared files (masking, rope, cache, attention,
base classes) look up in a config. A name too many refuses a file;
a name too few could hide a key that changes attention.
"""

import ast
import json
import re
import sys
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers

from attnscope.checkpoints.families import FAMILIES
from attnscope.checkpoints.families.transformers_keys import DATA

_OWN = re.compile(r"transformers/models/(\w+)/(?:configuration|modeling(_tf|_flax)?)_\1\.py")
_SHARED = re.compile(
    r"transformers/(?:activations|cache_utils|configuration_utils|core_model_loading|conversion_mapping|fusion_mapping"
    r"|initialization|masking_utils|modeling_(?!tf_|flax_|gguf_|outputs)\w+|monkey_patching|pytorch_utils"
    r"|integrations/(?!ggml|tiktoken|integration_utils)[\w/]+|utils/(?:generic|output_capturing|kernel_config|type_validators)"
    r"|models/auto/(?:auto_factory|configuration_auto))\.py"
)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONFIG = re.compile(r"config|cfg", re.IGNORECASE)
_MODEL = re.compile(r"Model$|For[A-Z]")
_LOOKUPS = ("getattr", "hasattr", "setattr", "delattr", "get", "pop", "setdefault")
SHARED, OTHERS = "shared", "others"
_SUPPORTED = 5  # older releases add names that were read once, but no defaults


@dataclass
class Sources:
    """What is found in the files of one family, or in shared ones."""

    # what a key of a config could be called to be read
    names: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)  # classes of models
    fields: set[str] = field(default_factory=set)  # fields of its config classes
    # values of these fields, by release
    defaults: list[dict[str, Any]] = field(default_factory=list)


def names_held(tree: ast.AST) -> Iterator[str]:
    """Every attribute, string, argument and field in a file: whatever it could read, it holds as one of these."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.ClassDef):
            yield from _fields(node)


def names_looked_up(tree: ast.AST) -> Iterator[str]:
    """Every name that a file looks up in something called a config, or in any mapping, and fields of config classes.

    Where a function looks up a name that it holds in a variable, that may be any of its strings.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and _looks_up_variables(node):
            yield from _strings(ast.walk(node))
        if isinstance(node, ast.Attribute) and _CONFIG.search(ast.unparse(node.value)):
            yield node.attr
        elif isinstance(node, ast.Call) and _called(node) in _LOOKUPS:
            yield from _strings(node.args)
        elif isinstance(node, ast.Subscript):
            yield from _strings([node.slice])
        elif isinstance(node, ast.Compare):
            yield from _strings([node.left])
        elif isinstance(node, ast.ClassDef) and _CONFIG.search(node.name):
            yield from names_held(node)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        targets = (
            [statement.target]
            if isinstance(statement, ast.AnnAssign)
            else getattr(statement, "targets", [])
        )
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _looks_up_variables(function: ast.FunctionDef) -> bool:
    calls = (
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and _called(node) in _LOOKUPS
    )
    return any(
        not isinstance(argument, ast.Constant) for call in calls for argument in call.args[:2][-1:]
    )


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _strings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def config_fields(tree: ast.Module, model_type: str | None = None) -> dict[str, Any]:
    """The fields of config classes, with their defaults where these are literal numbers, words or switches, else None.

    Args:
        tree: A file with config classes.
        model_type: Of the classes that count; None for all.
    """
    found: dict[str, Any] = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or (model_type and _model_type(node) != model_type):
            continue
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                found[part.target.id] = None if part.value is None else _literal(part.value)
            elif (
                isinstance(part, ast.FunctionDef) and part.name == "__init__" and part.args.defaults
            ):
                arguments = part.args.args[-len(part.args.defaults) :]
                values = map(_literal, part.args.defaults)
                found |= {
                    argument.arg: value for argument, value in zip(arguments, values, strict=True)
                }
    return found


def _model_type(node: ast.ClassDef) -> Any:
    for part in node.body:
        if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "model_type":
            return _literal(part.value)
    return None


def _literal(node: ast.expr) -> Any:
    """The value of a literal; of a call such as `interval(min=0.0)(default=0.02)`, its default; else None."""
    if isinstance(node, ast.Call):
        defaults = [keyword.value for keyword in node.keywords if keyword.arg == "default"]
        return _literal(defaults[0]) if defaults else None
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, bool | int | float | str) else None


def read_release(files: Iterable[tuple[str, str]], version: str, found: dict[str, Sources]) -> None:
    """Add what one release holds.

    Args:
        files: Name and text of its files.
        version: Its version.
        found: Native families by name, the shared files under `SHARED`, all other models under `OTHERS`.
    """
    families = {family.name: family for family in FAMILIES.values()}
    supported = int(version.split(".")[0]) >= _SUPPORTED
    for name, text in files:
        own = _OWN.fullmatch(name)
        if own is None:
            if _SHARED.fullmatch(name):
                found[SHARED].names |= _identifiers(ast.parse(text), names_looked_up)
            continue
        is_config = name.startswith(f"transformers/models/{own[1]}/configuration_")
        if own[1] not in families:
            if is_config and supported:
                found[OTHERS].fields |= config_fields(ast.parse(text)).keys()
            continue
        tree, sources = ast.parse(text), found[own[1]]
        sources.classes |= {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        if own[2] is None:  # no key of ours reaches a model of another framework
            sources.names |= _identifiers(tree, names_held)
        if is_config and supported:
            model_type = families[own[1]].model_type or own[1]
            sources.defaults.append(config_fields(tree, model_type))


def _identifiers(tree: ast.AST, names: Callable[[ast.AST], Iterator[str]]) -> set[str]:
    return {name for name in names(tree) if _IDENTIFIER.fullmatch(name)}


def agreed_defaults(releases: list[dict[str, Any]]) -> dict[str, Any]:
    """The defaults that every one of these releases has."""
    first = releases[0] if releases else {}
    return {
        name: value
        for name, value in sorted(first.items())
        if value is not None and all(name in one and one[name] == value for one in releases)
    }


def as_data(found: dict[str, Sources], versions: list[str]) -> dict[str, Any]:
    """What the JSON file holds; lists of names are one text each, so that a change of the file can be read."""
    shared = found[SHARED].names
    return {
        "releases": " ".join(versions),
        "shared": " ".join(sorted(shared)),
        "elsewhere": " ".join(sorted(found[OTHERS].fields - shared)),
        "families": {
            family.name: {
                "classes": " ".join(sorted(filter(_MODEL.search, found[family.name].classes))),
                "names": " ".join(sorted(found[family.name].names - shared)),
                "defaults": agreed_defaults(found[family.name].defaults),
            }
            for family in FAMILIES.values()
        },
    }


def read_installed() -> dict[str, Sources]:
    """What the release of transformers that is installed here holds."""
    root = Path(transformers.__file__).parent.parent
    paths = (
        path.relative_to(root).as_posix() for path in sorted(root.glob("transformers/**/*.py"))
    )
    python = (name for name in paths if _OWN.fullmatch(name) or _SHARED.fullmatch(name))
    found: dict[str, Sources] = defaultdict(Sources)
    read_release(
        ((name, (root / name).read_text()) for name in python), transformers.__version__, found
    )
    return found


def main(wheels: list[str]) -> int:
    """Read all wheels, and write the file."""
    found: dict[str, Sources] = defaultdict(Sources)
    versions = {Path(wheel).name.split("-")[1]: wheel for wheel in wheels}
    ordered = sorted(versions, key=lambda version: [int(part) for part in version.split(".")])
    for version in ordered:
        with zipfile.ZipFile(versions[version]) as archive:
            python = (
                name
                for name in archive.namelist()
                if _OWN.fullmatch(name) or _SHARED.fullmatch(name)
            )
            read_release(((name, archive.read(name).decode()) for name in python), version, found)
    DATA.write_text(json.dumps(as_data(found, ordered), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
