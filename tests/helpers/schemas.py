"""The published JSON Schema, `docs/schema.json`, which `python -m tests.helpers.schemas` writes from the types.

It has every type once. A kind of findings is `#/$defs/Report` and so on; lines of dumps are Header, Record and End.
"""

import json
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import Any, get_args, get_type_hints

import jsonschema
import msgspec

from attnscope.batch.header import Header
from attnscope.batch.records import End, Record
from attnscope.findings.ablation import Ablation, EffectSurvey
from attnscope.findings.axes import declarations
from attnscope.findings.check import CheckReport
from attnscope.findings.compare import Comparison
from attnscope.findings.doctor import DoctorReport
from attnscope.findings.explain import Explanation
from attnscope.findings.head_changes import HeadComparison
from attnscope.findings.head_findings import HeadRoles, HeadScores, NeedleSurvey
from attnscope.findings.lesson import Lesson
from attnscope.findings.run import Report

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "schema.json"
LINES = Header, Record, End
KINDS = {
    "report": Report,
    "compare": Comparison,
    "check": CheckReport,
    "doctor": DoctorReport,
    "explain": Explanation,
    "heads": HeadRoles,
    "measured-heads": HeadScores,
    "compared-heads": HeadComparison,
    "needle": NeedleSurvey,
    "ablation": Ablation,
    "effects": EffectSurvey,
    "lesson": Lesson,
    **{line.__name__.lower(): line for line in LINES},
}


def json_schema() -> dict[str, Any]:
    """Generate the JSON Schema of all findings and lines of dumps, with the axes of arrays."""
    kinds, defs = msgspec.json.schema_components(
        KINDS.values(), schema_hook=lambda _: {}, ref_template="#/$defs/{name}"
    )
    check = {
        "type": "string",
        "pattern": "^[0-9a-f]{8}$",
        "description": "CRC-32 of the file up to here.",
    }
    for line in LINES:
        defs[line.__name__]["properties"]["check"] = check
        defs[line.__name__]["required"].append("check")
    for kind in _structs(tuple(KINDS.values())):
        for name, along in declarations(kind).items():
            if along.axes:
                defs[kind.__name__]["properties"][name]["axes"] = list(along.axes)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "anyOf": list(kinds),
        "$defs": defs,
    }
    return json.loads(msgspec.json.encode(_cleaned(schema)))


def _structs(types: Any) -> "dict[type[msgspec.Struct], None]":
    """Every struct among some types, and in the fields of those."""
    structs: dict[type[msgspec.Struct], None] = {}
    waiting = list(types)
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in structs:
            structs[kind] = None
            waiting += get_type_hints(kind).values()
        waiting += get_args(kind)
    return structs


def _cleaned(schema: Any) -> Any:
    """Take the indentation out of descriptions: they are docstrings, which Python 3.13 stores without it."""
    if isinstance(schema, dict):
        return {
            name: cleandoc(value)
            if name == "description" and isinstance(value, str)
            else _cleaned(value)
            for name, value in schema.items()
        }
    return [_cleaned(entry) for entry in schema] if isinstance(schema, list) else schema


@cache
def _validator(name: str) -> Any:
    schema = json.loads(SCHEMA_FILE.read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    own = {"$ref": f"#/$defs/{KINDS[name].__name__}", "$defs": schema["$defs"]}
    return jsonschema.Draft202012Validator(own)


def validate(data: Any, name: str) -> None:
    """Compare data with the schema of that name.

    Raises:
        jsonschema.ValidationError: It is not as the schema says.
    """
    _validator(name).validate(data)


if __name__ == "__main__":
    SCHEMA_FILE.write_bytes(
        msgspec.json.format(json.dumps(json_schema()).encode(), indent=1) + b"\n"
    )
