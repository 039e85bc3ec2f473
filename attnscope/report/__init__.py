"""Findings as plain data: what every view and export reads, and nothing else. No torch in here.

A Report has a version (`SCHEMA`), keeps every float32 to the last bit in JSON, and can be opened again without the
model. The JSON Schemas of all findings are beside the types, and tests compare the two.
"""

from attnscope.report.arrays import Floats, Matrix, Places
from attnscope.report.attribution import Attribution, LogitEdge, TargetToken
from attnscope.report.codec import (
    clean_descriptions,
    comparison_from_json,
    decode_json,
    encode_array,
    explanation_from_json,
    from_json,
    json_parts,
    json_schema,
    to_json,
)
from attnscope.report.explain import (
    EXPLAIN_SCHEMA,
    ArithmeticCheck,
    ExplainedCell,
    Explanation,
    Part,
    Rest,
    Row,
    Sink,
    Vector,
)
from attnscope.report.flow import TokenFlow
from attnscope.report.overview import Columns, Pooled
from attnscope.report.predictions import PredictedToken, Prediction
from attnscope.report.row_statistics import Means, Rows
from attnscope.report.run import SCHEMA, STAGES, HeadReport, MaskUse, Provenance, Report, TextReport, Top
from attnscope.report.tokens import Token

__all__ = [
    "EXPLAIN_SCHEMA",
    "SCHEMA",
    "STAGES",
    "ArithmeticCheck",
    "Attribution",
    "Columns",
    "ExplainedCell",
    "Explanation",
    "Floats",
    "HeadReport",
    "LogitEdge",
    "MaskUse",
    "Matrix",
    "Means",
    "Part",
    "Places",
    "Pooled",
    "PredictedToken",
    "Prediction",
    "Provenance",
    "Report",
    "Rest",
    "Row",
    "Rows",
    "Sink",
    "TargetToken",
    "TextReport",
    "Token",
    "TokenFlow",
    "Top",
    "Vector",
    "clean_descriptions",
    "comparison_from_json",
    "decode_json",
    "encode_array",
    "explanation_from_json",
    "from_json",
    "json_parts",
    "json_schema",
    "to_json",
]
