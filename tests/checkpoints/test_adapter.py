"""LoRA adapters: every stage equals what peft's merge_and_unload gives, and what merging gets wrong is refused."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import attnscope
from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.base.files import regex
from attnscope.checkpoints.locating import open_checkpoint
from attnscope.cli import main
from tests.helpers import gguf_files, native_stages, reference_stages
from tests.helpers.stage_differences import TOLERANCE, differences
from tests.helpers.tiny_models import TABLE
from tests.helpers.token_batches import batch
from tests.helpers.tokenizer_files import content, write
from tests.helpers.unpickling import unpickle_here

pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting .save_embedding_layers.:UserWarning"),
]
ROWS = {row.name: row for row in TABLE}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a list": ("llama", {"target_modules": ["q_proj", "v_proj"], "r": 4, "lora_alpha": 16}),
    "a regular expression": (
        "bert",
        {"target_modules": r".*layer\.[12]\..*(query|key|dense)", "r": 3},
    ),
    "all linear layers": ("qwen2", {"target_modules": "all-linear", "task_type": "CAUSAL_LM"}),
    "rank-stabilised": (
        "qwen3",
        {"target_modules": ["k_proj", "up_proj"], "r": 9, "use_rslora": True},
    ),
    "patterns": (
        "mistral",
        {
            "target_modules": ["q_proj", "k_proj", "o_proj"],
            "rank_pattern": {"layers.1.self_attn.q_proj": 2, "k_proj": 5},
            "alpha_pattern": {"o_proj": 1},
        },
    ),
    "fused and transposed": (
        "gpt2",
        {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
    ),
    "fused": ("phi3", {"target_modules": ["qkv_proj", "gate_up_proj"]}),
    "two layers": ("gemma2", {"target_modules": ["q_proj"], "layers_to_transform": [0, 2]}),
    "embeddings": ("llama", {"target_modules": ["embed_tokens", "q_proj"]}),
    "trained as a whole": (
        "llama",
        {"target_modules": ["q_proj"], "modules_to_save": ["input_layernorm"]},
    ),
    "biases": ("gpt_neox", {"target_modules": ["query_key_value"], "bias": "all"}),
    "DoRA": ("llama", {"target_modules": ["q_proj", "down_proj"], "use_dora": True}),
    "DoRA, transposed": (
        "gpt2",
        {"target_modules": ["c_attn"], "fan_in_fan_out": True, "use_dora": True},
    ),
}


def trained(model: hf.PreTrainedModel, path: Path, **config: Any) -> hf.PreTrainedModel:
    """Save an adapter with random numbers, and give the model with it merged, as peft loads it."""
    made = peft.get_peft_model(model, peft.LoraConfig(**config))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_magnitude" in name:
                parameter.mul_(1 + 0.3 * torch.rand_like(parameter))
            elif (
                "lora_" in name
                or "modules_to_save" in name
                or (name.endswith("bias") and config.get("bias") == "all")
            ):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    made.save_pretrained(path)
    merged: hf.PreTrainedModel = made.merge_and_unload()
    return merged.eval()


def write_small_tokenizer(folder: Path) -> None:
    """Write one of 60 words, as few as the models have."""
    tokenizer = content("byte-level")
    tokenizer["model"]["vocab"] = {
        piece: n % 60 for piece, n in tokenizer["model"]["vocab"].items() if n < 60
    }
    tokenizer["model"]["merges"] = []
    write(folder, tokenizer)


def largest(
    base: Path, adapter: Path, theirs: hf.PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> float:
    b = batch([9, 5], vocabulary=60, padding=0, segments=0)
    monkeypatch.setattr(
        native_stages, "open_checkpoint", lambda path: open_checkpoint(path, str(adapter))
    )
    mine = native_stages.run(native_stages.open_stack(base), b.ids, b.lengths)
    return max(
        differences(mine, reference_stages.run(theirs, b.ids, b.lengths), b.lengths).values()
    )


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_the_one_that_peft_merges(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, config = CASES[case]
    model = ROWS[name].save(tmp_path / "base")
    plain = reference_stages.run(model, torch.arange(5, 14)[None], [9])
    theirs = trained(model, tmp_path / "adapter", **config)
    changed = reference_stages.run(theirs, torch.arange(5, 14)[None], [9])
    assert (
        max((a.weights - b.weights).abs().max() for a, b in zip(plain, changed, strict=True)) > 0.01
    )
    assert largest(tmp_path / "base", tmp_path / "adapter", theirs, monkeypatch) < TOLERANCE


@pytest.mark.parametrize("head", [True, False])
def test_prefixes_of_adapter_and_base_may_differ(
    tmp_path: Path, head: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter of the model with a head, and a base without, or the other way round."""
    model = ROWS["llama"].make()
    (model.model if head else model).save_pretrained(tmp_path / "base")
    theirs = trained(
        model if head else model.model, tmp_path / "adapter", target_modules=["q_proj"]
    )
    assert largest(tmp_path / "base", tmp_path / "adapter", theirs, monkeypatch) < TOLERANCE


def test_an_adapter_on_a_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = gguf_files.write(tmp_path / "m.gguf", "llama", "Q4_1")
    theirs = trained(model, tmp_path / "adapter", target_modules=["q_proj", "k_proj", "down_proj"])
    assert largest(tmp_path / "m.gguf", tmp_path / "adapter", theirs, monkeypatch) < TOLERANCE


@pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings=True.:UserWarning")
@pytest.mark.filterwarnings("ignore:You have requested .ensure_weight_tying.:UserWarning")
@pytest.mark.filterwarnings("ignore:Input and output embeddings are no longer tied:UserWarning")
@pytest.mark.parametrize("engine", ["native", "transformers"])
@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("name", ["llama one kv head, tied", "gpt2", "gemma2"])
def test_a_tied_head_keeps_the_embedding_that_an_adapter_replaces(
    tmp_path: Path, name: str, tie: bool, engine: str
) -> None:
    """As in peft, whose copy of the embedding is not tied to the head, unless its config asks for that."""
    model = ROWS[name].save(tmp_path / "base")
    write_small_tokenizer(tmp_path / "base")
    gpt2 = name == "gpt2"
    theirs = trained(
        model,
        tmp_path / "adapter",
        target_modules=["c_attn" if gpt2 else "q_proj"],
        modules_to_save=["wte" if gpt2 else "embed_tokens"],
        fan_in_fan_out=gpt2,
        ensure_weight_tying=tie,
    )
    report = attnscope.inspect(
        "!#%&",
        model=str(tmp_path / "base"),
        adapter=str(tmp_path / "adapter"),
        engine=engine,
        predict=True,
    )
    with torch.no_grad():
        logits = theirs(torch.tensor([[token.id for token in report.data.texts[0].tokens]])).logits[
            0, -1
        ]
    for token in report.predictions[-1].tokens:
        assert abs(token.logit - logits[token.id]) < 1e-4 * logits.abs().max()
    assert report.predictions[-1].tokens[0].id == logits.argmax()


@pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings=True.:UserWarning")
@pytest.mark.filterwarnings("ignore:Model with .tie_word_embeddings=True.:UserWarning")
@pytest.mark.filterwarnings("ignore:Setting .save_embedding_layers.:UserWarning")
@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_low_rank_parts_of_a_tied_embedding_change_the_head_as_merging_does(
    tmp_path: Path, engine: str
) -> None:
    model = ROWS["llama one kv head, tied"].save(tmp_path / "base")
    write_small_tokenizer(tmp_path / "base")
    merged = trained(model, tmp_path / "adapter", target_modules=["embed_tokens", "q_proj"])
    report = attnscope.inspect(
        "!#%&",
        model=str(tmp_path / "base"),
        adapter=str(tmp_path / "adapter"),
        engine=engine,
        predict=True,
    )
    with torch.no_grad():
        logits = merged(torch.tensor([[token.id for token in report.data.texts[0].tokens]])).logits[
            0, -1
        ]
    for token in report.predictions[-1].tokens:
        assert abs(token.logit - logits[token.id]) < 1e-4 * logits.abs().max()
    assert report.predictions[-1].tokens[0].id == logits.argmax()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    model = ROWS["llama"].save(tmp_path / "base")
    write_small_tokenizer(tmp_path / "base")
    trained(model, tmp_path / "adapter", target_modules=["q_proj"], r=4)
    return tmp_path


def test_an_adapter_is_named_in_reports_notes_and_fingerprints(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, adapter, text = str(files / "base"), str(files / "adapter"), "!#%&"
    plain = attnscope.inspect(text, model=base)
    report = attnscope.inspect(text, model=base, adapter=adapter)
    made = report.data.provenance
    assert (made.adapter, plain.data.provenance.adapter) == (adapter, None)
    assert "adapter: LoRA of rank 4, added to 3 tensors" in made.notes
    assert made.fingerprint != plain.data.provenance.fingerprint
    for command in (
        ["run", text],
        ["check", text],
        ["explain", text, "--query", "0"],
        ["compare", text],
        ["info"],
    ):
        assert main([*command, "--model", base, "--adapter", adapter]) == 0, command
        said = " ".join(capsys.readouterr().out.split())
        assert "adapter: LoRA of rank 4, added to 3 tensors" in said, command
    assert (
        main(
            [
                "compare",
                text,
                "--model",
                base,
                "--adapter",
                "none",
                "--adapter",
                adapter,
                "--tolerance",
                "1e-3",
            ]
        )
        == 1
    )
    (files / "texts.txt").write_text(text)
    assert (
        main(
            [
                "batch",
                str(files / "texts.txt"),
                "-o",
                str(files / "d.jsonl"),
                "--model",
                base,
                "--adapter",
                adapter,
            ]
        )
        == 0
    )
    header = json.loads((files / "d.jsonl").read_text().splitlines()[0])
    assert header["provenance"]["adapter"] == adapter
    with pytest.raises(
        UsageError, match=r"config and adapter=.* cannot be used together: a TOML stack is a whole"
    ):
        attnscope.inspect(text, config="causal", adapter=adapter)
    assert main(["run", text, "--config", "causal", "--adapter", adapter]) == 2


def test_the_other_engine_has_the_same_weights(files: Path) -> None:
    values = {
        "model": str(files / "base"),
        "adapter": str(files / "adapter"),
        "layer": "all",
        "head": "all",
    }
    mine, its = (
        attnscope.inspect("!#%&", engine=engine, **values) for engine in ("native", "transformers")
    )
    assert abs(mine.weights - its.weights).max() < TOLERANCE


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type: is 'IA3'; only LORA is supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: is 'pissa'; it changes the base's weights, too"),
        ({"lora_bias": True}, "lora_bias: is true, which attnscope does not support; merge it with peft"),
        ({"layer_replication": [[0, 2]]}, "layer_replication: is a list, which attnscope does not support"),
        ({"target_modules": ["v_proj"]}, "target_modules: does not name 'model.layers.0.self_attn.q_proj'"),
        ({"target_modules": "(", }, "target_modules: is not a regular expression"),
        ({"use_dora": True}, "expected lora_A and lora_B, and magnitudes with use_dora"),
        ({"r": 5}, "rank 5; the checkpoint has [32, 32]"),
        ({"lora_alpha": "high"}, "lora_alpha: is 'high' for 'model.layers.0.self_attn.q_proj'; expected a number"),
        ({"lora_alpha": 10**400}, "for 'model.layers.0.self_attn.q_proj'; expected a number"),
        ({"fan_in_fan_out": 1}, "fan_in_fan_out: is 1; expected true or false"),
    ],
)  # fmt: skip
def test_configs_that_mean_something_else_are_refused(
    files: Path, changes: dict[str, Any], said: str
) -> None:
    file = files / "adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(AttnscopeError) as caught:
        open_checkpoint(files / "base", str(files / "adapter"))
    assert said in str(caught.value)


@pytest.mark.parametrize("key", ["target_modules", "rank_pattern"])
def test_an_expression_that_backtracks_for_ever_is_refused(
    files: Path, monkeypatch: Any, key: str
) -> None:
    monkeypatch.setattr(regex, "_PATIENCE", 1)
    file = files / "adapter" / "adapter_config.json"
    endless = r"(([\w.])+)+!"
    value = endless if key == "target_modules" else {endless: 4}
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    with pytest.raises(AttnscopeError, match=f"{key}: takes too long to match"):
        open_checkpoint(files / "base", str(files / "adapter"))


@pytest.mark.parametrize(
    "expression", ["q_proj", r"(?i).*Q_PROJ", r"layers\.\d+\..*q_proj", "k_proj|q_proj", "v+"]
)
@pytest.mark.parametrize("before", ["", r"(.*\.)?"])
def test_expressions_match_as_those_of_re(expression: str, before: str) -> None:
    names = ["q_proj", "model.layers.1.q_proj", "layers.10.self_attn.q_proj", "k_proj", "v", ""]
    whole = f"{before}({expression})" if before else expression
    try:
        expected = {name for name in names if re.fullmatch(whole, name)}
    except re.error:  # a flag is not at the start
        with pytest.raises(ValueError, match="not a regular expression"):
            regex.full_matches(expression, names, before)
        return
    assert regex.full_matches(expression, names, before) == expected


def test_tensors_that_do_not_fit_are_refused(files: Path) -> None:
    file = files / "adapter" / "adapter_model.safetensors"
    tensors = load_file(file)
    first = next(name for name in tensors if "lora_B" in name)
    for changed, said in (
        (
            {first: torch.zeros(31, 4)},
            "has shapes [4, 32] and [31, 4], rank 4; the checkpoint has [32, 32]",
        ),
        ({first.replace("lora_B", "lora_C"): tensors[first].clone()}, "unknown tensor"),
        (
            {first.replace("layers.0", "layers.7"): tensors[first].clone()},
            "the checkpoint has no 'model.layers.7.self_attn.q_proj.weight'; the adapter",
        ),
        (
            {"base_model.model.model.norm.weight": torch.zeros(5)},
            "has shape [5], but the checkpoint's",
        ),
    ):
        save_file({**tensors, **changed}, file)
        with pytest.raises(AttnscopeError) as caught:
            open_checkpoint(files / "base", str(files / "adapter"))
        assert said in str(caught.value)
    save_file({name.replace("self_attn", "other"): value for name, value in tensors.items()}, file)
    with pytest.raises(
        AttnscopeError,
        match=r"has no 'model.layers.0.other.q_proj.weight'; the adapter is for another",
    ):
        open_checkpoint(files / "base", str(files / "adapter"))


def test_a_missing_number_is_one_error(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = files / "adapter" / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if "lora_B" in name)
    tensors[name][3, 1] = torch.nan
    save_file(tensors, file)
    assert (
        main(["run", "!#%&", "--model", str(files / "base"), "--adapter", str(files / "adapter")])
        == 1
    )
    assert f"{name}: contains nan at [3, 1]" in capsys.readouterr().err


def test_a_pickled_adapter_names_the_import(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unpickle_here(monkeypatch)
    adapter = files / "adapter"
    tensors = load_file(adapter / "adapter_model.safetensors")
    (adapter / "adapter_model.safetensors").unlink()
    torch.save(tensors, adapter / "adapter_model.bin")
    assert main(["run", "!#%&", "--model", str(files / "base"), "--adapter", str(adapter)]) == 1
    line = capsys.readouterr().err.strip().partition("convert it: attnscope ")[2]
    assert main(line.split()) == 0
    assert (
        main(["run", "!#%&", "--model", str(files / "base"), "--adapter", f"{adapter}-safetensors"])
        == 0
    )
    shutil.rmtree(f"{adapter}-safetensors")
