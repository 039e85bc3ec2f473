"""Compile the fused kernel for GPUs that are not there, and print what it takes of them, a JSON object per line."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from attnscope.model import fused_kernels, fused_rows

FLAGS = {
    "SHARE": 4,
    "E": 128,
    "CAUSAL": True,
    "WINDOWED": False,
    "CAPPED": False,
    "BY_VALUE": False,
}
# What is compiled: the strongest keys and statistics, their ranks, averages of heads, and what keys receive.
KERNELS: tuple[tuple[str, dict[str, object]], ...] = (
    ("layer_kernel", {"HAS_SINKS": False, "RANKS": True, "N_TARGETS": 0, "PIECE": 16}),
    ("ranking_kernel", {"PIECE": 16}),
    ("layer_kernel", {"HAS_SINKS": False, "RANKS": False, "N_TARGETS": 3, "PIECE": 16}),
    ("column_kernel", {}),
)
TYPES = {
    "LENGTHS": "*i64", "TARGETS": "*i64", "COUNTED": "*i1", "KEPT": "*i32", "KEYS": "*i32",
    "scale": "fp32", "softcap": "fp32", "n": "i32", "heads": "i32", "window": "i32", "prefix": "i32",
}  # fmt: skip


def resources(
    name: str, flags: dict[str, object], capability: int, dtype: torch.dtype
) -> dict[str, object]:
    """Registers, stack and shared memory of a kernel, and whether it multiplies by tensor cores."""
    kernel = getattr(fused_kernels, name)
    sizes = fused_rows.block_sizes((capability // 10, capability % 10), dtype)
    options = (
        {name: sizes.pop(name) for name in ("num_warps", "num_stages")}
        if name != "ranking_kernel"
        else {}
    )
    constants = {a: n for a, n in (FLAGS | flags | sizes).items() if a in kernel.arg_names}
    types = TYPES | dict.fromkeys(
        ("Q", "K", "V", "OUT"), "*bf16" if dtype == torch.bfloat16 else "*fp32"
    )
    signature = {
        a: "constexpr" if a in constants else types.get(a, "*fp32") for a in kernel.arg_names
    }
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, kind in enumerate(signature.values())
        if kind.startswith("*")
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers = dict(
        word.split(":") for word in printed.split() if word.startswith(("REG:", "STACK:", "LOCAL:"))
    )
    ptx = compiled.asm["ptx"]
    cores = next((word for word in ("tcgen05.mma", "wgmma", "mma.sync") if word in ptx), "")
    found = {word.lower(): int(number) for word, number in numbers.items()}
    about = {"kernel": name, "capability": capability, "dtype": str(dtype).removeprefix("torch.")}
    about["ranks"] = flags.get("RANKS", True)
    return {**about, "shared": compiled.metadata.shared, "cores": cores, **found}


if __name__ == "__main__":
    for capability in map(int, sys.argv[1:]):
        for name, flags in KERNELS:
            for dtype in (torch.bfloat16, torch.float32):
                print(json.dumps(resources(name, flags, capability, dtype)), flush=True)
