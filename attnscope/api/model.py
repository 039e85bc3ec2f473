"""A model that is opened once and used often."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec

from attnscope.api.ablation import AblationResult, EffectsResult
from attnscope.api.comparing import compare_sides, sides_of, texts_of_sides
from attnscope.api.exploring import ModelExploreArguments
from attnscope.api.head_results import MeasuredResult, NeedleResult, SurveyResult
from attnscope.api.options import (
    IDS,
    check_call,
    check_names,
    cuts,
    divided,
    read_values,
    run_values,
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
from attnscope.base.errors import UsageError
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
from attnscope.studies.registry import call_of, options_of, study
from attnscope.studies.study import Request, imported

if TYPE_CHECKING:
    from attnscope.run.session import Session


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
        self._values, self._live = opened(model, options)
        self._session: Session | None = new_session(self._live)
        self._from_texts: bool | None = None if self._values.get("config") else False

    @cached_property
    def _given(self) -> tuple[TextInput, ...] | None:
        """The texts of arrays in place of a model; None with a model."""
        return given_texts(self._values, self._live)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> Self:
        """Open the model now, which waits for the first call otherwise."""
        with self._session_for((), {}) as session:
            session.source(self._run((), {}))
        return self

    def close(self) -> None:
        """Release the model; it cannot be used afterwards."""
        self._session = None

    def inspect(
        self, text: str | Sequence[str] | None = None, **options: Unpack[ModelInspectArguments]
    ) -> InspectResult:
        """See attnscope.inspect."""
        check_names("inspect", options, ModelInspectArguments)
        return self._result("run", text, {**options, "cuts": options.get("cut")})  # type: ignore[no-any-return]

    def explain(
        self, text: str | None = None, **options: Unpack[ModelExplainArguments]
    ) -> ExplainResult:
        """See attnscope.explain."""
        check_names("explain", options, ModelExplainArguments)
        return self._result("explain", text, options)  # type: ignore[no-any-return]

    def explore(
        self, text: str | Sequence[str], **options: Unpack[ModelExploreArguments]
    ) -> str | None:
        """Walk through the attention of a text in this terminal, as `attnscope explore` does.

        Args:
            text: The text, or several.
            options: Where to begin, and under which mask: see ModelExploreArguments.

        Returns:
            The command that shows the place that was left; None if no scene was computed.

        Raises:
            AttnscopeError: There is no terminal, textual is not installed, or the text cannot be run.
        """
        from attnscope.api.exploring import explore_model

        check_names("explore", options, ModelExploreArguments)
        check_call("explore", text, self._named, options)
        texts = texts_of(text, options)

        @contextmanager
        def opener(texts: Sequence[TextInput], progress: Any) -> "Iterator[Session]":
            with self._session_for(texts, {"progress": progress}) as session:
                yield session

        run = self._run(
            texts, {name: value for name, value in options.items() if name not in ("keys", "cut")}
        )
        run = msgspec.structs.replace(run, cuts=cuts(options.get("cut")))
        return explore_model(run, opener, options)

    def study(
        self, name: str, text: str | Sequence[str] | None = None, **options: Any
    ) -> Result[Any]:
        """Run a study that has no method of its own, by its name; see attnscope.studies.registry."""
        check_names(
            name,
            options,
            (*CallArguments.__annotations__, *(option.name for option in options_of(name))),
        )
        result: Result[Any] = self._result(name, text, options)
        return result

    def _result(self, name: str, text: Any, options: Mapping[str, Any]) -> Any:
        command = study(name).command
        known_options = options_of(name)
        assert command is not None
        own = [
            option.name
            for option in known_options
            if option.name not in RunConfig.__struct_fields__ and option.group != TEXT
        ]
        own += command.own
        check_call(name, text, self._named, options)
        call = call_of(name, {**options, "text": text, "chat": options.get("messages")})
        values = dict.fromkeys(own) | read_values(options, known_options, *own)
        of_run = {option: value for option, value in options.items() if option not in own}
        has_text = text is not None or self._given is not None
        has_text |= any(options.get(name) is not None for name in ("messages", "image", "audio"))
        built_in = call.texts in ("built-in", "typed") and not has_text
        used_text = imported(command.built_in) if built_in else text
        with self._call(options, used_text, takes_texts=call.texts != "none") as (session, texts):
            run = self._run(() if built_in and call.texts == "built-in" else texts, of_run)
            findings = command.answer(Request(run, values, session=session, built_in=built_in))
        return result_type(type(findings))(findings)

    def heads(
        self, text: str | Sequence[str] | None = None, **options: Unpack[ModelHeadsArguments]
    ) -> SurveyResult | MeasuredResult | NeedleResult:
        """See attnscope.heads."""
        check_names("heads", options, ModelHeadsArguments)
        return self._result("heads", text, options)  # type: ignore[no-any-return]

    def ablate(
        self, text: str | None = None, **options: Unpack[ModelAblateArguments]
    ) -> AblationResult | EffectsResult:
        """See attnscope.ablate."""
        check_names("ablate", options, ModelAblateArguments)
        return self._result("ablate", text, {**options, "cuts": options.get("cut")})  # type: ignore[no-any-return]

    def check(self, text: str | None = None, **options: Unpack[ModelCheckArguments]) -> CheckResult:
        """See attnscope.check."""
        check_names("check", options, ModelCheckArguments)
        return self._result("check", text, options)  # type: ignore[no-any-return]

    def compare(
        self,
        text: str | Sequence[str] | None = None,
        *others: str,
        **options: Unpack[ModelCompareArguments],
    ) -> CompareResult:
        """See attnscope.compare; the model is the same on every side."""
        check_names("compare", options, ModelCompareArguments)
        check_call("compare", text, self._named, options, {"format": "json"})
        axis, sides = sides_of([text, *others], options)
        chosen_sides = [(self._values, side, texts_of(side["text"], side)) for side in sides]
        with self._session_for(texts_of_sides(chosen_sides), options) as session:
            return compare_sides(axis, chosen_sides, options, session)

    def _run(self, texts: tuple[TextInput, ...], options: Mapping[str, Any]) -> RunConfig:
        return RunConfig(**{**self._values, **run_values(options), "texts": texts})

    @contextmanager
    def _call(
        self, options: Mapping[str, Any], text: Any, *, takes_texts: bool = True
    ) -> Iterator[tuple["Session", tuple[TextInput, ...]]]:
        if not takes_texts:
            with self._session_for((), options) as session:
                yield session, ()
            return
        has_ids = any(
            options.get(name) is not None for name in ("messages", "image", "audio", *IDS)
        )
        elsewhere = has_ids or not isinstance(options.get("spans"), str | Mapping | None)
        if self._given is None and text is None and not elsewhere:
            raise UsageError("no text given", where="text", hint="pass one, or several")
        texts = (
            texts_of(text, options)
            if self._given is None
            else divided(self._given, options.get("spans"))
        )
        with self._session_for(texts, options) as session:
            yield session, texts

    @contextmanager
    def _session_for(
        self, texts: Sequence[TextInput], options: Mapping[str, Any]
    ) -> "Iterator[Session]":
        """Provide the session of a call; the open one, unless the vocabulary depends on the texts.

        A model whose vocabulary is made from its texts is another one for other texts.
        """
        # Another thread may close the model at any time.
        own = self._session
        progress = options.get("progress")
        if own is None:
            raise UsageError(
                "the model is closed", where="model", hint="use it inside its `with` block"
            )
        with running(own, self._live, progress):
            if self._from_texts is None:
                self._from_texts = own.source(self._run((), {})).tokenizer.name == "words"
            if not self._from_texts:
                yield own
                return
        session = new_session(self._live, texts)
        with running(session, self._live, progress):
            yield session
