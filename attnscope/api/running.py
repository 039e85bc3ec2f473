"""What every call does around a run: which model is named, one run at a time, and live models that are borrowed."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from attnscope.api.options import model_path, run_values, tokenizer_path
from attnscope.base.errors import UsageError
from attnscope.request.run_config import Model, OpenArguments, TextInput

if TYPE_CHECKING:
    from attnscope.run.session import InMemory, Session

# Runs go one after the other: they share torch's number of threads, and so their last bits.
_RUNNING = RLock()


def new_session(live: "Mapping[str, InMemory]", texts: Sequence[TextInput] = ()) -> "Session":
    """Return a session for a process that attnscope does not own."""
    from attnscope.run.session import Session

    return Session(texts, live=live, own_process=False)


def opened(
    model: Model | None, options: Mapping[str, Any], objects: "Mapping[str, InMemory] | None" = None
) -> "tuple[dict[str, Any], dict[str, InMemory]]":
    """Return the RunConfig fields that name the model and how it runs, and live models by name.

    `objects` are live models that have their names already.
    """
    names = tuple(OpenArguments.__annotations__)
    values = run_values({name: value for name, value in options.items() if name in names})
    if options.get("qkv") is not None:
        return _given(options["qkv"], values, objects or {})
    if model is not None and not isinstance(model, str) and not hasattr(model, "__fspath__"):
        return _live(model, options.get("tokenizer"), values, objects or {})
    if (tokenizer := options.get("tokenizer")) is not None:
        values["tokenizer"] = tokenizer_path(tokenizer)
    return values | ({} if model is None else {"model": model_path(model)}), {}


def _given(
    qkv: object, values: dict[str, Any], objects: "Mapping[str, InMemory]"
) -> "tuple[dict[str, Any], dict[str, InMemory]]":
    """Return the fields of a RunConfig that name arrays: a file, or arrays in memory."""
    if isinstance(qkv, str | os.PathLike):
        return values | {"qkv": os.fsdecode(qkv)}, {}
    from attnscope.engines.arrays.given import GivenArrays
    from attnscope.engines.arrays.opening import ArraysInMemory

    arrays = getattr(qkv, "arrays", qkv)
    if not isinstance(arrays, GivenArrays):
        hint = "pass the path of a file, or what from_qkv() returns"
        raise UsageError(
            f"{type(qkv).__name__} is not queries, keys and values", where="qkv", hint=hint
        )
    name = _unused_name(arrays.name, objects, given=arrays)
    arrays = arrays if name == arrays.name else replace(arrays, name=name)
    return values | {"qkv": name}, {name: ArraysInMemory(arrays)}


def given_texts(qkv: str | None, live: "Mapping[str, InMemory]") -> tuple[TextInput, ...] | None:
    """Return the texts of arrays in place of a model; None with a model."""
    if qkv is None:
        return None
    from attnscope.engines.arrays.making import from_file
    from attnscope.engines.arrays.opening import ArraysInMemory

    arrays = live.get(qkv)
    if isinstance(arrays, ArraysInMemory):
        return arrays.given.inputs
    return from_file(Path(qkv)).inputs


def _unused_name(plain: str, objects: "Mapping[str, InMemory]", **members: object) -> str:
    """Return a name, numbered if another object has it than the one with these members."""
    name = plain
    count = 1
    while name in objects and any(
        getattr(objects[name], member, None) is not value for member, value in members.items()
    ):
        count += 1
        name = f"{plain} {count}"
    return name


def _live(
    model: Any, tokenizer: object, values: dict[str, Any], objects: "Mapping[str, InMemory]"
) -> "tuple[dict[str, Any], dict[str, InMemory]]":
    from attnscope.engines.transformers.opening import LiveModel, is_pretrained, pretrained_inside

    if not is_pretrained(model):
        if (inner := pretrained_inside(model)) is not None:
            hint = f"pass the model in it: model.{inner}"
            raise UsageError(
                f"{type(model).__name__} is not a model of transformers", where="model", hint=hint
            )
        hint = "pass a folder, the name of a bundled sample, or a transformers model"
        raise UsageError(f"{type(model).__name__} is not a model", where="model", hint=hint)
    from attnscope.engines.transformers.live import check_live

    dtype, device = check_live(model)
    own = {"engine": "transformers", "dtype": dtype, "device": device}
    for name, value in own.items():
        if name in values and values[name] != value:
            hint = f"leave {name} out"
            raise UsageError(
                f"'{values[name]}' contradicts the model, which is '{value}'", where=name, hint=hint
            )
    if "adapter" in values:
        hint = "load it into the model with peft"
        raise UsageError("only a checkpoint takes an adapter", where="adapter", hint=hint)
    files = {
        "hash_weights": "files to hash",
        "ignore_key": "config.json",
        "trust_config": "config.json",
    }
    for name, lacking in files.items():
        if values.get(name):
            raise UsageError(f"a model in memory has no {lacking}", where=name, hint="leave it out")
    path = str(model.config.name_or_path or "")
    plain = f"{type(model).__name__} ({path})" if path else type(model).__name__
    name = _unused_name(plain, objects, model=model, tokenizer=tokenizer)
    return values | own | {"model": name}, {name: LiveModel(model, tokenizer, name)}


@contextmanager
def running(
    session: "Session", live: "Mapping[str, InMemory]", progress: Any = None
) -> Iterator[None]:
    """Run one call at a time, with live models borrowed; restore torch's settings at the end."""
    if progress is not None and not callable(progress):
        raise UsageError(
            f"{progress!r:.80} cannot be called", where="progress", hint="pass a function"
        )
    from attnscope.engines.torch_setup import default_settings, device_failures, restore_threads

    with _RUNNING, ExitStack() as stack:
        stack.enter_context(device_failures())
        stack.enter_context(default_settings())
        stack.callback(restore_threads)
        for loaded in live.values():
            stack.enter_context(loaded.borrowed())
        session.report_to(progress)
        yield
