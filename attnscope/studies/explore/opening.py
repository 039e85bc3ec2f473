"""Open saved findings for a walk."""

from pathlib import Path

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import read_file
from attnscope.findings.codec import from_json, schema_of
from attnscope.findings.compare import COMPARE_SCHEMA, Comparison
from attnscope.findings.run import SCHEMA, Report
from attnscope.studies.compare.runs import read_report
from attnscope.studies.explore.saved import SavedSource, comparison_source, report_source

_CAP = 4 << 30
_DUMP = "attnscope.dump/"


def findings_source(path: Path) -> SavedSource | None:
    """Return a walk through a saved report or comparison; None if it is a dump."""
    if path.is_dir() or path.suffix.lower() not in (".json", ".npz", ".safetensors"):
        return None
    if path.suffix.lower() != ".json":
        return report_source(read_report(path))
    data = read_file(path, cap=_CAP)
    schema = schema_of(data)
    name = schema.partition("/")[0]
    try:
        if name == COMPARE_SCHEMA.partition("/")[0]:
            return comparison_source(from_json(data, Comparison))
        if name == SCHEMA.partition("/")[0]:
            return report_source(from_json(data, Report))
    except AttnscopeError as e:
        raise (
            e if e.where else AttnscopeError(e.parts.message, where=path, hint=e.parts.hint)
        ) from e
    if name.startswith("attnscope.") and not schema.startswith(_DUMP):
        raise AttnscopeError(
            f"holds '{schema}', which has no matrices",
            where=path,
            hint="explore a report, a comparison or a dump",
        )
    return None
