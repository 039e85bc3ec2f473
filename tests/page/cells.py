"""The numbers of random cells of a page, compared with the report that it was made of."""

import random

import numpy as np
import pytest

from attnscope.findings.row_statistics import STATISTICS
from attnscope.views.spans import spell_token, token_span
from tests.page.walking import number

DECIMALS = {"weight": 3, "distance": 1}


def heads_of(report, summary):
    """Every head, and those that the page was asked for."""
    named = {(head.layer, head.head): head for head in report.texts[0].heads}
    return {(head.layer, head.head): head for head in summary.texts[0].heads}, named


def drawn(report, summary, seed, count):
    """Random cells, half of them of the head that the page was asked for: the head in summary, and as it was asked."""
    draw, (heads, named) = random.Random(seed), heads_of(report, summary)
    size = len(report.texts[0].queries)
    for n in range(count):
        place = draw.choice(sorted(named if n % 2 else heads))
        stage = draw.choice(["scores", "scaled", "masked", "weights"])
        yield (
            heads[place],
            named.get(place, heads[place]),
            draw.randrange(size),
            draw.randrange(size),
            stage,
        )


def check_cells(read, findings, seed, count):
    """Compare what a page shows at random cells with its report.

    Args:
        read: Returns what the page shows at each of some addresses.
        findings: Report of what was asked for, and every head in summary.
        seed: Which cells.
        count: How many.
    """
    report, summary = findings
    text = report.texts[0]
    names = [
        spell_token(token_span(text.tokens, n).text, ascii=False) for n in range(len(text.tokens))
    ]
    cases = list(drawn(report, summary, seed, count))
    addresses = [
        f"#head=L{h.layer}H{h.head}&query={q}&key={k}&stage={s}" for h, _, q, k, s in cases
    ]
    shown = read(addresses)
    for (head, named, query, key, stage), seen in zip(cases, shown, strict=True):
        where = f"L{head.layer}H{head.head} {query} {key} {stage}"
        matrix = named.stages.get(stage)
        exact = matrix is not None
        assert seen["head"] == f"L{head.layer}H{head.head}", where
        assert (seen["badge"] == "exact float32") == exact, where
        if exact:
            assert seen["cell"].startswith(f"{query} {names[query]} ← {key} {names[key]}: "), where
            assert np.float32(number(seen["cell"].rsplit(": ")[-1])) == matrix[query, key], where
        weights = head.top.weight[query]
        assert len(seen["sources"]) == len(weights), where
        for rank, row in enumerate(seen["sources"]):
            source = int(head.top.keys[query, rank])
            if exact:  # of equal rounded weights, the order is that of the exact ones
                assert row["source"] == f"{source} {names[source]}", where
            for measure, (written, digits) in row["measures"].items():
                value = float(getattr(head.top, measure)[query, rank])
                if exact:
                    assert np.float32(number(digits)) == np.float32(value), where
                if measure == "weight":
                    assert number(digits) == pytest.approx(value, abs=0.5001e-3), where
                    assert number(written) == pytest.approx(value, abs=0.55e-2), where
        listed = weights.astype(np.float64) if exact else np.round(weights.astype(np.float64), 3)
        assert number(seen["rest"]) == pytest.approx(max(0.0, 1 - listed.sum()), abs=0.501e-2), (
            where
        )
        for statistic, (written, digits) in seen["statistics"].items():
            value = float(getattr(named.rows, statistic)[query])
            assert number(written) == pytest.approx(
                value, abs=0.501 * 10.0 ** -DECIMALS.get(statistic, 2)
            ), where
            if exact:
                assert np.float32(number(digits)) == np.float32(value), where
        assert (
            {"entropy", "first", "self", "other", "distance"}
            <= set(seen["statistics"])
            <= set(STATISTICS)
        ), where
