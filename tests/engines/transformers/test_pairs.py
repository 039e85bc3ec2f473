"""Pairs: the model is given the type ids that its tokenizer gives, whichever engine runs it."""

import json

import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer

from attnscope.base.errors import AttnscopeError
from attnscope.request.run_config import TextInput
from attnscope.run.session import inspect
from attnscope.studies.explain.run import explain
from tests.helpers.architectures import ONE_PART, make, save
from tests.helpers.requests import requested

PAIRS = [("the bank by the river", "was old"), ("we sat", "on it all day while the water ran")]
START, END = (
    {"SpecialToken": {"id": "<s>", "type_id": 0}},
    {"SpecialToken": {"id": "</s>", "type_id": 0}},
)


def _template(first: int, second: int, special: int = 0) -> dict:
    def at(type_id, part):
        kind, value = next(iter(part.items()))
        return {kind: {**value, "type_id": type_id}}

    a, b = {"Sequence": {"id": "A"}}, {"Sequence": {"id": "B"}}
    pair = [at(special, START), at(first, a), at(first, END), at(second, b), at(second, END)]
    ids = {"<s>": 1, "</s>": 2}
    return {
        "type": "TemplateProcessing",
        "single": pair[:3],
        "pair": pair,
        "special_tokens": {
            name: {"id": name, "ids": [i], "tokens": [name]} for name, i in ids.items()
        },
    }


PROCESSORS = {
    "0 and 1, as BERT": _template(0, 1),
    "0 and 0": _template(0, 0),
    "1 and 0": _template(1, 0, special=1),
    "RoBERTa": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True,
                "add_prefix_space": False},
}  # fmt: skip


def _folder(path, name, processor, **config):
    folder = save(path, make(name, {**ONE_PART[name], **config}))
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["post_processor"] = processor
    file.write_text(json.dumps(content))
    return folder


def _run(folder, engine, pairs=PAIRS, **more):
    texts = tuple(TextInput(text, pair) for text, pair in pairs)
    return inspect(
        requested(
            texts, str(folder), engine=engine, layer="all", head="all", stages=("weights",), **more
        )
    )


@pytest.mark.parametrize("engine", ["native", "transformers"])
@pytest.mark.parametrize("processor", PROCESSORS.values(), ids=PROCESSORS)
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_weights_equal_eager_transformers_fed_with_the_tokenizers_type_ids(
    tmp_path, name, processor, engine
):
    folder = _folder(tmp_path, name, processor, type_vocab_size=2)
    report = _run(folder, engine)
    model = hf.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text, pair in zip(report.texts, PAIRS, strict=True):
        encoding = tokenizer.encode(*pair)
        ids, types = torch.tensor([encoding.ids]), torch.tensor([encoding.type_ids])
        with torch.no_grad():
            layers = model(ids, token_type_ids=types, output_attentions=True).attentions
            others = model(ids, token_type_ids=1 - types, output_attentions=True).attentions
        assert [token.type_id for token in text.tokens] == encoding.type_ids
        for head in text.heads:
            theirs = layers[head.layer][0, head.head].numpy()
            np.testing.assert_allclose(head.stages["weights"], theirs, rtol=0, atol=1e-5)
        assert max(float((a - b).abs().max()) for a, b in zip(layers, others, strict=True)) > 0.01


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_a_type_id_that_the_model_has_no_row_for_is_refused(tmp_path, engine):
    folder = _folder(tmp_path, "bert", _template(0, 1), type_vocab_size=1)
    with pytest.raises(AttnscopeError) as error:
        _run(folder, engine)
    assert str(error.value) == (
        "pair: token 'was' has type id 1, but the model's segment table has 1 row, for a single text "
        "(type_vocab_size); "
        "remove pair, or use the model's own tokenizer"
    )
    assert len(_run(folder, engine, [("the bank", None)]).texts) == 1


def test_explain_names_the_row_of_the_segment_table_that_the_model_was_given(tmp_path):
    folder = _folder(tmp_path, "bert", PROCESSORS["1 and 0"], type_vocab_size=2)
    texts = (TextInput(*PAIRS[0]),)
    explanation = explain(
        requested(texts, str(folder), layer="0", head="0", query="was", stages=())
    )
    segment = next(vector for vector in explanation.inputs if vector.name == "segment")
    table = (
        hf.AutoModel.from_pretrained(folder)
        .embeddings.token_type_embeddings.weight.detach()
        .numpy()
    )
    assert segment.formula == "row 0 of the segment table"
    np.testing.assert_allclose(segment.values, table[0], rtol=1e-6)
