"""The fused kernel against operators, in Triton's interpreter: started by test_fused.py with TRITON_INTERPRET=1."""

import os
import sys
from dataclasses import replace
from unittest.mock import patch

import torch

from attnscope.findings.row_statistics import KEY_TOKENS
from attnscope.model import fused_rows
from attnscope.model.attention import attend
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.masks import PaddingMask, intersect
from attnscope.model.recorders import KeyTokens, RowRecorder, TopRecorder
from attnscope.model.tiling import TileShape
from attnscope.request.masks.terms import Bidirectional, Causal, Mask, Prefix, SlidingWindow

SMALL = {"BM": 32, "BN": 32, "SUB": 8, "ROWS": 32}
PADDING = PaddingMask(torch.tensor([70, 41]))
CASES: dict[str, tuple[Mask, dict[str, object]]] = {
    "causal": (Causal(), {}),
    "bidirectional": (Bidirectional(), {"groups": 4}),
    "window": (intersect((Causal(), SlidingWindow(19))), {}),
    "window on both sides": (SlidingWindow(7), {"width": 32}),
    "prefix": (Prefix(40), {}),
    "padding": (intersect((Causal(), PADDING)), {"batch": 2}),
    "padding that hides everything": (intersect((SlidingWindow(5), PADDING)), {"batch": 2}),
    "soft-cap": (Causal(), {"softcap": 2.0}),
    "sinks": (Causal(), {"sinks": torch.tensor([0.0, 9.0, -9.0, 1.0])}),
    "sinks of rows that see nothing": (intersect((SlidingWindow(5), PADDING)), {"batch": 2, "sinks": torch.ones(4)}),
    "by value": (Causal(), {"by": "value"}),
    "float16": (Causal(), {"dtype": torch.float16}),
    "some heads and rows": (Causal(), {"heads": [1, 3], "rows": range(5, 60)}),
    "large scores": (Causal(), {"factor": 60.0}),
    "a pruned head": (Causal(), {"factor": 0.0}),
    "long": (Causal(), {"tokens": 1300, "groups": 1, "n_heads": 1, "blocks": {"BM": 256, "BN": 128, "ROWS": 128}}),
}


def compare(name: str) -> None:
    """Compare one case; the kernel must have run."""
    mask, how = CASES[name]
    batch, tokens, width = int(how.get("batch", 1)), int(how.get("tokens", 70)), int(how.get("width", 16))
    n_heads, groups, dtype = int(how.get("n_heads", 4)), int(how.get("groups", 2)), how.get("dtype", torch.float32)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(batch, n, tokens, width, generator=generator).to(dtype) for n in (n_heads, groups, groups))
    k[:, :, 10:20] = k[:, :, 20:30]  # equals, of which the first has to win
    q = q * how.get("factor", 1.0)
    spec = AttentionSpec(width**-0.5, mask, softcap=how.get("softcap"), sinks=how.get("sinks"))
    inputs = AttentionInputs(0, q, k, v, spec)
    real = torch.ones(batch, tokens, dtype=torch.bool)
    kinds = {kind: torch.rand(batch, tokens, generator=generator) < 0.2 for kind in KEY_TOKENS}
    heads, rows = how.get("heads", range(n_heads)), how.get("rows", range(tokens))
    results = []
    for kernel in ("", "triton"):
        top = TopRecorder(5, str(how.get("by", "weight")), heads, rows, real)
        statistics = RowRecorder(heads, rows, KeyTokens(kinds, real))
        with (
            patch.dict(os.environ, {"ATTNSCOPE_KERNEL": kernel}),
            patch.dict(fused_rows.BLOCKS, {**SMALL, **how.get("blocks", {})}),
            patch("attnscope.model.attention.TileShape.of", side_effect=TileShape.of) as tiles,
            torch.inference_mode(),
        ):
            output = attend(replace(inputs), [top, statistics])
        assert tiles.called == (kernel == "")
        results.append((output, top, statistics))
    (output, top, statistics), (fused_output, fused_top, fused_statistics) = results
    close = {"rtol": 1e-3, "atol": 2e-3 if dtype == torch.float16 else 2e-5, "equal_nan": True}
    torch.testing.assert_close(fused_output.float(), output.float(), **close)
    assert (fused_top.keys == top.keys).float().mean() > 0.999
    for measure, values in top.measures.items():
        torch.testing.assert_close(fused_top.measures[measure], values, **close)
    for statistic, values in statistics.recorded.items():
        torch.testing.assert_close(
            fused_statistics.recorded[statistic], values, **{**close, "atol": 2e-3 if statistic == "distance" else 2e-5}
        )
    assert torch.equal(fused_statistics.fully_masked, statistics.fully_masked)
    if spec.sinks is not None:
        torch.testing.assert_close(fused_statistics.sink, statistics.sink, **close)


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        compare(case)
        print(case, flush=True)
