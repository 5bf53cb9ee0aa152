"""What is known of servers at one moment. Panels are drawn from these alone, so a frozen one is a paused screen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from servers.kv_tree import Churn, KvTree
from servers.looks import Looks
from servers.measures import Measures
from servers.slots import Slot
from servers.terms import Engine

# finding: which server it is, is not known yet; slow: it answers, but takes longer than the time between two looks;
# failing: no answer, or none that can be read; foreign: it answers, and no known server answers so.
Phase = Literal["finding", "live", "slow", "failing", "locked", "foreign"]


@dataclass(frozen=True, slots=True)
class SourceLink:
    """How the connection to a server stands. `age`: seconds since the newest reading; None: there was none."""

    phase: Phase
    detail: str = ""
    age: float | None = None

    @property
    def fresh(self) -> bool:
        """Whether the newest reading is of now: else its gauges are not shown as if they were."""
        return self.phase in ("live", "slow")


@dataclass(frozen=True, slots=True)
class KvView:
    """The KV events of one endpoint. `tree` goes on while the source does: a paused one is a tree of its own.

    `since`: when the first message was heard, and `churned` what the tree had counted at times from then on, one a
    second at most, the oldest first; `stood`: since when `phase` is what it is; all on the watcher's clock.
    """

    endpoint: str
    tree: KvTree = field(repr=False)
    heard: int  # messages
    phase: Literal["connecting", "live", "failing"]
    detail: str = ""
    since: float | None = None
    stood: float | None = None
    churned: tuple[tuple[float, Churn], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class ServerView:
    """One server. `now` is on the watcher's clock, as the looks' times. `seq` numbers what was heard of it.

    `restarts`: times at which its counters began anew. `kv`, `slots`: None where it is not asked, or tells none.
    """

    name: str
    url: str
    kind: str
    version: str
    link: SourceLink
    now: float
    seq: int
    looks: Looks = field(repr=False)
    restarts: tuple[float, ...] = ()
    kv: tuple[KvView, ...] = ()
    slots: tuple[Slot, ...] | None = None

    def outlived(self, kv: KvView) -> float | None:
        """When the process began that came after the one whose blocks a tree has, as no event of it has come since;
        None: as far as is known they are of this one.

        Metrics tell of a restart later than it was: so the connection must have been lost since the last event too.
        """
        if not (kv.churned and self.restarts and kv.tree.resident):
            return None
        heard, began = kv.churned[-1][0], self.restarts[-1]
        lost = kv.phase != "live" or (kv.stood is not None and kv.stood > heard)
        return began if began > heard and lost else None

    @property
    def engines(self) -> tuple[Engine, ...]:
        newest = self.looks.newest_reading
        return newest.reading.engines if newest is not None and newest.reading is not None else ()

    @property
    def facts(self) -> dict[str, str]:
        newest = self.looks.newest_reading
        return dict(newest.reading.facts) if newest is not None and newest.reading is not None else {}

    def measure(self, seconds: float, engine: Engine | None = None) -> Measures | None:
        """None before two looks; of a server that does not answer now it is of then: `link.age` says of when."""
        return self.looks.measure(seconds, engine)


@dataclass(frozen=True, slots=True)
class FleetView:
    """Servers side by side, in the order in which they were named."""

    servers: tuple[ServerView, ...]
    now: float
