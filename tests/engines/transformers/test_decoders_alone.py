"""The decoder of an encoder-decoder, saved alone as a language model, is shown as any other decoder."""

import numpy as np
import pytest
import torch
import transformers as hf

from tests.families.census import small_config
from tests.helpers.architectures import write_tokenizer
from tests.helpers.tiny_models import raise_weights
from tests.helpers.transformers_runs import run

KINDS = (hf.BartForCausalLM, hf.MBartForCausalLM, hf.PegasusForCausalLM, hf.MarianForCausalLM)
NEW = 4  # tokens that are generated


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_its_weights_predictions_and_continuation_are_those_of_eager_attention(tmp_path, kind):
    torch.manual_seed(17)
    raise_weights(kind(small_config(kind.config_class)).eval()).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    model = kind.from_pretrained(tmp_path, attn_implementation="eager").eval()
    report = run(tmp_path, texts=("the bank by the river",), generate=NEW)
    (text,) = report.texts
    ids = torch.tensor([[token.id for token in text.tokens]])
    written = ids[:, : len(text.tokens) - NEW]
    with torch.no_grad():
        layers = model(ids, output_attentions=True).attentions
        options = {
            "max_new_tokens": NEW,
            "do_sample": False,
            "eos_token_id": -1,
            "forced_eos_token_id": None,
        }
        continued = model.generate(written, attention_mask=torch.ones_like(written), **options)
    assert continued[0].tolist() == ids[0].tolist()
    for head in text.heads:
        np.testing.assert_allclose(
            head.stages["weights"], layers[head.layer][0, head.head], rtol=0, atol=1e-5
        )
