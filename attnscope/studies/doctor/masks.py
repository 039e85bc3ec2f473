"""Checks of which tokens a token sees: the future, neighbours in a pack, padding, windows, prefixes, 4-D masks."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from attnscope.base.errors import AttnscopeError
from attnscope.engines.transformers.backends import separates_packs
from attnscope.findings.doctor import OF_OUTPUT, OF_ROW, Evidence
from attnscope.studies.doctor.audit import NO_INTERFACE
from attnscope.studies.doctor.batches import ExaminedBatch, packed_probe
from attnscope.studies.doctor.examination import (
    NO_PROBES,
    Case,
    Examination,
    badness,
    depends,
    inapplicable,
    measured,
    ok,
    relative_gap,
    unknown,
    wrong,
)
from attnscope.studies.screens.header import counted

HIDDEN = "keys that a query should see are hidden"
_LATER = "outputs of earlier tokens change when later tokens are replaced"
_NUMBER_DOCUMENTS = 'give the number of the document of every token: "documents" in the batch, or documents= in Python'
_ALONE = "{} against each alone, {}"


def read_masks(
    exam: Examination, name: str, batches: list[ExaminedBatch], reason: str
) -> list[Evidence]:
    """Return the evidence of one check from the masks of all backends."""

    def measure(case: Case) -> Evidence | str | None:
        audit = case.read()
        if name in audit.leaks:
            return case.finding(audit.leaks[name], reason)
        if name in audit.hidden:
            return case.finding(audit.hidden[name], HIDDEN)
        if name in audit.read:
            return ok(case.examined, unit=OF_ROW)
        return audit.unread

    return measured(exam, batches, measure)


def future(exam: Examination) -> list[Evidence]:
    """Check that a token does not see later ones."""
    kind = exam.subject.kind
    if kind is None:
        return [
            unknown("the model", "nothing says whether the model is causal; pass kind='causal'")
        ]
    if kind == "bidirectional":
        return [
            inapplicable(
                "the model", "the model is bidirectional: every token may see every other token"
            )
        ]
    batches = exam.examined
    if exam.two_halves:
        evidence = measured(
            exam, batches, _later_of_decoder, "decoder of {} with its second half replaced, {}"
        )
    else:
        evidence = [
            item
            for batch in batches
            for backend in exam.backends
            for item in _later(exam, batch, backend)
        ]
    batches = [batch for batch in batches if batch.allowed is None]
    return evidence + read_masks(exam, "future", batches, "a token sees a later token")


def _later(exam: Examination, batch: ExaminedBatch, backend: str) -> Iterator[Evidence]:
    """Replace the second half of each row, and its last token if no mask can be read."""
    length = batch.ids.shape[1]
    cut = length // 2
    if batch.prefix is not None:
        cut = max(cut, int(batch.prefix.max()))
    if batch.allowed is not None:
        later = batch.allowed.triu(1).any(0).any(0).nonzero()
        cut = max(cut, int(later.max()) + 1) if len(later) else cut
    position = torch.arange(length, device=batch.ids.device)
    last = (position * batch.real).amax(1).clamp_min(cut)[:, None]

    def measure(case: Case, first: Tensor) -> Evidence | str:
        plain = case.output()
        moved = case.changed((position >= first) & batch.real)
        rows = ~(position >= first) & batch.real
        if cut >= length:
            return "the prefix is the whole row"
        if plain.shape[:2] != batch.ids.shape or not rows.any():
            return "no token has a later token"
        return case.compare(moved, plain, rows, _LATER)

    for what, start in {"second half": torch.full_like(last, cut), "last token": last}.items():
        template = f"{{}} with its {what} replaced, {{}}"
        (evidence,) = measured(exam, [batch], partial(measure, first=start), template, [backend])
        yield evidence
        if evidence.verdict == "unknown" or exam.subject.interface:
            return


def _later_of_decoder(case: Case) -> Evidence | None:
    decoder = case.exam.decoder_of(case.batch)
    if decoder is None or decoder.ids.shape[1] < 2:
        return None
    length = decoder.ids.shape[1]
    later = torch.arange(length, device=decoder.ids.device).expand(decoder.ids.shape) >= length // 2
    plain = case.output()
    moved = case.changed(later, "decoder_input_ids")
    return case.compare(moved, plain, ~later & decoder.real, _LATER, shown=decoder)


def packs(exam: Examination) -> tuple[list[ExaminedBatch], list[Evidence]]:
    """Return batches with packed documents, or evidence on why there are none."""
    packed = [batch for batch in exam.batches if batch.packed]
    if packed:
        return packed, []
    if unmarked := list(_unmarked(exam)):
        # A pack of other texts would say nothing about the caller's batch.
        return [], unmarked
    if (
        exam.subject.kind != "causal"
        or exam.subject.core is None
        or not exam.subject.takes("position_ids")
    ):
        return [], [inapplicable("the model", "no batch is packed")]
    if len(exam.rows) < 2:
        return [], [unknown("the model", NO_PROBES)]
    limit = exam.subject.longest or 10**9
    rows = [row[: max(2, limit // 3)] for row in exam.rows[:3]]
    return [exam.once("packed", lambda: packed_probe(rows))], []


def packed_documents(exam: Examination) -> list[Evidence]:
    """Check that documents of a pack do not read each other."""
    batches, without = packs(exam)
    if without:
        return without
    evidence = list(_unmarked(exam))
    for batch in batches:
        for backend in exam.backends:
            evidence += _neighbours_replaced(exam, batch, backend)
    evidence += read_masks(exam, "packed_documents", batches, "weight on other documents")
    if batches[0] in exam.batches or separates_packs(exam.subject.core):
        return evidence
    reason = (
        "packed texts read each other if only position_ids tell the texts apart; the model's class does not claim to "
        "separate packed texts"
    )
    return [depends(item, reason) for item in evidence]


def _unmarked(exam: Examination) -> Iterator[Evidence]:
    """Yield evidence on batches that look packed without marking documents: begin or end tokens inside their rows."""
    special = exam.subject.words.special
    for batch in exam.batches:
        if batch.documents is not None:
            continue
        ends = 0
        if exam.subject.kind == "causal":
            ends = _ends_inside(batch, special.eos)
        if ends:
            tokens = "an end token" if ends == 1 else f"{ends} end tokens"
            reason = (f"a row has {tokens} inside, and no position_ids, cu_seq_lens, seq_idx or mask that tells "
                      f"documents apart: if it is a pack, its documents read each other; {_NUMBER_DOCUMENTS}")  # fmt: skip
            yield unknown(batch.name, reason)
        if ends or special.bos is None or special.bos in (special.eos, special.pad):
            continue
        begins = int(((batch.ids == special.bos) & batch.real).sum(1).max())
        if begins > 2:
            reason = (f"a row has {begins} begin tokens, but no position_ids, cu_seq_lens, seq_idx or mask that tells "
                      f"documents apart; {_NUMBER_DOCUMENTS}")  # fmt: skip
            yield unknown(batch.name, reason)


def _ends_inside(batch: ExaminedBatch, eos: int | None) -> int:
    """Return the largest number of end tokens in a row that have other tokens before and after them."""
    if eos is None:
        return 0
    ends = (batch.ids == eos) & batch.real
    others = (batch.real & ~ends).long()
    before = others.cumsum(1) > 0
    after = others.flip(1).cumsum(1).flip(1) > 0
    return int((ends & before & after).sum(1).max())


def _neighbours_replaced(
    exam: Examination, batch: ExaminedBatch, backend: str, **more: Any
) -> list[Evidence]:
    """Replace every other document, and compare the outputs of the others; then the other way round."""
    documents = batch.documents
    assert documents is not None
    # number of every token's document within its row; -1 for padding
    order = torch.full_like(documents, -1)
    for row, columns in batch.document_places():
        order[row, columns] = order[row].max() + 1

    def measure(case: Case, turn: int) -> Evidence | str:
        replaced = (order % 2 == turn) & batch.real
        # a cache changes masks, so that documents are compared with each other under it
        plain = exam.run(batch.given, backend, **more) if more else case.output()
        moved = case.changed(replaced, seed=turn, **more)
        rows = batch.real & ~replaced
        if not rows.any() or not replaced.any():
            return "no row has two documents"
        if plain.shape[:2] != batch.ids.shape:
            return "the model returns no output for each token"
        return case.compare(
            moved, plain, rows, "outputs of a document change when its neighbours are replaced"
        )

    def turns() -> list[Evidence]:
        return [
            evidence
            for turn, which in enumerate(("the other", "every second"))
            for evidence in measured(
                exam,
                [batch],
                partial(measure, turn=turn),
                f"{{}} with {which} document replaced, {{}}",
                [backend],
            )
        ]

    return exam.once(("neighbours", batch, backend, bool(more)), turns)


def packed_with_cache(exam: Examination) -> list[Evidence]:
    """Check that documents of a pack do not read each other with a cache, which evaluation makes by default."""
    batches, without = packs(exam)
    if without:
        return without
    subject = exam.subject
    if not subject.takes("use_cache") or not getattr(subject.config, "use_cache", False):
        return [inapplicable("the model", "the model makes no cache by default")]
    results = []
    for batch in batches:
        if "use_cache" in batch.given:
            continue
        turns = _neighbours_replaced(exam, batch, exam.backends[0], use_cache=True)
        evidence = max(turns, key=lambda item: (item.verdict == "wrong", item.value or 0.0))
        reason = (
            "documents read each other with use_cache=True, the model's default; packed_documents is about "
            "use_cache=False, which transformers.Trainer sets; which of the two your code uses is not known"
        )
        results.append(depends(evidence, reason))
    return results or [inapplicable("the batch", "the batch sets use_cache")]


def packed_positions(exam: Examination) -> list[Evidence]:
    """Check that positions restart with each document of a pack."""
    batches, without = packs(exam)
    if without:
        return without
    evidence = []
    for batch in batches:
        if batch.positions is not None:
            evidence.append(_restarts(exam, batch))
        if batch.positions is None or batch not in exam.batches:
            evidence += measured(exam, [batch], _packed_alone, "documents of {} alone, {}")
    return evidence


def _restarts(exam: Examination, batch: ExaminedBatch) -> Evidence:
    """Find the first document whose positions do not start where the first document's do, or do not count by one."""
    positions = batch.positions
    assert positions is not None
    begins = [
        (row, int(columns[0]), int(positions[row, columns[0]]), positions[row, columns].diff())
        for row, columns in batch.document_places()
    ]
    first_start = min(start for *_, start, _ in begins)
    for row, token, start, steps in begins:
        if start != first_start:
            reason = f"a document starts at position {start}, and the first at {first_start}"
            return wrong(batch.name, start - first_start, 0, exam.token(batch, row, token), reason)
        if bool((steps != 1).any()):
            apart = float((steps - 1).abs().max())
            reason = "positions within a document do not count by one"
            return wrong(batch.name, apart, 0, exam.token(batch, row, token), reason)
    return ok(batch.name)


def _packed_alone(case: Case) -> Evidence | str:
    """Compare documents of a pack with the same documents alone."""
    exam = case.exam
    batch = case.batch
    backend = case.backend
    turns = _neighbours_replaced(exam, batch, backend)
    if "packed_documents" in case.read().leaks or any(item.verdict != "ok" for item in turns):
        return "documents read each other, so that positions cannot be checked"
    documents = [
        (row, columns, exam.alone(batch.ids[row, columns]))
        for row, columns in batch.document_places()
    ]
    return _compared_alone(case, documents, "outputs differ from the outputs of the document alone")


def _compared_alone(
    case: Case, texts: Iterable[tuple[int, Tensor, ExaminedBatch]], reason: str
) -> Evidence:
    """Compare texts of a batch, each in a row and its places, with the same texts alone; the worst decides."""
    output = case.output()
    results = [
        case.compare(
            output[row : row + 1, places.to(output.device)], case.exam.output(text, case.backend), None, reason,
            base=text, at=(row, places),
        )
        for row, places, text in texts
    ]  # fmt: skip
    return max(results, key=badness)


def padding(exam: Examination) -> list[Evidence]:
    """Check that a text has the same outputs padded on the left, on the right, and not at all."""
    evidence: list[Evidence] = []
    if not exam.rows and not exam.batches:
        return [unknown("the model", NO_PROBES)]
    if exam.rows and not exam.subject.takes("attention_mask") and exam.subject.call is None:
        evidence.append(unknown("the probes", "the model takes no attention_mask"))
    elif exam.rows:
        for side in ("right", "left"):
            positions = side == "left" and exam.subject.takes("position_ids")
            if side == "left" and exam.subject.learned_positions and not positions:
                reason = "the model's positions are learned, and the model takes no position_ids"
                evidence.append(unknown("texts padded on the left", reason))
                continue
            batch = exam.probe(side, with_positions=positions)
            evidence += measured(exam, [batch], _like_alone, _ALONE)
            evidence += read_masks(exam, "padding", [batch], "weight on padding")
        # position_ids may hide a mask that is lost: transformers takes positions that do not count on for a pack
        batch = exam.probe("left")
        evidence += read_masks(exam, "padding", [batch], "weight on padding")
        if exam.subject.rotary:
            evidence += measured(exam, [batch], _like_alone, _ALONE)
    for batch in exam.batches:
        # attention behind the interface is given each row by itself: comparing unpadded rows is not worth their passes
        compared = bool(batch.padding.any()) or (len(batch.ids) > 1 and not exam.subject.interface)
        if compared and not batch.packed and batch.allowed is None:
            needs = (
                batch.side() in ("left", "both")
                and exam.subject.learned_positions
                and batch.positions is None
            )
            if mask_covers(batch) and not needs:
                right = batch
            else:
                right = _repaired(batch, exam, positions=needs)
            rows = measured(exam, [right], _like_alone, _ALONE)
            if not batch.padding.any():
                why = "no row is padded; each row has the same outputs as alone"
                rows = [
                    replace(row, verdict="inapplicable", reason=why) if row.verdict == "ok" else row
                    for row in rows
                ]
            evidence += rows
            evidence += read_masks(exam, "padding", [batch], "weight on padding")
    return evidence or [inapplicable("the batch", "nothing is padded")]


def _like_alone(case: Case) -> Evidence | str:
    """Compare each text of a padded batch with the text alone."""
    exam = case.exam
    batch = case.batch
    change = "padding" if batch.padding.any() else "the other rows of the batch"
    decoder = batch.given.get("decoder_input_ids")
    texts = []
    for row, kept_tokens in enumerate(batch.kept):
        if decoder is None:
            places = kept_tokens.nonzero()[:, 0]
        else:
            places = torch.arange(case.output().shape[1])
        texts.append((row, places, _text_alone(exam, batch, row)))
    return _compared_alone(case, texts, f"outputs change with {change}")


def _text_alone(exam: Examination, batch: ExaminedBatch, row: int) -> ExaminedBatch:
    """Return a row of a batch without its padding; the same text of several batches once."""
    places = batch.kept[row]
    if batch.types is None:
        more = {}
    else:
        more = {"token_type_ids": batch.types[row, places][None]}
    for name in ("decoder_input_ids", "decoder_attention_mask"):
        if isinstance(batch.given.get(name), Tensor):
            more[name] = batch.given[name][row : row + 1]
    key = (batch, row) if more else (*batch.ids[row, places].tolist(),)
    return exam.once(("text", *key), lambda: exam.alone(batch.ids[row, places], **more))


def _repaired(batch: ExaminedBatch, exam: Examination, *, positions: bool) -> ExaminedBatch:
    """Return a batch with the right mask, and if need be the right positions."""
    inputs = {**batch.given, "attention_mask": batch.real.long()}
    if positions and exam.subject.takes("position_ids"):
        counted = (batch.real.long().cumsum(1) - 1).clamp_min(0) + exam.subject.position_offset
        inputs["position_ids"] = counted
    return ExaminedBatch(batch.name, inputs, batch.ids, batch.padding, types=batch.types)


def mask_covers(batch: ExaminedBatch) -> bool:
    """Tell whether the mask of a batch bars all of its padding."""
    return batch.attended is not None and not bool((batch.attended & batch.padding).any())


def padding_mask(exam: Examination) -> list[Evidence]:
    """Check that the attention mask bars all padding, and nothing else."""
    evidence: list[Evidence] = []
    for batch in exam.batches:
        evidence += _barred_text(exam, batch)
        if not batch.padding.any():
            if exam.subject.words.special.pad is not None:
                evidence.append(inapplicable(batch.name, "nothing is padded"))
            else:
                reason = "nothing is padded, as far as can be told: the padding token is not known"
                evidence.append(unknown(batch.name, reason))
            continue
        if batch.allowed is not None:
            evidence += read_masks(
                exam, "padding_mask", [batch], "weight on padding that the mask allows"
            )
            continue
        if batch.attended is None:
            bare = batch.padding
        else:
            bare = batch.padding & batch.attended
        if not bare.any():
            evidence.append(ok(batch.name))
            continue
        effect = _effect_of_mask(exam, batch)
        if batch.attended is None and effect is not None and effect.verdict == "ok":
            note = "there is no attention_mask; outputs of the texts are the same with an attention_mask"
            evidence.append(ok(batch.name, effect.value, effect.limit, note, unit=OF_OUTPUT))
            continue
        what = "the attention_mask is 1"
        if batch.attended is None:
            what = "there is no attention_mask"
        note = f"{what} for {counted(int(bare.sum()), 'padding token')}"
        if effect is not None and effect.value is not None:
            changes = "do not change"
            if effect.verdict != "ok":
                changes = f"change by {effect.value:.2g}"
            note += f"; outputs of the texts {changes} with the right mask"
        where = exam.token(batch, *bare.nonzero()[0].tolist())
        evidence.append(wrong(batch.name, int(bare.sum()), 0, where, note))
    return evidence or [inapplicable("no batch", "no batch or collator is given")]


def _barred_text(exam: Examination, batch: ExaminedBatch) -> Iterator[Evidence]:
    """Yield evidence on tokens of texts that the mask bars."""
    if batch.attended is None:
        return
    special = exam.subject.words.special
    barred = ~batch.attended
    text = barred & batch.real
    if special.pad == special.eos:
        # see padding_is_eos
        text &= batch.ids != special.pad
    if text.any():
        where = exam.token(batch, *text.nonzero()[0].tolist())
        note = f"the attention_mask is 0 for {counted(int(text.sum()), 'token')} of the texts"
        yield wrong(batch.name, int(text.sum()), 0, where, note)
        return
    # Which tokens of a caller's batch are padding, the mask alone says: its other tokens may still be text.
    other = barred & (batch.ids != special.pad)
    ids = batch.ids[barred]
    if special.pad is not None and other.any() and bool((ids != ids[0]).any()):
        where = exam.token(batch, *other.nonzero()[0].tolist())
        note = f"the attention_mask is 0 for {counted(int(other.sum()), 'token')} other than the padding token"
        yield depends(wrong(batch.name, int(other.sum()), 0, where, note), note)


def _effect_of_mask(exam: Examination, batch: ExaminedBatch) -> Evidence | None:
    """Measure how the right attention mask changes tokens that are not padding."""
    right = Case(exam, _repaired(batch, exam, positions=False), exam.backends[0], "")
    try:
        plain = exam.output(batch, right.backend)
        return right.compare(
            plain, right.output(), batch.real if plain.shape[:2] == batch.ids.shape else None
        )
    except AttnscopeError:
        return None


def padding_positions(exam: Examination) -> list[Evidence]:
    """Check that padding on the left does not shift positions."""
    results = []
    for batch in exam.batches:
        if batch.side() not in ("left", "both") or batch.packed or batch.allowed is not None:
            continue
        if mask_covers(batch):
            masked = batch
        else:
            masked = _repaired(batch, exam, positions=False)
        (evidence,) = measured(exam, [masked], _like_alone, _ALONE, exam.backends[:1])
        if evidence.verdict == "wrong":
            placed = _repaired(batch, exam, positions=True)
            (right,) = measured(exam, [placed], _like_alone, _ALONE, exam.backends[:1])
            if right.verdict != "ok":
                evidence = unknown(
                    evidence.examined, "outputs change with padding even with the right positions"
                )
            else:
                what = "it has no position_ids"
                if batch.positions is not None:
                    what = "its position_ids count padding"
                reason = f"the batch is padded on the left, and {what}"
                evidence = replace(evidence, examined=batch.name, reason=reason)
        results.append(evidence)
    if results or not exam.rows:
        return results or [inapplicable("no batch", "no batch is padded on the left")]
    reason = (
        "padding on the left changes outputs if the model is called without position_ids; no batch here is padded on "
        "the left"
    )
    return [
        depends(item, reason) for item in measured(exam, [exam.probe("left")], _like_alone, _ALONE)
    ]


def prefix(exam: Examination) -> list[Evidence]:
    """Check that tokens of a prefix see each other, and no later ones."""
    if exam.two_halves:
        return measured(exam, exam.examined, _encoder_sees_all)
    batches = [batch for batch in exam.batches if batch.prefix is not None]
    batches_with_prefix = [
        batch
        for batch in exam.batches
        if exam.subject.kind == "causal" and batch.prefix is None and batch.allowed is not None
        if bool(batch.allowed.triu(1).any())
    ]
    evidence = read_masks(
        exam, "mask_4d", batches_with_prefix, "the mask of the batch has a prefix and is not kept"
    )
    evidence += read_masks(exam, "prefix", batches, "")
    evidence += [_prefix_of_mask(exam, batch) for batch in batches if batch.allowed is not None]
    evidence += measured(
        exam, batches, _prefix_by_change, "{} with the last token of its prefix replaced, {}"
    )
    return evidence or [
        inapplicable(
            "the model",
            "no batch has a prefix; in Python, pass batch= and prefix=, the prefix's length",
        )
    ]


def _encoder_sees_all(case: Case) -> Evidence | str:
    if "backend" in case.read().hidden:
        return case.finding(case.read().hidden["backend"], "hidden in the encoder")
    return case.read().unread or ok(case.examined)


def _prefix_of_mask(exam: Examination, batch: ExaminedBatch) -> Evidence:
    """Compare the 4-D mask of a batch with its prefix: all of it sees all of it, and nothing after it."""
    assert batch.prefix is not None and batch.allowed is not None
    position = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    inside = position < batch.prefix[:, None]
    real = batch.real[:, :, None] & batch.real[:, None]
    if batch.documents is not None:
        real &= batch.documents[:, :, None] == batch.documents[:, None]
    hidden = inside[:, :, None] & inside[:, None] & real & ~batch.allowed
    later = inside[:, :, None] & ~inside[:, None] & real & batch.allowed
    cells = hidden if hidden.any() else later
    if not cells.any():
        return ok(f"the mask of {batch.name}")
    row, token, key = cells.nonzero()[0].tolist()
    what = "lets the prefix see later tokens"
    if hidden.any():
        what = "hides a token of the prefix from another"
    where = exam.place(batch, "", (row, token, key))
    return wrong(f"the mask of {batch.name}", int(cells.sum()), 0, where, f"the mask {what}")


def _prefix_by_change(case: Case) -> Evidence | str:
    """Replace the last token of each prefix; the outputs of its first tokens must change."""
    batch = case.batch
    assert batch.prefix is not None
    position = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    last = position == batch.prefix[:, None] - 1
    if int(batch.prefix.min()) < 2:
        return "a prefix is one token"
    plain = case.output()
    moved = case.changed(last)
    value = relative_gap(moved, plain, (position < batch.prefix[:, None] - 1) & batch.real)[0]
    if value > 0:
        reason = "outputs of earlier tokens change, as they should"
        return ok(case.examined, value, None, reason, unit=OF_OUTPUT)
    reason = "tokens of the prefix do not see later tokens of the prefix"
    return wrong(case.examined, 0, None, case.backend, reason, OF_OUTPUT)


def window(exam: Examination) -> list[Evidence]:
    """Check that the window is as wide as configured, on each backend."""
    long = exam.long_probe()

    def measure(case: Case) -> Evidence | str:
        audit = case.read()
        configured = max(audit.widest, default=0)
        seen = audit.widest.get(configured, 0)
        for wide, finding in (
            (True, audit.leaks.get("window")),
            (False, audit.hidden.get("window")),
        ):
            if finding is not None:
                if wide:
                    what = f"a query sees {seen} keys"
                else:
                    what = f"{finding.cells} keys within the window are hidden"
                reason = f"{what}, and the window is {configured}"
                location = case.place(finding)
                return wrong(case.examined, seen, configured, location, reason)
        if (why := audit.unread) is not None:
            return why
        if not audit.widest:
            return inapplicable(case.examined, "no layer has a window, according to the config")
        if "window" in audit.skipped:
            return audit.skipped["window"] + (
                "" if exam.longest_probe >= configured + 2 else "; raise longest_probe"
            )
        return ok(case.examined, seen, configured)

    evidence = []
    for batch in exam.examined if long is None else [long, *exam.batches]:
        evidence += measured(exam, [batch], measure, f"{{}} of {batch.ids.shape[1]} tokens, {{}}")
    return evidence or [unknown("the model", NO_PROBES)]


def mask_4d(exam: Examination) -> list[Evidence]:
    """Check that a 4-D mask is obeyed."""
    batches_with_mask = [batch for batch in exam.batches if batch.allowed is not None]
    why = "the model does not run with the 4-D mask of the batch"
    evidence = [
        replace(item, verdict="wrong", where=backend, reason=f"{why}: {item.reason}")
        for batch in batches_with_mask
        for backend in exam.backends
        for item in measured(exam, [batch], runs, backends=[backend])
    ]
    evidence += [
        hidden for batch in batches_with_mask for hidden in _hidden_from_itself(exam, batch)
    ]
    told = {item.examined for item in evidence}
    of_masks = read_masks(exam, "mask_4d", batches_with_mask, "the mask of the batch is not obeyed")
    evidence += [item for item in of_masks if item.examined not in told]
    if evidence or not exam.rows or exam.subject.core is None or exam.two_halves:
        if exam.rows:
            without = inapplicable("the model", "no batch has a 4-D mask")
        else:
            without = unknown("the model", NO_PROBES)
        return evidence or [without]
    rows = [row[:6] for row in exam.rows[:2]]
    ids = torch.tensor([[token for row in rows for token in row]])
    numbers = torch.tensor([n for n, row in enumerate(rows) for _ in row])
    allowed = numbers[:, None] == numbers
    if exam.subject.kind != "bidirectional":
        allowed = allowed.tril()
    mask = torch.zeros(allowed.shape, dtype=exam.subject.dtype)
    mask = mask.masked_fill(~allowed, torch.finfo(mask.dtype).min)[None, None]
    none = torch.zeros_like(ids, dtype=torch.bool)
    two_blocks = {"input_ids": ids, "attention_mask": mask}
    batch = ExaminedBatch("2 texts under a 4-D mask", two_blocks, ids, none, allowed=allowed[None])
    refused = measured(exam, [batch], runs)
    evidence += [
        replace(item, reason=f"the model takes no 4-D mask: {item.reason}") for item in refused
    ]
    return evidence + read_masks(exam, "mask_4d", [batch], "a 4-D mask is not obeyed")


def runs(case: Case) -> None:
    """Measure nothing, so that the only evidence is why a batch does not run."""
    case.read()


def _hidden_from_itself(exam: Examination, batch: ExaminedBatch) -> Iterator[Evidence]:
    """Find tokens that a 4-D mask lets see others and not themselves, as an inverted mask does."""
    assert batch.allowed is not None
    itself = batch.allowed.diagonal(dim1=1, dim2=2)
    blind = batch.real & ~itself & batch.allowed.any(-1)
    if blind.any():
        row, token = blind.nonzero()[0].tolist()
        where = exam.place(batch, "", (row, token))
        inverted = ""
        if bool(blind.equal(batch.real & batch.allowed.any(-1))):
            inverted = "; the mask is inverted"
        reason = f"tokens may attend to other tokens, and not to themselves{inverted}"
        yield wrong(f"the mask of {batch.name}", int(blind.sum()), 0, where, reason)


def fully_masked(exam: Examination) -> list[Evidence]:
    """Check that every token may attend to something, and that rows that may not are not NaN."""

    def measure(case: Case) -> Evidence | str:
        batch = case.batch
        audit = case.read()
        output = case.output()
        bad = ~output.isfinite().all(-1)
        if output.shape[:2] == batch.ids.shape and bad.any():
            row, token = bad.nonzero()[0].tolist()
            what = "padding" if batch.padding[row, token] else "tokens of a text"
            reason = f"outputs of {what} are not finite"
            return wrong(case.examined, int(bad.sum()), 0, case.where(row, token), reason)
        if "fully_masked" in audit.leaks:
            return case.finding(audit.leaks["fully_masked"])
        if audit.layers:
            return ok(case.examined)
        return NO_INTERFACE

    batches = ([exam.probe("left")] if exam.rows else []) + exam.batches
    return measured(exam, batches, measure) or [unknown("the model", NO_PROBES)]
