"""When a run ends before its trace does: after so many requests, so long, so many errors, or at saturation.

A rule says when nothing more is sent; what is in flight then comes to its end, and is counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.arrivals import Users, parse_arrivals
from loadgen.durations import parse_duration
from loadgen.live.state import RunState
from loadgen.saturation import KEPT, Sample, find_saturation
from loadgen.settings import Settings

ALLOWED = "requests=NUMBER, time=DURATION, errors=NUMBER, errors=PERCENT% or saturation"
ENOUGH = 20  # requests that have ended, before a share of errors is judged
_SAMPLE_EVERY = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class Requests:
    """So many requests were sent."""

    count: int

    def reason(self, state: RunState) -> str | None:
        """Why the run ends at this state; None if it goes on."""
        return f"requests={self.count}" if state.sent >= self.count else None


@dataclass(frozen=True, slots=True)
class Time:
    """So many seconds have passed since the beginning."""

    seconds: float

    def reason(self, state: RunState) -> str | None:
        """Why the run ends at this state; None if it goes on."""
        return f"time={self.seconds:g}s" if state.elapsed >= self.seconds else None


@dataclass(frozen=True, slots=True)
class Errors:
    """So many requests failed. Turns that only lacked the turn before do not count."""

    count: int

    def reason(self, state: RunState) -> str | None:
        """Why the run ends at this state; None if it goes on."""
        return f"errors={self.count}: {state.errors} requests failed" if state.errors >= self.count else None


@dataclass(frozen=True, slots=True)
class ErrorShare:
    """More than `percent` of the requests that have ended failed: at least two, and of at least `ENOUGH`."""

    percent: float

    def reason(self, state: RunState) -> str | None:
        """Why the run ends at this state; None if it goes on."""
        if state.ended < ENOUGH or state.errors < 2 or state.errors * 100 <= self.percent * state.ended:
            return None
        return f"errors={self.percent:g}%: {state.errors} of {state.ended} requests failed"


class Saturation:
    """The server falls behind (`loadgen.saturation`). It must see a run's states in their order."""

    def __init__(self) -> None:
        self._samples = deque[Sample](maxlen=KEPT)

    def reason(self, state: RunState) -> str | None:
        """Why the run ends at this state; None if it goes on. It looks once a second."""
        if self._samples and state.elapsed < self._samples[-1].elapsed + _SAMPLE_EVERY:
            return None
        ttft = state.latencies.get("ttft_scheduled")
        total, count = (ttft.total / 1000, ttft.count) if ttft is not None else (0.0, 0)
        self._samples.append(Sample(state.elapsed, state.queued + state.in_flight, total, count))
        found = find_saturation(self._samples)
        return None if found is None else f"saturation: {found}"


Rule = Requests | Time | Errors | ErrorShare | Saturation


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError(f"{name}: expected a whole number above 0, got {text!r}")
    return int(text)


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 100:
        raise ValueError(f"errors: expected a percentage above 0 and below 100, got {text + '%'!r}")
    return value


def _time(text: str) -> float:
    seconds = parse_duration(text)
    if not seconds:
        raise ValueError(f"expected a time above 0, got {text!r}")
    return seconds


def parse_rule(text: str) -> Rule:
    """What `--until` names (`ALLOWED`). Raises ValueError that says what is wrong and what is allowed."""
    name, equals, value = (part.strip() for part in text.partition("="))
    try:
        match name:
            case "requests" if equals:
                return Requests(_whole(name, value))
            case "time" if equals:
                return Time(_time(value))
            case "errors" if value.endswith("%"):
                return ErrorShare(_percent(value.removesuffix("%")))
            case "errors" if equals:
                return Errors(_whole(name, value))
            case "saturation" if not equals:
                return Saturation()
        raise ValueError("there is no such rule")
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; allowed: {ALLOWED}") from None


def stop_rules_of(settings: Settings) -> StopRules:
    """Those that --until asks for. Raises ValueError for one that cannot hold with the run's arrivals."""
    closed = isinstance(parse_arrivals(settings.arrivals, settings.seed), Users)
    return StopRules([parse_rule(rule) for rule in settings.until], closed)


class StopRules:
    """The rules of one run; the first one that holds ends it."""

    def __init__(self, rules: Sequence[Rule], closed: bool = False) -> None:
        """`closed`: the load is a closed loop. Raises ValueError for a rule that cannot hold there."""
        if closed and any(isinstance(rule, Saturation) for rule in rules):
            raise ValueError(
                "saturation: the users of a closed loop wait for the server, so that it never falls behind"
            )
        self._rules = tuple(rules)

    @property
    def last_turn(self) -> int | None:
        """How many turns are sent at most."""
        return min((rule.count for rule in self._rules if isinstance(rule, Requests)), default=None)

    @property
    def last_second(self) -> float | None:
        """When the last turn is sent at the latest, in seconds from the beginning."""
        return min((rule.seconds for rule in self._rules if isinstance(rule, Time)), default=None)

    def check(self, state: RunState) -> str | None:
        """Why nothing more is to be sent from this state on; None if it goes on. States come in their order."""
        reasons = [rule.reason(state) for rule in self._rules]  # all of them: one may need to see every state
        return next((reason for reason in reasons if reason is not None), None)
