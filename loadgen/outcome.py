"""What became of one request, with every time a latency is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One turn of one session. Times are seconds on one monotonic clock; None: it did not come to that.

    `chunks` are the arrival times of the chunks that carry text, reasoning or a tool call. `ended` is when
    the response was over, whatever came of it. Token counts are the server's `usage`, where it sends one.
    """

    session: str
    turn: int
    requested_tokens: int
    scheduled: float | None
    outcome: Outcome
    sent: float | None = None
    chunks: tuple[float, ...] = ()
    ended: float | None = None
    usage: bool = False
    input_tokens: int | None = None
    output_tokens: int = 0  # from usage, else the number of chunks
    detail: str = ""

    def __post_init__(self) -> None:
        if self.outcome is Outcome.COMPLETED and (self.sent is None or self.ended is None or self.scheduled is None):
            raise ValueError("a completed request has been scheduled, sent and ended")
