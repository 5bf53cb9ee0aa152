"""Azure's comma-separated values of 2023 and 2024: dates with up to seven decimal places, and lengths.

The format is that of the public repository Azure/AzurePublicDataset. The files of 2024 say the time zone, and leave
the decimal places out where they are 0. A date is counted in whole steps of 100 ns, which a float cannot hold.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import msgspec
from msgspec import UNSET

from loadgen.traces.model import Header, Session
from loadgen.traces.reading import Format, Reader, ReadOptions
from loadgen.traces.rows import Columns, line_of, whole
from loadgen.traces.writing import Losses, Request, RequestWriter, lengths

TIME, INPUT, OUTPUT = "TIMESTAMP", "ContextTokens", "GeneratedTokens"
TICKS = 10_000_000  # in a second

_DATE = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1)


def minute_ticks(minute: str, zone: str) -> int:
    """A date to the minute, in steps of 100 ns from 1970 on, UTC. Raises `ValueError`."""
    moment = datetime.fromisoformat(minute)
    if zone not in ("", "Z"):
        digits = zone[1:].replace(":", "")
        offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
        moment = (moment - (offset if zone[0] == "+" else -offset)).replace(tzinfo=None)
    return (moment - _EPOCH) // timedelta(seconds=1) * TICKS


def date(ticks: int) -> str:
    """The date as the files of 2023 have it."""
    moment = _EPOCH + timedelta(seconds=ticks // TICKS)
    return f"{moment.isoformat(sep=' ')}.{ticks % TICKS:07d}"


class Dates:
    """Reads dates, most of which are of the same minute as the one before."""

    def __init__(self) -> None:
        self._minute = ("", "")
        self._minute_ticks = 0

    def ticks(self, text: str) -> int:
        """A date in steps of 100 ns from 1970 on, UTC. Raises `ValueError`."""
        match = _DATE.fullmatch(text)
        if not match:
            raise ValueError(f"{TIME}: expected a date like 2023-11-16 18:15:46.6805900, got {text!r}")
        minute, second, fraction, zone = match.groups("")
        if self._minute != (minute, zone):
            try:
                self._minute_ticks = minute_ticks(minute, zone)
            except (ValueError, OverflowError) as error:
                raise ValueError(f"{TIME}: no such date: {text!r} ({error})") from None
            self._minute = minute, zone
        if int(second) > 59:
            raise ValueError(f"{TIME}: no such date: {text!r}")
        return self._minute_ticks + int(second) * TICKS + round(int(fraction.ljust(9, "0")) / 100)


def moved(header: Header, seconds: float) -> Header:
    """The header of a trace whose first arrival is so many seconds after the date that its recipe tells, or before."""
    start = header.recipe.get("start")
    if not seconds or start is None or header.recipe.get("source_format") != Format.AZURE:
        return header
    ticks = Dates().ticks(str(start)) + round(seconds * TICKS)
    return msgspec.structs.replace(header, recipe={**header.recipe, "start": date(ticks)})


class AzureReader(Reader):
    """Each row is a session of one turn, named by its line. The recipe's `start` is the first row's date."""

    format = Format.AZURE
    time_field = TIME
    head = "the names of the columns"

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._dates = Dates()
        self._start: int | None = None

    def begin(self, record: bytes) -> None:
        self._columns = Columns(record, (TIME, INPUT, OUTPUT), ())

    def read(self, line: int, record: bytes) -> Session | None:
        self.line = line
        row = self._columns.row(record)
        ticks = self._dates.ticks(row[TIME])
        turn = self.prompt(whole(row, INPUT), whole(row, OUTPUT), UNSET)
        if self._start is None:
            self._start = ticks
            self.header = msgspec.structs.replace(self.header, recipe={**self.header.recipe, "start": date(ticks)})
        return Session(session=str(line), arrival=(ticks - self._start) / TICKS, turns=(turn,))


class AzureWriter(RequestWriter):
    """A row for each turn. Dates begin at the recipe's `start`, or else with 1970."""

    format = Format.AZURE
    holds = frozenset({"arrival", "at", "parent", "regenerates", "user_tokens", "output_tokens"})

    def __init__(self, header: Header, losses: Losses) -> None:
        super().__init__(header, losses)
        start = header.recipe.get("start")
        if start is None:
            losses.remarks["the trace does not say its date: the file begins with 1970"] += 1
        self._start = 0 if start is None else Dates().ticks(str(start))

    def begin(self) -> bytes:
        return line_of(TIME, INPUT, OUTPUT)

    def line(self, request: Request) -> bytes:
        return line_of(date(self._start + round(request.time * TICKS)), *lengths(request, self.format))
