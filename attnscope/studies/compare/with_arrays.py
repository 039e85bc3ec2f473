"""Compare given queries and keys with a model, on the text that they are from."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import msgspec

from attnscope.base.errors import AttnscopeError, arg
from attnscope.checkpoints.source import ModelSource, tokenize
from attnscope.engines.arrays.given import GivenArrays
from attnscope.engines.arrays.making import from_file
from attnscope.engines.arrays.opening import ArraysInMemory
from attnscope.findings.compare import Comparison
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import ALL, AUTO, IndexSelection, PositionSelection, numbered
from attnscope.run.session import Session
from attnscope.studies.compare.runs import compare_runs
from attnscope.studies.compare.tolerance import Tolerance

_MODEL_FIELDS = (
    "model",
    "config",
    "adapter",
    "tokenizer",
    "ignore_key",
    "trust_config",
    "part",
    "dtype",
    "engine",
)


def compare_with_arrays(
    run: RunConfig,
    qkv: str,
    key: PositionSelection | None,
    *,
    session: Session,
    tolerance: Tolerance | None = None,
    selected: Collection[str] = (),
) -> Comparison:
    """Run a model on the text of given arrays, and compare the weights.

    Args:
        run: The model, and its texts; none: the arrays' own.
        qkv: Queries and keys, or weights: a file, or the name of arrays that the session has in memory.
    """
    held = session.live.get(qkv)
    if isinstance(held, ArraysInMemory):
        arrays = held.given
    else:
        arrays = from_file(Path(qkv))
    if not run.texts:
        texts = tuple(TextInput(text.text, where=text.where) for text in arrays.inputs)
        run = msgspec.structs.replace(run, texts=texts)
    source = session.source(run)
    arrays = _relabelled(source, run, arrays)
    _check_sizes(source, arrays)
    if run.query is None and any(arrays.first_queries):
        run = msgspec.structs.replace(run, query=PositionSelection.of(_given_rows(arrays)))
    if run.layer == AUTO and "layer" not in selected:
        run = msgspec.structs.replace(run, layer=IndexSelection.of(arrays.layers))
    if run.head == AUTO and "head" not in selected:
        run = msgspec.structs.replace(run, head=ALL)
    sides = [(str(run.model or run.config), run), (arrays.name, _of_arrays(run, session, arrays))]
    return compare_runs("qkv", sides, key, tolerance=tolerance, session=session, selected=selected)


def _of_arrays(run: RunConfig, session: Session, arrays: GivenArrays) -> RunConfig:
    """Return the run over these arrays, which the session holds from now on."""
    session.live = {**session.live, arrays.name: ArraysInMemory(arrays)}
    default = RunConfig(())
    plain = {name: getattr(default, name) for name in _MODEL_FIELDS}
    return msgspec.structs.replace(
        run, **plain, texts=arrays.inputs, qkv=arrays.name, predict=False
    )


def _relabelled(source: ModelSource, run: RunConfig, arrays: GivenArrays) -> GivenArrays:
    """Return the arrays with the model's tokens; refuse another number of tokens."""
    if len(run.texts) != len(arrays.texts):
        message = f"{len(run.texts)} texts for arrays of {len(arrays.texts)}"
        raise AttnscopeError(
            message, where=arg("text"), hint=f"pass the text that {arrays.name} is from"
        )
    texts = []
    for text, (_, array_tokens) in zip(run.texts, arrays.texts, strict=True):
        tokens = tokenize(source, text.text, text.pair, text.where, truncate=run.truncate)[0]
        if len(tokens) != len(array_tokens):
            message = (
                f"the model makes {len(tokens)} tokens of it, the arrays have {len(array_tokens)}"
            )
            beginning = " ".join(token.text for token in array_tokens[:6])
            hint = f"pass the text that the arrays are from; theirs begins {beginning}"
            raise AttnscopeError(message, where=text.where, hint=hint)
        texts.append((text.text, tokens))
    return replace(arrays, texts=texts)


def _given_rows(arrays: GivenArrays) -> list[int]:
    """Return the positions whose queries every text gives; refuse arrays without any."""
    rows = range(max(arrays.first_queries), min(len(tokens) for _, tokens in arrays.texts))
    if not rows:
        hint = "give the queries of every token, or compare one text"
        raise AttnscopeError("no position has a query in every text", where=arrays.name, hint=hint)
    return list(rows)


def _check_sizes(source: ModelSource, arrays: GivenArrays) -> None:
    c = source.config
    if arrays.layers[-1] >= c.n_layers or arrays.sizes.heads != c.n_heads:
        message = f"the arrays have layer {arrays.layers[-1]} and {arrays.sizes.heads} heads"
        hint = f"{source.name} has {numbered('layer', c.n_layers)} and {c.n_heads} heads"
        raise AttnscopeError(message, where=arrays.name, hint=hint)
