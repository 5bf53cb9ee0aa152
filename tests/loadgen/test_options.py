"""What options take: numbers of any size get an answer in words."""

import argparse

import pytest

from loadgen.options import positive_float, positive_int


@pytest.mark.parametrize("text", ["1" + "0" * 400, "1" * 5000, "1e999", "inf", "nan", "-1", "0", ""])
def test_what_is_no_number_above_0_is_said(text: str) -> None:
    for option in (positive_int, positive_float):
        with pytest.raises(argparse.ArgumentTypeError, match="expected"):
            option(text)
