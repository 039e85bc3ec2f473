"""Plan passes over sequences of tokens that every layer and head is recorded on. Never imports torch."""

from collections.abc import Sequence
from dataclasses import replace as changed

from msgspec.structs import replace

from attnscope.checkpoints.source import ModelSource
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import ALL
from attnscope.run.plan import SHORTER, RunPlan, memory_demand, plan_for_texts, spare_memory
from attnscope.run.text_plan import TextPlan

# largest number of tokens in a pass, padding included, unless one sequence has more
_AT_ONCE = 2048


def batches_by_length(lengths: Sequence[int], *, padded: bool = True) -> list[list[int]]:
    """Group sequences of similar length for one pass each.

    Args:
        padded: Sequences of different lengths may share a pass.

    Returns:
        Numbers of the sequences of each group.
    """
    groups: list[list[int]] = []
    # The first sequence of a group is its longest.
    for index in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        longest = lengths[groups[-1][0]] if groups else 0
        fits = padded or longest == lengths[index]
        if groups and fits and (len(groups[-1]) + 1) * longest <= _AT_ONCE:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def plan_passes(
    run: RunConfig, source: ModelSource, groups: Sequence[Sequence[TextPlan]], kept_bytes: int
) -> list[RunPlan]:
    """Plan one pass of the model for each group of texts, with every head of every layer recorded.

    Args:
        run: The request; its layers, heads, rows and columns are ignored.
        kept_bytes: Bytes of the recorders and of their results.
    """
    every = [text for group in groups for text in group]
    run = replace(run, layer=ALL, head=ALL, query=None, key=None, stages=(), top=0)
    plan = plan_for_texts(run, source, every)
    demand = memory_demand(plan)
    demand = changed(demand, batch=max(map(len, groups)), tiled_queries=demand.tokens, units=1)
    demand = changed(demand, rows=0, cells=0, drawn=0, pool=0, predicted=0)
    _, stream_reason, memory = spare_memory(run, source, demand, {"kept": kept_bytes}, (SHORTER,))
    return [
        changed(plan, text_plans=list(group), stream_reason=stream_reason, memory=memory)
        for group in groups
    ]
