"""Searches small enough to be done by hand; transformers judges larger ones in test_sharing_oracle.py."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from engine.beam_search import BeamGroup, BeamSearch, Continuation
from engine.messages import BeamOutput
from engine.request import Request
from engine.sampling_params import BeamParams
from tests.engine.mirror import expected_beams, greedy, mirror_core
from tests.engine.test_scheduler import finish

END = 9
Tops = list[list[tuple[int, float]]]


def search(width: int, max_tokens: int = 20, ends: tuple[int, ...] = (END,), min_tokens: int = 0, **params: Any):
    return BeamSearch(BeamParams(width, **params), frozenset(ends), min_tokens, max_tokens)


def run(beams: BeamSearch, steps: list[Tops]) -> int:
    """Advance by hand-made candidates until it is done; returns the steps it took."""
    outputs: list[tuple[int, ...]] = [()]
    for count, tops in enumerate(steps, 1):
        going = beams.advance(tops, outputs)
        if beams.done:
            assert going == []
            return count
        outputs = [(*outputs[parent], token) for parent, token in going]
    raise AssertionError("the search is not done")


def test_the_best_sums_go_on_whichever_beam_they_continue():
    # Trap 16: the parent is carried, whatever the number of candidates of each beam.
    beams = search(2, ends=())
    assert beams.advance([[(1, -1.0), (2, -1.5), (3, -4.0), (4, -5.0)]], [()]) == [(0, 1), (0, 2)]
    assert beams.scores == [-1.0, -1.5]
    first, second = [(4, -2.0), (5, -3.0), (6, -3.1)], [(7, -0.5), (8, -0.75), (4, -9.0)]
    assert beams.advance([first, second], [(1,), (2,)]) == [Continuation(1, 7), Continuation(1, 8)]
    assert beams.scores == [-2.0, -2.25]


def test_at_the_length_limit_the_best_running_beams_are_the_answer():
    beams = search(2, max_tokens=2, ends=())
    steps: list[Tops] = [[[(1, -1.0), (2, -1.5)]], [[(4, -2.0), (5, -3.0)], [(6, -0.5), (7, -4.0)]]]
    assert run(beams, steps) == 2
    assert beams.finished == [BeamOutput((2, 6), -2.0, -1.0, "length"), BeamOutput((1, 4), -3.0, -1.5, "length")]


def test_one_token_is_one_step_and_an_end_is_no_length():
    beams = search(2, max_tokens=1)
    assert run(beams, [[[(4, -1.0), (END, -2.0), (5, -3.0), (6, -4.0)]]]) == 1
    assert beams.finished == [BeamOutput((4,), -1.0, -1.0, "length"), BeamOutput((END,), -2.0, -2.0, "stop", END)]


def test_an_end_counts_only_among_the_first_width_and_others_go_on_in_its_place():
    beams = search(2)
    going = beams.advance([[(1, -1.0), (END, -1.1), (2, -1.2), (3, -1.3)]], [()])
    assert [output.token_ids for output in beams.finished] == [(END,)]
    assert going == [(0, 1), (0, 2)]
    late = search(2)
    assert late.advance([[(1, -1.0), (2, -1.1), (END, -1.2), (3, -1.3)]], [()]) == [(0, 1), (0, 2)]
    assert late.finished == []


def test_any_of_several_ends_finishes_a_beam_and_is_told():
    beams = search(2, ends=(8, 9), early_stopping=True)
    beams.advance([[(9, -1.0), (8, -1.1), (1, -1.2), (2, -1.3)]], [()])
    assert beams.done
    assert [(output.finished, output.stop_token) for output in beams.finished] == [("stop", 9), ("stop", 8)]


@pytest.mark.parametrize(("penalty", "best"), [(0.0, (END,)), (1.0, (1, 2, END)), (2.0, (1, 2, END))])
def test_the_length_penalty_divides_by_the_output_with_its_end(penalty, best):
    # Trap 16.
    beams = search(2, early_stopping=True, length_penalty=penalty)
    run(
        beams,
        [
            [[(END, -2.0), (1, -2.1), (3, -8.0), (4, -8.0)]],
            [[(2, -0.1), (3, -7.0), (4, -7.0), (5, -7.0)], [(3, -7.0), (4, -7.0), (5, -7.0), (6, -7.0)]],
            [[(END, -0.2), (3, -7.0), (4, -7.0), (5, -7.0)], [(3, -7.0), (4, -7.0), (5, -7.0), (6, -7.0)]],
        ],
    )
    assert beams.finished[0].token_ids == best
    scores = {output.token_ids: output.score for output in beams.finished}
    assert scores == {(END,): pytest.approx(-2.0), (1, 2, END): pytest.approx(-2.4 / 3**penalty)}


def test_a_long_prompt_does_not_change_what_a_beam_scores():
    # Trap 16.
    core = mirror_core()
    sampling = greedy(5, ignore_eos=True, beam=BeamParams(2, length_penalty=2.0))
    core.add("a", list(range(30)), sampling, siblings=["a.1"])
    beams: tuple[BeamOutput, ...] = ()
    while core.has_work:
        beams = next((output.beams for output in core.step()[0] if output.beams), beams)
    assert beams == expected_beams(list(range(30)), sampling, 64)
    assert [output.score for output in beams] == [pytest.approx(output.logprob / 25) for output in beams]


# Two sequences are finished after two steps. The best running one betters the worse of them at its present length
# after two steps (-2.4 / 2 > -2), not after three (-6.4 / 3 < -1.15), and at six tokens it does (-6.7 / 6 > -1.15).
FILLER = [(5, -9.0), (6, -9.0), (7, -9.0)]
STEPS: list[Tops] = [
    [[(END, -2.0), (1, -2.1), (2, -2.2), (3, -5.0)]],
    [[(END, -0.2), (4, -0.3), *FILLER], [(6, -3.0), *FILLER]],
    [[(END, -0.1), (7, -4.0), *FILLER], [(6, -3.0), *FILLER]],
    *[[[(8, -0.1), *FILLER], [(6, -3.0), *FILLER]]] * 3,
]


@pytest.mark.parametrize(
    ("early_stopping", "steps", "best"),
    [
        (True, 2, [(1, END), (END,)]),
        (False, 3, [(1, 4, END), (1, END)]),
        ("never", 6, [(1, 4, END), (1, 4, 7, 8, 8, 8)]),
    ],
)
def test_when_a_search_ends(early_stopping, steps, best):
    beams = search(2, max_tokens=6, early_stopping=early_stopping)
    assert run(beams, STEPS) == steps
    assert [output.token_ids for output in beams.finished] == best


@pytest.mark.parametrize(("penalty", "done"), [(1.0, False), (0.0, True), (-1.0, True)])
def test_never_takes_the_present_length_where_longer_ones_are_not_favoured(penalty, done):
    beams = search(1, max_tokens=10, early_stopping="never", length_penalty=penalty)
    beams.advance([[(END, -1.0), (1, -1.2)]], [()])
    assert beams.done is done


def test_never_does_not_hold_the_greatest_length_against_a_beam_where_longer_ones_are_punished():
    beams = search(2, max_tokens=10, early_stopping="never", length_penalty=-1.0)
    beams.advance([[(END, -1.0), (1, -1.1), (2, -9.0), (3, -9.0)]], [()])
    beams.advance([[(4, -0.1), (END, -2.0), *FILLER], [(5, -9.0), *FILLER]], [(1,), (2,)])
    assert [output.score for output in beams.finished] == [pytest.approx(-1.0), pytest.approx(-3.1 * 2)]
    assert not beams.done, "-1.2 * 2 is better, though -1.2 * 10 is not"


def test_the_first_end_may_follow_min_tokens_others():
    # Trap 15: as the sampler has it, which bans the ends while fewer than min_tokens are there.
    beams = search(1, min_tokens=2)
    for output in ((), (1,)):
        assert beams.advance([[(END, -0.1), (1, -1.0), (2, -2.0)]], [output]) == [(0, 1)]
    assert beams.finished == []
    assert beams.advance([[(END, -0.1), (1, -1.0), (2, -2.0)]], [(1, 1)]) == []
    assert [output.token_ids for output in beams.finished] == [(1, 1, END)]


def test_min_tokens_does_not_pass_the_length_limit():
    # Trap 15.
    beams = search(1, max_tokens=2, min_tokens=9)
    assert run(beams, [[[(END, -0.1), (1, -1.0), (2, -2.0)]]] * 2) == 2
    assert [(output.token_ids, output.finished) for output in beams.finished] == [((1, 1), "length")]


def test_a_better_end_takes_the_place_of_the_worst():
    beams = search(1, early_stopping="never", max_tokens=4)
    beams.advance([[(END, -3.0), (1, -3.1)]], [()])
    beams.advance([[(END, -0.1), (1, -5.0)]], [(1,)])
    assert [output.token_ids for output in beams.finished] == [(1, END)]


@pytest.mark.parametrize(("ends", "candidates"), [((), 8), ((7,), 9), ((7, 8), 14), ((6, 7, 8), 19)])
def test_as_many_candidates_are_asked_for_as_may_end_and_may_be_banned(ends, candidates):
    assert search(4, ends=ends).candidates == candidates


@pytest.mark.parametrize("seed", range(30))
def test_the_candidates_asked_for_are_as_good_as_the_whole_vocabulary(seed):
    chance = random.Random(seed)
    width, ends, vocabulary = chance.randint(1, 4), tuple(range(chance.randint(0, 3))), 40
    settings: dict[str, Any] = {
        "max_tokens": 6,
        "ends": ends,
        "min_tokens": chance.randint(0, 3),
        "early_stopping": chance.choice([True, False, "never"]),
        "length_penalty": chance.choice([-1.0, 0.0, 1.0, 2.0]),
    }
    enough, everything = search(width, **settings), search(width, **settings)
    outputs: list[tuple[int, ...]] = [()]
    while not enough.done:
        tops = []
        for _ in outputs:  # the ends are likely, or they would hardly ever come first
            scores = {token: chance.uniform(-9.0, -1.0) + 4 * (token in ends) for token in range(vocabulary)}
            tops.append(sorted(scores.items(), key=lambda item: -item[1]))
        going = enough.advance([top[: enough.candidates] for top in tops], outputs)
        assert going == everything.advance(tops, outputs)
        assert len(going) == (0 if enough.done else width)
        assert enough.finished == everything.finished
        outputs = [(*outputs[parent], token) for parent, token in going]
    assert enough.finished == sorted(enough.finished, key=lambda output: -output.score)
    assert len(enough.finished) <= width


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_a_search_as_wide_as_all_sequences_finds_the_best_of_them(penalty):
    chance = random.Random(int(penalty))
    logprobs = {
        prefix: {token: chance.uniform(-4.0, 0.0) for token in (1, 2, END)}
        for length in range(3)
        for prefix in itertools.product((1, 2), repeat=length)
    }
    sums = {
        (*prefix, token): sum(logprobs[(*prefix, token)[:i]][(*prefix, token)[i]] for i in range(len(prefix) + 1))
        for prefix, tops in logprobs.items()
        for token in tops
        if token == END or len(prefix) == 2
    }
    beams = search(8, max_tokens=3, early_stopping="never", length_penalty=penalty)
    outputs: list[tuple[int, ...]] = [()]
    while not beams.done:
        going = beams.advance([list(logprobs[output].items()) for output in outputs], outputs)
        outputs = [(*outputs[parent], token) for parent, token in going]
    ranked = sorted(sums, key=lambda tokens: -sums[tokens] / len(tokens) ** penalty)
    assert [output.token_ids for output in beams.finished] == ranked[:8]


def test_beams_are_together_when_each_lacks_its_last_token_alone():
    leader, other = (Request(name, [1, 2, 3], greedy(4), 0.0, i) for i, name in enumerate("ab"))
    group = BeamGroup(leader, search(2))
    assert group.together, "one alone needs nobody"
    group.members.append(other)
    leader.num_computed = 2
    assert not group.together
    other.num_computed = 2
    assert group.together


def test_a_search_reports_once_and_only_under_the_name_that_was_asked_for():
    core = mirror_core()
    sampling = greedy(6, beam=BeamParams(3))
    core.add("a", [1, 2, 3], sampling, siblings=["a.1", "a.2"])
    records, tokens, reasons = finish(core)
    assert tokens == {}
    assert list(reasons) == ["a"]
    assert {left.request for record in records for left in record.left} == {"a", "a.1", "a.2"}
    assert core.pool.num_available == 32


@pytest.mark.parametrize("ends", [28, 29, 30, 31, 32])
def test_a_search_goes_on_where_nearly_every_token_is_an_end(ends):
    core = mirror_core()
    sampling = greedy(6, beam=BeamParams(4, 2.0, "never"), stop_token_ids=tuple(range(ends)), ignore_eos=True)
    core.add("a", [1, 2], sampling, siblings=["a.1", "a.2", "a.3"])
    beams: tuple[BeamOutput, ...] = ()
    while core.has_work:
        beams = next((output.beams for output in core.step()[0] if output.beams), beams)
    assert 1 <= len(beams) <= 4
    assert len({output.token_ids for output in beams}) == len(beams)
    assert all(output.logprob > -100 for output in beams), "none that only filled a place"
    assert core.pool.num_available == 32


def test_a_width_without_as_many_siblings_is_refused():
    with pytest.raises(ValueError, match="width 3 needs 2 siblings"):
        mirror_core().add("a", [1], greedy(2, beam=BeamParams(3)), siblings=["a.1"])
