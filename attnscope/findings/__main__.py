"""Write the JSON Schema of every kind of findings beside its type: `python -m attnscope.findings`."""

from pathlib import Path

import msgspec

from attnscope.findings.ablation import Ablation, EffectSurvey
from attnscope.findings.check import CheckReport
from attnscope.findings.codec import json_schema
from attnscope.findings.compare import Comparison
from attnscope.findings.explain import Explanation
from attnscope.findings.heads import HeadSurvey, MeasuredHeads
from attnscope.findings.run import Report

KINDS: dict[str, type[msgspec.Struct]] = {
    "report": Report,
    "compare": Comparison,
    "check": CheckReport,
    "explain": Explanation,
    "heads": HeadSurvey,
    "measured-heads": MeasuredHeads,
    "ablation": Ablation,
    "effects": EffectSurvey,
}


def schema_file(name: str) -> Path:
    """Return the path of a schema."""
    return Path(__file__).parent / f"{name}.schema.json"


def main() -> None:
    """Write them all."""
    for name, kind in KINDS.items():
        text = msgspec.json.format(msgspec.json.encode(json_schema(kind)), indent=1)
        schema_file(name).write_bytes(text + b"\n")


if __name__ == "__main__":
    main()
