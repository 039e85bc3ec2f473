"""Set torch up: import it, choose a device and how many threads it uses."""

import gc
from functools import cache
from typing import TYPE_CHECKING

from attnscope.errors import AttnscopeError
from attnscope.system.threads import count_threads

if TYPE_CHECKING:
    import torch

_WORTH_A_THREAD = 1 << 30  # multiplications; for less, waking a second thread costs more than it saves


def import_torch() -> None:
    """Import torch with the garbage collector off, which would walk its lasting objects again and again (0.1 s)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        if was_on:
            gc.freeze()
            gc.enable()


def choose_device(name: str) -> "torch.device":
    """The device that `--device` names.

    Raises:
        AttnscopeError: There is none of this name here.
    """
    import torch

    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if (
        kind == "cuda" and int(index or 0) >= torch.cuda.device_count()
    ):  # torch keeps an index in 8 bits, and 999 as -25
        raise AttnscopeError(f"no device '{name}'", where="--device", hint="use --device cpu, or auto")
    return torch.device("cuda:0" if name == "cuda" else name)


def set_threads(multiplications: int) -> None:
    """Let torch use one thread for little work, and otherwise as many as it was given and the machine has for us."""
    import torch

    usable = _usable_threads()  # read before anything else is set in torch
    torch.set_num_threads(1 if multiplications < _WORTH_A_THREAD else usable)


@cache
def _usable_threads() -> int:
    import torch

    return min(torch.get_num_threads(), count_threads())


def limit_threads(wanted: int) -> int:
    """Let torch use so many threads, or as many as it likes for 0; how many it uses.

    The number of threads decides the order of some sums, and so their last bits.
    """
    import torch

    if wanted:
        torch.set_num_threads(wanted)
    return torch.get_num_threads()
