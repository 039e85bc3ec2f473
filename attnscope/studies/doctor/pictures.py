"""Checks of vision models: sums of rows, positions in pictures of another size, and what the image processor makes."""

from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from attnscope.base.errors import AttnscopeError
from attnscope.engines.transformers.backends import BackendCall
from attnscope.engines.transformers.media import (
    own_tokens,
    pair_of,
    processed,
    vision_inputs,
)
from attnscope.engines.transformers.output_head import base_of
from attnscope.findings.doctor import Evidence
from attnscope.studies.doctor.audit import NO_INTERFACE, layer_name, weights_of
from attnscope.studies.doctor.batches import ExaminedBatch
from attnscope.studies.doctor.examination import (
    Case,
    Examination,
    depends,
    inapplicable,
    measured,
    ok,
    unknown,
    wrong,
)
from attnscope.studies.doctor.subject import Subject

# Checks of texts that also hold of pictures; all others are about tokens of a vocabulary, their order or their padding.
ALSO_OF_PICTURES = (
    "fully_masked",
    "backend",
    "returned_weights",
    "sinks",
    "softcap",
    "score_range",
    "dropout",
)
# of a pixel that was rescaled to 0…1 and normalised: values are within −3 and 3 in practice
_LARGEST = 10.0
_INTERPOLATIONS = [
    (mode, antialias) for mode in ("bicubic", "bilinear") for antialias in (False, True)
]


def takes_pictures(model: Any, config: Any) -> bool:
    """Tell whether a model of transformers, or its class, takes pictures alone."""
    return (
        getattr(model, "main_input_name", None) == "pixel_values" and not config.is_encoder_decoder
    )


def picture_probe(subject: Subject) -> tuple[ExaminedBatch, list[str]]:
    """Return a batch of a picture of noise, of the model's own size, and the names of its tokens.

    From then on, the model is examined without a head.
    """
    subject.core = subject.model = base_of(subject.core)
    size = _own_size(subject.core)
    noise = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0)).to(subject.dtype)
    inputs = {name: value.cpu() for name, value in vision_inputs(subject.core, noise).items()}
    with torch.inference_mode():
        count = subject.run(inputs).shape[1]
    rows, columns = (
        length // side for length, side in zip(size, _patch(subject.core), strict=True)
    )
    own = own_tokens(subject.core, count - rows * columns, type(subject.core).__name__)
    names = [*own, *(f"image:{row},{column}" for row in range(rows) for column in range(columns))]
    ids = torch.arange(count)[None]
    return ExaminedBatch("a picture", inputs, ids, torch.zeros_like(ids, dtype=torch.bool)), names


def row_sums(exam: Examination) -> list[Evidence]:
    """Check that the weights of every row sum to 1, as the backend gives them."""
    limit = max(1e-5, float(torch.finfo(exam.subject.dtype).eps))

    def measure(case: Case) -> Evidence | str:
        gaps: list[tuple[float, str]] = []

        def see(call: BackendCall) -> None:
            sums = weights_of(call, call.q).double().sum(-1)
            gaps.append((float((sums - 1).abs().max()), layer_name(call)))

        with exam.subject.under(case.backend):
            exam.subject.run(case.batch.given, see)
        if not gaps:
            return NO_INTERFACE
        value, layer = max(gaps)
        where = f"{case.backend} {layer}"
        if value <= limit:
            return ok(case.examined, value, limit, where=where)
        return wrong(case.examined, value, limit, where, "the weights of a row do not sum to 1")

    return measured(exam, exam.batches, measure)


def other_size(exam: Examination) -> list[Evidence]:
    """Check that positions in a picture of another size are interpolated from the table of positions."""
    model = exam.subject.core
    ends = ("position_embeddings", "position_embedding.weight", "position_embeddings.weight")
    tables = [parameter for name, parameter in model.named_parameters() if name.endswith(ends)]
    if len(tables) != 1 or not hasattr(model, "embeddings"):
        return [inapplicable("the model", "it has no table of the positions of patches")]
    grid = [length // side for length, side in zip(_own_size(model), _patch(model), strict=True)]
    table = tables[0].detach().float().reshape(-1, tables[0].shape[-1])[-prod(grid) :]
    examined = "a black picture of another size"
    try:
        own = _black(exam, grid)
    except AttnscopeError as e:
        return [unknown(examined, e.message)]
    constant = own - table
    if len(own) != len(table) or float((constant - constant[0]).abs().max()) > 1e-2 * float(
        table.abs().max()
    ):
        return [unknown(examined, "the model adds more than a row of its table to each patch")]
    other = [grid[0] + 1, grid[1] + 2]
    try:
        found = (_black(exam, other) - constant[0]).reshape(*other, -1)
    except AttnscopeError:
        return [
            inapplicable("the model", f"it takes pictures of {grid[0]} × {grid[1]} patches alone")
        ]
    square = table.reshape(1, *grid, -1).permute(0, 3, 1, 2)
    size = max(1.0, float(table.abs().max()))
    gaps = []
    for mode, smooth in _INTERPOLATIONS:
        gaps.append(
            float(
                (
                    interpolate(square, other, mode=mode, antialias=smooth)[0].permute(1, 2, 0)
                    - found
                )
                .abs()
                .max()
            )
            / size
        )
    limit = max(1e-4, 8 * float(torch.finfo(exam.subject.dtype).eps))
    where = f"{other[0]} × {other[1]} patches in place of {grid[0]} × {grid[1]}"
    if min(gaps) <= limit:
        return [ok(examined, min(gaps), limit, where=where)]
    return [
        wrong(examined, min(gaps), limit, where, "positions are not an interpolation of the table")
    ]


def _black(exam: Examination, grid: list[int]) -> Tensor:
    """Return what the model's embeddings give the patches of a black picture, (patches, width), float32."""
    model = exam.subject.core
    size = [count * side for count, side in zip(grid, _patch(model), strict=True)]
    inputs = vision_inputs(model, torch.zeros(1, 3, *size, dtype=exam.subject.dtype))
    given: list[Tensor] = []

    def keep(module: Any, taken: Any, output: Any) -> None:
        given.append(output[0] if isinstance(output, tuple) else output)

    handle = model.embeddings.register_forward_hook(keep)
    try:
        with torch.inference_mode():
            exam.subject.raw(inputs, interpolate_pos_encoding=True)
    finally:
        handle.remove()
    return given[0][0, -prod(grid) :].float().cpu()


def processor(exam: Examination) -> list[Evidence]:
    """Check that the image processor makes pictures of the config's size, and numbers that are rescaled."""
    model = exam.subject.core
    made_by = exam.processor
    if made_by is None:
        return [
            unknown(
                "the processor",
                "there is none; pass tokenizer=, from AutoImageProcessor.from_pretrained(…)",
            )
        ]
    wanted = _own_size(model)
    try:
        # A picture whose sides differ, so that it shows whether the processor makes it a square.
        black, white = (
            processed(
                made_by,
                np.full((wanted[0] * 2, wanted[1] * 3, 3), value, dtype=np.uint8),
                "a picture",
            )[0]
            for value in (0, 255)
        )
    except AttnscopeError as e:
        return [unknown("the processor", e.line())]
    size: tuple[int, int] = (black.shape[1], black.shape[2])
    largest = float(np.abs([black, white]).max())
    reason = "pixels are not rescaled to 0…1 before they are normalised"
    if not float(white.min()) > float(black.max()):
        values = wrong(
            "its values",
            largest,
            _LARGEST,
            None,
            "a white picture is not brighter than a black one",
        )
    elif largest > _LARGEST:
        values = wrong("its values", largest, _LARGEST, None, reason)
    else:
        values = ok("its values", largest, _LARGEST)
    if pair_of(getattr(model.config, "image_size", None)) is None:
        return [values, inapplicable("its size", "the config names no size of pictures")]
    cut = [length % side for length, side in zip(size, _patch(model), strict=True)]
    where = f"{size[0]} × {size[1]} pixels"
    if any(cut):
        told = wrong(
            "its size",
            max(cut),
            0,
            where,
            "a picture is no whole number of patches: its last pixels are cut",
            "pixels",
        )
        return [values, depends(told, str(told.reason))]
    if size == wanted:
        return [values, ok("its size", where=where, unit="pixels")]
    told = wrong(
        "its size",
        max(size),
        max(wanted),
        where,
        f"the config says {wanted[0]} × {wanted[1]}",
        "pixels",
    )
    try:
        _black(exam, [length // side for length, side in zip(size, _patch(model), strict=True)])
    except AttnscopeError:
        return [values, told]
    return [values, depends(told, f"{told.reason}: positions are interpolated")]


def _patch(model: Any) -> tuple[int, int]:
    return pair_of(model.config.patch_size) or (1, 1)


def _own_size(model: Any) -> tuple[int, int]:
    """Return height and width of the pictures that a model was made for."""
    size = pair_of(getattr(model.config, "image_size", None))
    if size is not None:
        return size
    side = int(getattr(model.config, "num_patches", 16) ** 0.5)
    rows, columns = _patch(model)
    return side * rows, side * columns
