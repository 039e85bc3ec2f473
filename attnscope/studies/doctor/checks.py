"""Every check, declared once: its name, what holds, why it matters, how to repair it, and what examines it.

The name is its section in docs/doctor.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

from attnscope.findings.doctor import OF_OUTPUT, OF_ROW, PAIRS, Evidence
from attnscope.studies.doctor import arithmetic, data, decoding, masks, pictures, positions
from attnscope.studies.doctor.examination import Examination


@dataclass(frozen=True)
class AttentionCheck:
    """A check of `doctor`."""

    name: str
    title: str  # what holds if the verdict is `ok`
    unit: str  # what its numbers are, unless evidence says otherwise
    why: str
    repair: str
    examine: Callable[[Examination], list[Evidence]]
    # it only reads the batch or the model, so that dropout does not matter
    reads_only: bool = False


CHECKS = (
    AttentionCheck(
        "window",
        "the window is as wide as configured",
        "keys",
        "A window that is one token off moves every number of long texts, and short tests do not notice.",
        "Allow keys with query − key < sliding_window, the query itself included, on every backend; a 4-D mask of your "
        "own has to contain the window.",
        masks.window,
    ),
    AttentionCheck(
        "future",
        "no token sees a later token",
        OF_OUTPUT,
        "A model that sees the token that it has to predict has a low loss in training, and cannot generate text.",
        "Apply a causal mask: pass is_causal=True or the mask to the kernel, and set is_decoder=True if the class "
        "takes it.",
        masks.future,
    ),
    AttentionCheck(
        "prefix",
        "tokens of a prefix see each other",
        PAIRS,
        "A prefix that is read causally loses what the prefix was for, and no loss curve shows it.",
        "Allow pairs within the prefix in both directions, and none from the prefix to what follows.",
        masks.prefix,
    ),
    AttentionCheck(
        "packed_documents",
        "packed documents do not read each other",
        OF_OUTPUT,
        "Text of a neighbour changes what is learned, and the loss looks normal or better.",
        "Pass position_ids that restart, and no attention_mask, with use_cache=False; or a 4-D block mask; or "
        "cu_seq_lens with flash attention.",
        masks.packed_documents,
    ),
    AttentionCheck(
        "packed_with_cache",
        "packed documents do not read each other when a cache is made",
        OF_OUTPUT,
        "transformers does not look for packed documents while it makes a cache, so evaluation differs from training.",
        "Call the model with use_cache=False, or set model.config.use_cache = False.",
        masks.packed_with_cache,
    ),
    AttentionCheck(
        "packed_positions",
        "positions restart with each packed document",
        "positions",
        "A document at position 3,000 is not the document that the model is asked to continue later at position 0.",
        "Give position_ids that start at 0 in each document.",
        masks.packed_positions,
    ),
    AttentionCheck(
        "padding",
        "padding changes nothing",
        OF_OUTPUT,
        "The same prompt has to give the same answer alone and in a batch, padded on either side.",
        "Pass attention_mask to every layer and backend; bar padding as keys.",
        masks.padding,
    ),
    AttentionCheck(
        "padding_positions",
        "padding on the left does not shift positions",
        OF_OUTPUT,
        "A model with learned positions reads a left-padded text at positions after the padding, unlike in training.",
        "Pass position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0), as generate() does.",
        masks.padding_positions,
    ),
    AttentionCheck(
        "padding_mask",
        "the attention mask bars padding, and no text",
        "tokens",
        "Tokens that are attended to although they are padding change all of their row; barred text is not read.",
        "Pass the attention_mask that the tokenizer or collator makes, never torch.ones_like(input_ids).",
        masks.padding_mask,
    ),
    AttentionCheck(
        "padding_is_eos",
        "the end of a text is not taken for padding",
        "texts",
        "A model whose end tokens are masked as padding never learns to stop.",
        "Use a padding token of its own, or build masks and labels from lengths in place of input_ids != pad.",
        data.padding_is_eos,
        reads_only=True,
    ),
    AttentionCheck(
        "mask_4d",
        "a 4-D mask is obeyed",
        "tokens",
        "A backend that ignores or misreads a mask gives plausible outputs of another question.",
        "Pass a mask of the model's dtype with 0 for allowed and torch.finfo(dtype).min for barred: eager and flex add "
        "the mask to the scores, so a boolean mask bars nothing.",
        masks.mask_4d,
    ),
    AttentionCheck(
        "fully_masked",
        "every token may attend to something",
        "tokens",
        "A row without any key is NaN in one backend and uniform over everything in another.",
        "Let every token see itself, padding included.",
        masks.fully_masked,
    ),
    AttentionCheck(
        "cached_decoding",
        "decoding with a cache equals the whole text",
        OF_OUTPUT,
        "Text is generated with a cache and measured without one: if they differ, neither predicts the other.",
        "Give rotary embeddings and masks the position of a token in the whole text, not in the step.",
        decoding.cached_decoding,
    ),
    AttentionCheck(
        "chunked_prefill",
        "a prompt in chunks equals the whole prompt",
        OF_OUTPUT,
        "Servers read long prompts in chunks, and a mask made for one chunk hides or shows the wrong keys.",
        "Offset the causal mask of a chunk by the number of cached tokens.",
        decoding.chunked_prefill,
    ),
    AttentionCheck(
        "backend",
        "every backend equals eager attention in float32",
        OF_OUTPUT,
        "A faster kernel has to be the same function: a difference beyond rounding is another model.",
        "Use another attn_implementation, and report the layer and the numbers to the authors of the backend.",
        arithmetic.backend,
    ),
    AttentionCheck(
        "returned_weights",
        "a backend returns the weights that it used",
        OF_ROW,
        "Analyses of weights that the output was not made of are about another model.",
        "Load the model with attn_implementation='eager' where you read weights.",
        arithmetic.returned_weights,
    ),
    AttentionCheck(
        "sinks",
        "sinks take their share of every row",
        OF_ROW,
        "A model trained with sinks attends to too much without them.",
        "Use a backend that takes s_aux (eager, or flash attention 3 with sinks).",
        arithmetic.sinks,
    ),
    AttentionCheck(
        "softcap",
        "scores are capped",
        OF_ROW,
        "A model trained with a soft-cap is too sure of its largest scores without it.",
        "Use a backend that takes softcap (eager, flex_attention, flash_attention_2).",
        arithmetic.softcap,
    ),
    AttentionCheck(
        "score_range",
        "scores fit into the type",
        "q·k",
        "A score beyond the largest number of float16 is infinite, and its row NaN.",
        "Run in bfloat16 or float32, or normalise queries and keys.",
        arithmetic.score_range,
    ),
    AttentionCheck(
        "max_positions",
        "no token is beyond the model's positions",
        "tokens",
        "Positions that were never trained give noise, or an index error in the middle of a run.",
        "Truncate texts, or configure RoPE scaling and train with it.",
        positions.max_positions,
        reads_only=True,
    ),
    AttentionCheck(
        "rope_scaling",
        "rotary frequencies follow the config",
        "of a frequency",
        "A scaling that is configured and not applied, or frequencies in bfloat16, show only in long texts.",
        "Check the spelling of rope_parameters (rope_type, factor), and keep inv_freq in float32.",
        positions.rope_scaling,
        reads_only=True,
    ),
    AttentionCheck(
        "dropout",
        "evaluation has no dropout",
        OF_OUTPUT,
        "Dropout in evaluation makes every measurement noisy and every answer worse.",
        "Call model.eval(), and pass dropout only if self.training.",
        decoding.dropout,
    ),
    AttentionCheck(
        "type_ids",
        "token types are the tokenizer's",
        "tokens",
        "An encoder that is not told where the second text begins was not trained for what it reads.",
        "Pass token_type_ids as the tokenizer makes them.",
        data.type_ids,
        reads_only=True,
    ),
    AttentionCheck(
        "special_tokens",
        "special tokens are there once",
        "in a row",
        "The first token takes much of the attention: a second or a missing one moves every layer.",
        "Tokenize text that a chat template made with add_special_tokens=False, and other text with True.",
        data.special_tokens,
        reads_only=True,
    ),
    AttentionCheck(
        "labels",
        "labels are shifted once",
        "tokens ahead",
        "A model trained on labels that are shifted twice learns to skip a token, with a smooth loss curve.",
        "Pass labels that equal input_ids: the model shifts them itself.",
        data.labels,
        reads_only=True,
    ),
)

# Of vision models alone.
PICTURE_CHECKS = (
    AttentionCheck(
        "row_sums",
        "the weights of every row sum to 1",
        OF_ROW,
        "A map on a picture is read as shares; weights that do not sum to 1 are none.",
        "Apply softmax over the keys, after the mask, and nothing behind it.",
        pictures.row_sums,
    ),
    AttentionCheck(
        "other_size",
        "positions in pictures of another size are interpolated",
        "of the largest position",
        "A table that is cut or repeated tells patches that they are elsewhere, and accuracy falls without an error.",
        "Interpolate the table as a grid of rows and columns, without the rows of the class token and registers.",
        pictures.other_size,
    ),
    AttentionCheck(
        "processor",
        "the image processor makes what the config says",
        "largest value",
        "Pixels of 0 to 255, or pictures of another size, are not what the model was trained on.",
        "Use the preprocessor_config.json of the checkpoint: do_rescale, image_mean and image_std, size or crop_size.",
        pictures.processor,
    ),
)
