"""What is told of a trace as a whole, against its sessions one by one and against known figures of real traces."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_sessions import HEADER, block_sessions, blocks, chat, chat_sessions, says

from loadgen.inspection.columns import batches
from loadgen.inspection.statistics import Collector, Statistics
from loadgen.metrics.histogram import RELATIVE_ERROR
from loadgen.traces.formats import open_trace
from loadgen.traces.model import Header, Session, Turn

CHAT = Path(__file__).parents[3] / "traces" / "chat500.jsonl"


def collected(sessions: list[Session], header: Header = HEADER, size: int = 1000) -> Statistics:
    collector = Collector(header)
    for at in range(0, len(sessions), size):
        collector.take(sessions[at : at + size])
    return collector.statistics()


def of_file(path: Path) -> Statistics:
    trace = open_trace(path)
    collector = Collector(trace.header)
    for batch in batches(trace.sessions()):
        collector.take(batch)
    return collector.statistics()


@settings(max_examples=50)
@given(st.one_of(block_sessions(), chat_sessions()), st.integers(1, 3))
def test_batches_change_nothing_that_is_counted(sessions: list[Session], size: int) -> None:
    one, other = collected(sessions), collected(sessions, size=size)
    assert one.sharing == other.sharing
    assert one.rate == other.rate
    assert (one.lengths.over, one.lengths.requests) == (other.lengths.over, other.lengths.requests)
    assert one.sessions.ways == other.sessions.ways
    assert one.lengths.inputs is not None
    assert other.lengths.inputs is not None
    assert one.lengths.inputs.bars == other.lengths.inputs.bars


def test_requests_longer_than_a_context_are_counted() -> None:
    sessions = [blocks(4, (1,), output=output) for output in (2, 3, 4, 5)]
    collector = Collector(HEADER, contexts=(8, 6, 100))
    collector.take(sessions)
    assert collector.statistics().lengths.over == ((6, 3), (8, 1), (100, 0))


def test_conversations_are_counted_by_their_names() -> None:
    sessions = [chat(Turn(input_tokens=1), name=str(at), part_of=f"chat {at % 3}") for at in range(10)]
    assert collected(sessions).sessions.conversations == 3
    assert collected([chat(Turn(input_tokens=1))]).sessions.conversations is None


def test_a_trace_without_times_has_no_arrivals() -> None:
    told = collected([chat(says("a"), arrival=None)])
    assert (told.arrivals, told.rate, told.timed_requests) == (None, None, 0)


def test_blocks_that_came_before_are_told_only_of_blocks() -> None:
    assert collected([blocks(8, (1, 2)), blocks(8, (1, 3))]).sharing.repeated_blocks == 0.25
    assert collected([chat(says("a"))]).sharing.repeated_blocks is None


def test_a_trace_of_nothing_at_all_is_told() -> None:
    told = Collector(HEADER).statistics()
    assert (told.sessions.sessions, told.lengths.inputs, told.arrivals) == (0, None, None)


def test_the_chat_trace_of_this_project() -> None:
    told = of_file(CHAT)
    trace = open_trace(CHAT)
    sessions = list(trace.sessions())
    turns = [turn for session in sessions for turn in session.turns]
    assert (told.sessions.sessions, told.lengths.requests) == (500, 1127)
    assert told.lengths.outputs is not None
    assert told.lengths.outputs.mean == pytest.approx(statistics.fmean(turn.output_tokens or 0 for turn in turns))
    assert told.arrivals is not None
    assert told.arrivals.seconds == sessions[-1].arrival
    assert told.sessions.thinks is not None
    assert told.sessions.thinks.count == 627
    assert told.sharing.systems[0].sessions == 500
    # `paged-engine simulate --infinite` finds 88.4 % with tokens that it estimates in another way.
    assert told.sharing.hits[0].rate == pytest.approx(0.884, abs=0.02)


def test_azures_known_quantiles(azure: Path) -> None:
    told = of_file(azure)
    assert told.lengths.requests == 19_366
    known = {"inputs": (207, 396, 1020, 1189, 2735, 4142), "outputs": (54, 85, 129, 395, 424, 601)}
    for name, expected in known.items():
        values = getattr(told.lengths, name)
        found = [values.percentiles[f"p{percent}"] for percent in (10, 25, 50, 75, 90, 99)]
        assert found == [pytest.approx(value, rel=RELATIVE_ERROR) for value in expected]
    assert told.arrivals is not None
    assert told.arrivals.seconds == pytest.approx(58 * 60, abs=60)
    assert told.sharing.pieces == 0


def test_mooncakes_known_figures(mooncake: Path) -> None:
    told = of_file(mooncake)
    assert told.lengths.requests == 12_031
    assert told.sharing.repeated_blocks == pytest.approx(0.366, abs=0.0005)
    assert told.arrivals is not None
    assert told.arrivals.at_once > 0.9 * 12_031  # arrivals come in batches
    assert told.arrivals.gaps is not None
    assert told.arrivals.gaps.percentiles["p99"] == pytest.approx(3, abs=0.01)  # every 3 s
    assert told.sharing.openings[0].prompts == 12_031  # all begin with the same block
    assert told.sharing.caches[-1].found == pytest.approx(told.sharing.repeated_blocks)


def test_caches_are_told_only_of_blocks() -> None:
    twice = [blocks(8, (1, 2)), blocks(8, (1, 2))]
    assert collected(twice).sharing.caches
    assert collected([*twice, chat(says("a")), chat(says("a"))]).sharing.caches == ()
