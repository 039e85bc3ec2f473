"""A tokenizer, whichever library it is of: how texts become ids, and which ids are special."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnscope.base.errors import UsageError


@dataclass(frozen=True)
class SpecialIds:
    """Ids of special tokens; None for a missing one."""

    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    cls: int | None = None
    sep: int | None = None


class AnyTokenizer:
    """A tokenizer of transformers, a `tokenizers.Tokenizer`, one of attnscope, or none.

    Special ids that it does not name are the model's config's.
    """

    def __init__(self, tokenizer: Any, config: Any) -> None:
        self.tokenizer = tokenizer
        special_ids: dict[str, int | None] = {}
        for name in ("bos", "eos", "pad", "cls", "sep"):
            token_id = getattr(tokenizer, f"{name}_token_id", None)
            if token_id is None and (
                name == "pad" or tokenizer is None or not hasattr(tokenizer, "eos_token_id")
            ):
                token_id = getattr(config, f"{name}_token_id", None)
            special_ids[name] = token_id if isinstance(token_id, int) and token_id >= 0 else None
        for name, piece in (("cls", "[CLS]"), ("sep", "[SEP]")):
            if special_ids[name] is None and hasattr(tokenizer, "token_to_id"):
                special_ids[name] = tokenizer.token_to_id(piece)
            elif special_ids[name] is None and hasattr(tokenizer, "id_of"):
                special_ids[name] = tokenizer.id_of(piece)
        self.special = SpecialIds(**special_ids)

    @property
    def known(self) -> bool:
        """Whether there is a tokenizer."""
        return self.tokenizer is not None

    def encode(
        self, text: str, pair: str | None = None, *, special: bool = True
    ) -> dict[str, list[int]]:
        """Return the ids of a text with special tokens, and token types if the tokenizer has them."""
        tokenizer = self.tokenizer
        texts = (text,) if pair is None else (text, pair)
        if callable(tokenizer):
            encoding = tokenizer(*texts, add_special_tokens=special)
            return {
                name: [int(n) for n in encoding[name]]
                for name in ("input_ids", "token_type_ids")
                if name in encoding
            }
        if not hasattr(tokenizer, "encode"):
            hint = "pass a tokenizer of transformers or a tokenizers.Tokenizer"
            raise UsageError(
                f"{type(tokenizer).__name__} is no tokenizer", where="tokenizer", hint=hint
            )
        if special or not hasattr(tokenizer, "token_to_id"):
            plain = {}
        else:
            plain = {"add_special_tokens": False}
        encoding = tokenizer.encode(*texts, **plain)
        if hasattr(encoding, "ids"):
            return {
                "input_ids": [int(n) for n in encoding.ids],
                "token_type_ids": [int(n) for n in encoding.type_ids],
            }
        tokens = [token for token in encoding if special or not token.special]
        return {
            "input_ids": [token.id for token in tokens],
            "token_type_ids": [token.type_id for token in tokens],
        }

    def spell(self, token_id: int) -> str:
        """Spell a token."""
        tokenizer = self.tokenizer
        try:
            if hasattr(tokenizer, "spelled"):
                return str(tokenizer.spelled(token_id)[1])
            for name in ("convert_ids_to_tokens", "id_to_token"):
                if hasattr(tokenizer, name):
                    text = ""
                    if hasattr(tokenizer, "decode"):
                        text = str(tokenizer.decode([token_id]))
                    readable = text and "\N{REPLACEMENT CHARACTER}" not in text
                    if readable:
                        return text
                    return str(getattr(tokenizer, name)(token_id))
        except (IndexError, KeyError, OverflowError, TypeError, ValueError):
            pass
        return f"#{token_id}"


def ordinary_ids(vocab_size: int, special: SpecialIds) -> Sequence[int]:
    """Return ids of a vocabulary that are not known to be special tokens."""
    barred = {
        n
        for n in (special.bos, special.eos, special.pad, special.cls, special.sep)
        if n is not None
    }
    # ids below 4 are special in nearly every vocabulary
    return [n for n in range(min(vocab_size, 4, vocab_size // 2), vocab_size) if n not in barred]
