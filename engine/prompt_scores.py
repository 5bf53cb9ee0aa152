"""Log-probabilities of prompt tokens, from the logits of the tokens before them, for `prompt_logprobs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from engine.cpu_decoder import CPUDecoder
from engine.model import Decoder
from engine.plan import PlannedRow, ScoredToken

SLICE_ROWS = 128  # rows of logits held at a time: a long chunk times the vocabulary would be hundreds of MB


def score_prompts(
    model: Decoder | CPUDecoder, hidden: Tensor, rows: Sequence[PlannedRow]
) -> dict[str, tuple[ScoredToken, ...]]:
    """Score each row's `scored` places; hidden [S, hidden_size] has one row for each, those of `rows` in order.

    Of tokens equally likely each has the rank of the first.
    """
    scored = _scores(model, hidden, rows)
    return {row.request_id: tuple(islice(scored, len(row.scored))) for row in rows}


def _scores(model: Decoder | CPUDecoder, hidden: Tensor, rows: Sequence[PlannedRow]) -> Iterator[ScoredToken]:
    tokens = [row.request.tokens[place] for row in rows for place in row.scored]
    counts = [row.request.sampling.prompt_logprobs or 0 for row in rows for _ in row.scored]
    for begin in range(0, len(tokens), SLICE_ROWS):
        some = slice(begin, begin + SLICE_ROWS)
        values = model.logits(hidden[some]).log_softmax(dim=-1)
        own = values.gather(1, torch.tensor(tokens[some], device=values.device)[:, None])
        ranks = (values > own).sum(dim=-1) + 1
        best = values.topk(min(max(counts[some]), values.shape[1]), dim=-1)
        found = (own[:, 0].tolist(), ranks.tolist(), best.indices.tolist(), best.values.tolist(), counts[some])
        for logprob, rank, ids, logprobs, count in zip(*found, strict=True):
            yield ScoredToken(logprob, rank, tuple(zip(ids[:count], logprobs[:count], strict=True)))
