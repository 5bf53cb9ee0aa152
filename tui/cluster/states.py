"""The states of a cluster as they were heard, live or from a recording: the newest, and those that are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engine.cluster.protocol import ClusterControl, ClusterState
from tui.cluster.events import happened
from tui.cluster.tape import BUDGET, ClusterTape
from tui.cluster.view import RATE_SECONDS, ClusterView

SPACING = 0.5  # seconds between two states that are kept whole, for rates
QUIET = 0.5  # seconds in steps of which silence is told


class ClusterStates:
    """`listener` hears each state once it is taken: the recorder."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.listener: Callable[[ClusterState], None] | None = None
        self._budget = budget
        self.forget()

    def forget(self) -> None:
        """Begin again, with nothing heard."""
        self.state: ClusterState | None = None
        self.tape = ClusterTape(self._budget)
        self._recent: deque[ClusterState] = deque()
        self._view: ClusterView | None = None  # of the newest

    @property
    def heard(self) -> int:
        """How many there were: the newest one's number."""
        return self.tape.last

    def take(self, state: ClusterState, data: bytes, news: str = "") -> None:
        """`data`: the same as it came; `news`: what else happened."""
        words = happened(self.state, state) if self.state is not None else ""
        self.tape.keep(data, state.time, ", ".join(filter(None, (news, words))))
        if self._recent and state.time < self._recent[-1].time:  # another clock, or one that was set
            self._recent.clear()
        self.state, self._view = state, None
        if not self._recent or state.time - self._recent[-1].time >= SPACING:
            self._recent.append(state)
            while len(self._recent) > 1 and state.time - self._recent[1].time >= RATE_SECONDS:
                self._recent.popleft()
        if self.listener is not None:
            self.listener(state)

    def newest(self, control: ClusterControl | None = None, silent: float = 0.0) -> ClusterView | None:
        """The picture now; `control`: what was accepted meanwhile. `silent`: for so many seconds nothing has changed,
        as is known of a stream that tells every change."""
        state = self.state
        if state is None:
            return None
        control, now = control or state.control, state.time + silent // QUIET * QUIET
        if self._view is None or (self._view.control, self._view.now) != (control, now):
            self._view = ClusterView(state, self._before(state, now), control, now)
        return self._view

    def past(self, seq: int) -> ClusterView:
        """The picture after state number `seq`, which is kept."""
        state, earlier = self.tape.state(seq), self.tape.earlier(seq, RATE_SECONDS)
        before = self.tape.state(earlier) if earlier is not None else None
        return ClusterView(state, before, state.control, state.time)

    def _before(self, state: ClusterState, now: float) -> ClusterState | None:
        """The newest that is as old as rates are long, else the oldest."""
        for known in (state, *reversed(self._recent)):
            if known.time <= now - RATE_SECONDS:
                return known
        oldest = self._recent[0]
        return oldest if oldest is not state or now > state.time else None
