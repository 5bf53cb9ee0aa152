"""Whatever ends while a request is handed over: it, its family, a deadline, a step, an engine."""

from __future__ import annotations

import pytest

from engine.protocol import Control
from engine.sampling_params import SchedulingParams
from tests.engine.handed import ENDLESS, PROMPT, handed, statuses
from tests.engine.handing import Handing
from tests.engine.mirror import greedy


@pytest.mark.parametrize("reason", ["abort", "stop"])
def test_an_abort_while_it_is_sent_changes_nothing_there(reason):
    both = handed()
    both.cores["p"].abort("r0", reason)
    both.step("p")
    assert statuses(both, "p") == {"r0": "sending"}
    both.abort("r0")
    both.step("p")
    both.settle()


@pytest.mark.parametrize("during", [False, True])
def test_an_abort_while_it_is_prefilled_ends_its_family(during):
    both = Handing(control=Control(max_num_batched_tokens=4))
    both.add(PROMPT, greedy(5, **ENDLESS), siblings=2)
    both.step("p")
    if during:
        both.cores["p"].runner.during = lambda: both.cores["p"].abort("r0")
        del both.live["r0"]
        for _ in range(6):
            both.step("p")
        both.cores["p"].runner.during = both.tick
    else:
        both.abort("r0")
    both.run()
    assert both.ends == {"r0.1": "abort", "r0.2": "abort"}
    assert both.connectors["p"].exports == 0


@pytest.mark.parametrize("reason", ["abort", "stop"])
def test_an_abort_while_it_waits_with_an_offer_ends_it_at_once(reason):
    both = handed()
    both.place(both.passing[0])
    both.abort("r0", reason)
    assert not both.cores["d"].has_work
    _, record = both.step("d")
    assert [left.reason for left in record.left] == [reason]
    assert record.transferred == ()
    assert [taken.error for taken in both.taken] == ["the request has ended"]
    both.run()


def test_an_abort_while_it_receives_waits_until_nothing_is_written():
    both = handed()
    both.place(both.passing[0])
    both.step("d")
    both.abort("r0")
    for _ in range(5):
        assert statuses(both, "d") == {"r0": "receiving"}
        assert both.taken == []
        both.tick()
        both.step("d")
    both.tick()
    _, record = both.step("d")
    assert [left.reason for left in record.left] == ["abort"]
    assert record.transferred[0].error == both.taken[0].error == "the request has ended"
    assert both.cores["d"].counters.received == 0
    both.run()


def test_a_transfer_that_was_done_before_its_request_ended_is_told_as_of_no_use():
    both = handed()
    both.place(both.passing[0])
    both.step("d")
    for _ in range(6):
        both.tick()
    both.abort("r0")
    both.step("d")
    assert [taken.error for taken in both.taken] == ["the request has ended"]
    both.run()


@pytest.mark.parametrize("state", ["waiting", "receiving"])
@pytest.mark.parametrize("gone", [["r0"], ["r0.1"], ["r0", "r0.1"], ["r0.1", "r0.2", "r0"], ["r0", "r0.1", "r0.2"]])
@pytest.mark.parametrize("fails", [False, True])
def test_siblings_live_on_when_others_of_the_family_end(state, gone, fails):
    both = handed(siblings=2, seed=3)
    both.place(both.passing[0])
    if state == "receiving":
        both.step("d")
    for name in gone:
        both.abort(name)
        both.check()
    both.step("d")
    if fails and both.connectors["d"].jobs:
        both.connectors["d"].fail("r0", "the peer hung up")
    both.run()
    assert both.ends == dict.fromkeys({"r0", "r0.1", "r0.2"} - set(gone), "length")
    assert len(both.taken) == 1


@pytest.mark.parametrize("state", ["waiting", "receiving", "prefilling"])
@pytest.mark.parametrize("siblings", [0, 2])
def test_a_deadline_holds_in_every_state(state, siblings):
    both = Handing(control=Control(max_num_batched_tokens=4 if state == "prefilling" else 512))
    both.add(PROMPT, greedy(9, **ENDLESS), siblings, SchedulingParams(timeout=10.0))
    both.step("p")
    if state != "prefilling":
        both.place(both.passing[0])
    if state == "receiving":
        both.step("d")
    both.clock.now += 11.0
    both.run()
    assert both.ends == dict.fromkeys(both.ends, "deadline")
    assert len(both.ends) == 1 + siblings


def test_a_deadline_while_it_is_sent_is_for_whoever_goes_on():
    both = Handing(lease_seconds=60.0)
    both.add(PROMPT, greedy(9, **ENDLESS), 0, SchedulingParams(timeout=10.0))
    both.step("p")
    both.clock.now += 11.0
    both.step("p")
    assert statuses(both, "p") == {"r0": "sending"}
    both.run()
    assert both.ends == {"r0": "deadline"}


@pytest.mark.parametrize("fault", ["compute", "move"])
def test_a_fault_of_the_device_costs_nobody_who_receives_or_sends(fault):
    both = Handing(blocks=(32, 32), control=Control(preempt="swap"), host_blocks=20)
    both.add([8] * 14, greedy(20, **ENDLESS), side="d", hand_over=False)
    both.step("d")
    handed(both)
    both.place(both.passing[0])
    both.costly = True
    core = both.cores["d"]
    if fault == "move":
        core.scheduler.preempt(core.scheduler.running[0])
    core.runner.fault = fault
    _, record = both.step("d")
    core.runner.fault = ""
    assert record.fault
    assert statuses(both, "d")["r1"] == "receiving"
    both.run()
    assert both.ends["r1"] == "length"
    assert core.counters.received == 1


def test_a_fault_while_it_is_prefilled_ends_its_family():
    both = Handing()
    both.costly = True
    both.add(PROMPT, greedy(5, **ENDLESS), siblings=1)
    both.cores["p"].runner.fault = "compute"
    both.step("p")
    both.cores["p"].runner.fault = ""
    both.run()
    assert both.ends == {"r0": "error", "r0.1": "error"}


@pytest.mark.parametrize("failing", [{"r0"}, {"r0.1"}, {"r0", "r0.1"}])
def test_a_draw_that_fails_costs_that_answer_alone(failing):
    both = Handing()
    both.costly = True
    both.cores["p"].runner.failing = failing
    both.add(PROMPT, greedy(5, **ENDLESS), siblings=1)
    outputs, _ = both.step("p")
    assert {output.request for output in outputs if output.error} == failing
    both.run()
    assert both.ends == {name: "error" if name in failing else "length" for name in ("r0", "r0.1")}


def test_what_was_generated_goes_on_without_an_offer():
    both = handed(siblings=2, seed=4)
    both.place(both.passing[0], offered=False)
    both.run()
    assert both.ends == dict.fromkeys(["r0", "r0.1", "r0.2"], "length")
    assert both.taken == []
    assert both.cores["d"].counters.received == 0


@pytest.mark.parametrize("apart", [False, True])
def test_requests_of_an_engine_that_died_go_on_in_another(apart):
    both = handed(siblings=2, seed=4, max_tokens=20)
    both.place(both.passing[0])
    for _ in range(8):
        both.tick()
        both.step("d")
    assert len(both.live["r0"].tokens) > 2
    both.restart("d")
    both.place(both.passing[0], "p", apart=apart)
    both.run()
    assert both.ends == dict.fromkeys(["r0", "r0.1", "r0.2"], "length")


def test_an_engine_that_dies_while_it_sends_is_done_without():
    both = handed()
    both.place(both.passing[0])
    both.step("d")
    both.tick()
    both.restart("p")
    both.run()
    assert both.ends == {"r0": "length"}
    assert both.taken[0].error == "its engine is gone"


def test_a_request_comes_back_to_the_engine_that_sent_it():
    both = handed()
    passing = both.passing[0]
    both.place(passing, "p", offered=False)  # its lease is released, and its name taken anew, between two steps
    both.run()
    assert both.ends == {"r0": "length"}
    assert both.cores["p"].snapshot().sharing.found_tokens == 16, "its blocks were still there"
