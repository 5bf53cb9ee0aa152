"""Steps of decodes are told apart by whether a prefill was in them."""

from __future__ import annotations

import pytest
from steps import record, row

from loadgen.interference import Interference, merged_interference, slowdown


def stepped(*steps: tuple[str, float]) -> Interference:
    """Steps of rows, each `d`, `p` or `h`, that took so many seconds."""
    kinds = {"d": "decode", "p": "prefill", "h": "held"}
    told = Interference()
    for number, (rows, seconds) in enumerate(steps):
        told.add(record(number, 0.0, rows=tuple(row(kinds[letter], 1) for letter in rows)), seconds)  # type: ignore[arg-type]
    return told


def test_steps_by_what_they_hold() -> None:
    figures = stepped(("dd", 0.010), ("dh", 0.012), ("dp", 0.2), ("p", 5.0), ("", 9.0)).figures()
    assert (figures["decode_steps_alone"], figures["decode_steps_mixed"]) == (2, 1)
    assert figures["p50_decode_step_alone_ms"] == pytest.approx(11.0)
    assert figures["max_decode_step_mixed_ms"] == pytest.approx(200.0)
    assert slowdown(figures) == pytest.approx(200 / 11)


def test_without_such_steps_there_are_no_times() -> None:
    figures = stepped(("d", 0.01)).figures()
    assert (figures["decode_steps_mixed"], figures["p99_decode_step_mixed_ms"], slowdown(figures)) == (0, None, None)


def test_those_of_several_engines_merge() -> None:
    whole = merged_interference([stepped(("d", 0.01), ("dp", 0.1)), stepped(("d", 0.03))]).figures()
    assert (whole["decode_steps_alone"], whole["decode_steps_mixed"]) == (2, 1)
    assert whole["max_decode_step_alone_ms"] == pytest.approx(30.0)
