"""Time travel over servers: the moment shown, of one server or of a whole fleet. The watching goes on meanwhile.

A fleet is frozen as a whole, at a moment of the watcher's clock. One server sets the pace: a step leads to its next
look, and all others are shown as they were known then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tui.operator import Tell
from tui.sources.player import SourcePlayer
from tui.sources.source import Source
from tui.sources.tape import Event, NotKept
from tui.sources.view import FleetView, ServerView
from tui.time_travel import TimeTravel
from tui.view import Past


class SourcesScrub(TimeTravel[SourcePlayer]):
    """`seq` None: the newest. Otherwise the number of the look, of the server that sets the pace, which is shown.

    `fleet` and `server` are what is to be drawn; the KV trees of one picture of the past change with the next.
    A recording stands still meanwhile: what is newer than the newest is read from its file.
    """

    UNIT = "look"

    def __init__(
        self,
        sources: Sequence[Source],
        tell: Tell,
        clock: Callable[[], float],
        player: SourcePlayer | None = None,
        front: Callable[[], Source | None] = lambda: None,
    ) -> None:
        """`clock` is the sources'. `front`: the server that is shown alone, if any; it sets the pace."""
        super().__init__(tell, player)
        self._sources = sources
        self._clock = clock
        self._front = front
        self._moment = 0.0  # that is shown, on the sources' clock
        self._pace: Source | None = None  # whose looks are counted
        self._seqs: dict[int, int] = {}  # the item after which each server is shown, by the server's number
        self._views: dict[tuple[int, bool], ServerView] = {}  # of that moment, with KV trees or without, as asked for

    @property
    def fleet(self) -> FleetView | None:
        """All servers, in the order in which they were named; None where there are none. Those of the past are without
        KV trees: see `server`."""
        if not self._sources:
            return None
        now = self._clock() if self.seq is None else self._moment
        return FleetView(tuple(self._view(source, now, kv=False) for source in self._sources), now)

    def server(self, source: Source) -> ServerView:
        """One of them, at the moment that is shown."""
        return self._view(source, self._clock() if self.seq is None else self._moment)

    @property
    def past(self) -> Past | None:
        """Where the shown look lies among those kept; None while the newest is shown."""
        if self.seq is None or self._pace is None:
            return None
        self._choose_pace()
        tape = self._pace.tape
        newest = max(source.tape.now for source in self._sources)
        first = min(self._number(tape.look_seq(1)), self.seq)
        return Past(first, max(tape.looks_seen, self.seq), self.seq, max(0.0, newest - self._moment), self.UNIT)

    def pause(self) -> None:
        """Hold the picture, or go back to the newest one; a recording stops and goes on."""
        pace = self._known()
        if pace is None:
            return
        if self._player is not None:
            held = self.seq is not None or not self._player.playing
            self.release()
            (self._player.resume if held else self._player.pause)()
        elif self.seq is None:
            self._show(max(source.tape.now for source in self._sources), pace)
        else:
            self.release()

    def release(self) -> None:
        """Go on with the newest."""
        self.seq = None
        self._seqs, self._views = {}, {}

    def by(self, looks: int) -> None:
        """Some looks back or on; freezes a live screen."""
        pace = self._known()
        if pace is not None:
            self.to((pace.tape.looks_seen if self.seq is None else self.seq) + looks)

    def to(self, seq: int, exactly: bool = False) -> None:
        """The kept look that is nearest to number `seq`; of a recording also one that was not played yet.

        `exactly`: tell where that is another one.
        """
        pace, player = self._known(), self._player
        if pace is None:
            return
        if player is not None:
            player.pause()
            if seq >= pace.tape.looks_seen or (seq < self._first(pace) and self._first(pace) > 1):
                self.release()
                player.seek(max(1, seq), pace)
                return
        self._show(self._time_of(pace, seq), pace, seq)
        if exactly and self.seq != seq:
            self._tell(f"look {seq:,} is not kept: this is the nearest", True)

    def event(self, on: bool) -> None:
        """To the next event or to the one before, and say what it is."""
        pace, player = self._known(), self._player
        if pace is None:
            return
        found = self._event(on)
        if found is not None:
            source, event = found
            if player is not None:
                player.pause()
            self._show(event.time, pace)
            name = f"{source.name}: " if len(self._sources) > 1 else ""
            self._tell(f"{name}{event.words}", False)
        elif on and player is not None and not player.ended:
            player.pause()
            self.release()
            player.seek_event()
            self._tell("on to the next event", False)
        else:
            self._tell(f"no event is known {'after' if on else 'before'} this", True)

    def _known(self) -> Source | None:
        """Who sets the pace; tells where there is nothing to freeze."""
        pace = self._choose_pace()
        if pace is None:
            self._tell("there is nothing to pause yet", True)
        return pace

    def _choose_pace(self) -> Source | None:
        """The server shown alone, else the one that did so before, else that with the most looks; None: none has any.

        In a fleet it is the same one from then on, so that a look's number means the same moment.
        """
        front = self._front()
        pace = front if front is not None and front.tape.looks_seen else self._pace
        pace = pace or max(self._sources, key=lambda source: source.tape.looks_seen, default=None)
        if pace is None or not pace.tape.looks_seen:
            return None
        if self.seq is not None and pace is not self._pace:  # another is opened: the moment stays
            self.seq = pace.tape.look_number(self._seqs[pace.number])
        self._pace = pace
        return pace

    def _event(self, on: bool) -> tuple[Source, Event] | None:
        """The nearest one after, or before, the moment that is shown."""
        found: list[tuple[float, Source, Event]] = []
        for source in self._sources:
            tape = source.tape
            if on:
                event = None if self.seq is None else tape.event_after(tape.seq_at(self._moment))
            else:
                event = tape.event_before(tape.last + 1 if self.seq is None else tape.seq_before(self._moment) + 1)
            if event is not None and event.time >= self._oldest():
                found.append((event.time, source, event))
        if not found:
            return None
        _, source, event = (min if on else max)(found, key=lambda one: one[0])
        return source, event

    def _oldest(self) -> float:
        """From when on everything is kept of all servers."""
        return max(source.tape.time(source.tape.first) for source in self._sources)

    def _first(self, pace: Source) -> int:
        """The number of the first look that can be shown."""
        return pace.tape.look_number(pace.tape.look_seq(1))

    def _number(self, seq: int) -> int:
        assert self._pace is not None
        return self._pace.tape.look_number(seq)

    @staticmethod
    def _time_of(pace: Source, look: int) -> float:
        return pace.tape.time(pace.tape.look_seq(look))

    def _show(self, moment: float, pace: Source, look: int | None = None) -> None:
        """Freeze a moment, the nearest one that is kept of all."""
        self._moment, self._pace = max(moment, self._oldest()), pace
        self._seqs = {source.number: source.tape.seq_at(self._moment) for source in self._sources}
        seq = self._seqs[pace.number]
        if look is not None and pace.tape.look_number(seq) > look:  # another look was taken at the same moment
            seq = self._seqs[pace.number] = pace.tape.look_seq(look)
        self.seq = pace.tape.look_number(seq)
        self._views = {}

    def _view(self, source: Source, now: float, kv: bool = True) -> ServerView:
        if self.seq is None:
            return source.view(now=now)
        view = self._views.get((source.number, kv))
        if view is None:
            try:
                view = source.view(self._seqs[source.number], now, kv)
            except (NotKept, KeyError):
                self.release()
                self._tell("what was paused is not kept any more", True)
                return source.view()
            self._views[source.number, kv] = view
        return view
