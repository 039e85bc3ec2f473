"""Progress and summary of a run of `attnscope batch`."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import nlargest

from attnscope.batch.items import Item

LISTED = 20  # failures that are named
_SLOWEST = 3


@dataclass(frozen=True, order=True)
class SlowText:
    """A text that took long."""

    seconds: float  # its share of the time of its group, by tokens
    line: int
    tokens: int


@dataclass
class Summary:
    """How a run went."""

    counts: "Counter[str]" = field(default_factory=Counter)
    resumed: int = 0
    # of those computed now, records that were there, such as texts in a group that grew
    recomputed: int = 0
    computed: int = 0  # records computed now; the last of these may not be written yet
    tokens: int = 0
    failures: list[str] = field(default_factory=list)  # the first failures, `line: why` each
    # why texts were skipped now, to the number of texts and the first of their lines
    skipped: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    # when the run began, on the monotonic clock
    started: float = field(default_factory=time.monotonic, repr=False)
    slowest: list[SlowText] = field(default_factory=list)
    workers: int = 0  # processes that compute; 0 for this one
    nodes: int = 0  # machines of a cluster that take part; 0 for this one alone
    stopped: bool = False  # the run ended early, since its time was over; the same command goes on

    @property
    def records(self) -> int:
        """Records in the dump."""
        return sum(self.counts.values())

    @property
    def reached(self) -> int:
        """Records that were there before or are computed."""
        return self.resumed + self.computed

    @property
    def seconds(self) -> float:
        """Duration of this run."""
        return max(time.monotonic() - self.started, 1e-3)

    @property
    def rates(self) -> str:
        """Texts and tokens per second of this run; without tokens if actors count them."""
        tokens = ""
        if self.tokens:
            tokens = f" · {self.tokens / self.seconds:,.0f} tokens/s"
        return f"{self.computed / self.seconds:,.0f} texts/s{tokens}"

    @property
    def speed(self) -> str:
        """Rates and duration as the end of a sentence; empty if nothing was done."""
        if self.tokens or self.nodes:
            return f"; {time.monotonic() - self.started:,.1f} s, {self.rates}"
        return ""

    def count(self, status: str, error: str | None, item: Item) -> None:
        """Count a record that is written now."""
        self.counts[status] += 1
        if status == "failed" and len(self.failures) < LISTED:
            self.failures.append(f"{item.line}: {error}")
        if status == "skipped":
            count, lines = self.skipped.get(str(error), (0, []))
            self.skipped[str(error)] = count + 1, [*lines, item.line][:LISTED]

    def time_texts(self, texts: list[SlowText]) -> None:
        """Record the times of texts."""
        self.slowest = nlargest(_SLOWEST, [*self.slowest, *texts])


SummaryCallback = Callable[[Summary], None]
