"""How figures read: what is not all is not told as all."""

from __future__ import annotations

import pytest

from tui import figures


@pytest.mark.parametrize(
    ("share", "told"),
    [
        (None, "—"),
        (0.0, "0.0 %"),
        (0.0994, "9.9 %"),
        (0.0996, "10 %"),
        (0.99, "99 %"),
        (0.9949, "99 %"),
        (0.9953, "99.5 %"),
        (0.99996, "99.9 %"),
        (1.0, "100 %"),
        (1.43, "143 %"),
    ],
)
def test_percent(share, told):
    assert figures.percent(share) == told


def test_a_bound_is_never_told_tighter_than_it_is():
    assert figures.at_most(1.25) == "1.3 s"
    assert figures.more_than(1.25) == "1.2 s"
    assert figures.at_most(38.44) == "39 s"
    assert figures.more_than(38.44) == "38 s"
    assert figures.at_most(0.0125) == "13 ms"
    assert figures.at_most(0.00025) == "0.3 ms"
    for exact in (0.001, 0.0025, 0.025, 0.1, 0.3, 0.75, 1.0, 2.5, 7.5, 10.0, 60.0, 120.0, 2560.0):
        assert figures.at_most(exact) == figures.more_than(exact) == figures.seconds(exact)
