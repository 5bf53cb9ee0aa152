"""The stream, followed for as long as the program runs: it folds records, keeps history, and always comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from engine.protocol import Gap, Record, Snapshot
from tui import figures
from tui.checks import Contradiction, check_record, check_snapshot
from tui.engine_api import ACluster, Down, Engine, Locked, NotAnEngine, Unreachable
from tui.fold import EngineFold, MissingRecords
from tui.history import History
from tui.lanes import Lanes
from tui.steps import Step
from tui.tape import Tape
from tui.view import VIEW_STEPS, Link, Phase, View
from tui.windows import Windows

BACK_OFF = (0.25, 0.5, 1.0, 2.0)  # seconds before the next try; the last one for ever after
LOCKED_AGAIN = 2.0  # seconds before an engine that refuses the key is asked again: another may be there by then
GAP_SHOWN = 10.0  # seconds for which a gap is told on the screen
NEWS_SHOWN = 10.0  # seconds for which a restart is, and a fault of a step: it stands where keys do


class Feed:
    """State and history of one engine. `clock` is this machine's monotonic clock, `wall` its Unix time, in seconds."""

    def __init__(self, engine: Engine, clock: Callable[[], float], wall: Callable[[], float] = time.time) -> None:
        self.engine = engine
        self._wall = wall
        self.fold: EngineFold | None = None
        self.history = History()
        self.tape = Tape()
        self.records = 0  # received since the start
        self.listener: Callable[[Record | Snapshot], None] | None = None  # hears what is folded: a recorder
        self._clock = clock
        self._phase: Phase = "connecting"
        self._detail = ""
        self._since = clock()
        self._offset = 0.0  # the engine's clock minus ours
        self._lost = 0
        self._lost_at = 0.0
        self._heard_at = clock()
        self._distrust = False  # the fold may be wrong: read a snapshot before going on
        self._found = ""  # what could not be believed
        self._found_at = 0.0
        self._news = ""  # of the engine: that it was started again, or a fault
        self._news_until = 0.0
        self._lost_since: float | None = None  # on our clock: since when the engine has not been followed

    @property
    def found(self) -> str:
        """The last thing that could not be believed; empty where all was sound."""
        return self._found

    @property
    def link(self) -> Link:
        lost = self._lost if self._clock() - self._lost_at < GAP_SHOWN else 0
        now = self._clock()
        silent = now - self._heard_at if self._phase == "live" and self.history.lanes else 0.0
        found = self._found if now - self._found_at < GAP_SHOWN else ""
        news = self._news if now < self._news_until else ""
        since = self._since if self._lost_since is None else self._lost_since
        return Link(self._phase, self._detail, now - since, lost, silent, found, news)

    @property
    def now(self) -> float:
        """The engine's clock as well as it is known; it stands still while the connection is lost."""
        if self.fold is None:
            return 0.0
        if self._phase != "live":
            return self.fold.time
        return max(self.fold.time, self._clock() + self._offset)

    async def run(self) -> None:
        """Follow the engine until cancelled."""
        tries = 0
        while True:
            before, pause = self.records, 0.0
            try:
                await self._session()
            except Down as error:
                self._enter("down" if self.fold else "connecting", str(error))
                pause = BACK_OFF[0]  # its server answers: what it costs it is nothing
            except Unreachable as error:
                self._enter("reconnecting" if self.fold else "connecting", str(error))
            except Locked as error:
                self._enter("locked", str(error))
                pause = LOCKED_AGAIN
            except ACluster as error:
                self._distrust = True
                self._enter("cluster", str(error))
            except NotAnEngine as error:
                self._distrust = True
                self._enter("foreign", str(error))
            except Contradiction as error:
                self._doubt(str(error))
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                self._doubt(f"{type(error).__name__}: {error}")
            tries = 0 if self.records > before else tries
            await asyncio.sleep(pause or BACK_OFF[min(tries, len(BACK_OFF) - 1)])
            tries += 1

    def _doubt(self, found: str) -> None:
        """The stream said what cannot be: go on from a snapshot, and say so."""
        self._distrust = True
        self._found, self._found_at = f"the stream contradicts itself ({found})", self._clock()
        self._enter("reconnecting", self._found)

    async def _session(self) -> None:
        """One connection: go on where the fold stands if the engine still has those records, else from a snapshot."""
        await self._take_snapshot()
        self._enter("live")
        while True:
            await self._follow()
            self._distrust = True
            await self._take_snapshot()

    async def _take_snapshot(self) -> None:
        """Read a snapshot; of an engine that was started again, tell why."""
        before, last = self.fold, await self.engine.snapshot()
        self._read(last)
        if before is not None and _restarted(before, last):
            self._tell_restart(before, last, await self.engine.failure())

    async def _follow(self) -> None:
        """Fold records until some are missing."""
        assert self.fold is not None
        steps = self.engine.steps(self.fold.seq + 1)
        try:
            async for item in steps:
                if isinstance(item, Gap):
                    return
                if item.seq > self.fold.seq:
                    self._take(item)
        except MissingRecords:
            return
        finally:
            close = getattr(steps, "aclose", None)
            if close:
                with suppress(RuntimeError):
                    await close()

    def _tell_restart(self, before: EngineFold, now: Snapshot, reason: str) -> None:
        """That the engine was started again, as far as it was seen; why comes last, for it may be long."""
        away = "" if self._lost_since is None else f"; away {figures.seconds(self._clock() - self._lost_since)}"
        lost = figures.plural(len(before.requests), "request") if before.requests else ""
        self._say(
            f"engine restarted ({now.engine.restarts})"
            + away
            + (f"; lost {lost} at step {before.seq:,}" if lost else "")
            + (f": {reason}" if reason else ""),
            NEWS_SHOWN,
        )

    def _say(self, news: str, seconds: float) -> None:
        self._news, self._news_until = news, self._clock() + seconds

    def _take(self, record: Record) -> None:
        assert self.fold is not None
        if record.seq != self.fold.seq + 1:
            raise MissingRecords(f"record {record.seq} does not follow {self.fold.seq}")
        check_record(record, self.fold)
        before = self.fold.control
        self.history.observe(record, self.fold)
        self.fold.apply(record)
        self.tape.keep(record, self.fold, self.history.held_lanes, before)
        self.records += 1
        if record.fault:
            self._say(f"fault in step {record.seq:,}: {record.fault}", NEWS_SHOWN)
        if self.listener is not None:
            self.listener(record)
        self._heard_at = self._clock()
        self._offset = record.time - self._heard_at

    def _read(self, snapshot: Snapshot) -> None:
        """Take a snapshot where the fold cannot go on by itself. Raises NotAnEngine where it cannot be true."""
        try:
            check_snapshot(snapshot)
        except Contradiction as error:
            raise NotAnEngine(f"its snapshot cannot be true: {error}") from None
        fold = self.fold
        same = (
            fold is not None
            and fold.engine.started == snapshot.engine.started
            and fold.seq <= snapshot.seq
            and fold.time <= snapshot.time  # figures over time go one way only
        )
        if fold is not None and same and not self._distrust:
            return
        missing = snapshot.seq - fold.seq if fold is not None and same else 0
        if not same:
            goes_on = fold is not None and _restarted(fold, snapshot) and _same_kind(fold, snapshot)
            self.history, self.tape = self.history.next_life(snapshot) if goes_on else History(), Tape()
            self._offset = self._engine_time(snapshot) - self._clock()
        self._distrust = False
        self.fold = EngineFold.from_snapshot(snapshot)
        self.history.begin(snapshot, missing)
        self.tape.begin(self.fold, self.history.held_lanes)
        if self.listener is not None:
            self.listener(snapshot)
        if missing:
            self._lost, self._lost_at = missing, self._clock()

    def _engine_time(self, snapshot: Snapshot) -> float:
        """The engine's clock now. A snapshot's own time is that of its last record, which may be long ago."""
        engine = snapshot.engine
        if not engine.started_unix:
            return snapshot.time
        return max(snapshot.time, engine.started + self._wall() - engine.started_unix)

    def _enter(self, phase: Phase, detail: str = "") -> None:
        if phase != self._phase:
            self._since = self._heard_at = self._clock()
            if phase == "live":
                self._lost_since = None
            elif self._lost_since is None:
                self._lost_since = self._since
        self._phase, self._detail = phase, detail

    def view(self, seq: int | None = None) -> View | None:
        """The newest state for drawing, or the one after record `seq` as it was shown then; None before any.

        Where `seq` is not kept, the nearest that is. Of its blocks, what is live changes with the feed, what is past
        with the next question.
        """
        if self.fold is None:
            return None
        if seq is None:
            return self._newest(self.fold)
        fold, lanes = self.tape.moment(self.tape.nearest(seq))
        steps = self.history.steps_until(fold.seq, VIEW_STEPS)
        return _view(fold, fold.time, fold.time, lanes, steps, self.history.until(fold.seq))

    def _newest(self, fold: EngineFold) -> View:
        history = self.history
        # While a step is under way, what it does is not known yet: figures end with the last record.
        now = fold.time if history.lanes else self.now
        return _view(fold, now, self.now, history.held_lanes, tuple(history.steps[-VIEW_STEPS:]), history)


def _restarted(before: EngineFold, now: Snapshot) -> bool:
    """Whether its server has started the engine again."""
    return now.engine.restarts > before.engine.restarts


def _same_kind(before: EngineFold, now: Snapshot) -> bool:
    """Whether figures over time may go on: it is the same in all but its start, on a clock that goes on."""
    known, found = before.engine, now.engine
    alike = msgspec.structs.replace(
        found, restarts=known.restarts, started=known.started, started_unix=known.started_unix
    )
    return alike == known and before.time <= found.started <= now.time


def _view(fold: EngineFold, now: float, clock: float, lanes: Lanes, steps: tuple[Step, ...], history: Windows) -> View:
    """`now`: up to when all is known; `clock`: the engine's clock."""
    return View(
        now=now,
        uptime=clock - fold.engine.started,
        seq=fold.seq,
        engine=fold.engine,
        control=fold.control,
        pool=fold.pool,
        waste=fold.waste,
        sharing=fold.sharing,
        queue=fold.queue,
        counters=fold.counters,
        host_blocks=fold.host_blocks,
        requests=dict(fold.requests),
        ordinals=dict(fold.ordinals),
        blocks=fold.blocks,
        record=fold.record,
        steps=steps,
        lanes=dict(lanes.by_request),
        history=history,
    )
