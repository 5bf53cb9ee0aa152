"""A journey by itself: what it says is to be sent, and what it makes of what comes."""

from __future__ import annotations

import pytest

from engine.block_pool import IllegalState
from engine.cluster.journey import Journey
from engine.messages import Add, Output
from engine.sampling_params import BeamParams, SamplingParams, SchedulingParams
from engine.transfer.offer import Offer, PoolPlace

PLACE = PoolPlace(host="host", path="/proc/1/fd/3", name="pool", nbytes=64, shape=(4,), strides=(1,), itemsize=4)
OFFER = Offer("prefill-0-1", "prefill-0", "digest", PLACE, (1, 2), 7, 64, 30.0)
SAMPLING = SamplingParams(8, seed=5)


def journey(n: int = 1, sampling: SamplingParams = SAMPLING, timeout: float | None = None) -> Journey:
    siblings = tuple(f"r{i}" for i in range(1, n))
    return Journey(Add("r0", tuple(range(7)), sampling, SchedulingParams(timeout=timeout), siblings), 100.0)


def handed_over(n: int = 1, **settings) -> Journey:
    one = journey(n, **settings)
    one.prefill(100.0)
    for i in range(n):
        one.hear(Output(f"r{i}", 40 + i, finished="handed_over", offer=None if i else OFFER), one.leg)
    assert one.state == "offered"
    return one


def test_a_request_that_is_handed_over_goes_on_from_its_first_token():
    one = journey()
    assert one.prefill(100.0) == Add("r0", tuple(range(7)), SAMPLING, hand_over=True)
    told = one.hear(Output("r0", 40, finished="handed_over", offer=OFFER, cached_tokens=4), one.leg)
    assert told == Output("r0", 40, cached_tokens=4)
    assert one.decode(101.0) == (Add("r0", tuple(range(7)), SAMPLING, offer=OFFER, generated=((40,),), places=(0,)),)
    assert one.state == "placed"
    assert one.hear(Output("r0", 41, cached_tokens=7), one.leg) == Output("r0", 41, cached_tokens=4)
    one.taken("of another")
    assert one.state == "placed"
    one.taken(OFFER.lease)
    assert one.state == "decoding"
    one.hear(Output("r0", 42, finished="length"), one.leg)
    assert one.state == "ended"


def test_a_family_is_offered_when_the_last_of_it_was_heard_of():
    one = journey(3)
    one.prefill(100.0)
    one.hear(Output("r0", 40, finished="handed_over", offer=OFFER), one.leg)
    assert one.state == "prefill"
    assert one.hear(Output("r1", 41, finished="stop"), one.leg) == Output("r1", 41, finished="stop")
    assert one.state == "prefill"
    one.hear(Output("r2", 42, finished="handed_over"), one.leg)
    (add,) = one.decode(101.0)
    assert (add.request, add.siblings, add.generated, add.places) == ("r0", ("r2",), ((40,), (42,)), (0, 2))


def test_a_leader_that_ends_with_its_first_token_leaves_the_offer_to_its_siblings():
    one = journey(2)
    one.prefill(100.0)
    told = one.hear(Output("r0", 40, finished="stop", offer=OFFER), one.leg)
    assert told == Output("r0", 40, finished="stop")
    one.hear(Output("r1", 41, finished="handed_over"), one.leg)
    (add,) = one.decode(101.0)
    assert (add.request, add.offer, add.places) == ("r1", OFFER, (1,))


def test_whoever_leaves_while_the_others_are_handed_over_is_not_waited_for():
    one = journey(2)
    one.prefill(100.0)
    one.hear(Output("r0", 40, finished="handed_over", offer=OFFER), one.leg)
    assert one.end(["r1", "r1", "r9"]) == ("r1",)
    assert one.state == "offered"
    assert one.end(["r0"]) == ("r0",)
    assert (one.state, one.withdraw(), one.withdraw()) == ("ended", OFFER, None)


def test_what_was_lost_goes_on_with_all_that_was_told():
    one = handed_over(3)
    one.decode(101.0)
    leg = one.leg
    one.hear(Output("r1", 50), leg)
    one.end(["r0"])
    assert one.lost(by_death=True)
    adds = one.decode(102.0)
    assert [(add.request, add.siblings, add.generated, add.places) for add in adds] == [
        ("r1", (), ((41, 50),), (1,)),
        ("r2", (), ((42,),), (2,)),
    ]
    assert {add.sampling.seed for add in adds} == {5}, "an engine adds the place"
    assert one.hear(Output("r1", 51), leg) is None, "it is of the engine that was lost"
    assert one.state == "decoding"


def test_what_was_lost_before_its_first_token_begins_anew_less_who_has_left():
    one = journey(3)
    one.prefill(100.0)
    one.end(["r1"])
    assert one.lost(by_death=True)
    add = one.prefill(101.0)
    assert (add.request, add.siblings, add.places, add.hand_over) == ("r0", ("r2",), (0, 2), True)


def test_four_moves_are_too_many():
    one = journey()
    may_go_on = []
    for _ in range(4):
        one.decode(100.0)
        may_go_on.append(one.lost(by_death=True))
    assert may_go_on == [True, True, True, False]


def test_an_engine_gets_the_time_that_is_left():
    one = journey(timeout=10.0)
    assert one.prefill(100.0).scheduling.timeout == 10.0
    one.lost(by_death=True)
    assert one.decode(103.0)[0].scheduling.timeout == 7.0
    one.lost(by_death=True)
    assert one.decode(120.0)[0].scheduling.timeout == 0.0


def test_scores_of_the_prompt_are_asked_for_once():
    one = handed_over(sampling=SamplingParams(8, prompt_logprobs=2))
    assert one.decode(101.0)[0].sampling.prompt_logprobs is None


def test_of_a_beam_search_the_leader_reports_and_all_of_it_is_sent_again():
    one = journey(3, SamplingParams(8, temperature=0.0, beam=BeamParams(3)))
    (add,) = one.decode(100.0)
    one.lost(by_death=True)
    assert one.decode(100.0) == (add,)
    assert (add.siblings, add.generated) == (("r1", "r2"), ())
    with pytest.raises(IllegalState):
        one.prefill(101.0)


def test_what_makes_no_sense_raises():
    one = handed_over()
    with pytest.raises(IllegalState, match="handed over from offered"):
        one.prefill(101.0)
    one.decode(101.0)
    with pytest.raises(IllegalState, match="sent on from placed"):
        one.decode(101.0)
    one.end(["r0"])
    with pytest.raises(IllegalState, match="lost while ended"):
        one.lost(by_death=True)
