"""What each worker has to do, as the front knows it: the tokens of prompts that it has yet to compute, and a constant
for each answer that it generates. A worker is charged when a request is sent there, not when it first reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from engine.cluster.block_index import BlockIndex

ANSWER_TOKENS = 128  # that an answer is taken to have before it, however far it is: nobody knows
MEMORY = 64  # requests a worker, after which what it was given counts half
FIRST_SLOTS = 8

Floats = npt.NDArray[np.float64]


class Work:
    """A request at a worker. Whatever happens to it, `end` it: until then it counts. Any call may come late, or after
    the worker was removed: it does nothing then."""

    __slots__ = ("_loads", "live", "names", "rows", "slot", "tokens")

    def __init__(self, loads: Loads, slot: int, tokens: int, rows: int, names: Sequence[int]) -> None:
        self._loads = loads
        self.slot = slot
        self.tokens = tokens  # of the prompt, to be computed yet
        self.rows = rows  # answers that have not ended
        self.names = names  # blocks that are expected there because of this request alone
        self.live = True

    @property
    def cost(self) -> int:
        """Tokens that are before it."""
        return self.tokens + self.rows * ANSWER_TOKENS

    def advance(self, tokens: int) -> None:
        """So many more tokens of the prompt are computed; more than there are is all of them."""
        if self.live:
            done = min(tokens, self.tokens)
            self.tokens -= done
            self._loads.outstanding[self.slot] -= done

    def computed(self) -> None:
        """Its first token has come: the prompt is computed."""
        self.advance(self.tokens)

    def end_rows(self, rows: int = 1) -> None:
        """So many of its answers have ended, and others go on."""
        if self.live:
            ended = min(rows, self.rows)
            self.rows -= ended
            self._loads.outstanding[self.slot] -= ended * ANSWER_TOKENS

    def end(self) -> None:
        """It is over there, however it ended."""
        if self.live:
            self._loads.end(self)


class Loads:
    """By slot: `outstanding` tokens; `recent`, the tokens that were to be computed of what was sent there, the older
    the less; `turn`, the place of the last request sent there among all; `routed` requests and the tokens `sent` with
    them. Each request's blocks are expected in `index` as long as it counts."""

    def __init__(self, index: BlockIndex) -> None:
        self._index = index
        self.outstanding: Floats = np.zeros(FIRST_SLOTS)
        self.recent: Floats = np.zeros(FIRST_SLOTS)
        self.turn: Floats = np.zeros(FIRST_SLOTS)
        self.routed: Floats = np.zeros(FIRST_SLOTS)
        self.sent: Floats = np.zeros(FIRST_SLOTS)
        self._works: list[set[Work]] = [set() for _ in range(FIRST_SLOTS)]
        self._turns = 0
        self._since_halved = 0

    @property
    def size(self) -> int:
        return len(self._works)

    def grow(self) -> None:
        """Have slots for twice as many workers."""
        for name in ("outstanding", "recent", "turn", "routed", "sent"):
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(self.size)]))
        self._works += [set() for _ in range(self.size)]

    def begin(self, slot: int, tokens: int, rows: int, names: Iterable[int], prompt_tokens: int, workers: int) -> Work:
        """`workers`: how many share what comes. `names`: the prompt's blocks."""
        work = Work(self, slot, tokens, rows, self._index.expect(slot, names))
        self._works[slot].add(work)
        self.outstanding[slot] += work.cost
        self._since_halved += 1
        if self._since_halved > MEMORY * workers:
            self._since_halved = 0
            self.recent *= 0.5
        self.recent[slot] += work.cost
        self._turns += 1
        self.turn[slot] = self._turns
        self.routed[slot] += 1
        self.sent[slot] += prompt_tokens
        return work

    def end(self, work: Work) -> None:
        work.live = False
        self._works[work.slot].remove(work)
        self.outstanding[work.slot] -= work.cost
        self._index.expect_no_more(work.slot, work.names)

    def leave(self, slot: int) -> None:
        """The worker is gone, and what it had to do with it; another may have the slot."""
        for work in tuple(self._works[slot]):
            self.end(work)
        for array in (self.recent, self.turn, self.routed, self.sent):
            array[slot] = 0.0
