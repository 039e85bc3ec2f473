"""A stand-in for the pipeline, so that the command line is tested without torch and in any state."""

import contextlib
import os
import sys
import time
import types

WORDS = ["The", "bank", "by", "the", "river"]


def small_report(words=WORDS, notes=()):
    # not with this file: its threads would take the signals that `main` is about to block
    import numpy as np

    from attnscope.findings.heads import HeadRef, Heads, Top
    from attnscope.findings.provenance import MaskUse, Provenance
    from attnscope.findings.row_statistics import Rows
    from attnscope.findings.run import Report, TextReport
    from attnscope.findings.tokens import Token

    n = len(words)
    scores = (np.arange(n * n, dtype=np.float32).reshape(n, n) * 7 % 11 - 5) / 4
    e = np.exp(scores)
    weights = e / e.sum(axis=1, keepdims=True)
    row = np.full(n, 0.25, dtype=np.float32)
    keys = np.argsort(-weights, axis=1)[:, :2]
    best = np.take_along_axis(weights, keys, 1)
    heads = Heads(
        units=[HeadRef(0, 1)], chosen=["chosen automatically: most weight on other words (0.71)"], scale=[0.5],
        softcap=[None], bias=[None],
        stages={"scores": scores[None], "masked": scores[None] / 2, "weights": weights[None]}, fully_masked=[[]],
        top=Top(keys[None], best[None], best[None] * 2, by="weight"), rows=Rows(*[row[None]] * 10),
    )  # fmt: skip
    tokens = [Token(100 + i, word, word, 2 * i, 2 * i + 1) for i, word in enumerate(words)]
    text = TextReport(
        " ".join(words), None, tokens, None, 0, list(range(n)), list(range(n)), heads, list(notes)
    )
    made_by = Provenance(
        "0.1.0", "2", "fake", "bert", "0" * 16, "native", "float32", "cpu", "random", 1, 2
    )
    return Report(made_by, MaskUse("bidirectional", "bidirectional"), [text])


class PanicException(BaseException):
    """As pyo3_runtime.PanicException: no Exception."""


def _refuse(run, progress):
    from attnscope.base.errors import AttnscopeError

    raise AttnscopeError("unknown\x1b[2J key", where="a\u202eb/config.json", hint="remove it")


def _bug(run, progress):
    raise KeyError("an\x1b[31m internal\nthing")


def _panic(run, progress):
    raise PanicException("index out of range")


def _no_memory(run, progress):
    raise RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: 44 bytes"
    )


def _no_addresses(run, progress):
    raise ImportError("libtorch_cpu.so: failed to map segment from shared object")


def _warn(run, progress):
    import warnings

    warnings.warn("a driver\n is too old", UserWarning, stacklevel=1)
    return small_report()


def _sleep(run, progress):
    print("ready", file=sys.stderr, flush=True)
    time.sleep(30)
    raise AssertionError("no interrupt came")


def _deaf(run, progress):
    """A library that takes every exception for its own."""
    from attnscope.base.errors import AttnscopeError

    try:
        _sleep(run, progress)
    except BaseException as e:
        raise AttnscopeError("something failed") from e


def _destructor(run, progress):
    """The signal arrives in a destructor, where an exception is printed and forgotten."""

    class Slow:
        def __del__(self):
            _sleep(run, progress)

    Slow()
    time.sleep(30)
    raise AssertionError("no interrupt came")


def _busy(run, progress):
    """Python code in many threads, none of which waits for anything."""
    import threading

    def loop():
        while True:
            sum(range(1000))

    for _ in range(8):
        threading.Thread(target=loop, daemon=True).start()
    print("ready", file=sys.stderr, flush=True)
    loop()


def _full_pipe(run, progress):
    """Nothing is read, and a little is still buffered."""
    os.set_blocking(1, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(1, b"x" * 512)
    os.set_blocking(1, True)
    sys.stdout.write("a little")
    _sleep(run, progress)


def _stray(run, progress):
    """A library in C that prints."""
    os.write(1, b"stray")
    return small_report()


def _slow(run, progress):
    for done in range(8):
        if progress:
            progress("attending", done, 8)
        time.sleep(0.15)
    return small_report()


KINDS = {
    "fine": lambda run, progress: small_report(),
    "long": lambda run, progress: small_report([f"word{i}" for i in range(30)]),
    "huge": lambda run, progress: small_report([f"word{i}" for i in range(200)]),
    "unicode": lambda run, progress: small_report(["é", "漢字", "by", "the", "river"]),
    "refuse": _refuse,
    "bug": _bug,
    "panic": _panic,
    "no-memory": _no_memory,
    "no-addresses": _no_addresses,
    "warn": _warn,
    "sleep": _sleep,
    "deaf": _deaf,
    "destructor": _destructor,
    "slow": _slow,
    "busy": _busy,
    "stray": _stray,
    "full-pipe": _full_pipe,
}


def install(kind, asked=None):
    """Put a fake in the pipeline's place; `asked` collects the RunConfigs it gets."""

    def inspect(run, session):
        if asked is not None:
            asked.append(run)
        return KINDS[kind](run, session.progress)

    module = types.ModuleType("attnscope.run.session")
    module.inspect = inspect
    source = types.SimpleNamespace(mixing={})
    module.Session = lambda texts, progress=None: types.SimpleNamespace(
        source=lambda run: source, progress=progress
    )
    sys.modules["attnscope.run.session"] = module
    over_layers = types.ModuleType("attnscope.studies.rollout.measure")
    over_layers.measure_rollout = lambda run, session, steps: inspect(run, session)
    sys.modules["attnscope.studies.rollout.measure"] = over_layers
    return module
