"""Model code in a folder is never run, so that a config which names some is refused, or trusted with a warning."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families import FAMILIES, open_config
from attnscope.checkpoints.families.transformers_keys import reference_keys
from attnscope.engines.opening import open_source
from tests.helpers.architectures import write_tokenizer
from tests.helpers.published_configs import PUBLISHED
from tests.helpers.requests import requested
from tests.helpers.tiny_models import TABLE

_BY_TYPE = {raw["model_type"]: raw for raw in PUBLISHED.values()}
_STELLA = {
    "AutoModel": "modeling_qwen.Qwen2Model",
    "AutoModelForCausalLM": "modeling_qwen.Qwen2ForCausalLM",
}
_NOT_RUN = "config.json refers to custom Python code (auto_map), which was not run"


def _open(model_type: str, *, trusted: bool = False, **changes: Any) -> tuple[str, ...]:
    return open_config({**_BY_TYPE[model_type], **changes}, "config.json", trusted=trusted).notes


@pytest.mark.parametrize(
    ("model_type", "auto_map"),
    [
        ("qwen2", _STELLA),
        # never published so: its own code, whatever the name
        ("qwen2", {"AutoModel": "modeling_qwen2.Qwen2Model"}),
        ("bert", {"AutoModel": "org/impl--modeling_bert.JinaBertModel"}),
        ("llama", {"AutoModelForCausalLM": "modeling_llama_together_yarn.LlamaForCausalLM"}),
        ("phi3", {"AutoModel": "modeling_phi3.Phi3VModel"}),
        ("phi3", {"AutoModel": "other_phi3.Phi3Model"}),
        ("phi3", {"AutoModel": ["modeling_phi3.Phi3Model"]}),
        ("phi3", {"AutoConfig": "configuration_other.Phi3Config"}),
        ("gpt2", {"AutoConfig": "configuration_gpt2.GPT2Config"}),
        ("gpt2", "modeling_gpt2.GPT2Model"),
    ],
)
def test_own_model_code_is_refused_unless_trusted(model_type: str, auto_map: Any) -> None:
    with pytest.raises(
        AttnscopeError,
        match=r"the folder has its own model code .*trust_config=True uses the config",
    ):
        _open(model_type, auto_map=auto_map)
    notes = _open(model_type, auto_map=auto_map, trusted=True)
    assert notes[0] == _NOT_RUN
    assert notes[1].startswith(
        "--trust-config: the folder's own code may differ from what is shown ("
    )


@pytest.mark.parametrize(
    ("model_type", "auto_map"),
    [
        ("phi3", {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModel": "modeling_phi3.Phi3Model"}),
        ("phi3", {"AutoModelForCausalLM": "microsoft/Phi-3-mini-4k-instruct--modeling_phi3.Phi3ForCausalLM"}),
        ("qwen2", {"AutoTokenizer": ["tokenization_qwen.Qwen2Tokenizer", "tokenization_qwen.Qwen2TokenizerFast"]}),
    ],
)  # fmt: skip
def test_code_that_transformers_took_over_is_accepted_with_a_note(
    model_type: str, auto_map: Any
) -> None:
    assert _open(model_type, auto_map=auto_map) == (_NOT_RUN,)


@pytest.mark.parametrize("auto_map", [None, {}])
def test_no_code_is_no_note(auto_map: Any) -> None:
    assert _open("qwen2", auto_map=auto_map) == ()


@pytest.mark.parametrize(
    ("model_type", "named"),
    [
        ("llama", ["Eagle3LlamaForCausalLM"]),
        ("mixtral", ["LlamaForCausalLM"]),
        ("bert", ["JinaBertForMaskedLM"]),
        ("bert", ["BertModel", "MyModel"]),
        ("bert", "BertModel"),
        ("bert", [3]),
    ],
)
def test_classes_of_others_are_refused_unless_trusted(model_type: str, named: Any) -> None:
    with pytest.raises(
        AttnscopeError, match=r"architectures is .*trust_config=True reads the config as if it"
    ):
        _open(model_type, architectures=named)
    assert "and may differ" in _open(model_type, architectures=named, trusted=True)[0]


@pytest.mark.parametrize(
    ("model_type", "named"),
    [
        ("llama", ["LLaMAForCausalLM"]),
        ("bert", ["TFBertForMaskedLM", "FlaxBertModel"]),
        ("bert", []),
        ("bert", None),
        ("gemma3_text", ["Gemma3ForCausalLM"]),
    ],
)
def test_classes_of_the_family_are_accepted(model_type: str, named: Any) -> None:
    assert _open(model_type, architectures=named) == ()


@pytest.mark.parametrize(
    ("model_type", "named", "kind"),
    [
        ("llama", "LLaMAForCausalLM", "next"),
        ("bert", "TFBertForMaskedLM", "masked"),
        ("bert", "FlaxBertForMaskedLM", "masked"),
    ],
)
def test_a_class_that_transformers_does_not_have_predicts_by_the_one_that_it_has(
    tmp_path: Path, model_type: str, named: str, kind: str
) -> None:
    """Its output head was taken for "tensors that attention does not use", and --by logit said that there is none."""
    row = next(
        row for row in TABLE if row.name == ("bert with heads", "llama")[model_type == "llama"]
    )
    row.save(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["architectures"] = [named]
    path.write_text(json.dumps(config))
    write_tokenizer(tmp_path)
    for engine in ("native", "transformers"):
        assert open_source(requested((), model=str(tmp_path), engine=engine), []).predicts == kind


@pytest.mark.parametrize("family", sorted({family.name for family in FAMILIES.values()}))
def test_every_class_of_a_family_is_in_its_list(family: str) -> None:
    module = import_module(f"transformers.models.{family}.modeling_{family}")
    models = (
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, hf.PreTrainedModel)
    )
    found = {one.__name__ for one in models if one.__name__ in module.__all__}
    assert found and found <= reference_keys(family).classes


def test_the_transformers_engine_refuses_own_code_as_well(tmp_path: Path) -> None:
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = hf.Qwen2Config(**sizes, intermediate_size=20, num_key_value_heads=1)
    torch.manual_seed(0)
    hf.Qwen2Model(config).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(
        path.read_text().replace("{", '{"auto_map": {"AutoModel": "modeling_qwen.Qwen2Model"},', 1)
    )
    run = requested((), model=str(tmp_path), engine="transformers")
    with pytest.raises(AttnscopeError, match="the folder has its own model code"):
        open_source(run, [])
