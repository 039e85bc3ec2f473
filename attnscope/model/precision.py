"""Float64 on any device."""

import torch
from torch import Tensor


def has_float64(device: torch.device) -> bool:
    """Return whether a device computes in float64."""
    return device.type != "mps"


def to_float64(x: Tensor) -> Tensor:
    """Convert a tensor to float64 on its device, or on the CPU if the device has no float64."""
    return (x if has_float64(x.device) else x.cpu()).double()
