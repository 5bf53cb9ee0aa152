"""Limits that a request's latencies must keep to (service level objectives), and whether one did. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.durations import parse_duration
from loadgen.metrics.latency import ALSO, OF_STREAMS, Latencies
from loadgen.outcome import Outcome, RequestRecord

LIMITED = ("ttft", "tpot", "itl", "e2el", "ttft_scheduled", "e2el_scheduled")
EXAMPLE = "ttft=500ms,tpot=50ms,e2e=10s"


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits as (name of a latency, milliseconds), in the order of `LIMITED`. Raises ValueError without any."""

    limits: tuple[tuple[str, float], ...]

    def __post_init__(self) -> None:
        if not self.limits:
            raise ValueError(f"expected limits such as {EXAMPLE}, got none")

    def verdicts(self, record: RequestRecord, measured: Latencies) -> tuple[bool | None, ...]:
        """Whether the request kept to each limit. None: nobody can tell.

        A failed request missed all. `itl` is kept to if every gap is, and it and `tpot` if there is nothing to measure;
        an answer without content missed the others. An answer in one piece cannot be told by limits of a stream, one
        that was interrupted only if it was late already.
        """
        if record.outcome.failed:
            return (False,) * len(self.limits)
        if record.outcome is Outcome.INTERRUPTED:
            waited = _waited(record, measured)
            return tuple(False if waited.get(name, 0.0) > limit else None for name, limit in self.limits)
        if record.outcome is not Outcome.COMPLETED:
            return (None,) * len(self.limits)
        return tuple(_kept(name, limit, record, measured) for name, limit in self.limits)

    def __str__(self) -> str:
        return ",".join(f"{name}={limit:.15g}ms" for name, limit in self.limits)


def overall(verdicts: tuple[bool | None, ...]) -> bool | None:
    """All limits together: missed with one, met with all."""
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _kept(name: str, limit: float, record: RequestRecord, measured: Latencies) -> bool | None:
    if name in OF_STREAMS and not record.streamed:
        return None
    if name == "itl":
        return max(measured.itl, default=0.0) <= limit
    value: float | None = getattr(measured, name)
    if value is None:
        return name == "tpot"
    return value <= limit


def _waited(record: RequestRecord, measured: Latencies) -> dict[str, float]:
    """What the latencies of a request that was interrupted had come to by then, in milliseconds."""
    if record.sent is None or record.ended is None or record.scheduled is None:
        return {}
    waited = {"e2el": (record.ended - record.sent) * 1000, "e2el_scheduled": (record.ended - record.scheduled) * 1000}
    if record.streamed:
        waited["itl"] = max(measured.itl, default=0.0)
        for name, until_now in (("ttft", waited["e2el"]), ("ttft_scheduled", waited["e2el_scheduled"])):
            value: float | None = getattr(measured, name)
            waited[name] = until_now if value is None else value
    return waited


def parse_slo(text: str) -> Slo:
    """Read limits as `EXAMPLE` has them. Raises ValueError that names what is wrong and what is allowed."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ValueError(f"expected limits such as {EXAMPLE}, got {part.strip()!r} in {text!r}")
        known = ALSO.get(name, name)
        if known not in LIMITED:
            raise ValueError(f"{name!r} is no latency with a limit; allowed are {', '.join((*LIMITED, *ALSO))}")
        if known in limits:
            raise ValueError(f"{name} has two limits in {text!r}")
        try:
            limit = parse_duration(value) * 1000
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if not limit > 0:
            raise ValueError(f"{name}: expected a time above 0, got {value!r}")
        limits[known] = limit
    return Slo(tuple((name, limits[name]) for name in LIMITED if name in limits))
