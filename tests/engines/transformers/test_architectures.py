"""Every architecture: weights equal eager transformers, and what is shown obeys the laws of attention."""

import numpy as np
import pytest
import torch
import transformers as hf

from attnscope.checkpoints.families import FAMILIES
from attnscope.cli import main
from attnscope.findings.heads import STAGES, HeadReport
from tests.helpers.architectures import ONE_PART, TWO_PARTS, WORDS
from tests.helpers.transformers_runs import SOURCE, run


def eager(folder, report, part=None):
    """Every layer's weights of eager transformers for the report's first texts, one text at a time: no padding."""
    model = hf.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    for text in report.texts:
        ids = torch.tensor([[token.id for token in text.tokens]])
        with torch.no_grad():
            if part in ("decoder", "cross"):
                given = torch.tensor(
                    [[*(WORDS.index(word) for word in SOURCE.split()), WORDS.index("</s>")]]
                )
                found = model(input_ids=given, decoder_input_ids=ids, output_attentions=True)
                found = found.decoder_attentions if part == "decoder" else found.cross_attentions
            else:
                half = model.get_encoder() if part == "encoder" else model
                found = half(
                    input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True
                ).attentions
        yield [layer[0].numpy() for layer in found]


def check_against_eager(folder, report, part=None):
    for text, layers in zip(report.texts, eager(folder, report, part), strict=True):
        assert len(text.heads) == sum(len(layer) for layer in layers)
        for head in text.heads:
            theirs = layers[head.layer][head.head]
            np.testing.assert_allclose(
                head.stages["weights"], theirs[:, : len(text.sources)], rtol=0, atol=1e-5
            )


def check_laws(head: HeadReport):
    scores, scaled, masked, weights = (head.stages[stage] for stage in STAGES[:4])
    capped = scores * head.scale
    if head.softcap:
        capped = head.softcap * np.tanh(capped / head.softcap)
    if head.bias is None:
        np.testing.assert_allclose(scaled, capped, rtol=1e-4, atol=1e-4)
    barred = np.isneginf(masked)
    np.testing.assert_array_equal(masked[~barred], scaled[~barred])
    assert (weights[barred] == 0).all()
    total = weights.sum(1) + (0 if head.rows.sink is None else head.rows.sink)
    np.testing.assert_allclose(total, 1, atol=2e-6)


@pytest.mark.parametrize("name", ONE_PART)
def test_weights_equal_eager_transformers(folders, name):
    report = run(folders(name))
    assert report.provenance.engine == "transformers" and report.provenance.family == name
    assert report.provenance.versions["transformers"] == hf.__version__
    check_against_eager(folders(name), report)
    for text in report.texts:
        for head in text.heads:
            check_laws(head)


@pytest.mark.parametrize("name", ["albert", "electra", "mobilebert"])
def test_a_layer_is_as_wide_as_its_states_where_embeddings_are_narrower(folders, name, capsys):
    assert main(["info", "--model", str(folders(name))]) == 0
    assert "2, 32 wide" in capsys.readouterr().out


@pytest.mark.parametrize("part", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("name", TWO_PARTS)
def test_each_half_and_what_joins_them_equals_eager_transformers(folders, name, part):
    context = None if part == "encoder" else SOURCE
    report = run(folders(name), context=context, part=part)
    assert report.provenance.part == part
    check_against_eager(folders(name), report, part)
    for text in report.texts:
        assert (text.context is not None) == (part == "cross")
        for head in text.heads:
            check_laws(head)


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() & ONE_PART.keys()))
def test_both_engines_agree(folders, name):
    ours, theirs = (run(folders(name), engine=engine) for engine in ("native", "transformers"))
    for one, other in zip(ours.texts, theirs.texts, strict=True):
        for a, b in zip(one.heads, other.heads, strict=True):
            assert (a.layer, a.head, a.fully_masked) == (b.layer, b.head, b.fully_masked)
            for stage in STAGES:
                np.testing.assert_array_equal(
                    np.isneginf(a.stages[stage]), np.isneginf(b.stages[stage])
                )
                size = max(1.0, np.abs(a.stages[stage][np.isfinite(a.stages[stage])]).max())
                np.testing.assert_allclose(
                    a.stages[stage], b.stages[stage], rtol=0, atol=1e-5 * size
                )
