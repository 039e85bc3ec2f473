"""What every head of a model does, from Python."""

from dataclasses import dataclass

import numpy as np

from attnscope.api.results import Float2, TableResult
from attnscope.base.errors import UsageError, did_you_mean
from attnscope.findings.arrays import Matrix
from attnscope.findings.head_changes import HeadComparison
from attnscope.findings.head_findings import HeadRoles, HeadScores, NeedleSurvey, Probes
from attnscope.views.settings import Listing

Float3 = np.ndarray[tuple[int, int, int], np.dtype[np.float32]]
Names = np.ndarray[tuple[int, int], np.dtype[np.object_]]


@dataclass(frozen=True)
class HeadValue:
    """A number of one head.

    Attributes:
        layer: Number of the layer.
        head: Number of the head.
        value: The number.
        error: Standard error of the value; NaN if it has none.
    """

    layer: int
    head: int
    value: float
    error: float


def _strongest(values: Matrix, errors: Matrix, k: int, *, signed: bool = True) -> list[HeadValue]:
    places = Listing(signed=signed).heads(values, k)
    return [HeadValue(*head, float(values[head]), float(errors[head])) for head in places]


def _index(role: str, roles: list[str]) -> int:
    """Return the index of a role among those that there are."""
    if role not in roles:
        raise UsageError(f"there is no role '{role}'", hint=did_you_mean(role, roles))
    return roles.index(role)


class SurveyResult(TableResult[HeadRoles]):
    """The result of `heads`: every role of every head, as arrays (roles, layers, heads) with labels.

    Attributes:
        probes: The data on which the heads were measured.
    """

    probes: Probes

    @property
    def roles(self) -> list[str]:
        """Names of the roles, in the order of the arrays' first axis."""
        return [role.name for role in self.data.roles]

    @property
    def values(self) -> Float3:
        """Value of every role and head, (roles, layers, heads); NaN if not measured."""
        return np.stack([role.values for role in self.data.roles])

    @property
    def errors(self) -> Float3:
        """Standard error of each value, (roles, layers, heads); NaN if there is none."""
        return np.stack([role.errors for role in self.data.roles])

    @property
    def main(self) -> Names:
        """Name of each head's main role, (layers, heads); None if no role is clear."""
        return np.array(self.data.main, dtype=object)

    def __getitem__(self, role: str) -> Float2:
        """Return one role of every head, (layers, heads)."""
        return self.data.roles[_index(role, self.roles)].values

    def strongest(self, role: str, k: int = 10) -> list[HeadValue]:
        """Return the heads with the largest values of a role, the strongest first."""
        values = self.data.roles[_index(role, self.roles)]
        return _strongest(values.values, values.errors, k)


class MeasuredResult(TableResult[HeadScores]):
    """The result of `heads` with `measure` or `key`: one number for every head.

    Attributes:
        measure: Name of the number.
        values: The number of every head, (layers, heads); with `against`, the difference.
    """

    measure: str
    values: Float2

    @property
    def of_keys(self) -> Float2:
        """The number of `key`, (layers, heads); see `values`."""
        if self.data.contrast is None:
            return self.data.values
        return self.data.contrast.keys

    @property
    def of_against(self) -> Float2 | None:
        """The number of `against`, (layers, heads), which is subtracted; None without it."""
        if self.data.contrast is None:
            return None
        return self.data.contrast.against

    def strongest(self, k: int = 10) -> list[HeadValue]:
        """Return the heads with the largest numbers, the largest first."""
        return _strongest(self.data.values, np.full_like(self.data.values, np.nan), k)


class HeadChangesResult(TableResult[HeadComparison]):
    """The result of `heads` for two models: what differs between their heads, second minus first.

    Attributes:
        changed_most: Difference of each head's role that changed most, (layers, heads).
    """

    changed_most: Float2

    @property
    def labels(self) -> list[str]:
        """Names of the two models."""
        return [side.label for side in self.data.sides]

    @property
    def names(self) -> list[str]:
        """Names of the roles, or of the measure, in the order of the arrays' first axis."""
        return [difference.name for difference in self.data.differences]

    @property
    def differences(self) -> Float3:
        """Difference of every role and head, (roles, layers, heads); NaN if not measured in both."""
        return np.stack([difference.difference for difference in self.data.differences])

    @property
    def errors(self) -> Float3:
        """Standard error of each difference, (roles, layers, heads); NaN if there is none."""
        return np.stack([difference.error for difference in self.data.differences])

    @property
    def role(self) -> Names:
        """Name of that role, (layers, heads)."""
        return np.array(self.data.role, dtype=object)

    def __getitem__(self, name: str) -> Float2:
        """Return the difference of one role, or of the measure, (layers, heads)."""
        return self.data.differences[_index(name, self.names)].difference

    def largest(self, name: str | None = None, k: int = 10) -> list[HeadValue]:
        """Return the heads that changed most, the largest change first, with the difference as value.

        Without a name, each head has its role that changed most.
        """
        by_name = {difference.name: difference.error for difference in self.data.differences}
        if name is not None:
            return _strongest(self[name], by_name[name], k, signed=False)
        places = Listing(signed=False).heads(self.changed_most, k)
        return [
            HeadValue(*head, float(self.changed_most[head]), float(by_name[self.role[head]][head]))
            for head in places
        ]


class NeedleResult(TableResult[NeedleSurvey]):
    """The result of `heads` with `needle`: what heads read of it, by the length of the text and the needle's depth.

    Attributes:
        heads: Layer and head of each retrieval head, the strongest first.
        lengths: Tokens of the texts: the first axis of the arrays.
        depths: Share of the text before the needle: the second axis.
        weight: Weight of what predicts the answer on the needle, mean of the retrieval heads, (lengths, depths).
        all_heads: The same, mean of all heads.
        log_probability: Log-probability of the answer in bits, (lengths, depths).
    """

    heads: list[tuple[int, int]]
    lengths: list[int]
    depths: list[float]
    weight: Float2
    all_heads: Float2
    log_probability: Float2
