"""Time travel over a cluster: which of the kept states is shown, and how far a recording is played."""

from __future__ import annotations

from tui.cluster.player import ClusterPlayer
from tui.cluster.states import ClusterStates
from tui.cluster.view import ClusterView
from tui.operator import Tell
from tui.time_travel import TimeTravel
from tui.view import Past


class ClusterScrub(TimeTravel[ClusterPlayer]):
    """`seq` None: the newest. Otherwise the number of the state that is shown; `view` is what it tells.

    A recording stands still meanwhile: what is newer than the newest is read from its file.
    """

    UNIT = "state"

    def __init__(self, states: ClusterStates, tell: Tell, player: ClusterPlayer | None = None) -> None:
        super().__init__(tell, player)
        self.view: ClusterView | None = None
        self._states = states

    @property
    def past(self) -> Past | None:
        """Where the shown state lies among those kept; None while the newest is shown."""
        if self.seq is None or self.view is None:
            return None
        tape = self._states.tape
        behind = max(0.0, tape.time(tape.last) - self.view.state.time)
        return Past(min(tape.first, self.seq), max(tape.last, self.seq), self.seq, behind, self.UNIT)

    def pause(self) -> None:
        """Hold the picture, or go back to the newest one; a recording stops and goes on."""
        if not self._known():
            return
        if self._player is not None:
            held = self.seq is not None or not self._player.playing
            self.release()
            (self._player.resume if held else self._player.pause)()
        elif self.seq is None:
            self._show(self._states.heard)
        else:
            self.release()

    def release(self) -> None:
        """Go on with the newest."""
        self.seq = self.view = None

    def by(self, records: int) -> None:
        """Some states back or on; freezes a live screen."""
        if self._known():
            self.to((self._states.heard if self.seq is None else self.seq) + records)

    def to(self, seq: int, exactly: bool = False) -> None:
        """The kept state that is nearest to `seq`; of a recording also one that was not played yet.

        `exactly`: tell where that is another one.
        """
        if not self._known():
            return
        tape, player = self._states.tape, self._player
        if player is not None:
            player.pause()
            if seq >= tape.last or (seq < tape.first and tape.first > 1):
                self.release()
                player.seek(max(1, seq))
                return
        self._show(tape.nearest(seq))
        if exactly and self.seq != seq:
            self._tell(f"state {seq:,} is not kept: this is the nearest", True)

    def event(self, on: bool) -> None:
        """To the next event or to the one before, and say what it is."""
        if not self._known():
            return
        tape, player = self._states.tape, self._player
        seq = tape.last if self.seq is None else self.seq
        found = tape.event_after(seq) if on else tape.event_before(seq)
        if found is not None:
            if player is not None:
                player.pause()
            self._show(found[0])
            self._tell(found[1], False)
        elif on and player is not None and not player.ended:
            player.pause()
            self.release()
            player.seek_event()
            self._tell("on to the next event", False)
        else:
            self._tell(f"no event is known {'after' if on else 'before'} this", True)

    def _known(self) -> bool:
        if not self._states.heard:
            self._tell("there is nothing to pause yet", True)
        return bool(self._states.heard)

    def _show(self, seq: int) -> None:
        self.seq, self.view = seq, self._states.past(seq)
