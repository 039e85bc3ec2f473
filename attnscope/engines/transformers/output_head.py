"""The output head of a `transformers` model: the classes that have one, and its logits of hidden states."""

from contextlib import ExitStack
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from attnscope.engines.transformers.model_class import ModelClass
from attnscope.findings.predictions import PredictionKind
from attnscope.model.module_hooks import replaced_forward


def head_class(plain: ModelClass) -> Any:
    """Return the class that config.json names, if it predicts tokens; of a GGUF file, which names none, the first.

    A base model of a family of decoders has one if its head is its embedding, as in the native engine.
    """
    import transformers

    config = plain.config
    class_names = list[str]()
    if isinstance(config.architectures, list):
        # LLaMAForCausalLM is in the first conversions of LLaMA, TFBertForMaskedLM in files that TensorFlow wrote
        class_names = [
            str(name).removeprefix("TF").removeprefix("Flax").casefold()
            for name in config.architectures
        ]
    decoder = type(config) not in transformers.MODEL_FOR_MASKED_LM_MAPPING
    tied = (
        decoder
        and plain.model.__name__.casefold() in class_names
        and getattr(config, "tie_word_embeddings", False)
    )
    for model_class in _predicting(config):
        # ShieldGemma 2 wraps a model of another type
        of_type = tied and model_class.config_class is type(config)
        if not class_names or of_type or model_class.__name__.casefold() in class_names:
            return model_class
    return None


def is_predicting(model: Any) -> bool:
    """Tell whether a model that is in memory predicts tokens."""
    return type(model) in _predicting(model.config)


def base_of(model: Any) -> Any:
    """Return the model without heads for tasks: the base model, or the only model inside one that predicts tokens.

    Llama4ForCausalLM and MllamaForCausalLM name a base model that they do not have; `base_model` is then the whole.
    """
    import transformers
    from transformers import PreTrainedModel

    try:
        plain: Any = transformers.MODEL_MAPPING.get(type(model.config), None)
    # transformers names a class that it does not have (VoxtralRealtimeTextModel)
    except ValueError:
        plain = None
    if type(model) is plain and model.main_input_name == "pixel_values":
        return model  # DINOv3ViTModel names its encoder as a base model
    inside = [child for child in model.children() if isinstance(child, PreTrainedModel)]
    if model.base_model is model and is_predicting(model) and len(inside) == 1:
        return inside[0]
    base = model.base_model
    # ShieldGemma 2 decides by what a language model predicts
    if base is not model and is_predicting(base):
        return base_of(base)
    within = [child for child in base.children() if isinstance(child, PreTrainedModel)]
    # BartForCausalLM holds its decoder in a module that only passes arguments on.
    passes_on = base.main_input_name not in signature(base.forward).parameters
    if passes_on and len(within) == 1:
        return within[0]
    return base


def head_kind(model: Any, *, looks_ahead: bool) -> PredictionKind:
    """Return the target of a model that `is_predicting`: the next token for a decoder, else masked tokens.

    `looks_ahead`: a token sees later ones, as in BertLMHeadModel whose config does not say `is_decoder`.
    """
    if looks_ahead:
        return "masked"
    import transformers

    tables: list[Any] = [transformers.MODEL_FOR_CAUSAL_LM_MAPPING, _multimodal()]
    causal = any(
        type(model.config) in table and type(model) is table[type(model.config)] for table in tables
    )
    if causal or getattr(model.config, "is_decoder", False):
        return "next"
    return "masked"


def _predicting(config: Any) -> list[Any]:
    """Return the classes of a config that predict tokens around a base model; of two halves, if they write speech."""
    import transformers

    if config.is_encoder_decoder:
        speech = transformers.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING
        if type(config) in speech:
            return [speech[type(config)]]
        return []
    tables: list[Any] = [
        transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
        transformers.MODEL_FOR_MASKED_LM_MAPPING,
        transformers.MODEL_FOR_PRETRAINING_MAPPING,
        _multimodal(),
    ]
    classes = [table[type(config)] for table in tables if type(config) in table]
    return [model_class for model_class in classes if getattr(model_class, "base_model_prefix", "")]


def _multimodal() -> Any:
    """Return the classes by config that go on with a text, which may hold images or sounds."""
    import transformers

    older = transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return getattr(transformers, "MODEL_FOR_MULTIMODAL_LM_MAPPING", older)


class _Given:
    """Stand-in for a base model's output: hidden states, and None for everything else."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden
        self.pooler_output = hidden[:, 0]

    def __getitem__(self, at: int | slice) -> Any:
        return (self.last_hidden_state, self.pooler_output)[at]

    def __getattr__(self, name: str) -> None:
        return None


def apply_head(model: Any, hidden: Tensor) -> Tensor:
    """Return the logits, (N, V), float32, that a model makes of final hidden states, (N, D).

    Its own `forward` runs around a base model that gives these states: whatever it does with them (a norm, a bias, a
    factor, a cap) is done.
    """
    from transformers import PreTrainedModel

    base = base_of(model)
    # the models inside it, too: the `forward` of OPT calls its base model's decoder directly
    inside = [part for part in base.modules() if part is base or isinstance(part, PreTrainedModel)]
    with ExitStack() as stack:
        for part in inside:
            stack.enter_context(replaced_forward(part, lambda *_, **__: _Given(hidden[None])))
        with torch.inference_mode():
            result = model(
                input_ids=torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
            )
    logits: Tensor
    if "prediction_logits" in result:
        logits = result.prediction_logits
    else:
        logits = result.logits
    return logits[0].float()
