"""The plain line says what was counted, and what it counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.live.lines import line, number, rate
from loadgen.live.state import RunState
from loadgen.outcome import Outcome
from loadgen.self_watch import SelfFigures
from tui.replay import _SESSIONS

STATE = RunState(
    "replay", 35.2, sessions=500, turns=1980, sessions_done=12, due=40, sent=38, in_flight=8, completed=29,
    failures={Outcome.CUT: 1}, output_tokens=1234, chunks=1500, ended_chunks=1290,
)  # fmt: skip


def test_all_of_it() -> None:
    before = replace(STATE, elapsed=30.2, chunks=1000)
    assert line(STATE, before) == (
        "replay: 35 s, sessions 12/500, turns 30/1980 done, 8 running, 1 failed, "
        "1,234 output tokens and 210 chunks of unfinished turns, 100.0 chunks/s"
    )


def test_what_is_not_always_there() -> None:
    slow = SelfFigures(wall_s=10.0, cpu_s=9.5, ticks=9, p99_lag_ms=80.0)
    state = replace(STATE, queued=3, speeds=((0.0, 1.0), (20.4, 4.0)), stopping="time=30s", processes=(slow,))
    told = line(state, None)
    assert "8 running, 3 waiting for a slot, 1 failed" in told
    assert (
        "42.6 chunks/s in the mean, speed 4x since second 20, 1x before, stopping (time=30s), loadgen itself is slow"
        in told
    )
    assert "CPU 95% of a core, event loop late by 80 ms at p99" in told
    assert line(replace(STATE, speeds=((0.0, 2.0),)), None).endswith(", speed 2x")


def test_paged_top_reads_its_sessions() -> None:
    found = _SESSIONS.search(line(STATE, None))
    assert found is not None
    assert found.groups() == ("12", "500")


def test_a_rate_is_between_two_states() -> None:
    assert rate(replace(STATE, elapsed=25.2, sent=8), STATE, "sent") == pytest.approx(3.0)
    assert rate(STATE, STATE, "sent") == 0.0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (0.00001, "1e-05"), (0.0423, "0.042"), (0.5, "0.5"), (0.9999, "1.00"), (3.14159, "3.14"),
        (9.996, "10.0"), (12.34, "12.3"), (99.96, "100"), (1234.5, "1,234"), (1e6, "1,000,000"), (-2.5, "-2.50"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text
