"""What follows from the counts of a state."""

from __future__ import annotations

import pytest

from loadgen.live.state import RunState
from loadgen.outcome import Outcome


def at(elapsed: float, turns: int = 100, **counts: object) -> RunState:
    return RunState("replay", elapsed, sessions=10, turns=turns, **counts)  # type: ignore[arg-type]


def test_the_rest_takes_as_long_as_what_is_done() -> None:
    state = at(30.0, completed=20, failures={Outcome.CUT: 5})
    assert state.share == 0.25
    assert state.left == 90.0


def test_nothing_is_known_of_the_end_before_something_has_ended() -> None:
    assert at(30.0).left is None


def test_a_stop_rule_may_end_it_sooner() -> None:
    assert at(30.0, completed=20, last_second=40.0).left == pytest.approx(10.0)
    assert at(30.0, completed=20, last_turn=40).share == 0.5
    assert at(50.0, completed=90, last_second=40.0).share == 1.0  # what is in flight comes to its end
    assert at(50.0, completed=90, last_second=40.0).left == 0.0


def test_turns_that_could_not_be_sent_are_no_errors() -> None:
    state = at(1.0, completed=4, failures={Outcome.CUT: 2, Outcome.NOT_SENT: 3})
    assert (state.failed, state.errors, state.ended) == (5, 2, 6)


def test_chunks_and_records_may_be_told_at_different_moments() -> None:
    assert at(1.0, chunks=5, ended_chunks=8).open_chunks == 0


def test_an_empty_run_is_done() -> None:
    assert at(0.0, turns=0).share == 1.0
