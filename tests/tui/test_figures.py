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
