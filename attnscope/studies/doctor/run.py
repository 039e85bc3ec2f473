"""Examine a model, its backends, a collator and a batch: what `attnscope doctor` does, without printing."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from typing import Any

import torch
from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError, UsageError, arg, did_you_mean
from attnscope.base.version import __version__
from attnscope.checkpoints.tokenizers import open_tokenizer
from attnscope.engines.transformers.backends import FLEX, implementations, with_settings_kept
from attnscope.engines.transformers.media import processor_of
from attnscope.engines.transformers.opening import is_pretrained
from attnscope.engines.transformers.rotations import rotation_limits
from attnscope.findings.doctor import Backend, DoctorCheck, DoctorReport, Evidence, Soundness
from attnscope.model.matmul import has_float64
from attnscope.request.arguments import CHECKED_TEXTS
from attnscope.studies.doctor.any_tokenizer import SpecialIds, ordinary_ids
from attnscope.studies.doctor.batches import read_batch
from attnscope.studies.doctor.checks import CHECKS, PICTURE_CHECKS, AttentionCheck
from attnscope.studies.doctor.examination import (
    Examination,
    badness,
    inapplicable,
    measured,
    unknown,
)
from attnscope.studies.doctor.masks import runs
from attnscope.studies.doctor.pictures import ALSO_OF_PICTURES, picture_probe, takes_pictures
from attnscope.studies.doctor.subject import Call, Subject, make_subject

TEXTS = (
    "The bank by the river was eroded, and the old bridge leaned over the water.",
    "if x >= 20.5: y = 7",
    "Nobody at the market knew why the clock had stopped.",
    *CHECKED_TEXTS[2:3],
)
LONGEST_PROBE = 512
_LENGTHS = (17, 11, 6)  # tokens of the texts of a probe
_TOKENS = 8192  # of a batch that are examined; further rows are left out
OnProgress = Callable[[str, int, int], None]


def examine(
    model: Any,
    batch: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    collator: Any = None,
    *,
    attn: Sequence[str] = (),
    texts: Sequence[str] = (),
    call: Call | None = None,
    kind: str | None = None,
    documents: Any = None,
    prefix: Any = None,
    longest_probe: int = LONGEST_PROBE,
    with_backends: bool = True,
    name: str | None = None,
    notes: Sequence[str] = (),
    progress: OnProgress | None = None,
) -> DoctorReport:
    """Examine a model in memory, and leave it as it was.

    Args:
        tokenizer: None: probes are random tokens. Of a model that takes pictures, its image processor.
        collator: Makes a batch from a list of features.
        attn: None for the model's own.
        texts: Texts of the probes; none for built-in ones.
        call: Calls the model with a batch and returns logits; None for `model(**batch)`.
        kind: `causal`, `bidirectional` or `encoder-decoder`; None for what the config says.
        documents: Number of each token's document in the batch, (B, T).
        with_backends: Whether the user named the implementations; one that does not run is then reported as unknown.
    """
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    core = next((module for module in modules if is_pretrained(module)), None)
    images = core is not None and takes_pictures(core, core.config)
    processor = processor_of(tokenizer) if images and tokenizer is not None else None
    if images:
        tokenizer = None
    if isinstance(tokenizer, str | PathLike):
        config = getattr(model, "config", None)
        tokenizer = open_tokenizer(
            str(tokenizer), config.to_dict() if config is not None else {}
        ).tokenizer
    subject = make_subject(model, tokenizer, call, kind)
    _refuse(subject, batch, collator, documents=documents, prefix=prefix)
    full_model = subject.model
    probe_texts = list(texts or TEXTS)
    with with_settings_kept(full_model):
        rows: list[list[int]] = []
        are_random = False
        if not images:
            rows, are_random = _rows(subject, probe_texts, longest_probe)
        pad = subject.words.special.pad
        known_pad = 0
        if pad is not None and pad < (subject.vocab_size or pad + 1):
            known_pad = pad
        exam = Examination(
            subject,
            [],
            {},
            rows,
            known_pad,
            [],
            probe_texts,
            longest_probe=longest_probe,
            with_backends=with_backends,
        )
        exam.processor = processor
        exam.text_source = "given" if texts else "own"
        exam.probe_source = "random" if are_random else exam.text_source
        if images:
            picture, exam.names = picture_probe(subject)
            exam.batches.append(picture)
        backends = _choose_backends(exam, attn)
        if batch is not None:
            shape = tuple(
                getattr(batch.get("input_ids") if isinstance(batch, Mapping) else None, "shape", ())
            )
            max_rows = max(1, _TOKENS // max((1, *shape[-1:])))
            read = read_batch(
                batch, subject.words.special, documents=documents, prefix=prefix, rows=max_rows
            )
            exam.batches.append(exam.with_decoder(read))
        if collator is not None:
            _collate(exam, collator)
        checks = _verdicts(exam, progress or (lambda *_: None))
    remarks = [*notes, *([exam.collator_error] if exam.collator_error else [])]
    if are_random:
        remarks.append(
            "the probes are random tokens: there is no tokenizer, or the tokenizer does not know the words of the texts"
        )
    versions = {"torch": str(torch.__version__)}
    with suppress(PackageNotFoundError):
        versions["transformers"] = version("transformers")
    return DoctorReport(
        attnscope=__version__,
        versions=versions,
        model=name or str(getattr(subject.config, "name_or_path", "") or type(model).__name__),
        model_class=type(full_model).__name__,
        kind=subject.kind or "unknown",
        dtype=str(subject.dtype).removeprefix("torch."),
        device=str(subject.device),
        backends=backends,
        texts=[] if are_random or images else probe_texts,
        seeds=sorted(subject.seeds),
        passes=subject.passes,
        batches=[examined.facts() for examined in exam.batches],
        checks=checks,
        notes=remarks,
        passed=_passed(checks),
    )


def _refuse(subject: Subject, batch: Any, collator: Any, **described: Any) -> None:
    """Refuse a model that cannot be run or judged, and descriptions of a batch without one."""
    device = subject.device
    class_name = type(subject.model).__name__
    if device.type == "meta":
        message = "the model has no weights: it is on the device 'meta'"
        raise UsageError(message, where="model", hint="load the weights first")
    if not has_float64(device):
        hint = f"use {arg('device', 'cpu')}, or move a model in memory there with model.to('cpu')"
        raise UsageError(
            f"numbers are judged in float64, which the device '{device}' lacks", hint=hint
        )
    if subject.call is None and subject.core is None and batch is None and collator is None:
        hint = "pass batch=, and call= if the model is not called as model(**batch)"
        raise UsageError(f"{class_name} is not of transformers", where="model", hint=hint)
    for option, value in described.items():
        if value is not None and batch is None:
            raise UsageError(
                "describes a batch, and there is none", where=option, hint="pass batch="
            )


def _verdicts(exam: Examination, progress: OnProgress) -> list[DoctorCheck]:
    """Judge every check; refuse a batch of which nothing was examined."""
    checks = []
    all_checks = CHECKS if exam.names is None else (*map(_of_pictures, CHECKS), *PICTURE_CHECKS)
    for index, check in enumerate(all_checks):
        progress("checking", index, len(all_checks))
        checks.append(_judge(check, exam))
    checks = _unless_random(checks)
    for batch in exam.batches if _passed(checks) else ():
        # no check says why a batch runs under no implementation: nothing in it would be examined
        errors = measured(exam, [batch], runs)
        if len(errors) == len(exam.backends):
            where = "batch"
            if batch.name == "collated":
                where = "collator"
            raise UsageError(str(errors[0].reason), where=where)
    progress("checking", len(all_checks), len(all_checks))
    return checks


def _of_pictures(check: AttentionCheck) -> AttentionCheck:
    """Return a check as it is for a model that takes pictures."""
    if check.name in ALSO_OF_PICTURES:
        return check
    none = inapplicable(
        "the model", "it takes pictures, whose patches have no vocabulary, padding, order or cache"
    )
    return dataclasses.replace(check, examine=lambda exam: [none])


def _passed(checks: Sequence[DoctorCheck]) -> bool:
    return all(check.verdict != "wrong" for check in checks)


def _rows(subject: Subject, texts: Sequence[str], longest: int) -> tuple[list[list[int]], bool]:
    """Return ids of the probes, and whether they were drawn at random."""
    size = subject.vocab_size
    if subject.core is None:
        return [], False
    if subject.words.known:
        encoded = [subject.words.encode(text)["input_ids"] for text in texts]
        # a text of few different tokens, such as those of words that the tokenizer does not know, tells little
        encoded = [
            ids
            for ids in encoded
            if 3 * len(set(ids)) > len(ids) and (size is None or max(ids) < size)
        ]
        encoded.sort(key=len, reverse=True)
        rows = [ids[:length] for ids, length in zip(encoded, _lengths(subject), strict=False)]
        if len(rows) > 1 and min(map(len, rows)) >= 2:
            return _within(subject, rows, longest), False
    if size is None:
        return [], False
    generator = torch.Generator().manual_seed(0)
    subject.seeds.add(0)
    pool = torch.tensor(ordinary_ids(size, subject.words.special))
    if not len(pool):
        return [], False
    random_rows = [
        pool[torch.randint(len(pool), (count,), generator=generator)].tolist()
        for count in _lengths(subject)
    ]
    return _within(subject, random_rows, longest), True


def _lengths(subject: Subject) -> tuple[int, ...]:
    """Return the lengths of a probe's texts, on the same side of LongRoPE's limit."""
    if subject.core is not None:
        limits = rotation_limits(subject.core.config)
    else:
        limits = set()
    least = min(limits, default=sum(_LENGTHS))
    if least >= sum(_LENGTHS):
        return _LENGTHS
    return (max(2, least // 2), max(2, least // 3), max(2, least // 6))


def _within(subject: Subject, rows: list[list[int]], longest: int) -> list[list[int]]:
    limit = min(longest, subject.longest or longest)
    shortened = [row[: max(2, limit - 2 * n)] for n, row in enumerate(rows)]
    # rows of one length need no padding, and would test nothing
    return [
        row[: len(row) - n] if n and len(row) == len(shortened[0]) else row
        for n, row in enumerate(shortened)
    ]


def _choose_backends(exam: Examination, attn: Sequence[str]) -> list[Backend]:
    """Return the implementations that run here, and why others do not."""
    subject = exam.subject
    supported_names = implementations() if subject.core is not None else []
    listed = []
    for name in dict.fromkeys(attn or (subject.backend,)):
        if supported_names and name not in (*supported_names, subject.backend) and "/" not in name:
            message = f"transformers has no implementation of attention '{name}'"
            raise UsageError(message, where=arg("attn"), hint=did_you_mean(name, supported_names))
        note = None
        if name == FLEX and subject.device.type == "cpu":
            note = "on a CPU without being compiled: the same function and masks, not the kernel"
        try:
            with subject.under(name):
                if exam.rows:
                    subject.run(exam.with_decoder(exam.alone(exam.rows[-1])).given, use_cache=False)
                elif exam.names is not None:
                    subject.run(exam.batches[0].given)
        except AttnscopeError as e:
            exam.refused[name] = e.line()
            listed.append(Backend(name, False, e.line()))
            continue
        exam.backends.append(name)
        listed.append(Backend(name, True, note))
    if not exam.backends:
        exam.backends.append(subject.backend)
        if subject.backend not in exam.refused:
            listed.append(Backend(subject.backend, True, "the model's own, as no other runs"))
    return listed


def _collate(exam: Examination, collator: Any) -> None:
    """Let the collator make a batch of the texts, each with the end token of training data."""
    words = exam.subject.words
    eos = words.special.eos
    if not exam.rows:
        exam.collator_error = "the collator was not called: there are no texts without a tokenizer"
        return
    if words.known:
        features = [words.encode(text)["input_ids"] for text in exam.texts]
    else:
        features = exam.rows
    if exam.subject.longest is not None:
        features = [row[: max(2, exam.subject.longest // (len(features) + 1))] for row in features]
    if exam.subject.kind == "causal" and eos is not None:
        features = [row if row[-1] == eos else [*row, eos] for row in features]
    batches = []
    errors = []
    for with_labels in (False, True):
        examples = [{"input_ids": list(row), "attention_mask": [1] * len(row)} for row in features]
        if with_labels:
            examples = [{**feature, "labels": list(feature["input_ids"])} for feature in examples]
        try:
            batches.append(collator(examples))
        except Exception as e:  # a collator of anyone may raise anything
            errors.append(f"{type(e).__name__}: {next(iter(str(e).splitlines()), '')[:200]}")
            continue
        if (
            exam.subject.kind != "causal"
            or not isinstance(batches[-1], Mapping)
            or "labels" in batches[-1]
        ):
            break
    if not batches:
        exam.collator_error = f"the collator fails on input_ids and attention_mask ({errors[0]})"
        return
    batch = batches[-1]
    exam.features = features
    documents, padding = _truth(batch, features, words.special)
    read = read_batch(batch, words.special, name="collated", documents=documents, padding=padding)
    if documents is not None:
        read = dataclasses.replace(read, documents_from="the collator's input")
    exam.batches.append(exam.with_decoder(read))


def _truth(
    batch: Any, features: Sequence[Sequence[int]], special: SpecialIds
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return each token's document and padding by finding each text in a batch; None if one is not found."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if ids is None:
        return None, None
    ids = torch.as_tensor(ids)
    if ids.ndim != 2:
        return None, None
    documents = torch.full_like(ids, -1)
    for document, feature in enumerate(features):
        wanted = torch.tensor(list(feature))
        size = len(feature)
        if size > ids.shape[1]:
            return None, None
        free = (documents.unfold(1, size, 1) < 0).all(-1)
        # a masked language model's collator replaces some tokens
        share = (ids.unfold(1, size, 1) == wanted).float().mean(-1) * free  # (rows, starts)
        row, start = divmod(int(share.argmax()), share.shape[1])
        if share[row, start] < 0.6:
            return None, None
        documents[row, start : start + size] = document
    padding = documents < 0
    if special.pad is not None:  # other tokens were added by the collator
        mask = None
        if batch.get("attention_mask") is not None:
            mask = torch.as_tensor(batch["attention_mask"])
        if mask is None or mask.shape != ids.shape:
            barred = torch.zeros_like(padding)
        else:
            barred = mask == 0
        padding = padding & ((ids == special.pad) | barred)
    for row, position in ((documents < 0) & ~padding).nonzero().tolist():
        before = [document for document in documents[row, :position].tolist() if document >= 0][-1:]
        after = [document for document in documents[row, position:].tolist() if document >= 0][:1]
        begins = int(ids[row, position]) in (special.bos, special.cls)
        nearest = after or before if begins else before or after
        documents[row, position] = nearest[0] if nearest else len(features)
    return documents, padding


def _judge(check: AttentionCheck, exam: Examination) -> DoctorCheck:
    """Return a check with its evidence; the worst decides."""
    evidence = check.examine(exam) or [unknown("the model", "nothing was examined")]
    evidence = [
        replace(item, texts=exam.texts_of(item), unit=_unit(item, check)) for item in evidence
    ]
    deciding = max(evidence, key=badness)
    verdict: Soundness = deciding.verdict
    if check.name == "backend" and verdict == "ok" and exam.with_backends and exam.refused:
        name, why = next(iter(exam.refused.items()))
        verdict = "unknown"
        deciding = unknown(name, f"{name} did not run: {why}")
    sources = list(
        dict.fromkeys(
            item.texts for item in evidence if item.verdict == verdict and item.texts is not None
        )
    )
    return DoctorCheck(
        check.name, check.title, verdict, deciding.value, deciding.limit, deciding.where, deciding.reason,
        sources, check.why, check.repair, evidence, _unit(deciding, check),
    )  # fmt: skip


def _unit(evidence: Evidence, check: AttentionCheck) -> str:
    """Return what the number of evidence is; nothing if nothing was measured."""
    if evidence.verdict in ("unknown", "inapplicable"):
        return ""
    return evidence.unit or check.unit


def _unless_random(checks: list[DoctorCheck]) -> list[DoctorCheck]:
    """Withdraw verdicts that dropout may have caused, good ones too: the limits were measured with it."""
    if next(check.verdict for check in checks if check.name == "dropout") != "wrong":
        return checks
    reason = "the model drops weights in evaluation, so that outputs differ from run to run"
    kept_names = {check.name for check in CHECKS if check.reads_only} | {"dropout"}
    withdrawn = []
    for check in checks:
        if check.name not in kept_names and check.verdict not in ("unknown", "inapplicable"):
            check = replace(
                check,
                verdict="unknown",
                value=None,
                limit=None,
                where=None,
                reason=reason,
                texts=[],
                unit="",
            )
        withdrawn.append(check)
    return withdrawn
