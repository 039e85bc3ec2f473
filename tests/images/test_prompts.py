"""Texts with pictures: weights equal those of eager transformers, and every placeholder is the place of its name."""

import json
import re
import shlex
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import attnscope
from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.cli import main
from attnscope.engines.transformers.prompts import Recorded, open_processor
from attnscope.findings.images import row_shares
from attnscope.studies.explore.scenes import text_scene
from tests.helpers.tiny_vision import picture
from tests.helpers.tiny_vlm import PROMPTS, QUESTION, PromptRow

Image = pytest.importorskip("PIL.Image")
ROWS = {row.name: row for row in PROMPTS}
SHORT = ("qwen2_vl", "idefics3")
NEEDS = {"smolvlm": "num2words"}
_EVERY = [
    pytest.param(name, marks=[] if name in SHORT else pytest.mark.exhaustive) for name in ROWS
]
MIXES = re.compile(
    r"(vision|visual).*att.*\.(out_proj|proj|projection_layer|o_proj)\.(linear\.)?(weight|bias)"
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory):
    """A function that saves a model with a chat template once, and returns its folder and itself."""
    saved: dict[str, tuple[Path, transformers.PreTrainedModel]] = {}

    def save(name: str) -> tuple[Path, transformers.PreTrainedModel]:
        if name in NEEDS:
            pytest.importorskip(NEEDS[name], exc_type=ImportError)
        if name not in saved:
            folder = tmp_path_factory.mktemp(name)
            saved[name] = folder, ROWS[name].save(folder, template=True)
        return saved[name]

    return save


def _inputs(
    row: PromptRow, folder: Path, model: transformers.PreTrainedModel, array: np.ndarray
) -> dict[str, Any]:
    """What the checkpoint's own processor makes of the prompt and a picture."""
    processor = open_processor(folder, model.config)
    processor.recorded = Recorded()
    prompt = f"<|user|>{row.image}{QUESTION}<|assistant|>"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PaliGemma's
        made = processor(images=[Image.fromarray(array)], text=[prompt], return_tensors="pt")
    return {name: value for name, value in made.items() if name != "labels"}


@pytest.mark.parametrize("name", _EVERY)
def test_weights_equal_eager_transformers(models, name: str) -> None:
    folder, model = models(name)
    row = ROWS[name]
    text = attnscope.inspect(
        QUESTION, image=picture(), model=str(folder), layer="all", head="all", stages="weights"
    ).data.texts[0]
    with torch.inference_mode():
        eager = model(**_inputs(row, folder, model, picture()), output_attentions=True).attentions
    expected = torch.cat([weights[0] for weights in eager]).numpy()
    np.testing.assert_allclose(text.heads.stages["weights"], expected, atol=1e-5, rtol=1e-5)
    assert [grid.shape for grid in text.images] == row.shapes
    shares = row_shares(text.heads.stages["weights"], text.images, text.tokens)
    np.testing.assert_allclose(sum(shares.values()), 1, atol=1e-5)
    assert {"image", "special", "text"} <= shares.keys()
    names = [text.tokens[position].text for grid in text.images for position in grid.tokens.ravel()]
    assert len(set(names)) == len(names) == sum(r * c for r, c in row.shapes)


@pytest.mark.parametrize("name", _EVERY)
def test_painting_the_picture_changes_the_token_of_that_place(models, name: str) -> None:
    """Attention of the vision tower is switched off, so that no patch reads another."""
    folder, model = models(name)
    row = ROWS[name]
    text = attnscope.inspect(QUESTION, image=picture(), model=str(folder)).data.texts[0]
    grid = text.images[0]
    height, width = grid.pixels.shape[:2]
    rows, columns = grid.shape
    exact = picture(height, width)  # of the size that the model sees
    state = {n: p.clone() for n, p in model.named_parameters() if MIXES.search(n)}
    assert state
    try:
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if parameter_name in state:
                    parameter.zero_()
        seen = attnscope.inspect(QUESTION, image=exact, model=str(folder)).data.texts[0].images[0]
        assert seen.shape == grid.shape
        plain = embedded(model, _inputs(row, folder, model, exact))
        for y, x in ((0, columns - 1), (rows - 1, 0), (rows // 2, columns // 2 - 1)):
            painted = exact.copy()
            box = (
                slice(y * height // rows, (y + 1) * height // rows),
                slice(x * width // columns, (x + 1) * width // columns),
            )
            painted[box] = 255 - painted[box]
            changes = (embedded(model, _inputs(row, folder, model, painted)) - plain).abs().amax(-1)
            changed = [n for n in seen.tokens.ravel() if changes[n] > 1e-4]
            assert changed == [seen.tokens[y, x]]
            assert text.tokens[changed[0]].text == f"image:{y},{x}"
    finally:
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if parameter_name in state:
                    parameter.copy_(state[parameter_name])


def embedded(model: transformers.PreTrainedModel, inputs: dict[str, Any]) -> torch.Tensor:
    """Return what the first layer of the language model takes, (tokens, width)."""
    layer = next(
        m for n, m in model.named_modules() if re.search(r"(language|text)_model.*layers\.0$", n)
    )
    taken: list[torch.Tensor] = []
    handle = layer.register_forward_pre_hook(
        lambda _, args, kwargs: taken.append(args[0] if args else kwargs["hidden_states"]),
        with_kwargs=True,
    )
    try:
        with torch.inference_mode():
            model(**inputs)
    finally:
        handle.remove()
    return taken[0][0]


@pytest.mark.parametrize("name", _EVERY)
def test_a_text_goes_on_as_transformers_continues_it(models, name: str) -> None:
    """With its cache: after the prompt, the model takes one token at a time."""
    folder, _ = models(name)
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, attn_implementation="eager"
    )
    inputs = _inputs(ROWS[name], folder, model, picture())
    prompt = inputs["input_ids"].shape[1]
    with torch.inference_mode():
        expected = model.generate(**inputs, max_new_tokens=4, do_sample=False)[0, prompt:].tolist()
    widths: list[int] = []
    handle = model.register_forward_pre_hook(
        lambda _, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    text = attnscope.inspect(QUESTION, image=picture(), model=model, generate=4).data.texts[0]
    handle.remove()
    made = [token.id for token in text.tokens if token.made]
    assert made == expected[: len(made)] and len(made) > 1
    assert widths[: len(made)] == [prompt, *[1] * (len(made) - 1)]
    assert text.images[0].tokens.max() < len(text.tokens) - len(made)


def test_a_model_that_generates_a_placeholder_is_refused_in_one_line(models) -> None:
    folder, _ = models("qwen2_vl")
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder)

    def prefer(module: torch.nn.Module, taken: Any, logits: torch.Tensor) -> None:
        logits[..., model.config.image_token_id] = 1e6

    model.lm_head.register_forward_hook(prefer)
    with pytest.raises(AttnscopeError, match="finds other pictures in the text") as caught:
        attnscope.inspect(QUESTION, image=picture(), model=model, generate=2)
    assert "\n" not in str(caught.value)


def test_a_page_names_the_picture_in_its_text_and_the_command_that_was_typed(
    models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = models("qwen2_vl")
    monkeypatch.chdir(tmp_path)
    Image.fromarray(picture()).save("a cat.png")
    report = attnscope.inspect(
        QUESTION, image="a cat.png", model=str(folder), layer=1, head=0, query="left"
    ).data
    scene = text_scene(report, report.texts[0])
    shown = "".join(passage.span.text for passage in scene.passages)
    assert shown == f"<|user|><|vision_start|> [image] <|vision_end|>{QUESTION}<|assistant|>"
    assert scene.command is not None
    words = shlex.split(
        scene.command.spell("--layer", "1", "--head", "0", "--query", "left", "-o", "again.json")
    )
    assert words[:5] == ["attnscope", "run", QUESTION, "--image", "a cat.png"]
    assert main(words[1:]) == 0
    again = attnscope.load("again.json").data.texts[0]
    np.testing.assert_array_equal(
        again.heads.stages["weights"], report.texts[0].heads.stages["weights"]
    )
    in_memory = attnscope.inspect(QUESTION, image=picture(), model=str(folder)).data
    assert text_scene(in_memory, in_memory.texts[0]).command is None


def test_special_tokens_keep_their_characters_if_the_processor_cuts_words_otherwise(models) -> None:
    """For this model, transformers opens another tokenizer than that of the folder."""
    folder, _ = models("qwen3_5")
    text = attnscope.inspect(QUESTION, image=picture(), model=str(folder)).data.texts[0]
    special = [
        text.text[token.start : token.end]
        for token in text.tokens
        if token.special and token.start is not None
    ]
    assert special == ["<|user|>", "<|vision_start|>", "<|vision_end|>", "<|assistant|>"]


def test_words_keep_their_characters(models) -> None:
    folder, _ = models("idefics3")
    text = attnscope.inspect(QUESTION, image=picture(), model=str(folder)).data.texts[0]
    assert text.text == f"<|user|><image>{QUESTION}<|assistant|>"
    words = [token for token in text.tokens if token.start is not None and not token.special]
    assert [text.text[token.start : token.end] for token in words] == QUESTION.split()
    assert [token.text for token in words] == QUESTION.split()


def test_several_pictures_in_a_chat(
    models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = models("qwen2_vl")
    monkeypatch.chdir(tmp_path)
    Image.fromarray(picture(seed=1)).save("first.png")
    parts = [
        {"type": "image", "image": "first.png"},
        {"type": "text", "text": QUESTION},
        {"type": "image"},
    ]
    messages = [{"role": "user", "content": parts}]
    text = attnscope.inspect(
        messages=messages, image=picture(seed=2), model=str(folder)
    ).data.texts[0]
    assert [(grid.prefix, grid.name) for grid in text.images] == [
        ("image[0]", "first.png"),
        ("image[1]", "image 0"),
    ]
    assert text.images[0].tokens.max() < next(
        n for n, t in enumerate(text.tokens) if t.text == "what"
    )
    assert text.images[1].tokens.min() > next(
        n for n, t in enumerate(text.tokens) if t.text == "left"
    )
    assert {"image[0]", "image[1]", "user 1"} <= set(text.spans.text.names)
    with pytest.raises(UsageError, match="a picture without a file"):
        attnscope.inspect(messages=messages, model=str(folder))
    with pytest.raises(UsageError, match="no message has a place for"):
        attnscope.inspect(messages=messages, image=[picture(), picture()], model=str(folder))


def test_without_a_template_pictures_come_first(models, tmp_path: Path) -> None:
    ROWS["llava"].save(tmp_path)
    text = attnscope.inspect(QUESTION, image=picture(), model=str(tmp_path)).data.texts[0]
    assert text.text == f"<image>{QUESTION}"
    written = attnscope.inspect("what <image> is", image=picture(), model=str(tmp_path)).data.texts[
        0
    ]
    assert [token.text for token in written.tokens][-2:] == ["image:3,3", "is"]
    with pytest.raises(UsageError, match="has 2 places for pictures"):
        attnscope.inspect("<image> <image>", image=picture(), model=str(tmp_path))


def test_two_pictures_have_the_marks_that_the_model_knows_between_them(tmp_path: Path) -> None:
    model = ROWS["qwen2_vl"].save(tmp_path)
    pictures = [picture(), picture(seed=1)]
    text = attnscope.inspect(
        QUESTION, image=pictures, model=str(tmp_path), layer="all", head="all", stages="weights"
    )
    (found,) = text.data.texts
    pad = "<|vision_start|><|image_pad|><|vision_end|>"
    assert found.text == f"{pad}{pad}{QUESTION}"
    processor = open_processor(tmp_path, model.config)
    processor.recorded = Recorded()
    inputs = processor(images=pictures, text=[found.text], return_tensors="pt")
    assert inputs["input_ids"][0].tolist() == [token.id for token in found.tokens]
    with torch.no_grad():
        expected = torch.stack(model(**inputs, output_attentions=True).attentions)[:, 0]
    np.testing.assert_allclose(text.weights, expected.numpy(), atol=2e-6)
    with pytest.raises(UsageError, match="no token is between two pictures"):
        attnscope.inspect(
            f"<|image_pad|><|image_pad|>{QUESTION}", image=pictures, model=str(tmp_path)
        )


def test_a_model_without_a_processor_is_refused(models, tmp_path: Path) -> None:
    ROWS["llava"].save(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink(missing_ok=True)
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "NoProcessor"}))
    with pytest.raises(AttnscopeError, match="no processor of texts with pictures for 'llava'"):
        attnscope.inspect(QUESTION, image=picture(), model=str(tmp_path))
    assert len(attnscope.inspect(QUESTION, model=str(tmp_path)).data.texts[0].tokens) == 6


def test_a_package_that_a_processor_lacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.models.smolvlm.processing_smolvlm.num2words", None)
    ROWS["smolvlm"].save(tmp_path)
    with pytest.raises(
        AttnscopeError, match=r"cannot open its processor.*num2words.*install that package"
    ):
        attnscope.inspect(QUESTION, image=picture(), model=str(tmp_path))
