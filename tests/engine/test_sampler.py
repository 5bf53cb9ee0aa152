"""Each sampling parameter against a plain implementation of its meaning, or against the distribution it names."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine import sampler
from engine.plan import FixedRequest, PlannedRow
from engine.sampler import CHUNK, Sampler, num_races, pick, race_times
from engine.sampling_params import SamplingParams

EOS = frozenset({3, 5})
DRAWS = 4000


def row(
    prompt: list[int] | None = None, output: list[int] | None = None, name: str = "r", **sampling: Any
) -> PlannedRow:
    prompt, output = prompt or [0], output or []
    history = prompt + output
    params = SamplingParams(max_tokens=1000, **sampling)
    return PlannedRow(FixedRequest(name, history, len(prompt), [0], params), "decode", len(history) - 1, 1, True)


def sample(logits: torch.Tensor, *rows: PlannedRow) -> list[Any]:  # of Sampled, or None
    stacked = logits.clone() if logits.dim() == 2 else logits.repeat(len(rows), 1)
    return Sampler(EOS).sample(stacked, rows)


def random_logits(vocabulary: int, seed: int, rows: int | None = None) -> torch.Tensor:
    shape = (vocabulary,) if rows is None else (rows, vocabulary)
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 2, shape)).float()


def kept_tokens(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> dict[int, float]:
    """The distribution as the words say it, one token at a time: min_p, then top_k, then top_p."""
    weights = np.exp((logits - logits.max()) / temperature)
    probabilities = weights / weights.sum()
    order = sorted(range(len(logits)), key=lambda i: -probabilities[i])
    order = [i for i in order if probabilities[i] >= min_p * probabilities.max()]
    if top_k:
        order = order[:top_k]
    total = sum(probabilities[i] for i in order)
    kept: dict[int, float] = {}
    for i in order:
        if top_p < 1 and sum(kept.values()) >= top_p * total:
            break
        kept[i] = probabilities[i]
    mass = sum(kept.values())
    return {i: p / mass for i, p in kept.items()}


def expected_draw(distribution: dict[int, float], seed: int, vocabulary: int) -> int:
    """Who wins the two races, over a plain distribution."""
    times = race_times(seed, 0, num_races(vocabulary)).tolist()
    chunks = -(-vocabulary // CHUNK)
    weights = [0.0] * chunks
    for token, p in distribution.items():
        weights[token // CHUNK] += p
    winner = min((chunk for chunk in range(chunks) if weights[chunk]), key=lambda chunk: times[chunk] / weights[chunk])
    inside = [token for token in distribution if token // CHUNK == winner]
    return min(inside, key=lambda token: times[chunks + token % CHUNK] / distribution[token])


def test_greedy_takes_the_best_token_and_the_first_of_equals() -> None:
    logits = random_logits(50, 0, rows=3)
    logits[1, 7] = logits[1, 30] = 40.0
    found = sample(logits, *(row(temperature=0) for _ in range(3)))
    assert [s.token_id for s in found] == [int(logits[0].argmax()), 7, int(logits[2].argmax())]
    assert all(s.logprob is None and s.top == () for s in found)


def test_greedy_ignores_filters_and_seed() -> None:
    logits = random_logits(50, 1)
    found = sample(logits, row(temperature=0, seed=1, top_p=0.01), row(temperature=1e-9, seed=2, top_k=3))
    assert {s.token_id for s in found} == {int(logits.argmax())}


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 2.5},
        {"top_k": 1},
        {"top_k": 5},
        {"top_k": 10_000},
        {"top_p": 0.7},
        {"top_p": 1e-6},
        {"min_p": 0.2},
        {"top_k": 8, "top_p": 0.8},
        {"temperature": 1.7, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=str,
)
def test_draws_follow_the_distribution(sampling: dict[str, Any]) -> None:
    """Every draw is what the plain races over the plain distribution give, and together they fit it."""
    logits = random_logits(20, 2)
    distribution = kept_tokens(
        logits.double().numpy(),
        sampling.get("temperature", 1.0),
        sampling.get("top_k", 0),
        sampling.get("top_p", 1.0),
        sampling.get("min_p", 0.0),
    )
    rows = [row(seed=seed, **sampling) for seed in range(DRAWS)]
    found = [s.token_id for s in sample(logits, *rows)]
    expected = [expected_draw(distribution, seed, 20) for seed in range(DRAWS)]
    assert sum(a != b for a, b in zip(found, expected, strict=True)) <= 1  # float32 at a boundary
    counts = Counter(found)
    assert set(counts) <= set(distribution)
    likely = [i for i, p in distribution.items() if p * DRAWS >= 5]
    statistic = sum((counts[i] - distribution[i] * DRAWS) ** 2 / (distribution[i] * DRAWS) for i in likely)
    freedom = max(len(likely) - 1, 1)
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    vocabulary=st.sampled_from([7, 256, 300, 1000]),
    flat=st.booleans(),
    top_k=st.sampled_from([0, 1, 40, 280]),
    top_p=st.sampled_from([1.0, 0.999, 0.95, 0.5, 0.1]),
    min_p=st.sampled_from([0.0, 0.01, 0.3]),
)
def test_filters_keep_what_the_words_say(
    seed: int, vocabulary: int, flat: bool, top_k: int, top_p: float, min_p: float
) -> None:
    """Also where the nucleus is wider than the few tokens that are sorted first."""
    logits = random_logits(vocabulary, seed) * (0.05 if flat else 1.0)
    distribution = kept_tokens(logits.double().numpy(), 1.0, top_k, top_p, min_p)
    rows = [row(seed=i, top_k=top_k, top_p=top_p, min_p=min_p) for i in range(40)]
    other = row(seed=0)  # beside a row without filters
    found = [s.token_id for s in sample(logits, *rows, other)][:-1]
    expected = [expected_draw(distribution, i, vocabulary) for i in range(40)]
    assert sum(a != b for a, b in zip(found, expected, strict=True)) <= 1


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    vocabulary=st.sampled_from([65, 300, 3000]),
    spread=st.sampled_from([0.0, 1e-6, 0.02, 0.5, 3.0]),
    levels=st.sampled_from([1, 2, 50, 10_000]),
    top_p=st.sampled_from([1e-3, 0.5, 0.9, 0.999, 1 - 1e-9]),
)
def test_a_wide_nucleus_ends_where_a_sort_ends_it(
    seed: int, vocabulary: int, spread: float, levels: int, top_p: float
) -> None:
    """Equal probabilities, and such as fall into one bin, among them."""
    logits = (random_logits(vocabulary, seed, rows=5) * levels).round() / levels * spread
    logits[0] = logits[0].masked_fill(logits[0] < 0, -1e30)  # half of them impossible
    probabilities = logits.softmax(dim=-1)
    shares = torch.tensor([top_p, 0.8, top_p, 0.95, top_p], dtype=torch.float64)
    exact = probabilities.double()
    total = exact.sum(dim=-1)
    best = exact.sort(dim=-1, descending=True).values
    reached = best.cumsum(dim=-1)
    found = sampler._nucleus_edge(probabilities, total, shares)
    for i, edge in enumerate(found.tolist()):
        target, rounding = float(shares[i] * total[i]), 1e-13
        at_least = float(exact[i][exact[i] >= edge].sum())
        more = float(exact[i][exact[i] > edge].sum())
        assert edge in exact[i].tolist()
        assert more - rounding < target <= at_least + rounding
        place = int((reached[i] < target).sum().clamp(max=vocabulary - 1))
        assert edge == float(best[i, place]) or abs(float(reached[i, place]) - target) < rounding


def test_wide_nuclei_are_looked_for_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = random_logits(500, 12, rows=7) * 0.1
    rows = [row(seed=i, top_p=0.9 if i % 3 else 0.01) for i in range(7)]
    expected = sample(logits, *rows)
    monkeypatch.setattr(sampler, "EDGE_ELEMENTS", 1000)  # two rows
    assert sample(logits, *rows) == expected


def test_rows_keep_their_own_settings() -> None:
    logits = random_logits(600, 4, rows=6) * 0.2
    rows = [
        row(seed=1, top_k=3),
        row(temperature=0),
        row(seed=3, top_p=0.99),
        row(seed=4),
        row(seed=5, min_p=0.8),
        row(seed=6, temperature=0.3, top_p=0.4),
    ]
    together = [s.token_id for s in sample(logits, *rows)]
    alone = [sample(logits[i], one)[0].token_id for i, one in enumerate(rows)]
    assert together == alone


def test_a_seed_gives_the_same_draws_whatever_the_batch() -> None:
    logits = random_logits(500, 5)
    mine = [row(output=[1] * n, seed=42) for n in range(20)]
    alone = [sample(logits, one)[0].token_id for one in mine]
    others = [row(output=[2] * n, seed=n, temperature=0.5 + n / 7) for n in range(20)]
    mixed = [one for pair in zip(others, mine, strict=True) for one in pair]
    assert [s.token_id for s in sample(logits, *mixed)][1::2] == alone
    assert len(set(alone)) > 5


def test_a_resumed_prefill_draws_as_the_decode_would_have() -> None:
    logits = random_logits(500, 6)
    decode = row(prompt=[1, 2, 3], output=[4, 5], seed=9)
    resumed = PlannedRow(decode.request, "prefill", 0, 5, True)
    assert sample(logits, decode) == sample(logits, resumed)


def test_without_a_seed_draws_differ() -> None:
    logits = torch.zeros(1000)
    assert len({s.token_id for s in sample(logits, *(row() for _ in range(50)))}) > 30


def test_race_times_are_exponential_and_differ_by_seed_and_place() -> None:
    numbers = np.stack([race_times(seed, index, 50) for seed in range(10) for index in range(10)])
    assert len(np.unique(numbers)) == numbers.size
    counts = np.histogram(np.exp(-numbers.ravel()), bins=20, range=(0, 1))[0]
    assert ((counts - 250) ** 2 / 250).sum() < 19 + 5 * math.sqrt(38)
    assert race_times(-1, 0, 3).tolist() == race_times(2**64 - 1, 0, 3).tolist()
    assert race_times(5, 1, 40).tolist() == race_times(5, 1, 50)[:40].tolist()


@pytest.mark.parametrize("vocabulary", [5, 256, 257, 1000])
def test_pick_draws_each_token_as_often_as_it_is_probable(vocabulary: int) -> None:
    random = np.random.default_rng(vocabulary)
    weights = random.random(vocabulary) * (random.random(vocabulary) < 0.3)
    weights[random.integers(vocabulary)] += 0.2 * vocabulary
    probabilities = torch.from_numpy(weights).float().expand(DRAWS, -1)
    times = torch.from_numpy(np.stack([race_times(seed, 7, num_races(vocabulary)) for seed in range(DRAWS)]))
    counts = np.bincount(pick(probabilities, times).numpy(), minlength=vocabulary)
    assert not counts[weights == 0].any()
    expected = weights / weights.sum() * DRAWS
    likely = expected >= 5
    statistic = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    assert statistic < likely.sum() + 5 * math.sqrt(2 * likely.sum())


def test_the_noise_of_another_batch_hardly_ever_changes_a_draw() -> None:
    """What a cached prefix changes in fp32 logits is some 1e-5: a seeded answer must survive it."""
    random = torch.Generator().manual_seed(4)
    logits = (torch.randn(1, 20_000, generator=random) * 2).expand(600, -1)
    noise = torch.randn(600, 20_000, generator=random) * 1e-4
    rows = [row(seed=seed) for seed in range(600)]
    plain = Sampler(EOS).sample(logits.clone(), rows)
    noisy = Sampler(EOS).sample(logits + noise, rows)
    changed = sum(
        one is None or two is None or one.token_id != two.token_id for one, two in zip(plain, noisy, strict=True)
    )
    assert changed <= 1  # the inverse of the cumulative distribution changed 11


def adjusted(logits: torch.Tensor, one: PlannedRow) -> torch.Tensor:
    """The logits as penalties and bias leave them: the best token is ruled out until none is left."""
    order = []
    bias = dict(one.request.sampling.logit_bias)
    for _ in range(len(logits)):
        sampling = replace(one.request.sampling, logit_bias=bias)
        again = replace(one, request=replace(one.request, sampling=sampling))
        order.append(sample(logits, again)[0].token_id)
        bias[order[-1]] = -1e4
    return torch.tensor(order)


@pytest.mark.parametrize(
    ("presence", "frequency", "repetition"),
    [(1.5, 0.0, 1.0), (0.0, 0.7, 1.0), (0.0, 0.0, 1.8), (-1.0, -0.5, 0.5), (0.9, 0.6, 1.3)],
)
def test_penalties_order_the_tokens_as_defined(presence: float, frequency: float, repetition: float) -> None:
    logits = random_logits(12, 7)
    prompt, output = [1, 2, 2, 8], [2, 4, 4, 4, 9]
    expected = logits.double().clone()
    for token in range(12):
        if token in prompt + output:
            value = float(expected[token])
            expected[token] = value / repetition if value > 0 else value * repetition
        count = output.count(token)
        expected[token] -= frequency * count + presence * (count > 0)
    one = row(
        prompt,
        output,
        temperature=0,
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
    )
    assert adjusted(logits, one).tolist() == expected.argsort(descending=True).tolist()


def test_logit_bias_forces_and_forbids() -> None:
    logits = random_logits(30, 8)
    best = int(logits.argmax())
    assert sample(logits, row(temperature=0, logit_bias={17: 100.0}))[0].token_id == 17
    assert sample(logits, row(seed=1, logit_bias={17: 100.0}))[0].token_id == 17
    assert sample(logits, row(temperature=0, logit_bias={best: -100.0}))[0].token_id != best


def test_min_tokens_hides_every_end_until_reached() -> None:
    logits = torch.zeros(10)
    logits[3], logits[7], logits[5], logits[1] = 9.0, 8.0, 7.0, 6.0  # 3 and 5 end the text, 7 is a stop token

    def token(output: list[int], **sampling: Any) -> int:
        return sample(logits, row(output=output, temperature=0, stop_token_ids=(7,), **sampling))[0].token_id

    assert token([], min_tokens=2) == 1
    assert token([1], min_tokens=2) == 1
    assert token([1, 1], min_tokens=2) == 3
    assert token([], min_tokens=2, ignore_eos=True) == 3
    # Hidden ends stay hidden, whatever the bias.
    assert token([], min_tokens=1, logit_bias={3: 100.0}) == 1


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = random_logits(40, 9, rows=4)
    raw = logits.double().log_softmax(dim=-1)
    rows = [
        row(seed=1, temperature=0.2, top_k=2, logit_bias={5: 3.0}, logprobs=3),
        row(temperature=0),
        row(temperature=0, logprobs=0),
        row(seed=4, logprobs=40),
    ]
    found = sample(logits, *rows)
    assert found[1].logprob is None
    assert found[1].top == ()
    assert found[2].top == ()
    for i, count in ((0, 3), (2, 0), (3, 40)):
        logprob = found[i].logprob
        assert logprob is not None
        assert math.isclose(logprob, float(raw[i, found[i].token_id]), abs_tol=1e-5)
        best = raw[i].topk(count)
        assert [token for token, _ in found[i].top] == best.indices.tolist()
        assert np.allclose([value for _, value in found[i].top], best.values, atol=1e-5)
    assert found[2].token_id == int(logits[2].argmax())


def test_hundreds_of_logprobs_come_best_first_beside_rows_with_few() -> None:
    logits = random_logits(3000, 11, rows=3)
    raw = logits.double().log_softmax(dim=-1)
    rows = [row(temperature=0, logprobs=500), row(temperature=0, logprobs=2), row(seed=1, logprobs=4000)]
    for i, (found, count) in enumerate(zip(sample(logits, *rows), (500, 2, 3000), strict=True)):
        best = raw[i].topk(count)
        tokens, values = zip(*found.top, strict=True)
        assert len(set(tokens)) == count
        assert list(values) == sorted(values, reverse=True)
        assert np.allclose(values, best.values, atol=1e-5)
        assert np.allclose(values, raw[i, list(tokens)], atol=1e-5)
    assert found.logprob == dict(found.top)[found.token_id]


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"seed": 1}, {"seed": 1, "top_p": 0.5}], ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_logits_that_are_no_numbers_cost_their_own_row_alone(
    sampling: dict[str, Any], value: float, logprobs: int | None
) -> None:
    logits = random_logits(40, 10, rows=3)
    rows = [row(name=name, logprobs=logprobs, **sampling) for name in ("good", "bad", "fine")]
    expected = sample(logits, *rows)
    logits[1, 8] = value
    assert sample(logits, *rows) == [expected[0], None, expected[2]]


def test_a_row_with_nothing_allowed_has_no_token() -> None:
    assert sample(torch.full((5,), float("-inf")), row(temperature=0)) == [None]
    everything = tuple(range(8))
    assert sample(random_logits(8, 1), row(min_tokens=1, stop_token_ids=everything)) == [None]


def test_no_rows_no_tokens() -> None:
    assert Sampler(EOS).sample(torch.empty(0, 10), []) == []
