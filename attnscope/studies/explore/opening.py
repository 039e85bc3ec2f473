"""Where a walk begins, and saved findings that it opens."""

from pathlib import Path

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import read_file
from attnscope.findings.codec import from_json, schema_of
from attnscope.findings.compare import COMPARE_SCHEMA, Comparison
from attnscope.findings.run import SCHEMA, Report
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import AUTO
from attnscope.studies.explore.saved import SavedSource, comparison_source, report_source
from attnscope.views.walk.place import Begin
from attnscope.views.walk.scene import WalkCut

_CAP = 4 << 30
_DUMP = "attnscope.dump/"


def findings_source(path: Path) -> SavedSource | None:
    """Return a walk through a saved report or comparison; None if it is a dump."""
    if path.is_dir() or path.suffix.lower() not in (".json", ".npz", ".safetensors"):
        return None
    if path.suffix.lower() != ".json":
        # it brings what computes a comparison
        from attnscope.studies.compare.runs import read_report

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
        raise e.placed(path) from e
    if name.startswith("attnscope.") and not schema.startswith(_DUMP):
        raise AttnscopeError(
            f"holds '{schema}', which has no matrices",
            where=path,
            hint="explore a report, a comparison or a dump",
        )
    return None


def begin_of(run: RunConfig) -> Begin:
    """Return where a walk begins that shows what a run selects."""
    layer, head = (
        None if selected == AUTO else str(selected) for selected in (run.layer, run.head)
    )
    query, key = (None if selected is None else str(selected) for selected in (run.query, run.key))
    is_divided = run.spans is not None or any(
        text.chat is not None or text.spans for text in run.texts
    )
    unit = "words" if run.words else "spans" if is_divided else "tokens"
    cuts = tuple(WalkCut(cut.written, cut.edge is not None) for cut in run.cuts)
    return Begin(layer, head, query, key, unit, cuts)
