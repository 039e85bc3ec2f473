"""A model that is opened once and used often."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, Unpack

from msgspec import structs

from attnscope.api.ablation import AblationResult, EffectsResult
from attnscope.api.dumps import read_request
from attnscope.api.dumps import texts_of as texts_of_dump
from attnscope.api.exploring import ModelExploreArguments
from attnscope.api.head_results import MeasuredResult, NeedleResult, SurveyResult
from attnscope.api.options import (
    IDS,
    check_call,
    check_names,
    divided,
    read_values,
    run_values,
    sides_of,
    texts_of,
)
from attnscope.api.results import (
    CheckResult,
    CompareResult,
    ExplainResult,
    InspectResult,
    Result,
    result_type,
)
from attnscope.api.running import given_texts, new_session, opened, running
from attnscope.base.errors import PYTHON_NAMES, UsageError
from attnscope.batch.arguments import ModelDumpArguments
from attnscope.findings.compare import Comparison
from attnscope.findings.run import Report
from attnscope.request.options import TEXT
from attnscope.request.run_config import (
    CallArguments,
    Model,
    ModelInspectArguments,
    RunConfig,
    TextInput,
)
from attnscope.studies.ablate.arguments import ModelAblateArguments
from attnscope.studies.check.arguments import ModelCheckArguments
from attnscope.studies.compare.arguments import ModelCompareArguments
from attnscope.studies.explain.arguments import ModelExplainArguments
from attnscope.studies.heads.arguments import ModelHeadsArguments
from attnscope.studies.registry import options_of, study
from attnscope.studies.study import Call, Request, imported, is_saved

if TYPE_CHECKING:
    from attnscope.batch.summary import Summary
    from attnscope.run.session import InMemory, Session

# A text, several, a saved report, or a result; or a list with one for each side.
ComparedTexts = (
    str | InspectResult | os.PathLike[str] | Sequence[str | InspectResult | os.PathLike[str]] | None
)

# The path of a file with texts; or texts, or records with the members of a line of .jsonl.
DumpedTexts = str | os.PathLike[str] | Iterable[str | Mapping[str, Any]] | None

# A text, several, a saved report, comparison or dump, or a result.
Explored = str | Sequence[str] | InspectResult | CompareResult | os.PathLike[str] | None


class OpenModel:
    """A model that is opened once and used often, from any thread.

    What it loads stays in memory until `close`, or the end of a `with` block. Calls from several threads run one after
    the other, and give the same numbers in any order.

    Attributes:
        model: What was named.
    """

    def __init__(self, model: Model | None, options: Mapping[str, Any]) -> None:
        self.model = model
        self._named = {**options, "model": model}
        self._live: dict[str, InMemory] = {}
        self._session: Session | None = new_session(self._live)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> Self:
        """Open the model now, which waits for the first call otherwise."""
        run = self._run(self._named)
        with self._session_for([run], None) as session:
            session.source(run)
        return self

    def close(self) -> None:
        """Release the model; it cannot be used afterwards."""
        self._session = None

    def inspect(
        self, text: str | Sequence[str] | None = None, **options: Unpack[ModelInspectArguments]
    ) -> InspectResult:
        """See attnscope.inspect."""
        return self._result("run", text, options, ModelInspectArguments)  # type: ignore[no-any-return]

    def explain(
        self, text: str | None = None, **options: Unpack[ModelExplainArguments]
    ) -> ExplainResult:
        """See attnscope.explain."""
        return self._result("explain", text, options, ModelExplainArguments)  # type: ignore[no-any-return]

    def explore(
        self, text: Explored = None, **options: Unpack[ModelExploreArguments]
    ) -> str | None:
        """See attnscope.explore."""
        from attnscope.api.exploring import walk

        check_names("explore", options, ModelExploreArguments)
        explored: Any = getattr(text, "data", text)
        arguments = check_call("explore", {**self._named, **options, "text": text})
        run = self._run(arguments)
        if not isinstance(explored, os.PathLike | Report | Comparison):
            run = structs.replace(run, texts=texts_of(explored, options))

        @contextmanager
        def opener(texts: Sequence[TextInput], progress: Any) -> "Iterator[Session]":
            of_texts = structs.replace(run, texts=tuple(texts))
            with self._session_for([of_texts], progress) as session:
                yield session

        return walk(explored, run, opener, arguments.keys(), options.get("keys"))

    def study(
        self, name: str, text: str | Sequence[str] | None = None, **options: Any
    ) -> Result[Any]:
        """Run a study that has no method of its own, by its name; see attnscope.studies.registry."""
        names = [*CallArguments.__annotations__, *(option.name for option in options_of(name))]
        result: Result[Any] = self._result(name, text, options, names)
        return result

    def _result(
        self, name: str, text: Any, options: Mapping[str, Any], allowed: type | Sequence[str]
    ) -> Any:
        command = study(name).command
        known_options = options_of(name)
        assert command is not None
        check_names(command.function or name, options, allowed)
        arguments = check_call(name, {**self._named, **options, "text": text})
        sides = sides_of(known_options, arguments)
        call = Call(name) if command.call is None else command.call(arguments, sides)
        own = [
            option.name
            for option in known_options
            if option.name not in RunConfig.__struct_fields__ and option.group != TEXT
        ]
        own += command.own
        values = dict.fromkeys(own) | read_values(arguments, known_options, *own)
        axis, side_values = call.sides or sides or ("", [None])
        built_in = imported(command.built_in) if command.built_in else ()
        runs = []
        for value in side_values:
            side = arguments
            if axis:
                side = {**arguments, PYTHON_NAMES.get(axis, axis): value}
            run = self._run({name: side[name] for name in side if name not in own})
            runs.append(structs.replace(run, texts=self._texts(side, run, call, built_in)))
        stand_ins = [] if any(run.texts for run in runs) else map(TextInput, built_in)
        has_built_in = call.texts == "typed" and not _names_text(arguments)
        with self._session_for(runs, arguments.get("progress"), stand_ins) as session:
            findings = command.answer(
                Request(
                    runs[0],
                    session,
                    values,
                    built_in=has_built_in,
                    axis=axis,
                    sides=list(zip(side_values, runs, strict=True)) if axis else (),
                    typed=arguments.keys(),
                )
            )
        return result_type(type(findings))(findings)

    def heads(
        self, text: str | Sequence[str] | None = None, **options: Unpack[ModelHeadsArguments]
    ) -> SurveyResult | MeasuredResult | NeedleResult:
        """See attnscope.heads."""
        return self._result("heads", text, options, ModelHeadsArguments)  # type: ignore[no-any-return]

    def ablate(
        self, text: str | None = None, **options: Unpack[ModelAblateArguments]
    ) -> AblationResult | EffectsResult:
        """See attnscope.ablate."""
        return self._result("ablate", text, options, ModelAblateArguments)  # type: ignore[no-any-return]

    def check(self, text: str | None = None, **options: Unpack[ModelCheckArguments]) -> CheckResult:
        """See attnscope.check."""
        return self._result("check", text, options, ModelCheckArguments)  # type: ignore[no-any-return]

    def compare(
        self,
        text: "ComparedTexts" = None,
        *others: str | InspectResult | os.PathLike[str],
        **options: Unpack[ModelCompareArguments],
    ) -> CompareResult:
        """See attnscope.compare; the model is the same on every side."""
        sides = _data([text, *others] if others else text)
        return self._result("compare", sides, options, ModelCompareArguments)  # type: ignore[no-any-return]

    def write_dump(
        self,
        texts: DumpedTexts = None,
        *,
        output: str | os.PathLike[str],
        **options: Unpack[ModelDumpArguments],
    ) -> "Summary":
        """See attnscope.write_dump."""
        check_names("write_dump", options, ModelDumpArguments)
        arguments = check_call(
            "batch", {**self._named, **options, "texts": texts, "output": output}
        )
        run = self._run(arguments)
        request = read_request(arguments, run, live=bool(self._live))
        progress = options.get("progress")

        def on_progress(summary: "Summary", total: int) -> None:
            if progress is not None:
                progress("texts", summary.reached, total)

        with self._session_for([run], progress, texts_of_dump(request)) as session:
            return request.write(on_progress, session=session)

    def _run(self, options: Mapping[str, Any]) -> RunConfig:
        """Return the run of a call, or of one of its sides, without texts."""
        fields, live = opened(options.get("model"), options, self._live)
        self._live.update(live)
        return RunConfig(**{**run_values(options), **fields, "texts": ()})

    def _texts(
        self, options: Mapping[str, Any], run: RunConfig, call: Call, built_in: Sequence[str]
    ) -> tuple[TextInput, ...]:
        """Return the texts of a call, or of one of its sides."""
        if call.texts == "none" or is_saved(options.get("text")):
            return ()
        if (arrays_texts := given_texts(run.qkv, self._live)) is not None:
            return divided(arrays_texts, options.get("spans"))
        if _names_text(options):
            return texts_of(options.get("text"), options)
        if call.texts == "named":
            raise UsageError("no text given", where="text", hint="pass one, or several")
        if call.texts == "typed" and built_in:
            return texts_of(built_in, options)
        return ()

    @contextmanager
    def _session_for(
        self, runs: Sequence[RunConfig], progress: Any, stand_ins: Iterable[TextInput] = ()
    ) -> "Iterator[Session]":
        """Provide the session of a call; the open one, unless the vocabulary depends on the texts.

        A model whose vocabulary is made from its texts is another one for other texts.

        Args:
            stand_ins: Built-in texts that a study adds.
        """
        # Another thread may close the model at any time.
        own = self._session
        if own is None:
            raise UsageError(
                "the model is closed", where="model", hint="use it inside its `with` block"
            )
        with running(own, self._live, progress):
            stacks = [run for run in runs if run.config is not None]
            if all(own.source(run).tokenizer.name != "words" for run in stacks):
                yield own
                return
        texts = [text for run in runs for text in run.texts]
        session = new_session(self._live, [*texts, *stand_ins])
        with running(session, self._live, progress):
            yield session


def _names_text(options: Mapping[str, Any]) -> bool:
    """Tell whether a call names a text, or what takes its place."""
    names = ("text", "messages", "image", "audio", "qkv", *IDS)
    is_divided = not isinstance(options.get("spans"), str | Mapping | None)
    return is_divided or any(options.get(name) is not None for name in names)


def _data(text: Any) -> Any:
    """Return texts, in which results are replaced by their reports; a tuple of reports has one for each side."""
    if isinstance(text, InspectResult):
        return text.data
    if isinstance(text, list | tuple):
        texts = [_data(side) for side in text]
        if isinstance(text, list) or any(map(is_saved, texts)):
            return texts
        return text
    return text
