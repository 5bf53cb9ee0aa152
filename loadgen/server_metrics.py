"""A server's own figures over the time of a run, from its /metrics.

Whatever becomes of /metrics, the run goes on: a look that fails or hangs is told, and none takes longer than `TIMEOUT`.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import aiohttp

from loadgen.client import reason
from loadgen.server import CERTIFICATES
from loadgen.server_figures import Figures, Levels, growth, untold
from servers.dialects import DIALECTS
from servers.measures import Measures, broken, measure
from servers.reading import Reading, read, reading
from servers.terms import Engine

EVERY = 1.0  # seconds between looks
SOON = 0.2  # of that, to the first one
REST = 20  # times as long as a page took to read, to the next look at it: that takes from what requests need
TIMEOUT = 5.0  # seconds of one look, of all at the beginning, and of all at the end
LONGEST_PAGE = 1 << 25  # bytes
ASIDE = 1 << 18  # characters of a page from which on it is read in a thread, beside the requests
_SETTLE = 0.1  # seconds: some servers count a request's tokens a moment after they have answered it
_SETTLES = 20
_TRIES = 3  # of the last look: one that fails would lose the figures of the whole run
_BUCKETS = re.compile(r"^[^#\s]*_bucket\{.*\n?", re.MULTILINE)


class NoMetrics(Exception):
    """A look that brought nothing; the message says why."""


class _TooLong(NoMetrics):
    """A page that was taken as far as it may go."""


def pages_of(address: str) -> tuple[str, ...]:
    """Where a server at that address may have its metrics: there itself, if it has a path."""
    if urlsplit(address).path.strip("/"):
        return (address,)
    return tuple(dict.fromkeys(f"{address.rstrip('/')}{path}" for path in _paths()))


def _paths() -> list[str]:
    return [path for dialect in DIALECTS for path in dialect.paths]


async def find_metrics(http: aiohttp.ClientSession, address: str, deadline: float | None = None) -> tuple[str, Reading]:
    """Where the metrics of a server are, and the first look. Raises `NoMetrics` within `TIMEOUT`, or by the deadline of
    the event loop's clock."""
    deadline = _deadline() if deadline is None else deadline
    told: list[str] = []
    for where in pages_of(address):
        try:
            return where, await scrape(http, where, deadline)
        except NoMetrics as error:
            told.append(f"{where} {error}")
    raise NoMetrics(next((why for why in told if not why.endswith(" 404")), told[0]))


async def scrape(http: aiohttp.ClientSession, where: str, deadline: float) -> Reading:
    """One look. Raises `NoMetrics`."""
    return await _read_aside(await _fetch(http, where, deadline))


async def _fetch(http: aiohttp.ClientSession, where: str, deadline: float) -> str:
    """A page. Raises `NoMetrics`."""
    try:
        async with asyncio.timeout_at(deadline), http.get(where, allow_redirects=False) as reply:
            if reply.status != 200:
                raise NoMetrics(f"answered {reply.status}")
            page = bytearray()
            async for received in reply.content.iter_any():
                page += received
                if len(page) > LONGEST_PAGE:
                    raise _TooLong(f"is longer than {LONGEST_PAGE:,} bytes")
    except TimeoutError:
        raise NoMetrics(f"did not answer within {TIMEOUT:g} s") from None
    except aiohttp.ClientConnectorCertificateError as error:
        raise NoMetrics(f"cannot be trusted: {reason(error)}; {CERTIFICATES}") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise NoMetrics(f"cannot be asked: {reason(error)}") from None
    return page.decode("utf-8", "replace")


async def _read_aside(page: str, *, histograms: bool = True) -> Reading:
    """As `_read`, of a long page so that nothing waits for it."""
    if len(page) < ASIDE:
        return _read(page, histograms)
    return await asyncio.to_thread(_read, page, histograms)


def _read(page: str, histograms: bool) -> Reading:
    """Raises `NoMetrics` for a page of nothing that is known."""
    try:
        found = read(page if histograms else _BUCKETS.sub("", page))
    except ValueError as error:
        raise NoMetrics(f"has a line that cannot be read: {error}") from None
    if found is None:
        names = ", ".join(dict.fromkeys(dialect.marks[0] for dialect in DIALECTS))
        raise NoMetrics(f"tells no metrics that are known here (names begin with {names})")
    return found


async def settled(http: aiohttp.ClientSession, where: str, look: Reading, deadline: float) -> Reading:
    """The first look from this one on after which counters stand still, or the last that there is time for.

    Some servers count a request's tokens a moment after they have answered it.
    """
    for _ in range(_SETTLES):
        await asyncio.sleep(_SETTLE)
        try:
            again = await scrape(http, where, deadline)
        except NoMetrics:
            break
        if again.counters == look.counters:
            break
        look = again
    return look


def _deadline() -> float:
    """Of the event loop's clock."""
    return asyncio.get_running_loop().time() + TIMEOUT


def _without_histograms(found: Reading) -> Reading:
    """What the looks of a run are compared by: these leave out buckets."""
    return reading(found.kind, found.counters, found.gauges, facts=found.facts)


@dataclass(slots=True)
class _Seen:
    """What the looks of a run came to, beside the gauges."""

    newest: Reading
    looks: int = 0
    failed: int = 0
    why_failed: str = ""  # the last time
    slowest: float = 0.0  # seconds
    restarts: list[float] = field(default_factory=list)  # seconds since the beginning


class ServerMetrics:
    """Looks at a server from `start` to `finish`; `close` ends it at any time."""

    def __init__(self, http: aiohttp.ClientSession, where: str, first: Reading, every: float) -> None:
        self._http, self.where, self.first = http, where, first
        self._began = time.monotonic()
        self._levels, self._seen = Levels(), _Seen(_without_histograms(first))
        self._looking = asyncio.create_task(self._look(every))

    @classmethod
    async def start(cls, http: aiohttp.ClientSession, address: str, every: float = EVERY) -> ServerMetrics:
        """Look for the first time, when what was asked before is counted.

        Raises `NoMetrics` if the server has no metrics that are known here.
        """
        deadline = _deadline()
        where, first = await find_metrics(http, address, deadline)
        return cls(http, where, await settled(http, where, first, deadline), every)

    @property
    def looks(self) -> int:
        """That brought something, while requests may have run: the first and the last are of before and after."""
        return self._seen.looks

    @property
    def failed(self) -> int:
        return self._seen.failed

    @property
    def restarts(self) -> list[float]:
        """When they were seen, in seconds since the beginning."""
        return self._seen.restarts

    async def _look(self, every: float) -> None:
        """First soon: a run may be short. A look that took long leaves out the next ones, and buckets are not read:
        all that is wanted of these is their growth over the run."""
        due = self._began + every * SOON
        while True:
            await asyncio.sleep(due - time.monotonic())
            began, worked = time.monotonic(), 0.0
            try:
                page = await _fetch(self._http, self.where, _deadline())
                came = time.monotonic()
                try:
                    self._take(await _read_aside(page, histograms=False))
                finally:
                    worked = time.monotonic() - came
            except NoMetrics as error:
                self._seen.failed += 1
                self._seen.why_failed = str(error)
                if isinstance(error, _TooLong):
                    worked = time.monotonic() - began
            now = time.monotonic()
            self._seen.slowest = max(self._seen.slowest, now - began)
            due = self._began + every * math.ceil((now + REST * worked - self._began) / every)

    def _take(self, look: Reading) -> None:
        self._follow(look)
        self._levels.take(look)
        self._seen.looks += 1

    def _follow(self, look: Reading) -> None:
        """A counter that fell began anew: what it had reached before is lost."""
        seen = self._seen
        if broken(seen.newest, look):
            self._restarted()
        seen.newest = look

    def _restarted(self) -> None:
        self._seen.restarts.append(round(time.monotonic() - self._began, 3))

    async def finish(self) -> Figures:
        """The figures from the start to now. What a server that tells no more has counted is None."""
        await self.close()
        if not self._looking.cancelled():
            self._looking.result()  # raises what went wrong
        seconds = time.monotonic() - self._began
        seen, last, lost = self._seen, None, ""
        try:
            last = await self._last()
        except NoMetrics as error:
            lost = str(error)
        else:
            self._follow(_without_histograms(last))
            if not seen.restarts and broken(self.first, last):
                self._restarted()
        dialect = next(dialect for dialect in DIALECTS if dialect.kind == self.first.kind)
        figures: Figures = {
            "names_of": self.first.kind,
            "version": (last or self.first).facts.get("version"),
            "where": self.where,
            "seconds": seconds,
            "looks": seen.looks,
            "failed_looks": seen.failed,
            "why_failed": seen.why_failed,
            "slowest_look_s": seen.slowest,
            "lost": lost,
            "restarted": bool(seen.restarts),
            "restarts": list(seen.restarts),
            "untold": untold(last or self.first, dialect.missing),
        }
        figures |= growth(self._measured(last, seconds)) | self._levels.figures()
        figures["engines"] = self._engines(last, seconds)
        return figures

    def _measured(self, last: Reading | None, seconds: float, engine: Engine | None = None) -> Measures:
        """Nothing where the end, or what came before a restart, is not known."""
        if last is None or self._seen.restarts:
            return Measures(seconds)
        return measure(self.first, last, seconds, engine)

    def _engines(self, last: Reading | None, seconds: float) -> list[Figures]:
        """Each engine by itself, where a server has several."""
        engines = sorted({*self.first.engines, *(last or self.first).engines})
        if len(engines) < 2:
            return []
        return [
            {"model": engine.model, "rank": engine.rank}
            | growth(self._measured(last, seconds, engine))
            | self._levels.figures(engine)
            for engine in engines
        ]

    async def _last(self) -> Reading:
        """The last look, when all is counted. Raises `NoMetrics` within `TIMEOUT`."""
        deadline = _deadline()
        for left in reversed(range(_TRIES)):
            try:
                look = await scrape(self._http, self.where, deadline)
            except NoMetrics:
                if not left or asyncio.get_running_loop().time() > deadline - _SETTLE:
                    raise
                await asyncio.sleep(_SETTLE)
            else:
                break
        return await settled(self._http, self.where, look, deadline)

    async def close(self) -> None:
        """Look no more."""
        self._looking.cancel()
        await asyncio.wait([self._looking])
