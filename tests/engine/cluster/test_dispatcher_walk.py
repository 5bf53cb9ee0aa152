"""Anything may happen to a cluster, in any order: no answer differs from one engine's, none is lost without a word,
and no engine keeps a block for anybody in the end."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from engine.cluster.protocol import ClusterControl
from engine.sampling_params import BeamParams, SamplingParams, SchedulingParams
from tests.engine.cluster.mirrors import LEASE_SECONDS, MirrorCluster

SYSTEM = [1, 2, 3, 4, 5, 6, 7, 8, 9]  # prompts begin alike


class Walk(RuleBasedStateMachine):
    @initialize(
        prefill=st.integers(0, 2),
        decode=st.integers(0, 2),
        replica=st.integers(0, 1),
        routing=st.sampled_from(["prefix", "round_robin"]),
    )
    def begin(self, prefill, decode, replica, routing):
        decode = decode or 1 - replica
        control = ClusterControl(True, routing, 4, prefill, decode, replica)
        self.some = MirrorCluster({"prefill": prefill, "decode": decode, "replica": replica}, control, 40)
        self.names = list(self.some.workers)

    def name(self, number):
        return self.names[number % len(self.names)]

    def live(self, number):
        live = list(self.some.dispatcher.live)
        return live[number % len(live)] if live else None

    @rule(
        shared=st.integers(0, 9),
        own=st.lists(st.integers(10, 14), min_size=1, max_size=9),
        max_tokens=st.integers(1, 12),
        n=st.integers(1, 3),
        seed=st.none() | st.integers(0, 3),
        timeout=st.none() | st.none() | st.integers(1, 20),
        scores=st.sampled_from([None, None, 0]),
    )
    def add(self, shared, own, max_tokens, n, seed, timeout, scores):
        sampling = SamplingParams(max_tokens, temperature=0.0, seed=seed, prompt_logprobs=scores)
        self.some.add([*SYSTEM[:shared], *own], sampling, n, SchedulingParams(timeout=timeout))

    @rule(own=st.lists(st.integers(10, 14), min_size=1, max_size=9), width=st.integers(2, 3))
    def search(self, own, width):
        self.some.add([*SYSTEM, *own], SamplingParams(6, temperature=0.0, beam=BeamParams(width)), width)

    @rule(order=st.lists(st.integers(0, 4), min_size=1, max_size=8), most=st.integers(0, 6))
    def work(self, order, most):
        for number in order:
            self.some.step(self.name(number))
            self.some.deliver(self.name(number), most)

    @rule(times=st.integers(1, 4))
    def all_work(self, times):
        for _ in range(times):
            self.some.tick()
            for name in self.names:
                self.some.step(name)
                self.some.deliver(name)

    @rule(times=st.integers(1, 6))
    def copy(self, times):
        for _ in range(times):
            self.some.tick()

    @rule(number=st.integers(0, 99), reason=st.sampled_from(["abort", "stop"]))
    def leave(self, number, reason):
        if (request := self.live(number)) is not None:
            has_tokens = self.some.dispatcher.live[request].journey.has_tokens  # no stop string is found before
            self.some.leave([request], reason if has_tokens else "abort")

    @rule(number=st.integers(0, 99))
    def leave_all(self, number):
        if (request := self.live(number)) is not None:
            self.some.leave(list(self.some.dispatcher.live[request].journey.live))

    @rule(number=st.integers(0, 99), whole=st.booleans())
    def cancel(self, number, whole):
        if (request := self.live(number)) is not None:
            self.some.dispatcher.cancel(self.some.dispatcher.live[request].answer if whole else request)

    @rule(number=st.integers(0, 4), told=st.integers(0, 3))
    def kill(self, number, told):
        self.some.kill(self.name(number), told)

    @rule(number=st.integers(0, 4))
    def restart(self, number):
        self.some.restart(self.name(number))

    @rule(number=st.integers(0, 4))
    def drain(self, number):
        self.some.drain(self.name(number))

    @rule(separate=st.booleans(), local_prefill=st.sampled_from([0, 4, 100]))
    def switch(self, separate, local_prefill):
        before = self.some.dispatcher.control
        control = ClusterControl(
            separate, before.routing, local_prefill, before.prefill, before.decode, before.replicas
        )
        self.some.dispatcher.control = control
        self.some.router.separate = separate

    @rule(seconds=st.sampled_from([0.5, 3.0, LEASE_SECONDS + 1]))
    def wait(self, seconds):
        self.some.clock.now += seconds
        self.some.dispatcher.review()

    def teardown(self):
        if hasattr(self, "some"):
            self.some.run()


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
