"""What was there before a run is not looked at while it lasts, and is again afterwards."""

from __future__ import annotations

import gc

from loadgen.garbage import frozen


def test_it_is_frozen_and_let_go() -> None:
    before = gc.get_freeze_count()
    with frozen():
        assert gc.get_freeze_count() > before + 1000
    assert gc.get_freeze_count() == 0
