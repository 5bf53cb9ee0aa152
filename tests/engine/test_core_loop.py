"""The main loop survives what is one request's matter, and stops where the books may be wrong."""

from __future__ import annotations

import queue
from typing import Any

import pytest

from engine import core_loop
from engine.books import check_books
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.core_loop import ENTRIES_EVERY, IDLE_SECONDS, CoreLoop, Wake
from engine.faults import Faults
from engine.framing import BadFrame
from engine.invariants import InvariantViolated
from engine.messages import (
    Abort,
    Add,
    GetSnapshot,
    ListRequests,
    Output,
    Outputs,
    Pulled,
    Release,
    Reply,
    Shutdown,
    Start,
    Step,
    Taken,
)
from engine.protocol import Record, decode_item, decode_snapshot
from engine.request import RequestTooLarge
from engine.sampling_params import BeamParams, SamplingParams
from engine.transfer.parent import ParentConnector
from tests.engine.handing import Handing
from tests.engine.loops import Talk, loop_of, recorder_of
from tests.engine.mirror import greedy, mirror_core
from tests.engine.test_books import exchange_hashes
from tests.engine.test_invariants import refer_once_more
from tui.fold import EngineFold


class FullCore:
    """A core that no request fits."""

    has_work = False

    def add(self, *_: object, **__: object) -> None:
        raise RequestTooLarge("too large")

    def step(self) -> tuple[tuple[Output, ...], None]:
        return (), None

    def tells_an_end_of(self, _: object) -> bool:
        return False

    def drain_taken(self) -> tuple[Taken, ...]:
        return ()


def test_a_request_that_can_never_fit_is_refused_and_the_loop_goes_on() -> None:
    talk = Talk(
        Add("a", (1,), SamplingParams(1), siblings=("b", "c")),
        Add("d", (1,), SamplingParams(1, beam=BeamParams(2)), siblings=("e",)),  # of beams one reports
        Shutdown(),
    )
    loop_of(FullCore(), talk.inbox, talk.sender).run()
    assert talk.told() == [
        Outputs(tuple(Output(request, finished="error", error="too large", refused=True) for request in reporting))
        for reporting in ("abc", "d")
    ]


class IdleCore:
    """A core with a request that can never run, to see that the loop does not spin on it."""

    has_work = True
    steps = 0

    def step(self) -> tuple[tuple[Output, ...], None]:
        self.steps += 1
        assert self.steps < 100, "the loop spins"
        return (), None

    def drain_taken(self) -> tuple[Taken, ...]:
        return ()


class WatchedInbox:
    """Empty until it has been waited at a few times; keeps the time-outs of the waits."""

    def __init__(self) -> None:
        self.waits: list[float | None] = []

    def get(self, timeout: float | None = None) -> Shutdown:
        self.waits.append(timeout)
        if len(self.waits) < 4:
            raise queue.Empty
        return Shutdown()

    def get_nowait(self) -> Shutdown:
        raise queue.Empty


def test_a_loop_without_progress_waits_for_frames_before_every_step() -> None:
    core, inbox, talk = IdleCore(), WatchedInbox(), Talk()
    loop_of(core, inbox, talk.sender).run()
    assert inbox.waits == [IDLE_SECONDS] * 4
    assert core.steps == 3
    talk.told()


class ClumsyCore(EngineCore):
    """Fails at requests of certain names, before it has changed anything, halfway, or when it is done."""

    def add(self, request_id: str, *rest: Any, **more: Any) -> None:
        if request_id == "early":
            raise KeyError(request_id)
        super().add(request_id, *rest, **more)
        if request_id == "late":
            raise KeyError(request_id)
        if request_id == "halfway":
            self.scheduler.waiting.remove(self.scheduler.requests[request_id])
            raise KeyError(request_id)

    def abort(self, request_id: str, *rest: Any) -> None:
        if request_id == "stubborn":
            raise KeyError(request_id)
        super().abort(request_id, *rest)


def clumsy_core() -> EngineCore:
    core = mirror_core()
    core.__class__ = ClumsyCore
    return core


def outputs_of(told: list[Any]) -> list[Output]:
    return [output for message in told if isinstance(message, Outputs) for output in message.outputs]


@pytest.mark.parametrize("name", ["early", "late"])
def test_a_request_that_the_engine_stumbles_over_ends_and_the_others_go_on(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    core = clumsy_core()
    core.add("other", [1], greedy(5, ignore_eos=True))
    talk = Talk(Add(name, (1, 2), greedy(3, ignore_eos=True), siblings=(f"{name}.1",)))
    loop = loop_of(core, talk.inbox, talk.sender)
    while core.has_work:
        loop._drain()
        loop._step()
    outputs = outputs_of(talk.told())
    ended = {output.request: output.finished for output in outputs if output.finished}
    assert ended == {"other": "length", name: "error", f"{name}.1": "error"}
    (error,) = {output.error for output in outputs if output.finished == "error"}
    assert error == "the engine could not take this request (KeyError)"
    assert not any(output.refused for output in outputs)
    assert f"request {name} could not be queued; the engine goes on" in caplog.text
    assert core.pool.num_available == core.info.num_blocks


def test_a_request_that_leaves_the_books_in_disorder_stops_the_engine() -> None:
    core = clumsy_core()
    talk = Talk(Add("halfway", (1, 2), greedy(3)))
    with pytest.raises(InvariantViolated, match="in no list"):
        loop_of(core, talk.inbox, talk.sender).run()
    assert talk.told() == []


def test_an_abort_that_fails_costs_no_other_request(caplog: pytest.LogCaptureFixture) -> None:
    core = clumsy_core()
    for name in ("stubborn", "other"):
        core.add(name, [1], greedy(50, ignore_eos=True))
    talk = Talk(Abort(("stubborn", "other"), "abort"), Shutdown())
    loop_of(core, talk.inbox, talk.sender).run()
    assert set(core.scheduler.requests) == {"stubborn"}
    assert "request stubborn could not be ended" in caplog.text
    talk.told()


def test_a_call_that_fails_is_answered_so_and_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("engine.core_loop.live_requests", fail)
    talk = Talk(ListRequests(1), GetSnapshot(2), Shutdown())
    loop_of(mirror_core(), talk.inbox, talk.sender).run()
    failed, snapshot = talk.told()
    assert failed == Reply(1, 0, failed="the engine could not answer: KeyError: 'lost'")
    assert isinstance(snapshot, Reply)
    assert decode_snapshot(snapshot.json).seq == 0


@pytest.mark.parametrize("message", [BadFrame("garbage"), Start(EngineConfig())])
def test_what_makes_no_sense_ends_the_loop(message: Any) -> None:
    talk = Talk(message)
    with pytest.raises(BadFrame):
        loop_of(mirror_core(), talk.inbox, talk.sender).run()
    assert talk.told() == []


def broken_after(core: EngineCore, at: int, breaking: Any, check_every: int) -> tuple[Talk, CoreLoop]:
    core.check_invariants = False
    talk = Talk()
    loop = loop_of(core, talk.inbox, talk.sender, check_every=check_every)
    for _ in range(at):
        loop._step()
    breaking(core)
    return talk, loop


def run_to_the_violation(core: EngineCore, at: int, breaking: Any, check_every: int) -> list[Record]:
    """Break the books after step `at`; the records that were told."""
    talk, loop = broken_after(core, at, breaking, check_every)
    with pytest.raises(InvariantViolated):
        loop.run()
    told = talk.told()
    records = [decode_item(message.json) for message in told if isinstance(message, Step)]
    assert all(isinstance(record, Record) for record in records)
    steps_with_outputs = [message for message in told if isinstance(message, Outputs)]
    assert len(steps_with_outputs) == len(records)
    return records  # type: ignore[return-value]


@pytest.mark.parametrize(("check_every", "last"), [(1, 7), (5, 9), (100, 99)])
def test_nothing_is_told_from_the_step_on_whose_check_fails(check_every: int, last: int) -> None:
    core = mirror_core(64, 4, 240)
    core.add("a", [1] * 9, greedy(200, ignore_eos=True))
    records = run_to_the_violation(core, 7, refer_once_more, check_every)
    assert records[-1].seq == last


def test_after_a_step_that_failed_the_books_are_looked_at_whatever_was_asked() -> None:
    core = mirror_core(64, 4, 240)
    core.add("a", [1] * 9, greedy(200, ignore_eos=True))
    talk, loop = broken_after(core, 7, exchange_hashes, check_every=0)
    loop._step()
    core.runner = Faults(["step-error@1"]).wrap(core.runner)
    with pytest.raises(InvariantViolated, match="cannot be found by its hash"):
        loop._step()
    assert [message.seq for message in talk.told() if isinstance(message, Step)][-1] == 8


def test_where_memory_is_short_for_long_the_books_are_looked_at_when_that_begins_and_when_it_costs_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They take longer to look at than many a step."""
    looked: list[int] = []
    core = mirror_core(64, 4, 240)

    def noting(scheduler: Any, ledger: Any) -> None:
        looked.append(core.seq)
        check_books(scheduler, ledger)

    monkeypatch.setattr(core_loop, "check_books", noting)
    for name in ("a", "b"):
        core.add(name, [1] * 9, greedy(30, ignore_eos=True))
    talk = Talk()
    loop = loop_of(core, talk.inbox, talk.sender)
    runner: Any = core.runner
    for short in [True] * 6 + [False] * 3 + [True] * 3:
        runner.most_tokens = 1 if short else 99
        loop._step()
    assert looked == [1, 10]
    runner.most_tokens, runner.longest = 1, 5
    loop._step()
    assert looked == [1, 10, 13]
    assert not core.has_work
    records = [decode_item(message.json) for message in talk.told() if isinstance(message, Step)]
    assert [record.seq for record in records if isinstance(record, Record) and not record.fault] == [7, 8, 9]


def test_now_and_then_every_entry_is_checked() -> None:
    core = mirror_core(64, 4, 240)
    core.add("a", [1] * 9, greedy(200, ignore_eos=True))
    records = run_to_the_violation(core, 7, exchange_hashes, 1)
    assert records[-1].seq == ENTRIES_EVERY - 1


def test_what_the_recorder_keeps_is_the_state_at_any_moment() -> None:
    """Whatever happens, and however often it begins anew: folding its lines comes to the core's own snapshot."""
    core = mirror_core(48, 4, 60)
    recorder = recorder_of(core, max_bytes=1, max_records=9)
    talk = Talk()
    loop = loop_of(core, talk.inbox, talk.sender, recorder)
    begun = 0
    for round in range(40):
        for message in (
            Add(f"r{round}", (round % 3, *range(10)), greedy(9)),
            Abort((f"r{round - 2}",), "abort"),
            GetSnapshot(round),
        )[: 1 + round % 3]:
            talk.inbox.put(message)
        for _ in range(round % 5):
            loop._drain()
            loop._step()
            lines = recorder.lines()
            first = decode_snapshot(lines[0])
            begun = max(begun, first.seq)
            fold = EngineFold.from_snapshot(first)
            for line in lines[1:]:
                record = decode_item(line)
                assert isinstance(record, Record)
                fold.apply(record)
            if not core._has_news:
                assert fold.to_snapshot() == core.snapshot()
    assert begun > 20, "it never began anew"
    talk.told()


def handing() -> Handing:
    """One request was handed over, and waits to be placed."""
    both = Handing()
    both.add([1, 2, 3, 4, 5], greedy(4, ignore_eos=True))
    both.step("p")
    return both


def test_a_lease_is_released_and_its_request_may_come_back_at_once() -> None:
    both = handing()
    core, offer = both.cores["p"], both.passing[0].offer
    assert offer is not None
    tokens = tuple(both.live["r0"].tokens)
    again = Add("r0", (1, 2, 3, 4, 5), greedy(4, ignore_eos=True), generated=(tokens,))
    talk = Talk(Release((offer.lease, "of another time")), again)
    loop, fold = loop_of(core, talk.inbox, talk.sender), EngineFold(core.snapshot())
    while core.has_work:
        loop._drain()
        loop._step()
    told = talk.told()
    assert [output.finished for output in outputs_of(told)] == [None, None, "length"]
    records = [decode_item(message.json) for message in told if isinstance(message, Step)]
    for record in records:
        assert isinstance(record, Record)
        fold.apply(record)
    assert [left.reason for record in records for left in record.left] == ["handed_over", "length"]
    assert fold.to_snapshot() == core.snapshot()


@pytest.mark.parametrize("ends", ["by an abort", "refused", "it has blocks"])
def test_an_offer_that_is_read_no_more_is_told(ends: str) -> None:
    both = handing()
    core, offer = both.cores["d"], both.passing[0].offer
    assert offer is not None
    sampling = greedy(1 if ends == "refused" else 4, ignore_eos=True)
    talk = Talk(Add("r0", (1, 2, 3, 4, 5), sampling, offer=offer, generated=(tuple(both.live["r0"].tokens),)))
    if ends == "by an abort":
        talk.inbox.put(Abort(("r0",), "abort"))
    loop = loop_of(core, talk.inbox, talk.sender)
    for _ in range(6):
        talk.inbox.put(Wake())  # nothing in itself, and nobody waits for the next frame
        loop._drain()
        loop._step()
        both.tick()
    told = talk.told()
    (taken,) = [message for message in told if isinstance(message, Taken)]
    assert (taken.request, taken.lease) == ("r0", offer.lease)
    assert bool(taken.error) == (ends != "it has blocks")
    refused = [output.refused for output in outputs_of(told) if output.finished == "error"]
    assert refused == ([True] if ends == "refused" else [])


def test_an_answer_to_a_pull_is_the_connectors_affair() -> None:
    both, pulled = handing(), []
    talk = Talk(Pulled("r0", "lease"), Shutdown())
    loop_of(both.cores["p"], talk.inbox, talk.sender).run()  # this one never asks for any
    connector = ParentConnector(both.connectors["d"], lambda pull: None)  # type: ignore[arg-type]
    connector.pulled = pulled.append  # type: ignore[method-assign]
    both.cores["d"].connector = connector
    talk.inbox.put(Pulled("r0", "lease", "it broke off"))
    talk.inbox.put(Shutdown())
    loop_of(both.cores["d"], talk.inbox, talk.sender).run()
    assert pulled == [Pulled("r0", "lease", "it broke off")]
    talk.told()
