"""From logits to one token a row, with vLLM's meanings and its order: minimum length and logit bias, penalties,
temperature, min_p, top_k, top_p, then a draw. Log-probabilities are of the raw logits, before all of that.

Draws are stateless: the random numbers of a token follow from its request's seed and its place in the output
alone (a counter-based generator: Salmon et al., 2011), whatever else is in the batch and however often the request
was preempted.

On a GPU everything up to the chosen tokens is only queued, and one copy brings them to the host. Some steps are done
otherwise there than on a CPU, with the same result: what looks at a value to do less work would have to wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.plan import PlannedRow, Sampled
from engine.sampling_params import SamplingParams
from kernels.upload import upload

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
        chosen, usable, report = self.choose(logits, rows)
        columns = [chosen, usable] if report is None else [chosen, usable, *report.columns(chosen)]
        tokens, good, *told = _to_host(columns)
        sampled = [Sampled(token) for token in tokens] if report is None else report.sampled(tokens, *told)
        return [one if is_usable else None for one, is_usable in zip(sampled, good, strict=True)]

    @torch.inference_mode()
    def choose(self, logits: Tensor, rows: Sequence[PlannedRow]) -> tuple[Tensor, Tensor, _LogProbs | None]:
        """On the device of the logits: a token for each row int64 [R], whether it may be used bool [R], and the
        log-probabilities if a row asks for them."""
        report = _LogProbs(logits, rows) if any(r.request.sampling.logprobs is not None for r in rows) else None
        for i, row in enumerate(rows):
            if _adjusts(row):
                _adjust(logits[i], row, self.eos_token_ids)
        best, chosen = best_tokens(logits)
        usable = best.isfinite()
        if logits.device.type == "cpu" and not usable.all():
            logits[~usable] = 0.0  # what is computed of them must not slow or disturb the rows beside them
        drawn = [i for i, row in enumerate(rows) if row.request.sampling.temperature >= GREEDY_BELOW]
        if not drawn:
            return chosen, usable, report
        places = _on(torch.tensor(drawn), logits)
        samplings = [rows[i].request.sampling for i in drawn]
        probabilities = _filtered(logits if len(drawn) == len(rows) else logits[places], samplings)
        count = num_races(logits.shape[1])
        times = [race_times(rows[i].request.sampling.seed, _output_index(rows[i]), count) for i in drawn]
        picked = pick(probabilities, _on(torch.from_numpy(np.stack(times)), logits))
        return chosen.index_copy(0, places, picked), usable, report


def _on(tensor: Tensor, like: Tensor) -> Tensor:
    """A CPU tensor on the device of `like`, without waiting for it."""
    return upload([tensor], like.device)[0]


def _to_host(columns: Sequence[Tensor]) -> list[list[Any]]:
    """Tensors of numbers that float64 holds exactly, as lists: one copy from the device for all of them."""
    if columns[0].device.type == "cpu":
        return [column.tolist() for column in columns]
    flat = torch.cat([column.flatten().to(torch.float64) for column in columns]).cpu()
    parts = flat.split([column.numel() for column in columns])
    return [part.to(column.dtype).view(column.shape).tolist() for part, column in zip(parts, columns, strict=True)]


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
            logits[_on(torch.tensor(sorted(ends)), logits)] = float("-inf")
    if sampling.logit_bias:
        biases = torch.tensor(list(sampling.logit_bias.values()), dtype=logits.dtype)
        logits[_on(torch.tensor(list(sampling.logit_bias)), logits)] += _on(biases, logits)
    if sampling.repetition_penalty != 1.0:
        ids = _on(torch.tensor(sorted(set(row.request.tokens))), logits)
        seen = logits[ids]
        penalty = sampling.repetition_penalty
        logits[ids] = torch.where(seen > 0, seen / penalty, seen * penalty)
    if sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0:
        output = np.asarray(row.request.tokens[row.request.prompt_length :], dtype=np.int64)
        if len(output):
            unique, counts = np.unique(output, return_counts=True)
            amounts = sampling.frequency_penalty * counts + sampling.presence_penalty
            logits[_on(torch.from_numpy(unique), logits)] -= _on(torch.from_numpy(amounts).to(logits.dtype), logits)


def _filtered(logits: Tensor, samplings: Sequence[SamplingParams]) -> Tensor:
    """Probabilities [R, V] after temperature, min_p, top_k and top_p; 0 for what is ruled out, not renormalised.

    Tokens as probable as the last one kept are kept too. Changes the logits.
    """
    temperatures = _on(torch.tensor([s.temperature for s in samplings]), logits)
    probabilities = logits.div_(temperatures[:, None]).softmax(dim=-1)
    if any(s.min_p > 0 for s in samplings):
        least = _on(torch.tensor([s.min_p for s in samplings]), logits) * probabilities.amax(dim=-1)
        _drop_below(probabilities, least)
    vocabulary = logits.shape[1]
    limited = [i for i, s in enumerate(samplings) if s.top_p < 1 or 0 < s.top_k < vocabulary]
    if limited:
        places = _on(torch.tensor(limited), logits)
        find = _least_kept if logits.device.type == "cpu" else least_kept_by_halving
        everyone = len(limited) == len(samplings)
        least = find(probabilities if everyone else probabilities[places], [samplings[i] for i in limited])
        bounds = torch.zeros(len(samplings), device=logits.device)
        _drop_below(probabilities, bounds.index_copy(0, places, least))
    return probabilities


def _drop_below(probabilities: Tensor, least: Tensor) -> None:
    """Set to 0 what is less than its row's `least`: on a CPU row by row, ten times as fast as with a mask."""
    if probabilities.device.type != "cpu":
        probabilities.masked_fill_(probabilities < least[:, None], 0.0)
        return
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
    equals = (probabilities == kth).sum(dim=-1) - (best == kth).sum(dim=-1)  # of the k-th, beyond the sorted ones
    total = torch.where(limited, kept.sum(dim=-1) + equals * kth[:, 0].to(torch.float64), every)
    missing = kept.cumsum(dim=-1) < (top_p * total)[:, None]
    last = missing.sum(dim=-1).clamp(max=width - 1)
    nucleus = torch.where(top_p < 1, best.gather(1, last[:, None])[:, 0], 0.0)
    wide = ((top_p < 1) & missing[:, -1] & ~limited).nonzero()[:, 0]
    together = max(1, EDGE_ELEMENTS // vocabulary)
    for begin in range(0, len(wide), together):
        some = wide[begin : begin + together]
        nucleus[some] = _nucleus_edge(probabilities[some], total[some], top_p[some])
    return torch.maximum(nucleus, torch.where(limited, kth[:, 0], 0.0))


def least_kept_by_halving(probabilities: Tensor, samplings: Sequence[SamplingParams]) -> Tensor:
    """As `_least_kept`, in some passes over all tokens whose number depends on no value."""
    vocabulary = probabilities.shape[1]
    least = torch.zeros(len(samplings), device=probabilities.device)
    if any(0 < s.top_k < vocabulary for s in samplings):
        wanted = [float(min(s.top_k or vocabulary, vocabulary)) for s in samplings]
        counts = _on(torch.tensor(wanted, dtype=torch.float64), probabilities)
        least = _highest(probabilities, counts, lambda kept: kept.sum(dim=-1).to(torch.float64))
    if any(s.top_p < 1 for s in samplings):
        shares = _on(torch.tensor([s.top_p for s in samplings], dtype=torch.float64), probabilities)
        left = probabilities.masked_fill(probabilities < least[:, None], 0.0)
        target = shares * left.sum(dim=-1, dtype=torch.float64)
        edge = _highest(left, target, lambda kept: torch.where(kept, left, 0.0).sum(dim=-1, dtype=torch.float64))
        least = torch.where(shares < 1, torch.maximum(least, edge), least)
    return least


def _highest(probabilities: Tensor, target: Tensor, measure: Callable[[Tensor], Tensor]) -> Tensor:
    """The highest bound of each row by which what it keeps (bool [R, V]) still measures `target`: float32 [R].

    Found bit by bit: the bits of floats from 0 to 1 are ordered as the floats are, and the highest two are 0.
    """
    bits = torch.zeros(len(probabilities), dtype=torch.int32, device=probabilities.device)
    for place in range(29, -1, -1):
        higher = bits | (1 << place)
        enough = measure(probabilities >= higher.view(torch.float32)[:, None]) >= target
        bits = torch.where(enough, higher, bits)
    return bits.view(torch.float32)


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
        self.asking = _on(torch.tensor(asking), logits)
        self.values = logits[self.asking].log_softmax(dim=-1)
        most = min(logits.shape[1], max(rows[i].request.sampling.logprobs or 0 for i in asking))
        self.top = self.values.topk(most, dim=-1)

    def columns(self, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of the asking rows: the chosen tokens' log-probabilities, the best tokens and theirs."""
        own = self.values.gather(1, chosen[self.asking][:, None])[:, 0]
        return own, self.top.indices, self.top.values

    def sampled(
        self, tokens: Sequence[int], own: Sequence[float], ids: Sequence[Sequence[int]], top: Sequence[Sequence[float]]
    ) -> list[Sampled]:
        """A `Sampled` for each row, from `columns` as they arrived on the host."""

        def one(row: int, token: int) -> Sampled:
            i = self.place.get(row)
            if i is None:
                return Sampled(token)
            count = self.rows[row].request.sampling.logprobs or 0
            return Sampled(token, own[i], tuple(zip(ids[i][:count], top[i][:count], strict=True)))

        return [one(row, token) for row, token in enumerate(tokens)]
