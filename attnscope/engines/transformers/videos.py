"""Make values of the frames of a video as Qwen's video processors do, with Pillow in place of torchvision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import as_object, read_json
from attnscope.engines.transformers.pictures import Clip
from attnscope.findings.arrays import Array

VIDEO_VALUES = "pixel_values_videos"
VIDEO_GRIDS = "video_grid_thw"  # groups of frames, rows and columns of the patches of each video
_FILE = "video_preprocessor_config.json"
_LARGEST = 1 << 26  # bytes of that file
_WHOLE = "Qwen2VLVideoProcessor"  # which reads every frame
# of the class Qwen3VLVideoProcessor, whose numbers of pixels are those of all frames
_SAMPLED = "Qwen3VLVideoProcessor"
_FRAMES_A_SECOND = 2
_FRAMES = 4, 768


@dataclass(frozen=True)
class FrameProcessor:
    """Takes the place of a checkpoint's video processor; frames go through its image processor."""

    images: Any  # an image processor with the settings of videos
    settings: Mapping[str, Any]

    @property
    def merge_size(self) -> int:
        """Rows and columns of patches that become one token."""
        return int(self.images.merge_size)

    @property
    def temporal_patch_size(self) -> int:
        """Frames that become one token."""
        return int(self.images.temporal_patch_size)

    def __call__(
        self, videos: Sequence[Array], video_metadata: Sequence[Any], **_: Any
    ) -> dict[str, Any]:
        """Return values and grids of videos.

        Args:
            videos: 8-bit RGB, (frames, height, width, 3) each.
            video_metadata: Frames and frames a second of each; gets the frames that are sampled.
        """
        values = []
        grids = []
        for frames, metadata in zip(videos, video_metadata, strict=True):
            metadata.frames_indices = self._sampled(len(frames), metadata.fps)
            of_video, grid = self._patches(frames[metadata.frames_indices])
            values.append(of_video)
            grids.append(grid)
        return {
            VIDEO_VALUES: np.concatenate(values),
            VIDEO_GRIDS: np.array(grids),
            "video_metadata": list(video_metadata),
        }

    @property
    def _samples(self) -> bool:
        return self.settings.get("video_processor_type") == _SAMPLED

    def _sampled(self, count: int, frames_a_second: float) -> list[int]:
        if not self.settings.get("do_sample_frames", self._samples):
            return list(range(count))
        wanted = count / frames_a_second * self.settings.get("fps", _FRAMES_A_SECOND)
        least, largest = (
            self.settings.get(name, number)
            for name, number in zip(("min_frames", "max_frames"), _FRAMES, strict=True)
        )
        wanted = min(max(int(wanted), least), largest, count)
        indices: list[int] = np.linspace(0, count - 1, wanted).round().astype(int).tolist()
        return indices

    def _patches(self, frames: Array) -> tuple[Array, list[int]]:
        """Return the patches of a video, (patches, values), and its grid."""
        together = self.temporal_patch_size
        shared = len(frames) if self._samples else 1
        size = {
            name: pixels // shared
            for name, pixels in dict(self.images.size).items()
            if pixels is not None
        }
        made = self.images(list(frames), size=size, return_tensors="np")
        _, rows, columns = made["image_grid_thw"][0].tolist()
        # every frame stands in its patches as often as there are frames in a group
        patches = made["pixel_values"].reshape(len(frames), rows * columns, 3, together, -1)
        missing = -len(frames) % together
        patches = np.concatenate([patches, *[patches[-1:]] * missing])
        groups = patches.reshape(-1, together, *patches.shape[1:])
        joined = np.stack([groups[:, n, :, :, n] for n in range(together)], axis=3)
        return joined.reshape(-1, 3 * together * joined.shape[-1]), [len(groups), rows, columns]


def open_frame_processor(path: Path, images: Any) -> FrameProcessor | None:
    """Open a folder's settings of videos, which are those of pictures if it has none; None for videos of another kind."""
    file = path / "processor_config.json"
    settings = _read(file).get("video_processor")
    if not isinstance(settings, dict):
        file = path / _FILE
        settings = _read(file)
    if settings.get("video_processor_type", _WHOLE) not in (_WHOLE, _SAMPLED):
        return None
    if settings.get("cap_pixels_per_frame"):
        message = "cap_pixels_per_frame: expected false or null, got true"
        raise AttnscopeError(message, where=file, hint="remove it")
    return FrameProcessor(type(images).from_dict(settings) if settings else images, settings)


def _read(file: Path) -> dict[str, Any]:
    if file.is_file():
        return as_object(read_json(file, cap=_LARGEST), str(file))
    return {}


def frames_of(clip: Clip) -> Array:
    """Return the frames of a clip as an array, (frames, height, width, 3)."""
    return np.stack([np.asarray(frame) for frame in clip.frames])
