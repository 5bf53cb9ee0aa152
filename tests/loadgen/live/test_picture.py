"""The picture fits every terminal, and shows what was measured."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from loadgen.live.columns import EIGHTHS
from loadgen.live.lines import number, rate
from loadgen.live.picture import Picture
from loadgen.live.state import RunState
from loadgen.outcome import Outcome
from loadgen.self_watch import SelfFigures
from tests.loadgen.live.states import long_run

RUN = long_run()
BLOCKS = EIGHTHS[1:]


def picture(states: list[RunState], width: int, height: int, ascii_only: bool = False) -> list[str]:
    """The lines of the last state, as they come to a terminal."""
    drawing = Picture(ascii_only)
    for state in states:
        drawing.take(state)
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(drawing.draw(width, height), end="")
    return captured.get().split("\n")


@settings(deadline=None)
@given(st.integers(1, 220), st.integers(1, 60), st.sampled_from([0, 1, 2, 30, 89]))
def test_it_fits(width: int, height: int, moment: int) -> None:
    lines = picture(RUN[: moment + 1], width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(("width", "height"), [(80, 23), (160, 47), (100, 30)])
def test_a_usual_terminal_shows_everything(width: int, height: int) -> None:
    shown = "\n".join(picture(RUN, width, height))
    state = RUN[-1]
    for told in (
        f"{state.share:.0%}",
        "1:29, about",
        f"sessions {state.sessions_done}/900",
        f"turns {state.completed + state.failed:,}/1,800",
        f"in flight {state.in_flight}",
        f"waiting for a slot {state.queued:,}",
        f"failed {state.failed}",
        "speed 4x since second 40, 1x before",
        f"{state.failures[Outcome.HTTP_ERROR]} HTTP error  503: overloaded, try again ?[31mlater",
        f"{state.failures[Outcome.TIMEOUT]} timed out  no answer within 30 s",
        "480 chunks/s",
        f"{state.output_tokens:,} output tokens and {state.open_chunks:,} chunks of unfinished turns",
        "CPU 23% of a core",
        "event loop late by 0.4 ms at p99, lately 1.50 ms",
        f"{number(rate(RUN[-6], state, 'due'))}/s",
        f"{number(rate(RUN[-6], state, 'completed'))}/s",
    ):
        assert told in shown
    table = shown[shown.index("latency so far, ms") :]
    for name in ("TTFT  from sent", "      from scheduled", "TPOT", "E2E   from sent", "send lag"):
        assert name in table
    p50 = state.latencies["ttft"].percentile(50)
    assert f"{p50:.0f}" in table
    assert "failed" in table  # the percentiles among the failures


def test_a_small_terminal_shows_the_most_important() -> None:
    lines = picture(RUN, 40, 11)
    shown = "\n".join(lines)
    for told in ("1:29, about", "sessions", "in flight 24", "failed", "arrivals", "completions", "TTFT", "TPOT", "E2E"):
        assert told in shown


def test_arrivals_and_completions_are_drawn_by_one_scale() -> None:
    """The load rises past what is answered: the last columns stand as far apart as the rates do."""
    lines = picture(RUN, 80, 23)
    arrivals, completions = (
        next(line for line in lines if line.startswith(name)) for name in ("arrivals", "completio")
    )
    assert "█" in arrivals
    assert "█" not in completions
    assert BLOCKS.index(completions.split()[1][-1]) == pytest.approx(8 * 12 / 25.5, abs=1)
    assert "top 25.5" in arrivals
    assert "top 25.5" in completions


def test_charts_grow_with_the_terminal() -> None:
    def cells(height: int) -> int:
        return sum(letter in BLOCKS for line in picture(RUN, 80, height) for letter in line)

    assert cells(23) < cells(32) < cells(47)


def test_without_unicode() -> None:
    for width, height in ((80, 23), (160, 47), (40, 11)):
        "\n".join(picture(RUN[:60], width, height, ascii_only=True)).replace("…", "").encode("ascii")


def test_before_the_first_answer() -> None:
    shown = "\n".join(picture([replace(RUN[0], completed=0)], 80, 23))
    assert "none failed" in shown
    assert "left" not in shown


def test_the_end_is_told() -> None:
    shown = "\n".join(picture([*RUN, replace(RUN[-1], stopping="time=30s")], 80, 23))
    assert "stopping: time=30s" in shown
    assert "left" not in shown


def test_many_kinds_of_failures() -> None:
    failures = {outcome: 9 - number for number, outcome in enumerate(list(Outcome)[1:7])}
    state = replace(RUN[-1], failures=failures, first_failures={})
    lines = [line for line in picture([state], 80, 23) if "of other kinds" in line]
    assert lines == [f"7 {Outcome.SERVER_ERROR}, 15 of other kinds"]


def test_turns_that_lack_an_earlier_one_are_told_after_what_failed() -> None:
    state = replace(RUN[-1], failures={Outcome.NOT_SENT: 40, Outcome.CUT: 3}, first_failures={})
    told = [line for line in picture([state], 80, 23) if line.endswith((Outcome.NOT_SENT, Outcome.CUT))]
    assert told == [f"3 {Outcome.CUT}", f"40 {Outcome.NOT_SENT}"]


def test_a_client_that_is_too_slow_is_told() -> None:
    slow = SelfFigures(wall_s=89.0, cpu_s=88.0, ticks=9, p99_lag_ms=80.0)
    fast = SelfFigures(wall_s=89.0, cpu_s=8.0, ticks=9, p99_lag_ms=0.5)
    shown = "\n".join(picture([replace(RUN[-1], processes=(fast, slow))], 100, 30))
    assert "! loadgen itself is slow (CPU 99% of a core, event loop late by 80 ms at p99)" in shown


def test_the_busiest_of_several_processes() -> None:
    def at(second: float) -> RunState:
        busy = SelfFigures(wall_s=second, cpu_s=0.7 * second, ticks=9, p99_lag_ms=0.5, late_ms=0.1)
        idle = SelfFigures(wall_s=second, cpu_s=0.1 * second, ticks=9, p99_lag_ms=2.5, late_ms=0.2)
        return replace(RUN[-1], elapsed=second, processes=(busy, idle))

    shown = "\n".join(picture([at(90.0), at(92.0)], 120, 40))
    assert "loadgen 2 processes, the busiest at 70% of a core" in shown
    assert "late by 2.50 ms at p99, lately 0.2 ms" in shown
