"""Bugs as engineers report them, planted into models of transformers, backends, collators and batches.

Each names the check that has to find it. A bug is a function that returns the arguments of `attnscope.doctor`; patches
are undone by the ExitStack that it is given.
"""

from collections.abc import Callable
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from torch import nn

from attnscope.engines.transformers.blocks import cache_argument
from tests.helpers.tiny_models import TABLE

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Bug:
    """One bug."""

    name: str  # what is wrong
    check: str  # the check that has to find it
    plant: Callable[[ExitStack], Arguments]  # plants it


BUGS: list[Bug] = []


def bug(
    check: str,
) -> Callable[[Callable[[ExitStack], Arguments]], Callable[[ExitStack], Arguments]]:
    """Enter a function into BUGS; its docstring says what is wrong."""

    def enter(plant: Callable[[ExitStack], Arguments]) -> Callable[[ExitStack], Arguments]:
        BUGS.append(Bug((plant.__doc__ or "").rstrip("."), check, plant))
        return plant

    return enter


def model(name: str, **changes: Any) -> Any:
    """A tiny random model of tests.helpers.tiny_models, with changes of its config."""
    row = next(row for row in TABLE if row.name == name)
    return copy_row(row, changes).make() if changes else row.make()


def copy_row(row: Any, changes: dict[str, Any]) -> Any:
    made = copy(row)
    object.__setattr__(made, "config", {**row.config, **changes})
    return made


def ids(rows: int, length: int, low: int = 5, seed: int = 1) -> torch.Tensor:
    return torch.randint(low, 60, (rows, length), generator=torch.Generator().manual_seed(seed))


def pack(lengths: tuple[int, ...] = (6, 5, 7)) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, positions that restart, and document numbers of a pack."""
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    documents = torch.cat([torch.full((n,), d) for d, n in enumerate(lengths)])[None]
    return ids(1, sum(lengths)), positions, documents


def padded(
    side: str, lengths: tuple[int, ...] = (12, 7, 9), pad: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask of a padded batch."""
    rows, mask = (
        ids(len(lengths), max(lengths)),
        torch.zeros(len(lengths), max(lengths), dtype=torch.long),
    )
    for n, length in enumerate(lengths):
        mask[n, -length:] = 1
    mask = mask if side == "left" else mask.flip(1)
    return rows.masked_fill(mask == 0, pad), mask


def block_mask(
    documents: torch.Tensor, dtype: torch.dtype = torch.float32, *, causal: bool = True
) -> torch.Tensor:
    """A 4-D mask that is added to scores and keeps documents apart."""
    allowed = documents[:, :, None] == documents[:, None]
    allowed = allowed.tril() if causal else allowed
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)[
        :, None
    ]


def tokenizer(**special: Any) -> Any:
    """A word tokenizer of transformers that puts <s> before each text."""
    pieces = ["<pad>", "<s>", "</s>", "[UNK]", *(f"w{n}" for n in range(4, 60))]
    made = Tokenizer(WordLevel({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    names = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "[UNK]",
        **special,
    }
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, **names)


TEXTS = ["w7 w9 w12 w30 w41 w8 w22 w51 w17", "w5 w6 w44 w13 w27", "w33 w21 w50 w10 w11 w58 w29"]


def backend(stack: ExitStack, name: str, function: Callable[..., Any], mask: str = "sdpa") -> str:
    """Register an implementation of attention, with the masks of another one."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    hf.AttentionInterface.register(name, function)
    hf.AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[mask])
    stack.callback(hf.AttentionInterface._global_mapping.pop, name)
    stack.callback(hf.AttentionMaskInterface._global_mapping.pop, name)
    return name


def eager(module, q, k, v, mask, scaling, *, softcap=None, sinks=None, repeat=True, softmax=None):
    """Eager attention, with what may be forgotten as arguments."""
    groups = q.shape[1] // k.shape[1]
    wide = (
        (lambda t: t.repeat_interleave(groups, 1))
        if repeat
        else (lambda t: t.repeat(1, groups, 1, 1))
    )
    scores = q @ wide(k).mT * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = (
            scores + mask
            if mask.is_floating_point()
            else scores.masked_fill(~mask, torch.finfo(q.dtype).min)
        )
    if sinks is not None:
        scores = torch.cat((scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)), -1)
    weights = (softmax or torch.softmax)(scores.float(), -1).to(q.dtype)
    weights = weights[..., : k.shape[2]]
    return (weights @ wide(v)).transpose(1, 2).contiguous(), weights


def sdpa(q, k, v, *, mask=None, causal=False, scaling=None):
    """PyTorch's kernel on grouped heads."""
    output = nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=True
    )
    return output.transpose(1, 2).contiguous(), None


# packed documents


@bug("packed_documents")
def ones_beside_positions(stack: ExitStack) -> Arguments:
    """A pack with position_ids that restart, and an attention_mask of ones, which hides them."""
    tokens, positions, _ = pack()
    batch = {
        "input_ids": tokens,
        "position_ids": positions,
        "attention_mask": torch.ones_like(tokens),
    }
    return {"model": model("llama"), "batch": batch}


@bug("packed_documents")
def positions_not_passed_to_the_mask(stack: ExitStack) -> Arguments:
    """A model class that makes its mask without position_ids."""
    from transformers.models.mistral import modeling_mistral as module

    make = module.create_sliding_window_causal_mask
    without = lambda **given: make(**{**given, "position_ids": None})  # noqa: E731
    stack.enter_context(patch.object(module, "create_sliding_window_causal_mask", without))
    return {"model": model("mistral", sliding_window=40)}


@bug("packed_documents")
def mask_with_document_numbers(stack: ExitStack) -> Arguments:
    """An attention_mask that numbers documents, which the model reads as true or false."""
    tokens, _, documents = pack()
    return {
        "model": model("qwen2"),
        "batch": {"input_ids": tokens, "attention_mask": documents + 1},
    }


@bug("packed_documents")
def lengths_that_eager_ignores(stack: ExitStack) -> Arguments:
    """cu_seq_lens for flash attention, given to a backend that ignores them."""
    tokens, _, _ = pack()
    ends = torch.tensor([0, 6, 11, 18], dtype=torch.int32)
    batch = {
        "input_ids": tokens,
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": 7,
        "max_length_k": 7,
    }
    return {"model": model("phi3"), "batch": batch, "attn": ["eager", "sdpa"]}


@bug("packed_documents")
def collator_that_concatenates(stack: ExitStack) -> Arguments:
    """A collator that concatenates texts and counts positions on."""

    def collate(features: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        tokens = torch.tensor([[token for feature in features for token in feature["input_ids"]]])
        return {
            "input_ids": tokens,
            "position_ids": torch.arange(tokens.shape[1])[None],
            "labels": tokens,
        }

    return {"model": model("llama"), "tokenizer": tokenizer(), "collator": collate, "texts": TEXTS}


@bug("packed_documents")
def last_document_sees_the_first(stack: ExitStack) -> Arguments:
    """A 4-D mask in which the last document also sees the first one, beside positions that restart."""
    tokens, positions, documents = pack()
    mask = block_mask(torch.where(documents == 2, 0, documents))
    return {
        "model": model("olmo2"),
        "batch": {"input_ids": tokens, "position_ids": positions, "attention_mask": mask},
    }


@bug("packed_documents")
def masks_of_gpt_oss(stack: ExitStack) -> Arguments:
    """A pack as the flattening collator makes it, for gpt-oss, whose masks are made without position_ids."""
    tokens, positions, _ = pack()
    return {"model": model("gpt_oss"), "batch": {"input_ids": tokens, "position_ids": positions}}


@bug("packed_positions")
def positions_count_through_the_pack(stack: ExitStack) -> Arguments:
    """A pack under the right mask, with positions that count on."""
    tokens, _, documents = pack()
    batch = {
        "input_ids": tokens,
        "position_ids": torch.arange(18)[None],
        "attention_mask": block_mask(documents),
    }
    return {"model": model("gpt2"), "batch": batch}


@bug("packed_positions")
def no_positions_in_the_pack(stack: ExitStack) -> Arguments:
    """A pack under the right mask without position_ids, in a model with learned positions."""
    tokens, _, documents = pack()
    return {
        "model": model("gpt2"),
        "batch": {"input_ids": tokens, "attention_mask": block_mask(documents)},
    }


# padding


@bug("padding_positions")
def left_padding_of_gpt2(stack: ExitStack) -> Arguments:
    """A batch that is padded on the left, without position_ids, in a model with learned positions."""
    tokens, mask = padded("left")
    return {"model": model("gpt2"), "batch": {"input_ids": tokens, "attention_mask": mask}}


@bug("padding_mask")
def ones_under_left_padding(stack: ExitStack) -> Arguments:
    """An attention_mask of ones over padding on the left."""
    tokens, mask = padded("left")
    return {
        "model": model("llama"),
        "batch": {"input_ids": tokens, "attention_mask": torch.ones_like(mask)},
    }


@bug("padding_mask")
def encoder_without_mask(stack: ExitStack) -> Arguments:
    """A padded batch of an encoder without an attention_mask."""
    return {"model": model("bert"), "batch": {"input_ids": padded("right")[0]}}


@bug("padding")
def mask_is_dropped(stack: ExitStack) -> Arguments:
    """A model class that does not pass the attention_mask on."""
    from transformers.models.llama import modeling_llama as module

    make = module.create_causal_mask
    without = lambda **given: make(**{**given, "attention_mask": None})  # noqa: E731
    stack.enter_context(patch.object(module, "create_causal_mask", without))
    return {"model": model("llama")}


@bug("padding")
def encoder_backend_ignores_padding(stack: ExitStack) -> Arguments:
    """A backend of an encoder that takes no mask."""
    name = backend(
        stack, "fast", lambda m, q, k, v, mask, scaling=None, **_: sdpa(q, k, v, scaling=scaling)
    )
    return {"model": model("bert"), "attn": ["eager", name]}


def _short_masks(texts: list[str]) -> Arguments:
    """A collator whose mask is one token shorter than each text."""
    made = tokenizer()

    def collate(features: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        rows = [torch.tensor(feature["input_ids"]) for feature in features]
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)
        ends = torch.tensor([len(row) - 1 for row in rows])
        return {
            "input_ids": tokens,
            "attention_mask": (torch.arange(tokens.shape[1]) < ends[:, None]).long(),
        }

    return {"model": model("llama"), "tokenizer": made, "collator": collate, "texts": texts}


@bug("padding_mask")
def mask_of_padded_texts_is_one_shorter(stack: ExitStack) -> Arguments:
    """A collator that bars the last token of each of its padded texts."""
    return _short_masks(TEXTS)


@bug("padding_mask")
def mask_of_unpadded_texts_is_one_shorter(stack: ExitStack) -> Arguments:
    """A collator that bars the last token of each text, of which none is padded."""
    return _short_masks([" ".join(text.split()[:5]) for text in TEXTS])


def _lm_collator(made: Any) -> Any:
    return hf.DataCollatorForLanguageModeling(made, mlm=False)


@bug("padding_is_eos")
def labels_of_ends_are_ignored(stack: ExitStack) -> Arguments:
    """Padding with the end token, of which the collator ignores every label."""
    made = tokenizer(pad_token="</s>")
    return {
        "model": model("llama"),
        "tokenizer": made,
        "collator": _lm_collator(made),
        "texts": TEXTS,
    }


@bug("padding_is_eos")
def ends_are_masked(stack: ExitStack) -> Arguments:
    """A mask of tokens that are not padding, where the end token is padding."""
    made = tokenizer(pad_token="</s>")

    def collate(features: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        rows = [torch.tensor(feature["input_ids"]) for feature in features]
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=2)
        return {"input_ids": tokens, "attention_mask": (tokens != 2).long(), "labels": tokens}

    return {"model": model("mistral"), "tokenizer": made, "collator": collate, "texts": TEXTS}


# the future, prefixes, windows


@bug("future")
def causal_mask_off_by_one(stack: ExitStack) -> Arguments:
    """A causal mask that lets a token see the next one."""
    from transformers import masking_utils

    later = lambda batch, head, q, k: k <= q + 1  # noqa: E731
    stack.enter_context(patch.object(masking_utils, "causal_mask_function", later))
    return {"model": model("qwen3"), "attn": ["eager"]}


@bug("future")
def language_model_that_is_no_decoder(stack: ExitStack) -> Arguments:
    """BertLMHeadModel without is_decoder: trained on the next token, it sees it."""
    return {"model": model("bert decoder", is_decoder=False)}


@bug("future")
def module_without_mask(stack: ExitStack) -> Arguments:
    """A plain module for causal language modelling that forgets the mask."""

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.embed, self.body = (
                nn.Embedding(60, 16),
                nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            )
            self.head = nn.Linear(16, 60)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(self.embed(tokens)))

    call = lambda module, batch: module(batch["input_ids"])  # noqa: E731
    return {"model": Plain(), "batch": {"input_ids": ids(2, 10)}, "call": call, "kind": "causal"}


class PlainDecoder(nn.Module):
    """A decoder whose matrices are in no modules, in the style of a training script."""

    def __init__(
        self, later: int | None = None, mix: float = 0.0, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.later, self.mix = later, mix
        self.table = nn.Parameter(torch.randn(60, 32, dtype=dtype))
        self.places = nn.Embedding(128, 32, dtype=dtype)
        self.inner = nn.ParameterList(torch.randn(32, 96, dtype=dtype) / 6 for _ in range(3))
        self.outer = nn.ParameterList(torch.randn(32, 32, dtype=dtype) / 6 for _ in range(3))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        rows, length = input_ids.shape
        place = torch.arange(length, device=input_ids.device)
        allowed = (place <= place[:, None]).repeat(rows, 4, 1, 1)
        if attention_mask is not None:
            allowed &= attention_mask[:, None, None].bool() | (place == place[:, None])
        x = self.table[input_ids] + self.places(place)
        for layer, (inner, outer) in enumerate(zip(self.inner, self.outer, strict=True)):
            if layer == self.later:  # one head sees the last token from the one before
                allowed[:, 2, -2, -1] = True
            q, k, v = (x @ inner).view(rows, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, allowed)
            x = x + mixed.transpose(1, 2).reshape(rows, length, 32) @ outer
            x = x + self.mix * x.mean(0, keepdim=True)
        return x @ self.table.T


def call(module: nn.Module, batch: Arguments) -> torch.Tensor:
    return module(**batch)


@bug("future")
def one_head_sees_the_last_token(stack: ExitStack) -> Arguments:
    """A module of one's own in which one head of one layer sees the last token too early."""
    return {
        "model": PlainDecoder(later=2),
        "batch": {"input_ids": ids(2, 12)},
        "call": call,
        "kind": "causal",
    }


@bug("padding")
def rows_are_mixed(stack: ExitStack) -> Arguments:
    """A module of one's own that adds the mean over a batch, in which nothing is padded."""
    return {
        "model": PlainDecoder(mix=0.01),
        "batch": {"input_ids": ids(3, 12)},
        "call": call,
        "kind": "causal",
    }


@bug("prefix")
def prefix_is_read_causally(stack: ExitStack) -> Arguments:
    """A prefix-LM whose prefix is read causally."""
    tokens = ids(2, 12)
    return {"model": model("llama"), "prefix": [5, 7],
            "batch": {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}}  # fmt: skip


@bug("prefix")
def prefix_sees_what_follows(stack: ExitStack) -> Arguments:
    """A 4-D mask that lets a prefix see two tokens after it."""
    tokens = ids(1, 18)
    mask = block_mask(tokens * 0)
    mask[..., :6, :8] = 0
    return {
        "model": model("llama"),
        "prefix": 6,
        "batch": {"input_ids": tokens, "attention_mask": mask},
    }


@bug("prefix")
def encoder_is_causal(stack: ExitStack) -> Arguments:
    """A T5 whose encoder is masked as its decoder is."""
    from transformers.models.t5 import modeling_t5 as module

    made = t5()
    no_cache: Any = {cache_argument(made): None}

    def causal(**given: Any) -> Any:
        given.pop("encoder_hidden_states", None)
        return module.create_causal_mask(**no_cache, **given)

    stack.enter_context(patch.object(module, "create_bidirectional_mask", causal))
    return {"model": made}


def t5() -> Any:
    torch.manual_seed(5)
    config = hf.T5Config(vocab_size=60, d_model=24, d_kv=6, d_ff=32, num_layers=2, num_heads=4,
                         decoder_start_token_id=0, pad_token_id=0, eos_token_id=2)  # fmt: skip
    made = hf.T5ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0.0, 0.3)
    return made


def _window(stack: ExitStack, family: str, change: int) -> None:
    from importlib import import_module

    module = import_module(f"transformers.models.{family}.modeling_{family}")
    make = module.create_sliding_window_causal_mask

    def off(config: Any, **given: Any) -> Any:
        other = copy(config)
        other.sliding_window += change
        return make(config=other, **given)

    stack.enter_context(patch.object(module, "create_sliding_window_causal_mask", off))


@bug("window")
def window_is_one_wider(stack: ExitStack) -> Arguments:
    """A window that counts the query as one more."""
    _window(stack, "mistral", 1)
    return {"model": model("mistral"), "attn": ["eager", "sdpa"]}


@bug("window")
def window_is_one_narrower(stack: ExitStack) -> Arguments:
    """A window that does not count the query."""
    _window(stack, "gemma2", -1)
    return {"model": model("gemma2")}


@bug("window")
def backend_without_window(stack: ExitStack) -> Arguments:
    """A backend that is causal, and has no window."""

    def fast(m, q, k, v, mask, scaling=None, **_):
        return sdpa(q, k, v, causal=q.shape[2] == k.shape[2], scaling=scaling)

    return {"model": model("gemma3"), "attn": ["eager", backend(stack, "fast", fast)]}


@bug("window")
def mask_of_a_batch_without_window(stack: ExitStack) -> Arguments:
    """A 4-D mask that is causal, for a model with a window."""
    tokens = ids(1, 14)
    return {
        "model": model("mistral"),
        "batch": {"input_ids": tokens, "attention_mask": block_mask(tokens * 0)},
    }


@bug("backend")
def window_in_a_full_layer(stack: ExitStack) -> Arguments:
    """Layers of full attention that are given the window of the others."""
    from transformers.models.qwen2 import modeling_qwen2 as module

    make = module.create_sliding_window_causal_mask
    stack.enter_context(patch.object(module, "create_causal_mask", make))
    return {"model": model("qwen2 layer types")}


# masks


@bug("mask_4d")
def boolean_mask_in_eager(stack: ExitStack) -> Arguments:
    """A boolean 4-D mask, which eager attention adds to the scores."""
    tokens, positions, documents = pack()
    mask = block_mask(documents) == 0
    return {
        "model": model("llama"),
        "batch": {"input_ids": tokens, "position_ids": positions, "attention_mask": mask},
    }


@bug("mask_4d")
def boolean_mask_in_flex(stack: ExitStack) -> Arguments:
    """A boolean 4-D mask, which flex attention adds to the scores."""
    tokens, positions, documents = pack()
    mask = block_mask(documents) == 0
    batch = {"input_ids": tokens, "position_ids": positions, "attention_mask": mask}
    return {"model": model("llama"), "batch": batch, "attn": ["sdpa", "flex_attention"]}


@bug("mask_4d")
def backend_ignores_4d(stack: ExitStack) -> Arguments:
    """A causal backend that ignores a 4-D mask."""

    def fast(m, q, k, v, mask, scaling=None, **_):
        return sdpa(q, k, v, causal=q.shape[2] == k.shape[2], scaling=scaling)

    return {"model": model("llama"), "attn": [backend(stack, "fast", fast)]}


@bug("mask_4d")
def mask_is_inverted(stack: ExitStack) -> Arguments:
    """A 4-D mask that bars what it should allow."""
    tokens = ids(1, 14)
    mask = torch.where(block_mask(tokens * 0) == 0, torch.finfo(torch.float32).min, 0.0)
    return {"model": model("llama"), "batch": {"input_ids": tokens, "attention_mask": mask}}


@bug("fully_masked")
def row_without_keys(stack: ExitStack) -> Arguments:
    """A 4-D mask in which a token of a text sees nothing."""
    tokens, positions, documents = pack()
    mask = block_mask(documents)
    mask[:, :, 8] = torch.finfo(torch.float32).min
    return {
        "model": model("llama"),
        "batch": {"input_ids": tokens, "position_ids": positions, "attention_mask": mask},
    }


@bug("fully_masked")
def rows_of_padding_are_nan(stack: ExitStack) -> Arguments:
    """A backend that masks with −∞, so that rows of padding are NaN."""

    def fast(m, q, k, v, mask, scaling=None, **_):
        softmax = lambda scores, _: scores.masked_fill(scores < -1e30, -torch.inf).softmax(-1)  # noqa: E731
        return eager(m, q, k, v, mask, scaling, softmax=softmax)

    return {"model": model("llama"), "attn": [backend(stack, "fast", fast, "eager")]}


# several passes


@bug("cached_decoding")
def positions_restart_in_each_step(stack: ExitStack) -> Arguments:
    """Rotary positions of each step that start at 0 again."""
    made = model("llama")

    def restart(module: nn.Module, args: Any, given: dict[str, Any]) -> Any:
        tokens = given["input_ids"]
        return args, {
            **given,
            "position_ids": torch.arange(tokens.shape[1])[None].expand(len(tokens), -1),
        }

    made.register_forward_pre_hook(restart, with_kwargs=True)
    return {"model": made}


@bug("chunked_prefill")
def chunk_is_aligned_to_the_start(stack: ExitStack) -> Arguments:
    """A kernel whose causal mask begins with the first cached key, not with the chunk."""

    def fast(m, q, k, v, mask, scaling=None, **_):
        length = q.shape[2]
        if length in (1, k.shape[2]):
            return sdpa(q, k, v, mask=mask, causal=mask is None and length > 1, scaling=scaling)
        return sdpa(
            q, k, v, mask=torch.ones(length, k.shape[2], dtype=torch.bool).tril(), scaling=scaling
        )

    return {"model": model("llama"), "attn": [backend(stack, "fast", fast)]}


@bug("dropout")
def dropout_in_evaluation(stack: ExitStack) -> Arguments:
    """Attention that drops weights whether or not it is trained."""
    from transformers.models.qwen2 import modeling_qwen2 as module

    plain = module.eager_attention_forward
    always = lambda m, q, k, v, mask, **given: (  # noqa: E731
        nn.functional.dropout(plain(m, q, k, v, mask, **given)[0], 0.2, training=True), None)  # fmt: skip
    stack.enter_context(patch.object(module, "eager_attention_forward", always))
    return {"model": model("qwen2")}


# numbers


@bug("backend")
def wrong_groups(stack: ExitStack) -> Arguments:
    """A backend that repeats key/value heads in the order of another layout."""

    def fast(m: Any, q: Any, k: Any, v: Any, mask: Any, scaling: Any = None, **_: Any) -> Any:
        return eager(m, q, k, v, mask, scaling, repeat=False)

    return {"model": model("llama"), "attn": [backend(stack, "fast", fast, "eager")]}


@bug("backend")
def wrong_scale(stack: ExitStack) -> Arguments:
    """A backend that ignores the scale of the model."""
    fast = lambda m, q, k, v, mask, scaling=None, **_: eager(m, q, k, v, mask, q.shape[-1] ** -0.5)  # noqa: E731
    return {"model": model("gemma3"), "attn": [backend(stack, "fast", fast, "eager")]}


@bug("backend")
def one_head_in_bfloat16(stack: ExitStack) -> Arguments:
    """A backend that computes the last head of layer 2 in bfloat16."""

    def fast(m, q, k, v, mask, scaling=None, **_):
        output, weights = eager(m, q, k, v, mask, scaling)
        if m.layer_idx == 2:
            output[:, :, -1] = output[:, :, -1].bfloat16().float()
        return output, weights

    return {"model": model("llama"), "attn": [backend(stack, "fast", fast, "eager")]}


@bug("returned_weights")
def weights_of_other_scores(stack: ExitStack) -> Arguments:
    """A backend that returns weights without its mask."""

    def fast(m, q, k, v, mask, scaling=None, **_):
        return eager(m, q, k, v, mask, scaling)[0], eager(m, q, k, v, None, scaling)[1]

    return {"model": model("phi3"), "attn": [backend(stack, "fast", fast, "eager")]}


@bug("sinks")
def sinks_are_dropped(stack: ExitStack) -> Arguments:
    """A backend that does not know sinks."""
    fast = lambda m, q, k, v, mask, scaling=None, **_: eager(m, q, k, v, mask, scaling)  # noqa: E731
    return {"model": model("gpt_oss"), "attn": [backend(stack, "fast", fast, "eager")]}


@bug("softcap")
def softcap_is_dropped(stack: ExitStack) -> Arguments:
    """A backend that does not know a soft-cap."""
    fast = lambda m, q, k, v, mask, scaling=None, **_: eager(m, q, k, v, mask, scaling)  # noqa: E731
    return {"model": model("gemma2"), "attn": [backend(stack, "fast", fast, "eager")]}


@bug("score_range")
def scores_beyond_float16(stack: ExitStack) -> Arguments:
    """Queries and keys whose products do not fit into float16."""
    made = model("llama")
    with torch.no_grad():
        for layer in made.model.layers:
            layer.self_attn.q_proj.weight.mul_(400)
            layer.self_attn.k_proj.weight.mul_(400)
    return {"model": made.half()}


# positions


@bug("max_positions")
def batch_beyond_positions(stack: ExitStack) -> Arguments:
    """A batch that is longer than the positions of the model."""
    tokens = ids(1, 60)
    return {
        "model": model("llama"),
        "batch": {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)},
    }


@bug("rope_scaling")
def scaling_is_not_applied(stack: ExitStack) -> Arguments:
    """Rotary frequencies that were made without the scaling of the config."""
    made = model("llama llama3")
    width = made.config.head_dim
    rates = 5000.0 ** (-torch.arange(0, width, 2).float() / width)
    made.rotary_emb.inv_freq = rates
    return {"model": made}


@bug("rope_scaling")
def frequencies_in_bfloat16(stack: ExitStack) -> Arguments:
    """Rotary frequencies that were rounded to bfloat16, and a long text."""
    made = model("llama", max_position_embeddings=1024, head_dim=64).bfloat16()
    return {"model": made, "batch": {"input_ids": ids(1, 900)}}


# what is in a batch


@bug("type_ids")
def pair_without_types(stack: ExitStack) -> Arguments:
    """Pairs of texts whose second text has the type of the first."""
    made = model("bert", cls_token_id=3, sep_token_id=4)
    tokens = torch.cat(
        (torch.tensor([[3]]), ids(1, 5), torch.tensor([[4]]), ids(1, 4), torch.tensor([[4]])), 1
    )
    batch = {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "token_type_ids": torch.zeros_like(tokens),
    }
    return {"model": made, "batch": batch}


@bug("type_ids")
def type_beyond_the_table(stack: ExitStack) -> Arguments:
    """A type that the model does not have."""
    tokens = ids(1, 9)
    return {
        "model": model("bert relu, one segment"),
        "batch": {"input_ids": tokens, "token_type_ids": tokens * 0 + 1},
    }


@bug("special_tokens")
def two_begin_tokens(stack: ExitStack) -> Arguments:
    """A chat template's begin token, and another one of the tokenizer."""
    made = tokenizer()
    batch = made(["<s> w7 w9 w12", "<s> w5 w6"], padding=True, return_tensors="pt")
    return {"model": model("llama"), "tokenizer": made, "texts": TEXTS, "batch": dict(batch)}


@bug("special_tokens")
def collator_adds_a_begin_token(stack: ExitStack) -> Arguments:
    """A collator that puts a begin token before texts that have one."""
    made = tokenizer()

    def collate(features: list[dict[str, list[int]]]) -> Any:
        return made.pad(
            {"input_ids": [[1, *feature["input_ids"]] for feature in features]}, return_tensors="pt"
        )

    return {"model": model("llama"), "tokenizer": made, "collator": collate, "texts": TEXTS}


@bug("special_tokens")
def no_begin_token(stack: ExitStack) -> Arguments:
    """Texts without the begin token that the tokenizer adds."""
    made = tokenizer()
    batch = made(
        ["w7 w9 w12", "w5 w6"], padding=True, return_tensors="pt", add_special_tokens=False
    )
    return {"model": model("llama"), "tokenizer": made, "texts": TEXTS, "batch": dict(batch)}


@bug("labels")
def labels_are_shifted_twice(stack: ExitStack) -> Arguments:
    """Labels that the data loader has shifted, for a model that shifts them itself."""
    tokens = ids(2, 14)
    labels = torch.cat((tokens[:, 1:], torch.full((2, 1), -100)), 1)
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}
    return {"model": model("mistral"), "batch": batch}


@bug("labels")
def labels_are_shifted_back(stack: ExitStack) -> Arguments:
    """Labels that are the tokens before, so that each token predicts itself."""
    tokens = ids(2, 14)
    labels = torch.cat((torch.full((2, 1), -100), tokens[:, :-1]), 1)
    return {"model": model("llama"), "batch": {"input_ids": tokens, "labels": labels}}


@bug("labels")
def loss_does_not_shift(stack: ExitStack) -> Arguments:
    """A model class whose loss does not shift labels."""
    made = model("qwen2")
    plain = lambda logits, labels, vocab_size, **_: nn.functional.cross_entropy(  # noqa: E731
        logits.flatten(0, 1), labels.flatten())  # fmt: skip
    made.loss_function = plain
    tokens = ids(2, 14)
    return {"model": made, "batch": {"input_ids": tokens, "labels": tokens.clone()}}


@bug("labels")
def decoder_reads_labels(stack: ExitStack) -> Arguments:
    """An encoder-decoder whose decoder reads its labels unshifted."""
    tokens, labels = ids(2, 9), ids(2, 8, seed=4)
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "decoder_input_ids": labels.clone(),
             "labels": labels}  # fmt: skip
    return {"model": t5(), "batch": batch}
