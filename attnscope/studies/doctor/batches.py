"""What a batch says of itself: padding, documents, positions; and batches that are made to probe a model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnscope.base.errors import UsageError
from attnscope.findings.doctor import BatchFacts
from attnscope.studies.doctor.any_tokenizer import SpecialIds

FROM_MASK = "the 4-D attention_mask"  # how documents were told apart
IGNORED = -100  # a label that the loss leaves out
_DOCUMENT_KEYS = ("document_ids", "documents", "seq_idx", "sequence_ids", "segment_ids", "doc_ids")
_LENGTH_KEYS = ("cu_seq_lens_q", "cu_seqlens", "cu_seq_lens", "cu_seqlens_q")


@dataclass(frozen=True, eq=False)
class ExaminedBatch:
    """A batch, and what is known of its tokens; optional tensors are None if nothing tells."""

    name: str  # name in reports
    given: dict[str, Any]  # the batch as the model takes it
    ids: Tensor  # (B, T)
    # which tokens are padding, (B, T), by the mask, by their id, or by the collator
    padding: Tensor
    documents: Tensor | None = None  # number of the document of every token, (B, T), -1 for padding
    documents_from: str | None = None  # how documents are told apart
    attended: Tensor | None = None  # the 2-D attention mask, (B, T)
    allowed: Tensor | None = None  # the 4-D attention mask, (B, Q, K), True for an allowed key
    positions: Tensor | None = None  # position_ids, (B, T)
    labels: Tensor | None = None  # labels, (B, T)
    types: Tensor | None = None  # token_type_ids, (B, T)
    # number of tokens at the start of each row that see each other, (B,)
    prefix: Tensor | None = None
    notes: list[str] = field(default_factory=list)  # on what was left out

    @property
    def real(self) -> Tensor:
        """Tokens that are not padding, (B, T)."""
        return ~self.padding

    @property
    def kept(self) -> Tensor:
        """Tokens that are not padding and that the mask allows, (B, T)."""
        if self.attended is None:
            return self.real
        return self.real & self.attended

    @property
    def packed(self) -> bool:
        """Whether a row holds several documents."""
        rows = [row for row, _ in self.document_places()]
        return len(set(rows)) < len(rows)

    def document_places(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the row of every document, and the places of its tokens in the row."""
        if self.documents is not None:
            for row, numbers in enumerate(self.documents):
                for document in dict.fromkeys(n for n in numbers.tolist() if n >= 0):
                    yield row, (numbers == document).nonzero()[:, 0]

    def side(self) -> str:
        """Return the side of the padding: `left`, `right`, `both` or `none`."""
        left = bool(self.padding[:, 0].any())
        right = bool(self.padding[:, -1].any())
        if left and right:
            return "both"
        if left:
            return "left"
        if right:
            return "right"
        return "none"

    def facts(self) -> BatchFacts:
        """Return the batch as plain data."""
        rows, length = self.ids.shape
        count = None if self.documents is None else len(list(self.document_places()))
        return BatchFacts(self.name, rows, length, int(self.padding.sum()), self.side(), count, self.documents_from,
                          sorted(self.given), self.notes)  # fmt: skip

    def expected(self, *, causal: bool, window: int | None) -> Tensor:
        """Return which keys a query should see, (B, Q, K).

        Args:
            causal: Whether a token sees only earlier ones, except within a prefix.
            window: Number of keys that a query sees, itself included, or of keys to each side; None for all.
        """
        if self.allowed is not None:
            return self.allowed
        length = self.ids.shape[1]
        position = torch.arange(length, device=self.ids.device)
        allowed = torch.ones(
            len(self.ids), length, length, dtype=torch.bool, device=self.ids.device
        )
        if causal:
            allowed &= position[:, None] >= position
            if self.prefix is not None:
                inside = position < self.prefix[:, None]
                allowed |= inside[:, :, None] & inside[:, None]
        if window is not None:
            distance = position[:, None] - position
            # transformers counts the token itself in causal windows, and not in those to both sides
            allowed &= distance < window if causal else distance.abs() <= window
        if self.documents is not None:
            allowed &= self.documents[:, :, None] == self.documents[:, None]
        return allowed & self.kept[:, None]


def read_batch(
    inputs: Mapping[str, Any],
    special: SpecialIds,
    *,
    name: str = "batch",
    documents: Any = None,
    prefix: Any = None,
    padding: Tensor | None = None,
    rows: int | None = None,
) -> ExaminedBatch:
    """Read tokens, masks, positions, documents and labels of a batch.

    Args:
        inputs: The batch: input_ids, and other inputs of the model.
        name: Name in reports.
        documents: Number of each token's document, (B, T), if the caller knows it.
        prefix: Length of the prefix whose tokens see each other: a number, or one for each row.
        padding: Which tokens are padding, if the caller knows it.
        rows: Rows to look at; None for all.
    """
    if not isinstance(inputs, Mapping):
        raise UsageError(
            f"{type(inputs).__name__} is not a batch", where="batch", hint="pass a dict of tensors"
        )
    tensors = {key: _tensor(value) for key, value in inputs.items()}
    ids = tensors.get("input_ids")
    if not isinstance(ids, Tensor) or ids.ndim != 2 or not ids.numel():
        raise UsageError(
            "has no input_ids of (rows, tokens)",
            where="batch",
            hint="pass what the model is called with",
        )
    tensors = {
        key: value.to(ids.device) if isinstance(value, Tensor) else value
        for key, value in tensors.items()
    }
    notes = []
    if rows is not None and len(ids) > rows:
        notes.append(f"the first {rows} of {len(ids)} rows are examined")
        count = len(ids)
        tensors = {key: value[:rows] if isinstance(value, Tensor) and value.ndim and len(value) == count else value
                   for key, value in tensors.items()}  # fmt: skip
        ids = tensors["input_ids"]
    mask = tensors.get("attention_mask")
    attended = None
    if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape == ids.shape:
        attended = mask
    allowed = None
    if isinstance(mask, Tensor) and mask.ndim in (3, 4):
        allowed = _allowed(mask, ids)
    if isinstance(mask, Mapping):
        notes.append(
            "attention_mask holds a mask for each type of layer: which tokens these masks bar is not checked"
        )
    stated = None if documents is None else _like(_tensor(documents), ids)
    if documents is not None and stated is None:
        shape = f"{len(ids)}, {ids.shape[1]}"
        raise UsageError(
            "has another shape than input_ids", where="documents", hint=f"pass a tensor ({shape})"
        )
    positions = _like(tensors.get("position_ids"), ids)
    numbers, told_by = _documents(tensors, ids, attended, allowed, positions, stated, special)
    if padding is None:
        padding = _padding(ids, attended, allowed, special)
    if numbers is not None:
        numbers = numbers.masked_fill(padding, -1)
    lengths = None
    if prefix is not None:
        lengths = _prefix_lengths(prefix, ids)
    return ExaminedBatch(
        name, tensors, ids, padding, numbers, told_by, None if attended is None else attended != 0, allowed, positions,
        _like(tensors.get("labels"), ids), _like(tensors.get("token_type_ids"), ids), lengths, notes,
    )  # fmt: skip


def _prefix_lengths(prefix: Any, ids: Tensor) -> Tensor:
    """Return the length of the prefix of each row, (B,).

    Raises:
        UsageError: It is no number, or not one for each row.
    """
    try:
        lengths = torch.as_tensor(prefix).reshape(-1).expand(len(ids)).to(ids)
    except (TypeError, ValueError, RuntimeError) as e:
        hint = "pass a number, or a number for each row"
        raise UsageError(
            f"{prefix!r:.80} is no length of a prefix", where="prefix", hint=hint
        ) from e
    if not bool(((lengths >= 1) & (lengths <= ids.shape[1])).all()):
        raise UsageError(f"must be 1 to {ids.shape[1]}, not {prefix!r:.80}", where="prefix")
    return lengths


def _tensor(value: Any) -> Any:
    """Return an array or a list of numbers as a tensor; other values unchanged."""
    is_list = isinstance(value, list) and value and not isinstance(value[0], str)
    if isinstance(value, Tensor) or not (is_list or hasattr(value, "__array__")):
        return value
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return value


def _like(value: Any, ids: Tensor) -> Tensor | None:
    """Return a tensor with a number for every token; None if there is none."""
    if not isinstance(value, Tensor) or value.ndim not in (1, 2) or value.shape[-1] != ids.shape[1]:
        return None
    wide = None
    if value.ndim == 1 or len(value) in (1, len(ids)):
        wide = value.expand(ids.shape)
    return None if wide is None else wide.to(ids.device)


def _allowed(mask: Tensor, ids: Tensor) -> Tensor | None:
    """Return the keys that a mask for pairs of tokens allows, (B, Q, K)."""
    pairs = mask if mask.ndim == 3 else mask[:, 0]
    if pairs.shape[-2:] != (ids.shape[1], ids.shape[1]):
        return None
    if mask.is_floating_point():
        # added to the scores: 0 allows; 1 for allowed is written by mistake, and still means it
        ones = bool((pairs == 1).any()) and not bool((pairs < 0).any())
        allowed = pairs == 1 if ones else pairs > -1e3
    else:
        allowed = pairs != 0
    return allowed.expand(len(ids), -1, -1)


def _documents(
    tensors: Mapping[str, Any],
    ids: Tensor,
    attended: Tensor | None,
    allowed: Tensor | None,
    positions: Tensor | None,
    stated: Tensor | None,
    special: SpecialIds,
) -> tuple[Tensor | None, str | None]:
    """Return the document of every token, and how documents are told apart."""
    if stated is not None:
        return stated, "documents"
    for key in _DOCUMENT_KEYS:
        numbers = _like(tensors.get(key), ids)
        if numbers is not None:
            return numbers, key
    for key in _LENGTH_KEYS:
        ends = tensors.get(key)
        if (
            isinstance(ends, Tensor)
            and ends.ndim == 1
            and len(ids) == 1
            and int(ends[-1]) <= ids.shape[1]
        ):
            columns = torch.arange(ids.shape[1], device=ids.device)
            return torch.bucketize(columns, ends[1:].to(columns), right=True)[None], key
    if attended is not None and not attended.is_floating_point() and int(attended.max()) > 1:
        return attended.long() - 1, "attention_mask"
    if positions is not None:
        starts = positions[:, 1:] <= positions[:, :-1]
        if attended is not None:
            # positions of padding are arbitrary
            starts = starts & (attended[:, 1:] != 0) & (attended[:, :-1] != 0)
        elif special.pad is not None and special.pad != special.eos:
            starts = starts & (ids[:, 1:] != special.pad)
        if starts.any():
            first_column = torch.zeros_like(starts[:, :1])
            return torch.cat((first_column, starts), 1).long().cumsum(1), "position_ids"
    if allowed is not None:
        after = ~torch.stack(
            [allowed[:, i, i - 1] | allowed[:, i - 1, i] for i in range(1, ids.shape[1])], 1
        )
        seen = allowed.any(1)
        after &= seen[:, 1:] & seen[:, :-1]
        if after.any():
            return torch.cat((torch.zeros_like(after[:, :1]), after), 1).long().cumsum(1), FROM_MASK
    return None, None


def _padding(
    ids: Tensor, attended: Tensor | None, allowed: Tensor | None, special: SpecialIds
) -> Tensor:
    """Return which tokens are padding: those that the mask bars, or runs of the padding token at the ends of a row."""
    barred = torch.zeros_like(ids, dtype=torch.bool)
    if attended is not None:
        barred |= attended == 0
    by_id = padding_by_id(ids, special)
    if allowed is not None:
        away = ~torch.eye(ids.shape[1], dtype=torch.bool, device=ids.device)
        alone = ~(allowed & away).any(1) & ~(allowed & away).any(2)
        barred |= alone & (by_id if special.pad is not None else alone)
    told_by_mask = attended is not None and not (
        bool((attended != 0).all()) and int(by_id.sum(1).max()) > 1
    )
    # a mask tells end tokens from padding; one of ones does not, and no text ends with three
    if special.pad == special.eos and told_by_mask:
        return barred
    return barred | by_id


def padding_by_id(ids: Tensor, special: SpecialIds) -> Tensor:
    """Return runs of the padding token at both ends of each row, (B, T).

    If the end token pads as well, the first of a run at the end may be the text's own.
    """
    if special.pad is None:
        return torch.zeros_like(ids, dtype=torch.bool)
    is_pad = ids == special.pad
    left = is_pad.long().cumprod(1).bool()
    right = is_pad.flip(1).long().cumprod(1).flip(1).bool()
    if special.pad == special.eos:
        right = right & torch.cat((torch.zeros_like(right[:, :1]), right[:, :-1]), 1)
        # one token at the start may be the beginning of a text that begins with it
        if special.bos == special.eos:
            left = left & torch.cat((left[:, 1:], torch.zeros_like(left[:, :1])), 1)
    return left | right


def probe(
    rows: Sequence[Sequence[int]], side: str, pad: int, *, with_positions: bool
) -> ExaminedBatch:
    """Return texts padded on a side, with an attention mask.

    Args:
        side: `left` or `right`.
        with_positions: Whether to give position_ids that count the tokens of each text.
    """
    length = max(map(len, rows))
    ids = torch.full((len(rows), length), pad)
    mask = torch.zeros_like(ids)
    for n, row in enumerate(rows):
        if side == "left":
            columns = slice(length - len(row), None)
        else:
            columns = slice(len(row))
        ids[n, columns] = torch.tensor(row)
        mask[n, columns] = 1
    inputs = {"input_ids": ids, "attention_mask": mask}
    positions = None
    if with_positions:
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        inputs["position_ids"] = positions
    if len(set(map(len, rows))) > 1:
        name = f"{len(rows)} texts padded on the {side}"
    else:
        name = f"{len(rows)} texts"
    return ExaminedBatch(name, inputs, ids, mask == 0, attended=mask != 0, positions=positions)


def packed_probe(rows: Sequence[Sequence[int]]) -> ExaminedBatch:
    """Return texts in one row, with position_ids that restart, as padding-free training gives them."""
    ids = torch.tensor([[token for row in rows for token in row]])
    positions = torch.tensor([[position for row in rows for position in range(len(row))]])
    documents = torch.tensor([[n for n, row in enumerate(rows) for _ in row]])
    inputs = {"input_ids": ids, "position_ids": positions}
    return ExaminedBatch(
        f"{len(rows)} packed texts", inputs, ids, torch.zeros_like(ids, dtype=torch.bool), documents, "position_ids",
        positions=positions,
    )  # fmt: skip
