"""The functions behind the commands, for Python.

Their arguments are Python values, and become the same RunConfig as the options of the command line. Each raises an
AttnscopeError if an argument is invalid, the model or a text cannot be used, or the run does not fit into memory.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, Unpack, overload

from attnscope.api.ablation import AblationResult, EffectsResult, UnitEffect
from attnscope.api.arrays import GivenResult, from_qkv, from_weights
from attnscope.api.comparing import are_given_alone, compare_arrays, compare_given, compare_reports, compare_texts
from attnscope.api.doctoring import DoctorResult, examine_any
from attnscope.api.dumps import DumpFile
from attnscope.api.head_changes import compare_two, list_among
from attnscope.api.head_results import HeadChangesResult, HeadValue, MeasuredResult, NeedleResult, SurveyResult
from attnscope.api.model import OpenModel
from attnscope.api.options import check_names
from attnscope.api.results import (
    CheckResult,
    CompareResult,
    Contributor,
    ExplainResult,
    HeadResult,
    InspectResult,
    Result,
    TextResult,
)
from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.request.run_config import InspectArguments, Model, OpenArguments
from attnscope.studies.ablate.arguments import AblateArguments
from attnscope.studies.check.arguments import CheckArguments
from attnscope.studies.compare.arguments import CompareArguments
from attnscope.studies.explain.arguments import ExplainArguments
from attnscope.studies.heads.arguments import HeadsArguments
from attnscope.studies.registry import STUDIES, study

__all__ = [
    "AblationResult",
    "AttnscopeError",
    "CheckResult",
    "CompareResult",
    "Contributor",
    "DoctorResult",
    "DumpFile",
    "EffectsResult",
    "ExplainResult",
    "GivenResult",
    "HeadChangesResult",
    "HeadResult",
    "HeadValue",
    "InspectResult",
    "MeasuredResult",
    "NeedleResult",
    "OpenModel",
    "SurveyResult",
    "TextResult",
    "UnitEffect",
    "ablate",
    "check",
    "compare",
    "doctor",
    "explain",
    "from_qkv",
    "from_weights",
    "heads",
    "inspect",
    "load",
    "open_model",
    "read_dump",
]

Loaded = TypeVar("Loaded", bound=Result[Any])


def inspect(text: str | Sequence[str] | None = None, **options: Unpack[InspectArguments]) -> InspectResult:
    """Show what attention does with a text, as `attnscope run` does.

    Args:
        text: The text, or several; None if `messages` or `qkv` are given, or `spans` has the texts that it consists of.
        options: `model` (a folder, the name of a bundled sample, or a model of transformers in memory) or `config`, and
            how it runs: see OpenArguments. What to compute and keep: see ModelInspectArguments.
    """
    return _call("inspect", text, options, InspectArguments)  # type: ignore[no-any-return]


def explain(text: str | None = None, **options: Unpack[ExplainArguments]) -> ExplainResult:
    """Explain the attention of one token step by step, as `attnscope explain` does.

    Args:
        text: The text; None if `messages` are given, or with `qkv`.
        options: The model, as for `inspect`; the token (`query`) and where: see ModelExplainArguments.
    """
    return _call("explain", text, options, ExplainArguments)  # type: ignore[no-any-return]


def heads(
    model: Model | Sequence[Model] | None = None,
    text: str | Sequence[str] | None = None,
    **options: Unpack[HeadsArguments],
) -> SurveyResult | MeasuredResult | NeedleResult | HeadChangesResult:
    """Measure what every head of a model does, as `attnscope heads` does.

    Args:
        model: A folder, the name of a bundled sample, or a model of transformers in memory; None for the bundled
            sample, or if `config` is given. A list of two models compares their heads, as does a list of two as
            `adapter`, `config`, `dtype`, `engine`, `tokenizer` or `qkv`.
        text: The text, or several, on which roles are measured; None for the built-in texts.
        options: How the model runs, and what to measure: see OpenArguments and ModelHeadsArguments.

    Returns:
        Every role; with `measure` or `key`, one number for every head; with `needle`, what is read of it; of two
        models, what differs.
    """
    check_names("heads", options, HeadsArguments)
    named, arguments = _split(options)
    named["model"] = model
    if (axis := list_among(named)) is not None:
        return compare_two(axis, named, text, arguments)
    with OpenModel(named.pop("model"), named) as opened:
        return opened.heads(text, **arguments)


def ablate(text: str | None = None, **options: Unpack[AblateArguments]) -> AblationResult | EffectsResult:
    """Cut heads, layers or edges out of attention and measure what changes, as `attnscope ablate` does.

    Args:
        text: The text; None if `messages` are given.
        options: The model, as for `inspect`; what to cut: see ModelAblateArguments.

    Returns:
        What changes; with `each`, the effect of every head, layer or edge.
    """
    return _call("ablate", text, options, AblateArguments)  # type: ignore[no-any-return]


def check(text: str | None = None, **options: Unpack[CheckArguments]) -> CheckResult:
    """Check whether what attnscope shows for a model can be trusted, as `attnscope check` does.

    Args:
        text: The text to check with; None for built-in texts of several kinds.
        options: The model, as for `inspect`; see ModelCheckArguments.
    """
    return _call("check", text, options, CheckArguments)  # type: ignore[no-any-return]


def doctor(
    model: Any = None,
    batch: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    collator: Callable[..., Any] | None = None,
    **options: Any,
) -> DoctorResult:
    """Examine whether the attention of a model, its backends, a collator and a batch is right, as `attnscope doctor`.

    The model runs in evaluation mode without gradients, and is afterwards as it was.

    Args:
        model: A model of transformers, any `torch.nn.Module` (with `call`, if it is not called as `model(**batch)`), or
            a folder.
        batch: What the model is trained or served with: a mapping with input_ids.
        tokenizer: Its tokenizer, of transformers or `tokenizers`, or a path; without one, probes are random tokens.
        collator: Makes a batch of a list of features (input_ids, attention_mask and, if it needs them, labels).
        options: `attn` (implementations of attention, such as `["eager", "sdpa"]`; without it, the model's own),
            `texts` of the probes, `call` (a function of model and batch that returns logits), `kind` (`causal`,
            `bidirectional` or `encoder-decoder`, if the model does not say), `documents` (the number of the document of
            every token of the batch), `prefix` (length of a prefix whose tokens see each other), `longest_probe`
            (most tokens of a text that examines windows), `progress`; for a folder also `dtype` and `device`.

    Raises:
        AttnscopeError: An argument is invalid, or the model cannot be used.
    """
    return examine_any(model, batch, tokenizer, collator, options)


def compare(
    text: str | InspectResult | os.PathLike[str] | Sequence[str | InspectResult | os.PathLike[str]] | None = None,
    *others: str | InspectResult | os.PathLike[str],
    **options: Unpack[CompareArguments],
) -> CompareResult:
    """Show what changes between masks, layers, heads, texts, models or reports, as `attnscope compare` does.

    Every side is compared with the first. The sides are several texts, or the values of one argument that is a list:
    `mask=["own", "causal"]`. Without either, the causal and the bidirectional mask are compared. Write a selection that
    all sides share as a tuple: `layer=(0, 1)` takes two layers on every side.

    Args:
        text: The text, or a report (from `inspect`, or the path of a saved one), or a list of all sides.
        others: More texts, or more reports.
        options: The model and what to compute, as for `inspect`; see ModelCompareArguments. For reports: `layer`,
            `head`, `query`, `key`, `stages`, `tolerance` and `relative`.

    With `qkv`, masks, heads or layers of these arrays are compared, or several arrays if `qkv` is a list. With `qkv`
    and a model, the weights of these arrays are compared with the model's, and `data.diagnosis` says which
    of the model's settings (scale, soft-cap, window, sinks, mask) they were computed without.

    Raises:
        AttnscopeError: A side cannot be run, or the sides cannot be compared.
    """
    check_names("compare", options, CompareArguments)
    if options.get("qkv") is not None and are_given_alone(options):
        return compare_given([side for side in (text, *others) if side is not None], options)
    if options.get("qkv") is not None:
        return compare_arrays([side for side in (text, *others) if side is not None], options)
    if text is None and options.get("messages") is None:
        raise UsageError("no text given", where="text", hint="pass one, or several")
    reports = [*text, *others] if isinstance(text, list | tuple) else [text, *others]
    if any(isinstance(side, InspectResult | os.PathLike) for side in reports):
        return compare_reports(reports, options)
    return compare_texts([text, *others], options)


def open_model(model: Model | None = None, **options: Unpack[OpenArguments]) -> OpenModel:
    """Open a model once, for several calls.

    Args:
        model: A folder, the name of a bundled sample, or a model of transformers in memory; None for the bundled
            sample, or if `config` is given.
        options: How the model runs: see OpenArguments.

    Raises:
        AttnscopeError: The model cannot be read, or is not supported.
    """
    check_names("open_model", options, OpenArguments)
    return OpenModel(model, options).open()


@overload
def load(path: str | os.PathLike[str]) -> Any: ...
@overload
def load(path: str | os.PathLike[str], kind: type[Loaded]) -> Loaded: ...
def load(path: str | os.PathLike[str], kind: type[Any] | None = None) -> Any:
    """Read findings from a file that `save` or `--output` wrote.

    Args:
        path: The .json file; for an InspectResult also the .npz or .safetensors file.
        kind: Type that the result must be, such as CompareResult; None for that of the file's findings.

    Raises:
        AttnscopeError: The file cannot be read, holds a result of another type, or is inconsistent.
    """
    from attnscope.api.loading import load_as

    return load_as(path, kind)


def read_dump(path: str | os.PathLike[str]) -> DumpFile:
    """Read the output of `attnscope batch`, record by record, and verify its checksums.

    Args:
        path: The .jsonl (.jsonl.gz, .jsonl.zst) or .json file, or the folder with shards.

    Raises:
        AttnscopeError: The file is not a dump. Iterating raises it, too, if a record is damaged or the end is missing.
    """
    return DumpFile(path)


def declared_studies() -> list[str]:
    """List the studies whose Python function follows from their declaration."""
    return [name for name in STUDIES if study(name).command is not None]


def study_function(name: str) -> Any:
    """Return the function of a study that has no code of its own here: it takes a text, and the command's options."""

    def call(text: str | Sequence[str] | None = None, **options: Any) -> Result[Any]:
        named, arguments = _split(options)
        with OpenModel(named.pop("model", None), named) as model:
            return model.study(name, text, **arguments)

    declared = study(name).command
    call.__name__, call.__doc__ = name, None if declared is None else declared.help
    return call


def _call(function: str, text: Any, options: Mapping[str, Any], known: type) -> Any:
    """Open the model, and call its method of this name."""
    check_names(function, options, known)
    named, arguments = _split(options)
    with OpenModel(named.pop("model", None), named) as model:
        return getattr(model, function)(text, **arguments)


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the arguments into those about the model and all others."""
    names = ("model", *OpenArguments.__annotations__)
    return {n: v for n, v in options.items() if n in names}, {n: v for n, v in options.items() if n not in names}
