"""The measurements of the client find what they are to find, on a golden server and on records that are wrong."""

from __future__ import annotations

import pytest

from benchmarks import parity
from benchmarks.client_load import Played, Served, errors_of, golden, replay, told_by
from loadgen.outcome import Outcome, RequestRecord


def record(session: str = "r0", outcome: Outcome = Outcome.COMPLETED, shift: float = 0.0) -> RequestRecord:
    return RequestRecord(
        session=session,
        index=0,
        turn=0,
        outcome=outcome,
        scheduled=0.0,
        sent=0.0,
        chunks=(0.1, 0.2 + shift, 0.3),
        ended=0.4,
        asked_output=3,
        output_tokens=3,
    )


def played(*records: RequestRecord, served: str = "r0") -> Played:
    return Played(list(records), {served: Served(served, 50.0, [50.1, 50.2, 50.3])}, 1, 10.0, {})


def test_a_replay_against_the_golden_server() -> None:
    with golden(0.01, 0.01) as url:
        found = replay(url, 20, 5, "--arrivals", "constant:50")
        assert told_by(url).served == []  # told once
    assert (len(found.records), found.lost()) == (20, [])
    assert {name: len(errors) for name, errors in errors_of(found).items()} == {
        "ttft": 20,
        "e2el": 20,
        "tpot": 20,
        "itl": 80,
    }
    assert 1 <= found.peak_in_flight <= 20
    assert found.peak > 10


def test_what_was_lost_is_found() -> None:
    assert played(record()).lost() == []
    assert len(played(record(outcome=Outcome.CUT)).lost()) == 1
    assert played(record("r1")).lost() == ["r1: never came to the server"]
    short = Served("r0", 50.0, [50.1])
    assert len(Played([record()], {"r0": short}, 1, 10.0, {}).lost()) == 1


def test_errors_are_those_of_the_client() -> None:
    exact, late = errors_of(played(record())), errors_of(played(record(shift=0.03)))
    assert exact["itl"] == pytest.approx([0, 0], abs=1e-6)
    assert late["itl"] == pytest.approx([30, 30])
    assert late["ttft"] == pytest.approx([0], abs=1e-6)


def test_two_tools_that_agree_with_a_slower_server_agree() -> None:
    """The server was twice as slow for the one: their ratio says 2, held against the server each is right."""
    figures = dict.fromkeys(parity.FIGURES, 10.0)
    rounds = {"loadgen": [figures], "aiperf": [{**figures, "mean_ttft_ms": 20.0}]}
    unknown: dict[str, list[parity.Measured]] = {"loadgen": [{}], "aiperf": [{}]}
    assert not parity.show(rounds, unknown)
    assert parity.show(rounds, {"loadgen": [{"mean_ttft_ms": 9.9}], "aiperf": [{"mean_ttft_ms": 19.8}]})
    assert not parity.show(rounds, {"loadgen": [{"mean_ttft_ms": 9.9}], "aiperf": [{"mean_ttft_ms": 18.0}]})
