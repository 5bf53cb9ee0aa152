"""The sampler as a GPU runs it: nothing up to the chosen tokens may look at a value, and it chooses as on a CPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import sampler
from engine.plan import FixedRequest, PlannedRow
from engine.sampler import Sampler, least_kept_by_halving
from engine.sampling_params import SamplingParams

VOCABULARY = 700
SETTINGS = {
    "greedy": [SamplingParams(max_tokens=5, temperature=0)] * 3,
    "drawn": [SamplingParams(max_tokens=5, seed=1), SamplingParams(max_tokens=5)],
    "everything": [
        SamplingParams(max_tokens=5, temperature=0, logprobs=3),
        SamplingParams(max_tokens=5, top_k=4, seed=1),
        SamplingParams(max_tokens=5, top_p=0.3, min_p=0.1, seed=1, logprobs=0),
        SamplingParams(max_tokens=5, top_k=50, top_p=0.9, temperature=0.7),
        SamplingParams(max_tokens=5, logit_bias={3: 2.0}, min_tokens=4, stop_token_ids=[7]),
        SamplingParams(max_tokens=5, repetition_penalty=1.2, frequency_penalty=0.5, presence_penalty=0.1),
    ],
}


def rows_of(samplings):
    return [
        PlannedRow(FixedRequest(str(i), [5, 6, 7, 8, 8], 3, [0], sampling), "decode", 4, 1, True)
        for i, sampling in enumerate(samplings)
    ]


@pytest.mark.parametrize("name", SETTINGS)
def test_choosing_never_waits_for_a_value(name):
    """Tensors on the meta device have no values: whoever asks for one gets an error."""
    rows = rows_of(SETTINGS[name])
    logits = torch.empty(len(rows), VOCABULARY, device="meta")
    tokens, usable, report = Sampler(frozenset([2])).choose(logits, rows)
    assert tokens.device.type == usable.device.type == "meta"
    assert tokens.shape == usable.shape == (len(rows),)
    if report is not None:
        assert [column.shape[0] for column in report.columns(tokens)] == [2, 2, 2]


def test_one_tensor_crosses_to_the_host(monkeypatch):
    """With all that a step brings: tokens, which of them hold, log-probabilities and the best alternatives."""
    crossed = []

    class Elsewhere(torch.Tensor):
        """On the CPU, yet takes itself for a GPU's."""

        @property
        def device(self):
            return torch.device("cuda")

        def cpu(self):
            crossed.append(self.numel())
            return self.as_subclass(torch.Tensor)

    columns = [torch.tensor([3, 2**31]), torch.tensor([True, False]), torch.tensor([[0.1, -2.5], [1e-30, 3.0]])]
    found = sampler._to_host([column.as_subclass(Elsewhere) for column in columns])
    assert found == [column.tolist() for column in columns]
    assert crossed == [8]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    sharpness=st.sampled_from([0.1, 1.0, 5.0, 30.0]),
    limits=st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 40, 699, 700, 9999]), st.sampled_from([1e-6, 0.1, 0.5, 0.95, 0.9999, 1])),
        min_size=1,
        max_size=5,
    ),
)
def test_halving_finds_the_same_bounds(seed, sharpness, limits):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(limits), VOCABULARY, generator=generator) * sharpness
    logits[:, :5] = logits[:, 5:10]  # equals, which are kept or dropped together
    probabilities = logits.softmax(dim=-1)
    samplings = [SamplingParams(max_tokens=1, top_k=k, top_p=p) for k, p in limits]
    expected = sampler._least_kept(probabilities, samplings)
    found = least_kept_by_halving(probabilities, samplings)
    for row, sampling, one, other in zip(probabilities.double(), samplings, expected, found, strict=True):
        kept, kept_by_halving = row >= one, row >= other
        if not kept.equal(kept_by_halving):  # float32 sums of a mass this near to top_p may fall on either side of it
            best = row.sort(descending=True).values[: sampling.top_k or VOCABULARY]
            fewer = min(row[kept].sum(), row[kept_by_halving].sum())
            assert abs(fewer / row[row >= best[-1]].sum() - sampling.top_p) < 2e-6
            assert row[kept != kept_by_halving].unique().numel() == 1


@pytest.mark.parametrize("find", [sampler._least_kept, least_kept_by_halving])
def test_top_p_is_a_share_of_every_equal_that_top_k_leaves(find, monkeypatch):
    monkeypatch.setattr(sampler, "NUCLEUS_GUESS", 1)  # only the best three are sorted
    probabilities = torch.tensor([[0.4, 0.2, 0.1, 0.1, 0.1, 0.1]])
    # Of 1.0 that are left, the first two have 0.6; of the first three alone they would have 0.86.
    sampling = SamplingParams(max_tokens=1, top_k=3, top_p=0.65)
    assert find(probabilities, [sampling]).item() == pytest.approx(0.1)
    assert find(probabilities, [SamplingParams(max_tokens=1, top_k=3, top_p=0.59)]).item() == pytest.approx(0.2)
