"""A step before and after the device: what the scheduler decided, and what the runner found.

The plan is complete before the device works; the runner decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from engine.protocol import Copy, Parts, RowKind
from engine.sampling_params import SamplingParams


class PlannedRequest(Protocol):
    """What a step reads of a request: read-only, and valid until the step is committed."""

    @property
    def id(self) -> str: ...
    @property
    def tokens(self) -> Sequence[int]: ...  # the prompt, then what was generated
    @property
    def prompt_length(self) -> int: ...
    @property
    def table(self) -> Sequence[int]: ...
    @property
    def sampling(self) -> SamplingParams: ...


class FixedRequest(msgspec.Struct, frozen=True):
    """A `PlannedRequest` outside any engine: for warming up, and for tests of the device's side."""

    id: str
    tokens: Sequence[int]
    prompt_length: int
    table: Sequence[int]
    sampling: SamplingParams


class PlannedRow(msgspec.Struct, frozen=True, gc=False):
    """One request's part of a step: it feeds `tokens[start : start + count]`.

    A `held` row feeds its last computed token again and writes no slot. With `samples`, a token is drawn from the
    logits of its last one, and one more for each of `siblings`, which fork off here: they have the same tokens.
    """

    request: PlannedRequest
    kind: RowKind
    start: int
    count: int
    samples: bool
    siblings: tuple[PlannedRequest, ...] = ()

    @property
    def request_id(self) -> str:
        return self.request.id

    @property
    def draws(self) -> tuple[PlannedRow, ...]:
        """A row for each token to draw from this row's logits: its own, then the siblings'."""
        if not self.samples:
            return ()
        if not self.siblings:
            return (self,)
        forks = (PlannedRow(sibling, "fork", self.start, self.count, True) for sibling in self.siblings)
        return (self, *forks)

    @property
    def scored(self) -> range:
        """The places in the prompt whose tokens this row's logits score, for `prompt_logprobs`."""
        if self.request.sampling.prompt_logprobs is None or self.kind != "prefill":
            return range(0)
        return range(self.start + 1, min(self.start + self.count + 1, self.request.prompt_length))

    def slots(self, block_size: int) -> list[int]:
        """The slot each fed token writes (-1: none)."""
        if self.kind == "held":
            return [-1] * self.count
        table = self.request.table
        positions = range(self.start, self.start + self.count)
        return [table[p // block_size] * block_size + p % block_size for p in positions]


class StepPlan(msgspec.Struct, frozen=True):
    """Every row of one step, prefills and decodes in the order they were scheduled, and what is moved before them.

    Pairs are (source, target): `swap_out` from device to host blocks, then `swap_in` back, then `copies` on the
    device, then the rows are computed. Only the whole of one such stage need be done before the next.
    """

    rows: tuple[PlannedRow, ...]
    swap_out: tuple[tuple[int, int], ...] = ()
    swap_in: tuple[tuple[int, int], ...] = ()
    copies: tuple[Copy, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(row.count for row in self.rows)

    @property
    def num_moves(self) -> int:
        return len(self.swap_out) + len(self.swap_in) + len(self.copies)


class Sampled(msgspec.Struct, frozen=True, gc=False):
    """One sampled token; `top` holds (token id, log-probability) of the best alternatives, best first."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class ScoredToken(msgspec.Struct, frozen=True):
    """The log-probability of a prompt's token after those before it; `top` as in `Sampled`."""

    logprob: float
    rank: int  # 1: it was the most likely one
    top: tuple[tuple[int, float], ...] = ()


class StepResult(msgspec.Struct, frozen=True):
    """What the runner computed, and its own durations in seconds.

    Each draw of a row is either in `sampled` or, with the reason, in `failed`: one bad row does not cost the rest.
    `scored` has, for each request whose row has a `scored` range, one token for each place in it; one whose prompt
    cannot be scored is in `failed` instead. `parts` says where `forward` went, where the model measures that.

    The last three are `engine.attempt`'s: `lost` has the requests whose rows were not computed, and why, `fault` what
    happened, for a person, and `runs` how often the device computed for this step: 0 if it never came to an end.
    """

    sampled: dict[str, Sampled]
    prepare: float
    forward: float
    sample: float
    failed: dict[str, str] = {}
    scored: dict[str, tuple[ScoredToken, ...]] = {}
    parts: Parts | None = None
    lost: dict[str, str] = {}
    fault: str = ""
    runs: int = 1


class Runner(Protocol):
    """Whatever does a plan: the model on a device, or a stand-in that only counts.

    Either half may raise; what is raised says which half was not done. Rows can be computed again, all or some of
    them or a part of one: they write the same values to the same slots, and a seeded draw draws the same.
    """

    def move(self, plan: StepPlan) -> float:
        """Swap and copy; the seconds that took. Called once a step, before its rows, also if nothing moves."""
        ...

    def compute(self, rows: Sequence[PlannedRow]) -> StepResult:
        """Compute rows, at least one. Raises MemoryError where the device has no memory for so many at once."""
        ...
