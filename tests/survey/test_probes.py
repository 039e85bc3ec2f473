"""Random tokens are what they are said to be, and sums over them what other formulas say."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import attnscope
from attnscope.checkpoints.gguf import open_gguf
from attnscope.checkpoints.source import tokenize
from attnscope.cli import main
from attnscope.findings.head_roles import ROLES, jackknife
from attnscope.model.attention import attend
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.recorders import TargetRecorder, UniformRecorder, WordRecorder
from attnscope.request.masks.terms import Bidirectional, Causal
from attnscope.request.run_config import TextInput
from attnscope.run.session import Session
from attnscope.studies.heads.measure import ProbePass, Sums
from attnscope.studies.heads.probes import draw_probes, special_frame
from tests.helpers import architectures, gguf_files
from tests.helpers import head_roles as reference
from tests.helpers.requests import requested


def drawn(model, draws=5, seed=0):
    run = requested((TextInput("the bank"),), str(model))
    source = Session(run.texts).source(run)
    tokens, _ = tokenize(source, "the bank", None, "TEXT", truncate=False)
    return source, draw_probes(source, special_frame(source, tokens), draws, seed)


def test_probes_of_a_real_vocabulary(minilm):
    source, random = drawn(minilm)
    assert (random.repeated, random.needle, random.tripled, len(random.probes)) == (50, 10, 16, 15)
    assert [token.piece for token in random.before + random.after] == ["[CLS]", "[SEP]"]
    special = {0, 100, 101, 102, 103}  # [PAD] [UNK] [CLS] [SEP] [MASK]
    depths = set()
    for number, probe in enumerate(random.probes):
        ids = [token.id for token in probe.tokens]
        inside = ids[1:-1]
        assert not special & set(inside) and max(inside) < source.config.vocab_size
        assert (len(ids), probe.draw) == (102 if number < 10 else 50, number % 5)
        if number < 5:
            assert inside[:50] == inside[50:] and len(set(inside)) == 50
            for name, after in (("duplicate", 0), ("induction", 1)):
                rows, keys = probe.targets[name]
                assert list(rows) == list(range(51, 101))
                assert all(
                    ids[key - after] == ids[row] for row, key in zip(rows, keys, strict=True)
                )
        elif number < 10:
            rows, keys = probe.targets["retrieval"]
            needle = inside[-10:]
            assert [ids[row] for row in rows] == needle[:-1] and [
                ids[key] for key in keys
            ] == needle[1:]
            assert all(inside.count(one) == 2 for one in needle)
            depths.add(keys.start)
        else:
            assert inside[:16] == inside[16:32] == inside[32:] and len(set(inside)) == 16
            rows, keys = probe.targets["second-order"]
            assert list(rows) == list(range(33, 49)) and list(keys) == list(range(2, 18))
    assert len(depths) > 2


def test_a_model_gets_the_same_probes_however_it_is_opened(tmp_path):
    """As a folder, as a GGUF file, by transformers, and as a live model: its begin token is that of its config."""
    file, folder = tmp_path / "m.gguf", tmp_path / "folder"
    model = gguf_files.write(file, "llama", "F32", {"tokenizer.ggml.bos_token_id": 1})
    model.save_pretrained(folder)
    written = open_gguf(file).tokenizer
    assert written is not None
    (folder / "tokenizer.json").write_bytes(written)
    asked = {"text": ["ab abc A B C", "C B A"], "draws": 2}
    first, *others = (
        attnscope.heads(**asked, **given)
        for given in (
            {"model": folder},
            {"model": file},
            {"model": folder, "engine": "transformers"},
            {"model": model, "tokenizer": folder / "tokenizer.json"},
        )
    )
    assert first.probes.before == ["A"]
    for other in others:
        assert other.probes.before == first.probes.before
        np.testing.assert_allclose(other.values, first.values, atol=1e-4)


def test_a_text_without_words_decides_nothing(minilm):
    """It has no place for words between its special tokens, and is no block of the standard error."""
    options = {"model": minilm, "role": ["first", "induction"], "draws": 2}
    found = attnscope.heads(
        text=["\u200b", "the bank by the river", "we sat on it all day"], **options
    )
    expected = attnscope.heads(text=["the bank by the river", "we sat on it all day"], **options)
    assert (found.probes.before, found.probes.after) == (["[CLS]"], ["[SEP]"])
    assert np.isfinite(expected.errors).all()
    np.testing.assert_allclose(found.errors, expected.errors, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-5, atol=1e-7)


def test_the_error_of_a_ratio_is_that_of_leaving_each_text_out():
    """Weights 0.5 and 0.2 of 10 and 20 rows: without the first 0.2, without the second 0.5."""
    sums = {
        "first": np.array([5.0, 4.0, 0.0])[:, None, None],
        "rows": np.array([10.0, 20.0, 0.0])[:, None, None],
    }
    value, error = jackknife(sums, ROLES["first"])
    assert (value.item(), error.item()) == pytest.approx((0.3, 0.15))
    assert np.isnan(
        jackknife({name: each[1:] for name, each in sums.items()}, ROLES["first"])[1]
    ).all()


def test_a_seed_gives_the_same_probes_and_another_one_others(minilm):
    first, again, other = (drawn(minilm, 2, seed)[1].probes for seed in (0, 0, 1))
    assert first == again != other


def test_probes_of_a_small_model_are_shorter(tmp_path):
    folder = architectures.save(
        tmp_path, architectures.make("gpt2", architectures.ONE_PART["gpt2"])
    )
    _, random = drawn(folder)
    assert random.repeated == 16  # words of the vocabulary that are not special
    assert (random.needle, random.tripled) == (8, 15)
    assert all(len(probe.tokens) <= 48 for probe in random.probes)


def test_a_note_names_the_roles_that_were_asked_for():
    for roles, said in (
        (["previous"], []),
        (["previous", "induction"], ["induction is not measured"]),
    ):
        notes = attnscope.heads(config="causal", text="a b c", role=roles).data.notes
        assert [note.split(":")[0] for note in notes] == said


def test_a_note_says_why_roles_of_words_are_not_measured(capsys):
    asked = {"model": "riverbank", "role": ["previous", "induction"], "draws": 2}
    expected = "previous is not measured: no text has a word after its first two tokens"
    assert attnscope.heads(text=["bank", "the bank"], **asked).data.notes == [expected]
    assert attnscope.heads(text=["bank", "by the bank"], **asked).data.notes == []
    assert main(["heads", "bank", "--draws", "2"]) == 0
    assert "texts    1 (given), 1 token\n" in capsys.readouterr().out


def test_a_draw_counts_in_its_block_whichever_pass_it_is_in():
    _, random = drawn("riverbank", 20)
    sums = Sums((1, 2), 1, 20, 10)
    for first, last in ((0, 7), (7, 33), (33, 60)):  # a pass may begin and end within a kind
        here = ProbePass(
            random.probes[first:last],
            SimpleNamespace(layers=[0], sizes=(1, 2)),
            torch.device("cpu"),
        )
        for recorder in here.recorders[0]:
            recorder.sums += torch.arange(first, last)[:, None, None] % 20  # the number of its draw
        here.add_to(sums)
    expected = [sum(draw for draw in range(20) if draw % 16 == block) for block in range(16)]
    for name, rows, count in (
        ("duplicate", "copies", 50),
        ("induction", "copies", 50),
        ("retrieval", "copied", 9),
        ("second-order", "thirds", 16),
    ):
        assert sums.arrays[name][:, 0].tolist() == [[value, value] for value in expected], name
        assert sums.arrays[rows][:, 0, 0].tolist() == [
            count * (1 + (block < 4)) for block in range(16)
        ]


@pytest.mark.parametrize("mask", [Causal(), Bidirectional()], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("tile", [None, 40])
@pytest.mark.parametrize("reach", [3, 30, None])
def test_recorded_sums_are_those_of_whole_matrices(mask, tile, reach):
    generator = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(2, 3, 13, 4, generator=generator) * 2 for _ in range(3))
    inputs = AttentionInputs(0, q, k, v, AttentionSpec(0.5, mask))
    counted, words = (torch.rand(2, 13, generator=generator) < 0.7 for _ in range(2))
    targets = torch.randint(-1, 13, (2, 13, 2), generator=generator)
    measured = counted & (torch.rand(2, 13, generator=generator) < 0.7)
    pairs = WordRecorder(range(3), counted, words, reach=reach, measured=measured)
    uniform, on_targets = (
        UniformRecorder(range(3), counted),
        TargetRecorder(range(3), range(13), targets),
    )
    most = TargetRecorder(range(3), [2, 5, 6, 12], targets[:, [2, 5, 6, 12]], strongest=True)
    attend(inputs, [pairs, uniform, on_targets, most], need_output=False, tile_elements=tile)
    scores = (q @ k.mT * 0.5).double()
    allowed = torch.ones(13, 13, dtype=torch.bool).tril(0 if isinstance(mask, Causal) else 13)
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1).numpy()
    width = 1 if reach is None else 2 * min(reach, 12) + 2
    sums, squares, cells = np.zeros((2, 3, width)), np.zeros((2, 3)), np.zeros((2, width))
    of_place: dict[tuple[int, str, int], list[tuple[int, int]]] = {}
    shared, total, hits = np.zeros((2, 3)), np.zeros((2, 3, 2)), np.zeros((2, 3, 2))
    for text in range(2):
        for i in range(13):
            row = weights[text, :, i]
            for n, key in enumerate(targets[text, i].tolist()):
                if key >= 0:
                    total[text, :, n] += row[:, key]
                    hits[text, :, n] += (row.argmax(-1) == key) & (i in (2, 5, 6, 12))
            if not counted[text, i]:
                continue
            shared[text] += np.minimum(row, 1 / allowed[i].sum().item()).sum(-1)
            for j in range(13):
                if words[text, j] and allowed[i, j]:
                    at = -1 if reach is None or abs(j - i) > reach else j - i + min(reach, 12)
                    sums[text, :, at] += row[:, j]
                    squares[text] += row[:, j] ** 2
                    cells[text, at] += 1
                    if reach is None or i != j:
                        for kind, number in (("key", j), ("offset", at))[
                            : 1 if reach is None else 2
                        ]:
                            of_place.setdefault((text, kind, number), []).append((i, j))
    excess = np.full((2, 3, 13, 13), np.inf)
    for text, kind, number in of_place:
        group = of_place[text, kind, number]
        for i, j in group:
            others = sum(weights[text, :, a, b] for a, b in group if (a, b) != (i, j))
            above = np.maximum(weights[text, :, i, j] - others / len(group), 0.0)
            excess[text, :, i, j] = np.minimum(excess[text, :, i, j], above)
    excess = (
        np.where(np.isfinite(excess), excess, 0.0)
        * (weights >= 1 / 16)
        * measured.numpy()[:, None, :, None]
    )
    for ours, theirs in (
        (pairs.sums, sums),
        (pairs.squares, squares),
        (pairs.cells, cells),
        (pairs.excess, excess.sum((2, 3))),
        (uniform.shared, shared),
        (uniform.rows_seen, counted.sum(1, keepdim=True).expand(-1, 3).double().numpy()),
        (on_targets.sums, total),
        (most.sums, hits),
    ):
        np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-5)


def test_scores_of_repeated_tokens_are_those_of_transformerlens(minilm):
    """Its head_detector divides the weight on a pattern of pairs by all of the weight (`error_measure="mul"`).

    The patterns are those of `get_duplicate_token_head_detection_pattern` and
    `get_induction_head_detection_pattern` in TransformerLens 2.
    """
    _, random = drawn(minilm, 1)
    ids = [token.id for token in random.probes[0].tokens]
    seen = reference.Eager(minilm).ids(ids)
    equal = np.array(ids)[:, None] == np.array(ids)
    duplicate = np.tril(equal & ~np.eye(len(ids), dtype=bool))
    induction = np.roll(duplicate, 1, axis=1)
    induction[:, 0] = False
    for name, pattern in (("duplicate", duplicate), ("induction", np.tril(induction))):
        theirs = (seen.weights * pattern).sum((-2, -1)) / seen.weights.sum((-2, -1))
        rows, keys = random.probes[0].targets[name]
        ours = seen.weights[:, :, list(rows), list(keys)].mean(-1)
        np.testing.assert_allclose(ours * len(rows) / len(ids), theirs, atol=1e-9)
