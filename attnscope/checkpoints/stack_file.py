"""Read TOML files that describe a small stack."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from attnscope.base.errors import AttnscopeError, arg, did_you_mean
from attnscope.base.files.reading import read_file
from attnscope.base.model_config import ModelConfig, check_sizes
from attnscope.request.masks.expression import parse_stored_mask
from attnscope.request.masks.terms import OF_ONE_TEXT, MatrixFile, Own, leaves

_CAP = 1 << 20


class StackFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a TOML file apart from the model."""

    description: str = ""
    # of random weights, if there is no checkpoint
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0
    # a safetensors file with our parameter names, beside the TOML file; None for random
    weights: str | None = None
    # the file's weights were drawn, not trained; every view then says so
    random_weights: bool = False
    # `words` (made from the texts themselves), or a tokenizer.json relative to the TOML file
    tokenizer: str = "words"
    punctuation: Literal["keep", "drop"] = "keep"
    # rows of the token embedding; None for as many as the tokenizer has words
    vocab_size: Annotated[int, msgspec.Meta(ge=1)] | None = None


class StackDescription(msgspec.Struct, frozen=True):
    """A TOML file, read."""

    path: Path
    data: bytes
    file: StackFile
    # fields of a ModelConfig that it sets, sizes filled in, `vocab_size` not among them
    model: dict[str, Any]

    def config(self, vocab_size: int) -> ModelConfig:
        """Return the config of the stack for a vocabulary size."""
        try:
            config = msgspec.convert(
                {**self.model, "vocab_size": self.file.vocab_size or vocab_size}, ModelConfig
            )
        except msgspec.ValidationError as e:
            raise _field_error(e, self.path) from e
        check_sizes(config, str(self.path))
        return config


def read_stack(path: Path) -> StackDescription:
    """Read a TOML file."""
    data = read_file(path, cap=_CAP)
    try:
        raw = tomllib.loads(data.decode())
    except RecursionError as e:
        raise AttnscopeError(
            "is nested too deeply", where=path, hint="remove levels of nesting"
        ) from e
    except ValueError as e:
        # No TOML, not UTF-8, or a whole number of thousands of digits.
        raise AttnscopeError(f"not TOML: {e}", where=path) from e
    _check_fields(raw, path)
    if "weights" in raw and raw.get("tokenizer", "words") == "words":
        hint = "set tokenizer to a tokenizer.json: the words of a text have no fixed ids"
        raise AttnscopeError("weights need a tokenizer", where=path, hint=hint)
    own = {name: raw.pop(name) for name in StackFile.__struct_fields__ if name in raw}
    try:
        described = StackDescription(
            path, data, msgspec.convert(own, StackFile), _fill_defaults(raw, path)
        )
    except msgspec.ValidationError as e:
        raise _field_error(e, path) from e
    # Everything but the vocabulary is known now, so check it early.
    described.config(vocab_size=1)
    return described


def _field_error(error: msgspec.ValidationError, path: Path) -> AttnscopeError:
    message, _, at = str(error).replace("`", "").partition(" - at $.")
    return AttnscopeError(message[0].lower() + message[1:], where=f"{path}: {at}" if at else path)


def _check_fields(raw: dict[str, Any], path: Path) -> None:
    """Check that every key is known and holds a value of its type, before any arithmetic is done with it."""
    types = {
        **get_type_hints(StackFile, include_extras=True),
        **get_type_hints(ModelConfig, include_extras=True),
    }
    types["scale"] = bool | float
    del types["layer_kinds"]  # a stack has attention in every layer
    for name, value in raw.items():
        if name not in types:
            counted = [f"{prefix}{name}" for prefix in ("n_", "d_") if f"{prefix}{name}" in types]
            if counted:
                hint = f"did you mean '{counted[0]}'?"
            else:
                hint = did_you_mean(name, list(types))
            raise AttnscopeError(f"unknown key '{name}'", where=path, hint=hint)
        try:
            msgspec.convert(value, types[name])
        except msgspec.ValidationError as e:
            message = str(e).replace("`", "").replace(" - at $", f", in {name}")
            raise AttnscopeError(f"{name} = {value!r}: {message}", where=path) from e


def _fill_defaults(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Fill in sizes that follow from others, and the value of `scale = true` or `false`."""
    model = {"n_layers": 1, "n_heads": 1, "d_model": 32, "norm": "none", **raw}
    model.setdefault("n_kv_heads", model["n_heads"])
    if "d_head" not in model:
        if model["d_model"] % model["n_heads"]:
            message = f"d_model is {model['d_model']}, but n_heads is {model['n_heads']}"
            raise AttnscopeError(
                message, where=path, hint="set d_head, or make d_model a multiple of n_heads"
            )
        model["d_head"] = model["d_model"] // model["n_heads"]
    model.setdefault("d_value", model["d_head"])
    if model.get("positions") == "learned":
        model.setdefault("max_positions", 512)
    if isinstance(model.get("scale"), bool):
        model["scale"] = None if model["scale"] else 1.0
    # heads without output projection are as wide as the residual stream and the MLP, if there are such
    width = model["n_heads"] * model["d_value"]
    needs = model.get("residual", True) or model.get("d_mlp")
    whole = model.get("out_projection", True) or width == model["d_model"]
    if not whole and (model["n_layers"] > 1 or needs):
        hint = f"set out_projection = true, or make n_heads × d_value equal to d_model = {model['d_model']}"
        raise AttnscopeError(
            f"without an output projection the heads are {width} wide", where=path, hint=hint
        )

    if isinstance(model.get("mask"), str):
        terms = parse_stored_mask(model["mask"], f"{path}: mask")
        if any(isinstance(term, Own) for term in leaves(terms)):
            message = "'own' cannot be the model's own mask"
            raise AttnscopeError(
                message, where=f"{path}: mask", hint="use an expression such as causal"
            )
        if of_text := [term for term in leaves(terms) if isinstance(term, OF_ONE_TEXT)]:
            if isinstance(of_text[0], MatrixFile):
                what = "a file"
            else:
                what = str(of_text[0])
            hint = f"pass it with {arg('mask')}"
            raise AttnscopeError(
                f"{what} cannot be the model's mask", where=f"{path}: mask", hint=hint
            )
    return model
