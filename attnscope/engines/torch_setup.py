"""Set torch up: import it, choose a device and the number of threads."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING

from attnscope.base.errors import AttnscopeError, DeviceFailed, DeviceMemoryExceeded, arg
from attnscope.base.system.allocation import small_product_caches
from attnscope.base.system.gpu import cuda_device
from attnscope.base.system.machine import count_threads

if TYPE_CHECKING:
    import torch

# how long threads look for work before they sleep
_OPENMP_WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_OPENMP_PATIENCE = "3000"  # turns of a waiting loop, about 0.05 ms
# restores what import_torch set, after the first call from Python
_on_return: list[Callable[[], None]] = []
_NARROW_SUMS = (
    "fp16_reduced_precision_reduction",
    "bf16_reduced_precision_reduction",
    "fp16_accumulation",
)
# in messages of torch
_GPU_LIBRARIES = ("CUDA", "cuDNN", "CUDNN_", "CUBLAS_", "HIP", "MPS", "NVIDIA driver")
# multiplications below which waking a second thread costs more than it saves
_WORTH_A_THREAD = 1 << 30


def import_torch(*, freeze: bool = True) -> None:
    """Import torch with our settings, unless it is imported already.

    The garbage collector is off meanwhile, which would walk torch's lasting objects again and again (0.1 s). Threads of
    GNU's OpenMP go to sleep soon after an operator: by default, they keep a core busy for milliseconds more, in case
    another operator follows, while `model.workers` would already compute there. With `freeze`, all existing objects are
    excluded from garbage collection, including those of other modules.
    """
    if "torch" in sys.modules:
        return
    was_on = gc.isenabled()
    gc.disable()
    if os.environ.keys() & _OPENMP_WAITING:
        impatient = {}
    else:
        impatient = {_OPENMP_WAITING[0]: _OPENMP_PATIENCE}
    os.environ.update(impatient)  # read when OpenMP is loaded
    try:
        import torch  # noqa: F401

        # TORCH_ALLOW_TF32_CUBLAS_OVERRIDE may have set TF32.
        _on_return.append(use_full_precision())
    finally:
        for name in impatient:
            del os.environ[name]
        if freeze and was_on:
            gc.freeze()
        if was_on:
            gc.enable()


@contextmanager
def default_settings() -> Iterator[None]:
    """Compute under torch's defaults (float32, CPU, no autocast), and restore the caller's settings afterwards.

    Tensors are made in the default type, and autocast would round products that reports show as float32, as TF32 would.
    """
    with ExitStack() as stack:
        stack.enter_context(small_product_caches())
        if "torch" not in sys.modules:
            # Nothing has been set, except by variables that torch reads on import.
            try:
                yield
            finally:
                while _on_return:
                    _on_return.pop()()
            return
        import torch

        dtype = torch.get_default_dtype()
        for device_type in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(device_type):
                stack.enter_context(torch.autocast(device_type, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        stack.callback(use_full_precision())
        yield


def use_full_precision() -> Callable[[], None]:
    """Multiply float32 in full precision, and sum 16-bit products in float32; return a function that undoes it.

    torch has an old and a new way to set the former. They have to agree while something is multiplied, and each of them
    has its value back afterwards.
    """
    import torch

    cuda = torch.backends.cuda.matmul
    cudnn = torch.backends.cudnn
    backends = [cuda, cudnn, torch.backends.mkldnn]
    backends += [
        getattr(backend, name, None)
        for backend in backends[1:]
        for name in ("matmul", "conv", "rnn")
    ]
    precisions = [
        (target, "fp32_precision") for target in backends if hasattr(target, "fp32_precision")
    ]
    sums = [(cuda, f"allow_{name}") for name in _NARROW_SUMS if hasattr(cuda, f"allow_{name}")]
    before = [(target, name, getattr(target, name)) for target, name in precisions + sums]
    old: list[Callable[[], None]] = []
    with suppress(RuntimeError):  # set in the new way only
        old.append(
            partial(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        )
    with suppress(RuntimeError):
        old.append(partial(setattr, cudnn, "allow_tf32", cudnn.allow_tf32))
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = False
    for target, name in precisions + sums:
        setattr(target, name, "ieee" if name == "fp32_precision" else False)

    def restore() -> None:
        for call in old:
            call()
        for target, name, value in before:
            setattr(target, name, value)

    return restore


def device_failure(error: BaseException) -> AttnscopeError | None:
    """Return torch's error about a failing GPU as an AttnscopeError; None for other errors."""
    message = str(error)
    if not isinstance(error, RuntimeError) or not any(name in message for name in _GPU_LIBRARIES):
        return None
    lines = " ".join(message.split("\n", 1)[0].split())
    if "out of memory" in message or "CUBLAS_STATUS_ALLOC_FAILED" in message:
        smaller = f"select fewer layers or heads, a shorter text or a smaller {arg('dtype')}"
        hint = f"{smaller}, or use {arg('device', 'cpu')}"
        return DeviceMemoryExceeded(
            f"the GPU is full: {'. '.join(lines.split('. ')[:3])}", hint=hint
        )
    hint = f"use {arg('device', 'cpu')}"
    if "no kernel image" in message:
        hint = f"install a build of torch for this GPU, or use {arg('device', 'cpu')}"
    return DeviceFailed(f"the GPU failed: {lines.rstrip('.')}", hint=hint)


@contextmanager
def device_failures() -> Iterator[None]:
    """Re-raise torch's errors about a GPU as AttnscopeErrors."""
    try:
        yield
    except RuntimeError as e:
        if (failure := device_failure(e)) is None:
            raise
        raise failure from e


def choose_device(name: str, multiplications: int) -> "torch.device":
    """Return the device that `--device` names; `auto` is the CPU for few multiplications."""
    import torch

    if name == "auto":
        return torch.device(cuda_device(name, multiplications) or "cpu")
    device_type, _, index = name.partition(":")
    # torch stores an index in 8 bits, so that 999 becomes -25
    missing = device_type == "cuda" and int(index or 0) >= torch.cuda.device_count()
    if missing or (device_type == "mps" and not torch.backends.mps.is_available()):
        raise AttnscopeError(
            f"no device '{name}'", where=arg("device"), hint=f"use {arg('device', 'cpu')}, or auto"
        )
    return torch.device("cuda:0" if name == "cuda" else name)


def set_threads(multiplications: int, wanted_threads: int | None) -> None:
    """Set the number of torch's threads to the named one, to 1 for few multiplications, else to the available CPUs."""
    import torch

    # Read before any other setting of torch is changed.
    usable = min(_given_threads(), count_threads())
    torch.set_num_threads(wanted_threads or (1 if multiplications < _WORTH_A_THREAD else usable))


def restore_threads() -> None:
    """Restore the number of torch's threads from before the first run, for a process that attnscope does not own."""
    if _given_threads.cache_info().currsize:
        import torch

        torch.set_num_threads(_given_threads())
        _given_threads.cache_clear()


@cache
def _given_threads() -> int:
    import torch

    return torch.get_num_threads()


def limited_threads() -> AbstractContextManager[None]:
    """Use one thread of torch within: a process whose OpenMP has several cannot be forked any more."""
    from attnscope.model.workers import one_openmp_thread

    return one_openmp_thread()


def limit_threads(wanted: int) -> int:
    """Set torch's number of threads, 0 for its own choice, and return it.

    The number of threads affects the order of some sums, and so their last bits.
    """
    import torch

    if wanted:
        torch.set_num_threads(wanted)
    return torch.get_num_threads()
