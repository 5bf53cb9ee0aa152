"""What the server refused because it has too little of something, or of time: counted by code, for `/metrics`."""

from __future__ import annotations

# Of statuses 408, 413, 429, 431 and 503. Each is told from the start, with 0, so that a rate sees its first one.
CODES = (
    "queue_full",
    "too_many_bodies",
    "too_many_connections",
    "too_many_readers",
    "too_many_loads",
    "body_too_large",
    "headers_too_large",
    "request_timeout",
    "engine_not_ready",
)


class Refusals:
    """Counts since the server's start; what has another code is none of these, and not counted."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(CODES, 0)

    def count(self, code: str | None, times: int = 1) -> None:
        if code in self.counts:
            self.counts[code] += times
