"""Sound as a model of transformers takes it: features by the checkpoint's own extractor, and the tokens they become.

A model with a decoder for text writes down what it hears, or is given what was said. Its encoder, or a model that has
nothing else, attends over frames of the sound.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace as struct_with
from torch import Tensor, nn

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.base.files.sound import SoundFile, open_sound
from attnscope.checkpoints.tokenization.given import join_tokens
from attnscope.checkpoints.tokenization.pieces import piece_bytes, readable_piece, trim_span
from attnscope.engines.torch_setup import choose_device
from attnscope.engines.transformers.interface import OWN_ATTENTION, first_queries
from attnscope.engines.transformers.model_class import may_fail, quiet
from attnscope.findings.hints import Hint
from attnscope.findings.sound import Sound, frame_name
from attnscope.findings.tokens import Token
from attnscope.model.module_hooks import listening
from attnscope.request.media import MediaText, Speech
from attnscope.request.run_config import TextInput

SOUNDS = "input_features", "input_values"
# Towers from which their whole model hides the padding after a sound.
_HIDING_PADDING = ("qwen2_audio_encoder",)
WINDOW = 30.0  # seconds that are read at a time
_PROBED = 16_000  # samples of a sound that is small: a second, for nearly every model
# a model that repeats itself is stopped here, as the authors of Moonshine advise
_TOKENS_A_SECOND = 6.5
_FRAMES = 1500  # tokens of a window, by which its multiplications are estimated
_TIME = 0.02  # seconds between the marks of time that Whisper writes


@dataclass(frozen=True)
class FrameLayout:
    """How a model makes tokens of features."""

    stride: int  # values on the axis of time that a token is further than the one before
    bands: int = 1  # tokens of each frame, one for every band of frequencies
    before: tuple[str, ...] = ()  # names of the model's own tokens, before the frames


def _without_padding(n_tokens: int, n_features: int) -> np.ndarray:
    """Return the mask that Qwen2-Audio adds to the scores of its tower, (1, 1, Q, K): −inf on tokens of padding.

    `n_features`: values on the axis of time that are of the sound; the tower makes a token of two.
    """
    mask = np.zeros((1, 1, n_tokens, n_tokens), np.float32)
    mask[..., (n_features - 1) // 2 + 1 :] = -np.inf
    return mask


def probe_sound(model: Any) -> dict[str, Tensor]:
    """Return noise that a sound model takes: as short as it may be, as features or as samples."""
    config = model.config
    noise = torch.randn(1, _PROBED, generator=torch.Generator().manual_seed(0)).to(
        model.device, model.dtype
    )
    bins = int(getattr(config, "num_mel_bins", None) or 80)
    if model.main_input_name == "input_features":
        frames = 2 * getattr(config, "max_source_positions", 1500)
        features = noise.flatten()[:frames].expand(bins, frames)[None]
    elif getattr(config, "frequency_stride", None) is not None:
        features = noise.flatten()[: config.max_length, None].expand(config.max_length, bins)[None]
    else:
        features = noise
    ids = torch.full((1, 2), min(5, getattr(config, "vocab_size", 2) - 1), device=model.device)
    return {model.main_input_name: features} | (
        {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
    )


def find_frames(model: Any, inputs: dict[str, Tensor], where: str | Path) -> FrameLayout:
    """Return how far apart the tokens of a sound are: the product of the strides of the convolutions before them."""
    strides: list[tuple[int, ...]] = []

    def on_convolution(module: nn.Conv1d | nn.Conv2d, *_: Any) -> None:
        strides.append(tuple(map(int, module.stride)))

    convolutions = [
        module for module in model.modules() if isinstance(module, nn.Conv1d | nn.Conv2d)
    ]
    handles = [module.register_forward_hook(on_convolution) for module in convolutions]
    hint = "attnscope shows models that take text, pictures or sound"
    with listening(handles), may_fail("transformers cannot run it on a sound", where, hint):
        queries = first_queries(model, model, inputs)
    config = model.config
    n_tokens = 0 if queries is None else queries.shape[2]
    if n_tokens and strides and len(strides[0]) == 2:  # a picture of the spectrum (AST)
        bands = (config.num_mel_bins - config.patch_size) // config.frequency_stride + 1
        frames = (config.max_length - config.patch_size) // config.time_stride + 1
        before = ("cls", "distillation")[: n_tokens - bands * frames]
        if n_tokens == len(before) + bands * frames:
            return FrameLayout(config.time_stride, bands, before)
    elif n_tokens and strides:
        return FrameLayout(prod(stride for (stride,) in strides))
    message = f"the tokens of '{config.model_type}' are not frames of a sound"
    raise AttnscopeError(
        message,
        where=where,
        hint="attnscope shows sound models whose tokens are frames, or patches",
    )


def open_extractor(processor: Any) -> Any:
    """Return the feature extractor of a processor, or of a checkpoint's folder."""
    from transformers import AutoFeatureExtractor

    extractor = getattr(processor, "feature_extractor", processor)
    if not isinstance(extractor, str | Path):
        return extractor
    path = Path(extractor)
    file = path / "preprocessor_config.json"
    if not file.is_file() and not (path / "processor_config.json").is_file():
        hint = "download it: it says at which rate the model hears, and what its features are"
        raise AttnscopeError("there is no such file", where=file, hint=hint)
    with may_fail("transformers cannot use it", file), quiet():
        opener: Any = AutoFeatureExtractor
        extractor = opener.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    if type(getattr(extractor, "sampling_rate", None)) is not int:
        raise AttnscopeError("has no sampling_rate", where=file)
    return extractor


@dataclass(frozen=True)
class SoundReader:
    """Reads windows of a sound for a model, and writes down what the model hears in each."""

    model: Any  # the model without heads
    predicting: Any  # the same model with its head for text; None for one without
    part: str  # whose attention is shown
    layout: FrameLayout
    tokenizer: Any
    open_extractor: Callable[[], Any]
    open_generation: Callable[[], Any]  # returns the GenerationConfig of the checkpoint
    device: str | None  # where it runs, as `--device` names it; None for where the model is

    @property
    def writes(self) -> bool:
        """Whether the tokens are those of text that the model writes."""
        return self.part in ("cross", "decoder")

    def __call__(self, text: TextInput) -> MediaText:
        """Return a window of a sound as the model takes it."""
        if text.pair is not None or text.context is not None:
            option = arg("pair") if text.pair is not None else arg("context")
            raise UsageError(
                "the model hears a sound and reads no such text", where=option, hint="remove it"
            )
        if text.text and not self.writes:
            hint = f"leave the text out{', or use ' + arg('part', 'cross') if self.part else ''}"
            raise UsageError(
                "frames of a sound attend to each other, without a text",
                where=text.where,
                hint=hint,
            )
        if len(text.media) > 1:
            raise UsageError(
                f"given {len(text.media)} times",
                where=arg("audio"),
                hint="run the sounds one by one",
            )
        self._move()
        (medium,) = text.media
        file = open_sound(Path(medium.value))
        if text.text and file.seconds > WINDOW:
            message = f"a text is aligned with {WINDOW:.0f} s of sound at most, and {file.path.name} has {file.seconds:.1f}"
            raise UsageError(
                message,
                where=text.where,
                hint="leave the text out: the model writes it, window by window",
            )
        extractor = self.open_extractor()
        longest = self._window(extractor)
        if self.writes:
            start = medium.start
        else:
            start = int(medium.start / longest) * longest
        return self._read(text.text, file, extractor, start, longest)

    def _move(self) -> None:
        """Move the model to where it runs: it hears before a run is planned."""
        if self.device is None:
            return
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        device = choose_device(self.device, parameters * _FRAMES)
        (self.model if self.predicting is None else self.predicting).to(device)

    def _window(self, extractor: Any) -> float:
        """Return the seconds that are heard at a time."""
        if self.model.main_input_name == "input_features":
            return float(extractor.n_samples / extractor.sampling_rate)
        if self.layout.bands > 1:
            return float(
                self.model.config.max_length * self._hop(extractor) / extractor.sampling_rate
            )
        return WINDOW

    def _hop(self, extractor: Any) -> int:
        """Return samples between features; 1 for a model that takes samples."""
        if self.model.main_input_name == "input_features":
            return int(extractor.hop_length)
        # Kaldi's banks are 10 ms apart
        return extractor.sampling_rate // 100 if self.layout.bands > 1 else 1

    def _read(
        self, written: str, file: SoundFile, extractor: Any, start: float, longest: float
    ) -> MediaText:
        rate = extractor.sampling_rate
        samples = file.read(rate, start, longest)
        features = self._features(extractor, samples, rate, file)
        hop = self._hop(extractor) * self.layout.stride
        n_tokens = self._count(features)
        n_frames = (n_tokens - len(self.layout.before)) // self.layout.bands
        heard = min(n_frames, max(1, len(samples) // hop))
        levels = [np.abs(samples[i * hop : (i + 1) * hop]).max(initial=0.0) for i in range(heard)]
        notes = list(file.notes)
        warnings = []
        if not samples.any():
            warnings.append(
                f"{file.path.name} is silent{f' from {start:.0f} s on' if start else ''}"
            )
        sound = Sound(
            name=str(file.path),
            seconds=file.seconds,
            start=start,
            frame=hop / rate,
            levels=np.array(levels, np.float32).clip(max=1),
            bands=self.layout.bands,
            before=len(self.layout.before),
            told=bool(written),
        )
        if self.layout.bands > 1:
            heard = n_frames
            padding = np.zeros(n_frames - sound.n_frames, np.float32)
            sound = struct_with(sound, levels=np.concatenate([sound.levels, padding]))
        frames = tuple(self._frame_tokens(sound))
        hidden = n_tokens - len(frames)
        hides_padding = hidden > 0 and self.model.config.model_type in _HIDING_PADDING
        if hidden:
            padding_note = f"{hidden * sound.frame:.2f} s of padding after the sound"
            if hides_padding:
                notes.append(f"{padding_note} are hidden from every frame, as in the whole model")
            else:
                notes.append(f"the model also hears {padding_note}, whose columns are left out")
        end = None
        if start + longest < file.seconds - hop / rate:
            end = start + longest
        if end is not None:
            statement = f"seconds {start:.2f}–{end:.2f} of {file.seconds:.2f} are shown"
            notes.append(Hint.OTHER_SECONDS.after(statement, f"{end:.0f}"))
        inputs = {self.model.main_input_name: features}
        if hides_padding:
            inputs["attention_mask"] = _without_padding(
                n_tokens, ceil(len(samples) / self._hop(extractor))
            )
        if not self.writes:
            media_text = MediaText(
                file.path.name, frames, inputs, (), tuple(notes), tuple(warnings), sound=sound
            )
            return replace(media_text, padding=hidden, next_start=end, tokens_are_frames=True)
        ids, prompt, end = self._ids(written, features, sound, end)
        spelled, tokens = self._spelled(ids)
        media_text = MediaText(
            spelled,
            tuple(tokens),
            inputs,
            (),
            tuple(notes),
            tuple(warnings),
            sound=sound,
            next_start=end,
        )
        if self.part == "decoder":
            return media_text
        config = self.open_generation()
        heads = tuple(
            (int(layer), int(head))
            for layer, head in getattr(config, "alignment_heads", None) or ()
        )
        width = getattr(self.model.config, "median_filter_width", 7)
        speech = Speech(prompt, self._end_ids()[0], heads, width)
        return replace(media_text, context=frames, padding=hidden, speech=speech)

    def _end_ids(self) -> list[int]:
        ids = self.open_generation().eos_token_id
        return ids if isinstance(ids, list) else [ids]

    def _spelled(self, ids: list[int]) -> tuple[str, list[Token]]:
        """Return the text of ids, and its tokens; those that spell bytes of one character share its place."""
        tokens = [self._token(token_id) for token_id in ids]
        bytes_of = [None if token.special else piece_bytes(token.piece) for token in tokens]
        if any(
            part is None for part, token in zip(bytes_of, tokens, strict=True) if not token.special
        ):
            return join_tokens(tokens)
        text = ""
        placed: list[Token] = []
        waiting: list[Token] = []
        spelling = b""
        for token, part in zip(tokens, bytes_of, strict=True):
            if part is None:
                placed += [*waiting, token]
                waiting = []
                spelling = b""
                continue
            waiting.append(token)
            spelling += part
            try:
                characters = spelling.decode()
            except UnicodeDecodeError:
                continue
            start, end = trim_span(characters, 0, len(characters))
            offsets = {"start": len(text) + start, "end": len(text) + end}
            shown = readable_piece(characters) if len(waiting) == 1 else None
            placed += [struct_with(item, text=shown or item.text, **offsets) for item in waiting]
            text += characters
            waiting = []
            spelling = b""
        return text, [*placed, *waiting]

    def _token(self, token_id: int) -> Token:
        if self._is_time(token_id):
            piece = frame_name((token_id - self._first_time) * _TIME)
            return Token(token_id, f"<|{piece[:-1]}|>", f"<|{piece[:-1]}|>", special=True)
        piece, spelled = self.tokenizer.spelled(token_id)
        return Token(token_id, piece, spelled, special=self.tokenizer.made_token(token_id).special)

    def _features(self, extractor: Any, samples: Any, rate: int, file: SoundFile) -> Any:
        with may_fail("the feature extractor fails", file.path), quiet():
            values = extractor(samples, sampling_rate=rate, return_tensors="np")[
                self.model.main_input_name
            ]
        return np.asarray(values, np.float32)

    def _count(self, features: Any) -> int:
        """Return how many tokens the model makes of features."""
        if self.model.config.is_encoder_decoder:
            model = self.model.get_encoder()
        else:
            model = self.model
        inputs = {
            self.model.main_input_name: torch.from_numpy(features).to(model.device, model.dtype)
        }
        # such as a sound that is shorter than a convolution
        with may_fail("the model cannot hear it", arg("audio"), "use a longer sound"):
            queries = first_queries(self.model, model, inputs)
        assert queries is not None
        return queries.shape[2]

    def _frame_tokens(self, sound: Sound) -> Iterator[Token]:
        for index, name in enumerate(self.layout.before):
            yield Token(index, name, name, special=True)
        place = len(self.layout.before)
        for band in range(self.layout.bands):
            for frame in range(sound.n_frames):
                name = frame_name(sound.seconds_of(frame))
                name = f"{name}/{band}" if self.layout.bands > 1 else name
                # The id of a token that has none in a vocabulary is its place.
                yield Token(place, name, name)
                place += 1

    @property
    def _first_time(self) -> int:
        """The id of Whisper's mark of second 0; −1 for a model without such marks."""
        of_none = getattr(self.open_generation(), "no_timestamps_token_id", None)
        return -1 if of_none is None else of_none + 1

    def _is_time(self, token_id: int) -> bool:
        return 0 <= self._first_time <= token_id

    def _ids(
        self, written: str, features: Any, sound: Sound, end: float | None
    ) -> tuple[list[int], int, float | None]:
        """Return the ids that the decoder reads, how many of them are its prompt, and where the next window starts."""
        prompt, heard = self._transcribed(features, sound, 1 if written else None)
        if written:
            mark = [self._first_time - 1] if self._first_time > 0 else []
            text = written if written[:1].isspace() else f" {written}"
            tokens = self.tokenizer.encode(text, special=False)
            ids = [*prompt, *mark, *(token.id for token in tokens)]
            return ids, len(prompt) + len(mark), None
        if end is not None:
            heard, end = self._until_last_mark(heard, sound.start, end)
        return [*prompt, *heard], len(prompt), end

    def _until_last_mark(
        self, heard: list[int], start: float, end: float
    ) -> tuple[list[int], float]:
        """Leave out what follows the last two marks of time, which the end of a window cuts; return its start.

        As in Whisper and transformers: a single mark at the end says that no more is said in the window.
        """
        marks = [self._is_time(token_id) for token_id in heard]
        pairs = [n for n in range(1, len(heard)) if marks[n - 1] and marks[n]]
        if not pairs or marks[-2:] == [False, True]:
            return heard, end
        seconds = (heard[pairs[-1] - 1] - self._first_time) * _TIME
        if seconds > 0:
            return heard[: pairs[-1]], round(start + seconds, 2)
        return heard, end

    def _transcribed(
        self, features: Any, sound: Sound, limit: int | None
    ) -> tuple[list[int], list[int]]:
        """Return the prompt of the decoder, and the ids that the model writes after it, without the end of the text."""
        if self.predicting is None:
            hint = "use a checkpoint with the head that writes text, or --part encoder"
            raise UsageError(
                "the checkpoint has no head that writes text", where=arg("audio"), hint=hint
            )
        config = self.open_generation()
        inputs = torch.from_numpy(features).to(self.model.device, self.model.dtype)
        whisper = hasattr(self.predicting, "_retrieve_init_tokens")
        more: dict[str, Any]
        if whisper:
            more = {"return_segments": True, "return_timestamps": self._first_time > 0}
        else:
            more = {}
        if limit is None and not whisper:
            limit = ceil(_TOKENS_A_SECOND * sound.n_frames * sound.frame)
        if limit is not None:
            more["max_new_tokens"] = limit
        for module in self.predicting.modules():
            OWN_ATTENTION.setdefault(module, "sdpa")  # while no pass of ours is running
        fails = may_fail("transformers cannot transcribe it", arg("audio"))
        with fails, quiet(), torch.inference_mode():
            result = self.predicting.generate(
                inputs, generation_config=config, do_sample=False, num_beams=1, **more
            )
        prompt_length = 1
        if whisper:
            (segments,) = result["segments"]
            if not segments:
                return [int(self.model.config.decoder_start_token_id)], []
            prompt_length = int(segments[0]["idxs"][0])
            result = segments[0]["result"][None]
        ids = result[0].tolist()
        ends = self._end_ids()
        closing = next((n for n in range(prompt_length, len(ids)) if ids[n] in ends), len(ids))
        return ids[:prompt_length], ids[prompt_length:closing]


def open_generation(predicting: Any, path: Path | None) -> Any:
    """Open the rules by which a checkpoint writes text; without a file of them, those of its config."""
    from transformers import GenerationConfig

    if predicting is None:
        return None
    file = Path() if path is None else path / "generation_config.json"
    if path is None or not file.is_file():
        return predicting.generation_config
    with may_fail("transformers cannot use it", file), quiet():
        return GenerationConfig.from_pretrained(path, local_files_only=True)
