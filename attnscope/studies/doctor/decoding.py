"""Checks of several passes: decoding with a cache, prefill in chunks, and dropout."""

from typing import Any

import torch
from torch import Tensor

from attnscope.base.errors import AttnscopeError
from attnscope.engines.transformers.backends import BackendCall
from attnscope.engines.transformers.rotations import rotation_limits
from attnscope.findings.doctor import Evidence
from attnscope.studies.doctor.batches import ExaminedBatch
from attnscope.studies.doctor.examination import Examination, finite, relative_gap
from attnscope.studies.doctor.masks import NO_PROBES, examined_batches, unknown
from attnscope.studies.doctor.subject import first_tensor

_DECODED = 4  # tokens that are decoded one by one


def cached_decoding(exam: Examination) -> list[Evidence]:
    """Check that decoding token by token with a cache gives the outputs of the whole text."""
    return _in_steps(exam, "decoded with a cache", lambda n: [n - _DECODED, *[1] * _DECODED])


def chunked_prefill(exam: Examination) -> list[Evidence]:
    """Check that a prompt in chunks gives the outputs of the whole prompt."""
    return _in_steps(exam, "in 3 chunks", lambda n: [n - 2 * (n // 3), n // 3, n // 3])


def _in_steps(exam: Examination, what: str, sizes: Any) -> list[Evidence]:
    subject = exam.subject
    if subject.kind == "bidirectional":
        return [unknown("the model", "a bidirectional model does not decode")]
    if subject.core is None or not (subject.cache_name and subject.takes("use_cache")):
        return [unknown("the model", "the model takes no cache, or no use_cache")]
    if not exam.rows:
        return [unknown("the model", NO_PROBES)]
    evidence = []
    batches = [exam.alone(max(exam.rows, key=len))] if not exam.two_halves else []
    limit = min(rotation_limits(subject.core.config), default=10**9)
    if "long" in exam._probes and not exam.two_halves and exam._probes["long"].ids.shape[1] <= limit:
        batches.append(exam._probes["long"])
    if len(exam.rows) > 1 or exam.two_halves:
        with_positions = subject.takes("position_ids") and not exam.two_halves
        batches.append(exam.probe("left", with_positions=with_positions))
    if subject.learned_positions and not subject.takes("position_ids"):
        batches = batches[:1]
    for batch in batches:
        for backend in exam.backends:
            evidence.append(_stepwise(exam, batch, backend, what, sizes))
    return evidence


def _stepwise(exam: Examination, batch: ExaminedBatch, backend: str, what: str, sizes: Any) -> Evidence:
    side = "decoder_input_ids" if exam.two_halves else "input_ids"
    ids, cache_name = batch.given[side], exam.subject.cache_name or ""
    length = ids.shape[1]
    examined = f"{batch.name} {what}, {backend}"
    if length < _DECODED + 2:
        return unknown(examined, f"the text has only {length} tokens")
    outputs, past, done = list[Tensor](), None, 0
    try:
        full_output = exam.output(batch, backend)
        for size in sizes(length):
            if size < 1:
                continue
            given: dict[str, Any] = {**batch.given, side: ids[:, done : done + size]}
            if not exam.two_halves:
                if batch.attended is not None:
                    given["attention_mask"] = batch.given["attention_mask"][:, : done + size]
                if "position_ids" in batch.given:
                    given["position_ids"] = batch.given["position_ids"][:, done : done + size]
            if past is not None:
                given[cache_name] = past
            with exam.subject.under(backend):
                step_output = exam.subject.raw(given, use_cache=True)
            past = getattr(step_output, cache_name, None)
            output = first_tensor(step_output)
            if past is None or output is None:
                return unknown(examined, f"the model returns no {cache_name}")
            outputs.append(output)
            done += size
    except AttnscopeError as e:
        return unknown(examined, e.message)
    cached = torch.cat(outputs, 1)
    real = batch.real if not exam.two_halves else None
    reason = f"outputs {what} differ from the outputs of the whole text"
    where_batch = exam.decoder_of(batch) if exam.two_halves else batch
    return exam.compare(examined, cached, full_output, batch, backend, where=exam.at(where_batch or batch, backend),
                        rows=real, reason=reason)  # fmt: skip


def dropout(exam: Examination) -> list[Evidence]:
    """Check that the model gives the same outputs twice in evaluation."""
    batches = examined_batches(exam)[:1]
    if not batches:
        return [unknown("the model", NO_PROBES)]
    evidence = []
    kind = torch.nn.modules.dropout._DropoutNd
    modules = exam.subject.model.named_modules()
    active = [name for name, module in modules if isinstance(module, kind) and module.training and module.p > 0]
    if active:
        reason = f"{len(active)} dropout modules stay in training mode after eval()"
        evidence.append(Evidence("modules after eval()", "wrong", float(len(active)), 0.0, active[0], reason))
    for batch in batches:
        for backend in exam.backends:
            evidence.append(_twice(exam, batch, backend))
    return evidence


def _twice(exam: Examination, batch: ExaminedBatch, backend: str) -> Evidence:
    """Run a batch three times in evaluation mode, and read the dropout rate that attention gets."""
    examined = f"{batch.name} run three times, {backend}"
    given: dict[str, float] = {}

    def on_call(call: BackendCall) -> None:
        share = call.named.get("dropout")
        if isinstance(share, float) and share > 0:
            given.setdefault(f"L{call.layer}", share)

    try:
        with exam.subject.under(backend):
            again = [exam.subject.run(batch.given, on_call, use_cache=False) for _ in range(2)]
        outputs = [exam.output(batch, backend), *again]
    except AttnscopeError as e:
        return unknown(examined, e.message)
    if given:
        layer, share = next(iter(given.items()))
        return Evidence(examined, "wrong", share, 0.0, f"{backend} {layer}", "attention drops weights in evaluation")
    rows = batch.real if outputs[0].shape[:2] == batch.ids.shape else None
    gaps = [relative_gap(output, outputs[0], rows) for output in outputs[1:]]
    value, at = max(gaps)
    # kernels on a GPU may add in another order; dropout changes far more than that
    limit = 0.0 if exam.subject.device.type == "cpu" else exam.limit(batch, backend)
    if value <= limit:
        return Evidence(examined, "ok", value, limit)
    return Evidence(
        examined, "wrong", finite(value), limit, exam.at(batch, backend)(*at), "outputs differ from run to run"
    )
