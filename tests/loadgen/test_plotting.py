"""A plot has its size and its names, and leaves nothing for the next one."""

from __future__ import annotations

import plotext
import pytest

from loadgen.plotting import HEIGHT, picture


@pytest.mark.parametrize("color", [False, True])
def test_a_plot_is_as_wide_and_high_as_it_should_be(color: bool) -> None:
    drawn = picture("requests/s", "seconds", 60, color, lambda: plotext.plot([0, 1], [5, 10]))
    lines = drawn.plain.splitlines()
    assert (len(lines), max(map(len, lines))) == (HEIGHT, 60)
    assert "requests/s" in lines[0]
    assert "seconds" in lines[-1]
    assert (len(drawn.spans) > HEIGHT) == color  # axes and background have theirs too


def test_the_axis_begins_at_0_and_ends_where_it_is_told() -> None:
    drawn = picture("t", "x", 60, False, lambda: plotext.plot([0, 1], [5, 10]), top=20).plain
    assert {"0.0", "20.0"} <= {line.split("┤")[0].strip() for line in drawn.splitlines() if "┤" in line}


def test_nothing_is_left_of_it() -> None:
    first = picture("t", "x", 60, False, lambda: plotext.plot([0, 1], [0, 1]))
    picture("other", "y", 60, False, lambda: (plotext.xscale("log"), plotext.plot([1, 1000], [0, 900])))
    assert picture("t", "x", 60, False, lambda: plotext.plot([0, 1], [0, 1])) == first
