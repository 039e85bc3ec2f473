"""Checks of several passes: decoding with a cache, prefill in chunks, and dropout."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnscope.engines.transformers.backends import BackendCall
from attnscope.engines.transformers.rotations import rotation_limits
from attnscope.findings.doctor import Evidence
from attnscope.studies.doctor.examination import (
    NO_PROBES,
    Case,
    Examination,
    inapplicable,
    measured,
    ok,
    relative_gap,
    unknown,
    wrong,
)
from attnscope.studies.doctor.subject import first_tensor

_DECODED = 4  # tokens that are decoded one by one


def cached_decoding(exam: Examination) -> list[Evidence]:
    """Check that decoding token by token with a cache gives the outputs of the whole text."""
    return _in_steps(exam, "decoded with a cache", lambda n: [n - _DECODED, *[1] * _DECODED])


def chunked_prefill(exam: Examination) -> list[Evidence]:
    """Check that a prompt in chunks gives the outputs of the whole prompt."""
    return _in_steps(exam, "in 3 chunks", lambda n: [n - 2 * (n // 3), n // 3, n // 3])


def _in_steps(exam: Examination, what: str, sizes: Callable[[int], list[int]]) -> list[Evidence]:
    subject = exam.subject
    if subject.kind == "bidirectional":
        return [inapplicable("the model", "a bidirectional model does not decode")]
    if subject.core is None or not (subject.cache_name and subject.takes("use_cache")):
        return [inapplicable("the model", "the model takes no cache, or no use_cache")]
    if not exam.rows:
        return [unknown("the model", NO_PROBES)]
    batches = []
    if not exam.two_halves:
        batches.append(exam.alone(max(exam.rows, key=len)))
        long = exam.long_probe()
        limit = min(rotation_limits(subject.core.config), default=10**9)
        if long is not None and long.ids.shape[1] <= limit:
            batches.append(long)
    if len(exam.rows) > 1 or exam.two_halves:
        with_positions = subject.takes("position_ids") and not exam.two_halves
        batches.append(exam.probe("left", with_positions=with_positions))
    if subject.learned_positions and not subject.takes("position_ids"):
        batches = batches[:1]
    return measured(exam, batches, lambda case: _stepwise(case, what, sizes), f"{{}} {what}, {{}}")


def _stepwise(case: Case, what: str, sizes: Callable[[int], list[int]]) -> Evidence | str:
    exam = case.exam
    batch = case.batch
    side = "decoder_input_ids" if exam.two_halves else "input_ids"
    ids = batch.given[side]
    cache_name = exam.subject.cache_name or ""
    length = ids.shape[1]
    if length < _DECODED + 2:
        return f"the text has only {length} tokens"
    outputs = list[Tensor]()
    past = None
    done = 0
    full_output = case.output()
    for size in sizes(length):
        if size < 1:
            continue
        step_inputs: dict[str, Any] = {**batch.given, side: ids[:, done : done + size]}
        if not exam.two_halves:
            if batch.attended is not None:
                step_inputs["attention_mask"] = batch.given["attention_mask"][:, : done + size]
            if "position_ids" in batch.given:
                step_inputs["position_ids"] = batch.given["position_ids"][:, done : done + size]
        if past is not None:
            step_inputs[cache_name] = past
        with exam.subject.under(case.backend):
            step_output = exam.subject.raw(step_inputs, use_cache=True)
        past = getattr(step_output, cache_name, None)
        output = first_tensor(step_output)
        if past is None or output is None:
            return f"the model returns no {cache_name}"
        outputs.append(output)
        done += size
    real = batch.real if not exam.two_halves else None
    reason = f"outputs {what} differ from the outputs of the whole text"
    return case.compare(
        torch.cat(outputs, 1), full_output, real, reason, shown=exam.decoder_of(batch)
    )


def dropout(exam: Examination) -> list[Evidence]:
    """Check that the model gives the same outputs twice in evaluation."""
    batches = exam.examined[:1]
    if not batches:
        return [unknown("the model", NO_PROBES)]
    evidence = []
    dropout_class = torch.nn.modules.dropout._DropoutNd
    modules = exam.subject.model.named_modules()
    active = [
        name
        for name, module in modules
        if isinstance(module, dropout_class) and module.training and module.p > 0
    ]
    if active:
        reason = f"{len(active)} dropout modules stay in training mode after eval()"
        evidence.append(wrong("modules after eval()", len(active), 0, active[0], reason, "modules"))
    return evidence + measured(exam, batches, _thrice, "{} run three times, {}")


def _thrice(case: Case) -> Evidence:
    """Run a batch three times in evaluation mode, and read the dropout rate that attention gets."""
    exam = case.exam
    batch = case.batch
    rates_by_layer: dict[str, float] = {}

    def on_call(call: BackendCall) -> None:
        share = call.named.get("dropout")
        if isinstance(share, float) and share > 0:
            rates_by_layer.setdefault(f"L{call.layer}", share)

    with exam.subject.under(case.backend):
        again = [exam.subject.run(batch.given, on_call, use_cache=False) for _ in range(2)]
    first_output = case.output()
    if rates_by_layer:
        layer, share = next(iter(rates_by_layer.items()))
        where = f"{case.backend} {layer}"
        reason = "attention drops weights in evaluation"
        return wrong(case.examined, share, 0, where, reason, "of the weights")
    rows = batch.real if first_output.shape[:2] == batch.ids.shape else None
    value, at = max(relative_gap(output, first_output, rows) for output in again)
    # kernels on a GPU may add in another order; dropout changes far more than that
    limit = 0.0
    if exam.subject.device.type != "cpu":
        limit = exam.limit(batch, case.backend)
    if value <= limit:
        return ok(case.examined, value, limit)
    return wrong(case.examined, value, limit, case.where(*at), "outputs differ from run to run")
