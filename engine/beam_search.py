"""Beam search over candidates that the runner reports: which beams go on, which are finished, and when it ends.

The rules are those of transformers' `GenerationMixin._beam_search` (version 5.24), so that both find the same
sequences with the same scores; the length penalty divides by the length of the output, its end token counted, and
never by the prompt's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from engine.messages import BeamOutput
from engine.protocol import FinishReason
from engine.sampling_params import BeamParams

if TYPE_CHECKING:
    from engine.request import Request


HOPELESS = -1e9  # the score of a beam that only fills a place


class Continuation(NamedTuple):
    """A beam that goes on: `parent` is the place of the beam it continues, `token` what it adds to it."""

    parent: int
    token: int


class BeamSearch:
    """The scores of one search. `max_tokens` is the longest output; `ends` are the tokens that finish a beam."""

    def __init__(self, params: BeamParams, ends: frozenset[int], min_tokens: int, max_tokens: int) -> None:
        self.params = params
        self.ends = ends
        self.min_tokens = min_tokens
        self.max_tokens = max_tokens
        self.length = 0  # of the running beams' outputs
        self.scores = [0.0]  # their log-probabilities, best first; the first step continues one beam
        self.finished: list[BeamOutput] = []  # best first, at most `width`
        self.done = False

    @property
    def candidates(self) -> int:
        """How many best tokens of each beam must be known: enough that `width` of them go on, whatever ends."""
        return self._kept + len(self.ends)

    @property
    def _kept(self) -> int:
        return max(2, 1 + len(self.ends)) * self.params.width

    def advance(
        self, tops: Sequence[Sequence[tuple[int, float]]], outputs: Sequence[Sequence[int]]
    ) -> list[Continuation]:
        """Take the best (token, log-probability) of each running beam, whose tokens so far are `outputs`.

        Returns the beams that go on, best first; none when the search is done.
        """
        may_end = self.length >= self.min_tokens  # as the sampler: the first end may follow min_tokens others
        found = [
            (self.scores[beam] + logprob, beam, token)
            for beam, top in enumerate(tops)
            for token, logprob in top
            if may_end or token not in self.ends
        ]
        found.sort(key=lambda candidate: (-candidate[0], candidate[1], candidate[2]))
        best = found[: self._kept]
        self.length += 1
        too_long = self.length >= self.max_tokens
        for score, beam, token in best[: self.params.width]:
            if score > HOPELESS and (too_long or token in self.ends):
                self._finish(score, (*outputs[beam], token))
        running = [] if too_long else [c for c in best if c[2] not in self.ends][: self.params.width]
        # Where nearly every token is an end, fewer go on; the others run along without hope, so that none is idle.
        running += [(HOPELESS, *candidate[1:]) for candidate in running[:1]] * (self.params.width - len(running))
        self.scores = [score for score, _, _ in running]
        self.done = not running or self._cannot_improve()
        return [] if self.done else [Continuation(beam, token) for _, beam, token in running]

    def so_far(self, outputs: Sequence[Sequence[int]], reason: FinishReason) -> tuple[BeamOutput, ...]:
        """What was found when the search must end early: the finished beams, then the running ones, best first."""
        penalty = self.params.length_penalty
        running = [
            BeamOutput(tuple(output), score, score / len(output) ** penalty, reason)
            for score, output in zip(self.scores, outputs, strict=True)
            if output and score > HOPELESS
        ]
        return (*self.finished, *running)[: self.params.width]

    def _finish(self, logprob: float, tokens: tuple[int, ...]) -> None:
        stop = tokens[-1] if tokens[-1] in self.ends else None
        score = logprob / len(tokens) ** self.params.length_penalty
        ended = BeamOutput(tokens, logprob, score, "length" if stop is None else "stop", stop)
        self.finished.append(ended)
        self.finished.sort(key=lambda output: -output.score)
        del self.finished[self.params.width :]

    def _cannot_improve(self) -> bool:
        """Whether no running beam may still better the worst finished one."""
        if len(self.finished) < self.params.width:
            return False
        if self.params.early_stopping is True:
            return True
        penalty = self.params.length_penalty
        at_best = self.max_tokens if self.params.early_stopping == "never" and penalty > 0 else self.length
        return bool(self.scores[0] / at_best**penalty <= self.finished[-1].score)


class BeamGroup:
    """The requests that hold the beams of one search: `members[i]` holds the beam with `search.scores[i]`.

    They have equally many tokens and are computed in one step, once all have caught up. `leader` is the request
    that was asked for; until its prompt is computed it is alone, the others are its children.
    """

    def __init__(self, leader: Request, search: BeamSearch) -> None:
        self.leader = leader
        self.search = search
        self.members: list[Request] = [leader]

    @property
    def together(self) -> bool:
        """Whether all members lack the KV of their last token alone (one alone needs nobody)."""
        return len(self.members) == 1 or all(member.num_uncomputed == 1 for member in self.members)
