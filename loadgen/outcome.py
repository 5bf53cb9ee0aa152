"""What became of one request, with every time a latency is made of. A line of a run's file is one of these."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]  # of a run; a file that somebody edited may have others
Place = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


class Outcome(StrEnum):
    """How a request ended; all but `COMPLETED`, `INTERRUPTED` and `NOT_REACHED` are failures."""

    COMPLETED = "completed"
    CONNECTION = "connection failed"
    HTTP_ERROR = "HTTP error"
    SERVER_ERROR = "error in the stream"
    CUT = "stream cut off"
    BAD_STREAM = "stream not understood"
    TIMEOUT = "timed out"
    NOT_SENT = "not sent: an earlier turn failed"
    INTERRUPTED = "interrupted in flight"  # by Ctrl-C
    NOT_REACHED = "not reached before the stop"

    @property
    def failed(self) -> bool:
        return self not in (Outcome.COMPLETED, Outcome.INTERRUPTED, Outcome.NOT_REACHED)


class TokenSource(StrEnum):
    """Where a count of output tokens is from."""

    USAGE = "usage"
    TOKENIZER = "tokenizer"
    CHUNKS = "chunks"
    NONE = "none"  # nothing came


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="request", tag_field="kind"):
    """One turn of one session. Times are seconds from the run's beginning; None: it did not come to that.

    `index` is the session's place in the trace from 0, and with `turn` its identity. `chunks` are the arrival times of
    the chunks that carry text, reasoning or a tool call. `ended` is when the response was over, whatever came of it.
    A request that was tried again keeps the `sent` of its first attempt.
    """

    session: str
    index: Place
    turn: Place
    outcome: Outcome
    scheduled: Seconds | None = None
    sent: Seconds | None = None
    chunks: tuple[Seconds, ...] = ()
    ended: Seconds | None = None
    asked_input: int | None = None  # tokens of the prompt by the trace
    asked_output: int | None = None  # tokens of the answer that were asked for
    input_tokens: int | None = None  # by the server's usage
    cached_tokens: int | None = None  # of them found in the server's prefix cache, where its usage says so
    output_tokens: int = 0
    token_source: TokenSource = TokenSource.NONE
    streamed: bool = True  # without a stream there is no TTFT, TPOT or ITL, and `chunks` is the moment of the answer
    finish: str = ""  # the finish_reason of its first choice
    retries: int = 0
    refusals: int = 0  # 429 or 503, after which it was tried again
    waited: Seconds = 0.0  # for that, between two tries
    status: int | None = None  # of the HTTP answer
    code: str = ""  # of the server's error
    detail: str = ""

    def __post_init__(self) -> None:
        if self.outcome is Outcome.COMPLETED and (self.sent is None or self.ended is None or self.scheduled is None):
            raise ValueError("a completed request has been scheduled, sent and ended")

    @property
    def kind(self) -> str:
        """How it ended, as a report counts it: errors that a server names apart."""
        if self.outcome is Outcome.HTTP_ERROR and self.status is not None:
            return f"HTTP {self.status} {self.code}".rstrip()
        return f"{self.outcome}: {self.code}" if self.outcome is Outcome.SERVER_ERROR and self.code else self.outcome

    @property
    def key(self) -> tuple[int, int]:
        return self.index, self.turn
