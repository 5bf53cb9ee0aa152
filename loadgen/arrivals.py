"""When sessions arrive: absolute times of a process, from its settings and a seed alone. Pure.

A random process with a rate that changes is one with rate 1 whose time is stretched: its k-th arrival comes when the
integral of the rate reaches the k-th one's place (the time-rescaling theorem; Çinlar's method). So every process here
is one way to space places, times one course of the rate. Nothing waits here, so nothing can drift: who sends compares
these times with one clock.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import ClassVar, Protocol

from loadgen.durations import parse_duration

ALLOWED = (
    "recorded, poisson:RATE, gamma:RATE,burstiness=B, constant:RATE, ramp:FROM..TO,over=TIME, "
    "steps:RATE,RATE,...,each=TIME, inf or users:N (rates are sessions/s)"
)
LEAST, MOST = 1e-6, 1e6  # sessions/s


class Arrivals(Protocol):
    """A process of arrivals. All but `Users` are open loops: sessions come whatever the server does."""

    @property
    def trace_time(self) -> bool:
        """Whether its times are those of the trace, which the speed of the replay divides."""
        ...

    def times(self, recorded: Iterable[float | None]) -> Iterator[float]:
        """A time for each session, from the times that the trace has for them: seconds from 0, never decreasing."""
        ...


@dataclass(frozen=True, slots=True)
class Recorded:
    """The trace's own times; the first one is moved to 0."""

    trace_time: ClassVar[bool] = True

    def times(self, recorded: Iterable[float | None]) -> Iterator[float]:
        """Raises ValueError if the trace has no times, or they go back."""
        first = before = None
        for place, time in enumerate(recorded):
            if time is None:
                raise ValueError(f"session {place} has no time in the trace: name other arrivals ({ALLOWED})")
            if before is not None and time < before:
                raise ValueError(f"session {place} comes at {time:g} s, before the one in front of it ({before:g} s)")
            first, before = time if first is None else first, time
            yield time - first


@dataclass(frozen=True, slots=True)
class Immediate:
    """All at once: the server has the whole queue from the start."""

    trace_time: ClassVar[bool] = False

    def times(self, recorded: Iterable[float | None]) -> Iterator[float]:
        """0 for each."""
        return (0.0 for _ in recorded)


@dataclass(frozen=True, slots=True)
class Constant:
    """One session every 1/`rate` seconds."""

    rate: float
    trace_time: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def times(self, recorded: Iterable[float | None]) -> Iterator[float]:
        """The k-th comes at k/`rate`."""
        return _stretched(recorded, _places(math.inf, 0), lambda place: place / self.rate)


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent users: exponential gaps of mean 1/`rate` seconds after a first arrival at 0."""

    rate: float
    seed: int
    trace_time: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def times(self, recorded: Iterable[float | None]) -> Iterator[float]:
        """The same for the same seed."""
        return _stretched(recorded, _places(1.0, self.seed), lambda place: place / self.rate)


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gamma gaps of mean 1/`rate` seconds and shape `burstiness`, as `vllm bench serve` defines it.

    Their coefficient of variation is 1/sqrt(burstiness): 1 is Poisson, less comes in bursts, more is more regular.
    Unlike there the times are not rescaled afterwards to end exactly at count/rate: a sample has the rate in the mean.
    """

    rate: float
    burstiness: float
    seed: int
    trace_time: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _check_burstiness(self.burstiness)

    def times(self, recorded: Iterable[float | None]) -> Iterator[float]:
        """The same for the same seed."""
        return _stretched(recorded, _places(self.burstiness, self.seed), lambda place: place / self.rate)


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that goes evenly from `start` to `end` sessions/s within `seconds`, and stays there."""

    start: float
    end: float
    seconds: float
    seed: int
    burstiness: float = 1.0
    trace_time: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_rate(self.start, zero=True)
        _check_rate(self.end)
        _check_time("over", self.seconds)
        _check_burstiness(self.burstiness)

    def expected(self, time: float) -> float:
        """The integral of the rate: how many sessions come until then, in the mean."""
        ramped = min(time, self.seconds)
        rise = (self.end - self.start) / self.seconds
        return self.start * ramped + rise * ramped**2 / 2 + self.end * (time - ramped)

    def time(self, place: float) -> float:
        """The inverse of `expected`."""
        until = self.expected(self.seconds)
        if place >= until:
            return self.seconds + (place - until) / self.end
        rise = (self.end - self.start) / self.seconds
        # The quadratic's root in the form that divides by a sum: without a difference of near-equal numbers.
        root = self.start + math.sqrt(max(0.0, self.start**2 + 2 * rise * place))
        return 2 * place / root if place else 0.0

    def times(self, recorded: Iterable[float | None]) -> Iterator[float]:
        """The same for the same seed."""
        return _stretched(recorded, _places(self.burstiness, self.seed), self.time)


@dataclass(frozen=True, slots=True)
class Steps:
    """One rate after the other, each for `seconds`; the last one stays. A rate of 0 is a pause."""

    rates: tuple[float, ...]
    seconds: float
    seed: int
    burstiness: float = 1.0
    trace_time: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.rates:
            raise ValueError("steps: expected at least one rate")
        for rate in self.rates:
            _check_rate(rate, zero=True)
        _check_rate(self.rates[-1])
        _check_time("each", self.seconds)
        _check_burstiness(self.burstiness)

    def expected(self, time: float) -> float:
        """The integral of the rate: how many sessions come until then, in the mean."""
        whole = min(int(time // self.seconds), len(self.rates) - 1)
        return self._ends()[whole] + (time - whole * self.seconds) * self.rates[whole]

    def time(self, place: float) -> float:
        """The inverse of `expected`; of a pause its beginning."""
        ends = self._ends()
        step = max(0, min(bisect_left(ends, place), len(self.rates)) - 1)
        return step * self.seconds + ((place - ends[step]) / self.rates[step] if place > ends[step] else 0.0)

    def times(self, recorded: Iterable[float | None]) -> Iterator[float]:
        """The same for the same seed."""
        return _stretched(recorded, _places(self.burstiness, self.seed), self.time)

    def _ends(self) -> list[float]:
        """What was expected at the beginning of each step."""
        ends = [0.0]
        for rate in self.rates[:-1]:
            ends.append(ends[-1] + rate * self.seconds)
        return ends


@dataclass(frozen=True, slots=True)
class Users:
    """A closed loop: each of `count` users takes the next session when its last one has ended, `think` seconds later.

    The load follows the server: a slow one is asked less. The users start evenly within `ramp` seconds.
    """

    count: int
    think: float = 0.0
    ramp: float = 0.0
    trace_time: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 1_000_000:
            raise ValueError(f"users: expected a whole number from 1 to 1000000, got {self.count}")

    def start(self, user: int) -> float:
        """When a user (from 0) takes a first session, in seconds from 0."""
        return user * self.ramp / self.count

    def times(self, recorded: Iterable[float | None]) -> Iterator[float]:
        """0 for each: they are all there for whoever is free."""
        return (0.0 for _ in recorded)


def _places(burstiness: float, seed: int) -> Iterator[float]:
    """Where the arrivals of a process of rate 1 are: sums of gamma gaps of mean 1. Infinitely regular: 0, 1, 2."""
    if math.isinf(burstiness):
        yield from map(float, count())
    rng = random.Random(f"{seed}/arrivals")
    place = lost = 0.0  # `lost`: what the sum's rounding took (Kahan), so that millions of gaps add up
    while True:
        yield place
        gap = rng.expovariate(1.0) if burstiness == 1 else rng.gammavariate(burstiness, 1 / burstiness)
        gap -= lost
        place, lost = place + gap, (place + gap - place) - gap


def _stretched(
    recorded: Iterable[float | None], places: Iterator[float], time: Callable[[float], float]
) -> Iterator[float]:
    """A time for each session from its place; rounding never lets one go back."""
    latest = 0.0
    for _, place in zip(recorded, places, strict=False):
        latest = max(latest, time(place))
        yield latest


def _check_rate(rate: float, zero: bool = False) -> None:
    if not (LEAST <= rate <= MOST or (zero and rate == 0)):
        allowed = f"{'0 or ' if zero else ''}{LEAST:g} to {MOST:g}"
        raise ValueError(f"rate: expected {allowed} sessions/s, got {rate:g}")


def _check_burstiness(burstiness: float) -> None:
    if not burstiness >= 0.001:
        raise ValueError(f"burstiness: expected a number from 0.001 on (1: Poisson, inf: even), got {burstiness:g}")


def _check_time(name: str, seconds: float) -> None:
    if not 0 < seconds < math.inf:
        raise ValueError(f"{name}: expected a time above 0, got {seconds:g}s")


class _Spec:
    """A text KIND:VALUE,...,NAME=VALUE,... whose parts are taken one by one; `end` says what nobody took."""

    def __init__(self, text: str) -> None:
        self.kind, _, rest = text.strip().partition(":")
        self._values: list[str] = []
        self._named: dict[str, str] = {}
        for word in rest.split(",") if rest else ():
            name, equals, value = (part.strip() for part in word.partition("="))
            if not equals:
                self._values.append(name)
            elif name in self._named:
                raise ValueError(f"{name}= is given twice")
            else:
                self._named[name] = value

    def values(self) -> list[str]:
        """Everything without a name."""
        taken, self._values = self._values, []
        return taken

    def value(self, what: str) -> str:
        """The one value without a name."""
        taken = self.values()
        if len(taken) != 1:
            raise ValueError(f"{self.kind}: expected one {what} after the colon")
        return taken[0]

    def rate(self) -> float:
        return _number("rate", self.value("rate"))

    def rates(self) -> tuple[float, ...]:
        if not (taken := self.values()):
            raise ValueError(f"{self.kind}: expected rates after the colon")
        return tuple(_number("rate", rate) for rate in taken)

    def range(self) -> tuple[float, float]:
        text = self.value("FROM..TO")
        start, dots, end = text.partition("..")
        if not dots:
            raise ValueError(f"{self.kind}: expected FROM..TO, got {text!r}")
        return _number("rate", start), _number("rate", end)

    def number(self, name: str, default: str | None = None) -> float:
        return _number(name, self._take(name, default))

    def duration(self, name: str, default: str | None = None) -> float:
        try:
            return parse_duration(self._take(name, default))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    def _take(self, name: str, default: str | None) -> str:
        if name not in self._named and default is None:
            raise ValueError(f"{self.kind} needs {name}=...")
        return self._named.pop(name, default or "")

    def end(self) -> None:
        if self._named:
            raise ValueError(f"{self.kind} has no {next(iter(self._named))!r}")
        if self._values:
            raise ValueError(f"{self.kind} takes nothing after it")


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ValueError(f"{name}: expected a number, got {text!r}")
    return value


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name}: expected a whole number, got {text!r}")
    return int(text)


_KINDS: dict[str, Callable[[_Spec, int], Arrivals]] = {
    "recorded": lambda spec, seed: Recorded(),
    "inf": lambda spec, seed: Immediate(),
    "constant": lambda spec, seed: Constant(spec.rate()),
    "poisson": lambda spec, seed: Poisson(spec.rate(), seed),
    "gamma": lambda spec, seed: Gamma(spec.rate(), spec.number("burstiness"), seed),
    "ramp": lambda spec, seed: Ramp(*spec.range(), spec.duration("over"), seed, spec.number("burstiness", "1")),
    "steps": lambda spec, seed: Steps(spec.rates(), spec.duration("each"), seed, spec.number("burstiness", "1")),
    "users": lambda spec, seed: Users(
        _whole("users", spec.value("number")), spec.duration("think", "0s"), spec.duration("ramp", "0s")
    ),
}


def parse_arrivals(text: str, seed: int) -> Arrivals:
    """What `--arrivals` names (`ALLOWED`). Raises ValueError that says what is wrong and what is allowed."""
    try:
        spec = _Spec(text)
        if spec.kind not in _KINDS:
            raise ValueError(f"there are no arrivals {spec.kind!r}")
        arrivals = _KINDS[spec.kind](spec, seed)
        spec.end()
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; allowed: {ALLOWED}") from None
    return arrivals
