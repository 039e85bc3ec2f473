"""Time loading, the forward pass and writing, by attnscope or by transformers.

    python benchmarks/stages.py ours|eager|sdpa CHECKPOINT TEXT OUTPUT

`ours` does what `attnscope batch TEXT -o OUTPUT --top 5` does, by the same functions. `eager` is the script that a
`transformers` user writes: every layer's attention from `output_attentions=True`, `topk` of it, and an .npz of that.
`sdpa` is a forward pass without any attention output. Imports are outside of all stages; `loaded` counts them. Prints
JSON.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from measure import peak

TOP = 5
STARTED = time.perf_counter()


def ours(model: str, text: Path, output: Path) -> list[float]:
    """Session, Model and Lines are what batch.dump puts together."""
    from attnscope.batch.header import Settings
    from attnscope.batch.items import Item
    from attnscope.batch.preparing import PreparedText, run_config
    from attnscope.batch.records import encode
    from attnscope.batch.worker import ModelWorker
    from attnscope.engines.torch_setup import import_torch
    from attnscope.request.run_config import RunConfig, TextInput
    from attnscope.run.session import Session

    import_torch()
    import tokenizers  # noqa: F401

    import attnscope.engines.native
    import attnscope.model.checkpoint
    import attnscope.model.trace  # noqa: F401

    at = [time.perf_counter()]
    settings = Settings(top=TOP)
    run, words = run_config(settings, RunConfig(texts=(), model=model)), text.read_text().strip()
    work = ModelWorker(run, settings, Session(()), len(words.split()))
    at.append(time.perf_counter())
    ready = work.prepare(Item(0, 1, 1, "", TextInput(words)))
    assert isinstance(ready, PreparedText)
    records = work.process([ready])
    at.append(time.perf_counter())
    output.write_bytes(b"".join(map(encode, records)))
    return [*at, time.perf_counter()]


def theirs(model: str, text: Path, output: Path, kind: str) -> list[float]:
    """As a transformers user writes it."""
    import numpy as np
    import torch
    from transformers import AutoTokenizer, GPT2Model
    from transformers.utils import logging

    logging.disable_progress_bar()
    at = [time.perf_counter()]
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = GPT2Model.from_pretrained(model, attn_implementation=kind, dtype=torch.float32).eval()
    at.append(time.perf_counter())
    found: dict[str, Any] = {}
    with torch.inference_mode():
        given = tokenizer(text.read_text().strip(), return_tensors="pt")
        result = network(**given, output_attentions=kind == "eager", use_cache=False)
        for layer, weights in enumerate(result.attentions or ()):
            best = weights.topk(TOP)
            found |= {f"{layer}.keys": best.indices.numpy(), f"{layer}.weight": best.values.numpy()}
    at.append(time.perf_counter())
    np.savez(output, **found)
    return [*at, time.perf_counter()]


def main() -> None:
    """Do one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kind", choices=("ours", "eager", "sdpa"))
    parser.add_argument("checkpoint")
    parser.add_argument("text", type=Path)
    parser.add_argument("output", type=Path)
    asked = parser.parse_args()
    if asked.kind == "ours":
        at = ours(asked.checkpoint, asked.text, asked.output)
    else:
        at = theirs(asked.checkpoint, asked.text, asked.output, asked.kind)
    names = ("load", "forward", "write")
    facts = {name: b - a for name, a, b in zip(names, at[:-1], at[1:], strict=True)}
    print(json.dumps({**facts, "loaded": at[1] - STARTED, "peak": peak()}))


if __name__ == "__main__":
    main()
