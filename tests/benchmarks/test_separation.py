"""The load of a comparison of pools makes what is measured visible, and its report says no more than the rounds do."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.separation import (
    CHATS,
    CLUSTER,
    P99,
    STOPPED,
    THROUGHPUT,
    WAYS,
    WHOLE,
    CannotMeasure,
    figures,
    report,
    verdict,
)
from benchmarks.separation_load import LONG_PROMPT, Load, Speed, chosen, fitted, stopped_share
from loadgen.mix import mixed
from loadgen.outcome import Outcome, RequestRecord

SPEED = Speed(prefill=2.6, step=0.009, row=0.00126)


def test_as_many_chats_as_it_takes_for_stops_to_be_in_p99() -> None:
    """Replayed by hand: a long prompt stops each chat of its worker once, between steps."""
    load = chosen(SPEED)
    assert load.rate * SPEED.prefill == pytest.approx(0.75)
    every = 2 / load.rate  # seconds between two long prompts at one of two workers
    steps = (every - SPEED.prefill) / (SPEED.step + SPEED.row * load.users / 2)
    assert 1 / (steps + 1) == pytest.approx(0.025, rel=0.05)


def test_slow_and_quick_engines_stay_within_bounds() -> None:
    assert chosen(Speed(60.0, 0.009, 0.001)).users == 200
    assert chosen(Speed(0.01, 0.009, 0.001)).users == 8
    with pytest.raises(ValueError, match="a prefill and a row take time"):
        fitted(2.0, (8, 0.02), (48, 0.02))
    speed = fitted(2.0, (8, 0.020), (48, 0.060))
    assert (speed.row, speed.step) == (pytest.approx(0.001), pytest.approx(0.012))


def test_the_trace_has_the_load() -> None:
    _, sessions = mixed(Load(5, 0.5).mix(20.0, 7, 1))
    users = [session for session in sessions if session.session.startswith("chat")]
    assert (len(users), {len(session.turns) for session in users}) == (5, {7})
    assert [session.arrival for session in sessions if session not in users] == [1.0 + 2 * n for n in range(10)]


def record(tokens: int, *chunks: float, **more: object) -> RequestRecord:
    base: dict[str, object] = {
        "session": "s",
        "index": 0,
        "turn": 0,
        "outcome": Outcome.COMPLETED,
        "scheduled": chunks[0] - 0.5,
        "sent": chunks[0] - 0.5,
        "ended": chunks[-1],
        "chunks": chunks,
        "input_tokens": tokens,
        "output_tokens": len(chunks),
    }
    return RequestRecord(**{**base, **more})  # type: ignore[arg-type]


def test_only_what_comes_within_the_window_counts() -> None:
    chat = record(20, 1.0, 9.0, 11.0, 11.1, 14.1, 19.9, 20.0, 29.0)
    late = record(20, 12.0, 12.1)
    long = record(LONG_PROMPT, 13.0, 13.5)
    told = figures([chat, late, long], (10.0, 20.0), SPEED)
    assert told["ITL of chats, max (ms)"] == pytest.approx(5800)  # of the gaps 2.0, 0.1, 3.0, 5.8 and 0.1 s
    assert told["ITL of chats, p50 (ms)"] == pytest.approx(2000)
    assert told[STOPPED] == pytest.approx(3 / 5)
    assert told[THROUGHPUT] == pytest.approx(0.6)
    assert told["TTFT of chats, p50 (ms)"] == pytest.approx(500)
    with pytest.raises(CannotMeasure, match="give more --seconds"):
        figures([chat, late], (10.0, 20.0), SPEED)
    with pytest.raises(CannotMeasure, match="cut"):
        figures([record(20, 11.0, outcome=Outcome.CUT, detail="it was cut")], (10.0, 20.0), SPEED)
    assert stopped_share([], 1.0) is None


def rounds_of(*p99s: tuple[float, float, float], throughput: float = 1.0) -> list[dict[str, dict[str, float]]]:
    """Rounds with these p99 ITLs of the cluster's three ways."""
    told = figures([record(20, 11.0, 11.1, 11.2), record(LONG_PROMPT, 13.0)], (10.0, 20.0), SPEED)
    rounds = []
    for values in p99s:
        done = {way.name: dict(told) for way in WAYS}
        for way, value in zip(WAYS, values, strict=False):
            done[way.name][P99] = value
        done[WAYS[2].name][THROUGHPUT] *= throughput
        done[WHOLE.name][STOPPED] = 0.02
        rounds.append(done)
    return rounds


def test_the_verdict_says_what_all_rounds_say() -> None:
    said = verdict(rounds_of((2600, 300, 200), (2500, 200, 226), (2400, 150, 240), throughput=0.9))
    assert "p99 ITL of chats is 0.09 (0.08 to 0.10) of that of colocated workers with prompts in one step: met." in said
    assert "Against colocated, prompts in chunks: p99 ITL of chats 1.13 (0.67 to 1.60), no difference shown." in said
    assert "Against colocated, prompts in one step: output tokens/s 0.90 (0.90 to 0.90), worse." in said
    assert "in one step: **missed**." in verdict(rounds_of(*[(300, 300, 200)] * 3))


def test_too_few_rounds_show_nothing() -> None:
    for p99, within in ((300, "0.67 (0.67 to 0.67) of"), (2600, "0.08 (0.08 to 0.08) of")):
        few = verdict(rounds_of(*[(p99, 300, 200)] * 2))
        assert within in few
        assert ("**not** within the aim" if p99 == 300 else ": within the aim, but not shown: too few rounds.") in few
        assert few.count("not shown: too few rounds") == 5
        assert not any(word in few for word in (": met", "missed", "better", "worse", "no difference"))


def test_a_load_at_its_bound_is_told() -> None:
    options = argparse.Namespace(model="tiny", seconds=20.0, rounds=1, ways="all")
    for users, told in ((199, "there are as many chats as it takes for stops"), (200, "more chats than the 200 that")):
        assert told in report(SPEED, Load(users, 0.3), rounds_of((2600, 300, 200)), options)


def test_a_p99_without_stops_is_told() -> None:
    rounds = rounds_of((2600, 300, 200))
    rounds[0][WHOLE.name][STOPPED] = 0.004
    assert verdict(rounds).endswith("Only 0.40% of the gaps were stopped there: p99 does not show them.")


def test_a_column_for_each_way() -> None:
    options = argparse.Namespace(model="tiny", seconds=20.0, rounds=1, ways="all")
    told = report(SPEED, Load(100, 0.3), rounds_of((2600, 300, 200)), options)
    (row,) = (line for line in told.splitlines() if line.startswith(f"| {P99} |"))
    assert row.split(" | ")[1:4] == ["2,600", "300.0", "200.0"]
    assert f"TTFT of {CHATS}, p90 (ms)" in told


def test_only_the_clusters_ways_are_told_where_only_these_ran() -> None:
    options = argparse.Namespace(model="tiny", seconds=40.0, rounds=1, ways="cluster")
    rounds = [{way.name: done[way.name] for way in CLUSTER} for done in rounds_of((2600, 300, 200))]
    told = report(SPEED, Load(100, 0.3), rounds, options)
    assert "--ways cluster` on" in told
    assert "one engine" not in told
    (row,) = (line for line in told.splitlines() if line.startswith(f"| {P99} |"))
    assert row.split(" | ")[1:] == ["2,600", "300.0", "200.0 |"]
