"""Checks of which tokens a token sees: the future, neighbours in a pack, padding, windows, prefixes, 4-D masks."""

from collections.abc import Callable, Iterator

import torch
from msgspec.structs import replace
from torch import Tensor

from attnscope.base.errors import AttnscopeError
from attnscope.engines.transformers.backends import separates_packs
from attnscope.findings.doctor import Evidence
from attnscope.studies.doctor.audit import AttentionPlace, Audit
from attnscope.studies.doctor.batches import ExaminedBatch, packed_probe
from attnscope.studies.doctor.examination import Examination, finite, relative_gap

NO_PROBES = "the vocabulary is not known; pass a batch or a tokenizer"
NO_INTERFACE = "the model's attention does not run through the interface of transformers, so masks cannot be read"


def unknown(examined: str, reason: str, value: float | None = None, limit: float | None = None) -> Evidence:
    """Return evidence with the verdict `unknown`."""
    return Evidence(examined, "unknown", value, limit, None, reason)


def judged(
    exam: Examination,
    batches: list[ExaminedBatch],
    judge: Callable[[str, ExaminedBatch, str, Audit], Evidence | str | None],
    name: Callable[[ExaminedBatch], str] = lambda batch: batch.name,
    more: str = "",
) -> list[Evidence]:
    """Judge the audits of batches under every backend.

    Args:
        judge: Takes what is examined, the batch, the backend and the audit; returns evidence, a reason why it is
            unknown, or None for nothing to say.
        more: Said of what is examined behind batch and backend.
    """
    results = []
    for batch in batches:
        for backend in exam.backends:
            examined = f"{name(batch)}, {backend}{more}"
            try:
                verdict = judge(examined, batch, backend, exam.audit(batch, backend))
            except AttnscopeError as e:
                verdict = e.message
            if verdict is not None:
                results.append(unknown(examined, verdict) if isinstance(verdict, str) else verdict)
    return results


def unread(audit: Audit) -> str | None:
    """Return why masks were not read; None if they were."""
    return audit.skipped.get("masks") if audit.layers else NO_INTERFACE


def examined_batches(exam: Examination) -> list[ExaminedBatch]:
    """Return a probe, if there is one, and the user's batches."""
    return ([exam.probe("right", with_positions=False)] if exam.rows else []) + exam.batches


def read_masks(exam: Examination, name: str, batches: list[ExaminedBatch], reason: str) -> list[Evidence]:
    """Return the evidence of one check from the masks of all backends."""

    def judge(examined: str, batch: ExaminedBatch, backend: str, audit: Audit) -> Evidence | str | None:
        if name in audit.leaks:
            return exam.finding(audit.leaks[name], batch, backend, reason)
        if name in audit.hidden:
            return exam.finding(audit.hidden[name], batch, backend, "keys that a query should see are hidden")
        return Evidence(examined, "ok", 0.0, 0.0) if f"read {name}" in audit.findings else unread(audit)

    return judged(exam, batches, judge)


def future(exam: Examination) -> list[Evidence]:
    """Check that a token does not see later ones."""
    kind = exam.subject.kind
    if kind is None:
        return [unknown("the model", "nothing says whether the model is causal; pass kind='causal'")]
    if kind == "bidirectional":
        return [unknown("the model", "the model is bidirectional: every token may see every other token")]
    evidence: list[Evidence] = []
    if exam.two_halves:
        evidence += _future_of_decoder(exam)
    else:
        for batch in examined_batches(exam):
            for backend in exam.backends:
                evidence += _later_replaced(exam, batch, backend)
    batches = [batch for batch in examined_batches(exam) if batch.allowed is None]
    return evidence + list(read_masks(exam, "future", batches, "a token sees a later token"))


def _later_replaced(exam: Examination, batch: ExaminedBatch, backend: str) -> Iterator[Evidence]:
    """Replace the second half of each row, and its last token if no mask can be read."""
    length = batch.ids.shape[1]
    cut = length // 2
    if batch.prefix is not None:
        cut = max(cut, int(batch.prefix.max()))
    if batch.allowed is not None:
        later = batch.allowed.triu(1).any(0).any(0).nonzero()
        cut = max(cut, int(later.max()) + 1) if len(later) else cut
    place = torch.arange(length, device=batch.ids.device)
    last = (place * batch.real).amax(1).clamp_min(cut)[:, None]
    for what, first in {"second half": torch.full_like(last, cut), "last token": last}.items():
        examined = f"{batch.name} with its {what} replaced, {backend}"
        later = place >= first
        try:
            plain = exam.output(batch, backend)
            moved = exam.run({**batch.given, "input_ids": exam.other_tokens(batch.ids, later & batch.real)}, backend)
        except AttnscopeError as e:
            yield unknown(examined, e.message)
            return
        rows = ~later & batch.real
        if cut >= length or plain.shape[:2] != batch.ids.shape or not rows.any():
            yield unknown(examined, "the prefix is the whole row" if cut >= length else "no token has a later token")
            return
        reason = "outputs of earlier tokens change when later tokens are replaced"
        yield exam.compare(examined, moved, plain, batch, backend, where=exam.at(batch, backend), rows=rows,
                           reason=reason)  # fmt: skip
        if exam.subject.interface:
            return


def _future_of_decoder(exam: Examination) -> Iterator[Evidence]:
    for batch in examined_batches(exam):
        decoder = exam.decoder_of(batch)
        if decoder is None or decoder.ids.shape[1] < 2:
            continue
        cut = decoder.ids.shape[1] // 2
        later = torch.arange(decoder.ids.shape[1], device=decoder.ids.device)[None].expand(decoder.ids.shape) >= cut
        for backend in exam.backends:
            examined = f"{decoder.name} with its second half replaced, {backend}"
            try:
                changed = exam.other_tokens(decoder.ids, later)
                plain = exam.output(batch, backend)
                moved = exam.run({**batch.given, "decoder_input_ids": changed}, backend)
            except AttnscopeError as e:
                yield unknown(examined, e.message)
                continue
            reason = "outputs of earlier tokens change when later tokens are replaced"
            yield exam.compare(examined, moved, plain, batch, backend, where=exam.at(decoder, backend),
                               rows=~later & decoder.real, reason=reason)  # fmt: skip


def packs(exam: Examination) -> tuple[list[ExaminedBatch], str | None]:
    """Return batches with packed documents, or why there are none."""
    packed = [batch for batch in exam.batches if batch.packed]
    if packed:
        return packed, None
    if exam.subject.kind != "causal" or exam.subject.core is None or not exam.subject.takes("position_ids"):
        return [], "no batch is packed"
    if len(exam.rows) < 2:
        return [], NO_PROBES
    if "packed" not in exam._probes:
        most = exam.subject.longest or 10**9
        rows = [row[: max(2, most // 3)] for row in exam.rows[:3]]
        exam._probes["packed"] = packed_probe(rows)
    return [exam._probes["packed"]], None


def packed_documents(exam: Examination) -> list[Evidence]:
    """Check that documents of a pack do not read each other."""
    evidence = list(_unmarked(exam))
    batches, why = packs(exam)
    if why is not None:
        return evidence or [unknown("the model", why)]
    for batch in batches:
        for backend in exam.backends:
            evidence += [_neighbour_replaced(exam, batch, backend, turn) for turn in (0, 1)]
    evidence += read_masks(exam, "packed_documents", batches, "weight on other documents")
    if batches[0] in exam.batches or separates_packs(exam.subject.core):
        return evidence
    reason = (
        "packed texts read each other if only position_ids tell the texts apart; the model's class does not claim to "
        "separate packed texts"
    )
    return [item if item.verdict != "wrong" else replace(item, verdict="unknown", reason=reason) for item in evidence]


def _unmarked(exam: Examination) -> Iterator[Evidence]:
    """Yield evidence on batches that look packed without marking documents."""
    special = exam.subject.words.special
    for batch in exam.batches:
        if batch.documents is not None or special.bos is None or special.bos in (special.eos, special.pad):
            continue
        begins = int(((batch.ids == special.bos) & batch.real).sum(1).max())
        if begins > 2:
            reason = (f"a row has {begins} begin tokens, but no position_ids, cu_seq_lens, seq_idx or mask that tells "
                      "documents apart; pass documents=")  # fmt: skip
            yield unknown(batch.name, reason)


def _neighbour_replaced(exam: Examination, batch: ExaminedBatch, backend: str, turn: int, **more: object) -> Evidence:
    """Replace every other document, and compare the outputs of the others; kept after the first call."""
    key = id(batch), backend, turn, bool(more)
    if key not in exam.replaced:
        exam.replaced[key] = _replace_neighbours(exam, batch, backend, turn, **more)
    return exam.replaced[key]


def _replace_neighbours(exam: Examination, batch: ExaminedBatch, backend: str, turn: int, **more: object) -> Evidence:
    """Replace every other document, and compare the outputs of the others."""
    documents = batch.documents
    assert documents is not None
    examined = f"{batch.name} with {'every second' if turn else 'the other'} document replaced, {backend}"
    order = _document_order(documents)
    replaced = (order % 2 == turn) & batch.real
    try:
        changed = exam.other_tokens(batch.ids, replaced, seed=turn)
        # a cache changes masks, so that documents are compared with each other under it
        plain = exam.run(batch.given, backend, **more) if more else exam.output(batch, backend)
        moved = exam.run({**batch.given, "input_ids": changed}, backend, **more)
    except AttnscopeError as e:
        return unknown(examined, e.message)
    rows = batch.real & ~replaced
    if not rows.any() or not replaced.any():
        return unknown(examined, "no row has two documents")
    if plain.shape[:2] != batch.ids.shape:
        return unknown(examined, "the model returns no output for each token")
    reason = "outputs of a document change when its neighbours are replaced"
    return exam.compare(examined, moved, plain, batch, backend, where=exam.at(batch, backend), rows=rows, reason=reason)


def _document_order(documents: Tensor) -> Tensor:
    """Return the number of every token's document within each row, from 0; -1 for padding."""
    order = torch.full_like(documents, -1)
    for row, numbers in enumerate(documents.tolist()):
        known = {number: n for n, number in enumerate(dict.fromkeys(n for n in numbers if n >= 0))}
        order[row] = torch.tensor([known.get(number, -1) for number in numbers])
    return order


def packed_with_cache(exam: Examination) -> list[Evidence]:
    """Check that documents of a pack do not read each other with a cache, which evaluation makes by default."""
    batches, why = packs(exam)
    if why is not None:
        return [unknown("the model", why)]
    subject = exam.subject
    if not subject.takes("use_cache") or not getattr(subject.config, "use_cache", False):
        return [unknown("the model", "the model makes no cache by default")]
    results = []
    for batch in batches:
        if "use_cache" in batch.given:
            continue
        backend = exam.backends[0]
        turns = [_neighbour_replaced(exam, batch, backend, turn, use_cache=True) for turn in (0, 1)]
        evidence = max(turns, key=lambda item: (item.verdict == "wrong", item.value or 0.0))
        if evidence.verdict == "wrong":
            reason = (
                "documents read each other with use_cache=True, the model's default; packed_documents is about "
                "use_cache=False, which transformers.Trainer sets; which of the two your code uses is not known"
            )
            evidence = unknown(evidence.examined, reason, evidence.value, evidence.limit)
        results.append(evidence)
    return results or [unknown("the batch", "the batch sets use_cache")]


def packed_positions(exam: Examination) -> list[Evidence]:
    """Check that positions restart with each document of a pack."""
    batches, why = packs(exam)
    if why is not None:
        return [unknown("the model", why)]
    evidence = []
    for batch in batches:
        if batch.positions is not None:
            evidence.append(_restarts(exam, batch))
        if batch.positions is None or batch not in exam.batches:
            evidence += [_packed_alone(exam, batch, backend) for backend in exam.backends]
    return evidence


def _restarts(exam: Examination, batch: ExaminedBatch) -> Evidence:
    """Find the first document whose positions do not start where the first document's do, or do not count by one."""
    documents, positions = batch.documents, batch.positions
    assert documents is not None and positions is not None
    begins = []
    for row in range(len(documents)):
        for number in dict.fromkeys(n for n in documents[row].tolist() if n >= 0):
            place = (documents[row] == number).nonzero()[:, 0]
            begins.append((row, int(place[0]), int(positions[row, place[0]]), positions[row, place].diff()))
    first = min(start for *_, start, _ in begins)
    for row, token, start, steps in begins:
        if start != first or bool((steps != 1).any()):
            reason = f"a document starts at position {start}, and the first at {first}" if start != first else (
                "positions within a document do not count by one")  # fmt: skip
            value = float(start - first) if start != first else float((steps - 1).abs().max())
            where = f"row {row} token {token} {exam.spell(int(batch.ids[row, token]))!r}"
            return Evidence(batch.name, "wrong", value, 0.0, where, reason)
    return Evidence(batch.name, "ok", 0.0, 0.0)


def _packed_alone(exam: Examination, batch: ExaminedBatch, backend: str) -> Evidence:
    """Compare documents of a pack with the same documents alone."""
    examined = f"documents of {batch.name} alone, {backend}"
    documents = batch.documents
    assert documents is not None
    turns = [_neighbour_replaced(exam, batch, backend, turn) for turn in (0, 1)]
    try:
        leaks = "packed_documents" in exam.audit(batch, backend).leaks
    except AttnscopeError as e:
        return unknown(examined, e.message)
    if leaks or any(item.verdict != "ok" for item in turns):
        return unknown(examined, "documents read each other, so that positions cannot be checked")
    results: list[Evidence] = []
    try:
        packed = exam.output(batch, backend)
        for row in range(len(documents)):
            for number in dict.fromkeys(n for n in documents[row].tolist() if n >= 0):
                place = (documents[row] == number).nonzero()[:, 0]
                text = exam.alone(batch.ids[row, place])
                by_itself = exam.output(text, backend)
                results.append(exam.compare(
                    examined, packed[row : row + 1, place], by_itself, text, backend,
                    where=exam.at(batch, backend, row, place),
                    reason="outputs differ from the outputs of the document alone",
                ))  # fmt: skip
    except AttnscopeError as e:
        return unknown(examined, e.message)
    return _worst(results) or unknown(examined, "there is no document")


def _worst(results: list[Evidence]) -> Evidence | None:
    """Return the evidence with the largest share of its limit; what is wrong comes before all other."""

    def badness(evidence: Evidence) -> tuple[bool, float]:
        share = float("inf") if evidence.value is None else evidence.value / max(evidence.limit or 0.0, 1e-300)
        return evidence.verdict == "wrong", share

    return max(results, key=badness, default=None)


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
                evidence.append(
                    unknown(
                        "texts padded on the left",
                        "the model's positions are learned, and the model takes no position_ids",
                    )
                )
                continue
            batch = exam.probe(side, with_positions=positions)
            evidence += [_like_alone(exam, batch, backend) for backend in exam.backends]
            evidence += read_masks(exam, "padding", [batch], "weight on padding")
        # position_ids may hide a mask that is lost: transformers takes positions that do not count on for a pack
        batch = exam.probe("left", with_positions=False)
        evidence += read_masks(exam, "padding", [batch], "weight on padding")
        if exam.subject.rotary:
            evidence += [_like_alone(exam, batch, backend) for backend in exam.backends]
    for batch in exam.batches:
        # attention behind the interface is given each row by itself: comparing unpadded rows is not worth their passes
        compared = bool(batch.padding.any()) or (len(batch.ids) > 1 and not exam.subject.interface)
        if compared and not batch.packed and batch.allowed is None:
            rows = [_batch_like_alone(exam, batch, backend) for backend in exam.backends]
            if not batch.padding.any():
                why = "no row is padded; each row has the same outputs as alone"
                rows = [replace(row, verdict="unknown", reason=why) if row.verdict == "ok" else row for row in rows]
            evidence += rows
            evidence += read_masks(exam, "padding", [batch], "weight on padding")
    return evidence or [unknown("the batch", "nothing is padded")]


def _like_alone(exam: Examination, batch: ExaminedBatch, backend: str) -> Evidence:
    """Compare each text of a padded batch with the text alone."""
    examined = f"{batch.name} against each alone, {backend}"
    results: list[Evidence] = []
    change = "padding" if batch.padding.any() else "the other rows of the batch"
    try:
        padded = exam.output(batch, backend)
        decoder = batch.given.get("decoder_input_ids")
        for row in range(len(batch.ids)):
            text = _text_alone(exam, batch, row)
            by_itself = exam.output(text, backend)
            if decoder is not None:
                row_output, places = padded[row : row + 1], torch.arange(padded.shape[1])
            else:
                places = batch.kept[row].nonzero()[:, 0]
                row_output = padded[row : row + 1, places.to(padded.device)]
            results.append(exam.compare(
                examined, row_output, by_itself, text, backend,
                where=exam.at(batch, backend, row, places),
                reason=f"outputs change with {change}",
            ))  # fmt: skip
    except AttnscopeError as e:
        return unknown(examined, e.message)
    return _worst(results) or unknown(examined, "there is no text")


def _text_alone(exam: Examination, batch: ExaminedBatch, row: int) -> ExaminedBatch:
    """Return a row of a batch without its padding."""
    places = batch.kept[row]
    given = (batch.types, *(batch.given.get(name) for name in ("decoder_input_ids", "decoder_attention_mask")))
    shared = all(value is None for value in given)
    key = f"{batch.ids[row, places].tolist()}" if shared else f"row {row} of {id(batch)}"
    if key not in exam._probes:
        more = {}
        if batch.types is not None:
            more["token_type_ids"] = batch.types[row, places][None]
        for name in ("decoder_input_ids", "decoder_attention_mask"):
            if isinstance(batch.given.get(name), Tensor):
                more[name] = batch.given[name][row : row + 1]
        exam._probes[key] = exam.alone(batch.ids[row, places], **more)
    return exam._probes[key]


def _repaired(batch: ExaminedBatch, exam: Examination, *, mask: bool, positions: bool) -> ExaminedBatch:
    """Return a batch with the right mask, or the right positions."""
    given = dict(batch.given)
    if mask:
        given["attention_mask"] = batch.real.long()
    if positions and exam.subject.takes("position_ids"):
        counted = (batch.real.long().cumsum(1) - 1).clamp_min(0) + exam.subject.position_offset
        given["position_ids"] = counted
    return ExaminedBatch(batch.name, given, batch.ids, batch.padding, types=batch.types)


def mask_covers(batch: ExaminedBatch) -> bool:
    """Tell whether the mask of a batch bars all of its padding."""
    return batch.attended is not None and not bool((batch.attended & batch.padding).any())


def _batch_like_alone(exam: Examination, batch: ExaminedBatch, backend: str) -> Evidence:
    """Compare rows of the user's batch with each alone, after repairing its mask and positions."""
    needs = batch.side() in ("left", "both") and exam.subject.learned_positions and batch.positions is None
    if mask_covers(batch) and not needs:
        return _like_alone(exam, batch, backend)
    fixed = _repaired(batch, exam, mask=True, positions=needs)
    return _like_alone(exam, fixed, backend)


def padding_mask(exam: Examination) -> list[Evidence]:
    """Check that the attention mask bars all padding."""
    evidence = []
    for batch in exam.batches:
        if not batch.padding.any():
            no_pad = "" if exam.subject.words.special.pad is not None else ": the padding token is not known"
            evidence.append(unknown(batch.name, f"nothing is padded, as far as can be told{no_pad}"))
            continue
        if batch.allowed is not None:
            evidence += read_masks(exam, "padding_mask", [batch], "weight on padding that the mask allows")
            continue
        bare = batch.padding if batch.attended is None else batch.padding & batch.attended
        if not bare.any():
            evidence.append(Evidence(batch.name, "ok", 0.0, 0.0))
            continue
        effect = _effect_of_mask(exam, batch)
        row, token = (int(n) for n in bare.nonzero()[0])
        where = f"row {row} token {token} {exam.spell(int(batch.ids[row, token]))!r}"
        if batch.attended is None and effect is not None and effect.verdict == "ok":
            note = "there is no attention_mask; outputs of the texts are the same with an attention_mask"
            evidence.append(Evidence(batch.name, "ok", effect.value, effect.limit, None, note))
            continue
        what = "there is no attention_mask" if batch.attended is None else "the attention_mask is 1"
        note = f"{what} for {int(bare.sum())} padding tokens"
        if effect is not None and effect.value is not None:
            changes = "do not change" if effect.verdict == "ok" else f"change by {effect.value:.2g}"
            note += f"; outputs of the texts {changes} with the right mask"
        evidence.append(Evidence(batch.name, "wrong", float(bare.sum()), 0.0, where, note))
    return evidence or [unknown("no batch", "no batch or collator is given")]


def _effect_of_mask(exam: Examination, batch: ExaminedBatch) -> Evidence | None:
    """Measure how the right attention mask changes tokens that are not padding."""
    backend = exam.backends[0]
    fixed = _repaired(batch, exam, mask=True, positions=False)
    try:
        plain, right = exam.output(batch, backend), exam.output(fixed, backend)
    except AttnscopeError:
        return None
    rows = batch.real if plain.shape[:2] == batch.ids.shape else None
    return exam.compare("", plain, right, fixed, backend, where=exam.at(batch, backend), rows=rows)


def padding_positions(exam: Examination) -> list[Evidence]:
    """Check that padding on the left does not shift positions."""
    results = []
    for batch in exam.batches:
        if batch.side() not in ("left", "both") or batch.packed or batch.allowed is not None:
            continue
        backend = exam.backends[0]
        masked = batch if mask_covers(batch) else _repaired(batch, exam, mask=True, positions=False)
        evidence = _like_alone(exam, masked, backend)
        if evidence.verdict == "wrong":
            right = _like_alone(exam, _repaired(batch, exam, mask=True, positions=True), backend)
            if right.verdict != "ok":
                evidence = unknown(evidence.examined, "outputs change with padding even with the right positions")
            else:
                what = "its position_ids count padding" if batch.positions is not None else "it has no position_ids"
                evidence = Evidence(batch.name, "wrong", evidence.value, evidence.limit, evidence.where,
                                    f"the batch is padded on the left, and {what}")  # fmt: skip
        results.append(evidence)
    if results or not exam.rows:
        return results or [unknown("no batch", "no batch is padded on the left")]
    batch = exam.probe("left", with_positions=False)
    for backend in exam.backends:
        evidence = _like_alone(exam, batch, backend)
        if evidence.verdict == "wrong":
            reason = "without position_ids, padding on the left changes outputs; no batch here is padded on the left"
            evidence = unknown(evidence.examined, reason, evidence.value, evidence.limit)
        results.append(evidence)
    return results


def prefix(exam: Examination) -> list[Evidence]:
    """Check that tokens of a prefix see each other, and no later ones."""
    if exam.two_halves:
        return _encoder_sees_all(exam)
    batches = [batch for batch in exam.batches if batch.prefix is not None]
    given = [
        batch
        for batch in exam.batches
        if exam.subject.kind == "causal" and batch.prefix is None and batch.allowed is not None
        if bool(batch.allowed.triu(1).any())
    ]
    evidence = read_masks(exam, "mask_4d", given, "the mask of the batch has a prefix and is not kept")
    evidence += read_masks(exam, "prefix", batches, "")
    evidence += [_prefix_of_mask(exam, batch) for batch in batches if batch.allowed is not None]
    for batch in batches:
        evidence += [_prefix_by_change(exam, batch, backend) for backend in exam.backends]
    return evidence or [
        unknown("the model", "no batch has a prefix; in Python, pass batch= and prefix=, the prefix's length")
    ]


def _encoder_sees_all(exam: Examination) -> list[Evidence]:
    """Replace the encoder's last token; all outputs of the decoder must change."""

    def judge(examined: str, batch: ExaminedBatch, backend: str, audit: Audit) -> Evidence | str:
        if "backend" in audit.hidden:
            return exam.finding(audit.hidden["backend"], batch, backend, "hidden in the encoder")
        return unread(audit) or Evidence(examined, "ok", 0.0, 0.0)

    return judged(exam, examined_batches(exam), judge)


def _prefix_of_mask(exam: Examination, batch: ExaminedBatch) -> Evidence:
    """Compare the 4-D mask of a batch with its prefix: all of it sees all of it, and nothing after it."""
    assert batch.prefix is not None and batch.allowed is not None
    place = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    inside = place < batch.prefix[:, None]
    real = batch.real[:, :, None] & batch.real[:, None]
    if batch.documents is not None:
        real &= batch.documents[:, :, None] == batch.documents[:, None]
    hidden = inside[:, :, None] & inside[:, None] & real & ~batch.allowed
    later = inside[:, :, None] & ~inside[:, None] & real & batch.allowed
    wrong = hidden if hidden.any() else later
    if not wrong.any():
        return Evidence(f"the mask of {batch.name}", "ok", 0.0, 0.0)
    row, token, key = (int(n) for n in wrong.nonzero()[0])
    what = "hides a token of the prefix from another" if hidden.any() else "lets the prefix see later tokens"
    where = exam.place(AttentionPlace("", row=row, token=token, key=key), batch)
    return Evidence(f"the mask of {batch.name}", "wrong", float(wrong.sum()), 0.0, where, f"the mask {what}")


def _prefix_by_change(exam: Examination, batch: ExaminedBatch, backend: str) -> Evidence:
    """Replace the last token of each prefix; the outputs of its first tokens must change."""
    examined = f"{batch.name} with the last token of its prefix replaced, {backend}"
    assert batch.prefix is not None
    place = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    last = place == batch.prefix[:, None] - 1
    if int(batch.prefix.min()) < 2:
        return unknown(examined, "a prefix is one token")
    try:
        plain = exam.output(batch, backend)
        moved = exam.run({**batch.given, "input_ids": exam.other_tokens(batch.ids, last)}, backend)
    except AttnscopeError as e:
        return unknown(examined, e.message)
    before = (place < batch.prefix[:, None] - 1) & batch.real
    value = relative_gap(moved, plain, before)[0]
    if value > 0:
        return Evidence(examined, "ok", finite(value), None, None, "outputs of earlier tokens change, as they should")
    return Evidence(examined, "wrong", 0.0, None, backend, "tokens of the prefix do not see later tokens of the prefix")


def window(exam: Examination) -> list[Evidence]:
    """Check that the window is as wide as configured, on each backend."""
    config = exam.subject.config
    batches = examined_batches(exam)
    width = getattr(config, "sliding_window", None)
    long = exam._probes.get("long")
    most = min(exam.longest_probe, exam.subject.longest or exam.longest_probe)
    if long is None and exam.rows and isinstance(width, int) and width + 2 <= most:
        tokens = [token for row in exam.rows for token in row]
        count = min(max(width + 4, 12), most)
        long = exam._probes["long"] = exam.alone((tokens * (count // len(tokens) + 1))[:count])
    if long is not None:
        batches = [long, *exam.batches]

    def judge(examined: str, batch: ExaminedBatch, _backend: str, audit: Audit) -> Evidence | str:
        configured = max(audit.widest, default=0)
        seen = audit.widest.get(configured, 0)
        for wide, measured in ((True, audit.leaks.get("window")), (False, audit.hidden.get("window"))):
            if measured is not None:
                what = f"a query sees {seen} keys" if wide else f"{measured.cells} keys within the window are hidden"
                reason, place = f"{what}, and the window is {configured}", exam.place(measured.place, batch)
                return Evidence(examined, "wrong", float(seen), float(configured), place, reason)
        if (why := unread(audit)) is not None:
            return why
        if not audit.widest:
            return "no layer has a window, according to the config"
        if "window" in audit.skipped:
            return audit.skipped["window"] + ("" if exam.longest_probe >= configured + 2 else "; raise longest_probe")
        return Evidence(examined, "ok", float(seen), float(configured))

    evidence = judged(exam, batches, judge, lambda batch: f"{batch.name} of {batch.ids.shape[1]} tokens")
    return evidence or [unknown("the model", NO_PROBES)]


def mask_4d(exam: Examination) -> list[Evidence]:
    """Check that a 4-D mask is obeyed."""
    given = [batch for batch in exam.batches if batch.allowed is not None]
    evidence = []
    for batch in given:
        for backend in exam.backends:
            try:
                exam.audit(batch, backend)
            except AttnscopeError as e:
                reason = f"the model does not run with the 4-D mask of the batch: {e.message}"
                evidence.append(Evidence(f"{batch.name}, {backend}", "wrong", None, None, backend, reason))
    evidence += [hidden for batch in given for hidden in _hidden_from_itself(exam, batch)]
    evidence += [item for item in read_masks(exam, "mask_4d", given, "the mask of the batch is not obeyed")
              if not any(item.examined == other.examined for other in evidence)]  # fmt: skip
    if evidence or not exam.rows or exam.subject.core is None or exam.two_halves:
        return evidence or [unknown("the model", "no batch has a 4-D mask" if exam.rows else NO_PROBES)]
    batch = _two_blocks(exam)
    for refused in judged(exam, [batch], lambda *_: None):
        evidence.append(replace(refused, reason=f"the model takes no 4-D mask: {refused.reason}"))
    return evidence + read_masks(exam, "mask_4d", [batch], "a 4-D mask is not obeyed")


def _hidden_from_itself(exam: Examination, batch: ExaminedBatch) -> Iterator[Evidence]:
    """Find tokens that a 4-D mask lets see others and not themselves, as an inverted mask does."""
    assert batch.allowed is not None
    itself = batch.allowed.diagonal(dim1=1, dim2=2)
    blind = batch.real & ~itself & batch.allowed.any(-1)
    if blind.any():
        row, token = (int(n) for n in blind.nonzero()[0])
        inverted = "; the mask is inverted" if bool(blind.equal(batch.real & batch.allowed.any(-1))) else ""
        yield Evidence(f"the mask of {batch.name}", "wrong", float(blind.sum()), 0.0,
                       exam.place(AttentionPlace("", row=row, token=token), batch),
                       f"tokens may attend to other tokens, and not to themselves{inverted}")  # fmt: skip


def _two_blocks(exam: Examination) -> ExaminedBatch:
    """Return two texts in a row, kept apart by a mask that is added to the scores."""
    if "4d" not in exam._probes:
        rows = [row[:6] for row in exam.rows[:2]]
        ids = torch.tensor([[token for row in rows for token in row]])
        numbers = torch.tensor([n for n, row in enumerate(rows) for _ in row])
        allowed = numbers[:, None] == numbers
        if exam.subject.kind != "bidirectional":
            allowed = allowed.tril()
        mask = torch.zeros(allowed.shape, dtype=exam.subject.dtype)
        mask = mask.masked_fill(~allowed, torch.finfo(mask.dtype).min)[None, None]
        none = torch.zeros_like(ids, dtype=torch.bool)
        given = {"input_ids": ids, "attention_mask": mask}
        exam._probes["4d"] = ExaminedBatch("2 texts under a 4-D mask", given, ids, none, allowed=allowed[None])
    return exam._probes["4d"]


def fully_masked(exam: Examination) -> list[Evidence]:
    """Check that every token may attend to something, and that rows that may not are not NaN."""

    def judge(examined: str, batch: ExaminedBatch, backend: str, audit: Audit) -> Evidence | str:
        output = exam.output(batch, backend)
        bad = ~output.isfinite().all(-1)
        if output.shape[:2] == batch.ids.shape and bad.any():
            row, token = (int(n) for n in bad.nonzero()[0])
            what = "padding" if batch.padding[row, token] else "tokens of a text"
            place = exam.at(batch, backend)(row, token)
            return Evidence(examined, "wrong", float(bad.sum()), 0.0, place, f"outputs of {what} are not finite")
        if "fully_masked" in audit.leaks:
            return exam.finding(audit.leaks["fully_masked"], batch, backend)
        return Evidence(examined, "ok", 0.0, 0.0) if audit.layers else NO_INTERFACE

    batches = ([exam.probe("left", with_positions=False)] if exam.rows else []) + exam.batches
    return judged(exam, batches, judge) or [unknown("the model", NO_PROBES)]
