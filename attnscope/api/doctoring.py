"""`attnscope.doctor`: examine a model that is in memory, or a folder, with a batch or a collator."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from attnscope.api.options import file_path, read_values
from attnscope.api.results import TableResult
from attnscope.base.errors import UsageError
from attnscope.findings.doctor import DoctorCheck, DoctorReport
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.studies.registry import options_of

KINDS = ("causal", "bidirectional", "encoder-decoder")


class DoctorResult(TableResult[DoctorReport]):
    """The result of `doctor`.

    Attributes:
        passed: Whether no check is wrong.
        checks: Every check, in order.
    """

    passed: bool
    checks: list[DoctorCheck]

    @property
    def wrong(self) -> list[DoctorCheck]:
        """The checks that are wrong."""
        return [check for check in self.data.checks if check.verdict == "wrong"]

    def __getitem__(self, name: str) -> DoctorCheck:
        """Return a check by its name."""
        for check in self.data.checks:
            if check.name == name:
                return check
        raise KeyError(name)


def examine_any(
    model: Any,
    batch: Mapping[str, Any] | None,
    tokenizer: Any,
    collator: Callable[..., Any] | None,
    options: Mapping[str, Any],
) -> DoctorResult:
    """Do what `attnscope.doctor` does; `options` are its other arguments."""
    arguments = _read(options)
    texts = arguments.pop("texts")
    progress = arguments.pop("progress")
    if collator is not None and not callable(collator):
        raise UsageError(
            f"{type(collator).__name__} cannot be called", where="collator", hint="pass a function"
        )
    from attnscope.engines.torch_setup import default_settings, device_failures, import_torch

    with default_settings(), device_failures():
        import_torch(freeze=False)
        if isinstance(model, str | os.PathLike) or model is None:
            from attnscope.studies.doctor.checkpoint import examine_checkpoint

            inputs = tuple(map(TextInput, texts))
            model_path = None if model is None else str(file_path(model))
            run = RunConfig(inputs, model_path, device=arguments.pop("device") or "auto")
            values = {name: arguments.pop(name) for name in ("attn", "dtype", "longest_probe")}
            if isinstance(tokenizer, str | os.PathLike):
                run = msgspec.structs.replace(run, tokenizer=str(tokenizer))
                tokenizer = None
            more = {"batch": batch, "tokenizer": tokenizer, "collator": collator, **arguments}
            return DoctorResult(examine_checkpoint(run, values, progress, **more))
        for name in ("dtype", "device"):
            if arguments.pop(name) is not None:
                raise UsageError(
                    "the model in memory has its own", where=name, hint=f"leave {name} out"
                )
        from attnscope.studies.doctor.run import LONGEST_PROBE, examine

        arguments["longest_probe"] = arguments["longest_probe"] or LONGEST_PROBE
        arguments["attn"] = arguments["attn"] or ()
        return DoctorResult(
            examine(model, batch, tokenizer, collator, texts=texts, progress=progress, **arguments)
        )


def _read(options: Mapping[str, Any]) -> dict[str, Any]:
    """Read the arguments that the command line has as well, and check the others."""
    names = (
        "attn",
        "texts",
        "dtype",
        "device",
        "call",
        "kind",
        "documents",
        "prefix",
        "longest_probe",
        "progress",
    )
    for name in options:
        if name not in names:
            raise UsageError(
                f"doctor() has no argument '{name}'", hint=f"it has {', '.join(names)}"
            )
    read: dict[str, Any] = {name: options.get(name) for name in names}
    read |= read_values(options, options_of("doctor"), "attn", "dtype", "longest_probe")
    if read["kind"] is not None and read["kind"] not in KINDS:
        raise UsageError(f"must be {', '.join(KINDS)}, not {read['kind']!r:.80}", where="kind")
    if read["call"] is not None and not callable(read["call"]):
        raise UsageError(
            f"{type(read['call']).__name__} cannot be called", where="call", hint="pass a function"
        )
    texts = read["texts"]
    all_texts: Sequence[Any]
    if texts is None:
        all_texts = ()
    elif isinstance(texts, str):
        all_texts = [texts]
    else:
        all_texts = list(texts)
    if not all(isinstance(text, str) and text.strip() for text in all_texts):
        raise UsageError("has something that is no text", where="texts", hint="pass strings")
    return {**read, "texts": all_texts}
