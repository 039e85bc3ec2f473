"""What `attnscope doctor` says, how it says it, and what it leaves as it was."""

import json
import re
import xml.etree.ElementTree as ET
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.cli import main
from attnscope.findings.doctor import DoctorCheck
from attnscope.studies.doctor.checks import CHECKS
from attnscope.studies.doctor.screen import _columns, _words
from attnscope.studies.doctor.subject import make_subject
from attnscope.testing import assert_attention_is_sound
from tests.doctor.bugs import TEXTS, block_mask, ids, model, pack, padded, tokenizer
from tests.doctor.sound import batches
from tests.helpers.schemas import validate


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    model("llama").save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def leaking():
    tokens, positions, documents = pack()
    given = {
        "input_ids": tokens,
        "position_ids": positions,
        "attention_mask": torch.ones_like(tokens),
    }
    return given, documents[0].numpy()


def test_the_weight_on_other_documents_is_that_of_eager_attention():
    batch, documents = leaking()
    made = model("llama")
    weights = made(**batch, use_cache=False, output_attentions=True).attentions
    other = documents[:, None] != documents
    most = max(float((each[0].detach().numpy() * other).sum(-1).max()) for each in weights)
    evidence = attnscope.doctor(made, batch)["packed_documents"].evidence
    measured = next(each for each in evidence if each.examined == "batch, eager")
    assert measured.verdict == "wrong" and measured.value == pytest.approx(most, rel=1e-5)
    pairs = sum(int(((each[0, 0].detach().numpy() > 0) & other).sum()) for each in weights[:1])
    assert f"{pairs} pairs" in measured.reason


def test_a_pack_that_only_end_tokens_mark_is_never_ok():
    """The usual bug: documents one after the other, a mask of ones, no position_ids; ten drawn batches."""
    made = model("llama")
    end = made.config.eos_token_id
    generator = torch.Generator().manual_seed(0)
    for n_documents in range(2, 12):
        documents = [
            torch.randint(5, 40, (int(size),), generator=generator)
            for size in range(2, 2 + n_documents)
        ]
        row = torch.cat([torch.cat((document, torch.tensor([end]))) for document in documents])[
            None
        ]
        packed = {"input_ids": row, "attention_mask": torch.ones_like(row)}
        found = attnscope.doctor(made, packed, attn=["eager"])
        for name in ("packed_documents", "packed_with_cache", "packed_positions"):
            assert found[name].verdict == "unknown", (n_documents, name)
            assert (
                "if it is a pack, its documents read each other; give the number of the document of"
                in found[name].reason
            )
        (batch,) = {item.examined for item in found["packed_documents"].evidence}
        assert batch == "batch"
        if n_documents == 2:
            numbers = torch.cat([torch.full((len(d) + 1,), n) for n, d in enumerate(documents)])[
                None
            ]
            assert (
                attnscope.doctor(made, packed, documents=numbers)["packed_documents"].verdict
                == "wrong"
            )
    shown = found.text(width=300)
    assert shown.index("\npacked documents, packed with cache, packed positions  a row has") < (
        shown.index("\ncheck ")
    )
    assert shown.count("tells documents apart") == 1
    assert "nothing is wrong" not in shown
    for alone in (torch.tensor([[7, 8, 9, end]]), torch.tensor([[end, end, 7, 8, end]])):
        found = attnscope.doctor(
            made, {"input_ids": alone, "attention_mask": torch.ones_like(alone)}, attn=["eager"]
        )
        assert found["packed_documents"].verdict == "ok", alone


def test_every_row_says_whose_texts_it_is_about(llama):
    """Without a batch nothing is about the caller's; a batch that fails in one row changes that row alone."""
    batch, _ = leaking()
    made = model("llama")
    alone = attnscope.doctor(made, attn=["eager"])
    assert {source for check in alone.checks for source in check.texts} == {"random"}
    words = attnscope.doctor(llama, attn="eager")
    assert words["special_tokens"].texts == ["own"] and words["padding"].texts == ["random"], (
        "words are not known"
    )
    given = attnscope.doctor(llama, attn="eager", texts=TEXTS)
    assert {source for check in given.checks for source in check.texts} == {"given"}
    both = attnscope.doctor(made, batch, attn=["eager"])
    assert both["packed_documents"].texts == ["batch"], (
        "packs of other texts say nothing about this one"
    )
    assert both["padding"].texts == ["random"], "nothing in the batch is padded"
    assert both["score_range"].texts == ["random", "batch"]
    for check in both.checks:
        textless = check.verdict == "inapplicable" or check.name in (
            "rope_scaling",
            "padding_is_eos",
        )
        assert check.texts or textless, check.name
        for item in check.evidence:
            about_batch = item.examined.startswith(("batch", "documents of batch"))
            assert (item.texts == "batch") == about_batch, item
    screen = both.text(width=120)
    table = screen.partition("number: ")[0].splitlines()
    # names are words, and columns are two blanks apart
    rows = {line.split("  ")[0]: re.split(" {2,}", line) for line in table}
    assert rows["packed documents"][5] == "batch" and rows["padding"][5] == "random"
    assert len(rows) > 4 and not [name for name in rows if "_" in name]


def test_every_number_says_what_it_is(llama):
    """A number of a screen, as 3 beside 0.000805, was of tokens, outputs or weights, which no row said."""
    batch, _ = leaking()
    found = attnscope.doctor(llama, batch, attn="eager")
    units = {check.name: check.unit for check in found.checks if check.unit}
    measured = [check for check in found.checks if check.verdict in ("ok", "wrong", "depends")]
    assert set(units) == {check.name for check in measured}
    # a share of weights or outputs where masks are read or outputs compared, a count where tokens are counted
    assert units["packed_documents"] in ("of a row's weight", "of output")
    expected = {"score_range": "q·k", "max_positions": "tokens", "rope_scaling": "of a frequency"}
    assert {name: units[name] for name in expected} == expected
    longest = max(batch["input_ids"].shape[1], found["max_positions"].value)
    assert found["max_positions"].value == longest
    for item in (item for check in measured for item in check.evidence):
        assert bool(item.unit) == (item.verdict in ("ok", "wrong", "depends")), item
    rows = [re.split(" {2,}", line) for line in found.text(width=120).splitlines()]
    shown = {row[0]: row[4] for row in rows if len(row) > 4}
    for check in measured:
        if check.value is not None and "eos" not in check.name:
            assert shown[check.name.replace("_", " ").replace("mask 4d", "4-D mask")] == check.unit


def test_a_window_is_counted_in_keys():
    made = model("mistral", sliding_window=4)
    check = attnscope.doctor(made, attn=["eager"])["window"]
    assert (check.value, check.limit, check.unit) == (4, 4, "keys")


def test_help_names_the_checks_that_screens_name_otherwise(capsys):
    """Screens write names without underscores, and two in words of their own, which JSON and JUnit do not have."""
    with suppress(SystemExit):
        main(["doctor", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    for check in CHECKS:
        plain_words = check.name.replace("_", " ")
        if _words(check.name) != plain_words:
            assert f"{_words(check.name)} is {check.name}" in told
    assert "packed documents is packed_documents" in told


def test_left_padding_that_moves_outputs_is_shown_with_its_number_and_repair():
    made = model("gpt2")
    found = attnscope.doctor(made, attn=["eager"])
    check = found["padding_positions"]
    assert (check.verdict, found.passed) == ("depends", True)
    generator_rows, mask = padded("left", (9, 6, 7))
    with torch.no_grad():
        together = made(input_ids=generator_rows, attention_mask=mask).logits
        alone = made(input_ids=generator_rows[1:2, 3:]).logits
    moved = float((together[1, 3:] - alone[0]).abs().max()) / max(1.0, float(alone.abs().max()))
    assert moved > check.limit and check.value > check.limit, (
        "the same happens in a batch made here"
    )
    screen = " ".join(found.text(width=200).split())
    assert (
        "padding positions depends on how the model is called" in screen and check.repair in screen
    )
    assert f"{check.value:.3g}" in screen


def test_what_does_not_apply_is_one_line():
    """Exactly the checks whose object the model lacks: GPT-2 has neither windows, sinks nor rotary positions."""
    found = attnscope.doctor(model("gpt2"), attn=["eager"])
    without = [check.name for check in found.checks if check.verdict == "inapplicable"]
    assert {"window", "prefix", "sinks", "softcap", "rope_scaling", "labels"} <= set(without)
    assert not {"future", "padding", "packed_documents", "cached_decoding"} & set(without)
    screen = found.text(width=100)
    special = {"mask_4d": "4-D mask", "padding_is_eos": "padding is the end token"}
    words = [special.get(name, name.replace("_", " ")) for name in without]
    line = f"{len(without)} checks do not apply: {', '.join(words)}"
    assert line in " ".join(screen.split())
    assert f"{len(without)} do not apply" in " ".join(screen.split()), (
        "the last line counts them, too"
    )
    assert not any(
        screen.count(name) > 1 for name in ("sinks", "softcap", "rope_scaling", "labels")
    )


def test_the_change_by_a_neighbour_is_that_of_the_logits():
    batch, documents = leaking()
    made = model("gpt2")
    evidence = attnscope.doctor(made, batch)["packed_documents"].evidence
    first = next(
        each
        for each in evidence
        if each.examined == "batch with the other document replaced, eager"
    )
    row, where = documents == 1, first.where
    with torch.no_grad():
        plain = made(**batch, use_cache=False).logits[0].numpy()
    assert 0 < first.value < 10 and int(where.split()[2]) in np.flatnonzero(row), where
    assert first.limit == 1e-5 and np.isfinite(plain).all()


def test_the_largest_score_is_that_of_queries_and_keys():
    """Of a model with one layer, whose queries and keys are what its projections make of the embeddings."""
    made = model("llama", num_hidden_layers=1, num_key_value_heads=4)
    batch = {"input_ids": ids(2, 9)}
    seen = {}

    def keep(module, q, k, v, mask, scaling=None, **_):
        seen["most"] = max(seen.get("most", 0.0), float((q @ k.mT).abs().max()))
        return nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=scaling).transpose(
            1, 2
        ), None

    from transformers import AttentionInterface

    AttentionInterface.register("keeping", keep)
    try:
        made.set_attn_implementation("keeping")
        with torch.no_grad():
            made(**batch, use_cache=False)
        made.set_attn_implementation("eager")
    finally:
        AttentionInterface._global_mapping.pop("keeping")
    evidence = attnscope.doctor(made, batch)["score_range"].evidence
    measured = next(each for each in evidence if each.examined == "batch, eager")
    assert measured.value == pytest.approx(seen["most"], rel=1e-5)


def test_the_model_is_afterwards_as_it_was():
    made = model("qwen2").train()
    made.lm_head.eval()
    before = {name: value.clone() for name, value in made.state_dict().items()}
    modes = [module.training for module in made.modules()]
    hooks = [len(module._forward_hooks) for module in made.modules()]
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    attnscope.doctor(made, {"input_ids": ids(2, 9)}, attn=["eager", "sdpa", "flex_attention"])
    assert torch.equal(torch.rand(3), expected), (
        "the user's random numbers go on as if nothing had been drawn"
    )
    assert [module.training for module in made.modules()] == modes
    assert [len(module._forward_hooks) for module in made.modules()] == hooks
    assert made.config._attn_implementation == "eager"
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    assert all(parameter.grad is None for parameter in made.parameters())


def test_nothing_is_ok_that_did_not_run():
    result = attnscope.doctor(model("gpt_oss"), attn=["sdpa"])
    assert [backend.ran for backend in result.data.backends if backend.name == "sdpa"] == [False]
    assert "GptOssForCausalLM" in next(
        each.note for each in result.data.backends if each.name == "sdpa"
    )
    assert any(
        each.verdict == "unknown" and each.examined == "sdpa" for each in result["backend"].evidence
    )
    assert result["backend"].verdict == "unknown" and result["backend"].reason.startswith(
        "sdpa did not run"
    )
    plain = nn.Sequential(nn.Embedding(60, 8), nn.Linear(8, 60))
    alone = attnscope.doctor(
        plain, {"input_ids": ids(2, 8)}, call=lambda module, batch: module(batch["input_ids"])
    )
    told = {check.name for check in alone.checks if check.verdict == "ok"}
    assert told <= {"dropout", "score_range", "max_positions"}
    assert all(check.reason for check in alone.checks if check.verdict == "unknown")


@pytest.mark.parametrize("name", ["padding_mask", "special_tokens", "labels", "packed_documents"])
def test_a_check_without_a_batch_says_so(name):
    check = attnscope.doctor(model("gpt2"))[name]
    assert check.verdict in ("unknown", "inapplicable") or name == "packed_documents"
    assert check.evidence and all(
        each.reason for each in check.evidence if each.verdict not in ("ok", "wrong")
    )


def test_padding_with_ends_is_told_apart_from_ends():
    """The first end token is the text's, if the mask says so; with all of them attended, they are padding."""
    made = tokenizer(pad_token="</s>")
    tokens, mask = padded("right", (9, 6, 7), pad=2)
    tokens[:, 0] = 1
    for row, length in enumerate((9, 6, 7)):
        tokens[row, length - 1] = 2
    right = {
        "input_ids": tokens,
        "attention_mask": mask,
        "labels": tokens.masked_fill(mask == 0, -100),
    }
    options = {"tokenizer": made, "texts": TEXTS}
    sound = attnscope.doctor(model("llama"), right, **options)
    assert sound["padding_is_eos"].verdict == "ok" and sound.passed
    ones = {**right, "attention_mask": torch.ones_like(mask)}
    assert attnscope.doctor(model("llama"), ones, **options)["padding_mask"].verdict == "wrong"


def test_a_padded_batch_without_mask_is_right_if_nothing_depends_on_it():
    """A decoder does not look at padding on the right."""
    tokens, _ = padded("right")
    check = attnscope.doctor(model("llama"), {"input_ids": tokens})["padding_mask"]
    assert check.verdict == "ok" and check.limit == 1e-5


def test_a_packed_batch_with_padding_at_its_end_is_right():
    tokens, positions, documents = pack()
    mask = block_mask(documents)
    mask[:, :, :, 15:], mask[:, :, 15:] = mask.min(), mask.min()
    mask[:, :, range(15, 18), range(15, 18)] = 0
    tokens[:, 15:] = 0
    batch = {"input_ids": tokens, "position_ids": positions, "attention_mask": mask}
    result = attnscope.doctor(model("llama"), batch, attn=["eager", "sdpa"])
    assert result.passed and result.data.batches[0].padding == 3


def test_dropout_takes_back_what_cannot_be_compared():
    made = model("llama")

    class Dropping(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x, 0.3, training=True)

    made.model.norm = nn.Sequential(made.model.norm, Dropping())
    result = attnscope.doctor(made)
    assert [check.name for check in result.wrong] == ["dropout"]
    assert "differ from run to run" in result["padding"].reason


def test_the_result_in_python(llama):
    result = attnscope.doctor(str(llama), attn="eager")
    assert [check.name for check in result.checks] == [check.name for check in CHECKS]
    assert result.passed and not result.wrong and result["padding"].verdict == "ok"
    assert {check.verdict for check in result.checks} == {"ok", "inapplicable", "depends"}
    assert "nothing is wrong" in repr(result) and "padding" in result.text(width=100)
    assert list(result.to_pandas().columns[:5]) == ["name", "title", "verdict", "value", "limit"]
    assert result.data.kind == "causal" and result.data.passes > 20 and result.data.seeds
    validate(json.loads(result.to_json()), "doctor")
    with pytest.raises(KeyError):
        result["nothing"]


def test_the_assertion_names_check_number_place_and_repair():
    batch, _ = leaking()
    made = model("llama")
    with pytest.raises(
        AssertionError, match=r"(?s)packed_documents: wrong at eager.*repair: Pass position_ids"
    ) as e:
        assert_attention_is_sound(made, batch)
    assert "limit" in str(e.value)
    assert assert_attention_is_sound(made, batch, known={"packed_documents"}).wrong
    with pytest.raises(AssertionError, match="labels: does not apply"):
        assert_attention_is_sound(made, required={"labels"})
    with pytest.raises(KeyError):
        assert_attention_is_sound(made, known={"label"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": 3}, "int is not a model"),
        ({"model": nn.Linear(2, 2)}, "Linear is not of transformers"),
        ({"model": nn.Linear(2, 2), "batch": [1]}, "list is not a batch"),
        ({"model": nn.Linear(2, 2), "batch": {}}, "has no input_ids"),
        ({"model": nn.Linear(2, 2), "kind": "decoder"}, "must be causal"),
        ({"model": nn.Linear(2, 2), "collator": 3}, "cannot be called"),
        ({"model": nn.Linear(2, 2), "attn": [3]}, "is not a list of names"),
        ({"model": nn.Linear(2, 2), "attention": "sdpa"}, "has no argument 'attention'"),
        ({"model": nn.Linear(2, 2), "dtype": "float32"}, "has its own"),
        (
            {"attn": "sdp"},
            "attn: transformers has no implementation of attention 'sdp'; did you mean 'sdpa'?",
        ),
        ({"documents": [[0, 1]]}, "documents: describes a batch"),
        (
            {"batch": {"input_ids": ids(2, 8)}, "documents": ids(2, 7)},
            "documents: has another shape",
        ),
        ({"batch": {"input_ids": ids(2, 8)}, "prefix": 9}, "prefix: must be 1 to 8, not 9"),
        (
            {"batch": {"input_ids": ids(2, 8)}, "prefix": [1, 2, 3]},
            r"prefix: \[1, 2, 3\] is no length",
        ),
        ({"batch": {"input_ids": ids(2, 8) + 1000}}, "batch: the model does not take the batch"),
    ],
)
def test_what_cannot_be_examined_is_refused_in_one_line(llama, arguments, message):
    with pytest.raises(AttnscopeError, match=message) as e:
        attnscope.doctor(**{"model": llama, **arguments})
    assert "\n" not in str(e.value)


def test_doctor_on_the_command_line_writes_valid_reports(llama, tmp_path, capsys):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    assert (
        main(["doctor", "-m", str(llama), "--attn", "eager,sdpa", "--file", str(texts), "--json"])
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    validate(report, "doctor")
    assert report["texts"] == TEXTS and [backend["name"] for backend in report["backends"]] == [
        "eager",
        "sdpa",
    ]
    assert (
        main(["doctor", "-m", str(llama), "--attn", "eager", "-o", str(tmp_path / "doctor.xml")])
        == 0
    )
    suite = ET.parse(tmp_path / "doctor.xml").getroot()
    cases = suite.findall(".//testcase")
    assert (
        suite.get("tests") == str(len(CHECKS)) == str(len(cases)) and suite.get("failures") == "0"
    )
    assert len(suite.findall(".//skipped")) == int(suite.get("skipped")) > 3
    assert (
        main(["doctor", "-m", str(llama), "--attn", "eager", "-o", str(tmp_path / "doctor.csv")])
        == 2
    )
    assert "use .json .txt .xml" in capsys.readouterr().err


def _saved(path, batch):
    path.write_text(json.dumps({name: member.tolist() for name, member in batch.items()}))
    return str(path)


def test_a_batch_in_a_file_is_examined_as_in_python(llama, tmp_path, capsys):
    """Every verdict and number is that of `attnscope.doctor(model, batch)`; what leaks ends with 1."""
    batch, documents = leaking()
    tokens, positions, _ = pack((4, 9, 5))
    sound = {"input_ids": tokens.masked_fill(positions == 0, 1), "position_ids": positions}
    told = {"input_ids": batch["input_ids"], "documents": torch.tensor(documents)[None]}
    for name, given in {"leaking": batch, "sound": sound, "told": told}.items():
        path = _saved(tmp_path / f"{name}.json", given)
        code = main(["doctor", "-m", str(llama), "--attn", "eager", "--batch", path, "--json"])
        report = json.loads(capsys.readouterr().out)
        inputs = {key: value for key, value in given.items() if key != "documents"}
        named = {key: value for key, value in given.items() if key == "documents"}
        python = attnscope.doctor(str(llama), inputs, attn="eager", **named)
        assert report["batches"] == json.loads(python.to_json())["batches"], name
        assert report["checks"] == json.loads(python.to_json())["checks"], name
        packed = next(check for check in report["checks"] if check["name"] == "packed_documents")
        assert packed["verdict"] == ("ok" if name == "sound" else "wrong"), name
        assert code == int(not python.passed) == int(name != "sound"), name
        assert packed["texts"] == ["batch"], name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "has no input_ids; give them, such as [[101, 2023, 102]]"),
        ("7", "is 7, not a JSON object"),
        (
            '{"input_ids": [[5, 6], [7]]}',
            "input_ids: has no numbers, or rows of different lengths; give lists",
        ),
        (
            '{"input_ids": [[5, 6]], "attention_mask": ["x"]}',
            "attention_mask: has no numbers, or rows of different",
        ),
        ('{"input_ids": [[1, 6000]]}', "batch: the model does not take the batch"),
        ('{"input_ids": [[5, 6', "is truncated at line 1"),
    ],
)
def test_a_file_that_is_no_batch_is_refused(llama, tmp_path, capsys, text, message):
    path = tmp_path / "batch.json"
    path.write_text(text)
    assert main(["doctor", "-m", str(llama), "--attn", "eager", "--batch", str(path)]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1


def plain(value):
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.3g}"


@pytest.mark.parametrize(
    ("limit", "shown"), [(65504.0, "65,504"), (0.00242, "0.00242"), (128.0, "128"), (3.4e38, "3.4e+38")]
)  # fmt: skip
def test_a_large_limit_is_written_as_the_numbers_beside_it(limit, shown):
    """The largest number of float16 was 6.55e+04 beside a score of 118."""
    words = {"where": None, "reason": None, "texts": [], "why": "", "repair": "", "evidence": []}
    check = DoctorCheck("score_range", "", "ok", 118.0, limit, **words)
    number, written_limit = _columns([check])[1:3]
    assert (number.cells, written_limit.cells) == (["118"], [shown])


def test_what_is_wrong_ends_with_1_and_is_a_failure(tmp_path, capsys):
    model("bert decoder", is_decoder=False).save_pretrained(tmp_path / "bert")
    tokenizer().save_pretrained(tmp_path / "bert")
    arguments = ["doctor", "-m", str(tmp_path / "bert"), "--attn", "eager"]
    assert main(arguments) == 1
    shown = capsys.readouterr().out
    caption = "number: what the check measured; limit: the largest number that is ok; of output: a difference"
    assert caption in " ".join(shown.split())
    assert main([*arguments, "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    measured = [
        check
        for check in checks
        if check["verdict"] in ("ok", "wrong") and check["limit"] is not None
    ]
    lines = {
        line.split("  ")[0].replace("4-D mask", "mask 4d"): line
        for line in shown.splitlines()
        if re.match(r"\S+( \S+)*  +(ok|WRONG) ", line)
    }
    for check in measured:
        assert (check["value"] <= check["limit"]) == (check["verdict"] == "ok")
        assert (
            f" {plain(check['value'])} " in lines[check["name"].replace("_", " ")]
            and f" {plain(check['limit'])}" in lines[check["name"].replace("_", " ")]
        )
    verdicts = ("wrong", "ok", "depends", "unknown", "inapplicable")
    counts = [sum(check["verdict"] == verdict for check in checks) for verdict in verdicts]
    counts = [count for count in counts if count]
    assert len(measured) > 3 and [int(n) for n in re.findall(r"\d+", shown.split("\n\n")[1])] == [
        counts[0],
        len(checks),
        *counts[1:],
    ]
    assert "WRONG" in shown and "repair" in shown and "docs/doctor.md#future" in shown
    assert main([*arguments, "-o", str(tmp_path / "doctor.xml")]) == 1
    failure = ET.parse(tmp_path / "doctor.xml").getroot().find(".//failure")
    assert "later tokens are replaced" in failure.get("message") and "repair:" in failure.text


def test_positions_begin_where_the_model_begins_them():
    cases = dict(batches())
    names = (
        "i-bert, whose table of positions is of a class of its own",
        "mra, whose positions begin at 2",
    )
    for name, begin in zip(names, (1, 2), strict=True):
        assert make_subject(cases[name]["model"], None, None, None).position_offset == begin
        assert attnscope.doctor(**cases[name])["padding"].verdict == "ok"


def test_a_mask_that_bars_text_is_found_in_a_batch_too():
    """Which tokens of a batch are text is not known: its verdict is `depends`, with the number of barred tokens."""
    generator = torch.Generator().manual_seed(41)
    made = model("llama")
    for length in (5, 8, 11):
        tokens = torch.randint(5, 60, (4, length), generator=generator)
        mask = torch.ones_like(tokens)
        mask[:, -1] = 0
        check = attnscope.doctor(
            made, {"input_ids": tokens, "attention_mask": mask}, tokenizer(), attn=["eager"]
        )
        found = check["padding_mask"]
        assert (found.verdict, found.value) == ("depends", 4.0), length
        assert found.where.startswith(f"row 0 token {length - 1} ")
        tokens[:, -1] = 0
        check = attnscope.doctor(
            made, {"input_ids": tokens, "attention_mask": mask}, tokenizer(), attn=["eager"]
        )
        assert check["padding_mask"].verdict == "ok", length
