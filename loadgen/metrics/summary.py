"""The figures of a run, by the definitions this project uses, in memory that does not grow with it. Pure.

Failures stay in every denominator. Requests cut short, and those not reached, are in no figure but their own counts:
rates are of completed requests over the whole time from the first send to the end of the last response.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields

from loadgen.metrics.classes import PromptClasses
from loadgen.metrics.latency import Distributions, latencies
from loadgen.metrics.slo import Slo, overall
from loadgen.metrics.window import WHOLE_RUN, Part, Window
from loadgen.outcome import Outcome, RequestRecord, TokenSource

MOST_KINDS = 100  # of failures that are told apart: a server may have a code for each
OTHERS = "other failures"
_SEEN, _BROKEN = 1, 2  # of a session: it has a turn; not every turn was completed


@dataclass(slots=True)
class Sums:
    """What is counted of requests, the tokens and chunks of completed ones alone."""

    turns: int = 0
    sent: int = 0
    warmup: int = 0
    cooldown: int = 0
    retries: int = 0
    refusals: int = 0
    waited: float = 0.0
    interrupted_chunks: int = 0
    chunks: int = 0
    output_tokens: int = 0
    streamed_output_tokens: int = 0
    streamed_chunks: int = 0
    input_tokens: int = 0
    inputs_told: int = 0
    cached_tokens: int = 0
    inputs_of_cached: int = 0  # input tokens of the answers that told how many were cached
    caches_told: int = 0
    zeros_told: int = 0  # of these, those that told of none
    other_input: int = 0
    other_output: int = 0
    shorter: int = 0  # answers that have fewer tokens than asked, by the server's usage
    tokens_short: int = 0  # by so many
    slo_met: int = 0
    slo_missed: int = 0

    @property
    def uncached_untold(self) -> int:
        """Answers of which nobody knows how many of their prompt's tokens were cached.

        Where no answer tells of none, those that tell nothing had none: some servers leave a 0 out.
        """
        return self.inputs_told - self.caches_told if self.zeros_told else 0

    @property
    def looked_up(self) -> int:
        """Input tokens of the answers of which is known how many were cached."""
        return self.inputs_of_cached if self.zeros_told else self.input_tokens

    def merge(self, other: Sums) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class Figures:
    """Takes the requests of one run, one after the other. `merge` adds another run: a repeat, with its own time.

    Only requests sent within `window` count, and what else was sent is told apart. With `split`, prompts of up to that
    many tokens and longer ones are told apart too.
    """

    def __init__(self, slo: Slo | None = None, window: Window = WHOLE_RUN, split: int | None = None) -> None:
        self.slo, self.window = slo, window
        self.classes = None if split is None else PromptClasses(split)
        self.sums = Sums()
        self.outcomes = Counter[Outcome]()
        self.failures = Counter[str]()  # by kind
        self.token_sources = Counter[TokenSource]()
        self.finishes = Counter[str]()  # by finish_reason, of completed requests
        self.distributions = Distributions()
        self._kept = Counter[str]()  # by the name of a limit
        self._missed = Counter[str]()
        self._sessions = bytearray()  # by index
        self._first_sent: float | None = None
        self._last_ended: float | None = None
        self._merged_seconds = 0.0  # of the runs that were merged
        self._merged_sessions = (0, 0)  # all, and those served whole

    def add(self, record: RequestRecord) -> None:
        """Count a request."""
        sums = self.sums
        part = self.window.part(record)
        if part is not Part.MEASURED:
            sums.warmup += part is Part.WARMUP
            sums.cooldown += part is Part.COOLDOWN
            return
        sums.turns += 1
        sums.retries += record.retries
        sums.refusals += record.refusals
        sums.waited += record.waited
        if record.outcome.failed:
            known = record.kind in self.failures or len(self.failures) < MOST_KINDS
            self.failures[record.kind if known else OTHERS] += 1
        self.outcomes[record.outcome] += 1
        completed = record.outcome is Outcome.COMPLETED
        self._count_session(record.index, completed)
        if record.sent is not None:
            sums.sent += 1
            if self._first_sent is None or record.sent < self._first_sent:
                self._first_sent = record.sent
            if record.ended is not None and (self._last_ended is None or record.ended > self._last_ended):
                self._last_ended = record.ended
        if completed:
            self._count_answer(record)
        elif record.outcome is Outcome.INTERRUPTED:
            sums.interrupted_chunks += len(record.chunks)
        measured = latencies(record)
        self.distributions.add(record, measured)
        if self.classes is not None:
            self.classes.add(record, measured)
        if self.slo is not None:
            verdicts = self.slo.verdicts(record, measured)
            for (name, _), kept in zip(self.slo.limits, verdicts, strict=True):
                self._kept[name] += kept is True
                self._missed[name] += kept is False
            kept = overall(verdicts)
            sums.slo_met += kept is True
            sums.slo_missed += kept is False

    def _count_session(self, index: int, completed: bool) -> None:
        if index >= len(self._sessions):
            self._sessions.extend(bytes(index + 1 - len(self._sessions)))
        self._sessions[index] |= _SEEN if completed else _SEEN | _BROKEN

    def _count_answer(self, record: RequestRecord) -> None:
        sums = self.sums
        self.token_sources[record.token_source] += 1
        sums.chunks += len(record.chunks)
        sums.output_tokens += record.output_tokens
        if record.streamed:
            sums.streamed_chunks += len(record.chunks)
            sums.streamed_output_tokens += record.output_tokens
        if record.asked_output is not None and record.asked_output != record.output_tokens:
            sums.other_output += 1
            if record.token_source is TokenSource.USAGE:  # chunks have several tokens, texts lack special ones
                sums.shorter += record.output_tokens < record.asked_output
                sums.tokens_short += max(0, record.asked_output - record.output_tokens)
        if record.finish:
            known = record.finish in self.finishes or len(self.finishes) < MOST_KINDS
            self.finishes[record.finish if known else OTHERS] += 1
        if record.input_tokens is not None:
            sums.inputs_told += 1
            sums.input_tokens += record.input_tokens
            sums.other_input += record.asked_input not in (None, record.input_tokens)
            if record.cached_tokens is not None:
                sums.caches_told += 1
                sums.zeros_told += record.cached_tokens == 0
                sums.cached_tokens += record.cached_tokens
                sums.inputs_of_cached += record.input_tokens

    def merge(self, other: Figures) -> None:
        """Count another run too, of which the times add up. Raises ValueError if it has other limits."""
        if self.slo != other.slo:
            raise ValueError(f"figures with limits {self.slo} and with {other.slo} do not merge")
        self.sums.merge(other.sums)
        self.outcomes.update(other.outcomes)
        self.failures.update(other.failures)
        self.token_sources.update(other.token_sources)
        self.finishes.update(other.finishes)
        self.distributions.merge(other.distributions)
        if self.classes is not None and other.classes is not None:
            self.classes.merge(other.classes)
        self._kept.update(other._kept)
        self._missed.update(other._missed)
        self._merged_seconds += other.duration
        mine, others = self._merged_sessions, other.sessions
        self._merged_sessions = mine[0] + others[0], mine[1] + others[1]

    @property
    def duration(self) -> float:
        """Seconds from the first send to the end of the last response, summed over runs; 0 if nothing was sent."""
        if self._first_sent is None or self._last_ended is None:
            return self._merged_seconds
        return self._last_ended - self._first_sent + self._merged_seconds

    @property
    def sessions(self) -> tuple[int, int]:
        """How many there were, and of how many every turn was completed."""
        whole = self._sessions.count(_SEEN)
        every, merged_whole = self._merged_sessions
        return every + whole + self._sessions.count(_SEEN | _BROKEN), merged_whole + whole

    @property
    def token_source(self) -> str:
        """Where the output token counts of the completed requests come from."""
        return ", else ".join(source for source in TokenSource if self.token_sources[source]) or "none"

    def summary(self) -> dict[str, object]:
        """All figures, under the names of `vllm bench serve` where it has one. None: undefined, or not told."""
        sums, outcomes, seconds = self.sums, self.outcomes, self.duration
        completed = outcomes[Outcome.COMPLETED]
        input_tokens = sums.input_tokens if sums.inputs_told == completed else None
        sessions, whole = self.sessions

        def per_second(amount: int | None) -> float | None:
            return None if amount is None or seconds == 0 else amount / seconds

        return {
            "completed": completed,
            "failed": sum(count for outcome, count in outcomes.items() if outcome.failed),
            "interrupted": outcomes[Outcome.INTERRUPTED],
            "interrupted_chunks": sums.interrupted_chunks,
            "not_reached": outcomes[Outcome.NOT_REACHED],
            "failures": dict(sorted(self.failures.items())),
            "turns": sums.turns,
            "sent": sums.sent,
            "sessions": sessions,
            "sessions_completed": whole,
            "warmup_requests": sums.warmup,
            "cooldown_requests": sums.cooldown,
            "retries": sums.retries,
            "refusals": sums.refusals,
            "refusal_wait_s": sums.waited,
            "duration": seconds,
            "total_input_tokens": input_tokens,
            "total_output_tokens": sums.output_tokens,
            "request_throughput": per_second(completed),
            "output_throughput": per_second(sums.output_tokens),
            "total_token_throughput": per_second(None if input_tokens is None else input_tokens + sums.output_tokens),
            "token_source": self.token_source,
            "total_chunks": sums.chunks,
            "output_tokens_per_chunk": _share(sums.streamed_output_tokens, sums.streamed_chunks),
            "finish_reasons": dict(sorted(self.finishes.items())),
            "other_length_than_asked": sums.other_output,
            "shorter_than_asked": sums.shorter,
            "tokens_short": sums.tokens_short,
            "asked_input_mismatches": sums.other_input,
            "cached_tokens": sums.cached_tokens if sums.caches_told else None,
            "cached_told": sums.caches_told,
            "hit_rate": _share(sums.cached_tokens, sums.looked_up) if sums.caches_told else None,
            **self._slo_figures(),
            **self.distributions.figures(),
        }

    def _slo_figures(self) -> dict[str, object]:
        """Attainment is the requests that met the limits among those of which it can be told."""
        if self.slo is None:
            names = ("slo", "goodput", "slo_met", "slo_missed", "slo_attainment", "slo_attainment_by_limit")
            return dict.fromkeys(names)
        met, missed, seconds = self.sums.slo_met, self.sums.slo_missed, self.duration
        return {
            "slo": dict(self.slo.limits),
            "goodput": met / seconds if seconds and met + missed else None,
            "slo_met": met,
            "slo_missed": missed,
            "slo_attainment": _share(met, met + missed),
            "slo_attainment_by_limit": {
                name: _share(self._kept[name], self._kept[name] + self._missed[name]) for name, _ in self.slo.limits
            },
        }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def summarize(
    records: Iterable[RequestRecord], slo: Slo | None = None, window: Window = WHOLE_RUN
) -> dict[str, object]:
    """The figures of one run at once."""
    figures = Figures(slo, window)
    for record in records:
        figures.add(record)
    return figures.summary()
