"""SmolLM2 as transformers computes it, read from the GGUF file by transformers' own blocks and layout."""

from functools import cache
from pathlib import Path

import gguf
import torch
import transformers as hf
from transformers.integrations.gguf.dequant import dequantize
from transformers.integrations.gguf.reader import GgufHeader, load_gguf_state_dict
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


@cache
def open_reference(path: Path) -> hf.LlamaModel:
    """Return the model without its head, whose rows are those of the embedding.

    `from_pretrained(…, gguf_file=…)` takes 30 seconds.
    """
    config = hf.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, attn_implementation="eager",
    )  # fmt: skip  # as published
    with torch.device("meta"):
        model = hf.LlamaModel(config).eval()
    header, layout = GgufHeader.from_file(str(path)), LlamaTensorProcessor(config.to_dict())
    stored = load_gguf_state_dict(header)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    parameters = {}
    for name, parameter in model.named_parameters():
        stored_name = f"{names.get_name(name, try_suffixes=('.weight',))}"
        raw = stored[stored_name][...]
        values = (
            raw if raw.dtype == torch.float32 else dequantize(raw, header.ggml_types[stored_name])
        )
        processed = layout.process(values.view(parameter.shape).numpy(), stored_name)
        parameters[name] = torch.from_numpy(processed.weights.copy())
    model.load_state_dict(parameters, assign=True)
    model.rotary_emb = LlamaRotaryEmbedding(config)
    return model
