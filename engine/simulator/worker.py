"""One of several simulated engines: the real core, a clock of its own, and what it has done."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from engine.cluster.protocol import Role
from engine.kv_news import kv_news
from engine.messages import KvNews, Output, Taken
from engine.protocol import Record
from engine.simulator.connector import SimulatedConnector
from engine.simulator.links import Links
from engine.simulator.prediction import Pools, Settings
from engine.simulator.runner import SimulatedClock
from engine.simulator.simulate import make_core


class Stepped(NamedTuple):
    """What came of a step from `begun` on: the front hears of it when it has ended."""

    outputs: tuple[Output, ...]
    record: Record | None
    news: KvNews | None
    taken: tuple[Taken, ...]
    begun: float


class SimulatedWorker:
    """`asleep`: nothing is to be done before something happens. Its clock stands while it sleeps."""

    def __init__(
        self,
        name: str,
        role: Role,
        settings: Settings,
        num_blocks: int,
        pools: Pools,
        links: Links,
        wake: Callable[[SimulatedWorker, float], None],
    ) -> None:
        self.name = name
        self.role = role
        self.clock = SimulatedClock()
        self.asleep = True
        self.steps = self.computed_tokens = 0
        self.busy = 0.0
        connector = None
        if pools.control.prefill:
            block_bytes = settings.block_size * settings.kv_bytes_per_token
            connector = SimulatedConnector(name, self.clock, block_bytes, links, lambda now: wake(self, now))
        self.core = make_core(settings, num_blocks, self.clock, pools, connector)

    def step(self) -> Stepped:
        """Sleeps if there was nothing to do."""
        core, begun = self.core, self.clock.now
        outputs, record = core.step()
        self.asleep = record is None or not core.has_work
        if record is not None and record.rows:
            self.steps += 1
            self.computed_tokens += sum([row.tokens for row in record.rows])
            self.busy += self.clock.now - begun
        return Stepped(outputs, record, kv_news(core.drain_kv_events()), core.drain_taken(), begun)
