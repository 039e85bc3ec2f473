"""Open a LoRA adapter in peft's layout, and add its low-rank parts to the tensors of a checkpoint."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from typing import Any

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import as_object, format_value, parse_json, read_file
from attnscope.base.files.regex import full_matches
from attnscope.checkpoints.folder import MAX_CONFIG, Folder
from attnscope.checkpoints.headers import LowRank, TensorInfo, read_header

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_PARTS = re.compile(r"(.+)\.(lora_(?:embedding_)?[AB]|lora_magnitude_vector)(?:\.weight)?")
_READ = frozenset("peft_type r lora_alpha use_rslora use_dora rank_pattern alpha_pattern fan_in_fan_out target_modules "
                  "init_lora_weights".split())  # fmt: skip
# Settings of the training, and module lists, which follow from the tensors.
_INERT = frozenset(
    "alora_invocation_string auto_mapping base_model_name_or_path bias corda_config ensure_weight_tying eva_config "
    "exclude_modules inference_mode layers_pattern layers_to_transform loftq_config lora_dropout lora_ga_config "
    "megatron_config megatron_core modules_to_save peft_version qalora_group_size revision runtime_config "
    "task_type".split()
)
_LARGEST = 1e9  # rank or alpha; not infinity, and no whole number beyond what a float can be
# other values also change the base weights
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True)
class _Adapter:
    """An adapter, opened."""

    path: Path
    config: Mapping[str, Any]
    modules: dict[str, dict[str, TensorInfo]]  # module to its tensors by part (`lora_A`, …)
    # tensors that replace those of the base, by the base's names
    full_tensors: dict[str, TensorInfo]
    # modules by the expression that names them
    named: dict[str, frozenset[str]] = field(default_factory=dict)

    def wrong(self, key: str, message: str, hint: str) -> AttnscopeError:
        return AttnscopeError(message, where=f"{self.path / ADAPTER_CONFIG}: {key}", hint=hint)

    def flag(self, key: str) -> bool:
        value = self.config.get(key) or False
        if not isinstance(value, bool):
            raise self.wrong(key, f"is {format_value(value)}", "expected true or false")
        return value

    def number(self, key: str, pattern: str, module: str) -> int | float:
        """Return a number, from the pattern that names the module if there is one."""
        value: Any = self.config.get(key)
        for expression, other in as_object(
            self.config.get(pattern) or {}, f"{self.path}: {pattern}"
        ).items():
            if self.names(expression, module, pattern, r"(.*\.)?"):
                value = other
                break
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value < _LARGEST
        ):
            raise self.wrong(
                key, f"is {format_value(value)} for '{module}'", "expected a number above 0"
            )
        return value

    def names(self, expression: str, module: str, key: str, before: str = "") -> bool:
        """Tell whether a regular expression under this key of the config names a module."""
        if (pattern := f"{before}({expression})") not in self.named:
            try:
                self.named[pattern] = full_matches(expression, self.modules, before)
            except ValueError as e:
                raise self.wrong(key, str(e), "write the names of the modules as a list") from e
        return module in self.named[pattern]


def add_adapter(folder: Folder, path: Path) -> Folder:
    """Return the checkpoint with an adapter, whose low-rank parts are added to tensors as they are read."""
    raw = read_file(path / ADAPTER_CONFIG, cap=MAX_CONFIG)
    config = as_object(parse_json(raw, str(path / ADAPTER_CONFIG)), str(path / ADAPTER_CONFIG))
    if not (path / ADAPTER_WEIGHTS).exists() and (path / "adapter_model.bin").exists():
        hint = f"convert it: attnscope import {path} {path}-safetensors"
        raise AttnscopeError(
            "the adapter's weights are a pickle, adapter_model.bin", where=path, hint=hint
        )
    header = read_header(path / ADAPTER_WEIGHTS)
    adapter = _sorted_out(path, config, header.tensors)
    _check_config(adapter)
    rename = _renaming(adapter, folder)
    tensors = dict(folder.tensors)
    for name, info in adapter.full_tensors.items():  # new ones are heads, which the family checks
        base = tensors.get(rename(name))
        if base is not None and base.shape != info.shape:
            message = f"has shape {list(info.shape)}, but the checkpoint's '{base.name}' has {list(base.shape)}"
            raise AttnscopeError(
                message, where=f"{info.file}: {info.name}", hint="the adapter is for another model"
            )
        tensors[rename(name)] = replace(info, name=rename(name))
    for module, parts in adapter.modules.items():
        name = rename(f"{module}.weight")
        tensors[name] = replace(
            tensors[name], low_rank=_low_rank(adapter, module, parts, tensors[name])
        )
    ranks = sorted({parts["lora_A" if "lora_A" in parts else "lora_embedding_A"].shape[0]
                    for parts in adapter.modules.values()})  # fmt: skip
    if adapter.flag("use_dora"):
        adapter_kind = "DoRA"
    elif adapter.flag("use_rslora"):
        adapter_kind = "rsLoRA"
    else:
        adapter_kind = "LoRA"
    more = ""
    if adapter.full_tensors:
        more = f", and replaces {len(adapter.full_tensors)}"
    rank = "–".join(map(str, (ranks[0], ranks[-1])[: 1 + (len(ranks) > 1)]))
    count = len(adapter.modules)
    note = (
        f"adapter: {adapter_kind} of rank {rank}, added to {count} tensor{'s' * (count != 1)}{more}"
    )
    digest = hashlib.sha256(
        folder.fingerprint.encode() + hashlib.sha256(raw).digest() + header.digest
    )
    # peft saves a copy of an embedding beside its low-rank part; merged, that part changes the tied output head, too.
    full_names = [rename(name) for name in adapter.full_tensors]
    replaced = [
        name for name in full_names if name in folder.tensors and tensors[name].low_rank is None
    ]
    return replace(
        folder,
        tensors=tensors,
        replaced={name: folder.tensors[name] for name in replaced},
        files=folder.files | {f"{path.name}/{ADAPTER_WEIGHTS}": header.stamp.size},
        fingerprint=digest.hexdigest()[:16],
        notes=(*folder.notes, note),
        stamps=folder.stamps | {path / ADAPTER_WEIGHTS: header.stamp},
    )


def _sorted_out(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> _Adapter:
    """Sort the tensors of an adapter into modules and full tensors."""
    modules: dict[str, dict[str, TensorInfo]] = {}
    full_tensors: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        inner = (
            name.removeprefix(_PREFIX)
            .replace(".modules_to_save.", ".")
            .replace(".base_layer.", ".")
        )
        if match := _PARTS.fullmatch(inner):
            modules.setdefault(match[1], {})[match[2]] = info
        elif "lora_" in inner:
            hint = "only lora_A, lora_B and DoRA's magnitudes are supported"
            raise AttnscopeError(f"unknown tensor '{name}'", where=info.file, hint=hint)
        else:
            full_tensors[inner] = info
    return _Adapter(path, config, modules, full_tensors)


def _check_config(adapter: _Adapter) -> None:
    """Refuse adapters other than LoRA, and variants that B·A does not describe."""
    peft_type = adapter.config.get("peft_type")
    if peft_type != "LORA":
        raise adapter.wrong("peft_type", f"is {format_value(peft_type)}", "only LORA is supported")
    start = adapter.config.get("init_lora_weights")
    if not any(
        start is plain or (start == plain and isinstance(start, str)) for plain in _PLAIN_STARTS
    ):
        hint = "it changes the base's weights, too: save it as a LoRA (path_initial_model_for_weight_conversion)"
        raise adapter.wrong("init_lora_weights", f"is {format_value(start)}", hint)
    for key, value in adapter.config.items():
        if value and key not in _READ | _INERT:
            hint = "merge it with peft (merge_and_unload) and save the whole model"
            raise adapter.wrong(
                key, f"is {format_value(value)}, which attnscope does not support", hint
            )
    if not adapter.modules:
        raise AttnscopeError("has no LoRA tensors", where=adapter.path / ADAPTER_WEIGHTS)
    targets = adapter.config.get("target_modules")
    for module in adapter.modules:  # by peft's rules
        if isinstance(targets, str):
            targeted = targets == "all-linear" or adapter.names(targets, module, "target_modules")
        else:
            ends = targets if isinstance(targets, list) else []
            targeted = targets is None or any(f".{module}".endswith(f".{end}") for end in ends)
        if not targeted:
            message = f"does not name '{module}', which {ADAPTER_WEIGHTS} has"
            raise adapter.wrong(
                "target_modules", message, "the config and the tensors do not match"
            )


def _renaming(adapter: _Adapter, folder: Folder) -> Any:
    """Return a function from the adapter's names to the checkpoint's: equal, or all with the same prefix."""
    wanted = [f"{module}.weight" for module in adapter.modules]
    first_name = wanted[0]
    parts = first_name.split(".")
    longer = (
        name.removesuffix(first_name) for name in folder.tensors if name.endswith(f".{first_name}")
    )
    candidates = [
        (0, ""),
        *((0, prefix) for prefix in longer),
        *((len(".".join(parts[:n])) + 1, "") for n in (1, 2)),
    ]
    for cut, prefix in candidates:
        if all(
            prefix + name[cut:] in folder.tensors and name[:cut] == first_name[:cut]
            for name in wanted
        ):
            return lambda name, cut=cut, prefix=prefix: (
                prefix + (name[cut:] if name[:cut] == first_name[:cut] else name)
            )
    missing = next(name for name in wanted if name not in folder.tensors)
    hint = f"the adapter is for another model ({adapter.config.get('base_model_name_or_path') or 'it names none'})"
    raise AttnscopeError(
        f"the checkpoint has no '{missing}'", where=adapter.path / ADAPTER_WEIGHTS, hint=hint
    )


def _low_rank(
    adapter: _Adapter, module: str, parts: Mapping[str, TensorInfo], base: TensorInfo
) -> LowRank:
    """Return the low-rank part of a module, after checking its shapes."""
    where = f"{adapter.path / ADAPTER_WEIGHTS}: {module}"
    embedding = "lora_embedding_A" in parts
    names = [f"lora_{'embedding_' * embedding}{side}" for side in "AB"]
    magnitude = parts.get("lora_magnitude_vector")
    if set(parts) - {"lora_magnitude_vector"} != set(names) or adapter.flag("use_dora") != (
        magnitude is not None
    ):
        message = f"has {', '.join(sorted(parts))}"
        raise AttnscopeError(
            message,
            where=where,
            hint=f"expected {' and '.join(names)}, and magnitudes with use_dora",
        )
    a, b = (parts[name] for name in names)
    rank = adapter.number("r", "rank_pattern", module)
    alpha = adapter.number("lora_alpha", "alpha_pattern", module)
    turned = embedding or adapter.flag("fan_in_fan_out")
    shape = base.shape[::-1] if turned else base.shape
    if a.shape != (rank, *shape[1:]) or b.shape != (*shape[:1], rank) or len(shape) != 2:
        message = f"has shapes {list(a.shape)} and {list(b.shape)}, rank {rank}; the checkpoint has {list(base.shape)}"
        raise AttnscopeError(
            message, where=where, hint="the adapter is for another model, or for transposed weights"
        )
    if magnitude is not None and (magnitude.shape != shape[:1] or embedding):
        raise AttnscopeError(
            f"has magnitudes of shape {list(magnitude.shape)}", where=where, hint="use a plain LoRA"
        )
    scale = alpha / (sqrt(rank) if adapter.flag("use_rslora") else rank)
    return LowRank(a, b, scale, turned, magnitude)
