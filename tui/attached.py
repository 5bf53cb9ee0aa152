"""What is on the screen, and what works on it: a step stream with its operator's hand, its line of time and its
recorder. Servers that tell no steps have the same places for them (`tui.sources.attach`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from engine.protocol import Control, LiveLoad
from tui.advice import Suggestion, advise
from tui.focus import Focus
from tui.operator import Operator, Tell
from tui.panels.block_detail import block_events
from tui.prefix_tree import tree_of
from tui.recorder_switch import RecorderSwitch
from tui.recording_switch import RecordingSwitch
from tui.scrub import Scrub
from tui.session import Session
from tui.texts import NO_SOURCE, SWITCHED_OFF, TextReader
from tui.view import Frame, Kind, Past, Status, View

MOVING = ("blocks", "batch")  # of a step stream: they are drawn with every frame
STORY_RECORDS = 400  # that a block's story is read from
TEXT_ROWS = 60  # of the prefix tree whose texts are read, one at a time


@dataclass(frozen=True, slots=True)
class Said:
    """What the last line tells for a while, and where escape leads at last."""

    notice: str = ""
    bad: bool = False
    back: str = ""


class Timeline(Protocol):
    """Which moment is shown. `seq` None: the newest."""

    seq: int | None

    @property
    def past(self) -> Past | None: ...

    def pause(self) -> None: ...

    def release(self) -> None: ...

    def by(self, records: int) -> None: ...

    def to(self, seq: int, exactly: bool = False) -> None: ...

    def event(self, on: bool) -> None: ...

    def goto(self, text: str) -> None: ...

    def faster(self, times: float) -> None: ...


class Shown(Protocol):
    """What one screen shows. `moving`: panels that are drawn with every frame."""

    moving: tuple[str, ...]

    @property
    def kind(self) -> Kind: ...

    @property
    def scrub(self) -> Timeline: ...

    @property
    def recorder(self) -> RecordingSwitch[Any]: ...

    @property
    def heard(self) -> int:
        """Grows with everything that is heard."""
        ...

    @property
    def standing(self) -> object:
        """What is to be drawn at once when it changes."""
        ...

    def frame(self, focus: Focus, said: Said) -> Frame: ...

    async def read(self, focus: Focus) -> None:
        """Ask for what the focus needs, and the stream does not tell."""
        ...


class Steps:
    """A step stream: of an engine, or of a recording."""

    kind: Kind = "steps"
    moving: tuple[str, ...] = MOVING

    def __init__(
        self, session: Session, readonly: bool, tell: Tell, of: str = "", beside: Callable[[], str] = lambda: ""
    ) -> None:
        """`of`: its name, where it is one of several servers; `beside`: what is recorded of all of them, in words."""
        self._beside = beside
        self.session = session
        self.operator = Operator(session, readonly, tell)
        self.scrub = Scrub(session, tell)
        self.recorder = RecorderSwitch(session, tell, of)
        self.advice: tuple[Suggestion, ...] = ()
        self.advised: tuple[int, Control] | None = None  # the second of the engine's clock that it was looked for
        self._texts = TextReader(
            lambda: session.feed.engine if session.feed and session.texts and not session.player else None,
            no_source=NO_SOURCE if session.texts else SWITCHED_OFF,
        )
        self._loads: tuple[LiveLoad, ...] = ()  # that are shown: while the view stands still, they do
        self._story_of: tuple[object, tuple[tuple[int, str], ...]] = (None, ())

    @property
    def heard(self) -> int:
        return self.session.feed.records if self.session.feed else 0

    @property
    def standing(self) -> object:
        return self.session.link.phase, self.scrub.seq

    def frame(self, focus: Focus, said: Said) -> Frame:
        session, feed = self.session, self.session.feed
        view = self.scrub.view
        if self.scrub.seq is None:
            self._loads = session.loads.loads if session.loads else ()
        step = view.record if view else None
        if feed is not None and focus.batch.step is not None and focus.batch.step != (view.seq if view else None):
            step = feed.tape.record(focus.batch.step)
        return Frame(
            Status(
                link=session.link,
                target=session.target,
                past=self.scrub.past,
                playing=session.playing,
                recording=", ".join(filter(None, (self.recorder.words, self._beside()))),
                readonly=self.operator.readonly,
                notice=said.notice,
                notice_bad=said.bad,
                replay=session.replay.line if session.replay else "",
                log=session.log,
                back=said.back,
                unchecked=session.unchecked,
            ),
            view,
            focus,
            step,
            self._texts.texts,
            self._suggestions(view),
            self._story(view, focus),
            self._loads,
        )

    def _suggestions(self, view: View | None) -> tuple[Suggestion, ...]:
        """Advice, looked for once a second of the engine's clock and only at the newest record."""
        if view is None or self.session.player is not None or self.scrub.seq is not None:
            return ()
        asked = (int(view.now), view.control)
        if asked != self.advised:
            self.advised = asked
            self.advice = advise(view, tried=[made.after for made in self.operator.tried])
        return self.advice

    def _story(self, view: View | None, focus: Focus) -> tuple[tuple[int, str], ...]:
        """What the last kept records tell of the block that is inspected; read anew once a second at most."""
        feed = self.session.feed
        if view is None or feed is None or focus.panel != "blocks" or not focus.inspecting or focus.map.block is None:
            return ()
        asked = (focus.map.block, int(view.now), self.scrub.seq)
        if asked != self._story_of[0]:
            records = feed.tape.records(max(feed.tape.first, view.seq - STORY_RECORDS), view.seq)
            events = block_events(records, focus.map.block, view.engine.block_size)
            self._story_of = (asked, tuple(events))
        return self._story_of[1]

    async def read(self, focus: Focus) -> None:
        """Ask for the texts of what the inspector shows, and of the prefixes that the sharing panel lists."""
        live = self.scrub.seq is None and self.session.player is None
        request = block = None
        wanted: dict[int, int] = {}
        view = self.session.view() if live and focus.panel == "sharing" else None
        if view is not None:
            tree = tree_of(view)
            shown = tree.visible(focus.sharing.closed)[focus.sharing.top :][:TEXT_ROWS]
            wanted = {at: int(view.blocks.changed[at]) for at in tree.blocks[tree.starts[shown]].tolist()}
            at = tree.index_of(focus.sharing.node) if focus.inspecting else None
            block = tree.node(at).blocks[0] if at is not None else None
        elif live and focus.inspecting:
            request = focus.request if focus.panel == "requests" else None
            block = focus.map.block if focus.panel == "blocks" else None
        await self._texts.read(request, block)
        await self._texts.glance(wanted)


class Attached(Protocol):
    """All that the program is attached to, and what of it is shown. Run it in a task, and close it in any case."""

    @property
    def clock(self) -> Callable[[], float]: ...

    @property
    def shown(self) -> Shown: ...

    @property
    def back(self) -> str:
        """Where `leave` leads; empty: nowhere."""
        ...

    @property
    def finished(self) -> list[str]:
        """What became of each recording."""
        ...

    @property
    def report(self) -> list[str]:
        """What replays came to, in lines."""
        ...

    @property
    def error(self) -> str:
        """Why the program fails at its end; empty where it does not."""
        ...

    def begin(self, readonly: bool, tell: Tell) -> None:
        """Once, before anything else: how the screen is told, and whether it may send."""
        ...

    async def run(self) -> None: ...

    async def open(self, server: str) -> None:
        """Show one server of several."""
        ...

    async def leave(self) -> None:
        """Back to several."""
        ...

    async def close(self) -> None: ...


class One:
    """A step stream alone: an engine's, or a recording's."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.clock = session.clock
        self.back = ""
        self._steps: Steps | None = None

    @property
    def shown(self) -> Steps:
        assert self._steps is not None, "begin comes first"
        return self._steps

    @property
    def finished(self) -> list[str]:
        return self.shown.recorder.finished

    @property
    def report(self) -> list[str]:
        return self.session.replay.report if self.session.replay else []

    @property
    def error(self) -> str:
        return self.session.error or (self.session.replay.failure if self.session.replay else "")

    def begin(self, readonly: bool, tell: Tell) -> None:
        self._steps = Steps(self.session, readonly, tell)

    async def run(self) -> None:
        await self.session.run()

    async def open(self, server: str) -> None:
        raise ValueError(f"there is one server alone, and {server} is none of it")

    async def leave(self) -> None:
        """There is nowhere to go."""

    async def close(self) -> None:
        """Stop what was started here, and let go of the engine."""
        self.shown.recorder.stop()
        await self.session.close()
