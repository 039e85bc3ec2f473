"""The shipped sample, through our loader and through `transformers`, under both masks that it was trained under."""

from pathlib import Path

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer

from attnscope.checkpoints.locating import locate
from tests.helpers import native_stages, reference_stages
from tests.helpers.stage_differences import TOLERANCE, differences

TEXTS = [
    "The bank by the river",
    "The old man by the sea was tired because the fish had pulled his boat all night.",
    "Bat",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    return locate("riverbank").path


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_all_16_heads_equal_eager_transformers(folder: Path, causal: bool) -> None:
    config = hf.BertConfig.from_pretrained(folder, is_decoder=causal)
    theirs = hf.BertModel.from_pretrained(
        folder,
        config=config,
        attn_implementation="eager",
        dtype=torch.float32,
        add_pooling_layer=False,
    ).eval()
    stack = native_stages.open_stack(
        folder, lambda c: native_stages.with_mask(c, "causal") if causal else c
    )
    encodings = Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(TEXTS)
    lengths = [len(e.ids) for e in encodings]
    ids = torch.tensor([e.ids + [0] * (max(lengths) - len(e.ids)) for e in encodings])
    mine = native_stages.run(stack, ids, lengths)
    assert len(mine) * mine[0].weights.shape[1] == 16
    found = differences(mine, reference_stages.run(theirs, ids, lengths), lengths)
    assert max(found.values()) < TOLERANCE, found
