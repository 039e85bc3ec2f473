"""`--hide`: a hidden token is a column that a 4-D mask of transformers forbids, under both engines."""

import numpy as np
import pytest
import torch
from transformers import AutoModel

from attnscope.base.errors import UsageError
from tests.helpers.transformers_runs import SOURCE, TEXTS, run

CAUSAL = {"bert": False, "distilbert": False, "llama": True, "gpt2": True, "qwen3": True}


def _eager(folder, ids, allowed):
    """Weights of every layer under a 4-D mask, (L, H, Q, K)."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    added = torch.where(torch.from_numpy(allowed), 0.0, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad():
        out = model(torch.tensor([ids]), attention_mask=added, output_attentions=True)
    return torch.cat(out.attentions).numpy()


@pytest.mark.parametrize("engine", ["native", "transformers"])
@pytest.mark.parametrize("name", CAUSAL)
def test_weights_are_those_under_the_same_4_d_mask(folders, name, engine):
    """The first tokens are hidden: only hidden tokens are left without any key, so that no other row depends on how."""
    report = run(folders(name), engine=engine, hide="the,0:2,-1", stages=("weights",))
    assert (report.mask.hidden, report.mask.what_if) == ("the,0:2,-1", "stack")
    for text in report.texts:
        shown = [token.text for token in text.tokens]
        hidden = sorted(
            {0, 1, len(shown) - 1, *(i for i, word in enumerate(shown) if word == "the")}
        )
        assert text.hidden == hidden
        n = len(shown)
        allowed = np.tri(n, dtype=bool) if CAUSAL[name] else np.ones((n, n), dtype=bool)
        allowed[:, hidden] = False
        theirs = _eager(folders(name), [token.id for token in text.tokens], allowed)
        ours = np.stack([head.stages["weights"] for head in text.heads]).reshape(theirs.shape)
        seen = allowed.any(-1)
        assert text.heads[0].fully_masked == np.flatnonzero(~seen).tolist()
        np.testing.assert_allclose(ours[:, :, seen], theirs[:, :, seen], rtol=0, atol=1e-5)
        assert (ours[:, :, seen][..., hidden] == 0).all()


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_same_scores_hides_from_the_softmax_alone(folders, engine):
    """The weights of the other keys keep their proportions: they are the model's own, divided by what is left."""
    own = run(folders("llama"), engine=engine)
    other = run(folders("llama"), engine=engine, hide="1", what_if="same-scores")
    for a, b in zip(own.texts, other.texts, strict=True):
        for x, y in zip(a.heads, b.heads, strict=True):
            np.testing.assert_allclose(x.stages["scores"], y.stages["scores"], rtol=0, atol=1e-4)
            kept = np.where(np.arange(len(a.tokens)) == 1, 0, x.stages["weights"])
            left = kept.sum(-1, keepdims=True)
            np.testing.assert_allclose(y.stages["weights"], kept / left, rtol=0, atol=1e-5)


def test_words_are_those_of_the_context_under_cross_attention(folders):
    report = run(folders("bart"), part="cross", context=SOURCE, hide="ran")
    for text in report.texts:
        (column,) = text.hidden
        assert text.context[column].text == "ran"
        assert all((head.stages["weights"][:, column] == 0).all() for head in text.heads)


def test_a_word_that_a_text_lacks_is_an_error_that_names_it(folders):
    with pytest.raises(
        UsageError, match=r"hide: 'bank' is not in the text \(text\); the text has tokens 0 to"
    ):
        run(folders("bert"), hide="bank")
    with pytest.raises(UsageError, match="hide: 'sea' is not in the text; the text has tokens"):
        run(folders("bert"), texts=TEXTS[:1], hide="sea")
