"""Pictures of heads say what the numbers say, at every width, and no head is lost."""

import csv
import io
import json
import re
from math import log

import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from attnscope.base.errors import UsageError
from attnscope.findings.head_findings import HeadRoles, KeyContrast
from attnscope.findings.head_roles import HEAD_ROLES, ROLES, main_roles
from attnscope.findings.run import with_words
from attnscope.studies.formats import export
from attnscope.studies.heads.changes import compare_heads
from attnscope.studies.registry import present
from attnscope.studies.run.screen import are_thumbnails
from attnscope.views import parts
from attnscope.views.page.container import Container
from attnscope.views.page.rendering import render
from attnscope.views.scales import WEIGHTS, Scale
from attnscope.views.settings import Listing
from attnscope.views.terminal.thumbnails import pool_largest
from tests.helpers.heads import changed, of_head, stacked
from tests.helpers.sample_overviews import pooled_of, weights_of
from tests.helpers.sample_reports import causal, many_heads, report, text_report, tokens, words
from tests.helpers.sample_surveys import measured, survey
from tests.helpers.screens import draw


def letters(screen, heads):
    """The letters of a plain picture, layer by layer, whatever blocks it is in."""
    found = {}
    for layer, row in re.findall(r" L(\d+)  (.*)$", screen, re.MULTILINE):
        found[int(layer)] = found.get(int(layer), "") + re.sub(r"[ ░▒▓█]", "", row)
    assert all(len(row) == heads for row in found.values())
    return [found[layer] for layer in sorted(found)]


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("shape", [(3, 4), (2, 40), (30, 9), (12, 12)])
def test_the_picture_has_the_letter_of_every_head(width, shape):
    made = survey(*shape)
    shown = draw(made, width)
    assert max(map(len, shown.splitlines())) <= width
    expected = [["?" if name is None else ROLES[name].letter for name in row] for row in made.main]
    assert letters(shown, shape[1]) == ["".join(row) for row in expected]
    none = sum(row.count(None) for row in made.main)
    assert (
        f"{none} of {shape[0] * shape[1]} heads {'has' if none == 1 else 'have'} no clear role"
        in shown
    )


def test_that_every_head_has_a_role_is_said_without_a_count_of_none():
    made = replace(survey(2, 3), main=[["induction"] * 3] * 2)
    shown = " ".join(draw(made, 120).split())
    assert "all 6 heads have a clear role; each is counted at its main role alone" in shown


def test_every_role_has_a_letter_and_a_colour_of_its_own():
    for names in zip(*((role.name, role.letter, role.colour) for role in HEAD_ROLES), strict=True):
        assert len(set(names)) == len(HEAD_ROLES) >= 12
    assert all(len(role.letter) == 1 and role.meaning and role.source for role in HEAD_ROLES)


def test_the_main_role_is_the_first_clear_one_of_its_rank():
    def values(**named):
        return {role.name: np.array([[named.get(role.name, 0.0)]]) for role in HEAD_ROLES}

    def chosen(**named):
        place = int(main_roles(values(**named))[0, 0])
        return None if place < 0 else HEAD_ROLES[place].name

    assert chosen() is None
    assert chosen(first=0.95, induction=0.41) == "induction"
    assert chosen(induction=0.5, previous=0.6) == "previous"
    assert chosen(first=0.95, retrieval=0.41) == "retrieval"
    assert chosen(retrieval=0.9, induction=0.4) == "induction"
    assert chosen(special=0.5, first=0.45, uniform=0.9) == "special"
    assert chosen(uniform=0.59, positional=0.51, content=0.4) == "positional"
    assert chosen(copying=1.0, induction=0.39) is None
    assert chosen(induction=float("nan"), content=0.3) == "content"


def test_the_strongest_heads_are_listed_with_their_errors():
    shown = draw(survey(roles=("previous",)), 80, listing=Listing(2))
    assert re.search(r"strongest  L0H0 0\.99 ±0\.01  L0H1 0\.02 ±0\.01\n", shown)
    by_layer = draw(replace(measured(), notes=[]), 80, listing=Listing(3, "layer"))
    assert re.search(r"strongest  L2H1 0\.82  L2H2 0\.91  L2H3 1\.00\n", by_layer)


def test_a_standard_error_that_would_be_zero_in_the_digits_shown_is_left_out():
    made = survey(roles=("previous",))
    made.roles[0].errors[0, :2] = 0.004, 0.006
    shown = draw(made, 80, listing=Listing(2))
    assert re.search(r"strongest  L0H0 0\.99  L0H1 0\.02 ±0\.01\n", shown)


def test_heads_in_which_a_role_is_not_clear_are_listed_behind_its_limit():
    made = survey()
    row = next(line for line in draw(made, 200).split("\n") if line.startswith("P previous"))
    clear, _, weak = row.partition(f"below {ROLES['previous'].clear:g}: ")
    values = made.by_name()["previous"]
    for heads, expected in ((clear, True), (weak, False)):
        found = re.findall(r"L(\d+)H(\d+)", heads)
        assert found
        for layer, head in found:
            assert (values[int(layer), int(head)] >= 0.4) is np.bool_(expected)
    unranked = next(line for line in draw(made, 200).split("\n") if line.startswith("V copying"))
    assert "below" not in unranked


@pytest.mark.parametrize("colour", ["truecolor", "256", "standard"])
def test_small_values_of_a_role_that_is_never_the_main_one_are_dim(colour):
    """They were as bright as clear ones of other roles."""
    made = survey()
    role = made.by_name()["copying"]
    role[:] = 0.03
    role[0, :2] = 0.9, 0.5
    shown = draw(made, 200, colour=colour, listing=Listing(4))
    row = next(line for line in shown.split("\n") if "copying" in line)
    heads = re.findall(r"(\x1b\[2m)?L(\d+)H(\d+)(?: \w)? (\d\.\d\d)", row)
    assert [(value, bool(dim)) for dim, _, _, value in heads] == [
        ("0.90", False),
        ("0.50", False),
        ("0.03", True),
        ("0.03", True),
    ]


def test_heads_say_what_the_value_of_every_role_is_and_from_where_on_it_is_clear():
    made = survey()
    shown = " ".join(draw(made, 100).split())
    values, measured_on, clear = re.search(
        r" values (.+?) measured (.+?) clear (from .+?) head 0 1 ", shown
    ).groups()
    on = dict(item.split(": ") for item in measured_on.split(" · "))
    assert sorted(" ".join(on).split()) == sorted(role.letter for role in made.roles)
    kinds = {role.letter: role.measured for role in made.roles}
    assert all(len({kinds[letter] for letter in letters.split()}) == 1 for letters in on)
    said = dict(line.split(": ") for line in values.split(" · "))
    numbers = {letter: number for letters, number in said.items() for letter in letters.split()}
    assert numbers == {role.letter: ROLES[role.name].number for role in made.roles}
    assert len(set(numbers.values())) < len(numbers)
    usual, exceptions = re.fullmatch(r"from ([\d.]+) on; (.+)", clear).groups()
    limits = {role.letter: usual for role in made.roles if ROLES[role.name].rank is not None}
    for group in exceptions.split(", "):
        *letters, limit = group.split()
        limits |= dict.fromkeys(letters, limit)
    assert {letter: float(limit) for letter, limit in limits.items()} == {
        role.letter: role.clear for role in made.roles if role.letter in limits
    }
    others = [role for role in made.roles if ROLES[role.name].rank is None]
    unranked = replace(made, roles=others * 4, main=[[None] * 4] * 3)
    assert "clear   " not in draw(unranked, 100)


def test_heads_say_which_texts_they_are_measured_on():
    made = survey()
    for probes, said in (
        (made.probes, "the built-in texts and the random tokens;"),
        (replace(made.probes, shipped=False), "the given texts and the random tokens;"),
        (replace(made.probes, repeated=0), "the built-in texts;"),
    ):
        shown = " ".join(draw(replace(made, probes=probes), 100).split())
        assert f"averages over {said} run and its pages measure their own text" in shown


SHADES_OF_ROLES = "a fuller shade is a stronger role: ░ to 0.25 ▒ to 0.50 ▓ to 0.75 █ to 1.00"


@pytest.mark.parametrize("colour", [None, "standard"])
def test_roles_have_shades_where_there_are_too_few_colours_for_them(colour):
    made = survey()
    for strength, shaded in ((0.99, "█"), (0.75, "█"), (0.74, "▓"), (0.5, "▓"), (0.41, "▒")):
        made.roles[0].values[0, 0] = strength
        drawn = draw(made, 100, colour=colour)
        screen = re.sub(r"\x1b\[[0-9;]*m", "", drawn)
        assert re.search(r"^ +L0 +(\S+)", screen, re.MULTILINE)[1][:2] == f"P{shaded}"
        assert SHADES_OF_ROLES in " ".join(screen.split())
        assert "fuller colour" not in screen
        # Of 16 colours, one would stand for several roles.
        assert not re.search(r"\x1b\[[0-9;]*[34][0-7]", drawn)


def test_of_256_colours_a_role_has_one_and_its_shade_has_it_too():
    """A cell of 0.26 was a saturated orange, fuller than the tan of its key."""
    made = survey()
    for strength, shaded in ((0.99, "█"), (0.74, "▓"), (0.41, "▒")):
        made.roles[0].values[0, 0] = strength
        drawn = draw(made, 100, colour="256")
        cells = re.findall(r"48;5;(\d+)mP\x1b\[0m\x1b\[38;5;(\d+)m([░▒▓█])", drawn)
        (key,) = re.findall(r"48;5;(\d+)mP\x1b\[0m previous", drawn)
        assert cells and {(behind, of_shade) for behind, of_shade, _ in cells} == {(key, key)}
        assert cells[0][2] == shaded
        assert SHADES_OF_ROLES in " ".join(re.sub(r"\x1b\[[0-9;]*m", "", drawn).split())


@pytest.mark.parametrize("colour", ["standard", "256"])
def test_shades_of_a_key_are_as_bright_as_those_of_cells(colour):
    """A dim ▓ looked like a ▒ that was not."""
    line = next(line for line in draw(survey(), 100, colour=colour).split("\n") if "fuller" in line)
    assert re.findall("[░▒▓█]", line) == list("░▒▓█")
    assert "\x1b[2" not in line


def test_colours_of_roles_are_explained_where_there_are_enough():
    made = survey()
    screen = re.sub(r"\x1b\[[0-9;]*m", "", draw(made, 100, colour="truecolor"))
    assert "a fuller colour is a stronger role, from 0.00 to 1.00\n" in screen
    assert "shade" not in screen
    assert not re.search("[░▒▓█]", screen)


def test_figures_and_pages_say_what_a_fuller_colour_is(tmp_path):
    figure = b"".join(export(survey(), tmp_path / "x.svg")).decode()
    page = str(list(render(present(survey()), Container())))
    for text in (figure, page):
        assert "fuller colour is a stronger role" in text
        assert "fuller shade" not in text


def test_small_values_of_a_role_do_not_look_strong():
    """Shares of 0.01, the largest of a model, were as loud as shares of 1."""
    found = survey()
    role = found.roles[0]
    weak = replace(role, values=np.full_like(role.values, 0.011))
    (shown,) = [
        part
        for part in present(replace(found, roles=[weak]))
        if isinstance(part, parts.Matrices) and part.panels[0].names is None
    ]
    (panel,) = shown.panels
    assert panel.scale.place(0.011) == pytest.approx(0.011**0.5, rel=1e-3)
    assert panel.scale.place(1.0) == 1.0


def test_weights_of_heads_have_the_scale_of_weights(tmp_path):
    """A figure names numbers of the scale below it, and cuts none of them off at its left."""
    for signed in (False, True):
        (shown,) = [
            part for part in present(measured(signed=signed)) if isinstance(part, parts.Matrices)
        ]
        scale = shown.panels[0].scale
        assert scale == (Scale(-1.0, 1.0, True) if signed else WEIGHTS)
    figure = b"".join(export(measured(), tmp_path / "x.svg")).decode()
    ticks = {
        text: float(x)
        for x, text in re.findall(r'<text x="([\d.]+)"[^>]*>([01]|\.\d+)</text>', figure)
    }
    assert set(ticks) >= {"0", ".1", ".5", "1"}
    bar = next(float(x) for x in re.findall(r'<rect x="([\d.]+)"[^>]*fill="url\(#', figure))
    assert ticks["0"] == bar  # where its first letter begins
    wide = ticks["1"] - bar
    assert (ticks[".5"] - bar) / wide == pytest.approx(0.5**0.5, abs=0.01)


def test_a_table_has_a_row_for_every_head(tmp_path):
    made = survey(missing=("retrieval",))
    rows = list(csv.DictReader(io.StringIO(b"".join(export(made, tmp_path / "x.csv")).decode())))
    assert len(rows) == 12
    (tmp_path / "x.parquet").write_bytes(b"".join(export(made, tmp_path / "x.parquet")))
    parquet = pq.read_table(tmp_path / "x.parquet").to_pylist()
    for n, (row, other) in enumerate(zip(rows, parquet, strict=True)):
        layer, head = divmod(n, 4)
        assert (
            (int(row["layer"]), int(row["head"]))
            == (other["layer"], other["head"])
            == (layer, head)
        )
        assert (row["main"] or None) == other["main"] == made.main[layer][head]
        for role in made.roles:
            value = role.values[layer, head]
            if np.isnan(value):
                assert (row[role.name], other[role.name]) == ("", None)
            else:
                assert np.float32(row[role.name]) == np.float32(other[role.name]) == value
    one = list(csv.reader(io.StringIO(b"".join(export(measured(), tmp_path / "x.csv")).decode())))
    assert one[:3] == [["layer", "head", "weight"], ["0", "0", "0.0"], ["0", "1", ""]]


def test_other_findings_are_no_table_of_heads(tmp_path):
    with pytest.raises(UsageError, match=r"what heads finds cannot be written as \.safetensors"):
        export(survey(), tmp_path / "x.safetensors")


def test_json_reads_back():
    from attnscope.findings.codec import from_json, to_json

    made = survey(missing=("copying",))
    read = from_json(to_json(made), HeadRoles)
    assert read.main == made.main
    assert json.loads(to_json(made))["main"] == made.main  # names, as in a .csv
    for ours, theirs in zip(made.roles, read.roles, strict=True):
        np.testing.assert_array_equal(ours.values, theirs.values)


@pytest.mark.parametrize(("rows", "columns"), [(5, 7), (3, 4), (5, 1)])
def test_a_thumbnail_keeps_the_largest_weight_of_each_cell(rows, columns):
    matrix = np.random.default_rng(0).random((5, 7), dtype=np.float32)
    matrix[1] = np.nan
    found = pool_largest(matrix, rows, columns)
    assert found.shape == (rows, columns)
    for r in range(rows):
        for c in range(columns):
            part = matrix[
                r * 5 // rows : (r + 1) * 5 // rows, c * 7 // columns : (c + 1) * 7 // columns
            ]
            assert found[r, c] == (-1 if np.isnan(part).all() else np.nanmax(part))


def test_a_contact_sheet_of_a_real_model_fits_on_one_screen():
    shown = draw(many_heads(12, 12, 40, allowed=causal), 120, format="heat").splitlines()
    assert len(shown) <= 50 and max(map(len, shown)) <= 120
    assert [line.split()[0] for line in shown if re.match(r"L\d+ ", line)] == [
        f"L{layer}" for layer in range(12)
    ]
    (heads,) = (line.split() for line in shown if line.strip().startswith("H0"))
    assert heads == [f"H{head}" for head in range(12)]


def test_a_contact_sheet_draws_where_the_weight_is():
    """A head that looks at itself alone is a diagonal, in colour as well."""
    made = many_heads(2, 5, 6)
    for head in made.texts[0].heads:
        head.stages["weights"][:] = np.eye(6)
    plain = draw(made, 60, format="heat").splitlines()
    first = next(n for n, line in enumerate(plain) if line.startswith("L0 "))
    assert [line[3:9] for line in plain[first : first + 3]] == ["██····", "··██··", "····██"]
    assert "· is exactly zero" in " ".join(" ".join(plain).split())
    colour = draw(made, 60, format="heat", colour="truecolor")
    # where one of two cells has the weight
    assert colour.count("▀") + colour.count("▄") == 2 * 5 * 6


def test_a_weight_of_a_contact_sheet_is_a_square_if_there_is_room():
    made = many_heads(2, 5, 6)
    for head in made.texts[0].heads:
        head.stages["weights"][:] = np.eye(6)
    shown = draw(made, 80, format="heat")
    first = shown.splitlines().index("L0 " + " ".join(["██ · · · · ·"] * 5))
    assert [line[3:15].rstrip() for line in shown.splitlines()[first : first + 7]] == [
        *[" ·" * n + "██" + " ·" * (5 - n) for n in range(6)],
        "",
    ]
    assert "a cell is" not in shown
    assert "▀" not in draw(made, 80, format="heat", colour="truecolor")


@pytest.mark.parametrize("ramp", ["linear", "sqrt", "log"])
def test_shades_of_a_contact_sheet_lie_between_the_weights_that_its_legend_names(ramp):
    made = many_heads(2, 5, 6)
    drawn = np.random.default_rng(0).uniform(0, 1, (10, 6, 6)) ** 3
    made.texts[0].heads.stages["weights"] = drawn.astype(np.float32)
    lines = draw(made, 80, format="heat", ramp=ramp).splitlines()
    legend = re.findall(r"([\d.]+) \[(.)\]", " ".join(line for line in lines if "[" in line))
    shades = [shade for _, shade in legend]
    bounds = np.array([float(bound) for bound, _ in legend] + [1.0])
    assert shades == list(" ░▒▓█")
    for layer in range(2):
        first = next(n for n, line in enumerate(lines) if line.startswith(f"L{layer} "))
        for head, row, column in np.ndindex(5, 6, 6):
            shade = shades.index(lines[first + row].ljust(80)[3 + 13 * head + 2 * column])
            weight = drawn[5 * layer + head, row, column]
            # bounds have two digits
            assert 0.94 * bounds[shade] <= weight <= 1.06 * bounds[shade + 1]


def test_heads_least_like_the_mean_are_named_and_marked():
    made = many_heads(3, 4, 6, allowed=causal)
    weights = np.array(
        [np.nan_to_num(head.stages["weights"]) for head in made.texts[0].heads], np.float64
    )
    apart = np.abs(weights - weights.mean(0)).sum(2).mean(1) / 2
    order = np.argsort(-apart)[:3]
    shown = draw(made, 120, format="heat")
    (line,) = (line for line in shown.splitlines() if line.startswith("least like the mean"))
    named = re.findall(r"L(\d)H(\d) (\d\.\d\d)", line)
    assert [(int(layer), int(head)) for layer, head, _ in named] == [
        divmod(int(index), 4) for index in order
    ]
    assert [float(share) for *_, share in named] == pytest.approx(apart[order], abs=0.0051)
    lines = shown.splitlines()
    heading = next(line for line in lines if re.match(r" +H0 +H1", line))
    for layer in range(3):
        (first,) = (line for line in lines if line.startswith(f"L{layer} "))
        marks = {
            max(head for head in range(4) if heading.index(f"H{head}") < match.start())
            for match in re.finditer("◂", first)
        }
        assert marks == {int(index) % 4 for index in order if int(index) // 4 == layer}
    assert "least like" not in draw(many_heads(1, 3, 6, allowed=causal), 120, format="heat")


def test_heads_that_give_most_to_selected_keys_are_named_and_marked():
    """Which head reads this word most is what a run of one row, a few keys and every head is asked."""
    text = text_report(
        tokens(words(6)),
        heads=[(layer, head) for layer in range(3) for head in range(4)],
        queries=[4],
        keys=[1, 2],
    )
    sums = np.array([np.nan_to_num(head.stages["weights"]).sum() for head in text.heads])
    order = np.argsort(-sums)[:5]
    shown = draw(report(text), 120, format="heat")
    assert "least like" not in shown
    (line,) = (line for line in shown.splitlines() if line.startswith("most weight on these keys"))
    named = re.findall(r"L(\d)H(\d) (\d\.\d\d)", line)
    assert [4 * int(layer) + int(head) for layer, head, _ in named] == order.tolist()
    assert [float(weight) for *_, weight in named] == pytest.approx(sums[order], abs=0.0051)
    assert "; ◂ is named below" in shown
    assert len(re.findall("◂", shown)) == 1 + len(order)


def test_rows_of_many_heads_name_the_key_of_every_column():
    """Light up one key after the other: the column that it lights up is the last whose named key is not after it."""
    made = many_heads(4, 5, 20)
    text = replace(made.texts[0], queries=[3])
    made = replace(made, texts=[text])
    for key in range(20):
        weights = np.eye(20, dtype=np.float32)[key : key + 1]
        text.heads.stages["weights"] = np.stack([weights] * len(text.heads))
        shown = draw(made, 60, format="heat")
        (cells,) = (line[3:] for line in shown.splitlines() if line.startswith("L2 "))
        named = (
            " ".join(shown.rpartition("more ")[0].split())
            .partition("first key of each column: ")[2]
            .split(" · ")
        )
        firsts = [int(name.split()[0]) for name in named]
        assert [name.split()[1] for name in named] == [
            text.tokens[first].text.strip() for first in firsts
        ]
        assert cells.index("█") == max(n for n, first in enumerate(firsts) if first <= key)
    assert "columns: 0 " in draw(made, 200, format="heat")


def test_thumbnails_offer_what_they_leave_out_and_no_option_that_changes_nothing():
    offered = draw(many_heads(2, 5, 6), 120, format="heat").rpartition("more ")[2]
    assert "--layer L --head H (stages and contributors)" in offered
    assert "--top" not in offered
    assert "--stage" not in offered


def test_words_are_merged_in_pictures_of_many_heads():
    made = many_heads(2, 5, 6)
    text = replace(
        made.texts[0],
        tokens=[replace(token, piece=f"##{token.text}") for token in made.texts[0].tokens],
    )
    shown = present(replace(made, texts=[with_words(text)]), format="heat")
    (grid,) = (part for part in shown if isinstance(part, parts.Matrices))
    assert [panel.matrix.shape for panel in grid.panels] == [(1, 1)] * len(text.heads)
    assert all(panel.matrix[0, 0] == pytest.approx(1) for panel in grid.panels)


def test_the_other_measure_is_offered():
    texts = [replace(text, keys=None) for text in measured().texts]
    entropy = replace(measured(), measure="entropy", texts=texts)
    assert "more     --against WORD (compared with another key) · " in draw(measured(), 120)
    assert "more     --measure weight --key WORD · " in draw(entropy, 120)


def test_long_texts_and_few_heads():
    long = many_heads(3, 3, 2)
    heads = changed(long.texts[0].heads, stages={}, pooled=pooled_of(weights_of(90), 16))
    text = replace(long.texts[0], heads=heads, queries=[], keys=[])
    assert are_thumbnails(text)
    assert "the largest of" not in draw(
        replace(long, texts=[text]), 200, format="heat", colour="truecolor"
    )


@pytest.mark.parametrize("format", ["table", "heat"])
def test_the_maps_of_many_heads_are_a_grid_on_one_logarithmic_scale(format):
    long = many_heads(2, 3, 2)
    maps = [pooled_of(np.power(weights_of(90), n), 16) for n in (1, 2, 3, 1, 2, 3)]
    of_heads = [
        of_head(long.texts[0].heads, n) | {"stages": {}, "pooled": pooled}
        for n, pooled in enumerate(maps)
    ]
    heads = stacked(of_heads)
    shown = draw(
        replace(long, texts=[replace(long.texts[0], heads=heads, queries=[], keys=[])]),
        80,
        format=format,
    )
    known = np.concatenate([pooled.weights[pooled.weights > 0] for pooled in maps])
    high = float(known.max())
    low = max(float(known.min()), high / 1000)
    lines = shown.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("L0 "))
    for head, pooled in enumerate(maps[:3]):
        drawn = [
            line.ljust(80)[3 + 17 * head : 19 + 17 * head] for line in lines[first : first + 8]
        ]
        for line, pair in zip(drawn, pooled.weights.reshape(8, 2, 16).max(axis=1), strict=True):
            places = [
                log(max(weight, low) / low) / log(high / low) if weight else -1 for weight in pair
            ]
            assert line == "".join(
                "·" if place < 0 else "░▒▓█"[min(3, int(place * 4))] for place in places
            )
    assert shown.count("logarithmic; · is exactly zero") == 1
    assert "a cell is the largest of up to 2 × 1 cells of the 16 × 16 map" in " ".join(
        shown.split()
    )
    assert "most attended  of" not in shown


def test_maps_of_one_run_are_drawn_without_names_of_columns():
    long = many_heads(2, 3, 2)
    heads = changed(long.texts[0].heads, stages={}, pooled=pooled_of(weights_of(90), 1))
    shown = draw(
        replace(long, texts=[replace(long.texts[0], heads=heads, queries=[], keys=[])]),
        80,
        format="heat",
    )
    assert "a cell is a cell of the 1 × 1 map" in " ".join(shown.split())
    assert "columns:" not in shown and "first key of each column" not in shown


def test_numbers_of_many_heads_that_fill_screens_become_a_grid():
    few, many = (draw(many_heads(2, heads, 12), 80, brief=True) for heads in (2, 5))
    assert "L1H1" in few and "not shown: numbers" not in few
    assert (
        "not shown: numbers and contributors of 10 heads (--layer L --head H, or --stage weights)"
        in " ".join(many.split())
    )
    assert len(many.splitlines()) < 60 and many.count("weights  0") == 1
    assert "not shown: numbers" not in draw(many_heads(2, 5, 12), 80)


@pytest.mark.parametrize("colour", [None, "truecolor"])
@pytest.mark.parametrize("count", [6, 16, 40])
def test_the_legend_of_thumbnails_says_how_many_queries_a_cell_stands_for(count, colour):
    """Light up one query after the other: the most that light up the same cell are those of the legend."""
    made = many_heads(6, 2, count)
    lit = list[str]()
    for query in range(count):
        for head in made.texts[0].heads:
            head.stages["weights"][:] = 0
            head.stages["weights"][query] = 1
        lit.append(draw(made, 120, format="heat", colour=colour))
    most = max(map(lit.count, lit))
    said = re.search(
        r"a cell is the largest of up to (\d+) × \d+",
        " ".join(re.sub(r"\x1b\[[\d;]*m", "", lit[0]).split()),
    )
    assert int(said[1] if said else 1) == most


def test_few_heads_are_drawn_in_full_and_many_beside_each_other():
    assert not are_thumbnails(many_heads(1, 3, 3).texts[0])
    assert are_thumbnails(many_heads(1, 12, 3).texts[0])
    assert not are_thumbnails(many_heads(2, 4, 3).texts[0])


def test_the_heads_of_a_layer_fill_lines_on_one_scale():
    made = many_heads(1, 12, 11)
    shown = draw(made, 80, format="heat")
    assert re.findall(r"H(\d+)", shown)[:12] == [str(head) for head in range(12)]
    assert len([line for line in shown.split("\n") if re.match(r" +H\d", line)]) == 2
    assert shown.count("weights  0") == 1


def test_a_comparison_of_many_heads_leads_with_those_that_moved_most():
    from attnscope.findings.compare import Side
    from attnscope.studies.compare.reports import compare_sides

    made = compare_sides(
        "mask",
        [Side("own", many_heads(3, 4, 4)), Side("causal", many_heads(3, 4, 4, allowed=causal))],
    )
    shown = draw(made, 80)
    moved = {
        (n // 4, n % 4): float(head.total_variation.max())
        for n, head in enumerate(made.changes[0].heads)
    }
    layer, head = max(moved, key=lambda at: moved[at])
    assert re.findall(r"^(L\dH\d)  own → causal", shown, re.MULTILINE) == [f"L{layer}H{head}"]
    for layer in range(3):
        numbers = " ".join(f"{moved[layer, head]:.2f}" for head in range(4))
        assert f"L{layer}   {numbers}" in shown
    # Of heads that the user selected, more are printed.
    selected = draw(replace(made, named=["layer", "head"]), 80)
    order = sorted(moved, key=lambda at: -moved[at])
    assert re.findall(r"^(L\dH\d)  own → causal", selected, re.MULTILINE) == [
        f"L{la}H{h}" for la, h in order[:10]
    ]
    few = compare_sides(
        "mask",
        [Side("own", many_heads(2, 4, 4)), Side("causal", many_heads(2, 4, 4, allowed=causal))],
    )
    assert "most moved follow" not in draw(replace(few, named=["layer", "head"]), 80)


def test_a_main_role_that_this_version_does_not_know_has_its_letter_in_a_comparison():
    first, second = survey(), survey(roles=tuple(ROLES))
    novel = replace(first.roles[0], name="novel", letter="Ñ", title="novel role")
    first = replace(
        first, roles=[*first.roles, novel], main=[["novel", *first.main[0][1:]], *first.main[1:]]
    )
    shown = draw(compare_heads("model", [("a", first), ("b", second)]), 200)
    assert f"Ñ→{ROLES[second.main[0][0]].letter}" in shown


def test_zero_in_all_heads_is_one_line():
    """A screen of 0.0e+00 named the strongest heads of none."""
    found = survey()
    role = found.roles[0]
    for values, said in (
        (np.zeros_like(role.values), "0 in all 12 heads"),
        (np.full_like(role.values, 4e-8), "at most 4e-08 in all 12 heads"),
    ):
        shown = draw(replace(found, roles=[replace(role, values=values)]), 80)
        assert said in shown and "strongest" not in shown and "L0 " not in shown
    weights = measured()
    shown = draw(replace(weights, values=np.zeros_like(weights.values)), 80)
    assert "0 in all 12 heads" in shown and "strongest" not in shown
    assert "in all" not in draw(weights, 80)


@pytest.mark.parametrize("colour", [None, "standard", "256", "truecolor"])
def test_pooled_thumbnails_and_maps_tell_small_weights_from_what_is_forbidden(colour):
    """Both were the terminal's background."""
    made = many_heads(6, 9, 40)
    for head in made.texts[0].heads:
        weights = np.tril(np.full((40, 40), 1e-6, np.float32), -1)
        head.stages["weights"][:] = weights + np.diag(1 - weights.sum(1))
    long = many_heads(6, 2, 2)
    heads = changed(long.texts[0].heads, stages={}, pooled=pooled_of(weights_of(90), 16))
    long = replace(long, texts=[replace(long.texts[0], heads=heads, queries=[], keys=[])])
    for found in (made, long):
        said = re.sub(r"\x1b\[[\d;]*m", "", draw(found, 120, format="heat", colour=colour))
        drawn = said.partition("H0")[2].partition("weights ")[0].splitlines()
        # the upper line of a thumbnail: nothing is allowed but its first keys
        (top,) = (line for line in drawn if line.startswith("L0 "))
        heading = drawn[0]
        size = len("H0") + heading.index("H1") - 1  # behind "H0"
        first = top[3 : 3 + size]
        assert first.endswith("····") and not first.startswith("·")
        # the last line of a thumbnail: every key is allowed to some query
        bottom = drawn[drawn.index(top) + 2]
        assert bottom.count("·") < top.count("·")
        assert "· is exactly zero" in " ".join(said.split())


@pytest.mark.parametrize("colour", [None, "truecolor"])
def test_whole_thumbnails_tell_zero_from_what_is_forbidden_and_name_their_tokens(colour):
    made = many_heads(6, 2, 6)
    for head in made.texts[0].heads:
        weights = np.tril(np.full((6, 6), 1e-6, np.float32), -1)
        head.stages["weights"][:] = weights + np.diag(1 - weights.sum(1))
    said = re.sub(r"\x1b\[[\d;]*m", "", draw(made, 80, format="heat", colour=colour))
    drawn = said.partition("H0")[2].partition("weights ")[0].splitlines()
    lines = [line for line in drawn if "·" in line]
    assert [line.count("·") for line in lines] == [10, 8, 6, 4, 2] * 6
    assert "· is exactly zero" in " ".join(said.split())
    names = " · ".join(f"{n} {token.text.strip()}" for n, token in enumerate(made.texts[0].tokens))
    assert f"rows and columns: {names}" in " ".join(said.split())


def one_cell(values, against=None, **changes):
    """Numbers of every head for the token `bank` that reads `the`."""
    found = measured(2, 2)
    text = replace(found.texts[0], queries=[2], keys=[1], against=None)
    contrast = None
    if against is not None:
        text = replace(text, against=[0])
        contrast = KeyContrast(np.float32(values), np.float32(against))
        values = np.float32(values) - np.float32(against)
    changes = {"texts": [text], "values": np.float32(values), "contrast": contrast} | changes
    return replace(found, **changes)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (one_cell([[0.1, 0.7], [0.2, np.nan]]), '"bank" reads "the" most in L0H1: 0.70'),
        (
            one_cell([[0.704, 0.701], [0.2, 0.7]]),
            '"bank" reads "the" most in L0H0, L0H1 and L1H1: 0.70',
        ),
        (
            one_cell([[0.1, 2.7], [0.2, 0.3]], measure="value"),
            '"bank" reads "the" most by α·‖v‖ in L0H1: 2.70',
        ),
        (
            one_cell([[0.1, 0.7], [0.2, 0.3]], [[0.6, 0.2], [0.2, 0.4]]),
            '"bank" reads "the" more than "[CLS]", most in L0H1 (0.70 against 0.20); "[CLS]" more than "the", '
            "most in L0H0 (0.60 against 0.10)",
        ),
        (
            one_cell([[0.1, 0.1], [0.2, 0.3]], [[0.6, 0.2], [0.2, 0.4]]),
            '"bank" reads "[CLS]" more than "the", most in L0H0 (0.60 against 0.10)',
        ),
        (
            one_cell([[0.1, 0.1], [0.2, 0.3]], [[0.1, 0.1], [0.2, 0.3]]),
            '"bank" reads "the" as much as "[CLS]" in every head',
        ),
    ],
)
@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_numbers_of_a_cell_begin_with_the_answer(found, said, width):
    lines = draw(found, width).splitlines()
    place = lines.index("") + 1
    # the map may stand on the right
    assert said in " ".join(re.split(" {3,}", line)[0] for line in lines[place : place + 4])
    listed = next(n for n, line in enumerate(lines) if line.startswith(("strongest", "   head")))
    titles = [n for n, line in enumerate(lines) if f"{found.measure}  " in line]
    assert place < listed
    # of a wide screen, the map stands beside the answer
    assert titles[0] == place if width == 200 else titles[0] > listed


def test_a_role_of_what_no_row_can_read_is_not_called_weak():
    """`0.00 in all heads` of punctuation marks, where the texts had none, read as a finding about the heads."""
    made = survey()
    said = "no such key in the texts, or the mask hides it"
    assert said not in draw(made, 80)
    for name, absent in (("punctuation", True), ("retrieval", False)):
        roles = [
            replace(role, values=np.zeros_like(role.values)) if role.name == name else role
            for role in made.roles
        ]
        lines = draw(replace(made, roles=roles), 80).splitlines()
        (line,) = [line for line in lines if line.startswith(f"{ROLES[name].letter} ")]
        assert line.endswith(said if absent else "0.00 in all heads")


def test_the_answer_names_several_tokens_and_heads_that_tie():
    found = measured(2, 2)
    values = np.float32([[1.0, 1.0], [1.0, 0.2]])
    shown = draw(replace(found, values=values), 80)
    assert '"bank" reads keys most in L0H0, L0H1 and L1H0: 1.00\n' in shown
    text = replace(found.texts[0], queries=[1, 2], keys=[3])
    shown = draw(replace(found, texts=[text]), 80)
    assert "queries read " in shown
    text = replace(found.texts[0], keys=None)
    shown = draw(replace(found, texts=[text], measure="entropy"), 80)
    assert "\nentropy is largest in L1H1: 1.00\n" in shown


def test_a_head_without_any_is_not_among_the_strongest():
    values = np.zeros((2, 2), dtype=np.float32)
    values[0, 1] = 0.5
    found = replace(measured(), values=values)
    listed = re.search(r"strongest  (.*)", draw(found, 80))
    assert listed is not None and listed[1].split() == ["L0H1", "0.50"]


def test_a_screen_names_the_strongest_heads_before_it_draws_all(tmp_path):
    """Thirty layers filled a terminal, and the answer stood below them; a figure begins with its picture."""
    found = measured()
    screen = draw(found, 80)
    assert screen.index("strongest  ") < screen.index("head  ")
    figure = b"".join(export(found, tmp_path / "x.svg")).decode()
    assert figure.index(">strongest<") > figure.index(">H0<")
    screen = draw(survey(), 80)
    assert screen.index("role  ") < screen.index("clear  ") < screen.index("\n head  ")
    assert screen.index("no clear role (?)") < screen.index("role  ")
