"""Surveys of heads that are made by hand, for views."""

import numpy as np

from attnscope.findings.head_findings import HeadRoles, HeadScores, MeasuredText, Probes, RoleValues
from attnscope.findings.head_roles import HEAD_ROLES, OF_PARTS, main_roles
from attnscope.findings.provenance import MaskUse, Provenance
from tests.helpers.sample_reports import tokens

NAN = float("nan")


def made(layers, heads):
    return Provenance(
        "1.0",
        "2.0",
        "made/up",
        "bert",
        "0" * 16,
        "native",
        "float32",
        "cpu",
        "trained",
        layers,
        heads,
    )


def survey(layers=3, heads=4, roles=None, **facts):
    """Every head has one role; the first have those of HEAD_ROLES in order, then nothing is clear."""
    kept = [
        role
        for role in HEAD_ROLES
        if (role.measured not in OF_PARTS if roles is None else role.name in roles)
    ]
    values = {}
    for n, role in enumerate(kept):
        value = np.full((layers, heads), 0.02 + 0.01 * n, np.float32)
        if n < layers * heads:
            value.ravel()[n] = 0.99 - 0.04 * n
        values[role.name] = value
    for name in facts.pop("missing", ()):
        values[name][:] = NAN
    found = [
        RoleValues(r.name, r.letter, r.title, r.meaning, r.source, r.measured, r.clear, values[r.name],
                   np.full((layers, heads), NAN if r.measured == "weights" else 0.012, np.float32))
        for r in kept
    ]  # fmt: skip
    main = [
        [None if n < 0 else HEAD_ROLES[n].name for n in row] for row in main_roles(values).tolist()
    ]
    probes = Probes(0, 8, 50, 10, ["[CLS]"], ["[SEP]"], 8, 557, True, **{"tripled": 16, **facts})
    mask = MaskUse("bidirectional", "bidirectional")
    return HeadRoles(made(layers, heads), mask, probes, found, main, ["a note"])


def measured(layers=3, heads=4, signed=False):
    values = np.linspace(-1.0 if signed else 0.0, 1.0, layers * heads, dtype=np.float32).reshape(
        layers, heads
    )
    values[0, 1] = NAN
    spelled = tokens(["[CLS]", "the", "bank", "\x1b[31m", "[SEP]"], special=(0, 4))
    text = MeasuredText("the bank", None, spelled, None, [2], [1, 3])
    mask = MaskUse("bidirectional", "causal", "stack")
    return HeadScores(
        made(layers, heads),
        mask,
        "weight",
        "α from query to key, summed over keys, averaged over queries.",
        values,
        [text],
    )
