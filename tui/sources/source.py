"""One server as it is known: what was heard of it, item by item, folded into the picture that panels draw.

A live server and a recording of one are folded alike, and so is any moment that is still kept (`tui.sources.tape`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from servers.kv_events import AllBlocksCleared, Heard, Message, Missed, Restarted, from_builtins
from servers.looks import Look, Looks
from servers.reading import read
from tui.sources.items import FORMAT, Failed, FailedPhase, Item, KvLink, KvMessage, KvState, Scrape, Slots, SourceHead
from tui.sources.tape import BUDGET, Event, Standing, Tape
from tui.sources.view import ServerView, SourceLink

NEWS_SHOWN = 10.0  # seconds for which a restart is told beside the link
OVERDUE = 2.0  # so many times the time between two looks may pass until a server is called slow
FOREIGN = "it answers, but no server that is known here answers so"


class Source:
    """Feed it with `take`; `view` is the newest picture, or that after an earlier item.

    `items` counts what was heard, and numbers it. `listener` hears each item once it is folded: the recorder.
    """

    def __init__(self, name: str, url: str, clock: Callable[[], float], source: int = 0, budget: int = BUDGET) -> None:
        """`source` is its number, which its items carry. `budget`: bytes for its past."""
        self.number = source
        self.listener: Callable[[Item], None] | None = None
        self._clock = clock
        self._named, self._budget = Standing(name, url), budget
        self.forget()

    def forget(self) -> None:
        """Begin again, with nothing heard."""
        self.items = 0
        self._looks = Looks()
        self._last: Look | None = None  # the newest look with a reading, of this server,
        self._page: Scrape | None = None  # and what it was read from
        self._failed: Item | None = None  # what came instead since
        self._standing = self._named
        self.tape = Tape(self._standing, self._budget)
        self._copied = self._looks.upto()  # which pictures share until the next look
        self._is_copied = True

    @property
    def name(self) -> str:
        return self._standing.name

    @property
    def kind(self) -> str:
        return self._standing.kind

    @property
    def version(self) -> str:
        return self._standing.version

    def take(self, item: Item) -> None:
        """Fold what was heard. What cannot be read is a failed look with its reason. Raises ValueError for another
        server's item."""
        if item.source != self.number:
            raise ValueError(f"an item of server {item.source} was given to server {self.number}")
        self.items += 1
        self.tape.begin(self.items, self._heard_at(item))
        match item:
            case SourceHead():
                self._take_head(item)
            case Scrape():
                self._take_scrape(item)
            case Failed():
                self._fail(item, item.phase, item.reason or item.phase)
            case KvMessage():
                self._take_kv(item)
            case KvLink():
                since = self.tape.now if item.since is None else item.since
                self.tape.kv(item.endpoint).stand(self.items, item.phase, item.detail, since)
            case KvState():
                self._take_kv_state(item)
            case Slots():
                self._stand(slots=item.slots)
        self.tape.end(self._standing)
        if self.listener is not None:
            self.listener(item)

    def keep_openings(self, endpoint: str, message: Message, most: int) -> None:
        """How the blocks of a KV message begin, once its item was taken: in the newest picture alone, of `most` blocks.

        No item has token ids, so neither the past nor a recording does.
        """
        self.tape.kv(endpoint).tree.keep_openings(message, most)

    def view(self, seq: int | None = None, now: float | None = None, kv: bool = True) -> ServerView:
        """The picture now, or as it was after item `seq`, at `now` (default: when that item was heard).

        KV trees of an earlier picture change with the next question; without `kv` there are none, for they take their
        time to be had again. Raises LookupError where it is not kept.
        """
        tape = self.tape
        if seq is None:
            seq, looks, standing, trees = self.items, self._looks_now(), self._standing, tape.kv_views()
            now = self._clock() if now is None else now
        else:
            looks, standing = tape.looks(seq), tape.standing(seq)
            trees = tape.kv_views(seq) if kv else ()
            now = tape.time(seq) if now is None else now
        return ServerView(
            standing.name,
            standing.url,
            standing.kind,
            standing.version,
            self._link(standing, looks, now, seq),
            now,
            seq,
            looks,
            tape.restarts(seq, standing.since),
            trees,
            standing.slots,
        )

    def state(self, wall: float) -> tuple[Item, ...]:
        """Items that make a fresh source what this one is now, but for its past. `wall`: the Unix time now."""
        now, standing = self._clock(), self._standing
        items: list[Item] = [
            SourceHead(
                self.number, standing.name, standing.url, standing.kind, standing.version, wall, FORMAT, now,
                standing.every,
            )
        ]  # fmt: skip
        items += [item for item in (self._page, self._failed) if item is not None]
        if standing.slots is not None:
            items.append(Slots(self.number, self.tape.now, standing.slots))
        for kv in self.tape.endpoints:
            items += kv.state(self.number, self.tape.now)
        return tuple(items)

    def _looks_now(self) -> Looks:
        if not self._is_copied:
            self._copied, self._is_copied = self._looks.upto(), True
        return self._copied

    def _link(self, standing: Standing, looks: Looks, now: float, seq: int) -> SourceLink:
        newest = looks.newest_reading
        age = None if newest is None else max(0.0, now - newest.time)
        if standing.phase != "live":
            return SourceLink(standing.phase, standing.detail, age)
        if standing.every and age is not None and age > standing.every * OVERDUE:
            return SourceLink("slow", "no answer yet", age)
        if standing.every and newest is not None and newest.took > standing.every:
            return SourceLink("slow", f"takes {newest.took:.1f} s to answer", age)
        news = self.tape.event_before(seq + 1)
        fresh = news is not None and now - news.time < NEWS_SHOWN
        return SourceLink("live", news.words if news is not None and fresh else "", age)

    def _heard_at(self, item: Item) -> float:
        """A head of a server that was just named tells no time."""
        return self._clock() if isinstance(item, SourceHead) and not item.time else item.time

    def _ordered(self, time: float) -> float:
        """Looks are in order of time: of a clock that went back, a moment stands still."""
        newest = self._looks.newest
        return time if newest is None else max(newest.time, time)

    def _stand(self, **changes: object) -> None:
        self._standing = replace(self._standing, **changes)  # type: ignore[arg-type]

    def _take_head(self, head: SourceHead) -> None:
        old = self._standing
        if _other(old.kind, head.kind) or _other(old.version, head.version):
            self._begin_anew(f"another server: {' '.join(filter(None, (head.kind, head.version))) or head.url}")
        self._stand(
            name=head.name or old.name,
            url=head.url or old.url,
            kind=head.kind or self._standing.kind,
            version=head.version or self._standing.version,
            every=head.every or old.every,
        )

    def _begin_anew(self, words: str) -> None:
        """What was known is of a server that is there no more."""
        self._looks, self._is_copied = Looks(), False
        self._last = self._page = self._failed = None
        self._stand(kind="", version="", phase="finding", detail="", slots=None, since=self.items)
        self.tape.begin_anew()
        self._tell(words)

    def _take_scrape(self, scrape: Scrape) -> None:
        time = self._ordered(scrape.time)
        try:
            reading = read(scrape.text)
        except ValueError as error:
            reason = f"its metrics cannot be read: {error}"
            self._fail(scrape, "failing", reason, scrape.took)
            return
        if reading is None:
            self._fail(scrape, "foreign", FOREIGN, scrape.took)
            return
        if self._last is not None and self._last.reading is not None and self._last.reading.kind != reading.kind:
            self._begin_anew(f"another server: {reading.kind}")
        before = self._last.reading if self._last is not None else None
        changed = before is None or before.layout is not reading.layout
        look = Look(time, reading, scrape.took, changed=changed)
        if self._standing.phase in ("failing", "locked", "foreign") and self._last is not None:
            self._tell("it answers again")
        self._last, self._page, self._failed = look, scrape, None
        self._add_look(look)
        self._stand(kind=self.kind or reading.kind, phase="live", detail="")

    def _fail(self, item: Scrape | Failed, phase: FailedPhase, reason: str, took: float = 0.0) -> None:
        self._failed = item
        self._add_look(Look(self._ordered(item.time), None, took, reason))
        self._stand(phase=phase, detail=reason)

    def _add_look(self, look: Look) -> None:
        if look.reading is None and self._standing.phase in ("live", "finding"):
            self._tell(look.failed)
        before = self._looks.marks
        self._looks.add(look)
        self._is_copied = False
        self.tape.add_look(look, self._looks.marks, len(self._looks))
        if self._looks.marks.breaks[-1:] != before.breaks[-1:]:
            self.tape.add_restart()
            self._tell("its counters began anew: it was started again")

    def _take_kv(self, item: KvMessage) -> None:
        kv = self.tape.kv(item.endpoint)
        try:
            message = from_builtins(item.payload)
            kv.take(self.items, self.tape.now, item, message)
        except ValueError as error:
            kv.stand(self.items, "failing", f"a message cannot be read: {error}", self.tape.now)
            return
        if words := _of_note(message):
            self._tell(words)

    def _take_kv_state(self, item: KvState) -> None:
        kv = self.tape.kv(item.endpoint)
        try:
            kv.set(self.items, item)
        except ValueError as error:
            kv.stand(self.items, "failing", f"its tree cannot be read: {error}", self.tape.now)

    def _tell(self, words: str) -> None:
        self.tape.add_event(Event(self.items, self.tape.now, words))


def _other(before: str, now: str) -> bool:
    """Whether both are known, and differ."""
    return bool(before and now and before != now)


def _of_note(message: Message) -> str:
    """What a person would stop at; empty for what comes all the time."""
    match message:
        case Missed():
            return f"KV events {message.first:,} to {message.last:,} were missed"
        case Restarted():
            return "the KV events begin anew: its cache is empty"
        case Heard() if any(isinstance(event, AllBlocksCleared) for event in message.batch.events):
            return "its prefix cache was cleared"
    return ""
