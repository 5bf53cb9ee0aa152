"""One server's looks, the newest last, in bounded memory: what a screen asks of the last seconds or minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from servers.measures import Measures, measure
from servers.reading import Reading
from servers.terms import Engine

KEPT = 1_200  # looks: twenty minutes at one a second


@dataclass(frozen=True, slots=True)
class Look:
    """One scrape at `time`, in seconds of the watcher's clock; `reading` is None where it failed, `failed` says why."""

    time: float
    reading: Reading | None
    took: float = 0.0  # seconds
    failed: str = ""


class Looks:
    """Fed with looks in order of time. A moment of it (`upto`) stays as it is while the feed goes on."""

    def __init__(self, looks: Sequence[Look] = (), kept: int = KEPT) -> None:
        self._looks: deque[Look] = deque(looks, kept)

    def add(self, look: Look) -> None:
        self._looks.append(look)

    def __len__(self) -> int:
        return len(self._looks)

    @property
    def newest(self) -> Look | None:
        return self._looks[-1] if self._looks else None

    @property
    def newest_reading(self) -> Look | None:
        """The newest look that has a reading."""
        return next((look for look in reversed(self._looks) if look.reading is not None), None)

    def upto(self) -> Looks:
        """A copy that does not change: looks themselves are shared."""
        return Looks(self._looks)

    def measure(self, seconds: float, engine: Engine | None = None) -> Measures | None:
        """The last `seconds` up to the newest reading, or as much of them as was seen since the last restart.

        None before two looks could be laid side by side.
        """
        found = [look for look in self._looks if look.reading is not None]
        if len(found) < 2:
            return None
        last = found[-1]
        assert last.reading is not None
        best: Measures | None = None
        for look in reversed(found[:-1]):
            assert look.reading is not None
            seen = measure(look.reading, last.reading, last.time - look.time, engine)
            if best is not None and seen.restarted and not best.restarted:
                break
            best = seen
            if last.time - look.time >= seconds:
                break
        return best
