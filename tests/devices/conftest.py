"""Fixtures of the tests of devices."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def default_precision() -> Iterator[None]:
    """Torch's precision as it was, after a test that changes it."""
    cuda, cudnn, mkldnn = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn
    backends = [
        one
        for one in (
            torch.backends,
            cuda,
            cudnn,
            cudnn.conv,
            cudnn.rnn,
            mkldnn,
            mkldnn.matmul,
            mkldnn.conv,
        )
    ]
    before = [(one, one.fp32_precision) for one in backends if hasattr(one, "fp32_precision")]
    yield
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = True
    for one, value in before:
        one.fp32_precision = value
