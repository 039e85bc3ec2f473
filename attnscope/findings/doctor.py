"""What `attnscope doctor` found, as plain data. No torch in here."""

from typing import Literal

import msgspec

from attnscope.findings.tables import Table, columns_of

DOCTOR_SCHEMA = "attnscope.doctor/1"
Soundness = Literal["ok", "wrong", "depends", "unknown", "inapplicable"]

# Units of several checks.
OF_OUTPUT = "of output"  # of the largest one: what a difference of outputs is a share of
OF_ROW = "of a row's weight"
PAIRS = "pairs of query and key"

VERDICTS: dict[Soundness, str] = {
    "ok": "ok",
    "wrong": "wrong",
    "depends": "depends",
    "unknown": "cannot tell",
    "inapplicable": "does not apply",
}  # as people read them


class Evidence(msgspec.Struct, frozen=True):
    """One measurement of a check.

    Attributes:
        examined: What was run or read, such as `sdpa, probe of 4 texts` or `the batch`.
        verdict: `ok`; `wrong`; `depends` if the value is above the limit, and whether that matters depends on how the
            model is called; `unknown` if this cannot be told; or `inapplicable` if there is nothing to examine.
        value: What was measured; None if nothing was, or it is not finite.
        limit: The largest value that is ok; None if nothing was measured.
        unit: What value and limit are, such as `tokens`; `of output` is a difference as a share of the largest output.
        where: Backend, layer, head, row and token of the value; None if it has no place.
        reason: What the value is, or why nothing can be told.
        texts: Whose texts were used: `batch` or `collated`, the caller's; `given`, texts of the caller; `own`, built-in
            ones; `random`, random tokens; None if no text was used.
    """

    examined: str
    verdict: Soundness
    value: float | None = None
    limit: float | None = None
    where: str | None = None
    reason: str | None = None
    texts: str | None = None
    unit: str = ""


class DoctorCheck(msgspec.Struct, frozen=True):
    """One check, with the evidence that decided it.

    Attributes:
        name: Its name, which is also its section in docs/doctor.md.
        title: What holds if the verdict is `ok`.
        verdict: The worst of the evidence: `wrong`, `depends`, `ok`, `unknown`, `inapplicable`, in this order.
        value: What was measured, of the deciding evidence.
        limit: The largest value that is ok.
        unit: What value and limit are, such as `tokens`; `of output` is a difference as a share of the largest output.
        where: Backend, layer, head, row and token of the value.
        reason: What the value is, or why nothing can be told.
        texts: Whose texts the evidence of this verdict used.
        why: Why it matters.
        repair: How to repair it.
        evidence: Every measurement.
    """

    name: str
    title: str
    verdict: Soundness
    value: float | None
    limit: float | None
    where: str | None
    reason: str | None
    texts: list[str]
    why: str
    repair: str
    evidence: list[Evidence]
    unit: str = ""

    @property
    def told(self) -> str:
        """Verdict as people read it."""
        return VERDICTS[self.verdict]


class Backend(msgspec.Struct, frozen=True):
    """An implementation of attention that was asked for.

    Attributes:
        name: Its name in transformers, or `own` for a module with code of its own.
        ran: Whether it ran.
        note: How it ran, or why it did not.
    """

    name: str
    ran: bool
    note: str | None = None


class BatchFacts(msgspec.Struct, frozen=True):
    """What a batch looks like.

    Attributes:
        name: `batch`, or `collated` for what the collator made.
        rows: Number of rows.
        length: Tokens in a row, with padding.
        padding: Number of padding tokens.
        padded: Side of the padding: `left`, `right`, `both`, or `none`.
        documents: Number of documents; None if nothing tells.
        documents_from: What tells documents apart, such as `position_ids`.
        keys: Names of its members.
        notes: What was left out of the examination.
    """

    name: str
    rows: int
    length: int
    padding: int
    padded: str
    documents: int | None
    documents_from: str | None
    keys: list[str]
    notes: list[str] = []


class DoctorReport(msgspec.Struct, frozen=True):
    """What `attnscope doctor` found.

    Attributes:
        attnscope: Version of attnscope.
        versions: Versions of torch and transformers.
        model: The model as the user named it, or its class.
        model_class: Class of the model.
        kind: `causal`, `bidirectional`, `encoder-decoder`, or `unknown`.
        dtype: Type that the model ran in.
        device: Where it ran.
        backends: The implementations of attention that were asked for.
        texts: Texts of the probes.
        seeds: Seeds of random tokens and rounding.
        passes: Number of forward passes.
        batches: The batches that were examined in addition to the probes.
        checks: Every check, in order.
        notes: Further information.
        passed: No check is wrong.
        schema: Name and version of this format.
    """

    attnscope: str
    versions: dict[str, str]
    model: str
    model_class: str
    kind: str
    dtype: str
    device: str
    backends: list[Backend]
    texts: list[str]
    seeds: list[int]
    passes: int
    batches: list[BatchFacts]
    checks: list[DoctorCheck]
    notes: list[str]
    passed: bool
    schema: str = DOCTOR_SCHEMA

    def table(self) -> Table:
        """Return a row for every check, without its evidence."""
        table = columns_of([msgspec.structs.asdict(check) for check in self.checks])
        table.pop("evidence", None)
        return table
