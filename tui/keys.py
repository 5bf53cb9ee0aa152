"""The keys that work everywhere, and what each does: the app binds them, help and the command palette list them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tui.controls import KEYED, NUMBERS
from tui.focus import PANELS
from tui.panels.modules import TITLES

Group = Literal["screen", "time", "engine"]


@dataclass(frozen=True, slots=True)
class GlobalKey:
    """`keys` as Textual names them, `shown` as a person does; `action` is a method of the app."""

    keys: str
    shown: str
    action: str
    does: str
    group: Group
    brief: str = ""  # in the footer
    sends: bool = False  # changes the engine: not with --readonly
    replays: bool = False  # only over a recording


GLOBAL: tuple[GlobalKey, ...] = (
    GlobalKey("q", "q", "quit", "quit", "screen", "quit"),
    GlobalKey("question_mark,h,f1", "? h F1", "help", "help", "screen", "help"),
    GlobalKey("space,p", "space p", "pause", "freeze the view; the feed goes on", "time", "pause"),
    *(
        GlobalKey(str(number), str(number), f"panel('{name}')", f"{TITLES[name]}", "screen")
        for number, name in enumerate(PANELS, 1)
    ),
    GlobalKey("tab", "tab", "next_panel(1)", "the next panel", "screen"),
    GlobalKey("shift+tab", "shift+tab", "next_panel(-1)", "the panel before", "screen"),
    GlobalKey("e", "e", "expand", "the panel in front large, and back", "screen", "expand"),
    GlobalKey("i", "i", "inspect", "tell what is selected", "screen", "inspect"),
    GlobalKey("escape", "esc", "back", "leave an overlay, a large panel, what is selected, a pause", "screen"),
    GlobalKey("slash", "/", "filter", "show only some requests", "screen", "filter"),
    GlobalKey("T", "T", "theme", "the next theme", "screen"),
    GlobalKey("left_parenthesis", "(", "frames(0.5)", "fewer frames a second", "screen"),
    GlobalKey("right_parenthesis", ")", "frames(2.0)", "more frames a second", "screen"),
    GlobalKey("ctrl+p", "ctrl+p", "command_palette", "every command by name", "screen"),
    GlobalKey("comma", ",", "scrub(-1)", "one record back; while paused left too, shift+left ten", "time"),
    GlobalKey("full_stop", ".", "scrub(1)", "one record on; while paused right too, shift+right ten", "time"),
    GlobalKey("n", "n", "event(1)", "to the next event", "time"),
    GlobalKey("N", "N", "event(-1)", "to the event before", "time"),
    GlobalKey("g", "g", "goto", "to a step by its number", "time"),
    GlobalKey("left_square_bracket", "[", "speed(0.5)", "play half as fast", "time", replays=True),
    GlobalKey("right_square_bracket", "]", "speed(2.0)", "play twice as fast", "time", replays=True),
    GlobalKey("r", "r", "record", "record to a file, and stop", "time", "record"),
    *(
        GlobalKey(keyed.key, keyed.key, f"switch('{keyed.field}')", keyed.name, "engine", keyed.short, sends=True)
        for keyed in KEYED
    ),
    *(
        GlobalKey(number.key, number.key, f"ask_control('{field}')", number.name, "engine", number.short, sends=True)
        for field, number in NUMBERS.items()
        if number.key
    ),
    GlobalKey("y", "y", "try_advice", "try the first advice", "engine", "try", sends=True),
    GlobalKey("u", "u", "undo", "take the last change back", "engine", "undo", sends=True),
    GlobalKey("R", "R", "replay", "start or stop a replay", "engine", sends=True),
)
SCRUB = {"left": -1, "right": 1, "shift+left": -10, "shift+right": 10}
