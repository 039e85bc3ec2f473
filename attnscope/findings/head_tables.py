"""A survey of heads, or of effects, as a table: one row for every head, layer or edge."""

import csv
from collections.abc import Iterator
from typing import Any

import numpy as np

from attnscope.base.errors import PARQUET
from attnscope.base.system.csv_lines import CsvLines
from attnscope.findings.ablation import EffectSurvey
from attnscope.findings.head_changes import HeadComparison
from attnscope.findings.head_findings import HeadRoles, HeadScores
from attnscope.findings.needle import NeedleSurvey

Tabled = HeadRoles | HeadScores | HeadComparison | EffectSurvey | NeedleSurvey
Column = np.ndarray[Any, np.dtype[Any]] | list[str | None]


def columns(findings: Tabled) -> dict[str, Column]:
    """Return the columns of a table.

    Layer, head, the main role's name, and every role's value and standard error; of two models both main roles, values
    and differences; or what is cut, its weight and its effects; or every length and depth of a needle.
    """
    if isinstance(findings, HeadComparison):
        return _change_columns(findings)
    if isinstance(findings, EffectSurvey):
        return _effect_columns(findings)
    if isinstance(findings, NeedleSurvey):
        lengths, depths = np.meshgrid(findings.lengths, findings.depths, indexing="ij")
        cells = {
            "weight": findings.weight,
            "all_heads": findings.all_heads,
            "log_probability": findings.log_probability,
        }
        places: dict[str, Column] = {"length": lengths.ravel(), "depth": depths.ravel()}
        return places | {name: values.ravel() for name, values in cells.items()}
    values = findings.values if isinstance(findings, HeadScores) else findings.roles[0].values
    layers, heads = np.indices(values.shape)
    table: dict[str, Column] = {"layer": layers.ravel(), "head": heads.ravel()}
    if isinstance(findings, HeadScores):
        table |= {findings.measure: findings.values.ravel()}
        if findings.contrast is None:
            return table
        return table | {"key": findings.contrast.keys.ravel(), "against": findings.contrast.against.ravel()}
    table["main"] = [name for row in findings.main for name in row]
    for role in findings.roles:
        table |= {role.name: role.values.ravel(), f"{role.name}_error": role.errors.ravel()}
    return table


def _change_columns(comparison: HeadComparison) -> dict[str, Column]:
    """Return both main roles, the role that changed most, and values and difference of every role or measure."""
    n_layers, n_heads = comparison.changed_most.shape
    layers, heads = np.indices((n_layers, n_heads))
    table: dict[str, Column] = {"layer": layers.ravel(), "head": heads.ravel()}
    values: list[dict[str, Any]] = []
    for which, side in zip(("first", "second"), comparison.sides, strict=True):
        if side.roles is not None:
            table[f"main_{which}"] = [name for row in side.roles.main[:n_layers] for name in row[:n_heads]]
            values.append({role.name: role.values for role in side.roles.roles})
        elif side.measured is not None:
            values.append({side.measured.measure: side.measured.values})
    if comparison.sides[0].roles is not None:
        table["changed_role"] = [name for row in comparison.role for name in row]
        table["changed_most"] = comparison.changed_most.ravel()
    for difference in comparison.differences:
        for which, numbers in zip(("first", "second"), values, strict=True):
            table[f"{difference.name}_{which}"] = numbers[difference.name][:n_layers, :n_heads].ravel()
        table |= {
            f"{difference.name}_difference": difference.difference.ravel(),
            f"{difference.name}_error": difference.error.ravel(),
        }
    return table


def _effect_columns(survey: EffectSurvey) -> dict[str, Column]:
    """Return what is cut, its weight, and each effect; for edges in both ways."""
    table: dict[str, Column] = {} if survey.unit == "span" else {"layer": np.array(survey.layers)}
    if survey.unit in ("head", "edge"):
        table["head"] = np.array(survey.heads)
    if survey.unit == "span":
        table["span"] = list(survey.span_names)
    if survey.unit == "edge":
        sources = survey.sources
        sides = ("query", survey.queries, survey.tokens), ("key", survey.keys, sources)
        for (name, places, tokens), words in zip(sides, survey.word_names(), strict=True):
            spelled: list[str | None] = [words.get(place, tokens[place].text) for place in places]
            table |= {name: np.array(places), f"{name}_text": spelled}
    table["weight"] = survey.weights
    for effects in survey.effects:
        end = f"_{effects.how}" if len(survey.effects) > 1 else ""
        if effects.kl is not None:
            table[f"kl{end}"] = effects.kl
        table[f"hidden{end}"] = effects.hidden
        if effects.loss is not None:
            table[f"loss{end}"] = effects.loss
        if effects.target is not None:
            table[f"target{end}"] = effects.target
        if (restored := survey.restored(effects)) is not None:
            table["restored"] = restored
    return table


def csv_parts(findings: Tabled) -> Iterator[bytes]:
    """Yield a CSV file: numbers in shortest exact digits, an empty cell for null."""
    table = columns(findings)
    buffer = CsvLines()
    writer = csv.writer(buffer)
    writer.writerow(table)
    cells = [[_cell(value) for value in column] for column in table.values()]
    writer.writerows(zip(*cells, strict=True))
    yield buffer.getvalue().encode()


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, np.floating) and np.isnan(value)):
        return ""
    return str(value)


def parquet_parts(findings: Tabled) -> Iterator[bytes]:
    """Yield a Parquet file, with null for missing values."""
    PARQUET.require(".parquet")
    import pyarrow
    from pyarrow import parquet

    arrays = {name: pyarrow.array(column, from_pandas=True) for name, column in columns(findings).items()}
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(arrays), sink, compression="zstd")
    yield sink.getvalue().to_pybytes()
