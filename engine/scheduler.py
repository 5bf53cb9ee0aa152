"""The requests of an engine: who waits, who runs, and what becomes of them when a step was computed.

`plan` decides a whole step (`engine.step_planner` says who is in it); `commit` takes its results. Between the two
nothing that the step uses is freed: an abort only marks, and the commit ends the request.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from engine import forks
from engine.beam_search import BeamGroup
from engine.block_pool import IllegalState
from engine.hand_over import HandOver
from engine.kv_manager import KVManager, blocks_for
from engine.messages import BeamOutput
from engine.plan import PlannedRow, StepPlan, StepResult
from engine.preemption import preempt, recompute_after_all
from engine.protocol import Arrived, Control, FinishReason, Left, Wait
from engine.rates import Rates
from engine.request import Request, RequestTooLarge
from engine.request_events import EndedEarly, Events
from engine.row_shares import RowShares
from engine.step_planner import StepPlanner
from engine.transfer.connector import KVConnector
from engine.transfer.offer import LEASE_SECONDS
from engine.waiting_queue import WaitingQueue, running_key


class Scheduler:
    """Requests, waiting and running. The order of those that run is also who is preempted last.

    A forked request is in neither list until its parent's prompt is computed: it is in `unforked`. One that is on its
    way from or to another engine is in `hand_over`.
    """

    def __init__(
        self,
        kv: KVManager,
        control: Control,
        max_model_len: int,
        rates: Rates | None = None,
        connector: KVConnector | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self.kv = kv
        self.control = control
        self.max_model_len = max_model_len
        self.rates = rates or Rates()
        kv.copy_pays = self.rates.copy_pays
        self.requests: dict[str, Request] = {}
        self.waiting = WaitingQueue(control.scheduling_policy)
        self.row_shares = RowShares()
        self.unforked: dict[Request, None] = {}  # by arrival
        self.running: list[Request] = []
        self.held: dict[Request, None] = {}  # of those, finished in a static batch that goes on
        self.hand_over = HandOver(self, connector, lease_seconds)
        self.events = Events()
        self.wait: Wait | None = None  # why the next request was not admitted in the last plan
        self.forked: list[tuple[Request, int]] = []  # got their first token in the last commit, and their context then
        self.found_beams: dict[str, tuple[BeamOutput, ...]] = {}  # of searches that have ended, until they are told
        # Not at their sender's wish, or beam searches, whose sender gets what was found.
        self.ended_early: list[EndedEarly] = []
        self._plan: StepPlan | None = None
        self.now = 0.0  # when the last step was planned
        self.aborting: dict[Request, FinishReason] = {}  # while a step is computed
        self._deadlines: list[tuple[float, int, str]] = []  # a heap

    def add(self, request: Request, children: Sequence[Request] = ()) -> None:
        """Queue a request, and others to be forked off it once the KV of its prompt is there; those that go on with
        answers of their own, and are offered none, run by themselves.

        Raises RequestTooLarge when it could never run, ValueError for an id in use.
        """
        family = (request, *children)
        seen: set[str] = set()
        for one in family:
            if one.id in self.requests or one.id in seen:
                raise ValueError(f"request id {one.id!r} is in use")
            seen.add(one.id)
        for one in family:
            self._check_size(one, len(family))
        if request.incoming is not None or not any(one.num_generated for one in family):
            request.children = list(children)
        for child in request.children:
            child.parent = request
            self.unforked[child] = None
        for one in family:
            self.requests[one.id] = one
            self.row_shares.came(one.scheduling.client)
            parent = None if one.parent is None else one.parent.id
            priority, most, generated = one.scheduling.priority, one.sampling.max_tokens, one.num_generated
            self.events.arrived.append(
                Arrived(one.id, one.prompt_length, most, one.arrived, parent, priority, generated)
            )
            if one.deadline is not None:
                heapq.heappush(self._deadlines, (one.deadline, one.sequence, one.id))
            if parent is None:
                self.waiting.add(one)

    def _check_size(self, request: Request, family: int) -> None:
        if request.num_tokens >= self.max_model_len:
            raise RequestTooLarge(
                f"the prompt {'and its answer so far have' if request.num_generated else 'has'} "
                f"{request.num_tokens} tokens, and this engine's context holds "
                f"{self.max_model_len}, of which at least one must be left for the answer"
            )
        needed, pool = blocks_for(request.token_limit, self.kv.block_size), self.kv.pool.num_blocks
        if needed > pool:
            raise RequestTooLarge(f"the request may need {needed} blocks, and the whole pool has {pool}")
        if request.beams is not None and family * needed > pool:
            raise RequestTooLarge(
                f"beam_width: {family} beams may need {family * needed} blocks, and the whole pool has {pool}; "
                f"at most {pool // needed} beams of {request.token_limit} tokens fit"
            )

    def abort(self, request_id: str, reason: FinishReason) -> None:
        """End a request early, and those to be forked off it; unknown and finished ones are left alone.

        While a step is computed it only marks: the commit ends it.
        """
        request = self.requests.get(request_id)
        if request is None or request.reason is not None:
            return
        if self._plan is not None:
            self.aborting.setdefault(request, reason)
        else:
            self.end_early(request, reason)

    def set_control(self, control: Control) -> None:
        """Switch settings between two steps. Requests with a reservation give up its rest when `paged` is chosen;
        the other way they keep their tables, for no run of theirs could be made contiguous without copying."""
        if self._plan is not None:
            raise IllegalState("control is set while a step runs")
        if control.scheduling_policy != self.control.scheduling_policy:
            self.waiting.reorder(control.scheduling_policy)
            self.running.sort(key=running_key(control.scheduling_policy))
        self.control = control
        if control.allocation == "paged":
            for request in self.running:
                if request.allocation == "reserved":
                    self.kv.unreserve(request, control.prefix_cache)
                    self.events.unreserved.append(request.id)

    def plan(self, now: float) -> StepPlan:
        """Decide the next step; admission, growth and preemption have happened when it returns."""
        if self._plan is not None:
            raise IllegalState("a step is planned before the last one was committed")
        self.now = now
        self._expire(now)
        self.hand_over.poll(now)
        if self.held and (self.control.batching == "continuous" or len(self.held) == len(self.running)):
            self._release_held()
        self.wait = None
        step = StepPlanner(self, now)
        step.plan_running()
        if step.out_of_blocks:  # a newcomer would take those it waits for
            step.note_blocks()
        elif self.control.batching == "continuous":
            step.admit_continuously()
        elif not self.running:
            step.form_batch()
            step.plan_running()
        else:
            step.note_wait("batch")
        step.top_up()
        if self.waiting and not self.running and not self.hand_over.is_waited_for:
            raise IllegalState("requests wait, nothing runs, and none was admitted")
        plan = StepPlan(step.finished_rows(), *self.kv.take_moves())
        if plan.rows or plan.num_moves:
            self._plan = plan
        return plan

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> dict[str, FinishReason]:
        """Advance the counters by a step that was computed; returns the requests that ended with it, and why.

        Those whose rows are `lost` end too, with all that cannot go on without them, and are in `ended_early`.
        """
        self._take_back(plan)
        self.kv.settle()
        self.forked = []
        failed, lost, publish = result.failed, result.lost, self.control.prefix_cache
        ended: dict[str, FinishReason] = {}
        groups: dict[BeamGroup, None] = {}
        for row in self._commit_decodes(plan, result, ended):
            request: Request = row.request  # type: ignore[assignment]  # a plan shows less of it
            if row.kind == "held" or (lost and request.id in lost):
                continue
            is_bad = bool(failed) and request.id in failed
            self.kv.commit(request, row.count, publish and not is_bad)  # its KV may be no numbers either
            if request.beams is not None:
                if row.samples:
                    groups[request.beams] = None
                continue
            early = self.aborting.pop(request, None)
            reason: FinishReason | None = None
            if row.samples:
                token = result.sampled.get(request.id)
                if token is None:
                    early = early or "error"
                else:
                    reason = request.append(token.token_id)
                    if request.first_token is None:
                        request.first_token = now
                if early not in ("abort", "deadline") and (request.hand_over or request.children):
                    family = forks.drawn(self, request, result, now)
                    if request.hand_over and self.hand_over.offer(request, early or reason, family, now, ended):
                        continue
                    forks.fork(self, request, family, result, ended)
            elif is_bad:
                early = early or "error"
            if early is not None:
                self.end_early(request, early, failed.get(request.id) if is_bad else None)
                ended[request.id] = early
            elif reason is not None:
                self.finish(request, reason)
                ended[request.id] = reason
        if lost:
            self._lose((row.request for row in plan.rows if row.request_id in lost), lost)  # type: ignore[misc]
        for group in groups:
            if group.leader.reason is None:  # or it has lost a beam
                forks.advance(self, group, result, now, ended)
        self._end_marked()
        return ended

    def give_up_moves(self, plan: StepPlan, why: str) -> None:
        """Take back a planned step whose moves failed, all or some: none of its rows was computed.

        The requests that hold blocks to be moved into end, and are in `ended_early`; those that were to be moved to
        host memory have lost their KV and compute it again. All others go on: they can be planned again.
        """
        self._take_back(plan)
        targets = {target for _, target in plan.swap_in} | {copy.target for copy in plan.copies}
        holding = [request for request in self.running if not targets.isdisjoint(request.table)]
        hosts = {host for _, host in plan.swap_out}
        moved_out = [request for request in self.waiting if not hosts.isdisjoint(request.host_table)]
        self.kv.settle(moved=False)
        for request in moved_out:
            recompute_after_all(self, request)
        names = {request.id for request in holding}
        self.events.not_moved(names)
        self._lose(holding, dict.fromkeys(names, why))
        self._end_marked()

    def _take_back(self, plan: StepPlan) -> None:
        if plan is not self._plan:
            raise IllegalState("a step is committed that was not planned last")
        self._plan = None

    def _end_marked(self) -> None:
        """End those that were aborted while the step was on the device, and that it did not compute."""
        while self.aborting:
            request, reason = self.aborting.popitem()
            if self.requests.get(request.id) is request and request.reason is None:
                self.end_early(request, reason)

    def _lose(self, requests: Iterable[Request], why: Mapping[str, str]) -> None:
        """End requests that a fault cost their answer, whoever aborted them meanwhile, with those to be forked off
        them and the other beams of their searches. A held one has its answer."""
        for request in requests:
            if request.reason is None:
                self.end_early(request, "error", why[request.id])
                if request.beams is None:
                    self.ended_early.append(EndedEarly(request, "error", why[request.id]))

    def _commit_decodes(
        self, plan: StepPlan, result: StepResult, ended: dict[str, FinishReason]
    ) -> Iterable[PlannedRow]:
        """Take the tokens of plain decodes, which are nearly all rows of a large batch; returns the other rows."""
        if self.aborting:
            return plan.rows
        kv, size, publish, sampled = self.kv, self.kv.block_size, self.control.prefix_cache, result.sampled
        others, filling, finished = [], [], []
        for row in plan.rows:
            request: Request = row.request  # type: ignore[assignment]  # a plan shows less of it
            token = sampled.get(request.id) if row.kind == "decode" and request.beams is None else None
            if token is None:
                others.append(row)
                continue
            computed = request.num_computed
            used = computed % size
            if used + 1 == size:
                kv.commit(request, 1, publish)
            else:  # what `kv.commit` would do
                block = request.table[computed // size]
                if used:
                    filling.append(block)
                else:
                    kv.pool.fill(block, 1)
                request.num_computed = computed + 1
            reason = request.append(token.token_id)
            if reason is not None:
                finished.append((request, reason))
        kv.pool.fill_on(filling)
        for request, reason in finished:
            self.finish(request, reason)
            ended[request.id] = reason
        return others

    # Running and waiting

    def preempt(self, request: Request) -> None:
        """See `engine.preemption`."""
        preempt(self, request)

    def rows_taken(self) -> int:
        """Rows of the batch that are or will be taken by what runs."""
        running, receiving = self.running, self.hand_over.receiving
        to_fork = sum(request.num_rows - 1 for request in chain(running, receiving) if request.children)
        return len(running) + len(receiving) + to_fork

    def blocks_owed(self) -> int:
        """What those that run still need for the tokens that they have."""
        return sum(map(self.kv.owed, chain(self.running, self.hand_over.receiving)))

    def rows_by_client(self) -> Counter[str]:
        """Rows of the batch that are or will be taken, by whose they are."""
        rows: Counter[str] = Counter()
        for request in chain(self.running, self.hand_over.receiving):
            rows[request.scheduling.client] += request.num_rows
        return rows

    def members(self, request: Request) -> list[Request]:
        """The requests that are admitted together."""
        return [request] if request.beams is None else request.beams.members

    def run(self, request: Request) -> None:
        insort(self.running, request, key=running_key(self.control.scheduling_policy))

    # Endings

    def _expire(self, now: float) -> None:
        if len(self._deadlines) > 2 * len(self.requests) + 64:  # most are of requests that have ended
            live = [entry for entry in self._deadlines if self._has(*entry[1:])]
            heapq.heapify(live)
            self._deadlines = live
        while self._deadlines and self._deadlines[0][0] <= now:
            _, sequence, request_id = heapq.heappop(self._deadlines)
            if self._has(sequence, request_id):
                request = self.requests[request_id]
                if request.reason is None:
                    self.end_early(request, "deadline")
                    if request.beams is None:
                        self.ended_early.append(EndedEarly(request, "deadline"))

    def _has(self, sequence: int, request_id: str) -> bool:
        """Whether that request lives: its id may have been taken again by a later one."""
        request = self.requests.get(request_id)
        return request is not None and request.sequence == sequence

    def _release_held(self) -> None:
        for request in list(self.held):
            self._remove(request)
            assert request.reason is not None
            ended = Left(request.id, request.reason)
            if ended in self.events.held:  # no record has told that it was held, and now it never was
                self.events.held.remove(ended)
                self.events.left.append(ended)
            else:
                self.events.released.append(request.id)

    def end_early(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        """End a request before its own end, with those to be forked off it and the other beams of its search.
        One that a stop string ended has finished like any other. `error` is for those who are not told with a step."""
        if self.hand_over.keeps(request, reason):
            return
        if reason == "stop" and request.num_computed and not request.children and request.beams is None:
            self.finish(request, reason)
            return
        family: Iterable[Request] = (request, *request.children)
        group = request.beams
        if group is not None:
            family = (*group.members, *group.leader.children)
            outputs = [member.tokens[member.prompt_length :] for member in group.members]
            self.found_beams[group.leader.id] = group.search.so_far(outputs, reason)
            if reason != "error" or error is not None:  # else it is told with the step
                self.ended_early.append(EndedEarly(group.leader, reason, error))
        for member in family:
            if member is not request and group is None:
                self.ended_early.append(EndedEarly(member, reason, error))
            parent = member.parent
            if parent is not None:
                parent.children = [child for child in parent.children if child is not member]
            self.end(member, reason)
            if parent is not None:
                self.hand_over.orphan(parent)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """In a static batch a finished member keeps its row and its memory until the batch ends."""
        if self.control.batching == "static":
            request.reason = reason
            self.held[request] = None
            self.events.held.append(Left(request.id, reason))
        else:
            self.end(request, reason)

    def end(self, request: Request, reason: FinishReason) -> None:
        self._remove(request)
        request.reason = reason
        self.events.left.append(Left(request.id, reason))

    def _remove(self, request: Request) -> None:
        if request.allocation is not None:
            self.running.remove(request)
            self.held.pop(request, None)
        elif request in self.waiting:
            self.waiting.remove(request)
        else:
            self.unforked.pop(request, None)
        self.waiting.settle(request)
        self.row_shares.went(request.scheduling.client, self.now)
        self.kv.free(request)
        del self.requests[request.id]
