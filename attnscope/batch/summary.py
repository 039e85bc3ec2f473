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
    """A text that took long.

    Attributes:
        seconds: Its share of the time of its group, by tokens.
        tokens: Its number of tokens.
    """

    seconds: float
    line: int
    tokens: int


@dataclass
class Summary:
    """How a run went.

    Attributes:
        computed: Records computed now; the last of these may not be written yet.
        failures: The first failures, `line: why` each.
        started: When the run began, on the monotonic clock.
        workers: Processes that compute; 0 for this one.
        nodes: Machines of a cluster that take part; 0 for this one alone.
        stopped: The run ended early, since its time was over; the same command goes on.
    """

    counts: "Counter[str]" = field(default_factory=Counter)
    resumed: int = 0
    computed: int = 0
    tokens: int = 0
    failures: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    slowest: list[SlowText] = field(default_factory=list)
    workers: int = 0
    nodes: int = 0
    stopped: bool = False

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
        tokens = f" · {self.tokens / self.seconds:,.0f} tokens/s" if self.tokens else ""
        return f"{self.computed / self.seconds:,.0f} texts/s{tokens}"

    @property
    def speed(self) -> str:
        """Rates and duration as the end of a sentence; empty if nothing was done."""
        return f"; {time.monotonic() - self.started:,.1f} s, {self.rates}" if self.tokens or self.nodes else ""

    def count(self, status: str, error: str | None, item: Item) -> None:
        """Count a record that is written now."""
        self.counts[status] += 1
        if status == "failed" and len(self.failures) < LISTED:
            self.failures.append(f"{item.line}: {error}")

    def time_texts(self, texts: list[SlowText]) -> None:
        """Record the times of texts."""
        self.slowest = nlargest(_SLOWEST, [*self.slowest, *texts])


SummaryCallback = Callable[[Summary], None]
