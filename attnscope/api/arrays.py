"""Attention of queries, keys and values, or of weights, that another program computed."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from attnscope.api.head_results import MeasuredResult, NeedleResult, SurveyResult
from attnscope.api.model import OpenModel
from attnscope.api.options import check_names
from attnscope.api.results import ExplainResult, InspectResult
from attnscope.request.arguments import By
from attnscope.request.run_config import (
    Indices,
    KeepArguments,
    ModelInspectArguments,
    Progress,
    Spans,
    Tokens,
)
from attnscope.studies.explain.arguments import ModelExplainArguments
from attnscope.studies.heads.arguments import ModelHeadsArguments

if TYPE_CHECKING:
    from attnscope.engines.arrays.given import GivenArrays

# An array of any library, a list of arrays, or a dict by layer.
Arrays = object
# A value for all layers, a list with one for each, or a dict by layer.
PerLayer = object


class FromArraysArguments(KeepArguments, total=False):
    """What `from_qkv` and `from_weights` compute and keep, by default of all layers and heads.

    See ModelInspectArguments for what is not listed.

    Attributes:
        max_memory: Limit on memory in bytes (or `"1.5G"`); None for half of the free memory.
        device: Device to compute on.
        threads: Number of CPU threads.
    """

    hide: Tokens | None
    query: Tokens | None
    key: Tokens | None
    by: By
    spans: Spans | None
    progress: Progress | None
    max_memory: int | str | None
    device: str
    threads: int | None


class GivenResult(InspectResult):
    """A report of given arrays, from which more can be computed without a model.

    Attributes:
        arrays: The arrays as `qkv` of any function takes them.
    """

    def __init__(self, report: InspectResult, arrays: "GivenArrays") -> None:
        super().__init__(report.data)
        self.arrays = arrays

    def inspect(self, **options: Unpack[ModelInspectArguments]) -> InspectResult:
        """Show other layers, heads, rows or stages; see attnscope.inspect."""
        with OpenModel(None, {"qkv": self.arrays}) as opened:
            return opened.inspect(None, **options)

    def explain(self, text: int = 0, **options: Unpack[ModelExplainArguments]) -> ExplainResult:
        """Explain the attention of one token of a text, from queries, keys and values on; see attnscope.explain."""
        with OpenModel(None, {"qkv": self.arrays.only(text)}) as opened:
            return opened.explain(None, **options)

    def measure_heads(
        self, **options: Unpack[ModelHeadsArguments]
    ) -> SurveyResult | MeasuredResult | NeedleResult:
        """Measure the roles of heads that need no other text, or one number for each; see attnscope.heads."""
        with OpenModel(None, {"qkv": self.arrays}) as opened:
            return opened.heads(None, **options)


def from_qkv(
    q: Arrays,
    k: Arrays,
    v: Arrays | None = None,
    *,
    output: Arrays | None = None,
    mask: PerLayer = "causal",
    scale: PerLayer | None = None,
    softcap: PerLayer | None = None,
    window: PerLayer | None = None,
    sinks: PerLayer | None = None,
    tokens: object | None = None,
    layers: int | Sequence[int] | None = None,
    rope: PerLayer | None = None,
    score_mod: Callable[..., Any] | None = None,
    layout: str | Sequence[str] | None = None,
    cu_seqlens: object | None = None,
    cu_seqlens_q: object | None = None,
    lengths: Sequence[int] | None = None,
    text: str | Sequence[str] | None = None,
    name: str = "given arrays",
    **options: Unpack[FromArraysArguments],
) -> GivenResult:
    """Show the attention of queries, keys and values that another program computed.

    Args:
        q: Queries: an array of NumPy, torch, or anything with DLPack or `__array__`, (heads, tokens, width). Several
            layers are a list, a dict by layer, or an axis in front. Fewer than keys, as in a step of decoding with a
            cache, are those of the last tokens.
        k: Keys in the same form; the number of query heads is a multiple of theirs.
        v: Values in the same form; None if they are unknown.
        output: The output of attention, with the heads and tokens of q and the width of v, to be compared with the
            computed one (`data.texts[0].given_output`); None if it is unknown.
        mask: Which keys a query may see: an expression such as `causal` or `causal+window:4`, a boolean matrix
            (queries, keys) or (heads, queries, keys), or a function of text, head, query and key, as the `mask_mod` of
            FlexAttention. A matrix of floats is added to the scaled scores, such as −inf or the bias of ALiBi.
        scale: Factor on q·k; None for 1/√width.
        softcap: c of c·tanh(x/c) on the scaled scores; None for none.
        window: Number of keys that a query sees at most, itself included; None for no such limit.
        sinks: A logit for every query head that takes part in the softmax and belongs to no key; None for none.
        tokens: The tokens: strings, ids, or dicts with the fields of a token, such as `{"text": "[CLS]", "special":
            True}`; of several texts one list, or a list for each. None for positions alone.
        layers: Numbers of the layers; None to count from 0.
        rope: Rotation that q and k are still to get: the base, or a dict with theta, fraction, scaling and interleaved;
            None if they are as attention takes them.
        score_mod: A function of a scaled score and of text, head, query and key, as in FlexAttention, that returns the
            score to use instead; None for none.
        layout: Order of the axes, such as `tokens,heads,width` or `thd`; with several texts also `batch` or `b`, with
            several layers `layers` or `l`. None for `heads,tokens,width`, with an axis of layers in front if there are
            four in one array, and of texts if there are four in each of several.
        cu_seqlens: Texts that are packed one after the other: first token of each, and the number of tokens.
        cu_seqlens_q: The same of the queries, if a text has fewer of them than keys.
        lengths: Tokens of each text of a batch, if they are padded to one length.
        text: The text, or several, if the tokens have places in it.
        name: What the arrays are called in the report.
        options: What to compute and keep, as for `inspect`; all layers and heads unless `layer` or `head` says less.

    Raises:
        AttnscopeError: The arrays or settings contradict each other, or hold numbers that are not finite.
    """
    check_names("from_qkv", options, FromArraysArguments)
    from attnscope.engines.arrays.making import from_arrays

    arrays = {"q": q, "k": k, "v": v, "output": output}
    rules = {
        "mask": mask,
        "scale": scale,
        "softcap": softcap,
        "window": window,
        "sinks": sinks,
        "rope": rope,
    }
    places = {"tokens": tokens, "text": text, "layout": layout, "lengths": lengths}
    packed = {"cu_seqlens": cu_seqlens, "cu_seqlens_q": cu_seqlens_q}
    values = {**rules, "score_mod": score_mod, **places, **packed}
    numbers = [layers] if isinstance(layers, int) else layers
    return _report(from_arrays(arrays, values, numbers, name), options)


def from_weights(
    weights: Arrays,
    tokens: object | None = None,
    *,
    layers: int | Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
    text: str | Sequence[str] | None = None,
    name: str = "given weights",
    **options: Unpack[FromArraysArguments],
) -> GivenResult:
    """Show weights that another program computed: views and statistics, without scores and values.

    Args:
        weights: Weights after the softmax, (heads, queries, keys), in the forms that `from_qkv` takes; the tuple of
            (texts, heads, queries, keys) that `output_attentions=True` gives is one of them.
        tokens: See `from_qkv`.
        layers: See `from_qkv`, as for the arguments that follow.
        lengths: Tokens of each text of a padded batch.
        text: The text, or several.
        name: What the weights are called in the report.
        options: What to compute and keep.

    Raises:
        AttnscopeError: The weights are none, or the tokens are too few or too many.
    """
    check_names("from_weights", options, FromArraysArguments)
    from attnscope.engines.arrays.making import from_arrays

    numbers = [layers] if isinstance(layers, int) else layers
    values = {"tokens": tokens, "text": text, "lengths": lengths}
    arrays: Any = weights
    if getattr(arrays, "ndim", 3) == 2:
        arrays = arrays[None]
    options = {"stages": ("weights",), **options}
    return _report(from_arrays({"weights": arrays}, values, numbers, name), options)


def _report(arrays: "GivenArrays", options: Mapping[str, Any]) -> GivenResult:
    machine = {
        name: options[name] for name in ("max_memory", "device", "threads") if name in options
    }
    selection: dict[str, Indices] = {"layer": "all", "head": "all"}
    with OpenModel(None, {"qkv": arrays, **machine}) as opened:
        report = opened.inspect(
            None, **{**selection, **{n: v for n, v in options.items() if n not in machine}}
        )
    return GivenResult(report, arrays)
