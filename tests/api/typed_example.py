"""A user's file, which `mypy --strict` accepts: the types of what `import attnscope` gives.

`tests/test_quality.py` runs mypy over it with the package. What mypy must refuse carries an ignore, and mypy refuses an
ignore that nothing needs.
"""

from pathlib import Path
from typing import Any, assert_type

import numpy as np
import torch

import attnscope

Float2 = np.ndarray[tuple[int, int], np.dtype[np.float32]]
Float4 = np.ndarray[tuple[int, int, int, int], np.dtype[np.float32]]


def arrays(text: str, folder: Path) -> None:
    """Use a report."""
    report = attnscope.inspect(
        text, model=folder, layer="all", head=[0, 3], query=["bank", 0, slice(1, 3)], mask="causal"
    )
    assert_type(report, attnscope.InspectResult)
    assert_type(report.weights, Float4)
    assert_type(report[3, 0].weights, Float2)
    assert_type(report[3, 0].top("bank", k=3), list[attnscope.Contributor])
    assert_type([text.query_tokens for text in report.texts], list[list[str]])
    assert_type(float(report[3, 0].rows.entropy[0]), float)
    report.save("r.html", force=True)
    assert_type(attnscope.load("r.json", attnscope.InspectResult), attnscope.InspectResult)
    assert_type(attnscope.load("c.json", attnscope.CompareResult), attnscope.CompareResult)
    assert_type(attnscope.load("e.json", attnscope.ExplainResult), attnscope.ExplainResult)
    assert_type(attnscope.load("h.json", attnscope.SurveyResult), attnscope.SurveyResult)
    for head in report:
        assert_type(head, attnscope.HeadResult)


def models(texts: list[str], hf_model: Any, hf_tokenizer: Any) -> None:
    """Open a model once."""
    attnscope.inspect(
        texts,
        model=hf_model,
        tokenizer=hf_tokenizer,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    with attnscope.open_model("./my-bert", dtype="bfloat16", max_memory=2 << 30) as model:
        assert_type(model, attnscope.OpenModel)
        assert_type(model.explain(texts[0], query="bank", layer=-1).holds, bool)
        assert_type(model.compare(texts[0], mask=["own", "causal"], layer=(0, 1)).labels, list[str])
        assert_type(model.check().passed, bool)


def dumps(path: Path) -> float:
    """Write a dump, and read it."""
    assert_type(
        attnscope.write_dump(path, output="d.jsonl", keep=["top"], layer=0).counts["ok"], int
    )
    attnscope.write_dump(["the bank", {"id": 1, "text": "river"}], output="d.jsonl")
    total = 0.0
    for record in attnscope.read_dump(path):
        if record.rows is not None:
            total += float(record.rows.entropy.sum())
    return total


def mistakes(text: str) -> None:
    """What mypy finds before anything runs."""
    attnscope.inspect(text, haed=1)  # type: ignore[call-arg]
    attnscope.inspect(text, by="wieght")  # type: ignore[arg-type]
    attnscope.inspect(text, dtype="float64")  # type: ignore[arg-type]
    attnscope.explain(text, layer="mean")  # type: ignore[arg-type]
    attnscope.open_model("riverbank", layer=0)  # type: ignore[call-arg]
    attnscope.inspect(text).wieghts  # type: ignore[attr-defined]  # noqa: B018
