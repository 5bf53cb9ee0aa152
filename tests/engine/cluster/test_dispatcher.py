"""Requests on their way through a cluster of mirrors: every state of a journey, and whatever may happen in each."""

from __future__ import annotations

import pytest

from engine.cluster.dispatcher import LATE, PATIENCE, QUIET, SILENT
from engine.cluster.journey import MOST_MOVES
from engine.cluster.loads import ANSWER_TOKENS
from engine.cluster.protocol import ClusterControl
from engine.core_client import EngineDiedError
from engine.sampling_params import BeamParams, SamplingParams, SchedulingParams
from tests.engine.cluster.mirrors import BLOCK_SIZE, LEASE_SECONDS, MirrorCluster
from tests.engine.mirror import greedy

PROMPT = list(range(10, 28))  # 18 tokens: four blocks of 4 and a half


def cluster(prefill: int = 1, decode: int = 1, replica: int = 0, **settings) -> MirrorCluster:
    control = ClusterControl(
        **{"local_prefill": 4, "prefill": prefill, "decode": decode, "replicas": replica} | settings
    )
    return MirrorCluster({"prefill": prefill, "decode": decode, "replica": replica}, control)


def state(some: MirrorCluster, request: str = "r0") -> str:
    way = some.dispatcher.live.get(request)
    return "ended" if way is None else way.journey.state


def brought_to(wanted: str, n: int = 1, timeout: float | None = None, **settings) -> MirrorCluster:
    """A cluster of two with one request in this state."""
    some = cluster()
    some.add(PROMPT, greedy(12, ignore_eos=True, **settings), n, SchedulingParams(timeout=timeout))
    if wanted in ("routed", "offered"):
        some.router.close("prefill-0")  # it is about to go, and takes nothing more
        some.kill("decode-0")
    if wanted == "routed":
        some.kill("prefill-0")
    for name, until in (("prefill-0", ("offered", "placed")), ("decode-0", ("decoding",))):
        for _ in range(20):
            if state(some) == wanted or state(some) in until:
                break
            some.step(name)
            some.tick()
            some.deliver(name)
    assert state(some) == wanted
    return some


STATES = ["routed", "prefill", "offered", "placed", "decoding"]


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("settings", [{}, {"seed": 5}])
def test_separated_answers_are_those_of_one_engine(n, settings):
    some = cluster()
    some.add(PROMPT, greedy(12, **settings), n)
    some.run()
    (done,) = some.done
    assert (done.source, done.target, done.blocks, done.error) == ("prefill-0", "decode-0", 5, "")
    assert some.workers["decode-0"].core.counters.prefill_tokens == 0


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("reached", STATES)
def test_an_abort_in_any_state_leaves_nothing_behind(reached, n):
    some = brought_to(reached, n)
    some.leave(list(some.asked))
    assert state(some) == "ended"
    some.run()


@pytest.mark.parametrize("reached", STATES)
def test_a_member_may_leave_in_any_state(reached):
    some = brought_to(reached, 3)
    some.leave(["r0.1"])
    some.run()
    assert [some.asked[one].finished for one in ("r0", "r0.1", "r0.2")] == ["length", None, "length"]


@pytest.mark.parametrize("reached", STATES)
def test_whoever_cancels_is_told(reached):
    some = brought_to(reached, 2)
    assert some.dispatcher.cancel("answer-r0") == ("r0", "r0.1")
    assert [asked.finished for asked in some.asked.values()] == ["abort", "abort"]
    some.run()


def test_a_leader_that_is_cancelled_before_its_first_token_takes_its_siblings_along():
    some = brought_to("prefill", 3)
    assert set(some.dispatcher.cancel("r0")) == {"r0", "r0.1", "r0.2"}
    some.run()


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("victim", ["prefill-0", "decode-0"])
@pytest.mark.parametrize("reached", ["prefill", "offered", "placed", "decoding"])
def test_a_death_in_any_state_costs_nobody_the_answer(reached, victim, n):
    some = brought_to(reached, n)
    some.kill(victim)
    some.run()
    assert {asked.finished for asked in some.asked.values()} == {"length"}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("reached", ["prefill", "placed", "decoding"])
def test_a_prefill_worker_serves_whole_requests_where_nobody_decodes(reached, n):
    some = brought_to(reached, n)
    for one in ("decode-0", "prefill-0") if reached == "prefill" else ("decode-0",):
        some.kill(one)
    some.restart("prefill-0")
    some.add(PROMPT, greedy(12), n)
    some.add(PROMPT, SamplingParams(6, temperature=0.0, beam=BeamParams(2)), 2)
    for _ in range(60):
        some._round()
    assert {asked.finished for asked in some.asked.values()} <= {"length", "stop"}
    assert some.workers["decode-0"].client.death is not None, "nobody needed it"
    some.run()


def test_what_was_offered_is_found_in_the_cache_of_whoever_computed_it_when_nobody_decodes():
    some = cluster()
    some.add(PROMPT, greedy(12, ignore_eos=True))
    some.step("prefill-0")
    some.kill("decode-0")
    some.deliver("prefill-0")
    assert state(some) == "decoding"
    assert not len(some.dispatcher.leases)
    for _ in range(20):
        some._round()
    assert some.asked["r0"].finished == "length"
    assert some.workers["prefill-0"].core.counters.prefill_tokens <= len(PROMPT) + BLOCK_SIZE
    some.restart("decode-0")
    some.add(PROMPT[::-1], greedy(4))
    assert state(some, "r1") == "prefill", "somebody decodes again"
    some.run()


@pytest.mark.parametrize("routing", ["prefix", "round_robin"])
def test_of_several_prefill_workers_the_one_that_computed_a_prompt_goes_on_with_it(routing):
    some = cluster(3, 1, routing=routing)
    some.add(PROMPT, greedy(12, ignore_eos=True))
    at = some.dispatcher.live["r0"].at
    some.step(at)
    some.kill("decode-0")
    some.deliver(at)
    assert some.dispatcher.live["r0"].at == at
    some.run()


def test_a_worker_of_which_nothing_comes_for_a_while_still_decodes():
    """It may be in a long step, or wait for blocks."""
    some = brought_to("decoding")
    some.workers["decode-0"].client._heard -= QUIET + 1
    some.dispatcher.review()
    some.add(PROMPT[::-1], greedy(4))
    assert state(some, "r1") == "prefill"
    some.run()
    assert some.dispatcher.leases.handed_over == 2


def test_prefill_workers_serve_whole_requests_while_all_who_decode_are_silent_for_long():
    some = brought_to("decoding")
    some.workers["decode-0"].client._heard -= SILENT + 1
    some.dispatcher.review()
    some.add(PROMPT[::-1], greedy(4))
    for _ in range(20):
        some.step("prefill-0")
        some.deliver("prefill-0")
    assert some.asked["r1"].finished == "length"
    some.run()


def test_a_long_step_of_those_that_prefill_brings_no_long_prompts_among_decodes():
    some = brought_to("prefill")
    some.workers["prefill-0"].client._heard -= QUIET + 1
    some.dispatcher.review()
    some.add(PROMPT[::-1], greedy(4))
    assert state(some, "r1") == "prefill"
    some.workers["prefill-0"].client._heard -= SILENT
    some.dispatcher.review()
    some.add(PROMPT[2:], greedy(4))
    assert state(some, "r2") == "decoding"
    some.run()


def test_what_dies_with_its_engine_may_have_been_told_in_part():
    for told in range(6):
        some = brought_to("decoding", 2)
        for _ in range(3):
            some.step("decode-0")
        some.kill("decode-0", told)
        some.run()
        assert {asked.finished for asked in some.asked.values()} == {"length"}


def test_a_request_is_moved_so_many_times_and_no_more():
    some = cluster(0, 1)
    some.add(PROMPT, greedy(12, ignore_eos=True))
    for death in range(1, MOST_MOVES + 2):
        some.step("decode-0")
        some.deliver("decode-0")
        some.kill("decode-0")
        assert (state(some) == "ended") == (death > MOST_MOVES)
        some.restart("decode-0")
    assert some.asked["r0"].finished == "error"
    assert "it was killed" in some.asked["r0"].error
    assert f"{MOST_MOVES} times" in some.asked["r0"].error
    assert some.dispatcher.recovered == MOST_MOVES
    some.run()


def test_what_no_worker_can_take_waits_and_is_given_up_in_time():
    some = cluster(0, 1)
    some.kill("decode-0")
    some.add(PROMPT, greedy(12))
    some.dispatcher.review()
    assert state(some) == "routed"
    some.clock.now += 31
    some.dispatcher.review()
    assert some.asked["r0"].finished == "error"
    some.run()


def test_going_elsewhere_from_workers_that_are_drained_is_not_held_against_a_request():
    some = cluster(0, MOST_MOVES + 2)
    some.add(PROMPT, greedy(12, ignore_eos=True))
    for _ in range(MOST_MOVES + 1):
        at = some.dispatcher.live["r0"].at
        some.step(at)
        some.deliver(at)
        some.drain(at)
    some.kill(some.dispatcher.live["r0"].at)
    some.run()
    assert some.asked["r0"].finished == "length"


def test_a_request_whose_engine_is_stopped_ends_with_its_deadline():
    some = brought_to("decoding", 2, timeout=5.0)
    some.clock.now += 5.0 + LATE - 0.1
    some.dispatcher.review()
    assert state(some) == "decoding", "the engine may be in a long step"
    some.clock.now += 0.2
    some.dispatcher.review()
    assert [asked.finished for asked in some.asked.values()] == ["deadline", "deadline"]
    some.run()


def test_workers_of_which_nothing_comes_are_avoided_while_there_are_others():
    some = cluster(0, 2, routing="round_robin")
    for _ in range(2):
        some.add(PROMPT, greedy(4))
    stopped = some.workers["decode-0"].client
    stopped._heard -= QUIET + 1
    for _ in range(3):
        some.dispatcher.review()
        some.add(PROMPT, greedy(4))
    assert [some.router.routed(name) for name in some.workers] == [1, 4]
    some.workers["decode-1"].client._heard -= QUIET + 1
    some.dispatcher.review()
    some.add(PROMPT, greedy(4))
    assert [some.router.routed(name) for name in some.workers] == [2, 4], "both are quiet: better one than none"
    some.run()


def test_what_is_computed_again_is_charged_with_what_was_generated():
    some = cluster(0, 2)
    some.add(PROMPT, greedy(12, ignore_eos=True), 2)
    at = some.dispatcher.live["r0"].at
    for _ in range(4):
        some.step(at)
        some.deliver(at)
    generated = sum(len(asked.tokens) for asked in some.asked.values())
    assert generated >= 6
    some.kill(at)
    assert some.router.load(some.dispatcher.live["r0"].at) == len(PROMPT) + generated + 2 * ANSWER_TOKENS
    some.run()


def test_a_death_that_is_told_late_is_none_of_the_next_engines_of_its_name():
    some = cluster(0, 1)
    before = some.workers["decode-0"].client
    some.kill("decode-0")
    some.restart("decode-0")
    some.dispatcher.lost(before, "decode-0", "decode-0: it was killed")
    some.add(PROMPT, greedy(4))
    assert state(some) == "decoding"
    some.run()


def test_whoever_waits_is_told_when_nobody_will_come():
    some = cluster(0, 1)
    some.add(PROMPT, greedy(12))
    some.kill("decode-0")
    some.dispatcher.give_up_waiting("the server stops")
    assert some.asked["r0"].finished == "error"
    assert some.asked["r0"].error == "decode-0: it was killed; the server stops"
    some.run()


@pytest.mark.parametrize("reached", ["routed", "offered"])
def test_a_deadline_holds_while_no_engine_has_the_request(reached):
    some = brought_to(reached, timeout=5.0)
    some.clock.now += 5.1
    some.dispatcher.review()
    assert some.asked["r0"].finished == "deadline"
    some.run()


def test_a_deadline_counts_from_the_arrival_over_a_move():
    some = cluster()
    some.add(PROMPT, greedy(40, ignore_eos=True), scheduling=SchedulingParams(timeout=5.0))
    some.step("prefill-0")
    some.clock.now += 3.0
    some.kill("prefill-0")
    some.step("decode-0")
    some.clock.now += 2.1
    some.step("decode-0")
    some.deliver("decode-0")
    assert some.asked["r0"].finished == "deadline"
    some.run()


def test_an_offer_that_expired_is_computed_again():
    some = brought_to("offered")
    some.clock.now += LEASE_SECONDS + 1
    some.step("prefill-0")
    some.restart("decode-0")
    some.run()
    assert some.asked["r0"].finished == "length"
    (done,) = some.done
    assert done.error


def test_a_family_that_was_lost_goes_on_one_by_one_with_its_own_seeds():
    some = brought_to("decoding", 4, seed=3)
    some.leave(["r0"])
    some.kill("decode-0")
    some.run()
    assert [asked.finished for asked in some.asked.values()] == [None, "length", "length", "length"]


def test_short_and_cached_prompts_are_prefilled_where_they_decode():
    some = cluster(local_prefill=6)
    some.add(PROMPT[:6], greedy(4))
    some.run()
    assert (some.dispatcher.local, some.dispatcher.leases.handed_over) == (1, 0)
    some.add(PROMPT, greedy(4))
    some.run()
    assert (some.dispatcher.local, some.dispatcher.leases.handed_over) == (1, 1)
    some.add([*PROMPT, 1, 2], greedy(4))  # all but the last is cached there by now
    some.run()
    assert (some.dispatcher.local, some.dispatcher.leases.handed_over) == (2, 1)


def test_only_what_could_have_been_prefilled_elsewhere_is_counted_as_local_and_once():
    some = cluster(0, 1, local_prefill=6)
    some.add(PROMPT[:6], greedy(4))
    some.run()
    assert some.dispatcher.local == 0, "nobody prefills for others"
    some = cluster(1, 1, local_prefill=6)
    some.router.close("prefill-0")
    some.add(PROMPT[:6], greedy(4))
    some.run()
    assert some.dispatcher.local == 0, "nobody does so now"
    some = cluster(1, 2, local_prefill=6, routing="round_robin")
    first = some.router.choose("whole", 6)
    assert first is not None
    some.workers[first.worker].client.death = EngineDiedError("it has yet to be told")
    some.add(PROMPT[:6], greedy(4))
    assert some.dispatcher.live["r0"].at != first.worker
    assert some.dispatcher.local == 1, "though another was chosen first"


def test_colocated_engines_serve_whole_requests_whatever_their_role():
    some = cluster(1, 1, separate=False, routing="round_robin")
    for _ in range(4):
        some.add(PROMPT, greedy(4))
    some.run()
    assert some.dispatcher.leases.handed_over == 0
    assert [some.router.routed(name) for name in some.workers] == [2, 2]


def test_a_beam_search_is_whole_where_it_decodes_and_begins_again_after_a_death():
    some = cluster()
    beam = SamplingParams(8, temperature=0.0, beam=BeamParams(3))
    some.add(PROMPT, beam, 3)
    for _ in range(3):
        some.step("decode-0")
    some.kill("decode-0")
    some.run()
    assert some.asked["r0"].finished in ("stop", "length")
    assert some.dispatcher.leases.handed_over == 0


def test_a_beam_search_counts_at_its_worker_with_all_its_beams():
    some = cluster()
    some.add(PROMPT, SamplingParams(20, temperature=0.0, ignore_eos=True, beam=BeamParams(3)), 3)
    assert some.router.load("decode-0") == len(PROMPT) + 3 * ANSWER_TOKENS
    some.dispatcher.cancel("r0")
    some.run()


def test_a_beam_search_that_is_cancelled_tells_what_it_has():
    some = cluster()
    some.add(PROMPT, SamplingParams(20, temperature=0.0, ignore_eos=True, beam=BeamParams(3)), 3)
    some.step("decode-0")
    some.step("decode-0")
    assert some.dispatcher.cancel("r0.2") == ("r0",)
    some.run()
    assert some.asked["r0"].finished == "abort"


def test_a_beam_search_that_was_cancelled_goes_on_nowhere_when_its_engine_dies():
    some = cluster(0, 2)
    some.add(PROMPT, SamplingParams(20, temperature=0.0, ignore_eos=True, beam=BeamParams(3)), 3)
    at = some.dispatcher.live["r0"].at
    some.step(at)
    assert some.dispatcher.cancel("r0") == ("r0",)
    some.kill(at)
    assert some.asked["r0"].finished == "abort"
    assert some.dispatcher.recovered == 0
    some.run()


def test_cached_tokens_are_those_of_whoever_computed_the_prompt():
    some = cluster()
    some.add(PROMPT, greedy(4))
    some.run()
    assert set(some.asked["r0"].cached) == {0}
    some.workers["decode-0"].core.clear_cache()
    some.run()
    some.add(PROMPT, greedy(4))
    some.run()
    assert some.dispatcher.leases.handed_over == 2
    assert set(some.asked["r1"].cached) == {16}


def test_scores_of_a_prompt_are_told_over_a_hand_over_and_a_death():
    some = cluster()
    some.add(PROMPT, greedy(12, ignore_eos=True, prompt_logprobs=0))
    for name in ("prefill-0", "decode-0", "decode-0", "decode-0"):
        some.step(name)
        some.deliver(name)
        some.tick()
    assert some.asked["r0"].scores == len(PROMPT)
    some.kill("decode-0")
    some.run()
    assert some.asked["r0"].finished == "length"


def test_what_a_worker_that_is_drained_still_has_goes_on_elsewhere():
    some = cluster(1, 2)
    some.add(PROMPT, greedy(12, ignore_eos=True), 2)
    while state(some) != "decoding":
        some.tick()
        for name in some.workers:
            some.step(name)
            some.deliver(name)
    before = some.dispatcher.live["r0"].at
    some.drain(before)
    assert some.dispatcher.live["r0"].at not in ("", before)
    some.run()
    assert {asked.finished for asked in some.asked.values()} == {"length"}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("left", [False, True])
def test_what_nobody_tells_the_end_of_goes_on_elsewhere_and_its_blocks_are_kept(n, left):
    """Until somebody does: whoever fills them may still be writing. So it is if only siblings wait for them."""
    some = cluster(1, 2)
    some.add(PROMPT, greedy(12, ignore_eos=True), n)
    while not some.dispatcher.leases.told(0.0) or some.dispatcher.leases.told(0.0)[0].phase != "moving":
        for name in some.workers:
            some.step(name)
            some.deliver(name)
    (moving,) = some.dispatcher.leases.told(0.0)
    target = some.workers[moving.target]
    if left:
        some.leave(["r0"])
    some.dispatcher.overdue(target.client, moving.lease, "nobody has told")
    for _ in range(60):
        for name in some.workers:
            some.step(name)
            some.deliver(name)
    assert {asked.finished for asked in some.asked.values()} == ({"length", None} if left else {"length"}) - (
        {"length"} if left and n == 1 else set()
    )
    (overdue,) = some.dispatcher.leases.told(0.0)
    assert overdue.phase == "overdue"
    assert target.core.info.num_blocks - target.core.pool.num_available == len(target.connector.jobs["r0"].left) == 5
    some.dispatcher.overdue(target.client, moving.lease, "told again, though nobody waits any more")
    some.run()


def test_what_nobody_tells_the_end_of_fails_by_name_where_nobody_else_can_go_on():
    some = brought_to("placed")
    some.step("decode-0")
    some.deliver("decode-0")
    (moving,) = some.dispatcher.leases.told(0.0)
    some.dispatcher.overdue(some.workers["decode-0"].client, moving.lease, "nobody has told")
    assert state(some) == "routed"
    some.clock.now += PATIENCE + 1
    some.dispatcher.review()
    asked = some.asked["r0"]
    assert (asked.finished, asked.error) == ("error", "nobody has told; no engine could take this request for 30 s")
    some.step("decode-0")
    assert some.workers["decode-0"].connector.jobs, "whoever fills its blocks may still be writing"
    some.run()


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("dies", [False, True])
def test_what_waits_only_for_engines_to_be_rid_of_it_goes_on_once_they_are(n, dies):
    some = brought_to("placed", n)
    some.step("decode-0")
    some.deliver("decode-0")
    (moving,) = some.dispatcher.leases.told(0.0)
    some.dispatcher.overdue(some.workers["decode-0"].client, moving.lease, "nobody has told")
    assert state(some) == "routed"
    if dies:
        some.kill("decode-0")
        assert some.dispatcher.live["r0"].at == "prefill-0"
        some.run()
        return
    while some.workers["decode-0"].connector.jobs:
        some.tick()
    for _ in range(2):
        some.step("decode-0")
        some.deliver("decode-0")
    assert state(some) == "decoding"
    assert some.done[-1].error == "the request went on elsewhere: nobody has told"
    some.run()
    assert {asked.finished for asked in some.asked.values()} == {"length"}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("how", ["leave", "drain"])
def test_an_offer_that_crosses_an_abort_is_released(how, n):
    some = brought_to("prefill", n)
    while not some.workers["prefill-0"].core.scheduler.hand_over.sending:
        some.step("prefill-0")
    if how == "leave":
        some.leave(list(some.asked))
    else:
        some.drain("prefill-0")
    some.run()
    assert not some.done
