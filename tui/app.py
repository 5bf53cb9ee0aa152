"""The app: wires keys, mouse and commands to focus, time and engine, and draws the newest state of what is shown.

It decides nothing: `dispatch` says what an input means, panels say what is drawn, `Operator` talks to the engine.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from textual import events
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.screen import Screen
from textual.timer import Timer

from tui import commands, dispatch
from tui.attached import Attached, One, Said, Shown, Steps, Timeline
from tui.controls import BY_FIELD, NUMBERS
from tui.focus import FIRST_FOCUS, Focus, TableFocus, back
from tui.keys import SCRUB, offered
from tui.look import Look
from tui.operator import Hand
from tui.panels import sets
from tui.panels.line import clean
from tui.question import Question
from tui.recording_switch import RecordingSwitch
from tui.scene import MIN_HEIGHT, MIN_WIDTH, OVERLAYS, Place, arrange
from tui.session import Session
from tui.themes import THEMES
from tui.view import UNITS, Frame
from tui.widgets.palette import Palette
from tui.widgets.panel import Panel
from tui.widgets.too_small import TooSmall

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.worker import Worker

FRAMES = 10.0  # a second
MOST_FRAMES, LEAST_FRAMES = 60.0, 0.5
SOON_SECONDS = 0.015  # after an input
READ_SECONDS = 0.35  # between two pictures of all else, while records come
DRAW_REST = 8.0  # so many times as long as drawing all took, nothing comes by itself: a thousand rows have their price
IDLE_SECONDS = 0.5  # with nothing new, a frame is drawn this often: ages and plots still move
NOTICE_SECONDS = 6.0
SETTLED_SECONDS = 2.0  # from which on what lives will live long
TEXT_SECONDS = 0.3  # between two reads of what is selected
_SHOWN = (
    "header", "blocks", "batch", "sharing", "waste", "speed", "ledgers", "requests", "control", "loads", "scrub",
    "footer",
)  # fmt: skip
_CANCEL = "cancel "


class PagedTop(App[int]):
    """The dashboard of what it is attached to. Its exit value is the program's exit code."""

    CSS_PATH = Path(__file__).with_name("app.tcss")
    TITLE = "paged-top"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c,ctrl+q", "quit", "quit", priority=True)]

    def __init__(
        self,
        attached: Attached | Session,
        look: Look,
        readonly: bool = False,
        frames: float = FRAMES,
        focus: Focus = FIRST_FOCUS,
    ) -> None:
        """`frames` a second; 0 leaves drawing to whoever calls `draw_frame` (tests with a clock of their own)."""
        super().__init__(ansi_color=look.theme.ansi)
        self.attached: Attached = One(attached) if isinstance(attached, Session) else attached
        self.attached.begin(readonly, self.say)
        self.look = look
        self.focus_now = focus
        self._left: Focus | None = None  # where the several servers were when one of them was opened
        self._frames = frames
        self._timer: Timer | None = None
        self._notice = ("", False)
        self._notice_until = 0.0
        self._seen: tuple[object, ...] = ()
        self._records = 0
        self._read_at = 0.0  # when all panels were last drawn,
        self._draw_seconds = 0.0  # and what that took
        self._soon = False  # a frame is asked for
        self._size_now: Size | None = None  # of the last resize, which the app's own size lags behind
        self._places: tuple[Place, ...] = ()
        self._panels: dict[str, Panel] = {}
        self._question = Question()
        self._following: Worker[None] | None = None

    @property
    def shown(self) -> Shown:
        return self.attached.shown

    @property
    def scrub(self) -> Timeline:
        return self.shown.scrub

    @property
    def recorder(self) -> RecordingSwitch[Any]:
        return self.shown.recorder

    @property
    def steps(self) -> Steps:
        """What is shown, on screens whose keys reach an engine."""
        shown = self.shown
        assert isinstance(shown, Steps), "these keys are offered over a step stream alone"
        return shown

    @property
    def session(self) -> Session:
        return self.steps.session

    @property
    def operator(self) -> Hand:
        """On what is shown, an engine or a cluster."""
        hand: Hand | None = getattr(self.shown, "operator", None)
        assert hand is not None, "these keys are offered over what can be changed"
        return hand

    # Building and drawing

    def compose(self) -> ComposeResult:
        for name in (*_SHOWN, *reversed(OVERLAYS)):
            self._panels[name] = Panel(name, self.look)
            yield self._panels[name]
        yield TooSmall(self.look)

    def on_mount(self) -> None:
        self._paint_background()
        self._following = self.run_worker(self.attached.run(), name="attached", exit_on_error=True)
        self.draw_frame()
        if self._frames:
            self._timer = self.set_interval(1 / self._frames, self.tick)
            self.set_interval(TEXT_SECONDS, self._read)
            self.set_timer(SETTLED_SECONDS, _look_rarely)

    def on_resize(self, event: events.Resize) -> None:
        self._size_now = event.size
        self._question.put(event.size)
        self.draw_frame()

    def tick(self) -> None:
        """Draw, unless nothing can have changed."""
        self.recorder.check()
        shown, now = self.shown, self.attached.clock()
        records, seen = shown.heard, (shown, shown.standing, self._notice, self.focus_now)
        news = records != self._records
        pause = max(READ_SECONDS if news else IDLE_SECONDS, DRAW_REST * self._draw_seconds)
        due = seen != self._seen or now - self._read_at >= pause
        if due or (news and shown.moving):
            self._seen, self._records = seen, records
            self.draw_frame(shown.moving if not due else None)

    def frame(self) -> Frame:
        """Everything that is to be drawn."""
        if self.attached.clock() >= self._notice_until:
            self._notice = ("", False)
        asked = self._question.asked
        notice = (asked.label + ":", False) if asked else self._notice
        return sets.settled(self.shown.frame(self.focus_now, Said(*notice, self.attached.back)))

    def draw_soon(self) -> None:
        """Draw what an input has changed: many in a row in one frame."""
        if not self._frames:
            self.draw_frame()
        elif not self._soon:
            self._soon = True
            self.set_timer(SOON_SECONDS, self.draw_frame)

    def draw_frame(self, only: Collection[str] | None = None) -> None:
        """Draw all panels, or only those: what is watched moves with every frame, what is read a few times a second."""
        self._soon = False
        began, whole = time.thread_time(), only is None
        if whole:
            self._read_at = self.attached.clock()
        frame = self.frame()
        width, height = self._size_now or self.size
        places = arrange(width, height, frame)
        if places != self._places:
            self._places, only = places, None
            self._arrange(width, height)
        for name, panel in self._panels.items():
            if only is None or name in only:
                panel.show(frame, self.look)
        if whole:
            self._draw_seconds = time.thread_time() - began

    def _arrange(self, width: int, height: int) -> None:
        """Give every panel its place at this size."""
        by_name = {
            place.name if place.name in self._panels else place.name.split("-")[0]: place for place in self._places
        }
        for name in by_name.keys() - self._panels.keys():  # of a kind of screen that was not shown yet
            self._panels[name] = Panel(name, self.look)
            self.screen_stack[0].mount(self._panels[name])
        for name, panel in self._panels.items():
            panel.put(by_name.get(name))
        self.screen_stack[0].query_one(TooSmall).display = width < MIN_WIDTH or height < MIN_HEIGHT

    def _paint_background(self) -> None:
        self.screen_stack[0].styles.background = self.look.background or "ansi_default"

    async def _read(self) -> None:
        await self.shown.read(self.focus_now)

    def say(self, text: str, bad: bool = False) -> None:
        """Put a notice on the last line for a while."""
        self._notice = (text, bad)
        self._notice_until = self.attached.clock() + NOTICE_SECONDS
        self.draw_soon()

    # Input

    async def on_key(self, event: events.Key) -> None:
        """Every key comes by here once: those of the whole screen first, then those of the panel in front."""
        if len(self.screen_stack) > 1:
            return
        if self._question.asked is not None:
            if event.key == "escape":
                await self._question.close()
                self.draw_soon()
            return
        event.prevent_default()
        event.stop()
        await self.press(event.key)

    async def press(self, key: str) -> None:
        """What a key does, whoever pressed it: a hand, or the mouse on the key's name."""
        frame = self.frame()
        known = next((one for one in offered(frame) if key in one.keys.split(",")), None)
        if key in SCRUB and self.scrub.seq is not None:
            self.action_scrub(SCRUB[key])
        elif known is not None:
            await self.run_action(known.action)
        else:
            await self.perform(dispatch.press(frame, key, self._places))

    async def on_panel_pointed(self, message: Panel.Pointed) -> None:
        place, x, y = message.place, message.x, message.y
        if message.kind == "hover":
            await self.perform(dispatch.hover(self.frame(), place, x, y))
        elif message.kind in ("up", "down"):
            await self.perform(dispatch.wheel(self.frame(), place, x, y, message.kind == "up"))
        elif place.name == "scrub":
            await self.perform(dispatch.seek(self.frame(), x, place.width))
        elif place.name in ("header", "footer", "help"):
            shown = dispatch.key_at(self._panels[place.name].line(y), x)
            key = next((known for known in offered(self.frame()) if shown and shown in known.shown.split()), None)
            if key is not None:
                await self.press(key.keys.split(",")[0])
        elif place.name not in OVERLAYS:
            await self.perform(dispatch.point(self.frame(), place, x, y))

    async def perform(self, reaction: commands.Reaction) -> None:
        """Carry out what an input means."""
        match reaction:
            case None:
                return
            case Focus():
                self.focus_now = reaction
            case commands.Change(changes):
                self.run_worker(self.operator.change(changes), group="control")
            case commands.Undo():
                self.run_worker(self.operator.undo(), group="control")
            case commands.Cancel(request):
                if self.operator.able():
                    await self._ask(commands.Ask(_CANCEL + request, f"cancel {request}? y or n"))
            case commands.Seek(None):
                self.scrub.release()
            case commands.Seek(int(seq)):
                self.scrub.to(seq)
                self._follow()
            case commands.Replay(action, speed):
                self.run_worker(self._replay(self.steps, action, speed), group="control")
            case commands.Open(server):
                await self._open(server)
            case commands.Ask():
                await self._ask(reaction)
            case commands.Say(text, bad):
                self.say(text, bad)
        self.draw_soon()

    async def _ask(self, ask: commands.Ask) -> None:
        await self._question.ask(ask, self.screen_stack[0], self._size_now or self.size)
        self.draw_soon()

    async def on_input_changed(self, event: Any) -> None:
        """Yes or no is one key."""
        asked = self._question.asked
        if asked is not None and asked.what.startswith(_CANCEL) and len(event.value) == 1:
            await self._answered(str(event.value))

    async def on_input_submitted(self, event: Any) -> None:
        await self._answered(str(event.value).strip())

    async def _answered(self, text: str) -> None:
        """The answer to the question on the last line."""
        ask = await self._question.close()
        if ask is None:
            return
        if ask.what.startswith(_CANCEL):
            if text.lower() in ("y", "yes") and isinstance(self.shown, Steps):  # still
                self.run_worker(self.steps.operator.cancel(ask.what.removeprefix(_CANCEL)), group="control")
            else:
                self.say("nothing was cancelled")
        elif ask.what == "step":
            self.scrub.goto(text)
            self._follow()
        elif ask.what == "record":
            self.recorder.start(text)
        else:
            await self.perform(dispatch.answered(self.frame(), ask.what, text))
        self.draw_soon()

    # The screen

    def action_command_palette(self) -> None:
        if self._question.asked is None and len(self.screen_stack) == 1:  # an open question is answered first
            self.push_screen(Palette())

    async def action_quit(self) -> None:
        self.exit(0)

    def exit(self, result: int | None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        """End. Nothing is watched any more: a thousand servers leave little of the loop to what closes the screen."""
        if self._following is not None:
            self._following.cancel()
        super().exit(result, return_code, message)

    def action_help(self) -> None:
        self._look_at(helping=not self.focus_now.helping, help_top=0)

    def action_inspect(self) -> None:
        self._look_at(inspecting=not self.focus_now.inspecting, inspect_top=0)

    def action_expand(self) -> None:
        self._look_at(expanded=not self._focus.expanded)

    def action_panel(self, number: int) -> None:
        """To a panel; to the one in front again: over the whole screen, and back."""
        name = self._set.names[number - 1]
        if self._focus.panel == name:
            self.action_expand()
        else:
            self._look_at(panel=name)

    def action_next_panel(self, by: int) -> None:
        self._look_at(panel=dispatch.neighbour(self._focus.panel, by, self._set.names))

    async def action_back(self) -> None:
        out = back(self.focus_now, self._set.kind)
        if out is not None:
            self.focus_now = out
        elif self.scrub.seq is not None:
            self.action_pause()
        elif self.attached.back:
            await self._leave()
        self.draw_soon()

    async def _open(self, server: str) -> None:
        """One server alone; the table is left as it is."""
        self._left, self._notice = self.focus_now, ("", False)
        await self.attached.open(server)
        self.focus_now = FIRST_FOCUS.but(ledgers=self.focus_now.ledgers)

    async def _leave(self) -> None:
        """Back to the table, as it was left."""
        self._notice = ("", False)  # what is told of leaving stays
        await self.attached.leave()
        self.focus_now = (self._left or FIRST_FOCUS).but(ledgers=self.focus_now.ledgers)
        self._left = None

    @property
    def _set(self) -> sets.PanelSet:
        return sets.of_kind(self.shown.kind)

    @property
    def _focus(self) -> Focus:
        """With one of this screen's panels in front."""
        return self._set.settled(self.focus_now)

    async def action_filter(self) -> None:
        """Of requests, servers, or workers."""
        focus, panel = self.focus_now, {"fleet": "fleet", "cluster": "workers"}.get(self._set.kind, "requests")
        self._look_at(panel=panel)
        table: TableFocus = {"fleet": focus.fleet, "workers": focus.cluster}.get(panel, focus.requests)
        await self._ask(commands.Ask("filter", "filter", table.filter))

    def action_theme(self) -> None:
        """The next theme."""
        names = list(THEMES)
        self.set_theme(names[(names.index(self.look.theme.name) + 1) % len(names)])

    def set_theme(self, name: str) -> None:
        self.look = Look(self.look.glyphs, THEMES[name])
        self.ansi_color = self.look.theme.ansi
        self._paint_background()
        self.say(f"theme: {name}")

    def action_frames(self, times: float) -> None:
        """More or fewer frames a second."""
        self._frames = min(MOST_FRAMES, max(LEAST_FRAMES, self._frames * times))
        if self._timer is not None:
            self._timer.stop()
            self._timer = self.set_interval(1 / self._frames, self.tick)
        self.say(f"{self._frames:g} frames a second at most")

    def _look_at(self, **changes: Any) -> None:
        self.focus_now = self._focus.but(**changes)
        self.draw_soon()

    # Time

    def action_pause(self) -> None:
        """Hold the picture, or go back to the newest one. The feed goes on in both, but a recording stops."""
        self.scrub.pause()
        self._follow()

    def action_scrub(self, records: int) -> None:
        """Some records back or on."""
        self._notice = ("", False)  # it may name the step that is left
        self.scrub.by(records)
        self._follow()

    def action_event(self, direction: int) -> None:
        """To the next event or the one before."""
        self.scrub.event(direction > 0)
        self._follow()

    def action_speed(self, times: float) -> None:
        self.scrub.faster(times)

    async def action_goto(self) -> None:
        await self._ask(commands.Ask("step", f"to {UNITS[self.shown.kind]}"))

    def _follow(self) -> None:
        """The batch's cursor is on the step that is shown now."""
        self._look_at(batch=replace(self.focus_now.batch, step=None))

    async def action_record(self) -> None:
        """Record to a file that is asked for, or end that."""
        if self.recorder.running:
            self.recorder.stop()
        elif self.recorder.able():
            await self._ask(commands.Ask("record", "record to", self.recorder.suggestion()))

    # The engine

    def action_switch(self, field: str) -> None:
        """Send one change of control: to the choice after what the engine has now."""
        operator = self.steps.operator
        if operator.able():
            value = operator.next_value(field, BY_FIELD[field].after)
            self.run_worker(operator.change({field: value}), group="control")

    async def action_steer(self, what: str) -> None:
        """What a key does to a cluster."""
        if self.operator.able():
            await self.perform(dispatch.steer(self.frame(), what))

    async def action_ask_control(self, field: str) -> None:
        operator = self.steps.operator
        if operator.able() and operator.control is not None:
            self._look_at(panel="control")
            await self.perform(NUMBERS[field].ask(operator.control))

    def action_try_advice(self) -> None:
        """Apply the first suggestion; `u` takes it back."""
        if not self.operator.able():
            return
        if not self.steps.advice:
            self.say("there is no advice now", bad=True)
            return
        self.run_worker(self.operator.change(dict(self.steps.advice[0].changes)), group="control")

    def action_undo(self) -> None:
        self.run_worker(self.operator.undo(), group="control")

    def action_replay(self) -> None:
        running = self.session.replay is not None and self.session.replay.running
        self.run_worker(self._replay(self.steps, "stop" if running else "start"), group="control")

    async def _replay(self, steps: Steps, action: Literal["start", "stop", "speed"], speed: float = 1.0) -> None:
        if steps.operator.able():
            self.say(*await steps.session.steer_replay(action, speed))

    def get_system_commands(self, screen: Screen[Any]) -> Any:
        """The command palette: every key by what it does, and the themes."""
        frame = self.frame()
        for key in offered(frame):
            idle = key.replays and frame.status.playing is None
            if not idle and not (key.sends and frame.status.readonly) and key.action != "command_palette":
                yield SystemCommand(f"{key.does} ({key.shown})", f"the key {key.shown}", self._runner(key.keys))
        for name, url in frame.opens:
            yield SystemCommand(f"open {clean(name)}", clean(url), self._opener(name))
        for name in THEMES:
            yield SystemCommand(f"theme {name}", "colours of the screen", self._themer(name))

    def _runner(self, keys: str) -> Any:
        return lambda: self.call_later(self.press, keys.split(",")[0])

    def _opener(self, server: str) -> Any:
        return lambda: self.call_later(self.perform, commands.Open(server))

    def _themer(self, name: str) -> Any:
        return lambda: self.set_theme(name)


def _look_rarely() -> None:
    """Let Python look for garbage rarely: a frame makes thousands of objects and hardly a cycle."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
