"""What a GPU says: numbers against the CPU's, and times; parts with time limits, whose lines are written at once.

    python benchmarks/gpu.py [PART …] [--tokens N] [--wheels FOLDER] [--device cuda|cpu|simulated]

Every part is a process of its own, which is ended when its time is over; each line goes to standard output and, as
JSON, to `gpu.jsonl` in the folder $OUT (default: here). Exit code 1 if a part failed or took too long.

    facts     the machine; ceilings: products, copies, launches, waits; whether products of float32 are exact
    random    random layers, every recorder, against the CPU (tests/devices/test_attend.py)
    commands  every kind of command against the CPU, by their JSON (tests/devices/test_commands.py)
    parity    every family against the CPU, stage by stage, and all other tests that are marked cuda
    sdpa      scaled_dot_product_attention: flash, cuDNN, memory-efficient; with groups of heads, and without
    attend    `attend()` with the five strongest keys and the statistics of every row: lengths, sizes of tiles, memory
    profile   the operators of a recorded layer that take most time
    kernels   the fused kernel, if Triton is there: its numbers against operators, its time against the output's
    programs  `run`, `batch` and `heads` as whole processes, on the GPU and on the CPU
    frames    frames of several sizes: time of their kernels, and how long the GPU waits for launches (gpu_frames.py)
    dumps     `batch` against the forward pass alone and an eager script, by what is kept, for texts of 64, 512 and 2,048
              tokens; from start to the first text; tables that say of every bound whether it is met (gpu_dumps.py)

It needs torch, NumPy and the packages in PACKAGES: where there is no network, `--wheels` names a folder of their wheels
(`python -m pip download --no-deps -c constraints.txt -d FOLDER PACKAGE …`, for another Python with
`--only-binary :all: --python-version 3.12`), which are installed into a folder that is removed at the end.
`--device cpu` and `--device simulated` try the benchmark itself.

Where a GPU is lent for a quarter of an hour and ten minutes a command, to a copy of this tree with $OUT as the folder
that comes back, this command says of every bound of dumps whether it is met:

    python benchmarks/gpu.py facts dumps frames --runs 3 --seconds 560 --wheels wheels

It ends before the ten minutes do, whatever the parts would take; `gpu.md` in $OUT has the bounds that have been measured
by then, and names the others. With more time, these commands have every other part once, the first ones first:

    python benchmarks/gpu.py random commands --wheels wheels
    python benchmarks/gpu.py attend kernels --wheels wheels
    python benchmarks/gpu.py sdpa profile parity --wheels wheels
    python benchmarks/gpu.py programs --wheels wheels
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "msgspec", "orjson", "rich", "safetensors", "tokenizers", "transformers", "typer", "zlib-ng", "hypothesis",
    "pytest", "pytest-xdist", "execnet", "pluggy", "iniconfig", "packaging", "huggingface-hub", "regex", "pyyaml",
    "click", "shellingham", "pygments", "markdown-it-py", "mdurl", "sortedcontainers", "annotated-doc",
    "annotated-types", "anyio", "h11", "hf-xet", "httpcore2", "httpx2", "idna", "pydantic", "pydantic-core", "tqdm",
    "truststore", "typing-inspection",
)  # fmt: skip
HEADS, GROUPS, WIDTH, TOP = 32, 8, 128, 5
PARITY = (
    "tests/model/test_block.py",
    "tests/parity/test_cuda.py", "tests/devices/test_precision.py", "tests/devices/test_budgets.py",
    "tests/devices/test_doctor.py", "tests/devices/test_python.py", "tests/pipeline/test_pipeline.py",
)  # fmt: skip

SIMULATED = """
from tests.devices.simulation import simulated_devices
devices = simulated_devices()
devices.__enter__()
"""


def say(name: str, value: object = None, unit: str = "", **more: object) -> None:
    """Print a line and write it down, before anything else can go wrong."""
    value = round(value, 4) if isinstance(value, float) else value
    line = {"part": part(), "name": name, "value": value, "unit": unit, **more}
    details = "".join(f", {key} {text}" for key, text in more.items())
    print(f"{part():<9} {name:<44} {'' if value is None else value} {unit}{details}", flush=True)
    with Path(os.environ.get("OUT", "."), "gpu.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def part() -> str:
    """Return the part that this process runs."""
    return os.environ.get("ATTNSCOPE_PART", "")


class Bench:
    """A device and how large things are on it.

    Args:
        device: Name for torch.
        tokens: Tokens of the longest layer.
        runs: Runs that are timed, of which the median counts.
        seconds: Time that the part has.
    """

    def __init__(self, device: str, tokens: int, runs: int, seconds: float) -> None:
        self.device, self.tokens, self.runs = device, tokens, runs
        self.until = time.monotonic() + seconds
        self.cuda, self.small = device.startswith("cuda"), tokens < 2048

    def milliseconds(self, work: Callable[[], object]) -> float:
        """Return the median time of something, after two runs that do not count."""
        import torch

        times = []
        for run in range(self.runs + 2):
            started = time.perf_counter()
            work()
            if self.cuda:
                torch.cuda.synchronize()
            if run > 1:
                times.append(time.perf_counter() - started)
        return 1e3 * median(times)

    def tensors(self, tokens: int, dtype: Any) -> list[Any]:
        """Return random queries, keys and values."""
        import torch

        torch.manual_seed(0)
        return [
            torch.randn(1, n, tokens, WIDTH, dtype=dtype).to(self.device)
            for n in (HEADS, GROUPS, GROUPS)
        ]

    def layer(
        self,
        tokens: int,
        *,
        top: bool = True,
        rows: bool = True,
        columns: bool = False,
        tile: int | None = None,
        dtype: Any = None,
    ) -> Callable[[], object]:
        """Return a call of `attend()`, causal, in bfloat16 by default."""
        import torch

        from attnscope.findings.row_statistics import KEY_TOKENS
        from attnscope.model.attention import attend
        from attnscope.model.inputs import AttentionInputs, AttentionSpec
        from attnscope.model.recorders import ColumnRecorder, KeyTokens, RowRecorder, TopRecorder
        from attnscope.request.masks.terms import Causal

        sides = self.tensors(tokens, dtype or torch.bfloat16)
        inputs = AttentionInputs(0, *sides, AttentionSpec(WIDTH**-0.5, Causal()))
        real = torch.ones(1, tokens, dtype=torch.bool, device=self.device)
        kinds = dict.fromkeys(KEY_TOKENS, ~real)

        def work() -> None:
            recorders: list[Any] = []
            if top:
                recorders.append(
                    TopRecorder(TOP, "weight", range(HEADS), range(tokens), real, ("weight",))
                )
            if rows:
                recorders.append(RowRecorder(range(HEADS), range(tokens), KeyTokens(kinds, real)))
            if columns:
                keys = KeyTokens(kinds, real)
                recorders.append(ColumnRecorder(range(HEADS), range(tokens), real, keys))
            with torch.inference_mode():
                attend(inputs, recorders, tile_elements=tile)

        return work


def facts(bench: Bench) -> None:
    """The machine, and what nothing can be faster than."""
    import torch
    from measure import machine

    from attnscope.engines.torch_setup import use_full_precision

    say("machine", machine())
    if bench.cuda:
        properties = torch.cuda.get_device_properties(bench.device)
        say("GPU", properties.name, capability=f"{properties.major}.{properties.minor}")
        say("memory", properties.total_memory / 2**30, "GiB")
    say("torch", torch.__version__, cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version())
    say("float32 precision before", torch.get_float32_matmul_precision())
    use_full_precision()
    size = 256 if bench.small else 8192
    a, b = (torch.randn(size, size).to(bench.device) for _ in range(2))
    for x, y in ((a, b), (a.bfloat16(), b.bfloat16())):
        rate = 2 * size**3 / bench.milliseconds(lambda x=x, y=y: x @ y) / 1e9
        say(f"product of {str(x.dtype).removeprefix('torch.')}", rate, "TFLOP/s")
    exact = a[:64].double() @ b.double()
    say(
        "relative error of float32 products (TF32: 3e-4)",
        f"{float(((a[:64] @ b) - exact).norm() / exact.norm()):.1e}",
    )
    large = torch.zeros(1 << 16 if bench.small else 1 << 30, dtype=torch.uint8).to(bench.device)
    other = torch.empty_like(large)
    say("copy", 2 * large.nbytes / bench.milliseconds(lambda: other.copy_(large)) / 1e9, "TB/s")
    few = torch.zeros(8).to(bench.device)
    say("launch", bench.milliseconds(lambda: [few.add_(1) for _ in range(100)]) * 10, "µs")
    say("wait", bench.milliseconds(lambda: [float(few[0]) for _ in range(100)]) * 10, "µs")


def sdpa(bench: Bench) -> None:
    """The kernels that compute the output alone."""
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for dtype in (torch.bfloat16, torch.float32):
        q, k, v = bench.tensors(bench.tokens, dtype)
        copied = [x.repeat_interleave(HEADS // GROUPS, 1) for x in (k, v)]
        for backend in (
            SDPBackend.FLASH_ATTENTION,
            SDPBackend.CUDNN_ATTENTION,
            SDPBackend.EFFICIENT_ATTENTION,
        ):
            for groups, sides in ((True, (k, v)), (False, copied)):
                call = partial(
                    F.scaled_dot_product_attention, q, *sides, is_causal=True, enable_gqa=groups
                )
                name = f"{backend.name.removesuffix('_ATTENTION').lower()}, {bench.tokens:,} tokens"
                about = {"dtype": str(dtype).removeprefix("torch."), "groups": groups}
                try:
                    with sdpa_kernel(backend), torch.inference_mode():
                        say(name, bench.milliseconds(call), "ms", **about)
                except RuntimeError as error:
                    say(name, "refused", **about, why=str(error).split("\n")[0][:80])


def attend(bench: Bench) -> None:
    """Recorded layers, by operators."""
    import torch

    os.environ["ATTNSCOPE_KERNEL"] = "operators"
    for tokens in sorted({min(n, bench.tokens) for n in (512, 2048, 8192, bench.tokens)}):
        for tile in (None, 1 << 22, 1 << 24, 1 << 26) if tokens <= 8192 else (None, 1 << 28):
            work = bench.layer(tokens, tile=tile)
            if bench.cuda:
                torch.cuda.reset_peak_memory_stats(bench.device)
                before = torch.cuda.memory_allocated(bench.device)
            took = bench.milliseconds(work)
            peak = (
                (torch.cuda.max_memory_allocated(bench.device) - before) / 2**20
                if bench.cuda
                else None
            )
            say(
                f"{tokens:,} tokens, tiles of {tile or 'the usual size'}", took, "ms", peak_mib=peak
            )
        say(
            f"{tokens:,} tokens, strongest keys alone",
            bench.milliseconds(bench.layer(tokens, rows=False)),
            "ms",
        )
        say(
            f"{tokens:,} tokens, statistics alone",
            bench.milliseconds(bench.layer(tokens, top=False)),
            "ms",
        )


def profile(bench: Bench) -> None:
    """Where the time of a layer goes that operators record."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    os.environ["ATTNSCOPE_KERNEL"] = "operators"
    real = bench.cuda and torch.version.cuda is not None
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if real else [])]
    for tokens in sorted({min(512, bench.tokens), bench.tokens}):
        work = bench.layer(tokens)
        work()
        with profile(activities=activities) as run:
            work()
            if bench.cuda:
                torch.cuda.synchronize()
        time_of = "self_device_time_total" if real else "self_cpu_time_total"
        for event in sorted(run.key_averages(), key=lambda event: -getattr(event, time_of))[:15]:
            say(
                f"{tokens:,} tokens: {event.key[:60]}",
                getattr(event, time_of) / 1e3,
                "ms",
                calls=event.count,
            )


def kernels(bench: Bench) -> None:
    """The fused kernel: its numbers against operators', and its time against them and the output's alone."""
    import torch
    import torch.nn.functional as F

    if find_spec("triton") is None or not bench.cuda or torch.version.cuda is None:
        say("needs a GPU, and Triton")
        return
    shares, draws = (1, 5) if bench.small else (8, 10)
    command = [
        sys.executable,
        "-m",
        "tests.devices.fused_cases",
        "--device",
        bench.device,
        "--draws",
        str(draws),
    ]
    processes = [
        subprocess.Popen(
            [*command, "--seed", str(draws * n), *(["causal"] if n else [])],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for n in range(shares)
    ]  # fmt: skip
    for process in processes:
        printed = process.communicate()[0].splitlines()
        say(
            "the kernel has the numbers of operators",
            len(printed),
            "cases",
            code=process.returncode,
        )
        for line in printed[-12:] if process.returncode else ():
            say(line[:400])
    failed = any(process.returncode for process in processes)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TRITON_CACHE_DIR": folder, "ATTNSCOPE_KERNEL": "triton"}
        started = time.perf_counter()
        bench.layer(512)()
        say("compiling, and a layer of 512 tokens", time.perf_counter() - started, "s")
    del os.environ["TRITON_CACHE_DIR"]
    for dtype in (torch.bfloat16, torch.float32):
        about = {"dtype": str(dtype).removeprefix("torch.")}
        for tokens in sorted({min(n, bench.tokens) for n in (512, 2048, 8192, bench.tokens)}):
            q, k, v = bench.tensors(tokens, dtype)
            k, v = (side.repeat_interleave(HEADS // GROUPS, 1) for side in (k, v))
            alone = bench.milliseconds(
                partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
            )
            del q, k, v
            took = {}
            for kernel in ("operators", "triton"):
                os.environ["ATTNSCOPE_KERNEL"] = kernel
                took[kernel] = bench.milliseconds(bench.layer(tokens, dtype=dtype))
                say(f"{tokens:,} tokens by {kernel}", took[kernel], "ms", **about)
                summed = bench.milliseconds(bench.layer(tokens, dtype=dtype, columns=True))
                say(f"{tokens:,} tokens by {kernel}, with columns", summed, "ms", **about)
            say(
                f"{tokens:,} tokens, the output alone",
                alone,
                "ms",
                **about,
                ratio=round(took["triton"] / alone, 2),
            )
    if failed:
        sys.exit(1)


def programs(bench: Bench) -> None:
    """Whole processes."""
    import measure
    import torch
    from models import write_gpt2, write_text

    if bench.cuda and torch.version.cuda is None:
        measure.CLI = SIMULATED + measure.CLI

    size = {"layers": 2, "width": 96} if bench.small else {"layers": 12, "width": 768}
    with tempfile.TemporaryDirectory() as folder:
        model = write_gpt2(Path(folder, "gpt2"), positions=2048, **size)
        text = write_text(Path(folder, "text.txt"), 200 if bench.small else 2000)
        texts = Path(folder, "texts.txt")
        texts.write_text("\n".join([" ".join(text.read_text().split()[:500])] * 64))
        out = f"{folder}/out.jsonl"
        works = {
            "run, 14 tokens": [
                "run",
                " ".join(text.read_text().split()[:14]),
                "--layer",
                "all",
                "--head",
                "all",
            ],
            "batch, a text of 2,000 tokens, all heads": [
                "batch",
                text,
                "--keep",
                "top,rows",
                "-o",
                out,
                "--force",
            ],
            "batch, 64 texts of 500 tokens, all heads": [
                "batch",
                texts,
                "--keep",
                "top,rows",
                "-o",
                out,
                "--force",
            ],
            "heads": ["heads"],
        }
        for name, words in works.items():
            places = {
                place: lambda place=place, words=words: (
                    measure.attnscope(
                        *words, "--model", model, "--device", place, "--quiet"
                    ).seconds
                )
                for place in (bench.device, "cpu")
            }
            took = measure.take_turns(places, min(3, bench.runs))
            say(name, took[bench.device], "s", cpu=round(took["cpu"], 2))


def frames(bench: Bench) -> None:
    """Frames of several sizes, and how long the GPU waits for the host between launches."""
    import gpu_frames

    gpu_frames.frames(bench, say)


def dumps(bench: Bench) -> None:
    """Dumps beside the forward pass alone and an eager script."""
    import gpu_dumps

    gpu_dumps.dumps(bench, say)


def run_tests(bench: Bench, files: Sequence[str]) -> None:
    """Run tests, and name each that fails when it does.

    Raises:
        SystemExit: One has failed, or none has run.
    """
    words = ["-v", "-m", "cuda", "-o", "addopts=", "-p", "no:cacheprovider", *files]
    if bench.cuda and find_spec("xdist"):
        words += ["-p", "xdist.plugin", "-n", str(min(6, os.cpu_count() or 1))]
    examples = os.environ.get("ATTNSCOPE_EXAMPLES", "20" if bench.small else "1000")
    # plugins of the machine may not suit the pytest that has travelled along
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "ATTNSCOPE_WITHOUT_MODELS": "1",
    }
    environment["ATTNSCOPE_EXAMPLES"] = examples
    counted = dict.fromkeys(("PASSED", "FAILED", "ERROR", "SKIPPED"), 0)
    command, last = [sys.executable, "-m", "pytest", *words], deque[str](maxlen=20)
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line)
            verdict = next((word for word in counted if f" {word} " in line and "::" in line), None)
            if verdict is not None:
                counted[verdict] += 1
                if verdict in ("FAILED", "ERROR"):
                    say(next(word for word in line.split() if "::" in word), verdict.lower())
            elif line.startswith("E  "):
                say(line.strip()[:200])
    say(
        "tests",
        counted["PASSED"],
        "passed",
        failed=counted["FAILED"] + counted["ERROR"],
        skipped=counted["SKIPPED"],
    )
    if process.returncode or not counted["PASSED"]:
        print(*last, sep="")
        sys.exit(1)


PARTS: dict[str, tuple[Callable[[Bench], None], int]] = {
    "facts": (facts, 60),
    "random": (partial(run_tests, files=("tests/devices/test_attend.py",)), 240),
    "commands": (partial(run_tests, files=("tests/devices/test_commands.py",)), 240),
    "parity": (partial(run_tests, files=PARITY), 300),
    "sdpa": (sdpa, 120),
    "attend": (attend, 300),
    "profile": (profile, 90),
    "kernels": (kernels, 280),
    "frames": (frames, 170),
    "programs": (programs, 300),
    "dumps": (dumps, 420),
}


@contextmanager
def installed(wheels: Path | None) -> Iterator[str]:
    """Install wheels into a folder for a while; the value of PYTHONPATH that has them."""
    paths = [str(ROOT), str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() if wheels else nullcontext("") as folder:
        if wheels:
            files = [str(path) for path in sorted(wheels.glob("*.whl"))]
            command = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-index",
                "--no-deps",
                "--no-compile",
                "--target",
                folder,
            ]
            subprocess.run([*command, *files], check=True)
            paths.append(folder)
        yield os.pathsep.join(paths)


def run_limited(command: Sequence[str], seconds: float) -> int:
    """Return the exit code of a process; 124 if it took too long and was ended, with all processes that it started."""
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def main() -> int:
    """Run the parts, one process after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar="|".join(PARTS), help="all by default")
    parser.add_argument("--tokens", type=int, help="32,768 on a GPU, else 512")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3600, help="for all parts together")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu", "simulated"))
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := set(given.parts) - PARTS.keys():
        parser.error(f"unknown part '{sorted(unknown)[0]}'; known: {', '.join(PARTS)}")
    given.tokens = given.tokens or (32768 if given.device == "cuda" else 512)
    sizes = given.tokens, given.runs, given.seconds
    if given.here:
        if given.device == "simulated":
            from tests.devices.simulation import simulated_devices

            with simulated_devices():
                PARTS[given.parts[0]][0](Bench("cuda:1", *sizes))
        else:
            PARTS[given.parts[0]][0](Bench("cuda:0" if given.device == "cuda" else "cpu", *sizes))
        return 0
    if given.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            print("there is no CUDA device here; try --device cpu", file=sys.stderr)
            return 1
    failed = []
    until = time.monotonic() + given.seconds
    options = ["--tokens", str(given.tokens), "--runs", str(given.runs), "--device", given.device]
    with installed(given.wheels) as path:
        for name in given.parts or PARTS:
            os.environ |= {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "ATTNSCOPE_PART": name}
            started = time.monotonic()
            seconds = max(1.0, min(PARTS[name][1], until - started))
            command = [sys.executable, __file__, name, "--here", *options]
            code = run_limited([*command, "--seconds", str(seconds)], seconds)
            say("ended", code or "well", seconds=round(time.monotonic() - started, 1))
            failed += [name] * bool(code)
    print("failed: " + ", ".join(failed) if failed else "all parts ended well")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
