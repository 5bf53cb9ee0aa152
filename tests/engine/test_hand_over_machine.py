"""Two pure engines that hand requests over, in any order of whatever may happen to them: every answer is as it must be,
every offer is told once, and nothing is left."""

from __future__ import annotations

import os
from collections import Counter
from typing import Literal

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from engine.protocol import Control
from engine.sampling_params import SamplingParams, SchedulingParams
from tests.engine.handing import Handing, Side

REACHED: Counter[str] = Counter()
SIDES = st.sampled_from(["p", "d"])
CONTROLS = st.builds(
    Control,
    prefix_cache=st.sampled_from([True, True, False]),
    chunked_prefill=st.sampled_from([True, True, False]),
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.sampled_from([64, 16, 5, 1]),
    max_prefill_chunk=st.sampled_from([0, 0, 6]),
    scheduling_policy=st.sampled_from(["fcfs", "fcfs", "priority", "shortest_prefill", "fair"]),
    preempt=st.sampled_from(["recompute", "auto"]),
)
SCHEDULINGS = st.builds(
    SchedulingParams,
    priority=st.integers(0, 2),
    timeout=st.sampled_from([None, None, None, 0.05]),
    cache_salt=st.sampled_from([None, None, "a"]),
    prefix_cache=st.sampled_from([True, True, False]),
    client=st.sampled_from(["", "one", "other"]),
)


class HandOverMachine(RuleBasedStateMachine):
    """The model is `Handing`: it knows what every answer must be, and checks all invariants after every step."""

    @initialize(
        block_size=st.sampled_from([1, 2, 4, 16]),
        sizes=st.tuples(st.sampled_from([1.0, 1.5, 3.0]), st.sampled_from([1.0, 1.5, 3.0])),
        host_blocks=st.sampled_from([40, 3, 0]),
        lease=st.sampled_from([0.1, 30.0, 30.0, 30.0]),
        control=CONTROLS,
    )
    def start(
        self, block_size: int, sizes: tuple[float, float], host_blocks: int, lease: float, control: Control
    ) -> None:
        most = 32
        blocks = int(-(-most // block_size) * sizes[0]), int(-(-most // block_size) * sizes[1])
        self.both = Handing(blocks, block_size, most, control, host_blocks, lease)

    @rule(
        shared=st.integers(0, 14),
        own=st.lists(st.integers(0, 3), min_size=1, max_size=8),
        max_tokens=st.integers(1, 9),
        min_tokens=st.integers(0, 3),
        ignore_eos=st.booleans(),
        stop=st.lists(st.integers(0, 30), max_size=2),
        seed=st.sampled_from([None, 7]),
        scored=st.sampled_from([None, None, None, 0]),
        scheduling=SCHEDULINGS,
        siblings=st.sampled_from([0, 0, 1, 3]),
        whole=st.sampled_from([None, None, None, "p", "d"]),
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
        whole: Side | None,
    ) -> None:
        """A request that is to be handed over, or one that one engine serves as a whole."""
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0,
            seed=seed,
            min_tokens=min_tokens,
            ignore_eos=ignore_eos,
            stop_token_ids=tuple(stop),
            prompt_logprobs=scored,
        )
        prompt = [*range(shared), *own]
        self.both.add(prompt, sampling, siblings, scheduling, whole or "p", hand_over=whole is None)

    @rule(which=st.integers(0, 30), offered=st.sampled_from([True, True, True, False]), apart=st.booleans(), side=SIDES)
    def place(self, which: int, offered: bool, apart: bool, side: Side) -> None:
        """Those that were handed over go on, nearly always where their KV can be had."""
        if self.both.passing:
            passing = self.both.passing[which % len(self.both.passing)]
            to: Side = "d" if passing.offer is not None and offered else side
            self.both.place(passing, to, offered=offered, apart=apart)

    @rule(which=st.integers(0, 30), reason=st.sampled_from(["abort", "abort", "stop"]), during=SIDES, now=st.booleans())
    def abort(self, which: int, reason: Literal["abort", "stop"], during: Side, now: bool) -> None:
        live = sorted(self.both.live)
        if not live:
            return
        name = live[which % len(live)]
        if reason == "stop" and not self.both.live[name].tokens:
            reason = "abort"
        if now:
            self.both.abort(name, reason)
            self.both.check()
            return
        runner = self.both.cores[during].runner

        def leave() -> None:
            self.both.tick()
            if name in self.both.live:
                self.both.abort(name, reason)

        runner.during = leave  # type: ignore[attr-defined]
        self.both.step(during)
        runner.during = self.both.tick  # type: ignore[attr-defined]

    @rule(count=st.integers(1, 8), ticks=st.integers(0, 2), places=st.booleans())
    def run(self, count: int, ticks: int, places: bool) -> None:
        for _ in range(count):
            for passing in list(self.both.passing) if places else ():
                self.both.place(passing)
            for _ in range(ticks):
                self.both.tick()
            self.both.step("p")
            self.both.step("d")

    @rule(side=SIDES, count=st.integers(1, 6))
    def run_one(self, side: Side, count: int) -> None:
        for _ in range(count):
            self.both.step(side)

    @rule(count=st.integers(1, 30))
    def copy(self, count: int) -> None:
        for _ in range(count):
            self.both.tick()

    @rule(seconds=st.sampled_from([0.01, 0.01, 0.1, 31.0]))
    def wait(self, seconds: float) -> None:
        self.both.clock.now += seconds

    @rule(which=st.integers(0, 30))
    def fail_transfer(self, which: int) -> None:
        connector = self.both.connectors["d"]
        if moving := sorted(connector.jobs):
            connector.fail(moving[which % len(moving)], "it broke off")

    @rule(answer=st.sampled_from(["all", "all", "whole", "nothing", "unreadable"]))
    def answer(self, answer: Literal["all", "whole", "nothing", "unreadable"]) -> None:
        self.both.connectors["d"].answer = answer

    @rule(
        side=SIDES,
        method=st.sampled_from(["export", "release", "available", "allocated", "load", "cancel", "poll"]),
        times=st.integers(1, 2),
    )
    def break_connector(self, side: Side, method: str, times: int) -> None:
        breaks = self.both.connectors[side].breaks
        if method != "poll" or not breaks[method]:  # the third time in a row it would end the engine
            breaks[method] = times

    @rule(releases=st.sampled_from([True, True, False]))
    def forget_to_release(self, releases: bool) -> None:
        self.both.releases = releases

    @rule(side=SIDES, chance=st.integers(0, 3))
    def restart(self, side: Side, chance: int) -> None:
        if chance:
            return
        self.count(side)
        self.both.restart(side)
        self.both.check()
        REACHED["restarts"] += 1

    @rule(side=SIDES, control=CONTROLS, swap=st.booleans())
    def switch(self, side: Side, control: Control, swap: bool) -> None:
        if swap and self.both.host_blocks:
            control = msgspec.structs.replace(control, preempt="swap")
        self.both.cores[side].set_control(control)

    @rule(side=SIDES)
    def clear_cache(self, side: Side) -> None:
        self.both.cores[side].clear_cache()
        self.both.check()

    @rule(side=SIDES, which=st.integers(0, 30), swap=st.booleans())
    def preempt(self, side: Side, which: int, swap: bool) -> None:
        core = self.both.cores[side]
        if swap and core.info.num_host_blocks:
            core.set_control(msgspec.structs.replace(core.control, preempt="swap"))
        running = [request for request in core.scheduler.running if request.table]
        if running:
            core.scheduler.preempt(running[which % len(running)])
            self.both.step(side)

    @rule(side=SIDES, kind=st.sampled_from(["compute", "move"]))
    def fail_step(self, side: Side, kind: Literal["compute", "move"]) -> None:
        core, both = self.both.cores[side], self.both
        core.runner.fault, both.costly = kind, True  # type: ignore[attr-defined]
        _, record = both.step(side)
        core.runner.fault, core._health.failures = "", 0  # type: ignore[attr-defined]
        both.costly = False
        REACHED[f"faults of {kind}"] += record is not None and bool(record.fault)

    def teardown(self) -> None:
        if not hasattr(self, "both"):
            return
        both = self.both
        for side in ("p", "d"):
            both.cores[side].set_control(msgspec.structs.replace(both.cores[side].control, max_num_batched_tokens=16))
        both.releases = True
        for connector in both.connectors.values():
            connector.breaks.clear()
        for core in both.cores.values():  # whose release was forgotten
            core.release(
                [
                    lease
                    for lease in core.scheduler.hand_over.sending
                    if lease not in both.placed
                    and not any(passing.offer is not None and passing.offer.lease == lease for passing in both.passing)
                ]
            )
        both.run()
        REACHED.update(both.reached)
        REACHED.update(f"ends by {reason}" for reason in both.ends.values())
        for side in ("p", "d"):
            self.count(side)

    def count(self, side: Side) -> None:
        counters = self.both.cores[side].counters
        for name in ("handed_over", "received", "received_blocks", "transfers_failed", "preemptions", "forks"):
            REACHED[f"{side}: {name}"] += getattr(counters, name)
        for record in self.both.records[side]:
            REACHED.update(f"{side}: waits for {record.queue.head.cause}" for _ in range(1) if record.queue.head)


STEPS = int(os.environ.get("PAGED_TOP_STATE_EXAMPLES", "60"))
HandOverMachine.TestCase.settings = settings(
    max_examples=STEPS, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHandOverMachine = HandOverMachine.TestCase
TestHandOverMachine.pytestmark = [pytest.mark.timeout(0 if STEPS > 1000 else 300)]  # type: ignore[attr-defined]


def test_the_machine_came_to_everything():
    """Runs after the machine: what it never reaches it does not test."""
    if not REACHED:
        pytest.skip("the machine has not run")
    print(dict(REACHED))
    wanted = ["taken", "restarts", "faults of compute", "faults of move", "p: handed_over", "p: transfers_failed"]
    wanted += ["d: received", "d: received_blocks", "d: transfers_failed", "d: preemptions", "d: forks"]
    causes = ["the request has ended", "it has expired", "its engine is gone", "it broke off", "it cannot be read"]
    wanted += [f"not taken: {cause}" for cause in causes]
    wanted += [f"ends by {reason}" for reason in ("stop", "length", "abort", "deadline", "error")]
    if STEPS >= 600:  # a short run is chance
        assert [what for what in wanted if not REACHED[what]] == []
