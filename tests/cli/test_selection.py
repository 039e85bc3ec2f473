import json

import pytest

from attnscope.base.errors import UsageError
from attnscope.cli import main
from attnscope.findings.tokens import Token
from attnscope.request.masks.expression import parse_mask, used_mask
from attnscope.request.masks.terms import MatrixFile
from attnscope.request.selection import (
    extremes,
    join_label,
    parse_cut,
    parse_indices,
    parse_indices_or_label,
    parse_positions,
)

TEXT = "The bank, by 2024 the  river bank 3:10\n" + '"a" b-a 😀'
PIECES = 'The bank , by 20 24 the riv er bank 3:10 " a " b - a'.split()


def _tokens():
    """A text of 20 tokens between two special ones; a word and a number are several, a character is two."""
    found, at = [Token(0, "[CLS]", "[CLS]", special=True)], 0
    for piece in PIECES:
        start = TEXT.index(piece, at)
        at = start + len(piece)
        found.append(Token(1, piece, piece, start, at))
    emoji = TEXT.index("😀")
    parts = [Token(1, "x", part, emoji, emoji + 1) for part in ("<F0 9F>", "<98 80>")]
    return [*found, *parts, Token(2, "[SEP]", "[SEP]", special=True)]


TOKENS = _tokens()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("3", [3]),
        ("0,2,5-7", [0, 2, 5, 6, 7]),
        ("-1", [7]),
        ("1,1,0-2", [1, 0, 2]),
        ("all", list(range(8))),
    ],
)
def test_indices_are_read_as_numpy_counts(typed, meant):
    assert list(parse_indices(typed, "head").numbers(8, "head")) == meant


def test_ranges_of_a_billion_are_not_written_down():
    one = parse_indices("3-999999999", "layer").numbers(10**9, "layer")
    assert (len(one), extremes(one)) == (10**9 - 3, (3, 10**9 - 1))
    assert extremes(parse_indices("4,1-2", "layer").numbers(8, "layer")) == (1, 4)
    with pytest.raises(
        UsageError,
        match="layer: these ranges have more than 1,000,000 layers; use all, or one range",
    ):
        parse_indices("0-999999,5", "layer").numbers(10**9, "layer")


@pytest.mark.parametrize(
    ("typed", "meant"), [("H3", [3]), ("h0,H2-H3", [0, 2, 3]), ("H5-7", [5, 6, 7])]
)
def test_numbers_as_they_are_labelled(typed, meant):
    assert list(parse_indices(typed, "head").numbers(8, "head")) == meant


@pytest.mark.parametrize(("option", "typed"), [("head", "L3"), ("layer", "H3"), ("layer", "L1-H2")])
def test_a_label_of_something_else_is_refused(option, typed):
    with pytest.raises(UsageError, match=f"{option}: cannot read '{typed}'"):
        parse_indices(typed, option)


def join_labels(layer, head):
    return join_label(parse_indices_or_label("layer", layer), parse_indices_or_label("head", head))


@pytest.mark.parametrize(
    ("layer", "head", "meant"),
    [
        ("auto", "L2H3", ("2", "3")),
        ("L2H3", "all", ("2", "3")),
        ("2", "l2h3", ("2", "3")),
        ("L02H3", "H3", ("2", "3")),
        ("0,1", "mean", ("0,1", "mean")),
        ("L1", "H2", ("1", "2")),
        ("L1-3", "-1", ("1-3", "-1")),
    ],
)
def test_the_label_of_a_head_stands_for_its_layer_too(layer, head, meant):
    assert tuple(map(str, join_labels(layer, head))) == meant


@pytest.mark.parametrize(
    ("layer", "head"), [("1", "L2H3"), ("L2H3", "mean"), ("L2H3", "L2H4"), ("2-3", "L2H3")]
)
def test_a_label_that_contradicts_the_other_option_is_refused(layer, head):
    with pytest.raises(UsageError, match=r"contradicts .*; remove (layer|head)"):
        join_labels(layer, head)


@pytest.mark.parametrize("typed", ["", "x", "1.5", "1,,2", "1-", "auto,1"])
def test_a_text_that_names_no_indices_is_refused(typed):
    with pytest.raises(
        UsageError, match=r"head: cannot read .*; use auto, all, mean, 3, 0,2,5-7 or -1"
    ):
        parse_indices(typed, "head")


def test_a_range_that_runs_backwards_is_refused():
    with pytest.raises(UsageError, match="'7-5' is reversed; use 5-7"):
        parse_indices("7-5", "layer")


@pytest.mark.parametrize(("typed", "named"), [("8", "8"), ("-9", "-9"), ("5-9", "9")])
def test_a_number_that_is_not_there_is_named(typed, named):
    with pytest.raises(
        UsageError, match=f"head: there is no head {named}; this model has heads 0 to 7"
    ):
        parse_indices(typed, "head").numbers(8, "head")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("3", [3]),
        ("1:3", [1, 2]),
        (":2", [0, 1]),
        ("18:", [18, 19, 20]),
        ("18:21", [18, 19, 20]),
        ("-1", [20]),
        ("-2:", [19, 20]),
        ("bank", [2, 10]),
        ("river", [8, 9]),
        ("BY", [4]),
        ("the", [7]),
        ("THE", [1, 7]),
        ("bank,0", [2, 10, 0]),
        ("2024", [5, 6]),
        ('"3"', None),
        ("river bank", [8, 9, 10]),
        ("the river\nbank", [7, 8, 9, 10]),
        (",", [3]),
        ('",",1', [3, 1]),
        ('1, "by" ,","', [1, 4, 3]),
        ('"', [12, 14]),
        ('"""', [12, 14]),
        ("bank, by", [2, 10, 4]),
        ('"bank, by"', [2, 3, 4]),
        ("'bank, by',0", [2, 3, 4, 0]),
        ("“river bank”", [8, 9, 10]),
        ("‘river bank’, «by»", [8, 9, 10, 4]),
        ("„3:10“", [11]),
        ("'3'", None),
        ("'lake'", None),
        ("3:10", [3, 4, 5, 6, 7, 8, 9]),
        ('"3:10"', [11]),
        ("b-a", [15, 16, 17]),
        ("a", [13, 17]),
        ("😀", [18, 19]),
        ("<98 80>", [19]),
        ("[SEP]", [20]),
        ("riverbank", None),
        ("20 24", None),
    ],
)
def test_positions_words_and_phrases(typed, meant):
    if meant is None:
        with pytest.raises(UsageError, match="is not in the text"):
            parse_positions(typed).find(TOKENS, (TEXT, None), "--query")
    else:
        assert parse_positions(typed).find(TOKENS, (TEXT, None), "--query") == meant


@pytest.mark.parametrize("typed", ["21", "-22", "lake", "", "1,lake", "1,,2"])
def test_a_position_or_word_that_is_not_there_is_refused_with_what_is(typed):
    said = r"query: '.*' is not in the text; the text has tokens 0 to 20: \[CLS\] The bank , by"
    with pytest.raises(UsageError, match=said):
        parse_positions(typed).find(TOKENS, (TEXT, None), "--query")


@pytest.mark.parametrize("typed", ["21:", "22:", "30:99", "5:3", "4:4"])
def test_a_slice_holds_something(typed):
    with pytest.raises(
        UsageError, match=f"key: '{typed}' is outside the text or empty; the text has tokens"
    ):
        parse_positions(typed).find(TOKENS, (TEXT, None), "--key")


@pytest.mark.parametrize(
    ("typed", "meant"), [("19:99", [19, 20]), ("-22:2", [0, 1]), ("0:22", list(range(21)))]
)
def test_a_slice_may_reach_beyond_the_text(typed, meant):
    """As in Python; with several texts, it is meant for texts of any length."""
    assert parse_positions(typed).find(TOKENS, (TEXT, None), "--key") == meant


@pytest.mark.parametrize(
    ("typed", "meant"), [("bnak", "bank"), ("River", None), ("rivver", "river")]
)
def test_a_word_that_is_misspelt_is_named(typed, meant):
    if meant is None:  # in any case, it is the word
        assert parse_positions(typed).find(TOKENS, (TEXT, None), "--query")
        return
    with pytest.raises(
        UsageError,
        match=f"'{typed}' is not in the text; did you mean '{meant}'\\? the text has tokens",
    ):
        parse_positions(typed).find(TOKENS, (TEXT, None), "--query")


def test_a_time_of_day_is_a_word_where_it_is_no_slice_of_the_text():
    tokens = [Token(0, w, w, i, i + len(w)) for w, i in (("at", 0), ("12", 3), (":", 5), ("30", 6))]
    assert parse_positions("12:30").find(tokens, ("at 12:30", None), "--query") == [1, 2, 3]


def test_a_text_that_is_not_known_is_what_its_tokens_show():
    assert parse_positions("river bank,2024").find(TOKENS, (None,), "--key") == [8, 9, 10, 5, 6]


def test_words_of_a_pair_are_found_in_their_own_text():
    tokens = [Token(0, "ab", "ab", 0, 2), Token(0, "c", "c", 3, 4), Token(0, "a", "a", 0, 1, segment=1),
              Token(0, "b", "b", 1, 2, segment=1)]  # fmt: skip
    assert parse_positions("ab").find(tokens, ("ab c", "ab"), "--query") == [0, 2, 3]
    with pytest.raises(UsageError, match="'c ab' is not in the text"):
        parse_positions("c ab").find(tokens, ("ab c", "ab"), "--query")


@pytest.mark.parametrize(
    "typed", ["own", "causal", "bidirectional", "window:3", "prefix:2", "causal+window:4"]
)
def test_a_mask_is_spelled_as_typed(typed):
    assert "+".join(map(str, parse_mask(typed))) == typed


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("casual", "unknown mask 'casual'; did you mean 'causal'?"),
        ("window", "'window' needs a size of 1 or more; use window:N"),
        ("window:0", "'window:0' needs a size of 1 or more"),
        ("prefix:-1", "'prefix:-1' needs a size of 1 or more"),
        ("causal+", "nothing stands where a mask is expected"),
    ],
)
def test_what_is_no_mask_is_refused(typed, said):
    with pytest.raises(UsageError) as error:
        parse_mask(typed)
    assert said in str(error.value)


PATHS = ["downloads/m.npy", "owner.json", "causal.json", "prefix.npy", "auto.npy", "all.json", "mean.safetensors",
         "my own mask.npy", "window:3.npy", "C:/x.npy", "./a+b.npy", "a b/own+causal.json"]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("form", ["{}", "own+{}", "{}+own", "causal + {} + window:2"])
def test_a_path_is_taken_literally_whatever_words_it_contains(form, path):
    terms = parse_mask(form.format(path))
    assert [term.path for term in terms if isinstance(term, MatrixFile)] == [path]
    words = "".join(form.replace("{}", "").split()).split("+")
    assert [str(term) for term in terms if not isinstance(term, MatrixFile)] == [
        word for word in words if word
    ]


@pytest.mark.parametrize("path", PATHS)
def test_own_is_replaced_as_a_term_and_nowhere_else(path):
    file = MatrixFile(path)
    assert used_mask(parse_mask(f"{path}+own"), "causal+window:4") == (
        file,
        *parse_mask("causal+window:4"),
    )
    assert used_mask(parse_mask(path), "causal") == (file,)


def test_two_files_and_a_path_without_end():
    assert [term.path for term in parse_mask("a/x.npy+b.json")] == ["a/x.npy", "b.json"]
    with pytest.raises(UsageError, match=r"unknown mask 'a/x\+causal'"):
        parse_mask("a/x+causal")


@pytest.mark.parametrize(
    ("typed", "heads", "query", "key"),
    [
        ("L5H1", [([5], [1])], None, None),
        ("l5", [([5], range(4))], None, None),
        (" L1-2H0-2 ", [([1, 2], [0, 1, 2])], None, None),
        ("H3", [(range(8), [3])], None, None),
        ("*", [(range(8), range(4))], None, None),
        ("L-1H0,L2", [([7], [0]), ([2], range(4))], None, None),
        ("L5H1: it→animal", [([5], [1])], "it", "animal"),
        ("L5-6:3:8->[CLS],-1", [([5, 6], range(4))], "3:8", "[CLS],-1"),
        ("*: →[CLS]", [(range(8), range(4))], "", "[CLS]"),
        ("L3H2: it →", [([3], [2])], "it", ""),
        ("L5H1: it←animal", [([5], [1])], "it", "animal"),
        ("L5-6:3:8<-[CLS],-1", [([5, 6], range(4))], "3:8", "[CLS],-1"),
        ("*: ← [CLS]", [(range(8), range(4))], "", "[CLS]"),
        ("L2H2  4 [MASK] ← 3 the", [([2], [2])], "4 [MASK]", "3 the"),
        ("* it <- animal", [(range(8), range(4))], "it", "animal"),
        ('L0: "a<-b" <- "←"', [([0], range(4))], '"a<-b"', '"←"'),
        ('L0: "a->b" -> "→"', [([0], range(4))], '"a->b"', '"→"'),
    ],
)
def test_cuts_name_heads_and_an_edge(typed, heads, query, key):
    found = parse_cut(typed, "--cut")
    places = [(layers.numbers(8, "layer"), some.numbers(4, "head")) for layers, some in found.heads]
    assert [(list(a), list(b)) for a, b in places] == [(list(a), list(b)) for a, b in heads]
    edge = (
        None
        if query is None
        else tuple(parse_positions(side) if side else None for side in (query, key))
    )
    assert (found.written, found.edge) == (typed.strip(), edge)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("", "cannot read ''"),
        ("5", "cannot read '5'"),
        ("L", "cannot read 'L'"),
        ("L5,", "cannot read 'L5,'"),
        ("L5H1 it", "cannot read"),
        ("**", "cannot read"),
        ("L5H1:", "'' in 'L5H1:' is not an edge"),
        ("L5H1: it", "'it' in 'L5H1: it' is not an edge"),
        ("L5: →", "'→' in 'L5: →' is not an edge"),
        ("L5: <-", "'<-' in 'L5: <-' is not an edge"),
        ("L8-5", "a range in 'L8-5' is reversed"),
        ("L-2-5", "a range in 'L-2-5' starts with a negative number"),
    ],
)
def test_what_is_no_cut_is_refused(typed, said):
    with pytest.raises(UsageError) as error:
        parse_cut(typed, "--cut")
    assert said in error.value.message
    assert error.value.where == "--cut" and error.value.hint


def test_labels_of_several_heads_select_these_and_no_others(capsys):
    layers, heads = join_labels("auto", "L2H1,L0H3,L2H0")
    assert (str(layers), str(heads)) == ("2,0", "L2H1,L0H3,L2H0")
    assert main(["run", "the bank", "--head", "L2H1,L0H3,L2H0", "--format", "json"]) == 0
    heads = json.loads(capsys.readouterr().out)["texts"][0]["heads"]
    assert heads["units"] == [[2, 1], [0, 3], [2, 0]]


@pytest.mark.parametrize(
    ("command", "typed", "refused"),
    [
        ("run", "--head L9H0", "--head: there is no layer 9;"),
        ("run", "--layer L0H9", "--layer: there is no head 9;"),
        ("run", "--head L9H0 --layer all", "--head: there is no layer 9;"),
        (
            "explain",
            "--query bank --head L1H0,L0H0",
            "--head: 'L1H0,L0H0' is not a single head; use one, such as L1H0",
        ),
    ],
)
def test_errors_name_the_option_in_which_a_label_was_typed(command, typed, refused, capsys):
    assert main([command, "the bank", *typed.split()]) == 2
    assert f"error: {refused}" in capsys.readouterr().err


@pytest.mark.parametrize("shown", [["--spans", "words"], ["--least", "2"]])
def test_one_head_is_offered_unless_it_is_chosen(shown, capsys):
    for chosen in ([], ["--head", "L1H2"]):
        assert main(["run", "the bank by the river", *shown, *chosen]) == 0
        assert ("--layer L --head H (of one head)" in capsys.readouterr().out) == (not chosen)


def test_labels_that_name_the_same_heads_of_every_layer_are_numbers():
    assert tuple(map(str, join_labels("auto", "L2H1,L0H1"))) == ("2,0", "1")


@pytest.mark.parametrize(
    "command", [["batch", "texts.txt", "-o", "out.jsonl"], ["ablate", "the bank", "--each", "head"]]
)
def test_heads_that_differ_between_layers_are_refused_if_a_command_has_the_same_in_each(
    command, capsys
):
    assert main([*command, "--head", "L2H1,L0H3"]) == 2
    assert (
        "--head: 'L2H1,L0H3' has other heads in each layer; name heads of one layer"
        in capsys.readouterr().err
    )
