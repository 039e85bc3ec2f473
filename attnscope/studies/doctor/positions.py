"""Checks of positions: beyond what a model has, and rotary frequencies as the config says."""

from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from attnscope.base.errors import AttnscopeError
from attnscope.base.model_config import Rope, RopeScaling
from attnscope.checkpoints.families.rope import temperature
from attnscope.findings.doctor import Evidence
from attnscope.model.positions import rotary_frequencies
from attnscope.studies.doctor.batches import FROM_MASK
from attnscope.studies.doctor.examination import Examination, inapplicable, ok, unknown, wrong

_ANGLE = 0.25  # largest error of an angle, in radians: cos 0.25 is 0.97
# largest relative error of a frequency: half a step of bfloat16 is 0.002, and judged by angles
_FREQUENCY = 1e-3


def max_positions(exam: Examination) -> list[Evidence]:
    """Check that no token is beyond the model's positions."""
    limit = exam.subject.longest
    if limit is None:
        return [inapplicable("the model", "the config names no max_position_embeddings")]
    evidence = []
    for batch in exam.batches:
        if batch.positions is not None:
            last = (
                int(batch.positions.masked_fill(batch.padding, 0).max())
                + 1
                - exam.subject.position_offset
            )
        elif (batch.packed and batch.documents_from != FROM_MASK) or batch.side() != "none":
            last = batch.ids.shape[1]
        else:
            last = int(batch.real.sum(1).max())
        reason = f"position {last - 1} of a model with {limit} positions"
        if last > limit:
            evidence.append(wrong(batch.name, last, limit, None, reason))
        else:
            evidence.append(ok(batch.name, last, limit))
    if exam.rows and exam.subject.words.known:
        lengths = [len(exam.subject.words.encode(text)["input_ids"]) for text in exam.texts]
        longest = max(lengths)
        at = f"text {lengths.index(longest)}"
        reason = f"a text of {longest} tokens; the model has {limit} positions"
        if longest > limit:
            of_texts = wrong("the texts", longest, limit, at, reason)
        else:
            of_texts = ok("the texts", longest, limit)
        evidence.append(of_texts)
    return evidence or [unknown("no batch", "no batch or text is given")]


def rope_scaling(exam: Examination) -> list[Evidence]:
    """Check that rotary frequencies, with their scaling, are the config's."""
    config = exam.subject.config
    evidence = [
        _frequencies(exam, f"{name}.{key}".strip("."), module, key, held)
        for name, module in exam.subject.model.named_modules()
        for key, held in module.named_buffers(recurse=False)
        if config is not None and key.endswith("inv_freq") and "original" not in key
    ]
    return evidence or [inapplicable("the model", "the model has no rotary frequencies (inv_freq)")]


def _frequencies(
    exam: Examination, name: str, module: nn.Module, key: str, held: Tensor
) -> Evidence:
    config = exam.subject.config
    # of a type of layers, as in Gemma 3
    layer_type = key.removesuffix("inv_freq").rstrip("_") or None
    table = _table(config, layer_type)
    if table is None:
        return unknown(name, "the config has no rope_parameters or rope_theta")
    stated = str(table.get("rope_type", table.get("type", "default")))
    try:
        rope = _rope(config, table, stated)
    except (AttnscopeError, KeyError, TypeError, ValueError) as e:
        return unknown(name, f"rope_type {stated!r} is not known ({type(e).__name__})")
    width = 2 * len(held)
    # The longest row selects LongRoPE's factors, and is the length at which angles are compared.
    length = max(
        (*(batch.ids.shape[1] for batch in exam.batches), *map(len, exam.rows)), default=64
    )
    try:
        frequencies, factor = rotary_frequencies(rope, width, length, torch.device("cpu"))
        used, used_factor = _used(exam, module, layer_type, held, length)
    except (AttnscopeError, KeyError, TypeError, ValueError, ZeroDivisionError) as e:
        return unknown(name, f"the frequencies cannot be computed ({type(e).__name__})")
    if len(used) != len(frequencies):
        return unknown(
            name, f"the model has {len(used)} frequencies, and the config says {len(frequencies)}"
        )
    off = (used.double() - frequencies.double()).abs()
    relative = off / frequencies.double().abs().clamp_min(1e-30)
    exact = held.dtype == torch.float32
    angle = off * length
    at = int((relative if exact else angle).argmax())
    value = float((relative if exact else angle)[at])
    limit = _FREQUENCY if exact else _ANGLE
    unit = "of a frequency" if exact else "radians"
    apart = abs(used_factor - factor)
    scaled = "" if rope.scaling is None else f" with {stated} scaling"
    if value > limit:
        if exact:
            told = "relative error of a frequency"
        else:
            told = f"radians at position {length}"
        lost = ""
        if _plain(rope, width, used):
            lost = ": the model uses the frequencies without scaling"
        if not exact:
            lost = f": the model holds the frequencies in {str(held.dtype).removeprefix('torch.')}"
        reason = f"frequencies differ from the config's{scaled} ({told}){lost}"
        return wrong(name, value, limit, f"frequency {at}", reason, unit)
    if apart > 1e-3:
        reason = f"cos and sin are multiplied by {used_factor:.3f} in place of {factor:.3f}{scaled}"
        return wrong(name, apart, 1e-3, None, reason, "of the factor")
    return ok(name, value, limit, f"frequencies{scaled}", unit=unit)


def _plain(rope: Rope, width: int, used: Tensor) -> bool:
    """Tell whether frequencies are unscaled although the config scales them."""
    if rope.scaling is None:
        return False
    plain, _ = rotary_frequencies(Rope(rope.theta, rope.fraction), width, 1, torch.device("cpu"))
    return bool(((used - plain).abs() <= 4e-3 * plain).all())


def _table(config: Any, layer_type: str | None) -> dict[str, Any] | None:
    """Return the rotary parameters of a config, of all layers or of a type."""
    table = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if (
        isinstance(table, dict)
        and layer_type is not None
        and isinstance(table.get(layer_type), dict)
    ):
        table = table[layer_type]
    if isinstance(table, dict) and not any(isinstance(value, dict) for value in table.values()):
        return {"rope_theta": getattr(config, "rope_theta", None), **table}
    theta = getattr(config, "rope_theta", None)
    if theta is not None and not isinstance(table, dict):
        return {"rope_theta": theta}
    return None


def _rope(config: Any, table: dict[str, Any], rope_type: str) -> Rope:
    plain = Rope(float(table["rope_theta"]), float(table.get("partial_rotary_factor") or 1.0))
    longest = int(getattr(config, "max_position_embeddings", 0) or 0)
    stated = table.get("original_max_position_embeddings") or getattr(
        config, "original_max_position_embeddings", None
    )
    original = int(stated or longest)
    attention = table.get("attention_factor")
    more: dict[str, Any] = {}
    if rope_type == "default":
        return plain
    if rope_type == "llama3":
        more = {f"{end}_freq_factor": float(table[f"{end}_freq_factor"]) for end in ("low", "high")}
    elif rope_type == "yarn":
        factor = float(table["factor"])
        mscale = table.get("mscale")
        every = table.get("mscale_all_dim")
        if attention is None and mscale and every:
            attention = temperature(factor, mscale) / temperature(factor, every)
        more = {
            "beta_fast": float(table.get("beta_fast") or 32),
            "beta_slow": float(table.get("beta_slow") or 1),
        }
        more |= {"attention_factor": attention, "truncate": bool(table.get("truncate", True))}
    elif rope_type == "longrope":
        more = {
            f"{length}_factors": tuple(table[f"{length}_factor"]) for length in ("short", "long")
        }
        more |= {"attention_factor": attention}
    elif rope_type != "linear":
        raise KeyError(rope_type)
    factor = float(
        (table.get("factor") or longest / original) if rope_type == "longrope" else table["factor"]
    )
    return replace(plain, scaling=RopeScaling(rope_type, factor, original, **more))  # type: ignore[arg-type]


def _used(
    exam: Examination, module: nn.Module, layer_type: str | None, held: Tensor, length: int
) -> tuple[Tensor, float]:
    """Return the frequencies that a module uses, and its factor on cos and sin.

    They are read from what its `forward` returns for positions 0 and 1, where it returns cos and sin; otherwise from
    the buffer.
    """
    positions = torch.tensor([[0, 1, length - 1]], device=held.device)
    # float32: the type that cos and sin are returned in
    like = torch.zeros(1, 3, 1, device=held.device)
    try:
        if layer_type is None:
            cos, sin = module(like, positions)
        else:
            cos, sin = module(like, positions, layer_type)
    except Exception:  # a module of anyone has another signature
        return held.detach().float().cpu(), float(getattr(module, "attention_scaling", 1.0))
    cos = cos[0].double().cpu()
    sin = sin[0].double().cpu()
    factor = float(cos[0].abs().max())
    # both halves of a head are turned alike (Llama), or neighbours are (Cohere, GPT-J)
    layouts = [
        torch.atan2(sin[1], cos[1])[columns] for columns in (slice(len(held)), slice(0, None, 2))
    ]
    gaps = [
        float((turns - held.double().cpu()).abs().max())
        for turns in layouts
        if len(turns) == len(held)
    ]
    if factor and gaps and min(gaps) > 1e-2:
        return layouts[0].float(), factor
    return held.detach().float().cpu(), factor
