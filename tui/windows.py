"""Figures over time: each is the difference of two running totals over the time that was really observed.

A stretch whose records are missing counts for nothing. A step's work is spread evenly over the time that it took; what
a record says of memory holds until the next one. Times are seconds on the engine's clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from engine.protocol import Durations, FinishReason, Preempted
from tui.log import Ended, Log, Switch, Totals

MAX_COLUMNS = 4_000  # finished plot columns kept
SWITCH_GROUP = 5.0  # switches closer than this are one change
COMPARE_LIMIT = 60.0  # the longest window on each side of a switch
NO_TIME = Durations(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Window:
    """What happened after `start` and up to `end`. `observed` is the seconds of it that records cover."""

    start: float
    end: float
    observed: float
    steps: float
    step_seconds: float
    transfer_seconds: float  # block copies and swaps, also those outside of steps
    prefill_tokens: float
    output_tokens: float
    internal_share: float | None  # slot-seconds of internal waste over slot-seconds held
    ttft: tuple[float, ...]  # seconds, of the requests whose first token came in the window
    tpot: tuple[float, ...]  # seconds per output token after the first, of requests that ended in the window
    preempted: tuple[Preempted, ...]
    queue_length: int | None  # at the end of the window; None if that was not seen
    oldest_wait: float | None = None  # the most seconds that anybody had waited since it arrived; None as above
    e2e: tuple[float, ...] = ()  # seconds from arrival to end, of requests that ended by themselves in the window
    ended: tuple[Ended, ...] = ()  # in the window, for whatever reason
    occupancy: float | None = None  # slots held over the pool's slots, as a mean over time
    external_share: float | None = None  # slots of external waste over the pool's slots, as a mean over time
    held_slot_seconds: float = 0.0
    internal_slot_seconds: float = 0.0
    external_slot_seconds: float = 0.0
    looked_up_tokens: float = 0.0  # prompt tokens of first admissions
    found_tokens: float = 0.0  # of them, found in the prefix cache
    recomputed_tokens: float = 0.0  # lost by preemptions, and computed again by requests that came back
    budget_tokens: float = 0.0  # the token budgets of the steps, summed
    budget_used: float = 0.0  # the tokens of the steps, summed
    waiting_steps: float = 0.0  # steps after which somebody waited
    durations: Durations = NO_TIME  # of the steps, summed

    def per_second(self, tokens: float) -> float | None:
        """Tokens per observed second; None where less than a quarter of a second was observed."""
        return tokens / self.observed if self.observed >= 0.25 else None

    @property
    def step_mean(self) -> float | None:
        return self.step_seconds / self.steps if self.steps else None

    @property
    def hit_share(self) -> float | None:
        """Of the prompt tokens that were looked up, those found."""
        return self.found_tokens / self.looked_up_tokens if self.looked_up_tokens else None

    @property
    def budget_share(self) -> float | None:
        """Of the token budget, what the steps used."""
        return self.budget_used / self.budget_tokens if self.budget_tokens else None

    @property
    def reasons(self) -> Counter[FinishReason]:
        """How many requests ended for each reason."""
        return Counter(ended.reason for ended in self.ended)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Windows of equal length on the two sides of the last switch."""

    first: Switch
    last: Switch
    before: Window
    after: Window


def step_seconds(durations: Durations) -> float:
    """The whole time of a step."""
    return float(sum(msgspec.structs.astuple(durations)))


def quantile(values: Sequence[float], q: float) -> float | None:
    """The q-quantile by linear interpolation between order statistics; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    position = (len(ordered) - 1) * q
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


class Windows:
    """What a log holds up to record `last` (None: up to the newest), asked for windows.

    A log is append-only but for what is too old, so that a question about a past moment keeps its answer. Only a step
    that began before the question and ended after it changes it: what it did was not known then.
    """

    def __init__(self, log: Log, last: int | None = None) -> None:
        self._log = log
        self._last = last
        self._columns: dict[tuple[float, int], Window] = {}
        self._columns_end = 0.0  # the latest end among them

    @property
    def start(self) -> float | None:
        """The moment from which on everything is known, but for gaps."""
        return self._log.start

    @property
    def switches(self) -> list[Switch]:
        """Those that are known, the oldest first."""
        switches = self._log.switches
        return [switch for switch in switches if self._last is None or switch.seq <= self._last]

    @property
    def restarts(self) -> list[float]:
        """When the engine was started again, the oldest first."""
        return self._log.restarts

    def window(self, start: float, end: float) -> Window:
        """Everything after `start` and up to `end`."""
        log, seq = self._log, self._last
        points = log.points_until(seq)
        first = log.start
        if first is None or not points:
            return Window(start, end, 0.0, 0, 0.0, 0.0, 0, 0, None, (), (), (), None)
        start = max(start, first)
        end = max(end, start)
        did = Totals(*(log.at(end, points) - log.at(start, points)).tolist())
        observed = end - start - log.unseen(start, end)
        slots = observed * log.pool_slots
        seen_end = observed > 0 and not log.in_gap(end)
        return Window(
            start=start,
            end=end,
            observed=observed,
            steps=did.steps,
            step_seconds=did.schedule + did.prepare + did.forward + did.sample + did.publish + did.step_transfer,
            transfer_seconds=did.transfer,
            prefill_tokens=did.prefill_tokens,
            output_tokens=did.output_tokens,
            internal_share=did.internal / did.held if did.held else None,
            ttft=tuple(log.ttft.between(start, end, seq)),
            tpot=tuple(log.tpot.between(start, end, seq)),
            preempted=tuple(log.preempted.between(start, end, seq)),
            queue_length=log.queue(end, points) if seen_end else None,
            oldest_wait=log.oldest(start, end, points) if seen_end else None,
            e2e=tuple(log.e2e.between(start, end, seq)),
            ended=tuple(log.ended.between(start, end, seq)),
            occupancy=did.held / slots if slots else None,
            external_share=did.external / slots if slots else None,
            held_slot_seconds=did.held,
            internal_slot_seconds=did.internal,
            external_slot_seconds=did.external,
            looked_up_tokens=did.looked_up_tokens,
            found_tokens=did.found_tokens,
            recomputed_tokens=did.recomputed_tokens,
            budget_tokens=did.budget,
            budget_used=did.tokens,
            waiting_steps=did.waiting_steps,
            durations=Durations(did.schedule, did.prepare, did.forward, did.sample, did.publish, did.step_transfer),
        )

    def columns(self, now: float, span: float, count: int) -> list[Window]:
        """The last `count` finished windows of `span` seconds, cut at whole multiples of it, the newest last."""
        newest = int(now // span)
        out = []
        for index in range(newest - count, newest):
            key = (span, index)
            if key not in self._columns:
                if len(self._columns) > MAX_COLUMNS:
                    self._columns.clear()
                self._columns[key] = self.window(index * span, (index + 1) * span)
                self._columns_end = max(self._columns_end, (index + 1) * span)
            out.append(self._columns[key])
        return out

    def comparison(self, now: float) -> Comparison | None:
        """Equal windows around the last switch (switches in quick succession are one); None before any."""
        switches = [switch for switch in self.switches if switch.time <= now]
        if not switches or self.start is None:
            return None
        group = [switches[-1]]
        for switch in reversed(switches[:-1]):
            if group[0].time - switch.time > SWITCH_GROUP:
                break
            group.insert(0, switch)
        first, last = group[0], group[-1]
        earlier = [switch.time for switch in switches if switch.time < first.time]
        had = first.time - max([self._log.life_start or self.start, *earlier[-1:]])
        span = min(COMPARE_LIMIT, now - last.time, had)
        before = self.window(first.time - span, first.time)
        return Comparison(first, last, before, self.window(now - span, now))

    def _forget_columns(self, began: float) -> None:
        """Columns that end at `began` or later get something new."""
        if began <= self._columns_end:
            self._columns = {key: window for key, window in self._columns.items() if window.end < began}
            self._columns_end = began
