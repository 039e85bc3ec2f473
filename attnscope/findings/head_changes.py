"""What differs between the heads of two models, as plain data."""

from typing import Annotated

import msgspec

from attnscope.findings.arrays import OfHeads, along
from attnscope.findings.head_findings import HeadRoles, HeadScores
from attnscope.findings.tables import Table, head_columns

CHANGES_SCHEMA = "attnscope.compared-heads/1"


class HeadSide(msgspec.Struct, frozen=True):
    """One of the two models.

    Attributes:
        label: Name of the side, such as the model's path.
        roles: The roles of its heads; null if one number was measured.
        measured: One number for every head; null if roles were measured.
    """

    label: str
    roles: HeadRoles | None = None
    measured: HeadScores | None = None

    @property
    def heads(self) -> HeadRoles | HeadScores:
        """The findings about its heads."""
        heads = self.roles or self.measured
        assert heads is not None
        return heads


class HeadDifference(msgspec.Struct, frozen=True):
    """How a role, or the measured number, differs.

    Attributes:
        name: Name of the role or measure.
        difference: Value in the second model minus value in the first, (layers, heads); null if it was not measured in
            both.
        error: Standard error of the difference, √(e₁² + e₂²), as of independent measurements; null without errors.
    """

    name: str
    difference: OfHeads
    error: OfHeads


class HeadComparison(msgspec.Struct, frozen=True):
    """What differs between the heads of two models.

    Only layers and heads that both models have are compared.

    Attributes:
        axis: What differs between the sides: `model`, `adapter`, `config`, `dtype`, `engine`, `tokenizer` or `qkv`.
        sides: The two models.
        changed_most: Difference of the role that changed most, (layers, heads), among the roles that can be a main
            role; null if no role was measured in both.
        role: Name of that role, (layers, heads).
        differences: Every role, or the measure.
        notes: Remarks for the reader, such as layers that only one model has.
        schema: Name and version of this format.
    """

    axis: str
    sides: list[HeadSide]
    changed_most: OfHeads
    role: Annotated[list[list[str | None]], along("layer")]
    differences: list[HeadDifference]
    notes: list[str] = []
    schema: str = CHANGES_SCHEMA

    def table(self) -> Table:
        """Return a row for every head: main roles, the role that changed most, and values and their difference."""
        n_layers, n_heads = self.changed_most.shape
        columns = head_columns(n_layers, n_heads)
        values = {
            which: side.heads.by_name()
            for which, side in zip(("first", "second"), self.sides, strict=True)
        }
        for which, side in zip(values, self.sides, strict=True):
            if side.roles is not None:
                columns[f"main_{which}"] = [
                    name for row in side.roles.main[:n_layers] for name in row[:n_heads]
                ]
        if self.sides[0].roles is not None:
            columns["changed_role"] = [name for row in self.role for name in row]
            columns["changed_most"] = self.changed_most.ravel()
        for difference in self.differences:
            name = difference.name
            for which, numbers in values.items():
                columns[f"{name}_{which}"] = numbers[name][:n_layers, :n_heads].ravel()
            columns[f"{name}_difference"] = difference.difference.ravel()
            columns[f"{name}_error"] = difference.error.ravel()
        return columns
