"""What the user asked `attnscope check` in, a CheckReport out: run the model in several ways, and compare."""

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from attnscope.checks.findings import Findings
from attnscope.checks.laws import laws
from attnscope.checks.measures import apart, differences, judge, skip
from attnscope.checks.observe import Look, Seen, observe
from attnscope.checks.references import from_kernel, passed_on, same_rows
from attnscope.checks.rounding import Limits, limits
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
        given: Limit of everything that is not exact, where the user gave one.
    """

    source: Source
    loaded: Stack | Guest
    page: Page
    look: Look
    dtype: str
    exact: float
    given: float | None

    def engine(self, texts: int = 1, **more: Any) -> Native | Hosted:
        """The model under its own mask, for so many texts at once."""
        if isinstance(self.loaded, Stack):
            return Native(self.loaded, _OWN, False, {}, whole=True, **more)
        given = self.page.given
        read = None if given is None else side_by_side([given] * texts, self.look.device)
        return Hosted(self.loaded, _OWN, False, {}, read, whole=True, **more)

    def limits(self, tokens: list[Token], alone: Sequence[Seen]) -> Limits:
        """What stages of a text may differ by between two ways to the same numbers, by layer."""
        if self.given is not None:
            return [dict.fromkeys(STAGES, self.given) for _ in alone]
        model = self.loaded if isinstance(self.loaded, Stack) else self.loaded.model
        return limits(alone, lambda: self.see(tokens), model, getattr(torch, self.dtype))

    def see(self, *texts: list[Token]) -> list[Seen]:
        """Every layer's attention over these texts."""
        return observe(self.engine(len(texts)), texts, self.look)


def check(run: RunConfig, tolerance: float | None = None, progress: Progress | None = None) -> CheckReport:
    """Hold what attnscope shows for a checkpoint and a text against the laws of attention, and against others.

    Args:
        run: One text, and the model.
        tolerance: What a deviation may be in every check that is not exact; None for what rounding can do.
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
    job = _Job(source, loaded, page, look, run.dtype, EXACT if tolerance is None else tolerance, tolerance)
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
    findings = Findings(job.look, job.page.tokens)
    try:
        alone, on = _alone(job, engine, findings)
    except AttnscopeError as e:
        if isinstance(e, ModelError) or "not finite" not in e.found:
            raise
        return [Check("every number is finite", "fail", note=str(e))], [], [], engine.mask_in_words()
    found = [*laws(alone, job.exact), *findings.checks(alone, job.exact)]
    found.append(on)
    tell("checking", 1, steps)
    bounds = job.limits(job.page.tokens, alone)
    found.append(_tiled(job, alone, bounds))
    tell("checking", 2, steps)
    found += _shorter(job, alone)
    tell("checking", 3, steps)
    kernel, by_kernel = _kernel(job, alone)
    tell("checking", 4, steps)
    others, by_others = _transformers(job, alone, bounds)
    tell("checking", steps, steps)
    dead = sorted({int(q) for one in alone for q in one.dead.any(1)[0].nonzero()})
    return [*found, kernel, *others], [*by_kernel, *by_others], dead, engine.mask_in_words()


def _alone(job: _Job, engine: Native | Hosted, findings: Findings) -> tuple[list[Seen], Check]:
    """Run the text by itself, and check whether what each layer passed on follows from what was seen of it."""
    name = "what a layer passes on is W·(weights·v)"
    projections = _projections(job, engine)
    if projections is None:
        alone = observe(engine, [job.page.tokens], job.look, beside=findings.recorders)
        return alone, skip(name, "the output projection was not found")
    went_on: dict[nn.Module, list[Tensor]] = {}

    def listen(module: nn.Module, _: Any, made: Tensor) -> None:
        went_on.setdefault(module, []).append(made)

    with ExitStack() as stack:
        for module in dict.fromkeys(projections):
            stack.callback(module.register_forward_hook(listen).remove)
        alone = observe(engine, [job.page.tokens], job.look, beside=findings.recorders)
    calls = [len(went_on.get(module, ())) for module in projections]
    if calls != [projections.count(module) for module in projections]:
        return alone, skip(name, "the output projection is not called once a layer")
    gaps = []
    for layer, (one, module) in enumerate(zip(alone, projections, strict=True)):
        with engine.stack.weights.holding(layer) if isinstance(engine, Native) else nullcontext():
            gaps.append(passed_on(one, module, went_on[module].pop(0)))
    # The same module over the same numbers: only the order of sums may be another, before its one rounding.
    once = float(torch.finfo(getattr(torch, job.dtype)).eps)
    return alone, judge(name, gaps, max(EXACT, once) if job.given is None else job.given)


def _projections(job: _Job, engine: Native | Hosted) -> list[nn.Module] | None:
    """The output projection of every layer; None where any is missing."""
    if isinstance(engine, Native):
        found = [attention_of(engine.stack, layer).out for layer in range(job.look.n_layers)]
        known: list[nn.Module] = [one for one in found if one is not None]
        return known if len(known) == len(found) else None
    observe(engine, [job.page.tokens], job.look)
    layers = range(job.look.n_layers)
    return [engine.projections[i] for i in layers] if all(i in engine.projections for i in layers) else None


def _compare(name: str, ours: Sequence[Seen], theirs: Sequence[Seen], stages: Sequence[str], bounds: Limits) -> Check:
    """A check of the rows that two lists of layers share."""
    pairs = [(stage, layer) for stage in stages for layer in range(len(theirs))]
    gaps = [same_rows(ours[layer], theirs[layer], stage) for stage, layer in pairs]
    return judge(name, gaps, [bounds[layer][stage] for stage, layer in pairs], layers=len(theirs))


def _tiled(job: _Job, alone: Sequence[Seen], bounds: Limits) -> Check:
    """Tiles of three rows and no more keys than they may see, against one tile with everything in it."""
    engine = job.engine(tile_elements=3 * alone[0].stages["scores"].shape[3])
    tiled = observe(engine, [job.page.tokens], job.look, barred=False)
    return _compare("tiled equals whole", tiled, alone, ("masked", "weights", "output"), bounds)


def _shorter(job: _Job, alone: Sequence[Seen]) -> list[Check]:
    """The first half of the text by itself, against the same tokens in the whole text, and beside it in a batch."""
    prefix, padded, tokens = "a prefix does not see what follows", "padding changes nothing", job.page.tokens
    if len(tokens) < 2:
        return [skip(name, "the text is one token") for name in (prefix, padded)]
    half = tokens[: len(tokens) // 2]
    shorter = job.see(half)
    bounds = job.limits(half, shorter)
    why = _sees_on(job, alone)
    first = skip(prefix, why) if why else _compare(prefix, alone, shorter, STAGES, bounds)
    return [first, _compare(padded, job.see(half, tokens), shorter, STAGES, bounds)]


def _sees_on(job: _Job, alone: Sequence[Seen]) -> str | None:
    """Why a prefix may see what follows; None where it may not."""
    tokens = job.page.tokens
    if job.page.context is not None:
        return "queries and keys are different texts"
    ahead = torch.ones(len(tokens), len(tokens), dtype=torch.bool, device=job.look.device).triu(1)
    if any((one.stages["masked"] > -torch.inf)[..., ahead].any() for one in alone) and not _is_causal(job):
        return "the model's mask is not causal"
    return None


def _is_causal(job: _Job) -> bool:
    """The model's config promises it, whatever was seen."""
    return isinstance(job.loaded, Stack) and any(term.kind == "causal" for term in parse_mask(job.loaded.config.mask))


def _kernel(job: _Job, alone: Sequence[Seen]) -> tuple[Check, list[Differences]]:
    reference = "scaled_dot_product_attention"
    if any(one.call.rule.softcap is not None for one in alone):
        return skip(f"equals {reference}", "it knows no soft-cap"), []
    gaps = [from_kernel(one) for one in alone]
    return judge(f"equals {reference}", gaps, job.exact), [differences(reference, "output", gaps, job.exact)]


def _transformers(job: _Job, alone: Sequence[Seen], bounds: Limits) -> tuple[list[Check], list[Differences]]:
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
        allowed = [one[stage] for one in bounds]
        checks.append(judge(f"{name}: {stage}", gaps, allowed))
        found.append(differences(_EAGER, stage, gaps, allowed))
    return checks, found


def _eager(job: _Job) -> list[dict[str, Tensor]]:
    from attnscope.hosted.reference import Work, eager

    assert job.source.folder is not None
    page, look = job.page, job.look
    batch = make_batch([page.tokens], None if page.context is None else [page.context], look.device)
    given = None if page.given is None else side_by_side([page.given], look.device)
    part = job.source.part
    return eager(Work(job.source.folder, getattr(torch, job.dtype), look.device, part, batch, given))
