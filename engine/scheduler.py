"""Who runs in the next step: continuous or static batching over requests in their order of arrival.

`plan` decides a whole step; `commit` takes its results. Between the two nothing that the step uses is freed: an
abort only marks, and the commit ends the request.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from engine.block_pool import IllegalState
from engine.kv_manager import KVManager, blocks_for
from engine.plan import PlannedRow, StepPlan, StepResult
from engine.protocol import Arrived, Control, FinishReason, Joined, Left, Preempted
from engine.request import Request, RequestTooLarge

MAX_SKIPS = 16  # how many later requests may be admitted past one that does not fit
LOOK_AHEAD = 32  # how far into the queue a step looks for one that does


def _order(request: Request) -> int:
    return request.sequence


class Events:
    """What happened to requests since the last record."""

    def __init__(self) -> None:
        self.arrived: list[Arrived] = []
        self.joined: list[Joined] = []
        self.preempted: list[Preempted] = []
        self.held: list[Left] = []
        self.left: list[Left] = []
        self.released: list[str] = []
        self.unreserved: list[str] = []

    def __bool__(self) -> bool:
        return any(vars(self).values())


class Scheduler:
    """Requests, waiting and running, each list by order of arrival: that order is also who is preempted last."""

    def __init__(self, kv: KVManager, control: Control, max_model_len: int, eos_token_ids: frozenset[int]) -> None:
        self.kv = kv
        self.control = control
        self.max_model_len = max_model_len
        self.eos_token_ids = eos_token_ids
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.events = Events()
        self._plan: StepPlan | None = None
        self._aborting: dict[str, FinishReason] = {}

    def add(self, request: Request) -> None:
        """Queue a request; raises RequestTooLarge when it could never run."""
        if request.id in self.requests:
            raise ValueError(f"request id {request.id!r} is in use")
        if request.num_tokens >= self.max_model_len:
            raise RequestTooLarge(
                f"the prompt has {request.num_tokens} tokens, and this engine's context holds "
                f"{self.max_model_len}, of which at least one must be left for the answer"
            )
        most = min(request.num_tokens + request.sampling.max_tokens, self.max_model_len)
        needed, pool = blocks_for(most, self.kv.block_size), self.kv.pool.num_blocks
        if needed > pool:
            raise RequestTooLarge(f"the request may need {needed} blocks, and the whole pool has {pool}")
        self.requests[request.id] = request
        insort(self.waiting, request, key=_order)
        self.events.arrived.append(
            Arrived(request.id, request.prompt_length, request.sampling.max_tokens, request.arrived)
        )

    def abort(self, request_id: str, reason: FinishReason) -> None:
        """End a request early; unknown and finished ones are left alone. One in a step ends at its commit."""
        request = self.requests.get(request_id)
        if request is None or request.reason is not None:
            return
        if self._plan is not None and any(row.request_id == request_id for row in self._plan.rows):
            self._aborting.setdefault(request_id, reason)
        else:
            self._end_early(request, reason)

    def set_control(self, control: Control) -> None:
        """Switch settings between two steps. Requests with a reservation give up its rest when `paged` is chosen;
        the other way they keep their tables, for no run of theirs could be made contiguous without copying."""
        if self._plan is not None:
            raise IllegalState("control is set while a step runs")
        self.control = control
        if control.allocation == "paged":
            for request in self.running:
                if request.allocation == "reserved":
                    self.kv.unreserve(request, control.prefix_cache)
                    self.events.unreserved.append(request.id)

    def plan(self) -> StepPlan:
        """Decide the next step; admission, growth and preemption have happened when it returns."""
        if self._plan is not None:
            raise IllegalState("a step is planned before the last one was committed")
        if self.control.batching == "continuous" or not any(r.reason is None for r in self.running):
            self._release_held()
        step = _Step(self)
        step.plan_running()
        if not step.out_of_blocks:  # a newcomer would take those it waits for
            if self.control.batching == "continuous":
                step.admit_continuously()
            elif not self.running:
                self._form_batch()
                step.plan_running()
        step.top_up()
        if self.waiting and not self.running:
            raise IllegalState("requests wait, nothing runs, and none was admitted")
        plan = StepPlan(step.rows())
        if plan.rows:
            self._plan = plan
        return plan

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> dict[str, FinishReason]:
        """Advance the counters by a step that was computed; returns the requests that ended with it, and why."""
        if plan is not self._plan:
            raise IllegalState("a step is committed that was not planned last")
        self._plan = None
        ended: dict[str, FinishReason] = {}
        for row in plan.rows:
            if row.kind == "held":
                continue
            request = self.requests[row.request_id]
            self.kv.commit(request, row.count, self.control.prefix_cache)
            reason: FinishReason | None = None
            early = self._aborting.pop(request.id, None)
            if row.request_id in result.failed:
                early = early or "error"
            elif row.samples:
                token = result.sampled[row.request_id].token_id
                reason = request.append(token, self.eos_token_ids, self.max_model_len)
                if request.first_token is None:
                    request.first_token = now
            if early is not None:
                self._end_early(request, early)
                ended[request.id] = early
            elif reason is not None:
                self._finish(request, reason)
                ended[request.id] = reason
        return ended

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks; its tokens stay, and it computes them again when it resumes."""
        lost = request.num_computed
        self.running.remove(request)
        self.kv.free(request)
        request.preemptions += 1
        insort(self.waiting, request, key=_order)
        self.events.preempted.append(Preempted(request.id, lost))

    def admit(self, request: Request, prefix: list[int], owed: int = 0) -> bool:
        """Move a waiting request into the batch if its memory can be had; True if so.

        `owed` blocks are left alone: prefills that have begun still need them.
        """
        reserved = self.control.allocation == "reserved"
        if reserved:
            if not self.kv.admit_reserved(request):
                return False
        else:
            # One block to spare for each that runs, or the newcomer would be preempted within a few steps.
            if not self.kv.can_admit(prefix, request.num_tokens, len(self.running) + owed):
                return False
            self.kv.admit_paged(request, prefix)
        if request.preemptions == 0:
            request.found = request.cached
        self.waiting.remove(request)
        insort(self.running, request, key=_order)
        looked_up = request.num_tokens if self.control.prefix_cache and not reserved else 0
        self.events.joined.append(
            Joined(
                request.id,
                request.cached,
                looked_up,
                self.control.allocation,
                resumed=request.preemptions > 0,
            )
        )
        return True

    def cached_prefix(self, request: Request) -> list[int]:
        if self.control.prefix_cache and self.control.allocation == "paged":
            return self.kv.cached_prefix(request)
        return []

    def _form_batch(self) -> None:
        """Static: the oldest requests that fit together, their prompts' blocks taken at once."""
        while self.waiting and len(self.running) < self.control.max_num_seqs:
            request = self.waiting[0]
            if not self.admit(request, self.cached_prefix(request)):
                return
            if not self.kv.grow(request, request.num_tokens):
                raise IllegalState(f"request {request.id} was admitted and does not fit")

    def _release_held(self) -> None:
        for request in [r for r in self.running if r.reason is not None]:
            self._remove(request)
            assert request.reason is not None
            ended = Left(request.id, request.reason)
            if ended in self.events.held:  # no record has told that it was held, and now it never was
                self.events.held.remove(ended)
                self.events.left.append(ended)
            else:
                self.events.released.append(request.id)

    def _end_early(self, request: Request, reason: FinishReason) -> None:
        """End a request before its own end. One that a stop string ended has finished like any other."""
        if reason == "stop" and request.num_computed:
            self._finish(request, reason)
        else:
            self._end(request, reason)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """In a static batch a finished member keeps its row and its memory until the batch ends."""
        if self.control.batching == "static":
            request.reason = reason
            self.events.held.append(Left(request.id, reason))
        else:
            self._end(request, reason)

    def _end(self, request: Request, reason: FinishReason) -> None:
        self._remove(request)
        request.reason = reason
        self.events.left.append(Left(request.id, reason))

    def _remove(self, request: Request) -> None:
        (self.waiting if request.allocation is None else self.running).remove(request)
        self.kv.free(request)
        del self.requests[request.id]


class _Step:
    """The step that is being planned: tokens per request, and what is left of the budget."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.control = scheduler.control
        self.budget = self.control.max_num_batched_tokens
        self.counts: dict[Request, int] = {}
        self.out_of_blocks = False  # a running request found none for its next tokens

    def plan_running(self) -> None:
        """Decodes first, so that no prefill holds them up; then the prefills that have begun."""
        running = self.scheduler.running
        for kind in ("decode", "prefill"):
            for request in list(running):
                if self.budget <= 0:
                    return
                # A request may have been preempted by one before it.
                if request.allocation is None or request in self.counts or request.kind != kind:
                    continue
                if not self._schedule(request):
                    self.out_of_blocks = True
                    self._make_room(request)

    def admit_continuously(self) -> None:
        """Let waiting requests join while tokens, rows and memory last; those that do not fit may be passed."""
        scheduler = self.scheduler
        if not scheduler.waiting:
            return
        blocked: list[Request] = []
        computing = self._prefixes_being_computed()
        owed = sum(map(scheduler.kv.owed, scheduler.running))
        for request in scheduler.waiting[: LOOK_AHEAD + self.control.max_num_seqs]:
            if self.budget <= 0 or len(scheduler.running) >= self.control.max_num_seqs:
                return
            if len(blocked) >= LOOK_AHEAD or (blocked and blocked[0].skipped >= MAX_SKIPS):
                return
            prefix = scheduler.cached_prefix(request)
            if self._next_hash(request, len(prefix)) in computing:
                continue  # in a few steps this prefix is a hit: waiting costs less than computing it again
            if not self._prompt_fits_budget(request.num_tokens - len(prefix) * scheduler.kv.block_size):
                return
            if not scheduler.admit(request, prefix, owed):
                if self.control.allocation == "reserved":
                    return  # all reservations are of one size: no other fits either
                blocked.append(request)
                continue
            for other in blocked:
                other.skipped += 1
            if not self._schedule(request):
                raise IllegalState(f"request {request.id} was admitted and does not fit")
            computing |= self._hashes_ahead(request)
            owed += scheduler.kv.owed(request)

    def top_up(self) -> None:
        """Give what the budget has left to the prefills that were cut short for others' sake."""
        if not self.control.chunked_prefill:
            return
        for request, count in self.counts.items():
            if self.budget > 0 and request.kind == "prefill" and count < request.num_uncomputed:
                more = self._chunk(request, count, min(request.num_uncomputed - count, self.budget))
                if more and self.scheduler.kv.grow(request, request.num_computed + count + more):
                    self.counts[request] += more
                    self.budget -= more

    def rows(self) -> tuple[PlannedRow, ...]:
        """The step's rows; held ones are padding beside those that work, and cost no budget."""
        rows = [self._row(request, count) for request, count in self.counts.items()]
        if rows:
            rows += [self._row(r, 1) for r in self.scheduler.running if r.reason is not None]
        return tuple(rows)

    def _row(self, request: Request, count: int) -> PlannedRow:
        kind = request.kind
        start = request.num_computed - (1 if kind == "held" else 0)
        samples = kind != "held" and start + count == request.num_tokens
        return PlannedRow(request, kind, start, count, samples)

    def _schedule(self, request: Request) -> bool:
        """Plan a request's next tokens; False if there are no blocks for them."""
        count = self._count(request)
        if count and not self.scheduler.kv.grow(request, request.num_computed + count):
            return False
        if count:
            self._take(request, count)
        return True

    def _count(self, request: Request) -> int:
        remaining = request.num_uncomputed
        if not self.control.chunked_prefill:
            return remaining if self._prompt_fits_budget(remaining) else 0
        count = min(remaining, self.budget)
        if request.kind == "prefill":
            # No prefill takes more than half of a step that others could use; `top_up` returns the rest.
            half = max(1, self.control.max_num_batched_tokens // 2)
            count = self._chunk(request, 0, min(count, half))
        return count

    def _chunk(self, request: Request, planned: int, count: int) -> int:
        """Cut a chunk that is not a prompt's last at a block's end, so that no block waits half filled."""
        end = request.num_computed + planned + count
        if end < request.num_tokens:
            return count - end % self.scheduler.kv.block_size if count > end % self.scheduler.kv.block_size else count
        return count

    def _prompt_fits_budget(self, tokens: int) -> bool:
        """Unchunked prompts run whole; one that passes the budget runs as its step's only prefill."""
        if self.control.chunked_prefill or tokens <= self.budget:
            return True
        return not any(request.kind == "prefill" for request in self.counts)

    def _make_room(self, request: Request) -> None:
        """Preempt the latest arrivals that are not in this step until `request` fits, or itself."""
        scheduler = self.scheduler
        while not self._schedule(request):
            victim = next(self._victims(request), None)
            if victim is None and request.kind == "prefill" and self.counts:
                return  # those in this step will end and make room
            scheduler.preempt(victim or request)
            if victim is None:
                return

    def _victims(self, request: Request) -> Iterator[Request]:
        for other in reversed(self.scheduler.running):
            if other.sequence <= request.sequence:
                return
            if other.reason is None and other not in self.counts and other.table:
                yield other

    def _take(self, request: Request, count: int) -> None:
        self.counts[request] = count
        self.budget -= count

    def _prefixes_being_computed(self) -> set[bytes]:
        hashes: set[bytes] = set()
        if self.control.prefix_cache and self.control.allocation == "paged":
            for request in self.scheduler.running:
                if request.kind == "prefill":
                    hashes |= self._hashes_ahead(request)
        return hashes

    def _hashes_ahead(self, request: Request) -> set[bytes]:
        if request.allocation != "paged" or not self.control.prefix_cache:
            return set()
        return set(request.block_hashes[request.num_computed // self.scheduler.kv.block_size :])

    def _next_hash(self, request: Request, blocks: int) -> bytes | None:
        """The hash of the first full block that a hit could have had and did not."""
        most = (request.num_tokens - 1) // self.scheduler.kv.block_size
        return request.block_hashes[blocks] if blocks < min(most, len(request.block_hashes)) else None
