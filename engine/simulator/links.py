"""How long KV takes from one simulated engine to another, where many transfers share the engines' links."""

from __future__ import annotations

from collections.abc import Callable

Schedule = Callable[[float, Callable[[float], None]], None]  # call this at that time, with the time


class _Flow:
    __slots__ = ("done", "left", "rate", "since", "source", "target", "turn")

    def __init__(self, source: str, target: str, nbytes: int, done: Callable[[float], None]) -> None:
        self.source, self.target, self.left, self.done = source, target, float(nbytes), done
        self.rate = 0.0
        self.since = 0.0
        self.turn = 0  # how often its rate has changed: what was foreseen before is void


class Links:
    """Each engine has a link of `bandwidth` bytes a second out, and one in. A transfer goes at the lesser of the equal
    shares of its two ends, after `latency` seconds. Times never go back."""

    def __init__(self, bandwidth: float, latency: float, schedule: Schedule) -> None:
        if not bandwidth > 0 or latency < 0:
            raise ValueError(f"bandwidth must be above 0 and latency at least 0, got {bandwidth} and {latency}")
        self._bandwidth = bandwidth
        self._latency = latency
        self._schedule = schedule
        self._out: dict[str, dict[_Flow, None]] = {}
        self._in: dict[str, dict[_Flow, None]] = {}

    def send(self, source: str, target: str, nbytes: int, now: float, done: Callable[[float], None]) -> None:
        """`done` is called with the time at which all has come."""
        flow = _Flow(source, target, nbytes, done)
        self._schedule(now + self._latency, lambda time: self._begin(flow, time))

    def _begin(self, flow: _Flow, now: float) -> None:
        flow.since = now
        self._out.setdefault(flow.source, {})[flow] = None
        self._in.setdefault(flow.target, {})[flow] = None
        self._share(flow, now)

    def _share(self, changed: _Flow, now: float) -> None:
        """Rates have changed at both ends of this one."""
        beside = self._out[changed.source] | self._in[changed.target]
        for flow in beside:
            rate = self._bandwidth / max(len(self._out[flow.source]), len(self._in[flow.target]))
            if rate != flow.rate:
                flow.left -= flow.rate * (now - flow.since)
                flow.since, flow.rate = now, rate
                flow.turn += 1
                self._foresee(flow, now)

    def _foresee(self, flow: _Flow, now: float) -> None:
        turn = flow.turn

        def end(time: float) -> None:
            if flow.turn != turn:
                return
            flow.turn += 1
            del self._out[flow.source][flow], self._in[flow.target][flow]
            self._share(flow, time)
            flow.done(time)

        self._schedule(now + max(0.0, flow.left) / flow.rate, end)
