"""Write the folder that ships from a trained student: HF layout in float16, with only what the model needs."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import BertForMaskedLM

from training.riverbank.attention import MASKS
from training.riverbank.tokenizer import MASK, PAD, UNK


def export(student: BertForMaskedLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json."""
    for name, tensor in student.state_dict().items():
        if not torch.isfinite(tensor.half()).all():
            raise RuntimeError(f"{name} holds a number that float16 can't")
    folder.mkdir(parents=True, exist_ok=True)
    student.half()  # type: ignore[no-untyped-call]
    student.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # it is written readable by its owner alone
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["attnscope"] = {"trained_masks": list(MASKS)}
    _write_json(folder / "config.json", config)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    limit = student.config.max_position_embeddings
    names = {"pad_token": PAD, "unk_token": UNK, "mask_token": MASK}
    _write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": limit, **names},
    )


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
