"""From logits to one token a row, with vLLM's meanings and its order: minimum length and logit bias, penalties,
temperature, min_p, top_k, top_p, then a draw. Log-probabilities are of the raw logits, before all of that.

Draws are stateless: the random numbers of a token follow from its request's seed and its place in the output
alone (a counter-based generator: Salmon et al., 2011), whatever else is in the batch and however often the request
was preempted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.plan import PlannedRow, Sampled
from engine.sampling_params import SamplingParams

GREEDY_BELOW = 1e-5  # temperatures that would overflow, treated as vLLM does
NUCLEUS_GUESS = 64  # how many of the best tokens usually hold a nucleus
EDGE_BITS = 13  # of a float32 that fall into one bin of probabilities: a bin spans a 1024th of its value
EDGE_ELEMENTS = 1 << 22  # probabilities binned at a time, at some 30 bytes each
CHUNK = 256  # tokens taken together when one of them is looked for


class Sampler:
    """Chooses the next token of each row. Stateless but for the ids that end a text."""

    def __init__(self, eos_token_ids: frozenset[int]) -> None:
        self.eos_token_ids = eos_token_ids

    @torch.inference_mode()
    def sample(self, logits: Tensor, rows: Sequence[PlannedRow]) -> list[Sampled | None]:
        """One `Sampled` for each row of logits float32 [len(rows), vocabulary], which may be changed.

        None for a row that cannot be sampled: it holds NaN or infinity, or nothing but -inf.
        """
        if not rows:
            return []
        report = _LogProbs(logits, rows) if any(r.request.sampling.logprobs is not None for r in rows) else None
        for i, row in enumerate(rows):
            if _adjusts(row):
                _adjust(logits[i], row, self.eos_token_ids)
        best, tokens = best_tokens(logits)
        unusable = (~best.isfinite()).nonzero().flatten().tolist()
        if unusable:
            logits[unusable] = 0.0  # what is computed of them must not disturb the rows beside them
        chosen = tokens.tolist()
        drawn = [i for i, row in enumerate(rows) if row.request.sampling.temperature >= GREEDY_BELOW]
        if drawn:
            samplings = [rows[i].request.sampling for i in drawn]
            probabilities = _filtered(logits if len(drawn) == len(rows) else logits[drawn], samplings)
            count = num_races(logits.shape[1])
            times = [race_times(rows[i].request.sampling.seed, _output_index(rows[i]), count) for i in drawn]
            picked = pick(probabilities, torch.from_numpy(np.stack(times)).to(logits.device))
            for i, token in zip(drawn, picked.tolist(), strict=True):
                chosen[i] = token
        sampled: list[Sampled | None] = (
            [Sampled(token) for token in chosen] if report is None else [*report.sampled(chosen)]
        )
        for i in unusable:
            sampled[i] = None
        return sampled


def _output_index(row: PlannedRow) -> int:
    return row.start + row.count - row.request.prompt_length


def race_times(seed: int | None, index: int, count: int) -> NDArray[np.float64]:
    """`count` exponential numbers for a request's output token `index`; without a seed, fresh ones."""
    # The counter's low word is the generator's own: each place in the output has 2**64 numbers to itself.
    bits = np.random.Philox() if seed is None else np.random.Philox(key=seed % 2**64, counter=index << 64)
    return np.random.Generator(bits).standard_exponential(count)


def num_races(vocabulary: int) -> int:
    """How many exponential numbers `pick` needs for a row."""
    return -(-vocabulary // CHUNK) + CHUNK


def pick(probabilities: Tensor, times: Tensor) -> Tensor:
    """Draw one token of each row: int64 [R].

    probabilities [R, V], not necessarily summing to 1; times float64 [R, num_races(V)], exponentially distributed.
    The least of times / probabilities wins, as in a race (the Gumbel-max trick): first among chunks of the vocabulary,
    then within the winner. Unlike with the inverse of the cumulative distribution, where each token's place depends on
    all before it, the noise of another order of summing (a batch, a cached prefix) hardly ever changes who wins.
    """
    padded = _chunks(probabilities, 0.0)
    chunks = padded.shape[1]
    chunk = (times[:, :chunks] / padded.sum(dim=-1)).argmin(dim=-1)
    inside = padded[torch.arange(len(padded), device=padded.device), chunk]
    return chunk * CHUNK + (times[:, chunks:] / inside).argmin(dim=-1)


def best_tokens(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The highest logit of each row [R] and the first token that has it [R]; NaN counts as highest.

    By chunks: on CPUs the maximum of a row is found ten times as fast as its place.
    """
    chunks = _chunks(logits, float("-inf"))
    chunk = chunks.amax(dim=-1).argmax(dim=-1)
    best, place = chunks[torch.arange(len(logits), device=logits.device), chunk].max(dim=-1)
    return best, chunk * CHUNK + place


def _chunks(rows: Tensor, filler: float) -> Tensor:
    """[R, V] as [R, chunks, CHUNK], without a copy where V divides."""
    missing = -rows.shape[1] % CHUNK
    if missing:
        rows = torch.nn.functional.pad(rows, (0, missing), value=filler)
    return rows.view(rows.shape[0], -1, CHUNK)


def _adjusts(row: PlannedRow) -> bool:
    """Whether anything but temperature and filters stands between the logits and the choice."""
    sampling = row.request.sampling
    return bool(
        sampling.logit_bias
        or _output_index(row) < sampling.min_tokens
        or sampling.repetition_penalty != 1.0
        or sampling.frequency_penalty != 0.0
        or sampling.presence_penalty != 0.0
    )


def _adjust(logits: Tensor, row: PlannedRow, eos_token_ids: frozenset[int]) -> None:
    """Change one row's logits in place: minimum length, bias and penalties."""
    sampling = row.request.sampling
    if _output_index(row) < sampling.min_tokens:
        ends = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            ends |= eos_token_ids
        if ends:
            logits[torch.tensor(sorted(ends), device=logits.device)] = float("-inf")
    if sampling.logit_bias:
        ids = torch.tensor(list(sampling.logit_bias), device=logits.device)
        logits[ids] += torch.tensor(list(sampling.logit_bias.values()), device=logits.device)
    if sampling.repetition_penalty != 1.0:
        ids = torch.tensor(sorted(set(row.request.tokens)), device=logits.device)
        seen = logits[ids]
        penalty = sampling.repetition_penalty
        logits[ids] = torch.where(seen > 0, seen / penalty, seen * penalty)
    if sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0:
        output = np.asarray(row.request.tokens[row.request.prompt_length :], dtype=np.int64)
        if len(output):
            unique, counts = np.unique(output, return_counts=True)
            amounts = sampling.frequency_penalty * counts + sampling.presence_penalty
            logits[torch.from_numpy(unique).to(logits.device)] -= torch.from_numpy(amounts).to(logits)


def _filtered(logits: Tensor, samplings: Sequence[SamplingParams]) -> Tensor:
    """Probabilities [R, V] after temperature, min_p, top_k and top_p; 0 for what is ruled out, not renormalised.

    Tokens as probable as the last one kept are kept too. Changes the logits.
    """
    device = logits.device
    temperatures = torch.tensor([s.temperature for s in samplings], device=device)
    probabilities = logits.div_(temperatures[:, None]).softmax(dim=-1)
    if any(s.min_p > 0 for s in samplings):
        least = torch.tensor([s.min_p for s in samplings], device=device) * probabilities.amax(dim=-1)
        _drop_below(probabilities, least)
    vocabulary = logits.shape[1]
    limited = [i for i, s in enumerate(samplings) if s.top_p < 1 or 0 < s.top_k < vocabulary]
    if limited:
        everyone = len(limited) == len(samplings)
        least = _least_kept(probabilities if everyone else probabilities[limited], [samplings[i] for i in limited])
        bounds = torch.zeros(len(samplings), device=device)
        bounds[limited] = least
        _drop_below(probabilities, bounds)
    return probabilities


def _drop_below(probabilities: Tensor, least: Tensor) -> None:
    """Set to 0 what is less than its row's `least`: row by row, which is ten times as fast here as a mask."""
    below = torch.nextafter(least, torch.zeros_like(least)).tolist()
    for row, bound in zip(probabilities, below, strict=True):
        torch.nn.functional.threshold(row, bound, 0.0, inplace=True)


def _least_kept(probabilities: Tensor, samplings: Sequence[SamplingParams]) -> Tensor:
    """The lowest probability that top_k and then top_p keep, per row: [R].

    top_p keeps the fewest best tokens whose share of what top_k left reaches it. Most nuclei are small, so only
    the best few are sorted; rows that need more have the edge of their nucleus looked for.
    """
    vocabulary, device = probabilities.shape[1], probabilities.device
    top_k = torch.tensor([min(s.top_k or vocabulary, vocabulary) for s in samplings], device=device)
    top_p = torch.tensor([s.top_p for s in samplings], dtype=torch.float64, device=device)
    limited = top_k < vocabulary
    widest_k = max((s.top_k for s in samplings if s.top_k < vocabulary), default=0)
    width = min(max(NUCLEUS_GUESS, widest_k), vocabulary)
    best = probabilities.topk(width, dim=-1).values
    kth = best.gather(1, (top_k.clamp(max=width) - 1)[:, None])
    kept = best.to(torch.float64).masked_fill(limited[:, None] & (best < kth), 0.0)
    every = _chunks(probabilities, 0.0).sum(dim=-1).sum(dim=-1, dtype=torch.float64)
    total = torch.where(limited, kept.sum(dim=-1), every)
    missing = kept.cumsum(dim=-1) < (top_p * total)[:, None]
    last = missing.sum(dim=-1).clamp(max=width - 1)
    nucleus = torch.where(top_p < 1, best.gather(1, last[:, None])[:, 0], 0.0)
    wide = ((top_p < 1) & missing[:, -1] & ~limited).nonzero()[:, 0]
    together = max(1, EDGE_ELEMENTS // vocabulary)
    for begin in range(0, len(wide), together):
        some = wide[begin : begin + together]
        nucleus[some] = _nucleus_edge(probabilities[some], total[some], top_p[some])
    return torch.maximum(nucleus, torch.where(limited, kth[:, 0], 0.0))


def _nucleus_edge(probabilities: Tensor, total: Tensor, share: Tensor) -> Tensor:
    """The highest probability whose row has `share` of its `total` in tokens at least as probable: [R].

    Probabilities are summed by bins of their leading bits, which order them; only the bin where the share is reached
    is sorted. A sort of everything takes five times as long.
    """
    bits = probabilities.view(torch.int32)
    # All tokens below this make up less than what may be left out, so they need no bins of their own.
    floor = ((1 - share) * total / probabilities.shape[1]).to(torch.float32)
    lowest = int(floor.view(torch.int32).min()) >> EDGE_BITS
    bins = ((bits >> EDGE_BITS) - lowest).clamp_(min=0).to(torch.int64)
    sums = torch.zeros(len(bins), int(bins.max()) + 1, dtype=torch.float64, device=bins.device)
    sums.scatter_add_(1, bins, probabilities.to(torch.float64))
    reached = sums.flip(1).cumsum(dim=1).flip(1)  # by each bin and those above it
    target = (share * total)[:, None]
    edge = ((reached >= target).sum(dim=1, keepdim=True) - 1).clamp(min=0)
    inside = torch.where(bins == edge, probabilities, 0.0)
    width = max(1, int((inside > 0).sum(dim=1).max()))
    best = inside.topk(width, dim=1).values
    above = reached.gather(1, edge) - sums.gather(1, edge)
    last = (above + best.to(torch.float64).cumsum(dim=1) < target).sum(dim=1, keepdim=True).clamp(max=width - 1)
    return best.gather(1, last)[:, 0]


class _LogProbs:
    """Log-probabilities of the rows that ask for them, taken before anything changes the logits."""

    def __init__(self, logits: Tensor, rows: Sequence[PlannedRow]) -> None:
        self.rows = rows
        asking = [i for i, row in enumerate(rows) if row.request.sampling.logprobs is not None]
        self.place = {row: i for i, row in enumerate(asking)}
        self.values = logits[asking].log_softmax(dim=-1)
        most = min(logits.shape[1], max(rows[i].request.sampling.logprobs or 0 for i in asking))
        top = self.values.topk(most, dim=-1)
        self.top_values, self.top_ids = top.values.tolist(), top.indices.tolist()

    def sampled(self, chosen: Sequence[int]) -> list[Sampled]:
        asking = torch.tensor([chosen[row] for row in self.place], device=self.values.device)
        logprobs = self.values.gather(1, asking[:, None])[:, 0].tolist()
        return [self._one(row, token, logprobs) for row, token in enumerate(chosen)]

    def _one(self, row: int, token: int, logprobs: Sequence[float]) -> Sampled:
        i = self.place.get(row)
        if i is None:
            return Sampled(token)
        count = self.rows[row].request.sampling.logprobs or 0
        pairs = zip(self.top_ids[i][:count], self.top_values[i][:count], strict=True)
        return Sampled(token, logprobs[i], tuple(pairs))
