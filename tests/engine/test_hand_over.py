"""A request that one engine prefills goes on in another: every state of it, and whatever may happen in each."""

from __future__ import annotations

import msgspec
import pytest

from engine.books import check_books
from engine.contents import block_tokens, live_requests, request_tokens
from engine.core import ControlError
from engine.invariants import InvariantViolated
from engine.protocol import Control
from engine.request import RequestTooLarge
from engine.sampling_params import BeamParams, SamplingParams, SchedulingParams
from tests.engine.handed import ENDLESS, PROMPT, handed, statuses
from tests.engine.handing import Handing
from tests.engine.mirror import expected_output, greedy, mirror_core


def test_a_request_goes_on_where_its_kv_is_taken():
    both = handed()
    (passing,) = both.passing
    assert statuses(both, "p") == {"r0": "sending"}
    assert both.live["r0"].tokens == expected_output(PROMPT, greedy(8, **ENDLESS), 64)[0][:1]
    assert (passing.offer.tokens, len(passing.offer.blocks)) == (18, 5)
    both.place(passing)
    both.step("d")
    assert statuses(both, "d") == {"r0": "receiving"}
    for _ in range(6):
        both.tick()
    _, record = both.step("d")
    assert [(row.kind, row.tokens, row.context) for row in record.rows] == [("decode", 1, 19)]
    (joined,) = record.joined
    assert (joined.received_tokens, joined.received_blocks, joined.cached_tokens) == (18, 5, 0)
    both.run()
    assert both.ends == {"r0": "length"}
    (taken,) = both.taken
    assert (taken.blocks, taken.nbytes, taken.error) == (5, 5 * 32, "")
    assert both.cores["p"].counters.prefill_tokens == 18
    assert both.cores["d"].counters.prefill_tokens == 0
    assert both.cores["d"].counters.received == 1
    assert both.cores["p"].counters.handed_over == 1


def test_siblings_are_drawn_where_the_prompt_is_and_forked_where_it_goes():
    both = handed(siblings=3, seed=7)
    assert statuses(both, "p") == {"r0": "sending"}, "siblings take nothing there"
    assert [both.live[name].tokens for name in ("r0", "r0.1")] == [
        expected_output(PROMPT, greedy(1, seed=seed, **ENDLESS), 64)[0] for seed in (7, 8)
    ]
    both.run()
    assert both.ends == dict.fromkeys(["r0", "r0.1", "r0.2", "r0.3"], "length")
    assert both.cores["d"].counters.forks == 3
    assert both.cores["d"].counters.prefill_tokens == 0
    assert both.cores["p"].counters.handed_over == 4
    assert len(both.taken) == 1


@pytest.mark.parametrize("stopped", [0, 1, 2])
def test_a_first_token_that_ends_one_of_a_family_ends_it_alone(stopped):
    tokens = [expected_output(PROMPT, greedy(1, seed=7 + i, **ENDLESS), 64)[0][0] for i in range(3)]
    assert len(set(tokens)) == 3
    both = handed(siblings=2, seed=7, stop_token_ids=(tokens[stopped],))
    names = ["r0", "r0.1", "r0.2"]
    assert both.ends == {names[stopped]: "stop"}
    assert both.passing[0].names == [name for name in names if name != names[stopped]]
    assert statuses(both, "p") == {"r0": "sending"}, "whoever leads keeps the blocks, for the others if need be"
    both.run()
    assert both.ends.keys() == set(names)
    assert both.cores["p"].counters.stopped + both.cores["d"].counters.stopped >= 1


def test_a_request_that_ends_with_its_first_token_is_not_handed_over():
    both = Handing()
    both.add(PROMPT, greedy(1), siblings=2)
    both.run()
    assert set(both.ends.values()) <= {"stop", "length"}
    assert both.connectors["p"].exports == 0
    assert both.cores["p"].counters.handed_over == 0


def test_what_is_cached_there_is_not_moved():
    both = handed()
    both.run()
    handed(both, prompt=[*PROMPT[:14], 1, 2, 3, 4])
    both.place(both.passing[0])
    both.step("d")
    (job,) = both.connectors["d"].jobs.values()
    assert [source for source, _ in job.transfer.pairs] == list(job.transfer.offer.blocks[3:]), "whole blocks are found"
    both.run()
    assert both.taken[-1].blocks == 2
    assert both.cores["d"].snapshot().sharing.found_tokens == 12


def test_where_all_is_cached_nothing_is_moved_and_siblings_run_by_themselves():
    both = handed(prompt=PROMPT[:16])
    both.run()
    handed(both, siblings=1, seed=5, prompt=PROMPT[:16])
    both.run()
    assert (both.taken[-1].blocks, both.taken[-1].error) == (0, "")
    assert both.cores["d"].counters.received == 1
    assert both.cores["d"].counters.forks == 0


@pytest.mark.parametrize("answer", ["unreadable", "nothing", "whole"])
@pytest.mark.parametrize("siblings", [0, 2])
def test_what_cannot_be_had_is_computed(answer, siblings):
    both = handed(siblings=siblings, seed=3)
    both.connectors["d"].answer = answer
    both.run()
    assert set(both.ends.values()) == {"length"}
    (taken,) = both.taken
    assert bool(taken.error) == (answer == "unreadable")
    assert both.cores["d"].counters.transfers_failed == (answer == "unreadable")
    assert both.cores["d"].counters.prefill_tokens > 0
    assert taken.blocks == (4 if answer == "whole" else 0)


@pytest.mark.parametrize("siblings", [0, 2])
def test_a_transfer_that_fails_costs_time_alone(siblings):
    both = handed(siblings=siblings, seed=3)
    both.place(both.passing[0])
    both.step("d")
    both.tick()
    both.connectors["d"].fail("r0", "the peer hung up")
    both.run()
    assert [taken.error for taken in both.taken] == ["the peer hung up"]
    assert set(both.ends.values()) == {"length"}
    assert len(both.ends) == 1 + siblings
    assert both.cores["d"].counters.transfers_failed == 1
    assert both.cores["d"].counters.received == 0


def test_one_whose_transfer_failed_waits_with_nothing():
    both = handed()
    both.run()
    both.add([7] * 8, greedy(20, **ENDLESS), side="d", hand_over=False)
    both.step("d")
    handed(both, prompt=[*PROMPT[:14], 1, 2, 3, 4])
    both.place(both.passing[0])
    both.step("d")
    assert both.folds["d"].requests["r2"].cached_tokens == 12
    both.cores["d"].set_control(Control(max_num_seqs=1))
    both.connectors["d"].fail("r2", "it broke off")
    while both.connectors["d"].jobs:
        both.tick()
    both.step("d")
    state = both.folds["d"].requests["r2"]
    assert (state.status, state.cached_tokens, state.computed_tokens, state.table) == ("waiting", 0, 0, ())
    both.run()


def test_a_lease_that_nobody_acknowledges_ends():
    both = handed(Handing(lease_seconds=0.5))
    both.releases = False
    both.place(both.passing[0])
    while both.live:
        both.tick()
        both.step("d")
    assert statuses(both, "p") == {"r0": "sending"}
    both.clock.now += 1.0
    _, record = both.step("p")
    (ended,) = record.transferred
    assert (ended.side, "0.5 s" in ended.error) == ("sent", True)
    assert [(left.request, left.reason) for left in record.left] == [("r0", "handed_over")]
    both.settle()
    both.cores["p"].release([ended.lease])  # too late, and left alone
    assert both.cores["p"].counters.transfers_failed == 1


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_what_comes_after_the_lease_is_computed(when):
    both = handed(Handing(lease_seconds=0.5))
    both.place(both.passing[0])
    if when == "meanwhile":
        both.step("d")
        both.tick()
    both.clock.now += 1.0
    both.step("p")
    both.add([99] * 30, greedy(2, **ENDLESS))  # takes the blocks that were free
    both.run()
    assert both.taken[0].error == "it has expired"
    assert both.ends["r0"] == "length"


def test_who_waits_for_blocks_that_leases_hold_waits_for_their_end():
    both = handed(Handing(blocks=(6, 32), lease_seconds=2.0), max_tokens=5)
    both.add([77] * 20, greedy(3, **ENDLESS))
    for _ in range(3):
        _, record = both.step("p")
        assert record is None or not record.rows
    assert both.cores["p"].scheduler.wait.cause == "blocks"
    both.clock.now += 3.0
    assert both.step("p")[1].rows
    both.run()
    assert both.ends == {"r0": "length", "r1": "length"}


def test_clearing_the_cache_takes_nothing_from_those_that_send_or_receive():
    both = handed()
    both.run()
    handed(both, prompt=[*PROMPT[:14], 1, 2, 3, 4])
    both.cores["p"].clear_cache()
    both.place(both.passing[0])
    both.step("d")
    assert both.cores["d"].clear_cache() > 0
    both.check()
    both.run()
    assert both.cores["d"].counters.prefill_tokens == 0


def test_those_that_receive_count_as_rows():
    both = Handing(blocks=(64, 64), control=Control(max_num_seqs=2))
    for index in range(3):
        handed(both, prompt=[index] * 18)
        both.place(both.passing[0])
        _, record = both.step("d")
    assert sorted(statuses(both, "d").values()) == ["receiving", "receiving", "waiting"]
    assert record.queue.head.cause == "rows"
    both.run()


def test_blocks_are_left_for_those_that_run_and_for_forks():
    both = Handing(blocks=(32, 12))
    both.add([8] * 18, greedy(8, **ENDLESS), side="d", hand_over=False)
    both.step("d")
    handed(both, siblings=2)
    both.place(both.passing[0])
    _, record = both.step("d")
    assert statuses(both, "d")["r1"] == "waiting", "seven blocks are free: five for it, one for r0, two for its forks"
    assert (record.queue.head.cause, record.queue.head.needed_blocks) == ("blocks", 8)
    both.run()


def test_one_that_receives_is_not_taken_blocks_from_however_few_there_are():
    both = Handing(blocks=(32, 15))
    both.add([8] * 17, greedy(40, **ENDLESS), side="d", hand_over=False)
    both.step("d")
    handed(both)
    both.place(both.passing[0])
    both.step("d")
    assert statuses(both, "d") == {"r0": "running", "r1": "receiving"}
    job = both.connectors["d"].jobs["r1"]
    for _ in range(40):  # it grows until there are no blocks but those
        both.step("d")
        job.left = list(job.transfer.pairs)
    assert both.cores["d"].counters.preemptions > 0
    assert statuses(both, "d") == {"r0": "waiting", "r1": "receiving"}
    both.run()


def test_blocks_that_are_moved_to_host_memory_are_received_into_only_then():
    last = SchedulingParams(priority=5)
    control = Control(preempt="swap", scheduling_policy="priority", max_num_seqs=1)
    both = Handing(blocks=(32, 12), control=control, host_blocks=20)
    both.add([8] * 14, greedy(20, **ENDLESS), 0, last, side="d", hand_over=False)
    both.step("d")
    handed(both)
    core = both.cores["d"]
    held = set(core.scheduler.running[0].table)
    core.scheduler.preempt(core.scheduler.running[0])  # its blocks are read by the moves of the next step
    both.place(both.passing[0])
    both.step("d")
    assert statuses(both, "d") == {"r0": "waiting", "r1": "receiving"}
    assert held.intersection(core.scheduler.requests["r1"].table)
    both.run()
    assert core.counters.swapped_in_blocks > 0
    assert both.ends == {"r0": "length", "r1": "length"}


def test_settings_count_what_was_generated_elsewhere():
    sampling = greedy(6, min_tokens=4, stop_token_ids=tuple(range(32)))
    both = Handing()
    both.add(PROMPT, sampling)
    both.run()
    assert both.ends == {"r0": "stop"}
    assert len(both.answers["r0"]) == 4


def test_a_scored_prompt_is_scored_once():
    both = handed(prompt_logprobs=0)
    assert both.live["r0"].scores == len(PROMPT)
    both.connectors["d"].answer = "unreadable"  # so that the prompt is computed again
    both.run()
    assert [output for output in both.outputs if output.prompt_logprobs][1:] == []


def test_alternatives_are_told_on_both_sides():
    both = handed(logprobs=3)
    both.run()
    assert [len(output.top) for output in both.outputs] == [3] * 8


@pytest.mark.parametrize("field", ["batching", "allocation"])
def test_an_engine_that_hands_over_is_continuous_and_paged(field):
    wrong = {"batching": Control(batching="static"), "allocation": Control(allocation="reserved")}[field]
    both = Handing()
    with pytest.raises(ControlError, match=field):
        both.cores["p"].set_control(wrong)
    with pytest.raises(ControlError, match=field):
        Handing(control=wrong)
    mirror_core(control=wrong)  # any other may


@pytest.mark.parametrize("batching", ["continuous", "static"])
@pytest.mark.parametrize("allocation", ["paged", "reserved"])
def test_any_engine_goes_on_with_what_was_generated_elsewhere(batching, allocation):
    core = mirror_core(control=Control(batching=batching, allocation=allocation))
    sampling, generated = greedy(8, seed=3, **ENDLESS), []
    for place in (0, 2):
        whole = expected_output(PROMPT, greedy(8, seed=3 + place, **ENDLESS), 64)[0]
        generated.append(tuple(whole[: 3 + place]))
    offer = handed().passing[0].offer
    core.add("a", PROMPT, sampling, siblings=("b",), generated=generated, places=(0, 2), offer=offer)
    (taken,) = core.drain_taken()
    assert "no KV" in taken.error
    tokens = {"a": list(generated[0]), "b": list(generated[1])}
    while core.has_work:
        for output in core.step()[0]:
            tokens[output.request].append(output.token_id)
    for place, name in ((0, "a"), (2, "b")):
        assert tokens[name] == expected_output(PROMPT, greedy(8, seed=3 + place, **ENDLESS), 64)[0]
    assert core.counters.sampled_tokens == 16 - 3 - 5


def test_what_makes_no_sense_is_refused_and_its_offer_told_of():
    both = handed()
    offer, core = both.passing[0].offer, both.cores["d"]
    sampling, one = greedy(8, **ENDLESS), ((1,),)
    search = SamplingParams(8, temperature=0.0, beam=BeamParams(1))
    for wrong, match in (
        ({"hand_over": True, "generated": one}, "hand_over"),
        ({"hand_over": True, "offer": offer, "generated": one}, "hand_over"),
        ({"offer": offer}, "generated a token"),
        ({"offer": offer, "generated": ((),)}, "generated a token"),
        ({"offer": offer, "generated": ((1,), (2,))}, "one for each of 1"),
        ({"generated": one, "places": (0, 1)}, "places"),
        ({"generated": (tuple(range(8)),)}, "max_tokens"),
        ({"sampling": search, "hand_over": True}, "beam"),
        ({"sampling": search, "generated": one}, "beam"),
        ({"prompt": PROMPT[:17], "offer": offer, "generated": one}, "1 to 17 tokens"),
        ({"siblings": ("b",), "offer": offer, "generated": ((1,), ()), "prompt": PROMPT}, "generated a token"),
    ):
        asked = {"prompt": PROMPT, "sampling": sampling} | wrong
        with pytest.raises(ValueError, match=match):
            core.add("x", **asked)
        assert [taken.lease for taken in core.drain_taken()] == ([offer.lease] if "offer" in wrong else [])
    with pytest.raises(RequestTooLarge, match="answer so far"):
        core.add("x", [1] * 63, greedy(60), generated=((1,),))
    with pytest.raises(ValueError, match="hands no KV over"):
        mirror_core().add("x", PROMPT, sampling, hand_over=True)
    assert not core.has_work
    both.run()


def test_those_that_receive_need_nothing_of_a_step_that_is_full():
    both = Handing(blocks=(32, 64), control=Control(max_num_batched_tokens=4, max_prefill_chunk=4))
    both.add([8] * 40, greedy(3, **ENDLESS), side="d", hand_over=False)
    both.step("d")
    both.add([9] * 8, greedy(3, **ENDLESS), side="d", hand_over=False)
    handed(both)
    both.place(both.passing[0])
    _, record = both.step("d")
    assert statuses(both, "d") == {"r0": "running", "r1": "waiting", "r2": "receiving"}
    assert record.queue.head.cause == "tokens"
    both.run()


def test_an_offer_of_too_few_blocks_is_done_without():
    both = handed()
    both.passing[0].offer = msgspec.structs.replace(both.passing[0].offer, blocks=both.passing[0].offer.blocks[:3])
    both.run()
    assert "3 blocks for 18 tokens" in both.taken[0].error
    assert both.ends == {"r0": "length"}


def test_one_that_has_just_joined_is_not_preempted_in_the_same_step():
    """The record that tells of both would tell the second first."""
    both = Handing(blocks=(32, 2), block_size=16, max_model_len=32)
    both.add([0], greedy(2), siblings=3)
    both.run()
    assert set(both.ends.values()) == {"length"}
    assert both.cores["d"].counters.preemptions > 0


def test_the_shortest_prefill_is_of_what_is_not_offered():
    both = Handing(control=Control(scheduling_policy="shortest_prefill", max_num_seqs=1))
    both.add([8] * 6, greedy(3, **ENDLESS), side="d", hand_over=False)
    handed(both)
    both.place(both.passing[0])
    both.step("d")
    assert statuses(both, "d") == {"r0": "waiting", "r1": "receiving"}
    both.run()
    both.connectors["d"].answer = "unreadable"
    both.cores["d"].clear_cache()
    both.add([9] * 6, greedy(3, **ENDLESS), side="d", hand_over=False)
    handed(both)
    both.place(both.passing[0])
    both.step("d")
    assert statuses(both, "d")["r3"] == "running", "it was first in turn when it turned out that nothing was to be had"
    both.run()


def test_the_books_are_of_those_that_send_and_receive_too():
    both = handed()
    both.place(both.passing[0])
    both.step("d")
    for side, status, wrong in (("p", "sending", 17), ("d", "receiving", 1)):
        core = both.cores[side]
        request = core.scheduler.requests["r0"]
        assert request.status == status
        right, request.num_computed = request.num_computed, wrong
        with pytest.raises(InvariantViolated, match="filled slots, not 1"):
            check_books(core.scheduler, core.ledger)
        request.num_computed = right
    both.run()


def test_no_more_is_found_than_is_looked_up_when_the_cache_is_turned_off_meanwhile():
    both = Handing()
    both.add(PROMPT[:17], greedy(2, **ENDLESS), scheduling=SchedulingParams(timeout=1e9), side="d", hand_over=False)
    both.run()
    before = both.cores["d"].snapshot().sharing
    handed(both)
    both.place(both.passing[0])
    both.step("d")
    both.cores["d"].set_control(Control(prefix_cache=False))
    both.run()
    sharing = both.cores["d"].snapshot().sharing
    assert (sharing.found_tokens, sharing.looked_up_tokens - before.looked_up_tokens) == (16, 19)


def test_what_is_not_to_be_found_is_published_on_neither_side():
    both = Handing()
    both.add(PROMPT, greedy(9, **ENDLESS), scheduling=SchedulingParams(prefix_cache=False))
    both.run()
    assert both.cores["d"].counters.received == 1
    assert [len(core.pool.cache) for core in both.cores.values()] == [0, 0]


def test_what_is_salted_is_found_under_its_salt_alone():
    both = Handing()
    for index, salt in enumerate(["one", "other", "one"]):
        both.add(PROMPT, greedy(9, **ENDLESS), scheduling=SchedulingParams(cache_salt=salt))
        both.run()
        found = [core.snapshot().sharing.found_tokens for core in both.cores.values()]
        assert found == ([0, 0] if index < 2 else [16, 16])


def test_who_asks_is_told_of_those_that_send_and_receive():
    both = handed()
    both.place(both.passing[0])
    both.step("d")
    text = (*PROMPT, both.live["r0"].tokens[0])
    for side, computed in (("p", 18), ("d", 0)):
        core = both.cores[side]
        told = live_requests(core.scheduler, core.seq)
        (one,) = told.requests
        assert (one.request, one.num_tokens, one.computed_tokens, one.blocks) == ("r0", 19, computed, 5)
        assert (told.sending, told.receiving) == ((1, 0) if side == "p" else (0, 1))
        assert request_tokens(core.scheduler, "r0", 0, 0).part.tokens == text
        last = core.scheduler.requests["r0"].table[-1]
        part = block_tokens(core.scheduler, last, 0).part
        assert part.tokens == (text[16:18] if side == "p" else ()), "it has not come yet"
    both.run()
