"""What changes how the numbers of findings are read: what stands above every table of them."""

from collections.abc import Iterator
from typing import Any

from attnscope.findings.compare import Comparison
from attnscope.findings.provenance import ModelFindings, TextFindings, TokenizedText
from attnscope.findings.run import Report
from attnscope.findings.tokens import describe_unknown


def changed_readings(findings: Any) -> Iterator[str]:
    """Yield random weights, words that the tokenizer does not know, masks that hide nothing, and the model's notes."""
    if isinstance(findings, Comparison):
        for side in findings.sides:
            yield from changed_readings(side.report)
        return
    if not isinstance(findings, ModelFindings | TextFindings):
        return
    if findings.provenance.weights == "random":
        yield "the weights are random"
    texts = findings.texts if isinstance(findings, Report) else [findings]
    share, _ = describe_unknown(
        (t.text, t.pair, t.tokens) for t in texts if isinstance(t, TokenizedText)
    )
    if share:
        yield share
    if findings.mask.hides is False:
        yield f"the mask {findings.mask.used} hides nothing that the model's own mask shows"
    yield from findings.provenance.notes
