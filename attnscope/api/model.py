"""A model that is opened once and used often, and what every call does around a run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec

from attnscope.api.ablation import AblationResult, EffectsResult, ablate_text
from attnscope.api.heads import MeasuredResult, SurveyResult, ask_one_number, measure_roles
from attnscope.api.options import (
    Model,
    ModelAblateArguments,
    ModelCheckArguments,
    ModelCompareArguments,
    ModelExplainArguments,
    ModelHeadsArguments,
    ModelInspectArguments,
    OpenArguments,
    check_names,
    indices,
    model_path,
    run_values,
    targets_of,
    texts_of,
    tokenizer_path,
)
from attnscope.api.results import CheckResult, CompareResult, ExplainResult, InspectResult
from attnscope.api.words import python_words
from attnscope.arguments import CHECKED_TEXT, asks_one_number, number, tolerance
from attnscope.config import RunConfig, TextInput
from attnscope.errors import UsageError

if TYPE_CHECKING:
    from attnscope.engines.transformers.opening import LiveModel
    from attnscope.pipeline import Session

_RUNNING = RLock()  # runs go one after the other: they share torch's number of threads, and so their last bits


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
        """Let go of the model; it cannot be used afterwards."""
        self._session = None

    def inspect(self, text: str | Sequence[str], **options: Unpack[ModelInspectArguments]) -> InspectResult:
        """See attnscope.inspect."""
        from attnscope.flow import reporter

        check_names("inspect", options, ModelInspectArguments)
        with self._call(options, text) as (session, texts):
            ranked: dict[str, Any] = {**options, **({"by": "weight"} if options.get("by") == "logit" else {})}
            run = msgspec.structs.replace(self._placed(session, texts, ranked), target=targets_of(options))
            if options.get("predict") is None:
                run = msgspec.structs.replace(run, predict=None)
            return InspectResult(reporter(run)(run, session=session))

    def explain(self, text: str, **options: Unpack[ModelExplainArguments]) -> ExplainResult:
        """See attnscope.explain."""
        from attnscope.explanation import explain

        check_names("explain", options, ModelExplainArguments)
        kept = options.get("top")
        window = None if kept is None else number("top", 1)(kept)
        with self._call(options, text) as (session, texts):
            run = self._placed(session, texts, {**options, "top": None})
            return ExplainResult(explain(msgspec.structs.replace(run, window=window), session=session))

    def heads(
        self, text: str | Sequence[str] | None = None, **options: Unpack[ModelHeadsArguments]
    ) -> SurveyResult | MeasuredResult:
        """See attnscope.heads."""
        from attnscope.survey.texts import TEXTS

        check_names("heads", options, ModelHeadsArguments)
        with python_words():
            question = asks_one_number(options)
        if text is None and question:
            raise UsageError("no text given", where="text", hint="give one, or several")
        with self._call(options, TEXTS if text is None else text) as (session, texts):
            others = {
                name: value for name, value in options.items() if name != "measure"
            }  # one number, not over layers
            run = self._run(() if text is None else texts, others)
            return (ask_one_number if question else measure_roles)(run, options, session)

    def ablate(self, text: str, **options: Unpack[ModelAblateArguments]) -> AblationResult | EffectsResult:
        """See attnscope.ablate."""
        check_names("ablate", options, ModelAblateArguments)
        with self._call(options, text) as (session, texts):
            return ablate_text(self._placed(session, texts, options), options, session)

    def check(self, text: str = CHECKED_TEXT, **options: Unpack[ModelCheckArguments]) -> CheckResult:
        """See attnscope.check."""
        check_names("check", options, ModelCheckArguments)
        allowed = options.get("tolerance")
        limit = None if allowed is None else tolerance("tolerance")(allowed)
        with self._call(options, text) as (session, texts):
            from attnscope.checks import check

            return CheckResult(check(self._run(texts, options), limit, session=session))

    def compare(
        self, text: str | Sequence[str], *others: str, **options: Unpack[ModelCompareArguments]
    ) -> CompareResult:
        """See attnscope.compare; the model is the same on every side."""
        from attnscope.api.comparing import compare_sides, sides_of, texts_of_sides

        check_names("compare", options, ModelCompareArguments)
        axis, sides = sides_of([text, *others], options)
        with self._session_for(texts_of_sides(sides), options) as session:
            return compare_sides(axis, [(self._values, side) for side in sides], options, session)

    def _run(self, texts: tuple[TextInput, ...], options: Mapping[str, Any]) -> RunConfig:
        return RunConfig(**{**self._values, **run_values(options), "texts": texts})

    def _placed(self, session: "Session", texts: tuple[TextInput, ...], options: Mapping[str, Any]) -> RunConfig:
        return placed(session, self._run(texts, options), options)

    @contextmanager
    def _call(self, options: Mapping[str, Any], text: Any) -> Iterator[tuple["Session", tuple[TextInput, ...]]]:
        with python_words():
            texts = texts_of(text, options)
        with self._session_for(texts, options) as session:
            yield session, texts

    @contextmanager
    def _session_for(self, texts: Sequence[TextInput], options: Mapping[str, Any]) -> "Iterator[Session]":
        """Provide what is open already.

        A model whose vocabulary is made from its texts is another one for other texts.
        """
        if self._session is None:
            raise UsageError("the model is closed", where="model", hint="use it inside its `with` block")
        progress = options.get("progress")
        with python_words(), running(self._session, self._live, progress):
            if self._from_texts is None:
                self._from_texts = self._session.source(self._run((), {})).tokenizer.name == "words"
            if not self._from_texts:
                yield self._session
                return
        session = new_session(self._live, texts)
        with python_words(), running(session, self._live, progress):
            yield session


def new_session(live: "Mapping[str, LiveModel]", texts: Sequence[TextInput] = ()) -> "Session":
    """Return a session in somebody else's process."""
    from attnscope.pipeline import Session

    return Session(texts, live=live, own_process=False)


def opened(
    model: Model | None, options: Mapping[str, Any], others: "Mapping[str, LiveModel] | None" = None
) -> "tuple[dict[str, Any], dict[str, LiveModel]]":
    """Return the fields of a RunConfig that say which model runs and how; live models of transformers by their names.

    Args:
        model: What was named.
        options: See OpenArguments.
        others: Live models that have their names already.

    Raises:
        UsageError: The arguments contradict each other, or a value is none that the argument takes.
    """
    with python_words():
        names = tuple(OpenArguments.__annotations__)
        values = run_values({name: value for name, value in options.items() if name in names})
        if model is not None and "config" in values:
            raise UsageError("model and config cannot be used together", hint="pass one of them")
        if "adapter" in values and "config" in values:
            raise UsageError("adapter and config cannot be used together", hint="an adapter belongs to a model")
        if model is not None and not isinstance(model, str) and not hasattr(model, "__fspath__"):
            return _live(model, options.get("tokenizer"), values, others or {})
        if (tokenizer := options.get("tokenizer")) is not None:
            values["tokenizer"] = tokenizer_path(tokenizer)
        return values | ({} if model is None else {"model": model_path(model)}), {}


def _live(
    model: Any, tokenizer: object, values: dict[str, Any], others: "Mapping[str, LiveModel]"
) -> "tuple[dict[str, Any], dict[str, LiveModel]]":
    from attnscope.engines.transformers.opening import LiveModel, is_pretrained

    if not is_pretrained(model):
        hint = "pass a folder, the name of a bundled sample, or a transformers model"
        raise UsageError(f"a {type(model).__name__} is not a model", where="model", hint=hint)
    from attnscope.engines.transformers.live import check_live

    dtype, device = check_live(model)
    own = {"engine": "transformers", "dtype": dtype, "device": device}
    for name, value in own.items():
        if name in values and values[name] != value:
            hint = f"leave {name} out"
            raise UsageError(f"'{values[name]}' contradicts the model, which is '{value}'", where=name, hint=hint)
    if "adapter" in values:
        hint = "load it into the model with peft"
        raise UsageError("only a checkpoint takes an adapter", where="adapter", hint=hint)
    for name, found in (
        ("hash_weights", "files to hash"),
        ("ignore_key", "config.json"),
        ("trust_config", "config.json"),
    ):
        if values.get(name):
            raise UsageError(f"a model in memory has no {found}", where=name, hint="leave it out")
    path = str(model.config.name_or_path or "")
    name = plain = f"{type(model).__name__} ({path})" if path else type(model).__name__
    count = 1
    while name in others and others[name].model is not model:
        count += 1
        name = f"{plain} {count}"
    return values | own | {"model": name}, {name: LiveModel(model, tokenizer, name)}


@contextmanager
def running(session: "Session", live: "Mapping[str, LiveModel]", progress: Any = None) -> Iterator[None]:
    """Let one run at a time in; borrow live models meanwhile, and give torch its number of threads back."""
    if progress is not None and not callable(progress):
        raise UsageError(f"{progress!r:.80} cannot be called", where="progress", hint="pass a function")
    from attnscope.engines.torch_setup import restore_threads

    with _RUNNING, ExitStack() as stack:
        stack.callback(restore_threads)
        for one in live.values():
            from attnscope.engines.transformers.live import borrowed

            stack.enter_context(borrowed(one.model))
        session.report_to(progress)
        yield


def placed(session: "Session", run: RunConfig, options: Mapping[str, Any]) -> RunConfig:
    """Return a run whose slices of layers and heads have become numbers, of which the model says how many there are."""
    for name in ("layer", "head"):
        value = options.get(name)
        if isinstance(value, slice):
            config = session.source(run).config
            count = config.n_layers if name == "layer" else config.n_heads
            run = msgspec.structs.replace(run, **{name: indices(name, value, count)})
    return run
