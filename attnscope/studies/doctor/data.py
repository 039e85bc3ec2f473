"""Checks of what is in a batch: end tokens that are padding, types, special tokens, labels."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from attnscope.base.errors import AttnscopeError
from attnscope.findings.doctor import Evidence
from attnscope.studies.doctor.batches import IGNORED, ExaminedBatch
from attnscope.studies.doctor.examination import (
    Examination,
    finite,
    inapplicable,
    ok,
    unknown,
    wrong,
)

_AGREE = 0.9  # share of labels that have to equal the tokens at an offset
_APART = 0.5  # and of those that may at most equal them at the other
_OF_LABELS = "of the labels"
_LARGEST_TYPE = "largest type"


def padding_is_eos(exam: Examination) -> list[Evidence]:
    """Check that the end of a text is not mistaken for padding."""
    special = exam.subject.words.special
    if special.pad is None:
        return [_without(exam, "padding token")]
    if special.eos is None:
        return [_without(exam, "end token")]
    if special.pad != special.eos:
        return [ok("the tokenizer", None, None, "the padding token is not the end token")]
    evidence = [end for batch in exam.batches for end in _ends(exam, batch)]
    return evidence or [
        unknown("the tokenizer", "the padding token is the end token; pass a batch or collator")
    ]


def _without(exam: Examination, token: str) -> Evidence:
    """Return evidence on a special token that is not known."""
    if exam.subject.words.known:
        return inapplicable("the tokenizer", f"the tokenizer has no {token}")
    return unknown("the tokenizer", "there is no tokenizer")


def _ends(exam: Examination, batch: ExaminedBatch) -> Iterator[Evidence]:
    """Check that the end token of every text is attended to, and trained."""
    eos = exam.subject.words.special.eos
    features = exam.features if batch.name == "collated" else None
    rows = ((row, _end_of_row(batch, row, eos, features)) for row in range(len(batch.ids)))
    ends = {row: end for row, end in rows if end is not None}
    if not ends:
        yield unknown(batch.name, "no row ends with an end token that can be told from padding")
        return
    if batch.labels is None:
        trained = torch.zeros_like(batch.ids)
    else:
        trained = batch.labels != IGNORED
    lost_mask = [
        row
        for row, end in ends.items()
        if batch.attended is not None and not batch.attended[row, end]
    ]
    lost_labels = [
        row
        for row, end in ends.items()
        if end > 0 and trained[row, end - 1] and not trained[row, end]
    ]
    if lost_mask:
        reason = f"the attention_mask is 0 for the end token of {len(lost_mask)} texts"
        yield wrong(batch.name, len(lost_mask), 0, f"row {lost_mask[0]}", reason)
    if lost_labels:
        reason = f"the label of the end token is {IGNORED} in {len(lost_labels)} texts: the model never learns to stop"
        yield wrong(batch.name, len(lost_labels), 0, f"row {lost_labels[0]}", reason)
    if not lost_mask and not lost_labels:
        yield ok(batch.name)


def _end_of_row(
    batch: ExaminedBatch, row: int, eos: int | None, features: list[list[int]] | None
) -> int | None:
    """Return the position of the end token that ends a row's text; None if there is none or it is ambiguous."""
    ids = batch.ids[row].tolist()
    if features is not None:
        for feature in features:
            for start in range(len(ids) - len(feature) + 1):
                if feature[-1] == eos and ids[start : start + len(feature)] == feature:
                    return start + len(feature) - 1
        return None
    if batch.attended is None:
        return None
    places = [n for n, attended in enumerate(batch.attended[row].tolist()) if attended]
    if not places or ids[places[-1]] != eos:
        return None
    # with several end tokens at the end, only the first is the text's
    last = places[-1]
    while last - 1 in places and ids[last - 1] == eos:
        last -= 1
    return last


def type_ids(exam: Examination) -> list[Evidence]:
    """Check that token types are the tokenizer's, and that the model has them."""
    rows = getattr(exam.subject.config, "type_vocab_size", None)
    takes = exam.subject.takes("token_type_ids")
    if not takes or not isinstance(rows, int) or rows < 1:
        typed_batches = [
            batch for batch in exam.batches if batch.types is not None and bool(batch.types.any())
        ]
        reason = "the batch has token_type_ids, and the model has no token types"
        return [unknown(batch.name, reason) for batch in typed_batches] or [
            inapplicable("the model", "the model has no token types")
        ]
    evidence = [_types_of(exam, batch, rows) for batch in exam.batches]
    if exam.subject.words.known:
        encoding = exam.subject.words.encode(exam.texts[0], exam.texts[-1])
        types = encoding.get("token_type_ids")
        if types is None:
            if rows > 1:
                evidence.append(
                    unknown(
                        "the tokenizer", "the tokenizer gives no token_type_ids for a pair of texts"
                    )
                )
        elif max(types, default=0) >= rows:
            allowed = "only type 0" if rows == 1 else f"types 0 to {rows - 1}"
            reason = f"the tokenizer gives a second text type {max(types)}, and the model has {allowed}: pass no pairs"
            evidence.append(unknown("a pair of texts", reason))
        elif not evidence:
            largest = max(types, default=0)
            evidence.append(ok("a pair of texts", largest, rows - 1, unit=_LARGEST_TYPE))
    return evidence or [
        unknown("the model", "no batch has token_type_ids, and there is no tokenizer")
    ]


def _types_of(exam: Examination, batch: ExaminedBatch, rows: int) -> Evidence:
    special = exam.subject.words.special
    if batch.types is not None and int(batch.types.max()) >= rows:
        row, token = (batch.types >= rows).nonzero()[0].tolist()
        largest = int(batch.types.max())
        where = f"row {row} token {token}"
        reason = f"type {largest}, and the model has {rows}"
        return wrong(batch.name, largest, rows - 1, where, reason, _LARGEST_TYPE)
    if special.sep is None or rows < 2:
        return unknown(batch.name, "no token separates the texts of a pair, as far as is known")
    pairs = 0
    for row in range(len(batch.ids)):
        places = ((batch.ids[row] == special.sep) & batch.real[row]).nonzero()[:, 0].tolist()
        last = int(batch.real[row].nonzero()[-1]) if batch.real[row].any() else -1
        if (
            len(places) != 2
            or places[1] != last
            or special.cls is None
            or places[0] + 1 >= places[1]
        ):
            continue
        pairs += 1
        second = slice(places[0] + 1, places[1])
        if batch.types is None:
            types = torch.zeros_like(batch.ids[row])
        else:
            types = batch.types[row]
        if not bool((types[second] == 1).all()) or bool(
            types[: places[0]][batch.real[row, : places[0]]].any()
        ):
            what = f"the second text of a pair has type {int(types[second][0])}, and the first {int(types[places[0]])}"
            what = "the batch has no token_type_ids" if batch.types is None else what
            return wrong(
                batch.name,
                int((types[second] != 1).sum()),
                0,
                f"row {row} token {places[0] + 1}",
                what,
            )
    if pairs:
        return ok(batch.name)
    return inapplicable(batch.name, "no row is a pair of texts")


def special_tokens(exam: Examination) -> list[Evidence]:
    """Check that special tokens occur once."""
    words = exam.subject.words
    special = words.special
    begin = special.cls if special.cls is not None else special.bos
    evidence = []
    adds = False
    if words.known:
        evidence.append(_doubled_by_tokenizer(exam, begin))
        with_special = words.encode(exam.texts[0])["input_ids"]
        plain = words.encode(exam.texts[0], special=False)["input_ids"]
        adds = begin is not None and with_special[:1] == [begin] and plain[:1] != [begin]
    evidence += [_specials_of(exam, batch, begin, adds=adds) for batch in exam.batches]
    return evidence or [unknown("no batch", "no batch or tokenizer is given")]


def _doubled_by_tokenizer(exam: Examination, begin: int | None) -> Evidence:
    """Check the special tokens that the tokenizer itself adds."""
    if begin is None:
        return inapplicable("the texts", "the tokenizer has no begin token")
    for n, text in enumerate(exam.texts):
        if exam.subject.words.encode(text)["input_ids"][:2] == [begin, begin]:
            name = exam.spell(begin)
            reason = (
                f"the text begins with two {name}: the text has one, and the tokenizer adds another"
            )
            return wrong("the texts", 2, 1, f"text {n}", reason)
    return ok("the texts", 1, 1)


def _specials_of(
    exam: Examination, batch: ExaminedBatch, begin: int | None, *, adds: bool
) -> Evidence:
    special = exam.subject.words.special
    missing = []
    starts = 0
    for row in range(len(batch.ids)):
        places = batch.real[row].nonzero()[:, 0].tolist()
        ids = batch.ids[row].tolist()
        firsts = [position for n, position in enumerate(places)
                  if n == 0 or (batch.documents is not None
                                and batch.documents[row, position] != batch.documents[row, places[n - 1]])]  # fmt: skip
        end = special.sep if special.sep is not None and special.cls is not None else special.eos
        for n, (here, after) in enumerate(pairwise(places)):
            token = ids[after]
            if ids[here] != token:
                continue
            name = exam.spell(token)
            if token == begin and begin not in (special.pad, special.eos):
                return wrong(
                    batch.name, 2, 1, exam.token(batch, row, after), f"two {name} follow each other"
                )
            if token == end and end != special.pad and n + 2 == len(places):
                return wrong(
                    batch.name, 2, 1, exam.token(batch, row, after), f"the row ends with two {name}"
                )
        starts += sum(begin is not None and ids[position] == begin for position in places)
        missing += [
            (row, position) for position in firsts if begin is not None and ids[position] != begin
        ]
    if begin is None:
        return unknown(batch.name, "the begin token is not known")
    if missing and adds and not starts:
        if not batch.padding.any() and not batch.packed and len(batch.ids) > 1:
            return unknown(
                batch.name,
                "no row begins with the begin token; the rows may be pieces of longer texts",
            )
        row, token = missing[0]
        reason = f"no text begins with {exam.spell(begin)}, which the tokenizer adds"
        return wrong(batch.name, 0, 1, f"row {row} token {token}", reason)
    if not starts and not adds:
        return unknown(
            batch.name, "whether texts begin with a special token is not known; pass the tokenizer"
        )
    return ok(batch.name, 1, 1)


def labels(exam: Examination) -> list[Evidence]:
    """Check that labels are shifted once."""
    batches = [batch for batch in exam.batches if isinstance(batch.given.get("labels"), Tensor)]
    if not exam.two_halves:
        batches = [batch for batch in batches if batch.labels is not None]
    if not batches:
        other = any(isinstance(batch.given.get("labels"), Tensor) for batch in exam.batches)
        if other:
            return [unknown("the batch", "labels have another shape than input_ids")]
        return [inapplicable("no batch", "no batch has labels")]
    if exam.two_halves:
        return [_teacher(batch) for batch in batches]
    if exam.subject.kind != "causal":
        return [
            inapplicable(batch.name, "labels of a model that is not causal are not shifted")
            for batch in batches
        ]
    return [_shift(exam, batch) for batch in batches]


def _teacher(batch: ExaminedBatch) -> Evidence:
    """Check that the decoder reads labels shifted by one; otherwise it reads what it should predict."""
    ids = batch.given.get("decoder_input_ids")
    labels = batch.given.get("labels")
    if not isinstance(ids, Tensor) or not isinstance(labels, Tensor) or ids.shape != labels.shape:
        return unknown(batch.name, "the model makes decoder_input_ids of the labels itself")
    valid = labels != IGNORED
    equal = float((ids == labels)[valid].float().mean()) if valid.any() else 0.0
    shifted = valid[:, 1:]
    right = 0.0
    if shifted.any():
        right = float((ids[:, 1:] == labels[:, :-1])[shifted].float().mean())
    if equal >= _AGREE and right < _APART:
        reason = "decoder_input_ids are the labels: the decoder reads what it is to predict"
        return wrong(batch.name, equal, _APART, None, reason, _OF_LABELS)
    if right >= _AGREE:
        return ok(batch.name, equal, _APART, unit=_OF_LABELS)
    return unknown(
        batch.name, "decoder_input_ids are neither the labels nor the labels shifted by one"
    )


def _shift(exam: Examination, batch: ExaminedBatch) -> Evidence:
    """Return how far labels are shifted in the batch, and how far the model shifts them."""
    assert batch.labels is not None
    of_batch = _offset(batch)
    if of_batch is None:
        return unknown(batch.name, "labels are neither the tokens nor the tokens shifted by one")
    of_model = _model_shift(exam, batch)
    if of_model is None:
        name = type(exam.subject.model).__name__
        assumed = exam.subject.core is not None and name.endswith(("ForCausalLM", "LMHeadModel"))
        if not assumed:
            return unknown(batch.name, f"how far {name} shifts labels in its loss is not known")
        of_model = 1
    total = of_batch + of_model
    if total == 1:
        return ok(batch.name, 1, 1)
    target = "itself" if total == 0 else f"the token {total} after it"
    reason = f"labels are shifted by {of_batch} in the batch and by {of_model} in the loss: a token predicts {target}"
    return wrong(batch.name, total, 1, None, reason)


def _offset(batch: ExaminedBatch) -> int | None:
    """Return the offset, -1 to 2, at which labels equal tokens; None if it is ambiguous."""
    labels = batch.labels
    assert labels is not None
    shares = dict[int, float]()
    for offset in (0, 1, 2, -1):
        if offset < 0:
            shifted = labels[:, -offset:]
        else:
            shifted = labels[:, : labels.shape[1] - offset]
        valid = shifted != IGNORED
        tokens = batch.ids[:, :offset] if offset < 0 else batch.ids[:, offset:]
        shares[offset] = 0.0
        if valid.any():
            shares[offset] = float((shifted == tokens)[valid].float().mean())
    best = max(shares, key=shares.__getitem__)
    other_shares = [share for offset, share in shares.items() if offset != best]
    if shares[best] >= _AGREE and max(other_shares) < max(_APART, shares[best] - 0.2):
        return best
    return None


def _model_shift(exam: Examination, batch: ExaminedBatch) -> int | None:
    """Return the offset at which the model's loss is the cross-entropy of its logits."""
    labels = batch.labels
    assert labels is not None
    if (
        exam.subject.call is not None
        or exam.subject.core is None
        or not exam.subject.takes("labels")
    ):
        return None
    try:
        with exam.subject.under(exam.backends[0]):
            outputs = exam.subject.raw(batch.given, labels=labels.to(exam.subject.device))
    except AttnscopeError:
        return None
    loss = getattr(outputs, "loss", None)
    logits = getattr(outputs, "logits", None)
    if (
        not isinstance(loss, Tensor)
        or not isinstance(logits, Tensor)
        or logits.shape[:2] != labels.shape
    ):
        return None
    gaps = []
    for offset in (0, 1, 2):
        length = labels.shape[1] - offset
        if length < 1 or not bool((labels[:, offset:] != IGNORED).any()):
            gaps.append(float("inf"))
            continue
        own_loss = nn.functional.cross_entropy(
            logits[:, :length].float().flatten(0, 1), labels[:, offset:].to(logits.device).flatten(),
            ignore_index=IGNORED)  # fmt: skip
        gaps.append(abs(float(own_loss) - float(loss)) / max(1.0, abs(float(loss))))
    best = min(range(3), key=gaps.__getitem__)
    near = sorted(gaps)
    if finite(near[0]) is not None and near[0] < 5e-3 and near[1] > 4 * near[0] + 1e-4:
        return best
    return None
