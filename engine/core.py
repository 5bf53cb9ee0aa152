"""The engine itself: plan a step, have it run, commit it, and say exactly what was done. No device, no I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from engine.block_pool import BlockPool, IllegalState
from engine.invariants import check_plan, check_state
from engine.kv_manager import KVManager
from engine.ledger import Ledger
from engine.messages import Output
from engine.plan import Runner, StepPlan, StepResult
from engine.protocol import (
    ENDINGS,
    Control,
    Counters,
    Durations,
    EngineInfo,
    FinishReason,
    Queue,
    Record,
    RequestState,
    Row,
    Snapshot,
)
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.scheduler import Events, Scheduler

MAX_NUM_SEQS = 4096
MAX_BATCHED_TOKENS = 1 << 20


class ControlError(ValueError):
    """A control setting that this engine cannot take; the message names the field and what is allowed."""


def check_control(control: Control, info: EngineInfo) -> None:
    """Raise ControlError if `control` cannot hold on an engine like `info`."""
    for field, most in (("max_num_seqs", MAX_NUM_SEQS), ("max_num_batched_tokens", MAX_BATCHED_TOKENS)):
        value = getattr(control, field)
        if not 1 <= value <= most:
            raise ControlError(f"{field} must be from 1 to {most}, got {value}")
    reservation = -(-info.max_model_len // info.block_size)
    if control.allocation == "reserved" and reservation > info.num_blocks:
        raise ControlError(
            f"allocation cannot be 'reserved': one reservation of max_model_len {info.max_model_len} needs "
            f"{reservation} blocks, and the pool has {info.num_blocks}"
        )


class EngineCore:
    """One engine over a runner. Everything happens between steps, in one thread; `step` never waits."""

    def __init__(
        self,
        runner: Runner,
        info: EngineInfo,
        control: Control,
        eos_token_ids: frozenset[int] = frozenset(),
        check_invariants: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_control(control, info)
        self.runner = runner
        self.info = msgspec.structs.replace(info, started=clock(), started_unix=time.time())
        self.check_invariants = check_invariants
        self.clock = clock
        self.pool = BlockPool(info.num_blocks, info.block_size)
        self.scheduler = Scheduler(KVManager(self.pool, info.max_model_len), control, info.max_model_len, eos_token_ids)
        self.ledger = Ledger(info.num_blocks, info.block_size, info.kv_bytes_per_token)
        self.counters = Counters()
        self.seq = 0
        self._arrivals = 0
        self._reported = control  # as the last record told it
        self._time = self.info.started
        self._queue = Queue()

    @property
    def control(self) -> Control:
        return self.scheduler.control

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.requests)

    def add(self, request_id: str, prompt: Sequence[int], sampling: SamplingParams) -> None:
        """Queue a request; raises RequestTooLarge (a ValueError) if it could never run."""
        request = Request(request_id, prompt, sampling, self.clock(), self._arrivals)
        self.scheduler.add(request)
        self._arrivals += 1

    def abort(self, request_id: str, reason: FinishReason = "abort") -> None:
        self.scheduler.abort(request_id, reason)

    def set_control(self, control: Control) -> int:
        """Switch settings from the next step on; returns its sequence number. Raises ControlError."""
        check_control(control, self.info)
        self.scheduler.set_control(control)
        return self.seq + 1

    def step(self) -> tuple[tuple[Output, ...], Record | None]:
        """Run one step; returns its news and its record (None if there was nothing to do or tell)."""
        begun = time.perf_counter()
        plan = self.scheduler.plan()
        if not plan.rows:
            return (), self.flush()
        if self.check_invariants:
            check_plan(self.scheduler, plan)
        requests = [self.scheduler.requests[row.request_id] for row in plan.rows]
        cached = [request.cached for request in requests]  # those that end give it up
        scheduled = time.perf_counter()
        result = self.runner.run(plan)
        ran = time.perf_counter()
        now = self.clock()
        ended = self.scheduler.commit(plan, result, now)
        if self.check_invariants:
            check_state(self.scheduler)
        rows = tuple(
            Row(
                row.request_id,
                row.kind,
                row.count,
                row.start + row.count,
                found,
                1 if row.request_id in result.sampled else 0,
            )
            for row, found in zip(plan.rows, cached, strict=True)
        )
        outputs = _outputs(plan, result, ended, requests)
        durations = Durations(
            scheduled - begun, result.prepare, result.forward, result.sample, time.perf_counter() - ran
        )
        return outputs, self._record(now, rows, durations)

    def flush(self) -> Record | None:
        """A record of what changed since the last one without a step; None if nothing did."""
        if not self._has_news:
            return None
        return self._record(self.clock(), (), Durations(0.0, 0.0, 0.0, 0.0, 0.0))

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
            requests=tuple(_request_state(r) for r in (*scheduler.running, *scheduler.waiting)),
            blocks=self.ledger.blocks,
            pool=self.ledger.pool,
            waste=self.ledger.waste(self._short_hole_blocks()),
            sharing=self.ledger.sharing,
            queue=self._queue,
            counters=self.counters,
        )

    @property
    def _has_news(self) -> bool:
        return bool(self.scheduler.events) or self.pool.has_changes or self.control != self._reported

    def _short_hole_blocks(self) -> int:
        if self.control.allocation != "reserved":
            return 0
        return self.pool.short_hole_blocks(self.scheduler.kv.reservation_blocks)

    def _record(self, now: float, rows: tuple[Row, ...], durations: Durations) -> Record:
        events, self.scheduler.events = self.scheduler.events, Events()
        blocks = self.pool.drain_journal()
        self.ledger.apply(blocks)
        for joined in events.joined:
            self.ledger.look_up(joined.looked_up_tokens, joined.cached_tokens, joined.resumed)
        waiting = self.scheduler.waiting
        self._queue = Queue(len(waiting), max((now - r.arrived for r in waiting[:1]), default=0.0))
        self._time = now
        self._reported = self.control
        self.seq += 1
        self.counters = _counted(self.counters, rows, events)
        return Record(
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
        )


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
        reason=request.reason,
        table=tuple(request.table),
    )


def _outputs(
    plan: StepPlan, result: StepResult, ended: dict[str, FinishReason], requests: Sequence[Request]
) -> tuple[Output, ...]:
    outputs = []
    for row, request in zip(plan.rows, requests, strict=True):
        finished = ended.get(row.request_id)
        token = result.sampled.get(row.request_id)
        if token is not None:
            outputs.append(
                Output(
                    row.request_id,
                    token.token_id,
                    token.logprob,
                    token.top,
                    finished,
                    token.token_id if finished == "stop" else None,
                    request.found,
                )
            )
        elif finished is not None:
            error = result.failed.get(row.request_id) if finished == "error" else None
            outputs.append(Output(row.request_id, finished=finished, error=error))
    return tuple(outputs)


def _counted(counters: Counters, rows: tuple[Row, ...], events: Events) -> Counters:
    counts: dict[str, int] = msgspec.structs.asdict(counters)
    counts["steps"] += bool(rows)
    counts["preemptions"] += len(events.preempted)
    for row in rows:
        counts[f"{row.kind}_tokens"] += row.tokens
        counts["sampled_tokens"] += row.sampled
    for ended in (*events.held, *events.left):
        counts[ENDINGS[ended.reason]] += 1
    return Counters(**counts)
