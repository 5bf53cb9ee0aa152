"""The app: wires keys to the engine's control, and a session's newest state to the panels, ten frames a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.geometry import Size

from tui.client import Refused, Unreachable
from tui.controls import BY_FIELD, KEYED, word
from tui.look import Look
from tui.scene import MIN_HEIGHT, MIN_WIDTH, Place, arrange
from tui.session import Session
from tui.view import Frame, Status, View
from tui.widgets.panel import Panel
from tui.widgets.too_small import TooSmall

FRAME_SECONDS = 0.1
IDLE_FRAMES = 5  # with nothing new, one frame of so many is drawn: ages and plots still move
NOTICE_SECONDS = 6.0
_SHOWN = ("header", "blocks", "batch", "sharing", "waste", "speed", "footer")


class PagedTop(App[int]):
    """The dashboard of one session. Its exit value is the program's exit code."""

    CSS_PATH = Path(__file__).with_name("app.tcss")
    TITLE = "paged-top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c,ctrl+q", "quit", "quit", priority=True),
        Binding("question_mark,h,f1", "help", "help"),
        Binding("escape", "close_help", "close help"),
        Binding("space,p", "pause", "pause"),
        *(Binding(keyed.key, f"switch('{keyed.field}')", keyed.name) for keyed in KEYED),
    ]

    def __init__(self, session: Session, look: Look, readonly: bool = False, frames: bool = True) -> None:
        """`frames` off leaves drawing to whoever calls `draw_frame` (tests with a clock of their own)."""
        super().__init__()
        self.session = session
        self.look = look
        self.readonly = readonly
        self.held: View | None = None  # the picture that a pause keeps
        self._frames = frames
        self._paused = False
        self._records_at_pause = 0
        self._notice = ("", False)
        self._notice_until = 0.0
        self._seen: tuple[object, ...] = ()
        self._idle = 0
        self._refused: dict[str, Any] = {}  # the last value of a control that the engine would not take
        self._helping = False
        self._size_now: Size | None = None  # of the last resize, which the app's own size lags behind
        self._pool = 0  # blocks that the panels were arranged for

    def compose(self) -> ComposeResult:
        for name in (*_SHOWN, "help"):
            yield Panel(name, self.look)
        yield TooSmall(self.look)

    def on_mount(self) -> None:
        self.run_worker(self.session.run(), name="session", exit_on_error=True)
        self._arrange()
        if self._frames:
            self.set_interval(FRAME_SECONDS, self.tick)

    def on_resize(self, event: Resize) -> None:
        self._size_now = event.size
        self._arrange()

    def tick(self) -> None:
        """Draw, unless nothing can have changed."""
        feed = self.session.feed
        seen = (feed.records if feed else 0, self.session.link.phase, self._notice, self._paused, len(self.session.log))
        self._idle = self._idle + 1 if seen == self._seen else 0
        self._seen = seen
        if self._idle % IDLE_FRAMES == 0:
            self.draw_frame()

    def frame(self) -> Frame:
        """The newest state, or the held one while paused."""
        session = self.session
        now = session.clock()
        if now >= self._notice_until:
            self._notice = ("", False)
        feed = session.feed
        return Frame(
            Status(
                link=session.link,
                target=session.target,
                paused=self._paused,
                since_pause=feed.records - self._records_at_pause if feed and self._paused else 0,
                readonly=self.readonly,
                notice=self._notice[0],
                notice_bad=self._notice[1],
                replay=session.replay.line if session.replay else "",
                log=session.log,
            ),
            self.held if self._paused else session.view(),
        )

    def draw_frame(self) -> None:
        frame = self.frame()
        pool = len(frame.view.blocks) if frame.view else 0
        if pool != self._pool:
            self._pool = pool
            self._arrange()
            return
        for panel in self.query(Panel):
            panel.show(frame)

    def _arrange(self) -> None:
        """Give every panel its place at this size."""
        width, height = self._size_now or self.size
        places = {place.name.split("-")[0]: place for place in arrange(width, height, self._pool)}
        for name in _SHOWN:
            self.query_one(f"#{name}", Panel).put(places.get(name))
        self.query_one(TooSmall).display = width < MIN_WIDTH or height < MIN_HEIGHT
        self.query_one("#help", Panel).put(_help_place(width, height) if self._helping and places else None)
        self.draw_frame()

    def say(self, text: str, bad: bool = False) -> None:
        """Put a notice on the last line for a while."""
        self._notice = (text, bad)
        self._notice_until = self.session.clock() + NOTICE_SECONDS
        self.draw_frame()

    def action_help(self) -> None:
        self._helping = not self._helping
        self._arrange()

    def action_close_help(self) -> None:
        if self._helping:
            self.action_help()

    def action_pause(self) -> None:
        """Hold the picture, or go back to the newest one. The feed goes on in both."""
        feed = self.session.feed
        if not self._paused and (feed is None or feed.fold is None):
            self.say("there is nothing to pause yet", bad=True)
            return
        self._paused = not self._paused
        view = self.session.view() if self._paused else None
        self.held = view.frozen() if view else None
        self._records_at_pause = feed.records if feed else 0
        self.draw_frame()

    async def action_quit(self) -> None:
        self.exit(0)

    def action_switch(self, field: str) -> None:
        """Send one change of control: to the choice after what the engine has now, or after what it has refused."""
        fold = self.session.feed.fold if self.session.feed else None
        if self.readonly:
            self.say("readonly: nothing is sent", bad=True)
        elif fold is None:
            self.say("there is no engine to switch yet", bad=True)
        else:
            value = self._refused.pop(field, getattr(fold.control, field))
            self.run_worker(self._change({field: BY_FIELD[field].after(value)}), group="control")

    async def _change(self, changes: dict[str, Any]) -> None:
        field, value = next(iter(changes.items()))
        name = BY_FIELD[field].name
        try:
            accepted = await self.session.change(changes)
        except (Refused, Unreachable) as error:
            if isinstance(error, Refused):
                self._refused[field] = value
            self.say(f"{name} was not changed: {error}", bad=True)
            return
        shown = getattr(accepted.control, field)
        words = f"{name} is {word(shown)} from step {accepted.step:,}"
        self.say(words if shown == value else f"the engine kept: {words}", bad=shown != value)


def _help_place(width: int, height: int) -> Place:
    """In the middle; as high as the help is at that width."""
    wide, high = (140, 18) if width >= 140 else (min(width, 90), 22) if width >= 78 else (min(width, 60), 30)
    high = min(height, high)
    return Place("help", (width - wide) // 2, (height - high) // 2, wide, high)
