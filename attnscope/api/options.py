"""Arguments of the functions that `import attnscope` gives: their types, and what of a RunConfig they become."""

import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import UsageError, did_you_mean
from attnscope.base.files.mask_files import as_boolean, cells_digest
from attnscope.request.arguments import (
    STAGES,
    By,
    Dtype,
    Each,
    EngineWord,
    PartWord,
    RankBy,
    Replacement,
    WhatIf,
    device,
    one_of,
    some_of,
    text,
)
from attnscope.request.chat import chat_of
from attnscope.request.given_ids import read_ids
from attnscope.request.masks.expression import parse_mask, spell_mask
from attnscope.request.masks.terms import Function, MaskTerm, MatrixFile, ScoreFunction, function_name
from attnscope.request.options import COMPARE, RUN, Option
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import (
    AUTO,
    CutExpression,
    HeadLabel,
    IndexSelection,
    PositionSelection,
    join_label,
    parse_cut,
    parse_indices_or_label,
)
from attnscope.request.spans import SpanRange, SpanRequest, joined_texts, parse_spans, ranges_of

IndexWord = Literal["auto", "all", "mean"]
Indices = int | slice | range | Sequence[int] | IndexWord | str | Sequence[str]
Tokens = int | str | slice | range | Sequence[int | str | slice]
RolloutWord = Literal["weights", "rollout", "rollout-no-residual", "value-zeroing", "value-zeroing-rollout"]
Spans = str | Mapping[str, Any] | Sequence[str | tuple[str, str] | Mapping[str, Any]]
Stage = Literal["scores", "scaled", "masked", "weights", "output"]
Progress = Callable[[str, int, int], None]


class PretrainedModel(Protocol):
    """What is known here of a model of `transformers`."""

    @property
    def config(self) -> Any:
        """Its config."""

    @property
    def base_model(self) -> Any:
        """The model without heads for tasks."""


class TorchDtype(Protocol):
    """What is known here of a torch.dtype."""

    @property
    def is_floating_point(self) -> bool:
        """Its numbers are real."""


class TorchDevice(Protocol):
    """What is known here of a torch.device."""

    @property
    def type(self) -> str:
        """Such as `cpu`."""


class TorchTensor(Protocol):
    """What is known here of a torch.Tensor."""

    def detach(self) -> Any:
        """Return it without its gradient."""

    def cpu(self) -> Any:
        """Return it in the memory of the CPU."""


Model = str | os.PathLike[str] | PretrainedModel
Messages = Sequence[Mapping[str, Any]] | Mapping[str, Any]
BoolMatrix = np.ndarray[Any, np.dtype[np.bool_]]
FloatMatrix = np.ndarray[Any, np.dtype[np.floating[Any]]]
Mask = str | BoolMatrix | FloatMatrix | TorchTensor | Callable[..., Any]


class MachineArguments(TypedDict, total=False):
    """How a model runs, the same on every side of a comparison.

    Attributes:
        tokenizer: A tokenizer that replaces the model's own: the path of a tokenizer.json, of a vocabulary file, or of
            a folder with one; for a model of transformers also a tokenizer object.
        device: Device to run on: `auto`, `cpu`, `cuda`, `cuda:1`, or a torch.device.
        part: Attention of an encoder-decoder to show (`encoder`, `decoder` or `cross`), with `engine="transformers"`.
        max_memory: Limit on memory in bytes (or `"1.5G"`); None for half of the free memory.
        threads: Number of CPU threads; None for OMP_NUM_THREADS, or the CPUs available to this process.
        hash_weights: Record a SHA-256 hash of all weights in the report.
        ignore_key: Key of config.json to ignore although it would be refused, or several.
        trust_config: Accept a config.json that refers to its own model code. The code is not run, so the real model may
            differ.
    """

    tokenizer: object
    device: str | TorchDevice
    part: PartWord | None
    max_memory: int | str | None
    threads: int | None
    hash_weights: bool
    ignore_key: str | Sequence[str] | None
    trust_config: bool


class OpenArguments(MachineArguments, total=False):
    """How a model is opened and run; see MachineArguments for the rest.

    Attributes:
        config: A stack described in TOML: a file, or the name of a bundled one.
        adapter: Folder of a LoRA adapter to add to the model's weights.
        dtype: Data type of the model (a name or a torch.dtype); scores and softmax are always float32.
        engine: Engine that computes queries, keys and values: `native`, or `transformers`.
        qkv: Queries, keys and values that take the place of a model: a file, or what `from_qkv` returned. The text is
            left out then.
    """

    qkv: object
    config: str | os.PathLike[str] | None
    adapter: str | os.PathLike[str] | None
    dtype: Dtype | TorchDtype
    engine: EngineWord


class _Named(TypedDict, total=False):
    model: Model | None


class CallArguments(TypedDict, total=False):
    """Arguments of every call about its text.

    Attributes:
        messages: Messages of a chat in place of the text, rendered with the model's own chat template: a list of dicts
            with role and content, or a dict with `messages` and what else `apply_chat_template` takes, such as
            `documents`; or a list of such chats.
        context: The text that provides keys and values in cross-attention; for several texts, one for each or one for
            all.
        spans: How to divide the text into named spans, which `query` and `key` may then name: `sentences`, `lines`,
            `paragraphs`, `words`, `turns`, marks (`"Doc 1:,Question:"`) or a file; names with their ranges of
            characters, `{"doc": (0, 120)}`; or texts, or pairs (name, text), that joined are the text, which may then
            be left out. For several texts, a list with the ranges of each.
        truncate: Truncate texts that exceed the model's limit, with a note.
        progress: Function that receives the current step, how much of it is done, and its total.
    """

    messages: Messages | Sequence[Messages] | None
    context: str | Sequence[str | None] | None
    spans: Spans | None
    truncate: bool
    progress: Progress | None


class _Masking(CallArguments, total=False):
    pair: str | Sequence[str | None] | None
    what_if: WhatIf
    score_mod: Callable[..., Any] | None


class ModelInspectArguments(_Masking, total=False):
    """What `inspect` computes and keeps; see CallArguments, too.

    Attributes:
        pair: The second segment, for an encoder; for several texts, one for each.
        mask: `own` (the model's), `causal`, `bidirectional`, `window:N`, `prefix:N`, `block:N`, `sink:N`,
            `docs:12,30,41`, `docs:eos`, a file with a boolean matrix, or several of them joined by `+` (and), `|` (or)
            and parentheses; a boolean array or tensor, (queries, keys) or (heads, queries, keys), True where allowed,
            or an additive one of floats, 0 where allowed and −inf elsewhere, also as (1, heads, queries, keys);
            or a function of text, head, query and key, as the `mask_mod` of FlexAttention, evaluated in blocks.
        score_mod: A function of a scaled score and of text, head, query and key, as the `score_mod` of FlexAttention,
            that returns the score to use instead; None for none.
        what_if: What a different mask applies to: the whole `stack`, or only the softmax over the `same-scores`.
        hide: Tokens to hide from every query, in addition to the mask: positions, slices, and words of the text; None
            for none.
        layer: Layers from 0: a number, several, a slice or range, `auto`, `all` or `mean`; -1 is the last. Or heads by
            their labels, as for `head`.
        head: Heads, in the same form, or `"L2H3,L0H1"`; `auto` takes the one with the most weight from `query` on
            `key`; without `key`, the one whose weights depend most on content, not on distance, special tokens, the
            first, or a token that all rows attend to.
        input_ids: Token ids in place of the text, (tokens,) or (texts, tokens): lists, arrays or tensors, as a model of
            `transformers` is given them.
        attention_mask: 1 for tokens and 0 for padding, which may be on either side; None for no padding.
        position_ids: Position of every token; None for what `transformers` would count.
        token_type_ids: Segment of every token, for encoders; None for 0.
        query: Rows: positions, slices, and words or phrases of the text; None for all.
        key: Columns, in the same form.
        stages: Stages whose matrices to keep.
        top: Number of contributors per token.
        by: Measure that ranks contributors: the weight α, `value` α·‖v‖, or `projected` α·‖v W‖; `logit` ranks by
            weight, and also computes how much each part of the model adds to the logit of `target`.
        special: Include special tokens and the first token in the ranking.
        pool: Size N of an N × N map of runs of tokens that replaces the matrices; None for no map.
        predict: Keep the model's predictions; None for only if the checkpoint has an output head and predictions cost
            little.
        generate: Number of tokens by which to continue each text, each the most probable one.
        target: With `by="logit"`, the token whose logit to break down, such as `" store"` with its leading space, or
            two for the difference; None for the most probable one.
        words: Also merge the weights into weights between words, summed over a word's keys and averaged over its
            queries.
        least: If above 0, also find out which tokens receive little weight from others; over all layers and heads,
            unless `layer` or `head` selects some.
        show_padding: With several texts, also keep the rows and columns of padding.
        measure: `weights` for the attention of heads; or how much each token contributes to every token over `layer`:
            `rollout`, `rollout-no-residual`, `value-zeroing` or `value-zeroing-rollout`.
        cut: Heads and edges that the model runs without, as for `ablate`: `L5H1`, `"L5H1: it→animal"`, or several.
    """

    mask: Mask
    input_ids: object
    attention_mask: object
    position_ids: object
    token_type_ids: object
    hide: Tokens | None
    layer: Indices
    head: Indices
    query: Tokens | None
    key: Tokens | None
    stages: Stage | Sequence[Stage]
    top: int
    by: RankBy
    special: bool
    pool: int | None
    predict: bool | None
    generate: int
    target: str | Sequence[str] | None
    words: bool
    least: int
    show_padding: bool
    measure: RolloutWord
    cut: str | Sequence[str] | None


class InspectArguments(OpenArguments, ModelInspectArguments, _Named, total=False):
    """All that `attnscope.inspect` takes in addition to the text."""


class ModelExplainArguments(_Masking, total=False):
    """Arguments of `explain`; see ModelInspectArguments for the rest.

    Attributes:
        query: The token: its position, or a word.
        key: The key whose dot product to break down; None for the largest dot product.
        layer: A layer, or `auto`.
        head: A head, or `auto`.
        top: Number of keys to keep, by weight; None for all.
    """

    mask: Mask
    hide: Tokens | None
    query: int | str
    key: Tokens | None
    layer: int | Literal["auto"]
    head: int | Literal["auto"]
    top: int | None


class ExplainArguments(OpenArguments, ModelExplainArguments, _Named, total=False):
    """All that `attnscope.explain` takes in addition to the text."""


class ModelExploreArguments(_Masking, total=False):
    """Where a walk begins; see ModelInspectArguments for what is not described here.

    Attributes:
        pair: The second segment, for an encoder.
        mask: The mask to begin with.
        what_if: What a different mask applies to.
        hide: Tokens to hide from every query.
        layer: Layer to begin at: a number, or `auto`.
        head: Head to begin at, in the same form.
        query: Row to begin at: a position, or a token.
        key: Column to begin at.
        words: Begin with the weights between words; with `spans` or `messages`, a walk begins with spans.
        cut: Heads and edges to begin without: `L5H1`, `"L5H1: it→animal"`, or several.
        keys: TOML file that binds other keys to actions.
    """

    mask: Mask
    hide: Tokens | None
    layer: Indices
    head: Indices
    query: Tokens | None
    key: Tokens | None
    words: bool
    cut: str | Sequence[str] | None
    keys: str | os.PathLike[str] | None


class ModelHeadsArguments(CallArguments, total=False):
    """Arguments of `heads`; see ModelInspectArguments for query, key, mask, what_if and hide.

    Attributes:
        role: Roles to measure: a name, or several; None for all.
        measure: One number for every head instead of roles: `weight`, `value` or `projected` of `key`, or a statistic
            of the average row, such as `entropy`.
        against: Keys whose number is subtracted from that of `key`.
        words: Take the whole words that `query` and `key` name a piece of.
        draws: Number of random sequences of each kind.
        seed: Seed of the random tokens.
        needle: A sentence to hide in long texts, instead of roles: how much the retrieval heads read of it.
        answer: The part of the needle that is its answer; None for its last word.
        filler: The text around the needle, repeated if it is short; None for built-in texts.
        lengths: Tokens of the texts; None for 512 and 1024.
        depths: Shares of the text before the needle; None for 0, 0.1 and so on to 1.
        pair: The second segment, for an encoder; for several texts, one for each.
    """

    needle: str | None
    answer: str | None
    filler: str | None
    lengths: int | Sequence[int] | None
    depths: float | Sequence[float] | None
    pair: str | Sequence[str | None] | None
    role: str | Sequence[str] | None
    measure: str | None
    against: Tokens | None
    words: bool
    draws: int
    seed: int
    query: Tokens | None
    key: Tokens | None
    mask: Mask
    score_mod: Callable[..., Any] | None
    what_if: WhatIf
    hide: Tokens | None


class HeadsArguments(ModelHeadsArguments, MachineArguments, total=False):
    """All that `attnscope.heads` takes apart from the model and texts; see OpenArguments.

    One of these, or the model, may be a list of two, whose heads are compared; `tokenizer`, too.
    """

    qkv: object
    config: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
    adapter: str | os.PathLike[str] | Sequence[str | os.PathLike[str] | None] | None
    dtype: Dtype | TorchDtype | Sequence[Dtype | TorchDtype]
    engine: EngineWord | Sequence[EngineWord]


class ModelAblateArguments(CallArguments, total=False):
    """Arguments of `ablate`; see ModelInspectArguments for layer, head, query, key, mask and hide.

    Attributes:
        pair: The second segment, for an encoder.
        cut: What to cut: `L5H1`, `L5-8`, `"L5H1: it→animal"`, or several, which are cut together.
        words: Cut edges between whole words.
        each: Cut every `head`, `layer` or `edge` alone instead; layer, head, query and key restrict the choice. With
            `span`, cut the answer (or `query`) off from each span of the text (see `spans` and `messages`).
        answer: With `each="span"`, the answer, which the text is continued by; None for the last turn of a chat, or
            what the model generates.
        generate: Number of tokens of an answer that the model generates; None for 8.
        replacement: Replacement for the output of a cut head: `zero`, its `mean` over the text's tokens, or `resample`:
            its output at the same positions of other texts, averaged over draws. Edges are resampled, too.
        reference: Another text over which to compute that mean.
        patch_from: A text of equally many tokens whose activations replace those of the text: activation patching.
        others: Texts from which `resample` draws; None for built-in ones.
        draws: Number of draws; None for 4.
        seed: Seed of the draws; None for 0.
        target: A token whose logit to compare, such as `" Mary"`, or two for the difference.
        at: Tokens at which predictions and hidden states are compared; None for the last token, or for every mask
            token.
    """

    pair: str | None
    cut: str | Sequence[str] | None
    words: bool
    each: Each | None
    replacement: Replacement
    reference: str | None
    patch_from: str | None
    others: str | Sequence[str] | None
    draws: int | None
    seed: int | None
    target: str | Sequence[str] | None
    answer: str | None
    generate: int | None
    at: Tokens | None
    layer: Indices
    head: Indices
    query: Tokens | None
    key: Tokens | None
    mask: Mask
    score_mod: Callable[..., Any] | None
    hide: Tokens | None


class AblateArguments(OpenArguments, ModelAblateArguments, _Named, total=False):
    """All that `attnscope.ablate` takes in addition to the text."""


class ModelCheckArguments(CallArguments, total=False):
    """Arguments of `check`; see CallArguments.

    Attributes:
        tolerance: Largest allowed difference; None for what rounding explains in the dtype.
    """

    tolerance: float | None


class CheckArguments(OpenArguments, ModelCheckArguments, _Named, total=False):
    """All that `attnscope.check` takes in addition to the text."""


class ModelCompareArguments(_Masking, total=False):
    """Arguments of `compare`; see ModelInspectArguments.

    One of the arguments is a list with an entry for each side; several layers or texts of one side are a tuple.

    Attributes:
        layer: Layers. Without them or `head`, models, configs, adapters, dtypes and engines, and all that a tolerance
            judges, are compared in all layers and heads; masks and texts in one head, chosen as by `inspect`.
        head: Heads, in the same form.
        tolerance: Largest allowed difference of a weight; of a cell of another stage, as a share of the largest value
            that the stage has in this layer of the first side. With it, or with `relative`, the result has a verdict.
        relative: Allowed on top, as a share of the first side's value.
    """

    mask: Mask | list[Mask]
    hide: Tokens | list[Tokens | None] | None
    layer: Indices | list[Indices]
    head: Indices | list[Indices]
    query: Tokens | None
    key: Tokens | None
    stages: Stage | Sequence[Stage]
    top: int
    by: By
    special: bool
    pool: int | None
    tolerance: float | None
    relative: float | None


class CompareArguments(ModelCompareArguments, MachineArguments, total=False):
    """All that `attnscope.compare` takes in addition to texts or reports.

    Attributes:
        qkv: Queries and keys that are compared with a model: a file, or what `from_qkv` returned; or a list of them,
            which are compared with each other.
    """

    qkv: object

    model: Model | list[Model] | None
    config: str | os.PathLike[str] | list[str | os.PathLike[str]] | None
    adapter: str | os.PathLike[str] | list[str | os.PathLike[str] | None] | None
    dtype: Dtype | TorchDtype | list[Dtype | TorchDtype]
    engine: EngineWord | list[EngineWord]


def check_names(function: str, given: Mapping[str, Any], known: type | Sequence[str]) -> None:
    """Refuse a keyword that a function does not have.

    Args:
        known: Those that it has, or their TypedDict.
    """
    names = tuple(known.__annotations__ if isinstance(known, type) else known)
    for name in given:
        if name not in names:
            raise UsageError(f"{function}() has no argument '{name}'", hint=did_you_mean(name, names))


def texts_of(text: str | Sequence[str] | None, options: Mapping[str, Any]) -> tuple[TextInput, ...]:
    """Return the texts of a call, each with its pair and context, or its chats."""
    if any(options.get(name) is not None for name in IDS):
        return _texts_of_ids(text, options)
    if (messages := options.get("messages")) is not None:
        for name, value in (("text", text), *((name, options.get(name)) for name in ("pair", "context"))):
            if value is not None:
                raise UsageError(f"messages and {name} cannot be used together", hint=f"leave {name} out")
        if not isinstance(options.get("spans"), str | Mapping | None):
            hint = "use a word such as 'turns', marks, or names with ranges of the rendered text"
            raise UsageError("texts as spans cannot be used with messages", where="spans", hint=hint)
        named = [("messages", messages)]
        if several_chats(messages):
            named = [(f"messages[{n}]", chat) for n, chat in enumerate(messages)]
        return tuple(TextInput("", where=where, chat=chat_of(chat, where)) for where, chat in named)
    text, spans = _divided(text, options.get("spans"))
    if isinstance(text, str):
        texts, names = [text], ["text"]
    else:
        texts = _several("text", text)
        names = [f"text {n}" for n in range(len(texts))]
    if not texts:
        raise UsageError("no text given", where="text", hint="pass one, or several")
    pairs, contexts = (_beside(name, options.get(name), len(texts)) for name in ("pair", "context"))
    for name, values in (("text", texts), ("pair", pairs), ("context", contexts)):
        for value in values:
            if not isinstance(value, str) and not (value is None and name != "text"):
                raise UsageError(f"{value!r:.80} is not a text", where=name, hint="pass a str")
    return _with_spans([TextInput(*given) for given in zip(texts, pairs, contexts, names, strict=True)], spans)


def divided(texts: Sequence[TextInput], spans: Any) -> tuple[TextInput, ...]:
    """Return the texts that came with arrays, divided as the `spans` of a call say."""
    written = [text.text for text in texts]
    return _with_spans(texts, _divided(written[0] if len(written) == 1 else written, spans)[1])


def _with_spans(texts: Sequence[TextInput], spans: Sequence[tuple[SpanRange, ...]]) -> tuple[TextInput, ...]:
    if len(spans) not in (0, len(texts)):
        raise UsageError(f"{len(spans)} for {len(texts)} texts", where="spans", hint="pass one for each text")
    return tuple(replace(text, spans=spans[n]) if spans else text for n, text in enumerate(texts))


IDS = ("input_ids", "attention_mask", "position_ids", "token_type_ids")


def _texts_of_ids(text: Any, options: Mapping[str, Any]) -> tuple[TextInput, ...]:
    """Return texts that are given as token ids."""
    named = {"text": text} | {name: options.get(name) for name in ("messages", "pair", "context", "spans")}
    for name, value in named.items():
        if value is not None:
            raise UsageError(f"input_ids and {name} cannot be used together", hint=f"leave {name} out")
    rows = read_ids({name: options[name] for name in IDS if options.get(name) is not None}, "inspect")
    names = ["input_ids"] if len(rows) == 1 else [f"input_ids[{n}]" for n in range(len(rows))]
    return tuple(TextInput("", where=name, given=row) for name, row in zip(names, rows, strict=True))


def _divided(text: Any, spans: Any) -> tuple[Any, list[tuple[SpanRange, ...]]]:
    """Return the text or texts of a call, and their ranges if `spans` is a list; none otherwise."""
    if spans is None or isinstance(spans, str | Mapping):
        return text, []
    listed = list(spans) if _is_several(spans) else [spans]
    if listed and all(isinstance(item, Mapping) and "name" not in item for item in listed):
        return text, [ranges_of(item, f"spans[{n}]") for n, item in enumerate(listed)]
    if listed and all(isinstance(item, Mapping) for item in listed):
        return text, [ranges_of(listed, "spans")] * (1 if isinstance(text, str) else len(text))
    joined, ranges = joined_texts(listed, "spans")
    if text is None or text == joined:
        return joined, [ranges]
    if not isinstance(text, str):
        raise UsageError("texts as spans divide one text", where="spans", hint="pass the ranges of each text")
    divided, at = [], 0
    for item in ranges:
        piece = joined[item.start : item.end]
        start = text.find(piece, at)
        if start < 0:
            hint = "pass texts that follow each other in it, or leave the text out"
            raise UsageError(f"{piece!r:.80} is not in the text after character {at}", where="spans", hint=hint)
        at = start + len(piece)
        divided.append(SpanRange(item.name, start, at))
    return text, [tuple(divided)]


def _spans(value: Any) -> SpanRequest:
    """Read a division into spans; ranges of single texts are kept with the texts (see `texts_of`)."""
    if isinstance(value, str):
        return parse_spans(value)
    return SpanRequest("ranges", ranges=ranges_of(value, "spans") if isinstance(value, Mapping) else ())


def several_chats(messages: Any) -> bool:
    """Tell whether this is a list of chats rather than of messages."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence) or not messages:
        return False
    first = messages[0]
    return isinstance(first, list | tuple) or (isinstance(first, Mapping) and "messages" in first)


def _several(name: str, values: Any) -> list[Any]:
    if not _is_several(values) or isinstance(values, Mapping):
        raise UsageError(f"{values!r:.80} is not a text", where=name, hint="pass a str, or several")
    return list(values)


def _is_several(value: Any) -> bool:
    """Tell whether a value is a collection; a str is not, nor is an array without axes."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes) and getattr(value, "ndim", 1) != 0


def _beside(name: str, value: Any, count: int) -> list[Any]:
    """Return a pair or context for every text."""
    if value is None or isinstance(value, str):
        if value is not None and name == "pair" and count > 1:
            raise UsageError(f"one pair for {count} texts", where=name, hint="pass one for each text")
        return [value] * count
    values = _several(name, value)
    if len(values) != count:
        raise UsageError(f"{len(values)} for {count} texts", where=name, hint="pass one for each text")
    return values


def targets_of(options: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the tokens whose logits are broken down; None for none."""
    named = options.get("target")
    listed = [] if named is None else [named] if isinstance(named, str) else _several("target", named)
    if options.get("by") != "logit":
        if listed:
            raise UsageError("applies only to by='logit'", where="target", hint="add by='logit'")
        return None
    if len(listed) > 2 or not all(isinstance(target, str) for target in listed):
        raise UsageError(f"{named!r:.80} is not one token or two", where="target", hint="pass a str, or two")
    return tuple(listed)


def run_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a RunConfig that a call names; None leaves a field unchanged."""
    values = {}
    for name, value in options.items():
        if value is not None and name in _READERS:
            values[name] = _READERS[name](value)
    if any(isinstance(values.get(name), HeadLabel) for name in ("layer", "head")):
        values["layer"], values["head"] = join_label(values.get("layer", AUTO), values.get("head", AUTO))
    if "mask" in values and isinstance(values["mask"][0], MatrixFile) and not isinstance(options["mask"], str):
        values["matrices"] = {spell_mask(values["mask"]): _mask_matrix(options["mask"])}
    return values


def _flag(name: str) -> Callable[[Any], bool]:
    def read(value: Any) -> bool:
        if not isinstance(value, bool | np.bool_):
            raise UsageError(f"{value!r:.80} is neither True nor False", where=name)
        return bool(value)

    return read


def _path(name: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        try:
            return os.fsdecode(value)
        except TypeError as e:
            raise UsageError(f"a {type(value).__name__} is not a path", where=name, hint="pass a str or a Path") from e

    return read


def mask_of(value: Any) -> tuple[MaskTerm, ...]:
    """Return the terms of a mask; an array becomes a term whose name is a hash of its cells."""
    if isinstance(value, str):
        return parse_mask(value, "mask")
    if callable(value) and not hasattr(value, "__array__"):
        return (Function(function_name(value), value),)
    return (MatrixFile(f"array:{cells_digest(_mask_matrix(value))[:8]}"),)


def _score_mod(value: Any) -> ScoreFunction:
    if not callable(value):
        hint = "pass a function of score, b, h, q_idx and kv_idx, as for FlexAttention"
        raise UsageError(f"a {type(value).__name__} cannot be called", where="score_mod", hint=hint)
    return ScoreFunction(function_name(value), value)


def _mask_matrix(value: Any) -> "BoolMatrix":
    """Return an array or tensor as a boolean matrix of allowed keys."""
    if not hasattr(value, "__array__"):
        hint = "use a str such as 'causal', a file's name, a boolean array (queries, keys), or a function"
        raise UsageError(f"a {type(value).__name__} is not a mask", where="mask", hint=hint)
    if np.ma.is_masked(value):
        raise UsageError("is a masked array that hides cells", where="mask", hint="pass a plain one")
    try:
        if hasattr(value, "detach"):
            tensor = value.detach().cpu()
            value = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        matrix = np.array(value)
    except (TypeError, ValueError, RuntimeError) as e:
        # Tensors of bfloat16, sparse ones and those without memory have no array.
        raise UsageError(f"cannot be read as an array ({e})", where="mask", hint="pass a boolean array") from e
    try:
        matrix = as_boolean(matrix)
    except ValueError as e:
        hint = "pass True where attention is allowed, such as mask == 1, or numbers added to scores: 0 and −inf"
        raise UsageError(str(e), where="mask", hint=hint) from None
    if matrix.ndim not in (2, 3) or not matrix.size:
        hint = "pass a row per query token and a column per key token, for all heads or for each"
        raise UsageError(f"has shape {list(matrix.shape)}", where="mask", hint=hint)
    return matrix


def one_or_several(value: Any) -> list[Any]:
    """Return a value as a list; a str is one value."""
    return list(value) if _is_several(value) else [value]


def _stages(value: Any) -> tuple[str, ...]:
    named = one_or_several(value)
    if not named:
        return ()
    return some_of("stages", "stage", STAGES)(",".join(map(str, named)))


def cuts(value: Any) -> tuple[CutExpression, ...]:
    """Read one or several cut expressions; none for None."""
    if value is None:
        return ()
    named = one_or_several(value)
    for cut in named:
        if not isinstance(cut, str):
            raise UsageError(f"{cut!r:.80} is not a cut", where="cut", hint="use a str such as 'L5H1', or several")
    return tuple(parse_cut(cut, "cut") for cut in named)


def _filler(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{value!r:.80} is not a text", where="filler", hint="pass a str")
    return value


def _keys(value: Any) -> tuple[str, ...]:
    named = one_or_several(value)
    if not all(isinstance(item, str) for item in named):
        raise UsageError(f"{value!r:.80} is not a key", where="ignore_key", hint="give a str, or several")
    return tuple(named)


def indices(name: Literal["layer", "head"]) -> Callable[[Any], IndexSelection | HeadLabel]:
    """Return a reader for layers or heads: a number, several, a slice, a word, or labels such as `L2H3`."""

    def read(value: Any) -> IndexSelection | HeadLabel:
        if isinstance(value, str):
            return parse_indices_or_label(name)(value)
        try:
            if isinstance(value, slice):
                start, stop, step = (
                    None if edge is None else _whole(edge) for edge in (value.start, value.stop, value.step)
                )
                if step == 0:
                    raise ValueError
                return IndexSelection(slice=(start, stop, step))
            several = one_or_several(value)
            if several and all(isinstance(item, str) for item in several):
                return parse_indices_or_label(name)(",".join(several))
            numbers = [_whole(item) for item in several]
        except (TypeError, ValueError) as e:
            hint = "use a number, several, a slice or range, 'L2H3', 'auto', 'all' or 'mean'"
            raise UsageError(f"cannot read {value!r:.80}", where=name, hint=hint) from e
        if not numbers:
            hint = f"use 0, a list of {name}s, 'all' or 'auto'"
            raise UsageError(f"the list of {name}s is empty", where=name, hint=hint)
        return IndexSelection.of(numbers)

    return read


def positions(name: str) -> Callable[[Any], PositionSelection]:
    """Return a reader for rows or columns: positions, slices and words."""

    def read(value: Any) -> PositionSelection:
        parts = tuple(_position(name, part) for part in one_or_several(value))
        if not parts:
            hint = f"leave it out{' for all' if name in ('query', 'key') else ''}"
            raise UsageError("the list of positions is empty", where=name, hint=hint)
        return PositionSelection.of(parts)

    return read


def _position(name: str, part: Any) -> int | slice | str:
    if isinstance(part, str):
        return part
    try:
        if not isinstance(part, slice):
            return _whole(part)
        if part.step is not None:
            raise UsageError(f"{part!r} has a step", where=name, hint="use a range, or a list of positions")
        return slice(*(None if edge is None else _whole(edge) for edge in (part.start, part.stop)))
    except TypeError as e:
        hint = "use a position, a slice, a word, or several of them"
        raise UsageError(f"cannot read {part!r:.80}", where=name, hint=hint) from e


def _whole(value: Any) -> int:
    """Return a whole number; True and False are none.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(value, bool | np.bool_):
        raise TypeError
    return operator.index(value)


def _named(read: Callable[[str], Any], prefix: str = "") -> Callable[[Any], Any]:
    """Return a reader for a word, or for a torch object of that name."""
    return lambda value: read(str(value).removeprefix(prefix))


# Readers of values that are no text, or mean something else in Python.
PYTHON_READERS: dict[str, Callable[[Any], Any]] = {
    "config": _path("config"),
    "adapter": _path("adapter"),
    "dtype": _named(one_of("dtype", Dtype), "torch."),
    "device": _named(device),
    "ignore_key": _keys,
    "mask": mask_of,
    "stages": _stages,
    "spans": _spans,
    **{name: positions(name) for name in ("hide", "query", "key", "at", "against")},
    "layer": indices("layer"),
    "head": indices("head"),
    "cuts": cuts,
    "filler": _filler,
    "target": lambda value: tuple(map(text("target"), one_or_several(value))),
    "others": lambda value: tuple(map(text("others"), one_or_several(value))),
}


def read_values(options: Mapping[str, Any], known: Iterable[Option], *names: str) -> dict[str, Any]:
    """Return the given values of these arguments, read by the option table."""
    readers = {option.name: _reader(option) for option in known}
    return {name: readers[name](options[name]) for name in names if options.get(name) is not None}


def _reader(option: Option) -> Callable[[Any], Any]:
    if option.is_flag:
        return _flag(option.name)
    if option.name in ("role", "lengths", "depths"):
        return _listed(option.read)
    return PYTHON_READERS.get(option.name) or option.read or text(option.name)


def _listed(read: Callable[[str], Any] | None) -> Callable[[Any], Any]:
    """Return a reader of one value or several of what is typed with commas between them."""
    assert read is not None
    return lambda value: read(",".join(map(str, one_or_several(value))))


# The option `by` is that of compare, without `logit`.
_OF_RUN = {option.name: option for option in (*RUN, *COMPARE)}
_READERS = {
    name: _reader(option)
    for name, option in _OF_RUN.items()
    if name in RunConfig.__struct_fields__ and name not in ("model", "tokenizer", "target", "qkv")
} | {"score_mod": _score_mod}


def file_path(value: Any) -> Path:
    """Return the path of a file that is read or written."""
    return Path(_path("path")(value))


def model_path(value: Any) -> str:
    """Return the path or name of a model."""
    return _path("model")(value)


def tokenizer_path(value: Any) -> str:
    """Return the path of a tokenizer for a model that is named by a path, too."""
    if not isinstance(value, str) and not hasattr(value, "__fspath__"):
        hint = "give the path of its tokenizer.json: only a model of transformers takes a tokenizer itself"
        raise UsageError(f"a {type(value).__name__} is not a path", where="tokenizer", hint=hint)
    return _path("tokenizer")(value)
