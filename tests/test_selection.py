import pytest

from attnscope.errors import UsageError
from attnscope.selection import MaskTerm, parse_mask, parse_pick, positions, used_mask

WORDS = ["The", "bank", "by", "the", "riv", "##er", "bank"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("3", [3]), ("0,2,5-7", [0, 2, 5, 6, 7]), ("-1", [7]), ("1,1,0-2", [1, 0, 2]), ("all", list(range(8)))],
)
def test_picks(typed, meant):
    assert parse_pick(typed, "--head").numbers(8, "head") == meant


@pytest.mark.parametrize("typed", ["", "x", "1.5", "1,,2", "1-", "auto,1"])
def test_what_is_no_pick_is_refused(typed):
    with pytest.raises(UsageError, match=r"--head: cannot read .*; use auto, all, mean, 3, 0,2,5-7 or -1"):
        parse_pick(typed, "--head")


def test_a_range_that_runs_backwards_is_refused():
    with pytest.raises(UsageError, match="'7-5' runs backwards; use 5-7"):
        parse_pick("7-5", "--layer")


@pytest.mark.parametrize(("typed", "named"), [("8", "8"), ("-9", "-9"), ("5-9", "9")])
def test_a_number_that_is_not_there_is_named(typed, named):
    with pytest.raises(UsageError, match=f"--head: there is no head {named}; this model has heads 0 to 7"):
        parse_pick(typed, "--head").numbers(8, "head")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("3", [3]),
        ("1:3", [1, 2]),
        (":2", [0, 1]),
        ("5:", [5, 6]),
        ("-1", [6]),
        ("-2:", [5, 6]),
        ("bank", [1, 6]),
        ("river", [4, 5]),
        ("BY", [2]),
        ("the", [3]),
        ("bank,0", [1, 6, 0]),
    ],
)
def test_positions_and_words(typed, meant):
    assert positions(typed, WORDS, "--query") == meant


@pytest.mark.parametrize("typed", ["7", "-8", "9:12", "lake", "", "1,lake"])
def test_a_position_or_word_that_is_not_there_is_refused_with_what_is(typed):
    with pytest.raises(UsageError, match=r"--query: '.*' is not in the text; the text has tokens 0 to 6: The bank by"):
        positions(typed, WORDS, "--query")


@pytest.mark.parametrize("typed", ["own", "causal", "bidirectional", "window:3", "prefix:2", "causal+window:4"])
def test_masks(typed):
    assert "+".join(map(str, parse_mask(typed))) == typed


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("casual", "unknown mask 'casual'; did you mean 'causal'?"),
        ("window", "'window' has no size; use window:N with N of 1 or more"),
        ("window:0", "'window:0' has no size"),
        ("prefix:-1", "'prefix:-1' has no size"),
        ("causal+", "unknown mask ''"),
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
    assert [term.path for term in terms if term.kind == "file"] == [path]
    words = "".join(form.replace("{}", "").split()).split("+")
    assert [str(term) for term in terms if term.kind != "file"] == [word for word in words if word]


@pytest.mark.parametrize("path", PATHS)
def test_own_is_replaced_as_a_term_and_nowhere_else(path):
    file = MaskTerm("file", path=path)
    assert used_mask(parse_mask(f"{path}+own"), "causal+window:4") == (file, *parse_mask("causal+window:4"))
    assert used_mask(parse_mask(path), "causal") == (file,)


def test_two_files_and_a_path_without_end():
    assert [term.path for term in parse_mask("a/x.npy+b.json")] == ["a/x.npy", "b.json"]
    with pytest.raises(UsageError, match=r"unknown mask 'a/x\+causal'"):
        parse_mask("a/x+causal")
