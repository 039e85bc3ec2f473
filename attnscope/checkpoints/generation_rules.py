"""Read how a checkpoint wants its texts continued: generation_config.json, or the same keys of config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from attnscope.base.files.reading import as_object, parse_json, read_file

_FILE = "generation_config.json"
_CAP = 1 << 20  # bytes
# Keys that change what `generate(do_sample=False)` of transformers gives and that are not applied, with the values that
# change nothing.
_NOT_APPLIED: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "guidance_scale": (1,),
    "penalty_alpha": (0,),
    **dict.fromkeys(
        "constraints dola_layers exponential_decay_length_penalty force_words_ids forced_bos_token_id "
        "forced_eos_token_id max_time sequence_bias stop_strings token_healing watermarking_config".split(),
        (False,),
    ),
}


@dataclass(frozen=True)
class GenerationRules:
    """Rules that change the logits of the next token or end a text; named as in transformers."""

    eos_token_id: tuple[int, ...] = ()
    # the logit of an id that the text has is divided by it, or multiplied if negative
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0  # no n tokens follow each other twice; 0 for no such rule
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    min_length: int = 0
    min_new_tokens: int = 0
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    # keys that `generate(do_sample=False)` obeys, and `--generate` does not
    not_applied: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader of a continued text."""
        default = GenerationRules()
        rules = (name for name in vars(default) if name not in ("eos_token_id", "not_applied"))
        applied = [name for name in rules if getattr(self, name) != getattr(default, name)]
        config = "of the model's generation config"
        notes = []
        if applied:
            notes.append(
                f"generated tokens and their probabilities: with {', '.join(applied)} {config}"
            )
        if self.not_applied:
            notes.append(
                f"generated tokens: without {', '.join(self.not_applied)} {config}, which generate() obeys"
            )
        return tuple(notes)


def read_rules(config: Mapping[str, Any], folder: Path | None) -> GenerationRules:
    """Return the rules of generation_config.json; without this file, of config.json, as in transformers."""
    path = None if folder is None else folder / _FILE
    if path is None or not path.is_file():
        return parse_rules(config)
    return parse_rules(as_object(parse_json(read_file(path, cap=_CAP), str(path)), str(path)))


def parse_rules(values: Mapping[str, Any]) -> GenerationRules:
    """Return the rules that a table of a generation_config.json has; a value that no rule can have is not applied."""
    rules: dict[str, Any] = {}
    not_applied = [
        name for name, inert in _NOT_APPLIED.items() if values.get(name) not in (None, *inert)
    ]
    for name, parse in _PARSERS.items():
        if (value := values.get(name)) is not None:
            try:
                rules[name] = parse(value)
            except (TypeError, ValueError, OverflowError):
                not_applied.append(name)
    return GenerationRules(**rules, not_applied=tuple(not_applied))


def _penalty(value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not isfinite(value)
        or value <= 0
    ):
        raise ValueError
    return float(value)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value


def _ids(value: Any) -> tuple[int, ...]:
    ids = value if isinstance(value, list | tuple) else [value]
    if any(type(token_id) is not int for token_id in ids):
        raise ValueError
    return tuple(ids)


def _sequences(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(ids for ids in map(_ids, value) if ids)


_PARSERS = {
    "eos_token_id": _ids,
    "repetition_penalty": _penalty,
    "no_repeat_ngram_size": _count,
    "bad_words_ids": _sequences,
    "min_length": _count,
    "min_new_tokens": _count,
    "suppress_tokens": _ids,
    "begin_suppress_tokens": _ids,
}
