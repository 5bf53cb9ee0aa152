"""A run ends when a rule says so, and says which."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.saturation import Server, samples
from loadgen.live.state import RunState
from loadgen.metrics.histogram import Histogram
from loadgen.outcome import Outcome
from loadgen.stop_rules import ALLOWED, Errors, ErrorShare, Requests, Saturation, StopRules, Time, parse_rule


def at(
    elapsed: float = 1.0, *, sent: int = 0, completed: int = 0, failures: Mapping[Outcome, int] | None = None
) -> RunState:
    return RunState("r", elapsed, 10, 10_000, sent=sent, completed=completed, failures=failures or {})


def check(rule: str, state: RunState) -> str | None:
    return StopRules([parse_rule(rule)]).check(state)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("requests=500", Requests(500)),
        ("time=60s", Time(60.0)),
        ("time=1.5m", Time(90.0)),
        ("errors=10", Errors(10)),
        ("errors=5%", ErrorShare(5.0)),
        (" errors = 0.5% ", ErrorShare(0.5)),
    ],
)
def test_every_rule_is_read(text: str, rule: object) -> None:
    assert parse_rule(text) == rule


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "there is no such rule"),
        ("request=500", "there is no such rule"),
        ("requests", "there is no such rule"),
        ("requests=0", "requests: expected a whole number above 0, got '0'"),
        ("requests=5%", "requests: expected a whole number above 0, got '5%'"),
        ("requests=²", "requests: expected a whole number above 0, got '²'"),
        ("time=60", "expected a number with its unit, like 500ms, 2s, 1.5m or 1h, got '60'"),
        ("time=0s", "expected a time above 0, got '0s'"),
        ("errors=0", "errors: expected a whole number above 0, got '0'"),
        ("errors=0%", "errors: expected a percentage above 0 and below 100, got '0%'"),
        ("errors=100%", "errors: expected a percentage above 0 and below 100, got '100%'"),
        ("errors=nan%", "errors: expected a percentage above 0 and below 100, got 'nan%'"),
        ("saturation=5", "there is no such rule"),
    ],
)
def test_what_is_refused_says_what_is_allowed(text: str, why: str) -> None:
    with pytest.raises(ValueError, match="allowed: requests=NUMBER") as caught:
        parse_rule(text)
    assert str(caught.value) == f"{text!r}: {why}; allowed: {ALLOWED}"


def test_requests_are_counted_when_they_are_sent() -> None:
    assert check("requests=500", at(sent=499, completed=499)) is None
    assert check("requests=500", at(sent=500, completed=3)) == "requests=500"


def test_time() -> None:
    assert check("time=1m", at(59.9)) is None
    assert check("time=1m", at(60.0)) == "time=60s"


def test_errors() -> None:
    failures = {Outcome.CUT: 2, Outcome.TIMEOUT: 1, Outcome.NOT_SENT: 40}
    assert check("errors=4", at(failures=failures)) is None
    assert check("errors=3", at(failures=failures)) == "errors=3: 3 requests failed"


def test_a_share_of_errors() -> None:
    assert check("errors=5%", at(completed=17, failures={Outcome.CUT: 2})) is None  # too few to judge
    assert check("errors=5%", at(completed=38, failures={Outcome.CUT: 2})) is None  # just 5 %
    reason = check("errors=5%", at(completed=37, failures={Outcome.CUT: 2, Outcome.NOT_SENT: 9}))
    assert reason == "errors=5%: 2 of 39 requests failed"
    assert check("errors=1%", at(completed=30, failures={Outcome.CUT: 1})) is None  # a single one says little


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0.1, 99.9))
def test_a_share_of_errors_is_the_share_of_what_has_ended(completed: int, errors: int, percent: float) -> None:
    state = at(completed=completed, failures={Outcome.CUT: errors})
    stops = ErrorShare(percent).reason(state) is not None
    assert stops == (completed + errors >= 20 and errors >= 2 and errors * 100 > percent * (completed + errors))


def test_the_first_rule_that_holds_ends_it() -> None:
    rules = StopRules([parse_rule(text) for text in ("requests=9", "time=5s", "requests=4", "time=1m", "errors=1")])
    assert (rules.last_turn, rules.last_second) == (4, 5.0)
    assert rules.check(at(1.0, sent=3)) is None
    assert rules.check(at(6.0, sent=4)) == "time=5s"


def test_no_rules() -> None:
    rules = StopRules([])
    assert (rules.last_turn, rules.last_second) == (None, None)
    assert rules.check(at(1e6, sent=10**6)) is None


def states(load: float, seconds: int) -> list[RunState]:
    """Ten states a second of a run against a simulated server."""
    found = []
    for sample in samples(Server(slots=16, answer=5.0), load, seed=1, seconds=seconds):
        ttft = Histogram()
        if sample.ttft_count:
            ttft.add(1000 * sample.ttft_total / sample.ttft_count, sample.ttft_count)
        found += [
            RunState(
                "r", sample.elapsed + tenth / 10, 1, 1, queued=sample.unanswered // 2,
                in_flight=sample.unanswered - sample.unanswered // 2, latencies={"ttft_scheduled": ttft},
            )
            for tenth in range(10)
        ]  # fmt: skip
    return found


def test_saturation() -> None:
    rules = StopRules([parse_rule("saturation")])
    reasons = [reason for state in states(2.0, 120) if (reason := rules.check(state)) is not None]
    assert reasons[0].startswith("saturation: over the last 40 s unanswered requests grew by ")
    rules = StopRules([Saturation()])
    assert [rules.check(state) for state in states(0.8, 120)] == [None] * 1210


def test_a_closed_loop_does_not_saturate() -> None:
    with pytest.raises(ValueError, match="saturation: the users of a closed loop wait for the server"):
        StopRules([parse_rule("time=1m"), parse_rule("saturation")], closed=True)
    StopRules([parse_rule("time=1m")], closed=True)
