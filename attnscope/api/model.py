"""A model that is opened once and used often."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec

from attnscope.api.ablation import AblationResult, EffectsResult, ablate_text
from attnscope.api.comparing import compare_sides, sides_of, texts_of_sides
from attnscope.api.heads import (
    MeasuredResult,
    NeedleResult,
    SurveyResult,
    ask_one_number,
    hide_needle,
    measure_roles,
)
from attnscope.api.options import (
    IDS,
    CallArguments,
    Model,
    ModelAblateArguments,
    ModelCheckArguments,
    ModelCompareArguments,
    ModelExplainArguments,
    ModelExploreArguments,
    ModelHeadsArguments,
    ModelInspectArguments,
    check_names,
    cuts,
    divided,
    read_values,
    run_values,
    targets_of,
    texts_of,
)
from attnscope.api.results import CheckResult, CompareResult, ExplainResult, InspectResult, Result
from attnscope.api.running import given_texts, new_session, opened, running
from attnscope.base.errors import UsageError
from attnscope.request.arguments import CHECKED_TEXTS, asks_one_number, tolerance
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.studies.registry import options_of, study
from attnscope.studies.study import Request

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
        self._values, self._live = opened(model, options)
        self._session: Session | None = new_session(self._live)
        self._given = given_texts(self._values, self._live)
        self._from_texts: bool | None = None if self._values.get("config") else False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> Self:
        """Open the model now, where that waits for the first call otherwise.

        Raises:
            AttnscopeError: It cannot be read, or is not supported.
        """
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
        from attnscope.studies.rollout.run import reporter

        check_names("inspect", options, ModelInspectArguments)
        with self._call(options, text) as (session, texts):
            ranked: dict[str, Any] = {**options, **({"by": "weight"} if options.get("by") == "logit" else {})}
            run = msgspec.structs.replace(self._run(texts, ranked), target=targets_of(options))
            run = msgspec.structs.replace(run, cuts=cuts(options.get("cut")))
            if options.get("predict") is None:
                run = msgspec.structs.replace(run, predict=None)
            return InspectResult(reporter(run)(run, session=session))

    def explain(self, text: str | None = None, **options: Unpack[ModelExplainArguments]) -> ExplainResult:
        """See attnscope.explain."""
        check_names("explain", options, ModelExplainArguments)
        return ExplainResult(self._answer("explain", text, options))

    def explore(self, text: str | Sequence[str], **options: Unpack[ModelExploreArguments]) -> str | None:
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
        texts = texts_of(text, options)

        @contextmanager
        def opener(texts: Sequence[TextInput], progress: Any) -> "Iterator[Session]":
            with self._session_for(texts, {"progress": progress}) as session:
                yield session

        run = self._run(texts, {name: value for name, value in options.items() if name not in ("keys", "cut")})
        run = msgspec.structs.replace(run, cuts=cuts(options.get("cut")))
        return explore_model(run, opener, options)

    def study(self, name: str, text: str | Sequence[str] | None = None, **options: Any) -> Result[Any]:
        """Run a study that has no method of its own, by its name; see attnscope.studies.registry."""
        check_names(name, options, (*CallArguments.__annotations__, *(option.name for option in options_of(name))))
        return Result(self._answer(name, text, options))

    def _answer(self, name: str, text: Any, options: Mapping[str, Any]) -> Any:
        command = study(name).command
        assert command is not None
        known = options_of(name)
        of_study = [
            option.name for option in known if option.name not in RunConfig.__struct_fields__ or option.name == "top"
        ]
        values = {key: None for key in of_study} | read_values(options, known, *of_study)
        with self._call(options, text) as (session, texts):
            run = self._run(texts, {key: value for key, value in options.items() if key not in of_study})
            return command.answer(Request(run, values, session=session))

    def heads(
        self, text: str | Sequence[str] | None = None, **options: Unpack[ModelHeadsArguments]
    ) -> SurveyResult | MeasuredResult | NeedleResult:
        """See attnscope.heads."""
        from attnscope.studies.heads.texts import TEXTS

        check_names("heads", options, ModelHeadsArguments)
        if options.get("needle") is not None:
            if text is not None:
                raise UsageError("text and needle cannot be used together", hint="pass the text as filler")
            with self._session_for((), options) as session:
                return hide_needle(self._run((), {}), options, session)
        question = asks_one_number(options)
        named = text is not None or options.get("messages") is not None or self._given is not None
        if question and not named:
            raise UsageError("no text given", where="text", hint="give one, or several")
        with self._call(options, text if named else TEXTS) as (session, texts):
            own_options = {
                name: value for name, value in options.items() if name != "measure"
            }  # one number, not over layers
            run = self._run(texts if named else (), own_options)
            return (ask_one_number if question else measure_roles)(run, options, session)

    def ablate(
        self, text: str | None = None, **options: Unpack[ModelAblateArguments]
    ) -> AblationResult | EffectsResult:
        """See attnscope.ablate."""
        check_names("ablate", options, ModelAblateArguments)
        with self._call(options, text) as (session, texts):
            return ablate_text(self._run(texts, options), options, session)

    def check(self, text: str | None = None, **options: Unpack[ModelCheckArguments]) -> CheckResult:
        """See attnscope.check."""
        check_names("check", options, ModelCheckArguments)
        allowed = options.get("tolerance")
        limit = None if allowed is None else tolerance("tolerance")(allowed)
        named = text is not None or options.get("messages") is not None
        with self._call(options, text if named else CHECKED_TEXTS) as (session, texts):
            from attnscope.studies.check.run import check

            return CheckResult(check(self._run(texts, options), limit, session=session, built_in=not named))

    def compare(
        self, text: str | Sequence[str] | None = None, *others: str, **options: Unpack[ModelCompareArguments]
    ) -> CompareResult:
        """See attnscope.compare; the model is the same on every side."""
        check_names("compare", options, ModelCompareArguments)
        axis, sides = sides_of([text, *others], options)
        with self._session_for(texts_of_sides(sides), options) as session:
            return compare_sides(axis, [(self._values, side, None) for side in sides], options, session)

    def _run(self, texts: tuple[TextInput, ...], options: Mapping[str, Any]) -> RunConfig:
        return RunConfig(**{**self._values, **run_values(options), "texts": texts})

    @contextmanager
    def _call(self, options: Mapping[str, Any], text: Any) -> Iterator[tuple["Session", tuple[TextInput, ...]]]:
        if self._given is not None and text is not None:
            hint = "leave it out: the tokens come with the arrays"
            raise UsageError("text and qkv cannot be used together", hint=hint)
        named = any(options.get(name) is not None for name in ("messages", *IDS))
        elsewhere = named or not isinstance(options.get("spans"), str | Mapping | None)
        if self._given is None and text is None and not elsewhere:
            raise UsageError("no text given", where="text", hint="pass one, or several")
        texts = texts_of(text, options) if self._given is None else divided(self._given, options.get("spans"))
        with self._session_for(texts, options) as session:
            yield session, texts

    @contextmanager
    def _session_for(self, texts: Sequence[TextInput], options: Mapping[str, Any]) -> "Iterator[Session]":
        """Provide the session of a call; the open one, unless the vocabulary depends on the texts.

        A model whose vocabulary is made from its texts is another one for other texts.
        """
        own, progress = self._session, options.get("progress")  # another thread may close the model at any time
        if own is None:
            raise UsageError("the model is closed", where="model", hint="use it inside its `with` block")
        with running(own, self._live, progress):
            if self._from_texts is None:
                self._from_texts = own.source(self._run((), {})).tokenizer.name == "words"
            if not self._from_texts:
                yield own
                return
        session = new_session(self._live, texts)
        with running(session, self._live, progress):
            yield session
