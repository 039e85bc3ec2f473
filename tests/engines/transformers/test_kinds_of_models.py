"""Models that read more than a text, run layers again, attend in chunks, or hold a text model: see the census."""

import numpy as np
import pytest
import torch
import transformers as hf

import attnscope
from attnscope.base.errors import AttnscopeError
from tests.families.census import build, examine, text_class
from tests.helpers.architectures import write_tokenizer
from tests.helpers.hybrids import save_hybrid

TEXT = "the bank by the river was old"
QUICK = ["hrm_text", "lilt", "longformer", "longt5", "llama4", "xmod"]
OTHERS = [
    "altclip", "bridgetower", "bros", "clvp", "dia", "dory", "encoder-decoder", "led", "pe_audio", "pp_chart2table",
    "qwen2_5_omni_thinker", "seamless_m4t", "trocr", "udop", "vision-text-dual-encoder",
]  # fmt: skip


@pytest.mark.parametrize(
    "model_type", [*QUICK, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in OTHERS)]
)
def test_every_number_is_that_of_eager_transformers(model_type: str) -> None:
    finding = examine(model_type)
    assert (finding.verdict, finding.reason) == ("right", "")
    assert {"weights", "padded"} <= set(finding.differences)
    assert max(finding.differences.values()) < 1e-4


@pytest.mark.parametrize(
    ("model_type", "note"),
    [
        ("xmod", "lang_ids: zeros, since the model needs it and a text has none"),
        (
            "llama4",
            "the text model 'language_model' is shown alone: transformers cannot run it on tokens alone",
        ),
        ("hrm_text", "modules attend 32 times in a pass: layers are numbered as they run"),
        ("lilt", "its weights are applied to two sets of values, of which the last are shown"),
    ],
)
def test_a_note_says_what_is_shown(tmp_path, model_type: str, note: str) -> None:
    save_hybrid(tmp_path, build(model_type, text_class(hf.CONFIG_MAPPING[model_type])))
    notes = attnscope.inspect(TEXT, model=str(tmp_path)).data.provenance.notes
    assert any(note in line for line in notes), notes


NEAR = {
    "longformer": (None, "longformer.encoder.layer.1.attention.output.dense"),
    "led": ("encoder", "led.encoder.layers.1.self_attn.output"),
    "longt5": ("encoder", "encoder.block.1.layer.0.LocalSelfAttention.o"),
}


@pytest.mark.parametrize("model_type", NEAR)
def test_near_keys_are_projected_and_checked(tmp_path, model_type):
    """The output projection takes texts that the model has padded to full windows."""
    part, name = NEAR[model_type]
    model = build(model_type, text_class(hf.CONFIG_MAPPING[model_type]))
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    options = {"model": tmp_path} | ({"part": part} if part else {})
    checked = attnscope.check(TEXT, **options)
    assert checked.passed
    names = {check.name for check in checked.data.checks if check.verdict == "pass"}
    assert {
        "equals eager transformers: weights",
        "the output of attention is W·(weights·v)",
    } <= names
    at = {"layer": 1, "head": 2, **options}
    head = attnscope.inspect(TEXT, by="projected", top=8, special=True, **at).data.texts[0].heads[0]
    explained = attnscope.explain(TEXT, query=5, top=8, **at).data
    weight = model.get_submodule(name).weight.detach().numpy()
    width = weight.shape[1] // 4
    projected = explained.value_vectors @ weight[:, 2 * width : 3 * width].T
    sizes = dict(zip(explained.keys, np.linalg.norm(projected, axis=-1), strict=True))
    compared = 0
    for key, share, alpha in zip(
        head.top.keys[5], head.top.projected[5], head.top.weight[5], strict=True
    ):
        if key >= 0 and key in sizes:
            assert share == pytest.approx(alpha * sizes[key], rel=1e-4)
            compared += 1
    assert compared >= 3


def test_what_is_added_in_place_behind_attention_is_noticed(tmp_path):
    """Nyströmformer adds a convolution of the values to the output: projected numbers left it out."""
    build("nystromformer", text_class(hf.CONFIG_MAPPING["nystromformer"])).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    assert attnscope.check(TEXT, model=tmp_path).passed
    with pytest.raises(
        AttnscopeError, match="something other than a gate stands between weights·v and the output"
    ):
        attnscope.inspect(TEXT, model=tmp_path, by="projected")


@pytest.mark.parametrize("study", ["check", "ablate"])
def test_heads_of_several_texts_that_are_one_batch(tmp_path, study):
    """LED multiplies heads of all texts at once, where its decoder reads its encoder."""
    build("led", text_class(hf.CONFIG_MAPPING["led"])).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    options = {"model": tmp_path, "part": "cross", "context": "the bank by the water"}
    if study == "check":
        assert attnscope.check(TEXT, **options).passed
    else:
        effects = attnscope.ablate("the river", each="head", **options).values
        assert effects.shape == (4, 4) and np.isfinite(effects).all() and (effects > 0).all()


def test_a_model_around_a_language_model_predicts_and_is_cut(tmp_path):
    """ShieldGemma 2 decides by the probabilities of two next tokens."""
    model = build("shieldgemma2", text_class(hf.CONFIG_MAPPING["shieldgemma2"]))
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    text = attnscope.inspect(TEXT, model=tmp_path).data.texts[0]
    with torch.inference_mode():
        logits = model.model(torch.tensor([[token.id for token in text.tokens]])).logits[0]
    assert text.predictions
    for prediction in text.predictions:
        for token in prediction.tokens:
            assert token.logit == pytest.approx(
                float(logits[prediction.position, token.id]), abs=1e-4
            )
    effects = attnscope.ablate("the river", each="head", model=tmp_path).values
    assert effects.shape == (4, 4) and (effects > 0).all()


def test_a_model_that_gives_no_last_states_says_so(tmp_path):
    build("encoder-decoder", text_class(hf.CONFIG_MAPPING["encoder-decoder"])).save_pretrained(
        tmp_path
    )
    write_tokenizer(tmp_path)
    with pytest.raises(
        AttnscopeError, match="EncoderDecoderModel gives no states behind its last layer"
    ):
        attnscope.ablate("the bank", each="head", model=tmp_path, part="cross", context="the river")


def test_an_encoder_that_gives_a_tuple_by_default_is_cut(tmp_path):
    build("dpr", text_class(hf.CONFIG_MAPPING["dpr"])).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    effects = attnscope.ablate("the river", each="head", model=tmp_path).values
    assert effects.shape == (4, 4) and (effects > 0).all()


def test_check_knows_a_sink_that_scales_the_output(tmp_path):
    """The weights that Granite with windows returns are those without its sinks."""
    build("granite_swa", text_class(hf.CONFIG_MAPPING["granite_swa"])).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    assert attnscope.check(TEXT, model=tmp_path).passed
