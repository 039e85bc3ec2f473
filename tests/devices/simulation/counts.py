"""What a simulated device counts: launches, waits, bytes that are copied, and memory."""

from __future__ import annotations

import threading
from collections import Counter

import torch

from tests.devices.simulation.streams import streams


class Counts:
    """What operators on simulated devices did since the last `reset`.

    Attributes:
        kernels: Operator to how often it was launched; views and empty tensors launch nothing.
        waits: Why the host waited for the device, to how often: `read` (a copy to the host), `upload` (a blocking copy
            from the host, which waits for everything that was launched before), `size` (the shape of a result depends
            on numbers).
        read_bytes: Bytes that were copied to the host.
        upload_bytes: Bytes that were copied from the host.
        beside: Copies from pinned memory on a stream of their own; neither the host nor the computation waits for them.
        attention: Kernel of `scaled_dot_product_attention` that CUDA would choose, to how often.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Start again at 0."""
        self.kernels: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.attention: Counter[str] = Counter()
        self.read_bytes = self.upload_bytes = self.beside = 0

    @property
    def launches(self) -> int:
        """Kernels that were launched."""
        return self.kernels.total()

    def launch(self, kernel: str) -> None:
        """Count a kernel."""
        with self._lock:
            self.kernels[kernel] += 1

    def wait(self, why: str, n_bytes: int = 0) -> None:
        """Count a wait, and the bytes that were copied."""
        with self._lock:
            self.waits[why] += 1
            self.read_bytes += n_bytes if why == "read" else 0
            self.upload_bytes += n_bytes if why == "upload" else 0

    def copy_beside(self, n_bytes: int) -> None:
        """Count a copy that nothing waits for."""
        with self._lock:
            self.beside += 1
            self.upload_bytes += n_bytes

    def attend(self, kernel: str) -> None:
        """Count a kernel of attention."""
        with self._lock:
            self.attention[kernel] += 1
            self.kernels[f"attention {kernel}"] += 1


class DeviceMemory:
    """Memory of a simulated device: storages that tensors on it hold.

    Attributes:
        capacity: Bytes of the device.
        held: Bytes that are allocated.
        peak: Most bytes that were allocated since `peak` was set.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity, self.held, self.peak = capacity, 0, 0
        self._lock = threading.RLock()
        self._owners: Counter[int] = Counter()

    def allocate(self, tensor: torch.Tensor) -> int:
        """Count the storage of a tensor unless it is counted already; return its key for `free`.

        Raises:
            torch.OutOfMemoryError: The device has no room for it.
        """
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        with self._lock:
            if not self._owners[key]:
                if self.held + size > self.capacity:
                    del self._owners[key]
                    total, wanted = self.capacity / 2**20, size / 2**20
                    raise torch.OutOfMemoryError(
                        f"CUDA out of memory. Tried to allocate {wanted:.2f} MiB. GPU 1 has a total capacity of "
                        f"{total:.2f} MiB of which {total - self.held / 2**20:.2f} MiB is free. Including non-PyTorch "
                        "memory, this process has a lot in use."
                    )
                self.held += size
                self.peak = max(self.peak, self.held)
            self._owners[key] += 1
        return key

    def free(self, key: int, size: int) -> None:
        """Forget one owner of a storage, and the storage with the last."""
        with self._lock:
            self._owners[key] -= 1
            if not self._owners[key]:
                del self._owners[key]
                self.held -= size
                streams.free(key)


counts = Counts()
memory = DeviceMemory(139 << 30)
