"""Whether client and server counted the same tokens over a run. Pure.

They must: the client adds up the usage of its answers, the server what it computed for them. Where they do not, either
somebody else used the server, or one of them counts wrongly, and every rate of tokens is in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from loadgen.metrics.summary import Figures
from loadgen.metrics.window import WHOLE_RUN
from loadgen.outcome import Outcome, TokenSource


class Verdict(StrEnum):
    AGREE = "agree"
    DIFFER = "differ"
    UNKNOWN = "cannot be told"


class Tokens(msgspec.Struct, frozen=True):
    """One kind of tokens by both counts; None: not counted. `reason` says why it cannot be told."""

    client: int | None
    server: int | None
    verdict: Verdict
    reason: str = ""

    @property
    def difference(self) -> int | None:
        """How many more the server counted."""
        return None if self.client is None or self.server is None else self.server - self.client


class Agreement(msgspec.Struct, frozen=True):
    """Of a whole run, warm-up and all: the server knows no window."""

    prompt: Tokens
    generation: Tokens


def agreement(whole: Figures, parts: Sequence[Mapping[str, object] | None]) -> Agreement:
    """Lay the figures of a run beside those of `ServerMetrics`, one for each part of a run that was resumed.

    Raises ValueError for figures that leave out requests of the run.
    """
    if whole.window != WHOLE_RUN:
        raise ValueError("tokens are compared over the whole run, not over a window of it")
    summary = whole.summary()
    doubts = _doubts(whole, len(parts))
    not_usage = [
        str(source) for source, count in whole.token_sources.items() if count and source is not TokenSource.USAGE
    ]
    by_usage = [f"the client counts by {' and '.join(not_usage)}, not by the server's usage"] if not_usage else []
    return Agreement(
        prompt=_compare(summary["total_input_tokens"], [_told(part, "prompt_tokens") for part in parts], doubts),
        generation=_compare(
            summary["total_output_tokens"], [_told(part, "generation_tokens") for part in parts], by_usage + doubts
        ),
    )


def _doubts(whole: Figures, parts: int) -> list[str]:
    """Why a difference may be nobody's mistake: the server worked for answers that the client never had whole."""
    failed = sum(
        count for outcome, count in whole.outcomes.items() if outcome.failed and outcome is not Outcome.NOT_SENT
    )
    counted = (
        (failed, "failed"),
        (whole.outcomes[Outcome.INTERRUPTED], "were interrupted"),
        (whole.sums.retries, "were tried again"),
    )
    doubts = [f"{count} requests {what}" for count, what in counted if count]
    return [*doubts, "the run was resumed"] if parts > 1 else doubts


def _told(part: Mapping[str, object] | None, name: str) -> int | None:
    value = None if part is None else part.get(name)
    return value if isinstance(value, int) else None


def _compare(client: object, parts: Sequence[int | None], doubts: Sequence[str]) -> Tokens:
    told = [part for part in parts if part is not None]
    server = sum(told) if told and len(told) == len(parts) else None
    if not isinstance(client, int):
        return Tokens(None, server, Verdict.UNKNOWN, "not every answer told its tokens")
    if server is None:
        return Tokens(client, None, Verdict.UNKNOWN, "the server does not tell, or began anew")
    if server == client:
        return Tokens(client, server, Verdict.AGREE)
    if doubts:
        return Tokens(client, server, Verdict.UNKNOWN, "; ".join(doubts))
    return Tokens(client, server, Verdict.DIFFER)
