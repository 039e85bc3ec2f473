import numpy as np
import pytest

from attnscope.views.numbers import Digits, cell_text, digits_for, scale_text


@pytest.mark.parametrize(
    ("largest", "precision", "said"),
    [
        (0.0, 2, "0.00"),
        (0.6024, 2, "0.60"),
        (-17.5, 2, "−17.50"),
        (1234.5, 2, "1234.50"),
        (12345.6, 2, "12345.6"),
        (123456.7, 2, "123457"),
        (12345678.9, 2, "1.2e+07"),
        (0.05, 2, "0.050"),
        (0.00123, 2, "0.0012"),
        (0.0000123, 2, "0.000012"),
        (0.00000123, 2, "1.2e-06"),
        (0.6024, 4, "0.6024"),
        (0.6024, 0, "0.6"),
        (6.024, 0, "6"),
        (1e30, 6, "1.00000e+30"),
    ],
)
def test_the_largest_number_keeps_two_places_and_columns_stay_narrow(largest, precision, said):
    matrix = np.array([[0.0, largest], [np.nan, -np.inf]])
    assert digits_for(matrix, precision).text(largest) == said


def test_a_number_that_rounds_to_zero_has_no_sign():
    assert Digits(2).text(-0.001) == "0.00"


@pytest.mark.parametrize(("value", "said"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "−inf")])
def test_what_is_not_finite_says_so(value, said):
    assert Digits(2).text(value) == said


@pytest.mark.parametrize(
    ("stage", "value", "masked_row", "said"),
    [
        ("masked", -np.inf, False, "·   "),
        ("masked", -np.inf, True, "·   "),
        ("scores", -np.inf, False, "−inf"),
        ("scores", 1.5, True, "1.50"),
        ("weights", np.nan, True, "masked"),
        ("output", np.nan, True, "masked"),
        ("weights", np.nan, False, "nan"),
        ("weights", 0.0, False, "·   "),
        ("weights", 0.001, False, "0.00"),
        ("scores", 0.0, False, "0.00"),
    ],
)
def test_a_cell_never_shows_a_number_that_is_not_there(stage, value, masked_row, said):
    assert cell_text(stage, value, masked_row, Digits(2)) == said


def test_marks_stand_under_the_digit_before_the_point():
    digits = Digits(3)
    assert digits.text(0.125).index(".") - 1 == digits.units("·").index("·")
    assert Digits(1, scientific=True).units("0") == "0"
    assert Digits(0).units("0") == "0"


@pytest.mark.parametrize(
    ("scale", "width", "said"),
    [
        (1 / 48**0.5, 48, "÷ √48"),
        (float(np.float32(1 / 48**0.5)), 48, "÷ √48"),
        (0.125, 64, "÷ √64"),
        (0.1443, 48, "× 0.1443"),  # four digits of it
        (192**-0.5, 64, "× 0.07217"),  # DeBERTa: three terms
        (1 / 16, 128, "× 0.0625"),  # Gemma 2: another root than the heads' width
        (1.0, 64, "× 1"),
        (1.0, 1, "× 1"),
        (0.125, None, "× 0.125"),
    ],
)
def test_a_scale_is_the_root_of_the_width_only_where_it_is(scale, width, said):
    assert scale_text(scale, width) == said
    assert scale_text(scale, width, reason=True) == said + " (head width)" * said.startswith("÷")
