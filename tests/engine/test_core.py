"""The whole pure engine against a simple model: any order of arrivals, aborts and switches, every invariant, always."""

from __future__ import annotations

import os
from collections import Counter
from typing import Literal, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.block_pool import IllegalState
from engine.books import check_books
from engine.core import ControlError, EngineCore, seeded
from engine.invariants import InvariantViolated, check_state
from engine.messages import BeamOutput
from engine.protocol import Control, FinishReason, Parts, PoolTotals, Record, WaitCause, decode_item, encode
from engine.request import RequestTooLarge
from engine.sampling_params import BeamParams, SamplingParams, SchedulingParams
from tests.engine.kv_fold import KvFold
from tests.engine.mirror import MirrorRunner, expected_beams, expected_output, greedy, mirror_core
from tui.checks import check_record
from tui.fold import EngineFold, MissingRecords

CONTROLS = st.builds(
    Control,
    batching=st.sampled_from(["continuous", "continuous", "static"]),
    allocation=st.sampled_from(["paged", "paged", "reserved"]),
    reserved_fit=st.sampled_from(["first", "best"]),
    prefix_cache=st.sampled_from([True, True, False]),
    chunked_prefill=st.booleans(),
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.sampled_from([16, 64, 5, 2, 1]),
    max_prefill_chunk=st.sampled_from([0, 0, 1, 6]),
    scheduling_policy=st.sampled_from(["fcfs", "priority", "shortest_prefill", "fair"]),
    max_wait=st.sampled_from([0.0, 0.01, 10.0]),
    preempt=st.sampled_from(["recompute", "auto"]),
)
SCHEDULINGS = st.builds(
    SchedulingParams,
    priority=st.integers(0, 2),
    timeout=st.sampled_from([None, None, None, 0.02]),
    cache_salt=st.sampled_from([None, None, "a", "b"]),
    prefix_cache=st.sampled_from([True, True, False]),
)
BEAMS = st.builds(
    BeamParams,
    width=st.integers(1, 4),
    length_penalty=st.sampled_from([-1.0, 0.0, 1.0, 2.0]),
    early_stopping=st.sampled_from([True, False, "never"]),
)


REACHED: Counter[str] = Counter()  # what the machine's runs have come to


class EngineMachine(RuleBasedStateMachine):
    """Drives an engine whose device checks every context; the model is `expected_output`, and the fold."""

    @initialize(
        block_size=st.sampled_from([1, 2, 4, 16]),
        max_model_len=st.sampled_from([6, 20, 48]),
        reservations=st.sampled_from([1.0, 1.5, 2.0, 4.0]),
        host_blocks=st.sampled_from([100, 100, 3, 0]),
        control=CONTROLS,
    )
    def start(
        self, block_size: int, max_model_len: int, reservations: float, host_blocks: int, control: Control
    ) -> None:
        num_blocks = int(-(-max_model_len // block_size) * reservations)
        self.core = mirror_core(num_blocks, block_size, max_model_len, control, host_blocks, kv_events=True)
        self.kv_fold = KvFold()
        self.fold = EngineFold.from_snapshot(self.core.snapshot())
        self.wanted: dict[str, tuple[list[int], str]] = {}
        self.searched: dict[str, tuple[BeamOutput, ...]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.aborted: set[str] = set()
        self.added = 0
        self.interrupted = False  # requests end while a step runs, the next in turn perhaps
        self.costly = False  # a fault may cost requests their answers

    @rule(
        shared=st.integers(0, 40),
        own=st.lists(st.integers(0, 3), min_size=1, max_size=12),
        max_tokens=st.integers(1, 30),
        min_tokens=st.integers(0, 4),
        ignore_eos=st.booleans(),
        stop=st.lists(st.integers(0, 30), max_size=2),
        seed=st.sampled_from([None, 7]),
        scored=st.sampled_from([None, None, 0]),
        scheduling=SCHEDULINGS,
        siblings=st.sampled_from([0, 0, 1, 3]),
        beam=st.one_of(st.none(), st.none(), BEAMS),
    )
    def add(
        self,
        shared: int,
        own: list[int],
        max_tokens: int,
        min_tokens: int,
        ignore_eos: bool,
        stop: list[int],
        seed: int | None,
        scored: int | None,
        scheduling: SchedulingParams,
        siblings: int,
        beam: BeamParams | None,
    ) -> None:
        name, prompt = f"r{self.added}", [*range(shared), *own]
        if beam is not None:
            siblings = beam.width - 1
        names = [name, *(f"{name}.{i + 1}" for i in range(siblings))]
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0,
            seed=seed,
            min_tokens=min_tokens,
            ignore_eos=ignore_eos,
            stop_token_ids=tuple(stop),
            prompt_logprobs=scored,
            beam=beam,
        )
        limit, size = self.core.info.max_model_len, self.core.info.block_size
        longest = -(-min(limit, len(prompt) + max_tokens) // size)
        too_wide = beam is not None and beam.width * longest > self.core.info.num_blocks
        if len(prompt) >= limit or too_wide:
            with pytest.raises(RequestTooLarge):
                self.core.add(name, prompt, sampling, scheduling, names[1:])
            return
        self.core.add(name, prompt, sampling, scheduling, names[1:])
        self.added += 1
        if beam is not None:
            self.searched[name] = expected_beams(prompt, sampling, limit)
            return
        for index, one in enumerate(names):
            self.wanted[one] = expected_output(prompt, seeded(sampling, index), limit)
            self.tokens[one] = []

    @rule(which=st.integers(0, 30), during=st.booleans())
    def abort(self, which: int, during: bool) -> None:
        live = sorted(self.wanted.keys() | self.searched.keys())
        if not live:
            return
        name = live[which % len(live)]
        if during:
            runner = self.core.runner
            assert isinstance(runner, MirrorRunner)
            runner.during = lambda: self.core.abort(name)
            self.interrupted = True
            self.step()
            self.interrupted = False
            runner.during = lambda: None
        else:
            self.core.abort(name)
        if name not in self.core.scheduler.requests:
            self.wanted.pop(name, None)
            self.searched.pop(name, None)

    @rule(
        kind=st.sampled_from(["compute", "move", "move"]),
        which=st.integers(0, 30),
        abort=st.sampled_from([False, False, True]),
        batch=st.integers(0, 3),
    )
    def fail(self, kind: Literal["compute", "move"], which: int, abort: bool, batch: int) -> None:
        """A step that computes fails, or the next one that moves blocks; somebody leaves meanwhile, perhaps."""
        for index in range(batch):
            self.add_plain([*range(20), 40 + index], 20)
        live, runner = sorted(self.wanted.keys() | self.searched.keys()), self.core.runner
        assert isinstance(runner, MirrorRunner)
        runner.fault, self.costly, self.interrupted = kind, True, True
        leaving = live[which % len(live)] if live and abort else None
        runner.during = lambda: leaving and self.core.abort(leaving)
        failures = self.core._health.failures
        for _ in range(10):
            self.step()
            if self.core._health.failures > failures or not self.core.has_work:
                break
        if self.core._health.failures > failures:
            REACHED[f"faults of {kind}"] += 1
        self.core._health.failures = 0
        runner.fault, self.costly, self.interrupted, runner.during = "", False, False, lambda: None
        if leaving is not None and leaving not in self.core.scheduler.requests:
            self.wanted.pop(leaving, None)
            self.searched.pop(leaving, None)

    @rule(most=st.sampled_from([0, 1, 1, 2, 3, 7]), longest=st.sampled_from([1 << 30, 1 << 30, 9]))
    def run_short_of_memory(self, most: int, longest: int) -> None:
        """For a few steps there is memory for few tokens at once: this costs no answer if it is enough for one."""
        runner = self.core.runner
        assert isinstance(runner, MirrorRunner)
        runner.most_tokens, runner.longest = most, longest
        self.costly = self.interrupted = most == 0 or longest < 100
        for _ in range(2):
            self.step()
        self.core._health.failures = 0
        runner.most_tokens = runner.longest = 1 << 30
        self.costly = self.interrupted = False

    @rule(which=st.integers(0, 30))
    def stop(self, which: int) -> None:
        """A stop string was found in the text of one that runs."""
        running = [r.id for r in self.core.scheduler.running if r.reason is None and r.num_generated and not r.beams]
        if running:
            name = running[which % len(running)]
            self.core.abort(name, "stop")
            del self.wanted[name]

    @rule(control=CONTROLS, swap=st.booleans())
    def switch(self, control: Control, swap: bool) -> None:
        if swap and self.core.info.num_host_blocks:
            control = msgspec.structs.replace(control, preempt="swap")
        seq = self.core.set_control(control)
        assert seq == self.core.seq + 1

    @rule(tokens=st.sampled_from([1, 3]), rows=st.sampled_from([1, 2]))
    def shrink(self, tokens: int, rows: int) -> None:
        """The budget and the batch get smaller than what runs."""
        small = msgspec.structs.replace(self.core.control, max_num_batched_tokens=tokens, max_num_seqs=rows)
        self.core.set_control(small)

    @rule()
    def clear_cache(self) -> None:
        self.core.clear_cache()
        assert not len(self.core.pool.cache)

    @rule(which=st.integers(0, 30), swap=st.booleans())
    def preempt(self, which: int, swap: bool) -> None:
        """Preemption at any step's beginning: the plan's own comes where memory runs out."""
        scheduler = self.core.scheduler
        if swap and self.core.info.num_host_blocks:
            self.core.set_control(msgspec.structs.replace(self.core.control, preempt="swap"))
        running = [r for r in scheduler.running if r.reason is None and r.table]
        if running:
            scheduler.preempt(running[which % len(running)])
            self.step()

    @rule(prompts=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 24)), min_size=2, max_size=5))
    def add_many(self, prompts: list[tuple[int, int]]) -> None:
        """Requests that begin alike and go on for long: they share, and run out of memory together."""
        for shared, max_tokens in prompts:
            self.add_plain([*range(shared), 40, *range(9)], max_tokens)

    @rule(first=st.integers(41, 90))
    def flood(self, first: int) -> None:
        """A prompt like no other, as long as can be: it leaves the pool full of cached blocks."""
        length = self.core.info.max_model_len - 2
        self.add_plain([first, *([200] * length)][:length], 1)

    def add_plain(self, prompt: list[int], max_tokens: int) -> None:
        sampling, limit = greedy(max_tokens, ignore_eos=True), self.core.info.max_model_len
        if len(prompt) < limit:
            name = f"r{self.added}"
            self.core.add(name, prompt, sampling)
            self.wanted[name], self.tokens[name] = expected_output(prompt, sampling, limit), []
            self.added += 1

    @rule(count=st.integers(1, 12))
    def run(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        outputs, record = self.core.step()
        self.check_kv_events()
        if record is not None:
            self.tell(record)
            assert self.core.flush() is None, "a step's record did not tell all: a snapshot cannot follow it"
        for output in outputs:
            name = output.request
            if output.token_id is not None:
                self.tokens[name].append(output.token_id)
            if output.finished in ("abort", "deadline"):
                self.wanted.pop(name, None)
                self.searched.pop(name, None)
            elif output.finished == "error":
                assert self.costly, "a request fails and nothing was wrong"
                assert output.error
                if name in self.wanted:
                    assert self.tokens[name] == self.wanted.pop(name)[0][: len(self.tokens[name])]
                self.searched.pop(name, None)
            elif output.finished is not None and output.beams:
                assert output.beams == self.searched.pop(name)
                REACHED["beam searches"] += 1
            elif output.finished is not None:
                assert (self.tokens[name], output.finished) == self.wanted.pop(name)

    def check_kv_events(self) -> None:
        self.kv_fold.take(self.core.drain_kv_events())
        self.kv_fold.check(self.core)
        REACHED["runs of KV blocks"] = max(REACHED["runs of KV blocks"], self.kv_fold.runs)
        REACHED["KV blocks removed"] = max(REACHED["KV blocks removed"], self.kv_fold.removed)

    def tell(self, record: Record) -> None:
        decoded = decode_item(encode(record))
        assert decoded == record
        check_record(record, self.fold)
        self.fold.apply(record)
        REACHED["steps in parts"] += "parts" in record.fault
        waste, sharing, info = record.waste, record.sharing, self.core.info
        assert sum(msgspec.structs.astuple(record.pool)) == info.num_blocks
        assert waste.held == waste.filled + waste.internal == sharing.physical_blocks * info.block_size
        assert waste.external <= (record.pool.free + record.pool.cached) * info.block_size
        assert sharing.saved_blocks == sharing.logical_blocks - sharing.physical_blocks >= 0
        assert sharing.saved_bytes == sharing.saved_blocks * info.block_size * info.kv_bytes_per_token
        tables = [state.table for state in self.fold.requests.values()]
        assert sharing.logical_blocks == sum(map(len, tables))
        assert sharing.physical_blocks == len({block for table in tables for block in table})
        assert sum(row.tokens for row in record.rows if row.kind != "held") <= max(
            record.control.max_num_batched_tokens, info.max_model_len + len(record.rows)
        )
        assert len(record.copies) == len({copy.target for copy in record.copies})
        REACHED.update(f"waits for {record.queue.head.cause}" for _ in range(1) if record.queue.head)
        REACHED.update(f"preempted by {lost.by}" for lost in record.preempted)
        REACHED["copies"] += len(record.copies)
        REACHED["forks"] += sum(joined.parent is not None for joined in record.joined)
        REACHED["blocks brought back"] += sum(joined.swapped_blocks for joined in record.joined)
        REACHED["tokens copied out of other blocks"] += sum(joined.copied_tokens for joined in record.joined)
        REACHED.update(f"ends by {left.reason}" for left in (*record.left, *record.held))
        head = record.queue.head
        if head is not None:
            assert self.fold.requests[head.request].status == "waiting"
        elif record.rows and any(s.status == "waiting" and s.parent is None for s in self.fold.requests.values()):
            assert self.interrupted, "a request waits and nobody knows why"

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "core"):
            REACHED["machine steps"] += 1
            check_state(self.core.scheduler)
            check_books(self.core.scheduler, self.core.ledger)
            record = self.core.flush()
            if record is not None:
                self.tell(record)
                check_books(self.core.scheduler, self.core.ledger)
            assert self.fold.to_snapshot() == self.core.snapshot()
            self.check_kv_events()

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        for _ in range(20_000):
            if not self.core.has_work:
                break
            self.step()
        assert not self.core.has_work, "some request never ends"
        self.step()
        assert not self.wanted, "some request ended without a word"
        assert not self.searched, "some beam search ended without a word"
        assert self.core.scheduler.kv.host.num_used == 0
        assert self.core.pool.num_available == self.core.info.num_blocks


STEPS = int(os.environ.get("PAGED_TOP_STATE_EXAMPLES", "60"))
EngineMachine.TestCase.settings = settings(
    max_examples=STEPS, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.pytestmark = [pytest.mark.timeout(0 if STEPS > 1000 else 300)]  # type: ignore[attr-defined]


def test_the_machine_came_to_everything():
    """Runs after the machine: what it never reaches it does not test."""
    if not REACHED:
        pytest.skip("the machine has not run")
    print(dict(REACHED))
    causes = [f"waits for {cause}" for cause in get_args(WaitCause)]
    ends = [f"ends by {reason}" for reason in get_args(FinishReason)]
    wanted = ["copies", "forks", "blocks brought back", "tokens copied out of other blocks", "beam searches"]
    wanted += ["runs of KV blocks", "KV blocks removed"]
    wanted += ["preempted by swap", "preempted by recompute", "faults of compute", "faults of move", "steps in parts"]
    assert REACHED["machine steps"] >= 30 * STEPS
    if STEPS >= 6000:
        assert REACHED["machine steps"] >= 200_000
    if STEPS >= 1000:  # a short run is chance
        assert [what for what in (*causes, *ends, *wanted) if not REACHED[what]] == []


def test_a_snapshot_is_refused_while_changes_wait_for_a_record():
    core = mirror_core()
    core.add("a", [1], greedy(1))
    with pytest.raises(IllegalState):
        core.snapshot()
    record = core.flush()
    assert record is not None
    assert [arrived.request for arrived in record.arrived] == ["a"]
    assert record.queue.length == 1
    assert record.queue.oldest_age > 0
    assert core.snapshot().requests[0].status == "waiting"


def test_a_record_says_where_the_forward_went():
    core = mirror_core()
    parts = Parts(norm=0.1, qkv=0.2, rope=0.3, attention=0.4, output=0.5, gate_up=0.6, down=0.7, head=0.8)
    compute = core.runner.compute
    core.runner.compute = lambda rows: msgspec.structs.replace(compute(rows), parts=parts)
    core.add("a", [1, 2, 3], SamplingParams(max_tokens=2))
    _, record = core.step()
    assert decode_item(encode(record)).parts == parts
    core.abort("a")
    _, record = core.step()
    assert record.left
    assert record.parts is None


def test_the_fold_refuses_a_record_that_does_not_follow():
    core = mirror_core()
    fold = EngineFold(core.snapshot())
    core.add("a", [1], greedy(3, ignore_eos=True))
    core.step()
    _, record = core.step()
    assert record is not None
    with pytest.raises(MissingRecords):
        fold.apply(record)


def test_an_idle_engine_has_nothing_to_tell():
    core = mirror_core()
    assert core.step() == ((), None)
    assert core.snapshot().pool == PoolTotals(free=32)


def test_a_soak_of_2000_requests_returns_every_block():
    # Invariant 7.
    core = mirror_core(num_blocks=24, max_model_len=32, control=Control(max_num_seqs=6))
    core.check_invariants = False
    for index in range(2000):
        core.add(f"r{index}", [index % 7] * (1 + index % 20), greedy(1 + index % 11))
    while core.has_work:
        core.step()
    check_state(core.scheduler)
    assert core.pool.num_available == 24
    assert core.counters.stopped + core.counters.length_capped == 2000


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_a_request_without_usable_logits_fails_alone(batching):
    core = mirror_core(control=Control(batching=batching))
    fold = EngineFold.from_snapshot(core.snapshot())
    runner = core.runner
    assert isinstance(runner, MirrorRunner)
    core.add("good", [1, 2], greedy(6, ignore_eos=True))
    core.add("bad", [3, 4], greedy(6, ignore_eos=True))
    tokens: dict[str, list[int]] = {"good": [], "bad": []}
    ends = {}
    while core.has_work:
        runner.failing = {"bad"} if tokens["bad"] else set()
        outputs, record = core.step()
        assert record is not None
        fold.apply(record)
        assert fold.to_snapshot() == core.snapshot()
        for output in outputs:
            tokens[output.request] += [] if output.token_id is None else [output.token_id]
            if output.finished is not None:
                ends[output.request] = (output.finished, output.error)
    assert ends == {"good": ("length", None), "bad": ("error", "no token")}
    assert tokens["good"] == expected_output([1, 2], greedy(6, ignore_eos=True), 64)[0]
    assert len(tokens["bad"]) == 1
    assert (core.counters.failed, core.counters.sampled_tokens) == (1, 7)
    assert core.pool.num_available == 32


def broken(core: EngineCore, how: str) -> None:
    pool, request = core.pool, core.scheduler.running[0]
    if how == "references":
        pool.references[request.table[0]] += 1
    elif how == "filled":
        pool.filled[request.table[-1]] -= 1
    elif how == "queue":
        pool.queue.remove(pool.queue.first())
    elif how == "hash":
        pool.cache.by_hash.clear()
    elif how == "computed":
        request.num_computed += 1
    elif how == "lists":
        core.scheduler.running.clear()


@pytest.mark.parametrize("how", ["references", "filled", "queue", "hash", "computed", "lists"])
def test_broken_books_are_noticed(how):
    core = mirror_core()
    core.add("a", list(range(10)), greedy(9, ignore_eos=True))
    core.step()
    check_state(core.scheduler)
    broken(core, how)
    with pytest.raises((InvariantViolated, KeyError)):
        check_state(core.scheduler)


def test_an_engine_is_not_built_with_control_it_cannot_keep():
    with pytest.raises(ControlError, match="reserved"):
        mirror_core(num_blocks=3, block_size=4, max_model_len=64, control=Control(allocation="reserved"))
