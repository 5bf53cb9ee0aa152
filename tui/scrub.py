"""Time travel: which of the kept records is shown, and how far a recording is played. The feed goes on meanwhile."""

from __future__ import annotations

from tui.feed import Feed
from tui.operator import Tell
from tui.player import Player
from tui.session import Session
from tui.time_travel import TimeTravel
from tui.view import Past, View


class Scrub(TimeTravel[Player]):
    """`seq` None: the newest. Otherwise the screen shows the state after that record, which the feed's tape has kept.

    A recording stands still meanwhile: what is newer than the newest is read from its file.
    """

    UNIT = "step"
    NO_SPEED = "only a recording has a speed; a replay's is in 6"

    def __init__(self, session: Session, tell: Tell) -> None:
        super().__init__(tell, session.player)
        self._session = session
        self._view: View | None = None  # of `seq`

    @property
    def view(self) -> View | None:
        """What is to be drawn; None before the first snapshot."""
        feed = self._session.feed
        if feed is None or feed.fold is None:
            return None
        if self._view is not None and self._view.engine.started != feed.fold.engine.started:
            self.release()
            self._tell("the engine is another one now: what was paused is gone", True)
        return self._view or feed.view()

    @property
    def past(self) -> Past | None:
        """Where the shown record lies among those kept; None while the newest is shown."""
        feed = self._session.feed
        if self.seq is None or feed is None or feed.fold is None or self._view is None:
            return None
        first, last = min(feed.tape.first, self.seq), max(feed.fold.seq, self.seq)
        return Past(first, last, self.seq, max(0.0, feed.fold.time - self._view.now))

    def pause(self) -> None:
        """Hold the picture, or go back to the newest one; a recording stops and goes on."""
        feed, player = self._known(), self._player
        if feed is None:
            return
        if player is not None:
            held = self.seq is not None or not player.playing
            self.release()
            (player.resume if held else player.pause)()
        elif self.seq is None:
            self._show(feed, self._newest(feed))
        else:
            self.release()

    def release(self) -> None:
        """Go on with the newest."""
        self.seq = self._view = None

    def by(self, records: int) -> None:
        """Some records back or on; freezes a live screen."""
        feed = self._known()
        if feed is not None:
            self.to((self._newest(feed) if self.seq is None else self.seq) + records)

    def to(self, seq: int, exactly: bool = False) -> None:
        """The kept record that is nearest to `seq`; of a recording also one that was not played yet.

        `exactly`: tell where that is another one.
        """
        feed, player = self._known(), self._player
        if feed is None:
            return
        if player is not None:
            player.pause()
            in_file = seq >= player.first or player.earlier
            if seq >= self._newest(feed) or (seq < feed.tape.first and in_file):
                self.release()
                player.seek(seq)
                return
        self._show(feed, feed.tape.nearest(seq))
        if exactly and self.seq != seq:
            self._tell(f"step {seq:,} is not kept: this is the nearest", True)

    def event(self, on: bool) -> None:
        """To the next event or to the one before, and say what it is."""
        feed, player = self._known(), self._player
        if feed is None:
            return
        seq = self._newest(feed) if self.seq is None else self.seq
        found = feed.tape.event_after(seq) if on else feed.tape.event_before(seq)
        if found is not None:
            self._show(feed, found[0])
            self._tell(f"step {found[0]:,}: {found[1]}", False)
            return
        further = player.event(seq, on) if player is not None else None
        if further is None:
            self._tell(f"no event is known {'after' if on else 'before'} this", True)
        else:
            is_before = player is not None and further < player.first
            self.to(further)
            self._tell("before the engine was started again" if is_before else f"step {further:,}", False)

    def _known(self) -> Feed | None:
        feed = self._session.feed
        if feed is None or feed.fold is None:
            self._tell("there is nothing to pause yet", True)
            return None
        return feed

    @staticmethod
    def _newest(feed: Feed) -> int:
        assert feed.fold is not None
        return feed.fold.seq

    def _show(self, feed: Feed, seq: int) -> None:
        self.seq, self._view = seq, feed.view(seq)
