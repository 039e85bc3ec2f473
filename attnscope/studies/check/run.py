"""Run the model in several ways and compare them: what `attnscope check` does, without printing."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from attnscope.base.errors import AttnscopeError, NotFinite
from attnscope.checkpoints.source import ModelSource
from attnscope.engines.protocol import Engine, EngineSettings, LoadedModel
from attnscope.findings.check import Check, CheckedText, CheckReport, Differences
from attnscope.findings.heads import STAGES
from attnscope.findings.provenance import MaskUse
from attnscope.findings.tokens import PADDING, Token
from attnscope.model.batch import Batch, make_batch, pad_texts
from attnscope.model.module_hooks import in_this_thread
from attnscope.request.masks.expression import parse_mask
from attnscope.request.masks.terms import Causal, Own
from attnscope.request.options import on_command_line
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import ALL
from attnscope.run.plan import make_plan
from attnscope.run.session import Session, media_inputs, provenance, warnings_of
from attnscope.run.text_plan import TextPlan
from attnscope.studies.check.laws import (
    laws,
    projection_difference,
    row_difference,
    sdpa_difference,
)
from attnscope.studies.check.measures import (
    differences,
    largest_difference,
    make_check,
    skipped_check,
    worst_check,
    worst_differences,
)
from attnscope.studies.check.observe import LayerStages, layer_numbers, record_stages
from attnscope.studies.check.rounding import FLOOR, Limits, limits
from attnscope.studies.check.texts import drawn_text, fitting_texts

if TYPE_CHECKING:
    from attnscope.engines.transformers.loading import TransformersModel

EXACT = 1e-5  # invariants concern float32 arithmetic, whatever the dtype of the model
_OWN = parse_mask("own")
_EAGER = "eager transformers"


@dataclass(frozen=True)
class _CheckedModel:
    source: ModelSource
    model: LoadedModel
    reference: "Callable[[], TransformersModel]"  # loads the model with transformers, once
    text_plan: TextPlan
    device: torch.device
    dtype: str
    exact: float  # limit of the laws
    user_limit: float | None  # limit of all other checks; None for the default

    def engine(self, texts: int = 1, tile_elements: int | None = None) -> Engine:
        """Return the model under its own mask, for this many texts at once."""
        encoder_tokens = self.text_plan.encoder_tokens
        read = None
        if encoder_tokens is not None:
            read = pad_texts([encoder_tokens] * texts, self.device)
        settings = EngineSettings(
            _OWN, encoder_texts=read, tile_elements=tile_elements, all_outputs=True
        )
        return self.model.under(settings)

    def limits(self, tokens: list[Token], alone: Sequence[LayerStages]) -> Limits:
        """Return the allowed difference of each stage between two ways to the same numbers, by layer."""
        if self.user_limit is not None:
            return [dict.fromkeys(STAGES, self.user_limit) for _ in alone]
        return limits(
            alone, lambda: self.stages_of(tokens), self.model.module, getattr(torch, self.dtype)
        )

    def judge(
        self, n_layers: int, compare: Callable[[Limits], list[Check]], bounds: Callable[[], Limits]
    ) -> list[Check]:
        """Judge by the parity of float32; measure what rounding explains only if that does not suffice."""
        if self.user_limit is None and self.dtype == "float32":
            checks = compare([dict.fromkeys(STAGES, FLOOR) for _ in range(n_layers)])
            if all(check.verdict != "fail" for check in checks):
                return checks
        return compare(bounds())

    def stages_of(self, *texts: list[Token]) -> list[LayerStages]:
        """Return every layer's attention over these texts."""
        return record_stages(self.engine(len(texts)), self.batch(*texts))

    def batch(self, *texts: list[Token]) -> Batch:
        """Return texts side by side, by default the checked one."""
        texts = texts or (self.text_plan.tokens,)
        context = self.text_plan.context
        media = media_inputs([self.text_plan]) * len(texts)
        return make_batch(
            texts, None if context is None else [context] * len(texts), self.device, media=media
        )


def check(
    run: RunConfig,
    tolerance: float | None = None,
    session: Session | None = None,
    *,
    built_in: bool = False,
) -> CheckReport:
    """Check attnscope's findings for a checkpoint and some texts by the laws of attention, and by references.

    Built-in texts that the vocabulary does not fit are left out, others are truncated, and one is drawn from the
    vocabulary.
    """
    session = session or Session(run.texts)
    source, run = session.open(run)
    source.require_model("check")
    # memory is estimated for this
    run = replace(run, layer=ALL, head=ALL, stages=STAGES, mask=(Own(),))
    if built_in:
        run = replace(run, texts=fitting_texts(run.texts, source), truncate=True)
    plan = make_plan(run, source)
    model, device = session.load(plan)
    named_texts = [
        (text.text, _whole(text_plan))
        for text, text_plan in zip(run.texts, plan.text_plans, strict=True)
    ]
    if built_in and (random_text := drawn_text(source, plan.text_plans)) is not None:
        named_texts.append(random_text)

    @cache
    def reference() -> "TransformersModel":
        from attnscope.engines.transformers.reference import load_reference

        kept = (
            model if run.media_kind is not None else source.folder or model
        )  # an engine of transformers runs pictures and sounds
        return load_reference(kept, getattr(torch, run.dtype), device, source.part)

    texts = list[CheckedText]()
    results = list[list[Check]]()
    differing = list[list[Differences]]()
    mask = ""
    for text_index, (text, text_plan) in enumerate(named_texts):
        exact = EXACT if tolerance is None else tolerance
        job = _CheckedModel(
            source, model, reference, text_plan, device, run.dtype, exact, tolerance
        )

        def on_step(done: int, total: int, index: int = text_index) -> None:
            session.on_progress("checking", index * total + done, len(named_texts) * total)

        checks, gaps, fully_masked, mask = _checks(job, on_step)
        texts.append(CheckedText(text, None, text_plan.tokens, None, fully_masked))
        results.append([replace(result, text=text_index) for result in checks])
        differing.append(gaps)
    warnings = [] if built_in else warnings_of(plan.text_plans)
    model_provenance = provenance(source, run, device, warnings=warnings)
    if any(difference.reference == _EAGER for gaps in differing for difference in gaps):
        versions = {**model_provenance.versions, "transformers": version("transformers")}
        model_provenance = replace(model_provenance, versions=versions)
    passed = all(result.verdict != "fail" for checks in results for result in checks)
    worst = worst_check(results), worst_differences(differing)
    return CheckReport(model_provenance, MaskUse(mask, mask), texts, *worst, passed)


def _whole(text: TextPlan) -> TextPlan:
    """Return a text with the padding that a model adds to a sound as tokens, so that its rows are complete."""
    padding = [PADDING] * (0 if text.media is None else text.media.padding)
    if text.context is None:
        return replace_fields(text, tokens=[*text.tokens, *padding])
    return replace_fields(text, context=[*text.context, *padding])


@torch.inference_mode()
def _checks(
    job: _CheckedModel, on_step: Callable[[int, int], None]
) -> tuple[list[Check], list[Differences], list[int], str]:
    steps = 5
    on_step(0, steps)
    engine = job.engine()
    try:
        alone, on = _alone(job, engine)
    except NotFinite as e:
        return (
            [Check("every number is finite", "fail", note=e.line(on_command_line))],
            [],
            [],
            engine.describe_mask(),
        )
    checks = [*laws(alone, job.exact), on]
    on_step(1, steps)
    bounds = cache(lambda: job.limits(job.text_plan.tokens, alone))
    checks.append(_tiled(job, alone, bounds))
    on_step(2, steps)
    checks += _shorter(job, alone)
    on_step(3, steps)
    kernel, by_kernel = _kernel(job, alone)
    on_step(4, steps)
    parity, by_parity = _transformers(job, alone, bounds)
    on_step(steps, steps)
    fully_masked = sorted(
        {int(q) for layer in alone for q in layer.fully_masked.any(1)[0].nonzero()}
    )
    return (
        [*checks, kernel, *parity],
        [*by_kernel, *by_parity],
        fully_masked,
        engine.describe_mask(),
    )


def _alone(job: _CheckedModel, engine: Engine) -> tuple[list[LayerStages], Check]:
    """Run the text by itself, and check that each layer's passed-on output follows from its recorded stages."""
    name = "the output of attention is W·(weights·v)"
    batch = job.batch()
    by_layer = engine.output_projections(batch)
    found = [by_layer[layer] for layer in engine.layers]
    projections = [projection for projection in found if projection is not None]
    went_on: dict[nn.Module, list[Tensor]] = {}

    def listen(module: nn.Module, _: Any, output: Tensor) -> None:
        went_on.setdefault(module, []).append(output)

    with ExitStack() as stack:
        for module in dict.fromkeys(projections):
            stack.callback(module.register_forward_hook(in_this_thread(listen)).remove)
        alone = record_stages(engine, batch)
    if len(projections) < len(found):
        return alone, skipped_check(
            name, job.source.no_projection or "the output projection was not found"
        )
    calls = [len(went_on.get(module, ())) for module in projections]
    if calls != [projections.count(module) for module in projections]:
        return alone, skipped_check(
            name, "the output projection is not called exactly once per layer"
        )
    gaps = []
    for stages, module in zip(alone, projections, strict=True):
        with engine.holding(stages.inputs.layer):
            gaps.append(projection_difference(stages, module, went_on[module].pop(0)))
    # The same module on the same numbers: only the order of sums may differ, before one rounding.
    once = float(torch.finfo(getattr(torch, job.dtype)).eps)
    limit = max(EXACT, once) if job.user_limit is None else job.user_limit
    return alone, make_check(name, gaps, limit, layer_numbers(alone))


def _compare(
    name: str,
    layers: Sequence[LayerStages],
    reference: Sequence[LayerStages],
    stages: Sequence[str],
    bounds: Limits,
) -> Check:
    """Check the rows that two lists of layers share."""
    pairs = [(stage, layer) for stage in stages for layer in range(len(reference))]
    gaps = [row_difference(layers[layer], reference[layer], stage) for stage, layer in pairs]
    return make_check(
        name, gaps, [bounds[layer][stage] for stage, layer in pairs], layer_numbers(reference)
    )


def _tiled(job: _CheckedModel, alone: Sequence[LayerStages], bounds: Callable[[], Limits]) -> Check:
    """Compare tiles of three rows, with only the keys that they may see, with one tile of everything."""
    engine = job.engine(tile_elements=3 * alone[0].stages["scores"].shape[3])
    tiled = record_stages(engine, job.batch(), include_masked=False)
    name = "computing in tiles changes nothing"
    stages = ("masked", "weights", "output")
    return job.judge(
        len(alone), lambda limits: [_compare(name, tiled, alone, stages, limits)], bounds
    )[0]


def _shorter(job: _CheckedModel, alone: Sequence[LayerStages]) -> list[Check]:
    """Compare the first half of the text by itself with the same tokens in the whole text, and beside it in a batch."""
    prefix = "a prefix does not see what follows"
    padded = "padding changes nothing"
    tokens = job.text_plan.tokens
    if job.text_plan.media is not None:
        return [
            skipped_check(name, "a picture or sound cannot be cut in half")
            for name in (prefix, padded)
        ]
    if len(tokens) < 2:
        return [skipped_check(name, "the text is one token") for name in (prefix, padded)]
    half = tokens[: len(tokens) // 2]
    shorter = job.stages_of(half)
    in_batch = job.stages_of(half, tokens)
    why = _sees_on(job, alone)

    def compare(bounds: Limits) -> list[Check]:
        if why:
            prefix_check = skipped_check(prefix, why)
        else:
            prefix_check = _compare(prefix, alone, shorter, STAGES, bounds)
        return [prefix_check, _compare(padded, in_batch, shorter, STAGES, bounds)]

    return job.judge(len(shorter), compare, lambda: job.limits(half, shorter))


def _sees_on(job: _CheckedModel, alone: Sequence[LayerStages]) -> str | None:
    """Return why a prefix may see later tokens; None if it may not."""
    tokens = job.text_plan.tokens
    if job.text_plan.context is not None:
        return "queries and keys are different texts"
    source = job.source
    causal = source.mask_known and any(
        isinstance(term, Causal) for term in parse_mask(source.config.mask)
    )
    ahead = torch.ones(
        len(tokens), len(tokens), dtype=torch.bool, device=alone[0].inputs.q.device
    ).triu(1)
    if (
        any((layer.stages["masked"] > -torch.inf)[..., ahead].any() for layer in alone)
        and not causal
    ):
        return "the model's mask is not causal"
    return None


def _kernel(job: _CheckedModel, alone: Sequence[LayerStages]) -> tuple[Check, list[Differences]]:
    reference = "scaled_dot_product_attention"
    name = "equals PyTorch's SDPA"
    if any(layer.inputs.spec.softcap is not None for layer in alone):
        return skipped_check(name, "it has no soft-cap"), []
    gaps = [sdpa_difference(layer) for layer in alone]
    layers = layer_numbers(alone)
    return make_check(name, gaps, job.exact, layers), [
        differences(reference, "output", gaps, job.exact, layers)
    ]


def _transformers(
    job: _CheckedModel, alone: Sequence[LayerStages], bounds: Callable[[], Limits]
) -> tuple[list[Check], list[Differences]]:
    name = f"equals {_EAGER}"
    source = job.source
    if source.family == "config":
        return [skipped_check(name, "a TOML stack is not a transformers model")], []
    if job.model.stream:
        return [skipped_check(name, "the whole model does not fit in memory")], []
    try:
        reference = _eager(job)
    except AttnscopeError as e:
        return [skipped_check(name, e.line(on_command_line))], []
    if len(reference) != len(alone):
        return [skipped_check(name, f"it returns {len(reference)} layers")], []
    stages = [stage for stage in STAGES if all(stage in layer for layer in reference)]
    gaps: dict[str, list[Tensor]] = {}
    for stage in stages:
        pairs = zip(alone, reference, strict=True)
        gaps[stage] = [
            largest_difference(a.stages[stage], b[stage], absolute=stage == "weights")
            for a, b in pairs
        ]
    gaps_by_stage: list[Differences] = []

    def compare(limits: Limits) -> list[Check]:
        allowed = {stage: [layer_limits[stage] for layer_limits in limits] for stage in stages}
        layers = layer_numbers(alone)
        gaps_by_stage[:] = [
            differences(_EAGER, stage, gaps[stage], allowed[stage], layers) for stage in stages
        ]
        return [
            make_check(f"{name}: {stage}", gaps[stage], allowed[stage], layers) for stage in stages
        ]

    return job.judge(len(alone), compare, bounds), gaps_by_stage


def _eager(job: _CheckedModel) -> list[dict[str, Tensor]]:
    from attnscope.engines.transformers.reference import ReferenceInputs, eager_stages

    encoder_tokens = job.text_plan.encoder_tokens
    encoder_batch = None
    if encoder_tokens is not None:
        encoder_batch = pad_texts([encoder_tokens], job.device)
    return eager_stages(ReferenceInputs(job.reference(), job.batch(), encoder_batch))
