"""Checks of numbers: backends against float32 eager, returned weights, sinks, soft-cap, the range of scores."""

from contextlib import ExitStack
from copy import deepcopy

import torch
from msgspec.structs import replace
from torch import Tensor

from attnscope.base.errors import AttnscopeError
from attnscope.engines.transformers.backends import BackendCall, using_backend
from attnscope.findings.doctor import Evidence
from attnscope.request.memory import memory_bound
from attnscope.studies.check.rounding import FLOOR, rounded_again
from attnscope.studies.doctor.audit import Audit, layer_name, softcap_of
from attnscope.studies.doctor.batches import ExaminedBatch
from attnscope.studies.doctor.examination import LOW_FACTOR, Examination, _rounded_attention, finite, relative_gap
from attnscope.studies.doctor.masks import NO_INTERFACE, NO_PROBES, examined_batches, judged, unknown, unread

_RUNS, _FACTOR = 3, 2.0
Outputs = dict[str, Tensor]


def backend(exam: Examination) -> list[Evidence]:
    """Check that every backend computes what float32 eager attention does, within rounding."""
    evidence = [unknown(name, why) for name, why in exam.refused.items()]
    batches = examined_batches(exam)
    if not batches:
        return [*evidence, unknown("the model", NO_PROBES)]

    def judge(examined: str, batch: ExaminedBatch, name: str, audit: Audit) -> Evidence | str:
        if audit.layers and "backend" in audit.hidden:
            return exam.finding(audit.hidden["backend"], batch, name, "keys that a query should see are hidden")
        if audit.layers and "backend" in audit.findings:
            measured = exam.finding(
                audit.findings["backend"], batch, name, "the output of a layer is not softmax(q·k)·v"
            )
            return replace(measured, examined=examined)
        return unread(audit) or NO_INTERFACE

    evidence += judged(exam, batches, judge, more=": each layer on its own inputs")
    for batch in batches[:1] + [long_batch for long_batch in batches[1:] if long_batch.ids.numel() <= 4096]:
        evidence += _against_eager(exam, batch)
    return evidence


def _against_eager(exam: Examination, batch: ExaminedBatch) -> list[Evidence]:
    """Compare the output of every layer, and the logits, with the same model in float32 under eager attention."""
    subject = exam.subject
    if subject.core is None or exam.two_halves:
        why = NO_INTERFACE if subject.core is None else "layers of an encoder-decoder are compared one by one"
        return [] if exam.two_halves else [unknown(f"{batch.name} against float32 eager", why)]
    try:
        reference = _eager_outputs(exam, batch)
    except AttnscopeError as e:
        return [unknown(f"{batch.name} against float32 eager", e.message)]
    evidence, bounds = [], dict[str, float]()
    for name in exam.backends:
        examined = f"{batch.name} against float32 eager, {name}"
        if name == "eager" and subject.dtype == torch.float32:
            continue
        try:
            with subject.under(name):
                outputs = _outputs(exam, batch)
        except AttnscopeError as e:
            evidence.append(unknown(examined, e.message))
            continue
        gaps = {key: relative_gap(outputs[key], reference[key], batch.real) for key in reference if key in outputs}
        if subject.dtype != torch.float32 or any(not gap <= FLOOR for gap, _ in gaps.values()):
            bounds = bounds or _bounds(exam, batch, reference)
        limits = {key: max(FLOOR, bounds.get(key, 0.0)) for key in gaps}
        worst = max(gaps, key=lambda key: gaps[key][0] / limits[key])
        value, at = gaps[worst]
        where = f"{name} {worst}{exam.at(batch, '')(*at) and ' ' + exam.at(batch, '')(*at)}"
        verdict = "ok" if value <= limits[worst] else "wrong"
        reason = f"{worst} differs from eager attention in float32" if verdict == "wrong" else None
        evidence.append(Evidence(examined, verdict, finite(value), limits[worst], where, reason))  # type: ignore[arg-type]
    return evidence


def _outputs(exam: Examination, batch: ExaminedBatch) -> Outputs:
    """Run a batch; returns the output of every layer's attention, (B, T, H·Ev), and the logits."""
    outputs: Outputs = {}

    def keep(call: BackendCall) -> None:
        outputs[layer_name(call)] = call.output.flatten(2)

    outputs["logits"] = exam.subject.run(batch.given, keep, use_cache=False)
    return {"logits": outputs.pop("logits"), **outputs}


def _eager_outputs(exam: Examination, batch: ExaminedBatch) -> Outputs:
    """Return the outputs of the model in float32 under eager attention, from a copy if it has another type."""
    subject = exam.subject
    key = f"eager {id(batch)}"
    if key in exam._reference:
        return exam._reference[key]  # type: ignore[no-any-return]
    given = {name: value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
             for name, value in batch.given.items()}  # fmt: skip
    if batch.allowed is not None and not batch.given["attention_mask"].is_floating_point():
        # eager attention adds a mask to the scores: a boolean one would bar nothing
        added = torch.zeros(batch.allowed.shape).masked_fill(~batch.allowed.cpu(), torch.finfo(torch.float32).min)
        given["attention_mask"] = added[:, None]
    wide = ExaminedBatch(batch.name, given, batch.ids, batch.padding)
    if subject.dtype == torch.float32:
        with subject.under("eager"):
            outputs = _outputs(exam, wide)
    else:
        plain = subject.model
        try:
            subject.model = _float32(exam)
            with ExitStack() as stack:
                core = next(module for module in subject.model.modules() if type(module) is type(subject.core))
                stack.enter_context(using_backend(core, "eager"))
                outputs = _outputs(exam, wide)
        finally:
            subject.model = plain
    exam._reference[key] = outputs
    return outputs


def _float32(exam: Examination) -> torch.nn.Module:
    """Return a copy of the model in float32, made once."""
    if "model" not in exam._reference:
        model = exam.subject.model
        need = 4 * sum(parameter.numel() for parameter in model.parameters())
        limit = memory_bound(None).size
        if exam.subject.device.type == "cpu" and need > limit:
            raise AttnscopeError(f"a copy in float32 takes {need / 2**30:.1f} GiB, more than there is")
        try:
            exam._reference["model"] = deepcopy(model).float().eval()
        except Exception as e:  # a module of anyone may refuse to be copied
            raise AttnscopeError(f"the model cannot be copied ({type(e).__name__})") from e
    return exam._reference["model"]  # type: ignore[no-any-return]


def _bounds(exam: Examination, batch: ExaminedBatch, reference: Outputs) -> dict[str, float]:
    """Return what rounding does to every layer and the logits, measured as in `check.rounding`."""
    subject = exam.subject
    low = subject.dtype != torch.float32
    bounds: dict[str, float] = {}
    factor = LOW_FACTOR if low else _FACTOR
    sums: list[Tensor | None] = []
    if batch.allowed is not None and not batch.given["attention_mask"].is_floating_point():
        added = torch.zeros(batch.allowed.shape).masked_fill(~batch.allowed.cpu(), torch.finfo(subject.dtype).min)
        given = {**batch.given, "attention_mask": added.to(subject.dtype)[:, None]}
        batch = ExaminedBatch(batch.name, given, batch.ids, batch.padding)
    with subject.under("eager"):
        plain = _outputs(exam, batch)
        if low:
            # eager attention in this type is as far from float32 as rounding takes it
            gaps = {key: relative_gap(plain[key], reference[key], batch.real)[0] for key in plain if key in reference}
            bounds = {key: factor * gap for key, gap in gaps.items()}
        for seed in range(_RUNS):
            subject.seeds.add(seed)
            rounding = _rounded_attention(seed) if low else None
            outputs: Outputs = {}

            def keep(call: BackendCall, rounding=rounding, outputs=outputs) -> Tensor | None:  # type: ignore[no-untyped-def]
                changed = None if rounding is None else rounding(call)
                outputs[layer_name(call)] = (call.output if changed is None else changed).flatten(2)
                return changed

            with rounded_again(subject.model, subject.dtype, seed, sums):
                outputs["logits"] = subject.run(batch.given, keep, use_cache=False)
            for key, moved in outputs.items():
                if key in plain:
                    bounds[key] = max(bounds.get(key, 0.0), factor * relative_gap(moved, plain[key], batch.real)[0])
    return bounds


def returned_weights(exam: Examination) -> list[Evidence]:
    """Check that a backend returns the weights that it used."""
    wanted = bool(getattr(exam.subject.config, "output_attentions", False)) or any(
        batch.given.get("output_attentions") for batch in exam.batches
    )

    def judge(examined: str, batch: ExaminedBatch, name: str, audit: Audit) -> Evidence | str:
        if "returned_weights" in audit.findings and audit.returned == audit.layers:
            reason = "the returned weights are not the weights that the backend used"
            return exam.finding(audit.findings["returned_weights"], batch, name, reason)
        if (why := unread(audit)) is not None:
            return why
        if not wanted:
            return "the backend returns no weights, and output_attentions is not set"
        missing = audit.layers - audit.returned
        reason = f"output_attentions is set, and {missing} of {audit.layers} layers return no weights"
        return Evidence(examined, "wrong", float(missing), 0.0, name, reason)

    return judged(exam, examined_batches(exam)[:1], judge) or [unknown("the model", NO_PROBES)]


def sinks(exam: Examination) -> list[Evidence]:
    """Check that sinks take their share of every row."""
    return _measured(exam, "sinks", "the model has no sinks", "the sinks do not take their share of a row")


def softcap(exam: Examination) -> list[Evidence]:
    """Check that scores are capped."""
    if softcap_of(exam.subject.config) is None:
        return [unknown("the model", "the config names no attn_logit_softcapping")]
    return _measured(exam, "softcap", "no layer was read", "weights are not the softmax of capped scores")


def score_range(exam: Examination) -> list[Evidence]:
    """Check that scores fit into the type that the model runs in."""
    kind = str(exam.subject.dtype).removeprefix("torch.")
    return _measured(exam, "score_range", NO_INTERFACE, f"q·k does not fit into {kind}")


def _measured(exam: Examination, name: str, nothing: str, reason: str) -> list[Evidence]:
    def judge(_examined: str, batch: ExaminedBatch, backend_name: str, audit: Audit) -> Evidence | str:
        if name in audit.findings:
            return exam.finding(audit.findings[name], batch, backend_name, reason)
        return audit.skipped.get(name) or audit.skipped.get("masks") or nothing

    evidence = judged(exam, examined_batches(exam), judge)
    if name != "score_range":
        evidence += [unknown(backend_name, why) for backend_name, why in exam.refused.items()]
    return evidence or [unknown("the model", NO_PROBES)]
