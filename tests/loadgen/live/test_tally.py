"""What happens in the processes of a run adds up to one state."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.live.tally import Counts, Progress, Tally
from loadgen.outcome import Outcome, RequestRecord
from tests.loadgen.live.states import completed, failed

counts = st.builds(Counts, *[st.integers(0, 10**9)] * 6)


@settings(deadline=None)
@given(counts, counts, counts)
def test_counts_of_processes_add_up_in_any_order(a: Counts, b: Counts, c: Counts) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + Counts() == a
    assert (a + b).chunks == a.chunks + b.chunks


@settings(deadline=None)
@given(counts)
def test_counts_travel(given: Counts) -> None:
    assert msgspec.json.decode(msgspec.json.encode(given), type=Counts) == given


def test_a_turn_from_due_to_done() -> None:
    tally = Tally()
    tally.due()
    with tally.waiting():
        assert tally.counts() == Counts(due=1, queued=1)
        assert tally.queued == 1
    with tally.running():
        tally.count_chunk()
        tally.count_chunk()
        assert tally.counts() == Counts(due=1, sent=1, in_flight=1, chunks=2)
    tally.session_done()
    assert tally.counts() == Counts(due=1, sent=1, chunks=2, sessions_done=1)


def test_whoever_is_interrupted_does_not_wait_or_run_any_more() -> None:
    tally = Tally()
    for block in (tally.waiting(), tally.running()):
        with pytest.raises(KeyboardInterrupt), block:
            raise KeyboardInterrupt
    assert tally.counts() == Counts(sent=1)


def run(*records: RequestRecord) -> Progress:
    progress = Progress("replay", sessions=2, turns=5, began=100.0)
    for record in records:
        progress.take(record)
    return progress


def test_records_and_counts_make_a_state() -> None:
    progress = run(completed(0, tokens=7), failed(detail="first"), failed(detail="second"), failed(Outcome.NOT_SENT))
    state = progress.state(103.5, [Counts(due=3, sent=2, chunks=4), Counts(due=2, in_flight=1, sessions_done=1)])
    assert (state.elapsed, state.due, state.sent, state.in_flight, state.sessions_done) == (3.5, 5, 2, 1, 1)
    assert (state.completed, state.failed, state.errors, state.ended) == (1, 3, 2, 3)
    assert state.failures == {Outcome.TIMEOUT: 2, Outcome.NOT_SENT: 1}
    assert state.first_failures[Outcome.TIMEOUT] == "first"
    assert (state.input_tokens, state.output_tokens, state.chunks, state.open_chunks) == (10, 7, 4, 2)


def test_latencies_are_those_of_the_report() -> None:
    state = run(completed(sent=1.0, chunks=(1.5, 2.0), tokens=2), failed()).state(101.0, [])
    assert {name: histogram.mean for name, histogram in state.latencies.items()} == {
        "ttft": 500.0, "ttft_scheduled": 750.0, "tpot": 500.0, "e2el": 1000.0, "e2el_scheduled": 1250.0,
        "send_lag": 125.0,
    }  # fmt: skip
    assert state.latencies["ttft"].percentile(99) is None  # among the failures
    assert state.latencies["tpot"].infinite == 0


def test_turns_that_were_interrupted_or_not_reached_are_neither_completed_nor_failed() -> None:
    state = run(failed(Outcome.INTERRUPTED), failed(Outcome.NOT_REACHED)).state(101.0, [])
    assert (state.completed, state.failed, state.ended) == (0, 0, 0)


def test_a_state_stays_as_it_is() -> None:
    progress = run(completed())
    state = progress.state(101.0, [])
    progress.take(completed(1))
    progress.take(failed())
    progress.set_speed(2.0, 102.0)
    assert (state.completed, state.failed, state.speed) == (1, 0, 1.0)
    assert state.latencies["ttft"].count == 1


def test_histograms_are_not_copied_for_every_state() -> None:
    progress = run(completed())
    first, soon = progress.state(101.0, []), progress.state(101.4, [])
    progress.take(completed(1))
    later = progress.state(101.5, [])
    assert first.latencies is soon.latencies
    assert (soon.latencies["ttft"].count, later.latencies["ttft"].count) == (1, 2)


def test_before_the_beginning() -> None:
    progress = run()
    progress.set_speed(2.0, 99.0)
    state = progress.state(99.5, [Counts()])
    assert (state.elapsed, state.left, state.speed) == (0.0, None, 2.0)


def test_speeds_are_told_with_their_moments() -> None:
    progress = run()
    progress.set_speed(1.0, 103.0)  # as it was
    progress.set_speed(4.0, 105.0)
    assert progress.state(106.0, []).speeds == ((0.0, 1.0), (5.0, 4.0))
