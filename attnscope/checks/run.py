"""What the user asked `attnscope check` in, a CheckReport out: run the model in several ways, and compare."""

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from attnscope.checks.laws import laws
from attnscope.checks.measures import apart, differences, judge, skip
from attnscope.checks.observe import Look, Seen, observe
from attnscope.checks.references import from_kernel, passed_on, same_rows
from attnscope.config import RunConfig
from attnscope.errors import AttnscopeError, ModelError
from attnscope.hosted import Guest, Hosted
from attnscope.loading import Progress
from attnscope.model.native import Native, make_batch, side_by_side
from attnscope.model.stack import Stack
from attnscope.model.walk import attention_of
from attnscope.pipeline import Session, provenance
from attnscope.report import STAGES, Token
from attnscope.report.check import Check, CheckReport, Differences
from attnscope.request import Page, resolve
from attnscope.selection import parse_mask
from attnscope.source import Source

EXACT = 1e-5  # laws are about float32 arithmetic, whatever the model runs in
LIMITS = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 5e-3}  # two ways to the same numbers, in the model's own type
_OWN, _EAGER = parse_mask("own"), "eager transformers"


@dataclass(frozen=True)
class _Job:
    """A loaded model and a text.

    Attributes:
        source: The model, described.
        loaded: The model.
        page: The text.
        look: What to look at.
        dtype: Type that the model runs in.
        exact: Limit of laws.
        limit: Limit of comparisons.
        given: The limits are the user's.
    """

    source: Source
    loaded: Stack | Guest
    page: Page
    look: Look
    dtype: str
    exact: float
    limit: float
    given: bool

    def engine(self, texts: int = 1, **more: Any) -> Native | Hosted:
        """The model under its own mask, for so many texts at once."""
        if isinstance(self.loaded, Stack):
            return Native(self.loaded, _OWN, False, {}, whole=True, **more)
        given = self.page.given
        read = None if given is None else side_by_side([given] * texts, self.look.device)
        return Hosted(self.loaded, _OWN, False, {}, read, whole=True, **more)

    def see(self, *texts: list[Token]) -> list[Seen]:
        """Every layer's attention over these texts."""
        return observe(self.engine(len(texts)), texts, self.look)


def check(run: RunConfig, tolerance: float | None = None, progress: Progress | None = None) -> CheckReport:
    """Hold what attnscope shows for a checkpoint and a text against the laws of attention, and against others.

    Args:
        run: One text, and the model.
        tolerance: What a deviation may be in every check that is not exact; None for what the dtype allows.
        progress: See pipeline.inspect.

    Raises:
        AttnscopeError: The model, the text or the memory do not allow it.
    """
    session = Session(run.texts, progress)
    source = session.source(run)
    run = replace(run, layer="all", head="all", stages=STAGES, mask="own")  # so much memory is asked for
    request = resolve(run, source)
    loaded, device = session.load(run, source, request)
    page = request.pages[0]
    look = Look(source.config.n_layers, source.config.n_heads, device, page.context)
    exact, limit = (tolerance, tolerance) if tolerance is not None else (EXACT, LIMITS[run.dtype])
    job = _Job(source, loaded, page, look, run.dtype, exact, limit, tolerance is not None)
    found, differing, dead, mask = _checks(job, session.tell)
    passed = all(one.verdict != "fail" for one in found)
    made = provenance(source, run, device)
    if any(one.reference == _EAGER for one in differing):
        made = replace(made, versions={**made.versions, "transformers": version("transformers")})
    return CheckReport(made, mask, run.texts[0].text, page.tokens, found, differing, dead, passed)


@torch.inference_mode()
def _checks(job: _Job, tell: Progress) -> tuple[list[Check], list[Differences], list[int], str]:
    steps = 5
    tell("checking", 0, steps)
    engine = job.engine()
    try:
        alone, on = _alone(job, engine)
    except AttnscopeError as e:
        if isinstance(e, ModelError) or "not finite" not in e.found:
            raise
        return [Check("every number is finite", "fail", note=str(e))], [], [], engine.mask_in_words()
    found = laws(alone, job.exact)
    found.append(on)
    tell("checking", 1, steps)
    found.append(_tiled(job, alone))
    tell("checking", 2, steps)
    found += [_prefix(job, alone), _padded(job)]
    tell("checking", 3, steps)
    kernel, by_kernel = _kernel(job, alone)
    tell("checking", 4, steps)
    others, by_others = _transformers(job, alone)
    tell("checking", steps, steps)
    dead = sorted({int(q) for one in alone for q in one.dead.any(1)[0].nonzero()})
    return [*found, kernel, *others], [*by_kernel, *by_others], dead, engine.mask_in_words()


def _alone(job: _Job, engine: Native | Hosted) -> tuple[list[Seen], Check]:
    """The text by itself, and whether what each layer passed on follows from what was seen of it."""
    name = "what a layer passes on is W·(weights·v)"
    projections = _projections(job, engine)
    if projections is None:
        return observe(engine, [job.page.tokens], job.look), skip(name, "the output projection was not found")
    went_on: dict[nn.Module, list[Tensor]] = {}

    def listen(module: nn.Module, _: Any, made: Tensor) -> None:
        went_on.setdefault(module, []).append(made)

    with ExitStack() as stack:
        for module in dict.fromkeys(projections):
            stack.callback(module.register_forward_hook(listen).remove)
        alone = observe(engine, [job.page.tokens], job.look)
    calls = [len(went_on.get(module, ())) for module in projections]
    if calls != [projections.count(module) for module in projections]:
        return alone, skip(name, "the output projection is not called once a layer")
    gaps = []
    for layer, (one, module) in enumerate(zip(alone, projections, strict=True)):
        with engine.stack.weights.holding(layer) if isinstance(engine, Native) else nullcontext():
            gaps.append(passed_on(one, module, went_on[module].pop(0)))
    return alone, judge(name, gaps, job.limit)


def _projections(job: _Job, engine: Native | Hosted) -> list[nn.Module] | None:
    """The output projection of every layer; None where any is missing."""
    if isinstance(engine, Native):
        found = [attention_of(engine.stack, layer).out for layer in range(job.look.n_layers)]
        known: list[nn.Module] = [one for one in found if one is not None]
        return known if len(known) == len(found) else None
    observe(engine, [job.page.tokens], job.look)
    layers = range(job.look.n_layers)
    return [engine.projections[i] for i in layers] if all(i in engine.projections for i in layers) else None


def _tiled(job: _Job, alone: Sequence[Seen]) -> Check:
    """Tiles of three rows and no more keys than they may see, against one tile with everything in it."""
    engine = job.engine(tile_elements=3 * alone[0].stages["scores"].shape[3])
    tiled = observe(engine, [job.page.tokens], job.look, barred=False)
    gaps = [same_rows(a, b, ("masked", "weights", "output")) for a, b in zip(tiled, alone, strict=True)]
    return judge("tiled equals whole", gaps, job.limit)


def _prefix(job: _Job, alone: Sequence[Seen]) -> Check:
    name, tokens = "a prefix does not see what follows", job.page.tokens
    if len(tokens) < 2:
        return skip(name, "the text is one token")
    if job.page.context is not None:
        return skip(name, "queries and keys are different texts")
    ahead = torch.ones(len(tokens), len(tokens), dtype=torch.bool, device=job.look.device).triu(1)
    if any((one.stages["masked"] > -torch.inf)[..., ahead].any() for one in alone) and not _is_causal(job):
        return skip(name, "the model's mask is not causal")
    shorter = job.see(tokens[: len(tokens) // 2])
    gaps = [same_rows(a, b, STAGES) for a, b in zip(alone, shorter, strict=True)]
    return judge(name, gaps, job.limit)


def _is_causal(job: _Job) -> bool:
    """The model's config promises it, whatever was seen."""
    return isinstance(job.loaded, Stack) and any(term.kind == "causal" for term in parse_mask(job.loaded.config.mask))


def _padded(job: _Job) -> Check:
    name, tokens = "padding changes nothing", job.page.tokens
    if len(tokens) < 2:
        return skip(name, "the text is one token")
    shorter = tokens[: len(tokens) // 2]
    beside, alone = job.see(shorter, tokens), job.see(shorter)
    gaps = [same_rows(a, b, STAGES) for a, b in zip(beside, alone, strict=True)]
    return judge(name, gaps, job.limit)


def _kernel(job: _Job, alone: Sequence[Seen]) -> tuple[Check, list[Differences]]:
    reference = "scaled_dot_product_attention"
    if any(one.call.rule.softcap is not None for one in alone):
        return skip(f"equals {reference}", "it knows no soft-cap"), []
    gaps = [from_kernel(one) for one in alone]
    return judge(f"equals {reference}", gaps, job.exact), [differences(reference, "output", gaps, job.exact)]


def _transformers(job: _Job, alone: Sequence[Seen]) -> tuple[list[Check], list[Differences]]:
    name, source = f"equals {_EAGER}", job.source
    if source.folder is None or source.family == "config":
        return [skip(name, "a TOML stack is no model of transformers")], []
    if isinstance(job.loaded, Stack) and not job.loaded.weights.keep:
        return [skip(name, "the whole model does not fit into memory")], []
    try:
        theirs = _eager(job)
    except AttnscopeError as e:
        return [skip(name, str(e))], []
    if len(theirs) != len(alone):
        return [skip(name, f"it shows {len(theirs)} layers")], []
    checks, found = [], []
    for stage in STAGES:
        pairs = zip(alone, theirs, strict=True)
        gaps = [apart(a.stages[stage], b[stage], absolute=stage == "weights") for a, b in pairs]
        limit = _limit_of(stage, job, alone)
        checks.append(judge(f"{name}: {stage}", gaps, limit))
        found.append(differences(_EAGER, stage, gaps, limit))
    return checks, found


def _limit_of(stage: str, job: _Job, alone: Sequence[Seen]) -> float:
    """What a stage may differ by: weights and outputs in 16 bits, by what the limit on scores makes of them.

    Scores may be apart by the limit times the largest of them, and softmax turns a difference of δ into one of δ/2 at
    most: its slope is w(1 − w) ≤ ¼, to both sides.
    """
    if job.given or job.dtype == "float32" or stage not in ("weights", "output"):
        return job.limit
    masked = [one.stages["masked"] for one in alone]
    largest = max(float(one[one.isfinite()].abs().max()) for one in masked if one.isfinite().any())
    return job.limit * max(1.0, largest / 2)


def _eager(job: _Job) -> list[dict[str, Tensor]]:
    from attnscope.hosted.reference import Work, eager

    assert job.source.folder is not None
    page, look = job.page, job.look
    batch = make_batch([page.tokens], None if page.context is None else [page.context], look.device)
    given = None if page.given is None else side_by_side([page.given], look.device)
    part = job.source.part
    return eager(Work(job.source.folder, getattr(torch, job.dtype), look.device, part, batch, given))
