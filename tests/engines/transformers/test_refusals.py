"""What the transformers engine refuses, and in which words."""

import json
import os
import shutil
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModel, LlamaModel

from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.cli import main
from attnscope.engines.transformers import interface
from tests.families.census import build, small_config, text_class
from tests.helpers.architectures import NO_TABLE, write_tokenizer
from tests.helpers.transformers_runs import SOURCE, run


def refused(folder, kind=AttnscopeError, **options) -> str:
    with pytest.raises(kind) as caught:
        run(folder, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def copied(folders, tmp_path):
    """A function that copies an architecture's folder, with changes to its config and its tensors."""

    def copy(kind, config=None, change=None, name="copy"):
        shutil.copytree(folders(kind), tmp_path / name)
        file = tmp_path / name / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **(config or {})}))
        if change is not None:
            tensors = load_file(tmp_path / name / "model.safetensors")
            save_file(
                change(tensors), tmp_path / name / "model.safetensors", metadata={"format": "pt"}
            )
        return tmp_path / name

    return copy


@pytest.mark.parametrize("option", [["--predict"], ["--generate", "2"]])
def test_predictions_of_a_model_with_two_halves(folders, capsys, option):
    """It has an output head, which the message denied."""
    asked = ["--engine", "transformers", "--part", "encoder", *option]
    assert main(["run", "the bank", "--model", str(folders("t5")), *asked]) == 2
    said = f"{option[0]}: predictions of a model with an encoder and a decoder are not shown; remove it"
    assert said in capsys.readouterr().err


def test_an_architecture_that_passes_an_unknown_tensor(folders, monkeypatch):
    run_attention = interface.AttentionCapture.run_attention

    def strange(self, module, q, k, v, mask, more):
        return run_attention(self, module, q, k, v, mask, {**more, "gates": q})

    monkeypatch.setattr(interface.AttentionCapture, "run_attention", strange)
    assert "layer 0 passes a tensor 'gates' to its attention; attnscope refuses" in refused(
        folders("llama")
    )


def test_queries_that_are_not_those_of_the_tokens(folders, monkeypatch):
    run_attention = interface.AttentionCapture.run_attention

    def halved(self, module, q, k, v, mask, more):
        return run_attention(
            self, module, q[:, :, ::2], k, v, mask[:, :, ::2], more
        ).repeat_interleave(2, dim=2)

    monkeypatch.setattr(interface.AttentionCapture, "run_attention", halved)
    expected = "layer 0 passes 4 queries and 8 keys, not one for each token, to its attention"
    assert expected in refused(folders("llama"), texts=("the bank by the river was old",))


def test_models_of_sound(copied):
    """Also without a tokenizer."""
    folder = copied("whisper")
    assert refused(folder, UsageError).endswith("takes no text; pass audio=FILE")
    (folder / "tokenizer.json").unlink()
    assert refused(folder, UsageError).endswith("takes no text; pass audio=FILE")


def test_a_vision_model_without_a_picture(folders):
    assert refused(folders("vit"), UsageError).endswith("takes no text; pass image=FILE")


@pytest.mark.parametrize("name", NO_TABLE)
def test_models_that_embed_no_tokens_or_several_kinds_of_them(folders, name):
    expected = (
        f"no table of token embeddings was found in '{name}'; attnscope shows attention between"
    )
    assert expected in refused(folders(name))


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        (
            "gemma4_unified_assistant",
            "reads keys and values of the model that it drafts for (shared_kv_states)",
        ),
        ("funnel", "passes 4 queries and 8 keys, not one for each token"),
    ],
)
def test_the_reason_is_of_the_model_and_not_of_our_probe(tmp_path, model_type, expected):
    kind = text_class(transformers.CONFIG_MAPPING[model_type])
    build(model_type, kind).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    assert expected in refused(tmp_path, texts=("the bank by the river was old",))


def test_a_family_of_neither_says_how_to_see_it(folders):
    told = "; pip install 'attnscope[transformers]', which has nearly every architecture; supported without it: bert, "
    assert told in refused(folders("bart"), engine="native")


def test_without_the_package(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert refused(folders("llama")).endswith("pip install 'attnscope[transformers]'")


def test_a_package_that_breaks_the_import_of_transformers_is_named(folders, monkeypatch):
    """As does a torchvision of another build of torch, whose hint was to install transformers."""

    def broken(name):
        missing = ModuleNotFoundError(
            f"Could not import module '{name}'. Are this object's requirements right?"
        )
        raise missing from RuntimeError("operator torchvision::nms does not exist. Details follow")

    package = ModuleType("transformers")
    package.__getattr__ = broken
    monkeypatch.setitem(sys.modules, "transformers", package)
    said = "transformers cannot be imported (RuntimeError: operator torchvision::nms does not exist); repair or remove "
    assert said in refused(folders("llama"))


def test_missing_weights_are_not_made_up(copied):
    folder = copied(
        "llama",
        change=lambda t: {n: x for n, x in t.items() if "layers.1.self_attn.q_proj" not in n},
    )
    assert "'layers.1.self_attn.q_proj.weight' is missing" in refused(folder)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            transformers.BlipForConditionalGeneration,
            "holds BlipForConditionalGeneration: there are no tensors of 'text_model'",
        ),
    ],
    ids=lambda item: item.__name__ if isinstance(item, type) else "",
)
def test_a_folder_of_a_part_of_a_model_says_which_part_is_missing(tmp_path, kind, expected):
    """These were told to download a checkpoint again that was whole."""
    kind._from_config(small_config(kind.config_class)).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    assert expected in refused(tmp_path) and "download" not in refused(tmp_path)


def test_weights_that_a_class_may_do_without_are_not_made_up_either(copied, monkeypatch):
    quiet = [r"self_attn\.k_proj"]
    monkeypatch.setattr(LlamaModel, "_keys_to_ignore_on_load_missing", quiet)
    assert run(copied("llama")).texts
    gone = copied(
        "llama",
        name="gone",
        change=lambda t: {n: x for n, x in t.items() if "1.self_attn.k_proj" not in n},
    )
    assert "'layers.1.self_attn.k_proj.weight' is missing" in refused(gone)


@pytest.mark.parametrize("kind", ["marian", "pegasus"])
def test_positions_that_the_model_computes_are_in_no_file(copied, kind):
    """Checkpoints of opus-mt leave them out."""
    folder = copied(
        kind, change=lambda t: {n: x for n, x in t.items() if "embed_positions" not in n}
    )
    found = {part: run(folder, part=part, context=SOURCE).texts[0] for part in ("decoder", "cross")}
    ids, source = (
        [[token.id for token in side]] for side in (found["cross"].tokens, found["cross"].context)
    )
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        made = model(
            torch.tensor(source), decoder_input_ids=torch.tensor(ids), output_attentions=True
        )
    for part, layers in (("decoder", made.decoder_attentions), ("cross", made.cross_attentions)):
        for head in found[part].heads:
            expected = layers[head.layer][0, head.head].numpy()
            np.testing.assert_allclose(head.stages["weights"], expected, atol=1e-5)


def test_a_pooler_may_be_missing(copied, folders):
    folder = copied("bert", change=lambda t: {n: x for n, x in t.items() if "pooler" not in n})
    assert run(folder).texts[0].heads


def test_weights_that_are_not_finite(copied):
    def spoil(tensors):
        tensors["norm.weight"] = torch.full_like(tensors["norm.weight"], torch.nan)
        return tensors

    assert "norm.weight: contains nan at [0]" in refused(copied("llama", change=spoil))


def test_tensors_of_another_shape(copied):
    assert "transformers cannot load it" in refused(copied("llama", {"intermediate_size": 44}))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "no_such_thing"}, "has no such model"),
        ({"model_type": None}, "the key 'model_type' is missing"),
        ({"quantization_config": {"bits": 4}}, "is quantised"),
        ({"num_hidden_layers": "two"}, "transformers "),
        ({"head_dim": 0}, "transformers cannot load it (ZeroDivisionError: "),
        (
            {"num_hidden_layers": 1 << 40},
            "config.json: num_hidden_layers is 1099511627776; expected at most 10,000",
        ),
        (
            {"text_config": {"num_experts": 10**9}},
            "config.json: text_config: num_experts is 1000000000; expected at ",
        ),
        (
            {"moe_num_experts": 10**9},
            "config.json: moe_num_experts is 1000000000; expected at most 10,000",
        ),
        (
            {"t2u_encoder_layers": 10**9},
            "config.json: t2u_encoder_layers is 1000000000; expected at most 10,000",
        ),
    ],
    ids=["unknown", "none", "quantised", "odd", "no width", *(f"endless {n}" for n in range(4))],
)
def test_configs_that_transformers_cannot_run_are_refused(copied, config, expected):
    assert expected in refused(copied("llama", config))


@pytest.mark.parametrize("start", ["x", -1, 60, 1.5, [0]])
def test_a_start_that_is_no_token(copied, start):
    folder = copied("t5", {"decoder_start_token_id": start})
    assert f"decoder_start_token_id is '{start}'; expected an id below 60" in refused(
        folder, part="encoder"
    )


def test_code_of_the_folder_is_not_run(copied):
    folder = copied("llama", {"auto_map": {"AutoModel": "evil.Model", "AutoConfig": "evil.Config"}})
    (folder / "evil.py").write_text("raise SystemExit('run')")
    assert 'has its own model code ("evil.Model")' in refused(folder)
    notes = " ".join(run(folder, trust_config=True).provenance.notes)
    assert "which was not run" in notes and "the folder's own code may differ" in notes


def test_a_class_of_another_model_is_refused(copied):
    folder = copied("llama", {"architectures": ["Eagle3LlamaForCausalLM"]})
    assert (
        'architectures is ["Eagle3LlamaForCausalLM"]; expected classes of "llama" in transformers'
        in refused(folder)
    )
    assert "and may differ" in " ".join(run(folder, trust_config=True).provenance.notes)


@pytest.mark.parametrize("named", [5, True, "LlamaModel", {}, []])
def test_classes_that_are_no_list_name_none(copied, named):
    assert run(copied("llama", {"architectures": named}), trust_config=True).texts[0].heads


def test_a_class_that_cannot_be_imported(folders, monkeypatch):
    """It needs a package that is not there, or a release of transformers maps a config to a class that it lacks."""

    class Dummy(type):
        def __getattribute__(cls, name):
            raise ImportError("\nIt requires the torchaudio library\nbut it was not found\n")

    def lacking(*_):
        raise ValueError("Could not find LlamaModel")

    folder = folders("llama")
    for found, said in (
        (
            lambda *_: Dummy("HiggsModel", (), {}),
            "It requires the torchaudio library but it was not found",
        ),
        (lacking, "Could not find LlamaModel"),
    ):
        monkeypatch.setattr(type(transformers.MODEL_MAPPING), "__getitem__", found)
        assert refused(folder).endswith(f"config.json: transformers cannot import 'llama' ({said})")


def test_a_key_that_is_ignored_is_not_given_to_transformers(copied):
    folder = copied("llama", {"attention_bias": True})
    assert "is missing" in refused(folder)  # biases that the file does not hold
    found = run(folder, ignore_key=("attention_bias",)).provenance
    assert found.ignored_keys == ["attention_bias"] and "--ignore-key: attention_bias" in " ".join(
        found.notes
    )


def test_a_part_that_a_model_lacks_is_refused(folders):
    assert "use one of encoder, decoder, cross" in refused(folders("t5"), UsageError)
    assert "has no part 'cross'" in refused(folders("llama"), UsageError, part="cross")
    assert "only works for a model with an encoder" in refused(
        folders("llama"), UsageError, part="cross", engine="native"
    )
    assert "pass the text for the encoder" in refused(folders("t5"), UsageError, part="decoder")
    assert "reads only text" in refused(folders("t5"), UsageError, part="encoder", context=SOURCE)
    assert "has no cross-attention" in refused(folders("llama"), UsageError, context=SOURCE)


def test_a_text_longer_than_the_positions(folders):
    assert "61 tokens, but the model takes at most 48" in refused(
        folders("bert"), texts=("the " * 60,)
    )
    # RoBERTa counts its positions from behind the padding's
    assert "47 tokens, but the model takes at most 46" in refused(
        folders("roberta"), texts=("the " * 46,)
    )
    assert run(folders("roberta"), texts=("the " * 45,), head="0").texts[0].heads


def test_memory_is_refused_before_it_is_taken(folders):
    assert "tensors" in refused(folders("llama"), max_memory=1000)
    assert "masks" in refused(
        folders("t5"), part="encoder", max_memory=30_000_000, texts=("the " * 3000,)
    )


def test_nothing_is_asked_of_the_network(folders, monkeypatch):
    """The first try to look up or to reach another machine would end a process of its own, and is noted in this one.

    The command line tells transformers so; from Python, where that is the caller's business, it isn't asked either.
    Our own engine, which runs first, does not even import it.
    """
    asked, run_llama = [], ["run", "the bank", "--model", str(folders("llama"))]
    for function in ("getaddrinfo", "socket.connect", "socket.connect_ex"):
        monkeypatch.setattr(f"socket.{function}", lambda *given: asked.append(given))
    assert main([*run_llama, "--engine", "transformers"]) == 0
    assert asked == []
    script = f"""
import os, socket, sys
def no(*given): os._exit(7)
socket.getaddrinfo = socket.socket.connect = socket.socket.connect_ex = no
import attnscope.run.session, attnscope.engines.native
assert not {{"attnscope.cli", "huggingface_hub", "transformers"}} & sys.modules.keys()
child = os.fork()
if child:
    from attnscope.cli import main
    assert main({run_llama}) == 0
else:
    import attnscope
    attnscope.inspect("the bank", model={str(folders("llama"))!r})
assert not {{"huggingface_hub", "transformers"}} & sys.modules.keys()
if not child:
    attnscope.inspect("the bank", model={str(folders("llama"))!r}, engine="transformers")
import huggingface_hub.constants
assert huggingface_hub.constants.HF_HUB_OFFLINE == bool(child)
assert ("HF_HUB_OFFLINE" in os.environ) == bool(child)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "TRANSFORMERS_"))
    }
    subprocess.run([sys.executable, "-c", script], check=True, env=clean, stdout=subprocess.DEVNULL)


def test_an_index_out_of_range_in_the_model_is_its_failure_and_one_of_ours_is_not(
    copied, monkeypatch
):
    from transformers.models.llama.modeling_llama import LlamaMLP

    from attnscope.engines.transformers import engine

    def short(self, x):
        return x[:, [1, 0]] if x.shape[1] == 2 else x[:, [x.shape[1]]]

    folder = copied("llama", {})
    with monkeypatch.context() as patched:
        patched.setattr(LlamaMLP, "forward", short)
        assert "the model fails on a text of 12 tokens (index " in refused(folder)
    monkeypatch.setattr(engine, "intersect", lambda *masks: [][len(masks)])
    # where it stands for something
    monkeypatch.setitem(globals(), "__name__", "attnscope.model.masks")
    with pytest.raises(IndexError):
        run(folder, mask="causal+window:2")
