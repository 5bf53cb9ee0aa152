"""The engine itself: plan a step, have it run, commit it, and say exactly what was done. No device, no I/O."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from engine.attempt import Health, attempt, one_line
from engine.beam_search import BeamGroup, BeamSearch
from engine.block_pool import BlockPool, IllegalState
from engine.contents import in_order
from engine.hand_over import Incoming, Part
from engine.host_pool import HostPool
from engine.invariants import check_plan, check_state
from engine.kv_events import KvEvent, KvJournal
from engine.kv_manager import KVManager
from engine.ledger import Ledger
from engine.messages import Output, Taken
from engine.news import tell_ended_early, tell_step
from engine.plan import Runner, StepPlan, StepResult
from engine.protocol import (
    MAX_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    MAX_WAIT,
    Control,
    Copy,
    Counters,
    Durations,
    EngineInfo,
    FinishReason,
    Parts,
    Queue,
    Record,
    RequestState,
    Row,
    Snapshot,
    counted,
)
from engine.rates import Rates
from engine.request import DEFAULT_SCHEDULING, Request
from engine.request_events import Events
from engine.sampling_params import SamplingParams, SchedulingParams
from engine.scheduler import Scheduler
from engine.transfer.connector import KVConnector
from engine.transfer.needs import unmet
from engine.transfer.offer import LEASE_SECONDS, Offer

MOST_FAILURES = 3  # steps in a row: what ails a device may stay with its process, as CUDA's sticky errors do

logger = logging.getLogger(__name__)


class ControlError(ValueError):
    """A control setting that this engine cannot take; the message names the field and what is allowed."""


class StepsFail(RuntimeError):
    """The device computes nothing any more. Whose requests were in the steps that failed has been told."""


def check_control(control: Control, info: EngineInfo, *, hands_over: bool = False) -> None:
    """Raise ControlError if `control` cannot hold on an engine like `info`, or on one that hands requests over."""
    for field, least, most in (
        ("max_num_seqs", 1, MAX_NUM_SEQS),
        ("max_num_batched_tokens", 1, MAX_BATCHED_TOKENS),
        ("max_prefill_chunk", 0, MAX_BATCHED_TOKENS),
        ("max_wait", 0, MAX_WAIT),
    ):
        value = getattr(control, field)
        if not least <= value <= most:
            raise ControlError(f"{field}: must be from {least} to {most}, got {value}")
    if hands_over and (need := unmet(control)) is not None:
        raise ControlError(f"{need.setting} must be {need.must!r} on an engine that hands over KV, not {need.got!r}")
    reservation = -(-info.max_model_len // info.block_size)
    if control.allocation == "reserved" and reservation > info.num_blocks:
        raise ControlError(
            f"allocation cannot be 'reserved': one reservation of max_model_len {info.max_model_len} needs "
            f"{reservation} blocks, and the pool has {info.num_blocks}"
        )
    if control.preempt == "swap" and not info.num_host_blocks:
        raise ControlError("preempt cannot be 'swap': this engine has no swap space; it may be 'recompute' or 'auto'")


class EngineCore:
    """One engine over a runner. Everything happens between steps, in one thread; `step` never waits.

    Without `partial_hits` the prefix cache finds whole blocks alone. With `kv_events` it keeps what changes there until
    somebody takes it (`drain_kv_events`). With a `connector` it hands requests over and goes on with others' (see
    `engine.hand_over`), and keeps for `lease_seconds` what nobody takes.
    """

    def __init__(
        self,
        runner: Runner,
        info: EngineInfo,
        control: Control,
        eos_token_ids: frozenset[int] = frozenset(),
        check_invariants: bool = False,
        clock: Callable[[], float] = time.monotonic,
        partial_hits: bool = True,
        kv_events: bool = False,
        connector: KVConnector | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        check_control(control, info, hands_over=connector is not None)
        self.runner = runner
        self.info = msgspec.structs.replace(info, started=clock(), started_unix=time.time())
        self.eos_token_ids = eos_token_ids
        self.check_invariants = check_invariants
        self.clock = clock
        self.rates = Rates()
        self._kv_journal = KvJournal(info.block_size) if kv_events else None
        self.pool = BlockPool(info.num_blocks, info.block_size, self._kv_journal)
        kv = KVManager(self.pool, info.max_model_len, HostPool(info.num_host_blocks), partial_hits=partial_hits)
        self.connector = connector
        self.scheduler = Scheduler(kv, control, info.max_model_len, self.rates, connector, lease_seconds)
        self.ledger = Ledger(self.pool, info.kv_bytes_per_token)
        self.counters = Counters()
        self.seq = 0
        self._arrivals = 0
        self._cleared = 0  # cached blocks forgotten since the last record
        self._reported = control  # as the last record told it
        self._time = self.info.started
        self._queue = Queue()
        self._health = Health()

    @property
    def control(self) -> Control:
        return self.scheduler.control

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.requests)

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        sampling: SamplingParams,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        siblings: Sequence[str] = (),
        block_hashes: Sequence[bytes] = (),
        arrived: float | None = None,
        hand_over: bool = False,
        offer: Offer | None = None,
        generated: Sequence[Sequence[int]] = (),
        places: Sequence[int] = (),
    ) -> None:
        """Queue a request; raises RequestTooLarge (a ValueError) if it could never run, and ValueError for what makes
        no sense.

        `siblings` answer the same prompt, which is computed once: others with seed + 1, + 2, …, or with
        `sampling.beam` the beams besides the first. `block_hashes` are those of its first full blocks, where somebody
        knows them already. `arrived`: when it came, on this core's clock (None: now).

        With `hand_over` it goes on elsewhere once its first token is drawn, and those of its siblings. `generated` has
        the tokens that there are of its answer, and of each sibling's; their seeds follow from their `places` in the
        family. Of an `offer` it is told exactly once that it is read no more (`drain_taken`), also if this raises.
        """
        try:
            part = Part(hand_over, offer, generated, places)
            self._add((request_id, *siblings), prompt, sampling, scheduling, block_hashes, arrived, part)
        except Exception as error:
            queued = self.scheduler.requests.get(request_id)
            if offer is not None and (queued is None or queued.incoming is None or queued.incoming.offer is not offer):
                self.scheduler.hand_over.refuse(request_id, offer, one_line(error))
            raise

    def _add(
        self,
        names: Sequence[str],
        prompt: Sequence[int],
        sampling: SamplingParams,
        scheduling: SchedulingParams,
        block_hashes: Sequence[bytes],
        arrived: float | None,
        part: Part,
    ) -> None:
        beam = sampling.beam
        if beam is not None and beam.width != len(names):
            raise ValueError(f"a beam search of width {beam.width} needs {beam.width - 1} siblings")
        hands_over, offer = self.connector is not None, part.offer
        part.check(len(prompt), len(names), hands_over=hands_over, is_search=beam is not None)
        answers, places = part.generated or ((),) * len(names), part.places or range(len(names))
        if any(answers):  # whoever began these has told what its prompt scores
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=None)
        now = self.clock()
        arrived = now if arrived is None else min(arrived, now)
        family = [
            Request(
                one,
                prompt,
                sampling if beam is not None else seeded(sampling, place),
                arrived,
                self._arrivals + index,
                scheduling,
                self.eos_token_ids,
                self.info.max_model_len,
                block_hashes,
                answer,
                part.hand_over,
            )
            for index, (one, answer, place) in enumerate(zip(names, answers, places, strict=True))
        ]
        leader = family[0]
        if offer is not None and hands_over:
            leader.incoming = Incoming(offer, now)
        if beam is not None:
            search = BeamSearch(beam, leader.ends, sampling.min_tokens, leader.token_limit - leader.prompt_length)
            group = BeamGroup(leader, search)
            for member in family:
                member.beams = group
                member.sampling = msgspec.structs.replace(sampling, temperature=0.0, logprobs=search.candidates)
        self.scheduler.add(leader, family[1:])
        self._arrivals += len(family)
        if offer is not None and not hands_over:
            self.scheduler.hand_over.refuse(leader.id, offer, "this engine takes no KV from others")

    def release(self, leases: Sequence[str]) -> None:
        """Whoever was offered the blocks of these leases reads them no more; leases that have ended are left alone."""
        self.scheduler.hand_over.release(leases, self.clock())

    def drain_taken(self) -> tuple[Taken, ...]:
        """The offers that this engine reads no more, since the last call: each is told once."""
        hand_over = self.scheduler.hand_over
        taken, hand_over.taken = hand_over.taken, []
        return tuple(taken)

    def tells_an_end_of(self, requests: Iterable[str]) -> bool:
        """Whether the next record will say that one of these has left: none of that name can come before it."""
        left = {ended.request for ended in self.scheduler.events.left}
        return bool(left) and not left.isdisjoint(requests)

    def abort(self, request_id: str, reason: FinishReason = "abort") -> None:
        self.scheduler.abort(request_id, reason)

    def clear_cache(self) -> int:
        """Forget every cached prefix; requests that run keep their blocks. Returns the blocks forgotten."""
        cleared = self.scheduler.kv.clear_cache()
        self._cleared += cleared
        return cleared

    def set_control(self, control: Control) -> int:
        """Switch settings from the next step on; returns its sequence number. Raises ControlError."""
        check_control(control, self.info, hands_over=self.connector is not None)
        self.scheduler.set_control(control)
        return self.seq + 1

    def step(self) -> tuple[tuple[Output, ...], Record | None]:
        """Run one step; returns its news and its record (None if there was nothing to do or tell).

        A fault of the device costs the requests that it hit their answers; they are told, and the engine goes on.
        Raises StepsFail when too many steps in a row failed. Any other exception means that the books cannot be
        trusted: after either there must be no other step.
        """
        if self._health.failures >= MOST_FAILURES:
            raise StepsFail(f"{self._health.failures} steps in a row failed, the last because {self._health.fault}")
        begun = time.perf_counter()
        scheduler = self.scheduler
        plan = scheduler.plan(self.clock())
        early = tell_ended_early(self.scheduler)
        if not plan.rows and not plan.num_moves:
            scheduler.hand_over.load()
            return early, self.flush()
        if self.check_invariants:
            check_plan(scheduler, plan)
        scheduled = time.perf_counter()
        try:
            transfer = self.runner.move(plan)
        except Exception as error:
            return self._not_moved(plan, error, early, begun, scheduled)
        scheduler.hand_over.load()
        result = attempt(self.runner.compute, plan.rows)
        ran = time.perf_counter()
        if result.fault or self._health.ails:
            self._health.note(result)
        now = self.clock()
        ended = scheduler.commit(plan, result, now)
        if self.check_invariants:
            check_state(scheduler)
        rows, outputs = tell_step(scheduler, plan, result, ended)
        durations = Durations(
            scheduled - begun,
            result.prepare,
            result.forward,
            result.sample,
            time.perf_counter() - ran,
            transfer,
        )
        before = self.counters
        record = self._record(now, rows, durations, plan.copies, result.parts, result.fault)
        if not result.fault:
            self._learn(before, plan, result, transfer)
        return (*early, *outputs, *tell_ended_early(self.scheduler)), record

    def _not_moved(
        self, plan: StepPlan, error: Exception, early: tuple[Output, ...], begun: float, scheduled: float
    ) -> tuple[tuple[Output, ...], Record]:
        """End a step whose moves failed: nothing of it was computed."""
        failed = time.perf_counter()
        told = one_line(error)
        fault = f"moving blocks failed: {told}"
        logger.error("%s", fault, exc_info=error)
        self._health.note(StepResult({}, 0.0, 0.0, 0.0, fault=fault, runs=0))
        why = f"the step that moved this request's KV failed: {told}; the engine goes on"
        self.scheduler.give_up_moves(plan, why)
        self.scheduler.hand_over.load()
        if self.check_invariants:
            check_state(self.scheduler)
        spent = Durations(scheduled - begun, 0.0, 0.0, 0.0, time.perf_counter() - failed, failed - scheduled)
        record = self._record(self.clock(), (), spent, (), fault=fault)
        return (*early, *tell_ended_early(self.scheduler)), record

    def flush(self) -> Record | None:
        """A record of what changed since the last one without a step; None if nothing did."""
        if not self._has_news:
            return None
        return self._record(self.clock(), (), Durations(0.0, 0.0, 0.0, 0.0, 0.0), ())

    def drain_kv_events(self) -> tuple[KvEvent, ...]:
        """What changed in the prefix cache since the last call; nothing where events are not kept."""
        return () if self._kv_journal is None else self._kv_journal.drain()

    def snapshot(self) -> Snapshot:
        """The state as of the last record; `flush` first, or news that no record told would be in it."""
        if self._has_news:
            raise IllegalState("a snapshot is taken while changes wait for a record")
        scheduler = self.scheduler
        return Snapshot(
            seq=self.seq,
            time=self._time,
            engine=self.info,
            control=self.control,
            requests=tuple(map(_request_state, in_order(scheduler))),
            blocks=self.ledger.blocks,
            pool=self.ledger.pool,
            waste=self.ledger.waste(self._short_hole_blocks()),
            sharing=self.ledger.sharing,
            queue=self._queue,
            counters=self.counters,
            host_blocks=scheduler.kv.host.num_used,
        )

    @property
    def _has_news(self) -> bool:
        news = self.scheduler.events or self.pool.has_changes or self._cleared
        return bool(news) or self.control != self._reported

    def _learn(self, before: Counters, plan: StepPlan, result: StepResult, transfer: float) -> None:
        """Measure what preemption costs, by the steps that do little else."""
        prefill = self.counters.prefill_tokens - before.prefill_tokens
        decode = self.counters.decode_tokens - before.decode_tokens
        if prefill > decode:
            self.rates.computed(prefill + decode, result.prepare + result.forward)
        if not plan.copies:
            self.rates.swapped(plan.num_moves, transfer)
        elif len(plan.copies) == plan.num_moves:
            self.rates.copied(plan.num_moves, transfer)

    def _short_hole_blocks(self) -> int:
        if self.control.allocation != "reserved":
            return 0
        return self.pool.short_hole_blocks(self.scheduler.kv.reservation_blocks)

    def _record(
        self,
        now: float,
        rows: tuple[Row, ...],
        durations: Durations,
        copies: tuple[Copy, ...],
        parts: Parts | None = None,
        fault: str = "",
    ) -> Record:
        events, self.scheduler.events = self.scheduler.events, Events()
        blocks = self.pool.drain_journal()
        self.ledger.apply(blocks)
        self.ledger.join(events.joined)
        self._queue = self._waiting(now)
        self._time = now
        self._reported = self.control
        self.seq += 1
        cleared, self._cleared = self._cleared, 0
        record = Record(
            seq=self.seq,
            time=now,
            control=self.control,
            durations=durations,
            rows=rows,
            arrived=tuple(events.arrived),
            joined=tuple(events.joined),
            preempted=tuple(events.preempted),
            held=tuple(events.held),
            left=tuple(events.left),
            released=tuple(events.released),
            unreserved=tuple(events.unreserved),
            tables=self.scheduler.kv.drain_tables(),
            blocks=blocks,
            pool=self.ledger.pool,
            waste=self.ledger.waste(self._short_hole_blocks()),
            sharing=self.ledger.sharing,
            queue=self._queue,
            copies=copies,
            cleared=cleared,
            host_blocks=self.scheduler.kv.host.num_used,
            parts=parts,
            fault=fault,
            offered=tuple(events.offered),
            receiving=tuple(events.receiving),
            transferred=tuple(events.transferred),
        )
        self.counters = counted(self.counters, record)
        return record

    def _waiting(self, now: float) -> Queue:
        scheduler = self.scheduler
        length = len(scheduler.waiting) + len(scheduler.unforked)
        if not length:
            return Queue()
        eldest = [scheduler.waiting.oldest(), next(iter(scheduler.unforked), None)]
        age = max(now - request.arrived for request in eldest if request is not None)
        wait = scheduler.wait
        return Queue(length, age, wait if wait is not None and self._waits(wait.request) else None)

    def _waits(self, request_id: str) -> bool:
        request = self.scheduler.requests.get(request_id)
        return request is not None and request.status == "waiting"


def seeded(sampling: SamplingParams, sibling: int) -> SamplingParams:
    """Sibling `i` of a seeded request has the seed plus `i`, so that equal seeds do not make equal answers."""
    if sampling.seed is None or sibling == 0:
        return sampling
    return msgspec.structs.replace(sampling, seed=(sampling.seed + sibling) % 2**63)


def _request_state(request: Request) -> RequestState:
    return RequestState(
        request=request.id,
        status=request.status,
        prompt_tokens=request.prompt_length,
        max_tokens=request.sampling.max_tokens,
        num_tokens=request.num_tokens,
        computed_tokens=request.num_computed,
        cached_tokens=request.cached,
        preemptions=request.preemptions,
        arrived=request.arrived,
        first_token=request.first_token,
        allocation=request.allocation,
        reason=request.reason if request.status == "held" else None,
        table=tuple(request.table),
        parent=None if request.parent is None else request.parent.id,
        priority=request.scheduling.priority,
        swapped_tokens=request.num_swapped,
    )
