"""The functions behind the commands, for Python.

Their arguments are Python values, and become the same RunConfig as the options of the command line. Each raises an
AttnscopeError if an argument is invalid, the model or a text cannot be used, or the run does not fit into memory.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from attnscope.api.ablation import AblationResult, EffectsResult, UnitEffect
from attnscope.api.arrays import GivenResult, from_qkv, from_weights
from attnscope.api.doctoring import DoctorResult, examine_any
from attnscope.api.dumps import DumpFile
from attnscope.api.exploring import ExploreArguments
from attnscope.api.head_results import (
    HeadChangesResult,
    HeadValue,
    MeasuredResult,
    NeedleResult,
    SurveyResult,
)
from attnscope.api.model import ComparedTexts, DumpedTexts, Explored, OpenModel
from attnscope.api.options import check_call, check_names, file_path
from attnscope.api.results import (
    CheckResult,
    CompareResult,
    Contributor,
    ExplainResult,
    HeadResult,
    InspectResult,
    Result,
    TextResult,
    result_type,
)
from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.base.files.atomic import check_name
from attnscope.base.files.reading import read_file
from attnscope.batch.arguments import DumpArguments
from attnscope.findings.array_files import ARRAY_FILES
from attnscope.findings.codec import from_json, schema_of
from attnscope.findings.run import Report
from attnscope.request.run_config import InspectArguments, Model, OpenArguments
from attnscope.studies.ablate.arguments import AblateArguments
from attnscope.studies.check.arguments import CheckArguments
from attnscope.studies.compare.arguments import CompareArguments
from attnscope.studies.explain.arguments import ExplainArguments
from attnscope.studies.heads.arguments import HeadsArguments
from attnscope.studies.registry import STUDIES, kinds, study

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
    "explore",
    "from_qkv",
    "from_weights",
    "heads",
    "inspect",
    "load",
    "open_dump",
    "open_model",
    "read_dump",
    "write_dump",
]

if TYPE_CHECKING:
    from attnscope.batch.dump_arrays import DumpArrays
    from attnscope.batch.summary import Summary

Loaded = TypeVar("Loaded", bound=Result[Any])
_CAP = 4 << 30  # bytes of a file of findings


def inspect(
    text: str | Sequence[str] | None = None, **options: Unpack[InspectArguments]
) -> InspectResult:
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


def explore(text: Explored = None, **options: Unpack[ExploreArguments]) -> str | None:
    """Walk through a text, or through findings, in this terminal, as `attnscope explore` does.

    Args:
        text: The text, or several; or what was found: a report or comparison, or the path of a saved one or of a dump
            (a pathlib.Path, since a str is a text). None if `messages` are given.
        options: The model, as for `inspect`; where to begin, and under which mask: see ModelExploreArguments.

    Returns:
        The command that shows the place that was left; None if no scene was computed.

    Raises:
        AttnscopeError: There is no terminal, textual is not installed, or the text cannot be run.
    """
    return _call("explore", text, options, ExploreArguments)  # type: ignore[no-any-return]


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
    return _call("heads", text, {**options, "model": model}, HeadsArguments)  # type: ignore[no-any-return]


def ablate(
    text: str | None = None, **options: Unpack[AblateArguments]
) -> AblationResult | EffectsResult:
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
    """
    return examine_any(model, batch, tokenizer, collator, options)


def compare(
    text: ComparedTexts = None,
    *others: str | InspectResult | os.PathLike[str],
    **options: Unpack[CompareArguments],
) -> CompareResult:
    """Show what changes between masks, layers, heads, texts, models or reports, as `attnscope compare` does.

    Every side is compared with the first. The sides are several texts, or the values of one argument that is a list:
    `mask=["own", "causal"]`. Without either, the causal and the bidirectional mask are compared. Write a selection that
    all sides share as a tuple: `layer=(0, 1)` takes two layers on every side.

    Args:
        text: The text, or a report (from `inspect`, or the path of a saved one), or a list of all sides. A text beside
            a report runs as that was made.
        others: More texts, or more reports.
        options: The model and what to compute, as for `inspect`; see ModelCompareArguments. For reports: `layer`,
            `head`, `query`, `key`, `stages`, `tolerance` and `relative`.

    With `qkv`, masks, heads or layers of these arrays are compared, or several arrays if `qkv` is a list. With `qkv`
    and a model, the weights of these arrays are compared with the model's.
    """
    sides = [text, *others] if others else text
    return _call("compare", sides, options, CompareArguments)  # type: ignore[no-any-return]


def open_model(model: Model | None = None, **options: Unpack[OpenArguments]) -> OpenModel:
    """Open a model once, for several calls.

    Args:
        model: A folder, the name of a bundled sample, or a model of transformers in memory; None for the bundled
            sample, or if `config` is given.
        options: How the model runs: see OpenArguments.
    """
    check_names("open_model", options, OpenArguments)
    check_call("run", {**options, "model": model})
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
    from attnscope.studies.compare.runs import read_report

    types = {
        findings: result_type(findings)
        for findings in (declared.findings_type() for declared in kinds())
    }
    if kind is not None and kind not in types.values():
        type_name = getattr(kind, "__name__", repr(kind))
        result_names = dict.fromkeys(result.__name__ for result in types.values())
        raise UsageError(
            f"{type_name:.80} cannot be loaded", where="kind", hint=f"use {', '.join(result_names)}"
        )
    file = file_path(path)
    held = None
    if file.suffix.lower() not in ARRAY_FILES:
        schema = schema_of(read_file(file, cap=_CAP)).partition("/")[0]
        held = next(
            (known_kind for known_kind in kinds() if known_kind.schema.partition("/")[0] == schema),
            None,
        )
    expected = next((findings for findings in types if types[findings] is kind), Report)
    if held is not None:
        expected = held.findings_type()
        if kind not in (None, types[expected]):
            hint = f"attnscope.load({os.fspath(path)!r}, attnscope.{types[expected].__name__})"
            raise AttnscopeError(
                f"holds the findings of {held.typed or held.name}", where=file, hint=hint
            )
    try:
        if expected is Report:
            return InspectResult(read_report(file))
        return types[expected](from_json(read_file(file, cap=_CAP), expected))
    except AttnscopeError as e:
        raise e.placed(file) from e


def write_dump(
    texts: DumpedTexts = None,
    *,
    output: str | os.PathLike[str],
    **options: Unpack[DumpArguments],
) -> "Summary":
    """Write the attention of many texts to a file, or resume that, as `attnscope batch` does.

    It computes in this process alone, since one that is forked off it would lack its threads and GPU: many texts are
    faster with `attnscope batch`, which has a process for each CPU.

    Args:
        texts: The file with the texts, or a folder of .arrow or .parquet files, or `-` for standard input; or the texts
            themselves, as strings or as mappings with the members of a line of .jsonl, which give the bytes of a file
            with these lines. None with `messages` or `qkv`.
        output: A .jsonl file, a name without extension for a folder of shards, `dump.parquet/` for a folder of tables,
            or a .json file.
        options: The model, as for `inspect`; what to keep: see ModelDumpArguments.

    Returns:
        How it went: `counts` of records by status (`ok`, `skipped`, `failed`), the first `failures`, how many records
        were `resumed`, and whether it was `stopped` by `max_minutes`. `read_dump` and `open_dump` read the output.
    """
    return _call("write_dump", texts, options, DumpArguments, output=output)  # type: ignore[no-any-return]


def read_dump(path: str | os.PathLike[str]) -> DumpFile:
    """Read the output of `attnscope batch`, record by record, and verify its checksums.

    Args:
        path: The .jsonl (.jsonl.gz, .jsonl.zst) or .json file, or the folder with shards.

    Raises:
        AttnscopeError: The file is not a dump. Iterating raises it, too, if a record is damaged or the end is missing.
    """
    return DumpFile(path)


def open_dump(path: str | os.PathLike[str]) -> "DumpArrays":
    """Map the arrays of a folder of shards into memory: each quantity for all texts, and each text's own.

    Nothing is read before it is used, and checksums are not compared; `attnscope verify` does that.

    Args:
        path: The folder.

    Raises:
        AttnscopeError: It is no folder of shards, or one that another program wrote.
    """
    from attnscope.batch.dump_arrays import DumpArrays

    folder = file_path(path)
    check_name(folder)
    return DumpArrays(folder)


def declared_studies() -> list[str]:
    """List the studies whose Python function follows from their declaration."""
    commands = {name: study(name).command for name in STUDIES}
    return [command.function or name for name, command in commands.items() if command is not None]


def study_function(name: str) -> Any:
    """Return the function of a study that has no code of its own here: it takes a text, and the command's options."""

    def call(text: str | Sequence[str] | None = None, **options: Any) -> Result[Any]:
        model_options, arguments = _split(options)
        with _opened(model_options) as model:
            return model.study(name, text, **arguments)

    declared = study(name).command
    call.__name__ = name
    call.__doc__ = None if declared is None else declared.help
    return call


def _call(
    function: str, text: Any, options: Mapping[str, Any], arguments_type: type, **more: Any
) -> Any:
    """Open the model, and call its method of this name."""
    check_names(function, options, tuple({"model": None} | arguments_type.__annotations__))
    model_options, arguments = _split(options)
    with _opened(model_options) as model:
        return getattr(model, function)(text, **arguments, **more)


@contextmanager
def _opened(options: Mapping[str, Any]) -> Iterator[OpenModel]:
    """Open a model for a call; one that is open already stays so."""
    model = options.get("model")
    settings = {name: value for name, value in options.items() if name != "model"}
    if not isinstance(model, OpenModel):
        with OpenModel(model, settings) as opened:
            yield opened
        return
    for name, value in settings.items():
        if value is not None:
            raise UsageError(
                "the model is open already", where=name, hint=f"pass {name} to open_model"
            )
    yield model


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the arguments into those about the model and all others."""
    names = ("model", *OpenArguments.__annotations__)
    return {n: v for n, v in options.items() if n in names}, {
        n: v for n, v in options.items() if n not in names
    }
