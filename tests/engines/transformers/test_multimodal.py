"""Models of text and images, given text alone: a language model around them goes on with it, a text tower is opened."""

import pytest
import torch
import transformers as hf

import attnscope
from tests.helpers.architectures import write_tokenizer
from tests.helpers.tiny_models import raise_weights

TEXT = "the bank by river"
_TEXT = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 48, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_IMAGE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 40,
          "image_size": 16, "patch_size": 4}  # fmt: skip
_DECODER = {**_TEXT, "num_key_value_heads": 2}
LANGUAGE = {
    "llava": lambda: hf.LlavaForConditionalGeneration(
        hf.LlavaConfig(
            text_config=hf.LlamaConfig(**_DECODER),
            vision_config=hf.CLIPVisionConfig(**_IMAGE),
            image_token_index=59,
        )
    ),
    "gemma3": lambda: hf.Gemma3ForConditionalGeneration(
        hf.Gemma3Config(
            text_config={**_DECODER, "head_dim": 8, "sliding_window": 3},
            vision_config=_IMAGE,
            mm_tokens_per_image=4,
        )
    ),
}
TOWERS = {
    "clip": lambda: hf.CLIPModel(
        hf.CLIPConfig(text_config=_TEXT, vision_config=_IMAGE, projection_dim=16)
    ),
    "siglip": lambda: hf.SiglipModel(
        hf.SiglipConfig(text_config={**_TEXT, "projection_size": 32}, vision_config=_IMAGE)
    ),
}


def _saved(make, folder):
    torch.manual_seed(3)
    model = raise_weights(make().eval())
    model.set_attn_implementation("eager")
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def _ids(text):
    return torch.tensor([[token.id for token in text.tokens]])


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_language_model_around_images_predicts_and_goes_on(name, tmp_path):
    model = _saved(LANGUAGE[name], tmp_path)
    report = attnscope.inspect(TEXT, model=tmp_path, engine="transformers", layer="all", head="all")
    ids = _ids(report.data.texts[0])
    with torch.inference_mode():
        expected = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True)
    torch.testing.assert_close(
        torch.tensor(report.weights), torch.cat(expected.attentions), rtol=0, atol=1e-5
    )
    prediction = report.predictions[-1]
    logits = expected.logits[0, prediction.position]
    assert [token.id for token in prediction.tokens] == logits.topk(
        len(prediction.tokens)
    ).indices.tolist()
    assert [token.logit for token in prediction.tokens] == pytest.approx(
        logits.topk(len(prediction.tokens)).values.tolist(), abs=1e-4
    )
    longer = attnscope.inspect(TEXT, model=tmp_path, engine="transformers", generate=5).data.texts[
        0
    ]
    prompt = torch.tensor([[token.id for token in longer.tokens if not token.made]])
    with torch.inference_mode():
        continued = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=5, do_sample=False
        )
    assert _ids(longer).tolist() == continued.tolist()


@pytest.mark.parametrize("name", TOWERS)
def test_the_text_tower_of_a_model_that_compares_is_opened(name, tmp_path):
    model = _saved(TOWERS[name], tmp_path)
    report = attnscope.inspect(TEXT, model=tmp_path, engine="transformers", layer="all", head="all")
    with torch.inference_mode():
        expected = model.text_model(
            input_ids=_ids(report.data.texts[0]), output_attentions=True
        ).attentions
    torch.testing.assert_close(torch.tensor(report.weights), torch.cat(expected), rtol=0, atol=1e-5)
    assert not report.predictions
    assert "vision_model" in report.data.provenance.notes[0]
