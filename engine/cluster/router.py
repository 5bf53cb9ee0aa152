"""Which worker a request goes to. Pure: it is told what happens, and waits for nothing.

`prefix`: where the most of the prompt is cached, bounded by load in the manner of consistent hashing with bounded loads
(Mirrokni, Thorup and Zadimoghaddam, 2018): a worker is followed for its cache only while what it has to do, and what
it was lately given, are within `BOUND` of the mean, or beyond that by no more tokens than its cache saves. A request
that is not placed by that goes to the worker that has the least to do and was lately given the least, of those within
the bound, and so new prefixes are spread over all. `least_loaded`: the fewest outstanding tokens. `round_robin`:
whoever was sent a request longest ago.

What must be told, by the process that sends the requests:

- `add_worker` when a worker's name is first known, `open` when it can take requests, `close` when it cannot for now
  (drained, or dead: then `forget` what it had too), `remove_worker` when its name is given up.
- `take` each `KvNews` of its engine, in order.
- `begin` with every `Add`, at once, before anything is awaited: the next choice must know of it. Then, of the `Work`
  that this returns: `computed` at its first token, `end_rows` when one of several answers ends and others go on, and
  `end` when it is over at that worker, in any way: finished, handed over, refused, aborted, its worker dead.

    choice = router.choose("whole", len(prompt), names)      # None: nobody can
    work = router.begin(choice.worker, len(prompt), choice.cached_tokens, names)
    ...
    work.computed()
    work.end()

Of a request that is handed over: `choose("prefill")` and `begin(..., rows=0)` where it is prefilled, `end` with its
offer; then `choose("decode")` and `begin(..., computed=True)` where it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.cluster.block_index import BlockIndex
from engine.cluster.loads import ANSWER_TOKENS, Loads, Work
from engine.cluster.protocol import Role, Routing
from engine.messages import KvNews

BOUND = 1.25  # times the mean
MOVED = 0.125  # what a cached token saves of one that would be moved here, compared with one that would be computed
LOOKS = 8  # at workers of one depth of a prompt or more; where there are more depths, at some of them

# whole: a whole request. prefill: its prompt, to be handed over. decode: what goes on after that.
Purpose = Literal["whole", "prefill", "decode"]
ROLES: dict[Purpose, tuple[Role, ...]] = {
    "whole": ("decode", "replica"),
    "prefill": ("prefill",),
    "decode": ("decode", "replica"),
}
ALL_ROLES: tuple[Role, ...] = ("prefill", "decode", "replica")

Mask = npt.NDArray[np.bool_]


class Choice(NamedTuple):
    """`cached_tokens`: of the prompt, found in that worker's cache as its engine told it. `by_prefix`: followed for
    what it has of the prompt, or will have. `bounded`: another has more, and too much to do."""

    worker: str
    cached_tokens: int
    by_prefix: bool
    bounded: bool


class Pool(NamedTuple):
    """The workers that a choice is among."""

    bits: int
    mask: Mask
    slots: tuple[int, ...]

    def without(self, some: Collection[int]) -> Pool:
        """All but these, which are in it."""
        mask = self.mask.copy()
        mask[list(some)] = False
        bits = self.bits & ~sum(1 << slot for slot in some)
        return Pool(bits, mask, tuple(slot for slot in self.slots if slot not in some))


class UnknownWorker(ValueError):
    """No worker has this name; the message has it."""


class Router:
    """`routing` and `separate` may change at any time. Without `separate` every worker serves whole requests."""

    def __init__(self, block_size: int, routing: Routing = "prefix", *, separate: bool = True) -> None:
        self.block_size = block_size
        self.routing: Routing = routing
        self.separate = separate
        self.decisions = 0
        self.decision_seconds = 0.0  # in all
        self.by_prefix = 0  # decisions
        self.bounded = 0
        self._index = BlockIndex()
        self._loads = Loads(self._index)
        self._slots: dict[str, int] = {}  # by name
        self._names: dict[int, str] = {}  # by slot
        self._roles: dict[int, Role] = {}
        self._open: set[int] = set()
        self._pools: dict[tuple[Role, ...], Pool] = {}  # made when first asked for since workers last changed

    # Workers

    def add_worker(self, name: str, role: Role) -> None:
        """Not chosen before it is opened. Raises ValueError if there is one of this name."""
        if name in self._slots:
            raise ValueError(f"there is a worker {name} already")
        slot = next(slot for slot in range(len(self._names) + 1) if slot not in self._names)
        if slot == self._loads.size:
            self._loads.grow()
        self._slots[name], self._names[slot], self._roles[slot] = slot, name, role
        self._pools.clear()

    def open(self, name: str) -> None:
        """It can take requests. Of what is shared it gets as much as others do, not more for having come late."""
        slot = self._slot(name)
        if slot in self._open:
            return
        peers = self._pool(self._peers(slot)).slots
        if peers:
            self._loads.recent[slot] = self._loads.recent[list(peers)].mean()
        self._open.add(slot)
        self._pools.clear()

    def close(self, name: str) -> None:
        """It is not chosen any more, until it is opened again; what it has, and has to do, stays known."""
        self._open.discard(self._slot(name))
        self._pools.clear()

    def remove_worker(self, name: str) -> None:
        """Forget all of it; what it still had to do is over."""
        slot = self._slot(name)
        self.close(name)
        self._index.forget(slot)
        self._loads.leave(slot)
        del self._slots[name], self._names[slot], self._roles[slot]

    def take(self, name: str, news: KvNews) -> None:
        """What changed in its prefix cache."""
        slot = self._slot(name)
        if news.cleared:
            self._index.forget(slot)
        if news.removed:
            self._index.remove(slot, news.removed)
        if news.stored:
            self._index.store(slot, news.stored)

    def forget(self, name: str) -> None:
        """Its prefix cache is empty: its engine has died, or is a new one."""
        self._index.forget(self._slot(name))

    # Requests

    def choose(
        self,
        purpose: Purpose,
        prompt_tokens: int,
        names: Sequence[int] = (),
        rows: int = 1,
        avoid: Collection[str] = (),
    ) -> Choice | None:
        """Where a request is to go, whose prompt has `names` (`prompt_names`) and that has `rows` answers; None if no
        worker that is open does such work, or all that do are in `avoid`. Changes nothing but what is counted."""
        begun = time.perf_counter()
        pool = self._pool(self._roles_for(purpose))
        avoided = {slot for name in avoid if (slot := self._slots.get(name)) is not None and pool.bits >> slot & 1}
        if avoided:
            pool = pool.without(avoided)
        if not pool.slots:
            return None
        names = names[: (prompt_tokens - 1) // self.block_size]  # one token at least is computed: its logits are needed
        if self.routing == "prefix":
            saved = self.block_size * (MOVED if purpose == "decode" else 1.0)
            cost = (0 if purpose == "decode" else prompt_tokens) + rows * ANSWER_TOKENS
            slot, by_prefix, bounded = self._by_prefix(pool, names, cost, saved)
        else:
            loads = self._loads
            least = loads.turn if self.routing == "round_robin" else loads.outstanding
            slot, by_prefix, bounded = _least(pool.mask, least, loads.turn), False, False
        cached = self._index.depth(names, slot) * self.block_size
        self.decisions += 1
        self.by_prefix += by_prefix
        self.bounded += bounded
        self.decision_seconds += time.perf_counter() - begun
        return Choice(self._names[slot], cached, by_prefix, bounded)

    def is_open(self, name: str) -> bool:
        """Whether a worker of this name is there, and can take requests."""
        return self._slots.get(name) in self._open

    def can(self, purpose: Purpose, avoid: Collection[str] = ()) -> bool:
        """Whether `choose` would find somebody."""
        slots = self._pool(self._roles_for(purpose)).slots
        return any(self._names[slot] not in avoid for slot in slots)

    def begin(
        self,
        worker: str,
        prompt_tokens: int,
        cached_tokens: int = 0,
        names: Sequence[int] = (),
        rows: int = 1,
        *,
        computed: bool = False,
    ) -> Work:
        """A request is sent there. Its prompt's blocks are expected in the cache from now on, so that others with the
        same prefix follow before its engine has told of them. `rows`: answers that it generates there. `computed`:
        elsewhere, and its KV comes from there."""
        slot = self._slot(worker)
        tokens = 0 if computed else max(0, prompt_tokens - cached_tokens)
        workers = len(self._pool(self._peers(slot)).slots)
        return self._loads.begin(slot, tokens, rows, names, prompt_tokens, max(1, workers))

    # What is known

    @property
    def indexed_blocks(self) -> int:
        """Different blocks that some worker has, or is about to have."""
        return len(self._index)

    @property
    def imbalance(self) -> float | None:
        """Of the prompt tokens sent to each open worker that takes whole requests, the most over the mean; of those
        that take prompts to hand over, where that is more. None before the first."""
        found = []
        for roles in [ROLES["whole"], ROLES["prefill"]] if self.separate else [ALL_ROLES]:
            sent = self._loads.sent[list(self._pool(roles).slots)]
            if sent.any():
                found.append(float(sent.max() / sent.mean()))
        return max(found, default=None)

    def load(self, name: str) -> float:
        """Outstanding tokens."""
        return float(self._loads.outstanding[self._slot(name)])

    def routed(self, name: str) -> int:
        """Requests sent there."""
        return int(self._loads.routed[self._slot(name)])

    def cached(self, name: str) -> frozenset[int]:
        """The names of the blocks that it has, as its engine told them."""
        return frozenset(self._index.names(self._slot(name)))

    # Within

    def _slot(self, name: str) -> int:
        try:
            return self._slots[name]
        except KeyError:
            raise UnknownWorker(f"there is no worker {name}") from None

    def _roles_for(self, purpose: Purpose) -> tuple[Role, ...]:
        return ALL_ROLES if purpose == "whole" and not self.separate else ROLES[purpose]

    def _peers(self, slot: int) -> tuple[Role, ...]:
        """The roles that share what comes with this one."""
        if not self.separate:
            return ALL_ROLES
        return ROLES["prefill"] if self._roles[slot] == "prefill" else ROLES["whole"]

    def _pool(self, roles: tuple[Role, ...]) -> Pool:
        pool = self._pools.get(roles)
        if pool is None:
            pool = self._among([slot for slot in sorted(self._open) if self._roles[slot] in roles])
            self._pools[roles] = pool
        return pool

    def _among(self, slots: Sequence[int]) -> Pool:
        mask = np.zeros(self._loads.size, dtype=np.bool_)
        mask[list(slots)] = True
        return Pool(sum(1 << slot for slot in slots), mask, tuple(slots))

    def _by_prefix(self, pool: Pool, names: Sequence[int], cost: int, saved: float) -> tuple[int, bool, bool]:
        """`saved`: tokens that a cached block saves. Returns the slot, and whether it is by_prefix, and bounded."""
        loads, workers = self._loads, len(pool.slots)
        levels = self._index.levels(names, pool.bits)
        most = levels[-1].workers
        if workers == 1:
            return pool.slots[0], levels[-1].blocks > 0, False
        outstanding, recent = loads.outstanding, loads.recent
        busy = outstanding - BOUND * (float(outstanding @ pool.mask) + cost) / workers  # beyond the bound, if positive
        given = recent - BOUND * (float(recent @ pool.mask) + cost) / workers
        pressure = outstanding + recent
        slot = _least(pool.mask & (busy <= 0), pressure, loads.turn)
        depth = next(level.blocks for level in reversed(levels) if level.workers >> slot & 1)
        beyond, followed = np.maximum(busy, given), depth > 0 and bool(most >> slot & 1)
        deeper = [level for level in reversed(levels) if level.blocks > depth]
        for level in deeper[:: -(-len(deeper) // LOOKS) or 1]:
            within = _mask(level.workers, loads.size) & (beyond <= (level.blocks - depth) * saved)
            if within.any():
                slot, followed = _least(within, pressure, loads.turn), True
                break
        return slot, followed, not most >> slot & 1


def _least(among: Mask, first: npt.NDArray[np.float64], then: npt.NDArray[np.float64]) -> int:
    """Whoever has the least of `first`; of several, the least of `then`."""
    found = np.where(among, first, np.inf)
    ties = np.flatnonzero(found == found.min())
    return int(ties[0]) if len(ties) == 1 else int(ties[then[ties].argmin()])


def _mask(workers: int, size: int) -> Mask:
    """A set of slots, as an array."""
    packed = np.frombuffer(workers.to_bytes(-(-size // 8), "little"), dtype=np.uint8)
    return np.unpackbits(packed, count=size, bitorder="little").view(np.bool_)
