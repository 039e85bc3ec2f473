"""What a mask shows and hides beyond the model's own: against truth tables, and on the screen."""

import json
from random import Random

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from attnscope.request.masks.expression import parse_mask
from attnscope.run.mask_effect import MaskedText, forbids, mask_effect, shows_other_documents
from tests.helpers.architectures import write_tokenizer
from tests.helpers.draws import drawn
from tests.helpers.tiny_models import TABLE
from tests.masks.drawn import draw
from tests.referee import masks

OWN = {
    "causal": lambda query, key: key <= query,
    "bidirectional": lambda query, key: query == query + 0 * key,
    "causal+window:3": lambda query, key: (key <= query) & (query - key < 3),
}


def plan(n_tokens):
    return MaskedText(n_tokens, {})


@pytest.mark.parametrize("own", OWN)
def test_what_a_drawn_mask_changes_is_what_truth_tables_say(own):
    for number in range(drawn(60)):
        random = Random(f"{own}:{number}")
        expression, n = draw(random)
        query, key = np.arange(n)[:, None], np.arange(n)[None]
        of_model = OWN[own](query, key)
        used = masks.allowed(expression, of_model)
        effect = mask_effect([own], parse_mask(expression), [plan(n)], {})
        added = used & ~of_model
        assert effect.hides == bool((of_model & ~used).any()), expression
        assert bool(effect.added) == bool(added.any()), expression
        assert ("later" in effect.added) == bool((added & (key > query)).any()), expression
        far = added & (abs(query - key) >= 3) & (own == "causal+window:3")
        assert ("far" in effect.added) == bool(far.any()), expression


def test_matrices_of_files_are_compared_cell_by_cell():
    matrix = np.tril(np.ones((2, 5, 5), bool))
    terms = parse_mask("m.json")
    assert mask_effect(["causal"], terms, [plan(5)], {"m.json": matrix}) == ([], False)
    matrix[1, 4, 0] = False
    assert mask_effect(["causal"], terms, [plan(5)], {"m.json": matrix}) == ([], True)
    matrix[0, 0, 3] = True
    assert mask_effect(["causal"], terms, [plan(5)], {"m.json": matrix}) == (["later"], True)
    assert mask_effect(["causal"], parse_mask("own+m.json"), [plan(5)], {"m.json": matrix}) == (
        [],
        True,
    )


@pytest.mark.parametrize("own", OWN)
def test_cells_that_a_drawn_mask_forbids_are_those_of_truth_tables(own):
    for number in range(drawn(60)):
        random = Random(f"{own}:{number}")
        expression, n = draw(random)
        query, key = np.arange(n)[:, None], np.arange(n)[None]
        used = masks.allowed(expression, OWN[own](query, key))
        for _ in range(4):
            queries, keys = (random.sample(range(n), random.randint(1, min(2, n))) for _ in "qk")
            forbidden = forbids([own], parse_mask(expression), plan(n), {}, queries, keys)
            assert forbidden != used[np.ix_(queries, keys)].any(), (expression, queries, keys)


def test_cells_are_forbidden_only_if_every_layer_and_head_forbids_them():
    own = parse_mask("own")
    assert forbids(["causal"], own, plan(9), {}, [2], [5])
    assert forbids(["causal", "causal+window:3"], own, plan(9), {}, [2], [5])
    assert not forbids(["causal", "causal+window:3"], own, plan(9), {}, [5], [2])
    assert not forbids([], own, plan(9), {}, [2], [5])
    matrix = np.tril(np.ones((2, 5, 5), bool))
    terms = parse_mask("m.json")
    assert forbids(["bidirectional"], terms, plan(5), {"m.json": matrix}, [1], [2, 3])
    matrix[1, 1, 3] = True
    assert not forbids(["bidirectional"], terms, plan(5), {"m.json": matrix}, [1], [2, 3])


@pytest.mark.parametrize("command", ["run", "heads"])
def test_both_commands_name_the_mask_that_forbids_the_cell(command, capsys):
    """One said that no head had weight, the other `0 in all heads`, and neither why."""
    words = command, "The bank by the river", "--query", "bank", "--key", "river"
    assert main([*words, "--mask", "causal"]) == 0
    reason = "the mask causal forbids attention from this query to this key: the weight is 0 in every head"
    assert reason in " ".join(capsys.readouterr().out.split())
    assert main([*words, "--mask", "window:9"]) == 0
    assert "forbids" not in capsys.readouterr().out
    keys = ["--key", "the,river", "--mask", "causal"]
    assert main([*words[:-2], *keys]) == 0
    assert "from this query to" not in (shown := " ".join(capsys.readouterr().out.split()))
    assert "from these queries to these keys: the weight is 0 in every head" in shown


def test_documents_that_see_each_other_are_told():
    for expression, meet in (
        ("own", True),
        ("own+docs:3,2", False),
        ("own+window:1", False),
        ("own+docs:4,1", True),
    ):
        terms = parse_mask(expression)
        documents = {term: term.lengths for term in terms if hasattr(term, "lengths")}
        assert shows_other_documents(["causal"], terms, [3, 2], documents, 5) is meet, expression


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    (row,) = [row for row in TABLE if row.name == "llama"]
    path = tmp_path_factory.mktemp("model")
    row.save(path)
    write_tokenizer(path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    return path


def header(capsys, *words):
    assert main([*map(str, words)]) == 0
    out = capsys.readouterr().out
    return " ".join(out[: out.index("\ntext ")].split())


IDS = [4, 5, 6, 7, 8, 9]


def test_documents_without_an_end_hide_nothing_and_say_so(llama, tmp_path, capsys):
    ids = tmp_path / "ids.json"
    for tokens, ended in ((IDS, True), ([4, 5, 6, 5, 8, 7], False)):
        ids.write_text(json.dumps(tokens))
        alone = header(capsys, "run", "--input-ids", ids, "--model", llama, "--mask", "docs:eos")
        assert "shows later tokens, which the model's own mask hides" in alone
        assert ("(own+docs:eos hides them, too)" in alone) is ended
        assert ("--mask docs:eos: no token inside the text ends one" in alone) is not ended
        both = header(capsys, "run", "--input-ids", ids, "--model", llama, "--mask", "own+docs:eos")
        assert "shows later" not in both
        assert ("hides nothing here that the model's own mask shows" in both) is not ended
    found = attnscope.inspect(input_ids=IDS, model=llama, mask="own+docs:eos", layer=0, head=0)
    assert (found.data.mask.added, found.data.mask.hides) == ([], True)
    assert attnscope.inspect(input_ids=IDS, model=llama).data.mask.hides is None


def test_what_a_mask_hides_beside_hidden_tokens_is_said_of_it_alone(capsys):
    one = header(capsys, "run", "river", "--mask", "window:99")
    assert "bidirectional hides nothing here that the model's own mask shows" in one
    hidden = header(capsys, "run", "river", "--mask", "causal", "--hide", "0")
    assert "bidirectional causal alone hides nothing here that the model's own mask" in hidden


def test_positions_that_restart_show_both_readings(llama, tmp_path, capsys):
    """The mask shown, whether transformers reads across documents, and the mask that keeps them apart."""
    ids, row = tmp_path / "ids.json", {"input_ids": IDS, "position_ids": [0, 1, 2, 0, 1, 2]}
    ids.write_text(json.dumps(row))
    words = "run", "--input-ids", ids, "--model", llama
    shown = header(capsys, *words)
    assert (
        "position_ids restart at token 3, and tokens read the packed documents before theirs"
        in shown
    )
    assert (
        "with use_cache=False, it keeps documents apart; --mask own+docs:3,3 shows them apart"
        in shown
    )
    assert "restart" not in header(capsys, *words, "--mask", "own+docs:3,3")
    ids.write_text(json.dumps(row | {"attention_mask": [1] * 6}))
    assert "as in transformers with an attention_mask; --mask own+docs:3,3" in header(
        capsys, *words
    )
    ids.write_text(json.dumps(row | {"position_ids": [3, 4, 5, 6, 8, 9]}))
    assert "restart" not in header(capsys, *words)


def test_both_readings_are_those_of_transformers(llama):
    """With a cache, weights cross documents; without, they are those under the mask of the warning."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(llama, attn_implementation="eager").eval()
    tensors = {"input_ids": torch.tensor([IDS]), "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])}
    for use_cache, mask in ((True, "own"), (False, "own+docs:3,3")):
        with torch.inference_mode():
            expected = model(**tensors, use_cache=use_cache, output_attentions=True).attentions
        found = attnscope.inspect(
            **tensors, model=llama, mask=mask, layer="all", head="all", stages="weights"
        )
        np.testing.assert_allclose(found.weights, torch.cat(expected).numpy(), atol=1e-5)
