"""Arguments of `attnscope.heads`."""

import os
from collections.abc import Sequence

from attnscope.request.arguments import Dtype, EngineWord
from attnscope.request.run_config import (
    MachineArguments,
    PairArguments,
    TokenArguments,
    Tokens,
    TorchDtype,
)


class ModelHeadsArguments(PairArguments, TokenArguments, total=False):
    """Arguments of `heads`; see PairArguments and TokenArguments, too.

    Attributes:
        role: Roles to measure: a name, or several; None for all.
        measure: One number for every head instead of roles: `weight`, `value` or `projected` of `key`, or a statistic
            of the average row, such as `entropy`. With `mixing`, layers without softmax, also
            where there is attention beside.
        against: Keys whose number is subtracted from that of `key`.
        words: Take the whole words that `query` and `key` name a piece of.
        draws: Number of random sequences of each kind.
        seed: Seed of the random tokens.
        needle: A sentence to hide in long texts, instead of roles: how much the retrieval heads read of it.
        answer: The part of the needle that is its answer; None for its last word.
        filler: The text around the needle, repeated if it is short; None for built-in texts.
        lengths: Tokens of the texts; None for 512 and 1024.
        depths: Shares of the text before the needle; None for 0, 0.1 and so on to 1.
    """

    needle: str | None
    answer: str | None
    filler: str | None
    lengths: int | Sequence[int] | None
    depths: float | Sequence[float] | None
    role: str | Sequence[str] | None
    measure: str | None
    against: Tokens | None
    words: bool
    draws: int
    seed: int


class HeadsArguments(ModelHeadsArguments, MachineArguments, total=False):
    """All that `attnscope.heads` takes apart from the model and texts; see OpenArguments.

    One of these, or the model, may be a list of two, whose heads are compared; `tokenizer`, too.
    """

    qkv: object
    config: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
    adapter: str | os.PathLike[str] | Sequence[str | os.PathLike[str] | None] | None
    dtype: Dtype | TorchDtype | Sequence[Dtype | TorchDtype]
    engine: EngineWord | Sequence[EngineWord]
