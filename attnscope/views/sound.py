"""What views of a sound share: loudness and seconds."""

from collections.abc import Iterator, Sequence

import numpy as np

_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)  # seconds between ticks


def second_ticks(seconds: Sequence[float], columns: int) -> Iterator[tuple[int, str]]:
    """Yield round seconds with the column that holds each, as close as they can be read.

    Args:
        seconds: At which each column starts, then the end of the last.
        columns: How many characters fit above all of them.
    """
    a_second = columns / max(seconds[-1] - seconds[0], 1e-9)
    widest = len(f"{seconds[-1]:.1f}") + 2
    step = next((step for step in _STEPS if step * a_second >= widest), _STEPS[-1])
    count = int(np.ceil(seconds[0] / step - 1e-9))
    while count * step < seconds[-1]:
        tick = count * step
        yield (
            int(np.searchsorted(seconds, tick + 1e-9, side="right")) - 1,
            f"{tick:g}" if step >= 1 else f"{tick:.1f}",
        )
        count += 1
