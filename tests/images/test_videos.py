"""Moving pictures for models that take videos: frames are grids, and weights equal those of eager transformers."""

import json
import re
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.cli import main
from attnscope.engines.transformers.prompts import open_processor
from attnscope.engines.transformers.videos import VIDEO_GRIDS, VIDEO_VALUES, open_frame_processor
from attnscope.findings.images import row_shares
from tests.helpers.tiny_vision import picture
from tests.helpers.tiny_vlm import PROMPTS, QUESTION
from tests.images.test_prompts import MIXES, embedded

Image = pytest.importorskip("PIL.Image")
ROWS = {row.name: row for row in PROMPTS}
TAKE_VIDEOS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
PATCH = 4  # pixels
MERGED = 2  # patches in a row and column of a token
TOGETHER = 2  # frames of a token
SIZE = (32, 48)  # which the models see as it is
SHAPE = (SIZE[0] // PATCH // MERGED, SIZE[1] // PATCH // MERGED)
_EVERY = [
    pytest.param(name, marks=[] if name == "qwen2_5_vl" else pytest.mark.exhaustive)
    for name in TAKE_VIDEOS
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """Return a function that saves a model once, and returns its folder and itself."""

    @cache
    def save(name: str) -> tuple[Path, Any]:
        folder = tmp_path_factory.mktemp(name)
        return folder, ROWS[name].save(folder, template=True)

    return save


def clip(count: int = 5) -> np.ndarray:
    return np.stack([picture(*SIZE, seed=seed) for seed in range(count)])


def write(frames: np.ndarray, path: Path, milliseconds: int = 500) -> Path:
    """Write frames as a moving PNG, which keeps every colour."""
    first, *others = [Image.fromarray(frame) for frame in frames]
    first.save(path, save_all=True, append_images=others, duration=milliseconds)
    return path


def patches(frames: np.ndarray, processor: Any) -> np.ndarray:
    """Return values of patches, in the order that Qwen's models take them."""
    values = (frames / 255 - np.array(processor.image_mean)) / np.array(processor.image_std)
    if len(values) % TOGETHER:
        values = np.concatenate([values, values[-1:]])
    side = PATCH * MERGED
    found = [
        values[t : t + TOGETHER, y + dy : y + dy + PATCH, x + dx : x + dx + PATCH]
        .transpose(3, 0, 1, 2)
        .ravel()
        for t in range(0, len(values), TOGETHER)
        for y in range(0, SIZE[0], side)
        for x in range(0, SIZE[1], side)
        for dy in range(0, side, PATCH)
        for dx in range(0, side, PATCH)
    ]
    return np.array(found, dtype=np.float32)


def inputs_of(text: Any, frames: np.ndarray, folder: Path, model: Any) -> dict[str, Any]:
    """Return what transformers' model takes for the tokens of a report."""
    processor = open_processor(folder, model.config)
    ids = torch.tensor([[token.id for token in text.tokens]])
    taken = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": 2 * (ids == model.config.video_token_id),
        VIDEO_VALUES: torch.from_numpy(patches(frames, processor.image_processor)),
        VIDEO_GRIDS: torch.tensor(
            [[-(-len(frames) // TOGETHER), *(PATCH // 2 * n for n in SHAPE)]]
        ),
    }
    if model.config.model_type == "qwen2_5_vl":  # two frames a second, two to a token
        taken["second_per_grid_ts"] = torch.tensor([1.0])
    return taken


@pytest.mark.parametrize("name", _EVERY)
def test_weights_of_a_clip_equal_eager_transformers(
    models: Callable[[str], Any], tmp_path: Path, name: str
) -> None:
    folder, model = models(name)
    file = write(clip(), tmp_path / "clip.png")
    text = attnscope.inspect(
        QUESTION, image=file, model=str(folder), layer="all", head="all", stages="weights"
    ).data.texts[0]
    with torch.inference_mode():
        eager = model(**inputs_of(text, clip(), folder, model), output_attentions=True).attentions
    expected = torch.cat([weights[0] for weights in eager if weights is not None]).numpy()
    np.testing.assert_allclose(text.heads.stages["weights"], expected, atol=1e-5)
    assert [(grid.prefix, grid.shape) for grid in text.images] == [
        (f"frame[{n}]", SHAPE) for n in range(3)
    ]
    for grid, frame in zip(text.images, clip()[::TOGETHER], strict=True):
        np.testing.assert_array_equal(grid.pixels, frame)
    shares = row_shares(text.heads.stages["weights"], text.images, text.tokens)
    np.testing.assert_allclose(sum(shares.values()), 1, atol=1e-5)


@pytest.mark.parametrize("name", _EVERY)
def test_painting_a_frame_changes_the_token_of_that_place(
    models: Callable[[str], Any], tmp_path: Path, name: str
) -> None:
    """Attention of the vision tower is switched off, so that no patch reads another."""
    folder, saved = models(name)
    model = type(saved).from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        towers = [parameter for n, parameter in model.named_parameters() if MIXES.search(n)]
        for parameter in towers:
            parameter.zero_()
    assert towers
    file = write(clip(), tmp_path / "clip.png")
    text = attnscope.inspect(QUESTION, image=file, model=str(folder)).data.texts[0]
    plain = embedded(model, inputs_of(text, clip(), folder, model))
    side = PATCH * MERGED
    for frame, y, x in ((0, 0, 5), (3, 3, 0), (4, 2, 2)):
        painted = clip()
        box = painted[frame, y * side : (y + 1) * side, x * side : (x + 1) * side]
        box[:] = 255 - box
        changes = (embedded(model, inputs_of(text, painted, folder, model)) - plain).abs().amax(-1)
        changed = (changes > 1e-4).nonzero().flatten().tolist()
        assert [text.tokens[n].text for n in changed] == [f"frame[{frame // TOGETHER}]:{y},{x}"]
        assert changed == [text.images[frame // TOGETHER].tokens[y, x]]


@pytest.mark.parametrize("name", _EVERY)
def test_a_text_about_a_clip_goes_on_as_transformers_continues_it(
    models: Callable[[str], Any], tmp_path: Path, name: str
) -> None:
    folder, _ = models(name)
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, attn_implementation="eager"
    )

    def forbid(module: torch.nn.Module, taken: Any, logits: torch.Tensor) -> None:
        logits[..., [model.config.image_token_id, model.config.video_token_id]] = -1e6

    model.lm_head.register_forward_hook(forbid)
    file = write(clip(), tmp_path / "clip.png")
    text = attnscope.inspect(QUESTION, image=file, model=model, generate=4).data.texts[0]
    made = [token.id for token in text.tokens if token.made]
    prompt = SimpleNamespace(tokens=[token for token in text.tokens if not token.made])
    with torch.inference_mode():
        expected = model.generate(
            **inputs_of(prompt, clip(), folder, model), max_new_tokens=4, do_sample=False
        )[0, len(prompt.tokens) :].tolist()
    assert made == expected[: len(made)] and len(made) > 1


def test_a_screen_has_a_map_of_every_frame(
    models: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a text that is too long for all rows and columns."""
    folder, _ = models("qwen2_vl")
    file = write(clip(), tmp_path / "clip.png")
    words = ["run", QUESTION, "--image", str(file), "-m", str(folder), "--layer", "0"]
    assert main([*words, "--head", "1"]) == 0
    screen = capsys.readouterr().out
    assert re.search(r"frame\[0\] L0H1.*frame\[1\] L0H1.*frame\[2\] L0H1", screen)
    assert "3 frames of 4 × 6 patches" in screen


def test_frames_are_selected_and_are_spans(models: Callable[[str], Any], tmp_path: Path) -> None:
    folder, _ = models("qwen2_vl")
    write(clip(4), tmp_path / "clip.png")
    picture_first = [picture(*SIZE, seed=9), tmp_path / "clip.png"]
    with attnscope.open_model(str(folder)) as model:

        def inspect(**options: Any) -> Any:
            return model.inspect(
                QUESTION, layer=1, head=0, stages="weights", spans="images", **options
            ).data.texts[0]

        alone = inspect(image=tmp_path / "clip.png", query=["frame[1]:2,3", "frame[0]:0,0-0,1"])
        both = inspect(image=picture_first, query="frame[1][1]:2,3")
        measured = model.heads(
            QUESTION, image=tmp_path / "clip.png", query="left", key="frame[1]"
        ).data
        whole = inspect(image=tmp_path / "clip.png")
    assert alone.queries == sorted(
        [int(alone.images[1].tokens[2, 3]), *alone.images[0].tokens[0, :2].tolist()]
    )
    assert [grid.prefix for grid in both.images] == ["image[0]", "frame[0][1]", "frame[1][1]"]
    assert both.queries == [both.images[2].tokens[2, 3]]
    assert both.images[0].tokens.max() < both.images[1].tokens.min()
    assert {"frame[0]", "frame[1]"} <= set(alone.spans.text.names)
    left = next(n for n, token in enumerate(whole.tokens) if token.text == "left")
    expected = whole.heads.stages["weights"][0, left, whole.images[1].tokens].sum()
    assert measured.values[1, 0] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("pixels", [64 * 400, 64 * 40])
def test_frames_are_sampled_and_resized_as_the_checkpoint_says(
    models: Callable[[str], Any], tmp_path: Path, pixels: int
) -> None:
    """20 frames at 10 a second are 4 at Qwen3-VL's 2 a second, which share the pixels."""
    folder, model = models("qwen3_vl")
    images = open_processor(folder, model.config).image_processor
    settings = {
        **images.to_dict(),
        "size": {"shortest_edge": 64, "longest_edge": pixels},
        "video_processor_type": "Qwen3VLVideoProcessor",
    }
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings, default=str))
    frames = open_frame_processor(tmp_path, images)
    assert frames is not None
    (tmp_path / "processor_config.json").write_text(
        json.dumps({"video_processor": {"video_processor_type": "Glm4vVideoProcessor"}})
    )
    assert open_frame_processor(tmp_path, images) is None
    metadata = SimpleNamespace(fps=10.0)
    made = frames([clip(20)], [metadata])
    assert metadata.frames_indices == [0, 6, 13, 19]
    groups, rows, columns = made[VIDEO_GRIDS][0]
    assert groups == 2
    side = PATCH * MERGED
    larger = np.sqrt(max(1.0, 4 * SIZE[0] * SIZE[1] / pixels))
    assert (rows, columns) == tuple(int(n / larger // side) * MERGED for n in SIZE)
    if larger == 1:
        np.testing.assert_allclose(
            made[VIDEO_VALUES], patches(clip(20)[[0, 6, 13, 19]], images), atol=1e-5
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = pytest.importorskip("torchvision", exc_type=ImportError)
    assert theirs
    reference = transformers.Qwen3VLVideoProcessor(
        patch_size=PATCH, size=settings["size"], image_mean=images.image_mean,
        image_std=images.image_std,
    )  # fmt: skip
    video = transformers.video_utils.VideoMetadata(20, 10.0)
    expected = reference([clip(20)], video_metadata=[video], return_tensors="pt")
    np.testing.assert_array_equal(made[VIDEO_GRIDS], expected[VIDEO_GRIDS])
    np.testing.assert_allclose(made[VIDEO_VALUES], expected[VIDEO_VALUES], atol=0.05)


def test_a_model_of_pictures_sees_the_first_frame_and_a_film_is_refused(
    tmp_path: Path,
) -> None:
    ROWS["llava"].save(tmp_path / "llava")
    file = write(clip(3), tmp_path / "clip.png")
    report = attnscope.inspect(QUESTION, image=file, model=str(tmp_path / "llava")).data
    assert [grid.prefix for grid in report.texts[0].images] == ["image"]
    assert any("the first of 3 frames is shown" in note for note in report.texts[0].notes)
    film = tmp_path / "film.mp4"
    film.write_bytes(b"\0\0\0\x18ftypmp42" + b"\0" * 64)
    with pytest.raises(AttnscopeError, match=r"is not a picture; ffmpeg -i .*film.mp4") as caught:
        attnscope.inspect(QUESTION, image=film, model=str(tmp_path / "llava"))
    assert "\n" not in str(caught.value)
