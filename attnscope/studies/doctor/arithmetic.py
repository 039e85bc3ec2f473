"""Checks of numbers: backends against float32 eager, returned weights, sinks, soft-cap, the range of scores."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor

from attnscope.base.errors import AttnscopeError
from attnscope.engines.transformers.backends import BackendCall, using_backend
from attnscope.findings.doctor import Evidence
from attnscope.request.memory import memory_bound
from attnscope.studies.check.rounding import FLOOR, rounded_again
from attnscope.studies.doctor.audit import NO_INTERFACE, RUNS, layer_name, softcap_of
from attnscope.studies.doctor.batches import ExaminedBatch
from attnscope.studies.doctor.examination import (
    NO_PROBES,
    Case,
    Examination,
    inapplicable,
    measured,
    ok,
    relative_gap,
    rounded_attention,
    unknown,
    wrong,
)
from attnscope.studies.doctor.masks import HIDDEN

Outputs = dict[str, Tensor]


def backend(exam: Examination) -> list[Evidence]:
    """Check that every backend computes what float32 eager attention does, within rounding."""
    evidence = [unknown(name, why) for name, why in exam.refused.items()]
    batches = exam.examined
    if not batches:
        return [*evidence, unknown("the model", NO_PROBES)]

    def measure(case: Case) -> Evidence | str:
        audit = case.read()
        if audit.layers and "backend" in audit.hidden:
            seen = replace(case, examined=f"{case.batch.name}, {case.backend}")
            return seen.finding(audit.hidden["backend"], HIDDEN)
        if audit.layers and "backend" in audit.findings:
            return case.finding(
                audit.findings["backend"], "the output of a layer is not softmax(q·k)·v"
            )
        return audit.unread or NO_INTERFACE

    evidence += measured(exam, batches, measure, "{}, {}: each layer on its own inputs")
    for batch in batches[:1] + [
        long_batch for long_batch in batches[1:] if long_batch.ids.numel() <= 4096
    ]:
        evidence += _against_eager(exam, batch)
    return evidence


def _against_eager(exam: Examination, batch: ExaminedBatch) -> list[Evidence]:
    """Compare the output of every layer, and the logits, with the same model in float32 under eager attention."""
    subject = exam.subject
    examined = f"{batch.name} against float32 eager"
    if exam.two_halves:
        return []
    if subject.core is None:
        return [unknown(examined, NO_INTERFACE)]
    try:
        reference = _eager_outputs(exam, batch)
    except AttnscopeError as e:
        return [unknown(examined, e.message)]

    def measure(case: Case) -> Evidence:
        with subject.under(case.backend):
            outputs = _outputs(exam, batch)
        gaps = {
            key: relative_gap(outputs[key], reference[key], batch.real)
            for key in reference
            if key in outputs
        }
        limits = dict.fromkeys(gaps, FLOOR)
        if exam.low or any(not gap <= FLOOR for gap, _ in gaps.values()):
            bounds = exam.once(("bounds", batch), lambda: _bounds(exam, batch, reference))
            limits = {key: max(FLOOR, bounds.get(key, 0.0)) for key in gaps}
        worst = max(gaps, key=lambda key: gaps[key][0] / limits[key])
        value, at = gaps[worst]
        limit = limits[worst]
        token = exam.place(batch, "", at)
        where = f"{case.backend} {worst}{token and ' ' + token}"
        if value <= limit:
            return ok(case.examined, value, limit, where=where)
        return wrong(
            case.examined, value, limit, where, f"{worst} differs from eager attention in float32"
        )

    backends = [name for name in exam.backends if name != "eager" or exam.low]
    return measured(exam, [batch], measure, "{} against float32 eager, {}", backends)


def _outputs(
    exam: Examination,
    batch: ExaminedBatch,
    rounding: Callable[[BackendCall], Tensor | None] | None = None,
) -> Outputs:
    """Run a batch; returns the logits, and the output of every layer's attention, (B, T, H·Ev)."""
    outputs: Outputs = {}

    def keep(call: BackendCall) -> Tensor | None:
        changed = None if rounding is None else rounding(call)
        outputs[layer_name(call)] = (call.output if changed is None else changed).flatten(2)
        return changed

    logits = exam.subject.run(batch.given, keep, use_cache=False)
    return {"logits": logits, **outputs}


def _with_added_mask(batch: ExaminedBatch, dtype: torch.dtype) -> ExaminedBatch:
    """Return a batch for eager attention, which adds a mask to the scores: a boolean one would bar nothing."""
    if batch.allowed is None or batch.given["attention_mask"].is_floating_point():
        return batch
    added = torch.zeros(batch.allowed.shape).masked_fill(
        ~batch.allowed.cpu(), torch.finfo(dtype).min
    )
    return replace(batch, given={**batch.given, "attention_mask": added.to(dtype)[:, None]})


def _eager_outputs(exam: Examination, batch: ExaminedBatch) -> Outputs:
    """Return the outputs of the model in float32 under eager attention, from a copy if it has another type."""
    subject = exam.subject
    wide = _with_added_mask(batch, torch.float32)
    numbers = {name: value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
               for name, value in wide.given.items()}  # fmt: skip
    wide = replace(wide, given=numbers)
    if not exam.low:
        with subject.under("eager"):
            return _outputs(exam, wide)
    plain = subject.model
    try:
        subject.model = exam.once("float32", lambda: _float32(exam))
        core = next(
            module for module in subject.model.modules() if type(module) is type(subject.core)
        )
        with using_backend(core, "eager"):
            return _outputs(exam, wide)
    finally:
        subject.model = plain


def _float32(exam: Examination) -> torch.nn.Module:
    model = exam.subject.model
    need = 4 * sum(parameter.numel() for parameter in model.parameters())
    if exam.subject.device.type == "cpu" and need > memory_bound(None).size:
        raise AttnscopeError(f"a copy in float32 takes {need / 2**30:.1f} GiB, more than there is")
    try:
        return deepcopy(model).float().eval()
    except Exception as e:  # a module of anyone may refuse to be copied
        raise AttnscopeError(f"the model cannot be copied ({type(e).__name__})") from e


def _bounds(exam: Examination, batch: ExaminedBatch, reference: Outputs) -> dict[str, float]:
    """Return what rounding does to every layer and the logits, measured as in `check.rounding`."""
    subject = exam.subject
    factor = exam.rounding_factor
    bounds: dict[str, float] = {}
    sums: list[Tensor | None] = []
    batch = _with_added_mask(batch, subject.dtype)
    with subject.under("eager"):
        plain = _outputs(exam, batch)
        if exam.low:
            # eager attention in this type is as far from float32 as rounding takes it
            gaps = {
                key: relative_gap(plain[key], reference[key], batch.real)[0]
                for key in plain
                if key in reference
            }
            bounds = {key: factor * gap for key, gap in gaps.items()}
        for seed in range(RUNS):
            subject.seeds.add(seed)
            with rounded_again(subject.model, subject.dtype, seed, sums):
                outputs = _outputs(exam, batch, rounded_attention(seed) if exam.low else None)
            for key in outputs.keys() & plain.keys():
                gap = relative_gap(outputs[key], plain[key], batch.real)[0]
                bounds[key] = max(bounds.get(key, 0.0), factor * gap)
    return bounds


def returned_weights(exam: Examination) -> list[Evidence]:
    """Check that a backend returns the weights that it used."""
    wanted = bool(getattr(exam.subject.config, "output_attentions", False)) or any(
        batch.given.get("output_attentions") for batch in exam.batches
    )

    def measure(case: Case) -> Evidence | str:
        audit = case.read()
        if "returned_weights" in audit.findings and audit.returned == audit.layers:
            reason = "the returned weights are not the weights that the backend used"
            return case.finding(audit.findings["returned_weights"], reason)
        if (why := audit.unread) is not None:
            return why
        if not wanted:
            return inapplicable(
                case.examined, "the backend returns no weights, and output_attentions is not set"
            )
        missing = audit.layers - audit.returned
        reason = (
            f"output_attentions is set, and {missing} of {audit.layers} layers return no weights"
        )
        return wrong(case.examined, missing, 0, case.backend, reason, "layers")

    return measured(exam, exam.examined[:1], measure) or [unknown("the model", NO_PROBES)]


def sinks(exam: Examination) -> list[Evidence]:
    """Check that sinks take their share of every row."""
    return _measured(
        exam, "sinks", "the model has no sinks", "the sinks do not take their share of a row"
    )


def softcap(exam: Examination) -> list[Evidence]:
    """Check that scores are capped."""
    if softcap_of(exam.subject.config) is None:
        return [inapplicable("the model", "the config names no attn_logit_softcapping")]
    return _measured(
        exam, "softcap", "no layer caps its scores", "weights are not the softmax of capped scores"
    )


def score_range(exam: Examination) -> list[Evidence]:
    """Check that scores fit into the type that the model runs in."""
    dtype_name = str(exam.subject.dtype).removeprefix("torch.")
    return _measured(exam, "score_range", NO_INTERFACE, f"q·k does not fit into {dtype_name}")


def _measured(exam: Examination, name: str, nothing: str, reason: str) -> list[Evidence]:
    def measure(case: Case) -> Evidence | str:
        audit = case.read()
        if name in audit.findings:
            return case.finding(audit.findings[name], reason)
        why = audit.skipped.get(name) or audit.unread
        if why is None:
            return inapplicable(case.examined, nothing)
        return why

    evidence = measured(exam, exam.examined, measure)
    if name != "score_range" and any(item.verdict != "inapplicable" for item in evidence):
        evidence += [unknown(backend_name, why) for backend_name, why in exam.refused.items()]
    return evidence or [unknown("the model", NO_PROBES)]
