"""Arguments of `attnscope.write_dump`."""

import os
from collections.abc import Sequence
from typing import Literal

from attnscope.request.arguments import By, WhatIf
from attnscope.request.run_config import (
    HeadArguments,
    NamedModel,
    OpenArguments,
    Progress,
    Stage,
    TokenArguments,
)


class ModelDumpArguments(TokenArguments, HeadArguments, total=False):
    """Arguments of `write_dump`; see TokenArguments and HeadArguments, too.

    Attributes:
        messages: A .jsonl file with a chat on each line, in place of the texts.
        input_format: Format of the input: `txt`, `jsonl`, `csv`, `tsv`, `parquet` or `arrow`; None for the one of its
            extension.
        column: Column or JSON member that holds the text.
        skip: Number of texts to skip.
        limit: Number of texts to read after these; None for all.
        shard: `"1/4"` computes the first of four parts, which `attnscope merge` joins.
        what_if: What a different mask applies to: the whole `stack`, or only the softmax over the `same-scores`.
        stages: Stages whose matrices to keep.
        top: Number of contributors per token.
        by: Measure that ranks them.
        special: Include special tokens and the first token in the ranking.
        keep: What to keep: `brief` (contributors and four statistics, to three decimals), or exact `top`, `rows`,
            `columns`, `pooled`, `all` of these, `heads`, `effects`, `spans` and `span_effects`; or several.
        target: With `effects`, the token whose logit is compared, or two for their difference; `{NAME}` is the member
            NAME of each record.
        patch_from: With `effects`, the text whose activations replace those of the text, or `{NAME}`.
        spans: How to divide texts: `sentences`, `lines`, `paragraphs`, `words`, `turns` or marks.
        words: Keep the weights between words: `spans="whole-words"` and `keep="spans"`.
        pool: Rows and columns of a pooled map.
        table: Tables of a .parquet folder; several become subfolders.
        strict: Stop at the first failed record.
        max_minutes: Stop after this time, with everything saved; the same call resumes.
        ray: Address of a cluster of Ray that computes the shards, `auto` to find it, or `local` to start one here.
        actors: Number of its actors; None for as many as it has room for.
        actor_cpus: CPUs of an actor.
        actor_gpus: GPUs of an actor.
        actor_resources: Other resources of an actor, as `"fast=1,disk=0.5"`.
        force: Start over instead of resuming; the old dump is kept until new records are safe.
        truncate: Truncate texts that exceed the model's limit.
        progress: Function that receives the current step, how much of it is done, and its total.
    """

    messages: str | os.PathLike[str] | None
    input_format: Literal["txt", "jsonl", "csv", "tsv", "parquet", "arrow"] | None
    column: str
    skip: int
    limit: int | None
    shard: str
    what_if: WhatIf
    stages: Stage | Sequence[Stage]
    top: int
    by: By
    special: bool
    keep: str | Sequence[str]
    target: str | Sequence[str] | None
    patch_from: str | None
    spans: str | None
    words: bool
    pool: int
    table: str | Sequence[str] | None
    strict: bool
    max_minutes: float | None
    ray: str | None
    actors: int | None
    actor_cpus: float
    actor_gpus: float
    actor_resources: str | None
    force: bool
    truncate: bool
    progress: Progress | None


class DumpArguments(OpenArguments, ModelDumpArguments, NamedModel, total=False):
    """All that `attnscope.write_dump` takes in addition to texts and output."""
