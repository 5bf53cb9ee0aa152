"""A prompt's tokens are scored as transformers' log-softmax in fp32 scores them, however the prompt is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.loading.resolve import resolve_model
from engine.loading.weights import Weights
from engine.model import Decoder
from engine.plan import FixedRequest, PlannedRow, ScoredToken
from engine.prompt_scores import SLICE_ROWS
from engine.runner import ModelRunner
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams

BLOCK_SIZE, VOCABULARY = 16, 259
LENGTH = SLICE_ROWS * 2 + 60
PROMPT = np.random.default_rng(5).integers(0, VOCABULARY, LENGTH).tolist()


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    """Log-probabilities [LENGTH, vocabulary] of what follows each token."""
    model: Any = AutoModelForCausalLM.from_pretrained(resolve_model("tiny").folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([PROMPT])).logits[0].log_softmax(dim=-1)


@pytest.fixture
def runner() -> ModelRunner:
    resolved = resolve_model("tiny")
    decoder = Decoder(resolved.config, Weights(resolved.folder, torch.float32, torch.device("cpu")), 512)
    return ModelRunner(decoder, Sampler(resolved.eos_token_ids), 64, BLOCK_SIZE)


def request(
    prompt_logprobs: int | None, name: str = "r", tokens: list[int] = PROMPT, first_block: int = 0
) -> FixedRequest:
    sampling = SamplingParams(max_tokens=3, temperature=0, prompt_logprobs=prompt_logprobs)
    return FixedRequest(name, tokens, len(tokens), range(first_block, first_block + 20), sampling)


def prefill(one: FixedRequest, start: int, end: int) -> PlannedRow:
    return PlannedRow(one, "prefill", start, end - start, end >= one.prompt_length)


def check(scored: tuple[ScoredToken, ...], expected: torch.Tensor, first: int, count: int) -> None:
    """`scored` are those of places `first` on, with `count` alternatives."""
    for place, token in enumerate(scored, first):
        row = expected[place - 1]
        assert token.logprob == pytest.approx(float(row[PROMPT[place]]), abs=1e-4)
        others = row[torch.arange(VOCABULARY) != PROMPT[place]]
        own = row[PROMPT[place]]
        assert int((others > own + 2e-4).sum()) < token.rank <= int((others > own - 2e-4).sum()) + 1
        assert len(token.top) == len({name for name, _ in token.top}) == count
        values = [value for _, value in token.top]
        assert values == sorted(values, reverse=True)
        assert values == pytest.approx(row.topk(count).values.tolist(), abs=1e-4)
        assert values == pytest.approx([float(row[name]) for name, _ in token.top], abs=1e-4)
        assert [value for name, value in token.top if name == PROMPT[place]] in ([], [token.logprob])
        assert (token.rank <= count) == (PROMPT[place] in [name for name, _ in token.top])


@pytest.mark.parametrize("ends", [[LENGTH], [1, 17, 200, 201, LENGTH], [LENGTH - 1, LENGTH]], ids=str)
@pytest.mark.parametrize("count", [0, 5])
def test_each_token_after_the_first_is_scored_once(
    runner: ModelRunner, expected: torch.Tensor, ends: list[int], count: int
) -> None:
    one = request(count)
    scored: list[ScoredToken] = []
    for start, end in zip([0, *ends], ends, strict=False):
        result = runner.compute([prefill(one, start, end)])
        found = result.scored.get("r", ())
        assert len(found) == min(end, LENGTH - 1) - start
        assert ("r" in result.sampled) == (end == LENGTH)
        scored += found
    assert len(scored) == LENGTH - 1
    check(tuple(scored), expected, 1, count)


def test_rows_are_scored_apart_by_their_own_settings(runner: ModelRunner, expected: torch.Tensor) -> None:
    plain = prefill(request(None, "plain", PROMPT[:20], 0), 0, 20)
    whole = prefill(request(2, "whole", PROMPT[:30], 20), 0, 30)
    chunk = prefill(request(VOCABULARY + 9, "chunk", PROMPT[:40], 40), 0, 9)
    result = runner.compute([plain, whole, chunk])
    assert result.scored.keys() == {"whole", "chunk"}
    check(result.scored["whole"], expected, 1, 2)
    check(result.scored["chunk"], expected, 1, VOCABULARY)
    assert [len(result.scored[name]) for name in ("whole", "chunk")] == [29, 9]
    for name, length in (("plain", 20), ("whole", 30)):
        assert result.sampled[name].token_id == int(expected[length - 1].argmax())
    assert runner.compute([plain]).scored == {}


def test_what_was_generated_is_not_scored_when_it_is_computed_again(
    runner: ModelRunner, expected: torch.Tensor
) -> None:
    resumed = FixedRequest("r", PROMPT[:30], 25, range(2), request(1).sampling)
    result = runner.compute([PlannedRow(resumed, "prefill", 0, 30, True)])
    check(result.scored["r"], expected, 1, 1)
    assert len(result.scored["r"]) == 24


def test_only_a_slice_of_logits_is_held_at_a_time(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    logits = runner.model.logits

    def watched(hidden: torch.Tensor) -> torch.Tensor:
        rows.append(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(runner.model, "logits", watched)
    runner.compute([prefill(request(1), 0, LENGTH)])
    assert rows == [1, SLICE_ROWS, SLICE_ROWS, 59]


def test_equally_likely_tokens_share_a_rank(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.model, "logits", lambda hidden: torch.zeros(len(hidden), VOCABULARY))
    scored = runner.compute([prefill(request(0, tokens=PROMPT[:9]), 0, 9)]).scored["r"]
    assert [token.rank for token in scored] == [1] * 8
    assert scored[0].logprob == pytest.approx(-np.log(VOCABULARY))
