"""The keys that work everywhere, and what each does: the app binds them, help and the command palette list them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tui.controls import KEYED, NUMBERS
from tui.focus import PANELS
from tui.panels import sets
from tui.panels.modules import TITLES
from tui.view import Frame, Kind

Group = Literal["screen", "time", "engine"]
EVERYWHERE: tuple[Kind, ...] = ("steps", "server", "fleet", "cluster")
PANELLED: tuple[Kind, ...] = ("steps", "server", "cluster")  # several panels side by side
SERVERS: tuple[Kind, ...] = ("server", "fleet")


@dataclass(frozen=True, slots=True)
class GlobalKey:
    """`keys` as Textual names them, `shown` as a person does; `action` is a method of the app.

    `on`: the kinds of screen on which it means something.
    """

    keys: str
    shown: str
    action: str
    does: str
    group: Group
    brief: str = ""  # in the footer
    sends: bool = False  # changes the engine: not with --readonly
    replays: bool = False  # only over a recording
    on: tuple[Kind, ...] = EVERYWHERE


GLOBAL: tuple[GlobalKey, ...] = (
    GlobalKey("q", "q", "quit", "quit", "screen", "quit"),
    GlobalKey("question_mark,h,f1", "? h F1", "help", "help", "screen", "help"),
    GlobalKey("space,p", "space p", "pause", "freeze the view; the feed goes on", "time", "pause"),
    *(
        GlobalKey(str(number), str(number), f"panel({number})", TITLES[name], "screen", on=PANELLED)
        for number, name in enumerate(PANELS, 1)
    ),
    GlobalKey("tab", "tab", "next_panel(1)", "the next panel", "screen", on=PANELLED),
    GlobalKey("shift+tab", "shift+tab", "next_panel(-1)", "the panel before", "screen", on=PANELLED),
    GlobalKey("e", "e", "expand", "the panel in front large, and back", "screen", "expand", on=PANELLED),
    GlobalKey("i", "i", "inspect", "tell what is selected", "screen", "inspect"),
    GlobalKey("escape", "esc", "back", "leave an overlay, a large panel, what is selected, a pause", "screen"),
    GlobalKey("slash", "/", "filter", "show only some requests", "screen", "filter", on=("steps",)),
    GlobalKey("slash", "/", "filter", "show only some servers", "screen", "filter", on=("fleet",)),
    GlobalKey("slash", "/", "filter", "show only some workers", "screen", "filter", on=("cluster",)),
    GlobalKey("T", "T", "theme", "the next theme", "screen"),
    GlobalKey("left_parenthesis", "(", "frames(0.5)", "fewer frames a second", "screen"),
    GlobalKey("right_parenthesis", ")", "frames(2.0)", "more frames a second", "screen"),
    GlobalKey("ctrl+p", "ctrl+p", "command_palette", "every command by name", "screen"),
    GlobalKey(
        "comma", ",", "scrub(-1)", "one record back; while paused left too, shift+left ten", "time", on=("steps",)
    ),
    GlobalKey(
        "full_stop", ".", "scrub(1)", "one record on; while paused right too, shift+right ten", "time", on=("steps",)
    ),
    GlobalKey("comma", ",", "scrub(-1)", "one look back; while paused left too, shift+left ten", "time", on=SERVERS),
    GlobalKey("full_stop", ".", "scrub(1)", "one look on; while paused right too, shift+right ten", "time", on=SERVERS),
    GlobalKey(
        "comma", ",", "scrub(-1)", "one state back; while paused left too, shift+left ten", "time", on=("cluster",)
    ),
    GlobalKey(
        "full_stop", ".", "scrub(1)", "one state on; while paused right too, shift+right ten", "time", on=("cluster",)
    ),
    GlobalKey("n", "n", "event(1)", "to the next event", "time"),
    GlobalKey("N", "N", "event(-1)", "to the event before", "time"),
    GlobalKey("g", "g", "goto", "to a step by its number", "time", on=("steps",)),
    GlobalKey("g", "g", "goto", "to a look by its number", "time", on=SERVERS),
    GlobalKey("g", "g", "goto", "to a state by its number", "time", on=("cluster",)),
    GlobalKey("left_square_bracket", "[", "speed(0.5)", "play half as fast", "time", replays=True),
    GlobalKey("right_square_bracket", "]", "speed(2.0)", "play twice as fast", "time", replays=True),
    GlobalKey("r", "r", "record", "record to a file, and stop", "time", "record"),
    *(
        GlobalKey(
            keyed.key,
            keyed.key,
            f"switch('{keyed.field}')",
            keyed.name,
            "engine",
            keyed.short,
            sends=True,
            on=("steps",),
        )
        for keyed in KEYED
    ),
    *(
        GlobalKey(
            number.key,
            number.key,
            f"ask_control('{field}')",
            number.name,
            "engine",
            number.short,
            sends=True,
            on=("steps",),
        )
        for field, number in NUMBERS.items()
        if number.key
    ),
    GlobalKey("m", "m", "steer('separate')", "prefill apart from decode, or colocated", "engine", "separate/colocated",
              sends=True, on=("cluster",)),
    GlobalKey("plus,equals_sign", "+", "steer('more')", "one worker more in this pool", "engine", "more workers",
              sends=True, on=("cluster",)),
    GlobalKey("minus", "-", "steer('fewer')", "one worker fewer: it is drained first", "engine", "fewer",
              sends=True, on=("cluster",)),
    GlobalKey("s", "s", "steer('size')", "this pool's size", "engine", "size", sends=True, on=("cluster",)),
    GlobalKey("o", "o", "steer('routing')", "routing: prefix, least loaded, round robin", "engine", "routing",
              sends=True, on=("cluster",)),
    GlobalKey("l", "l", "steer('local_prefill')", "how few tokens are prefilled where they decode", "engine",
              "local prefill", sends=True, on=("cluster",)),
    GlobalKey("y", "y", "try_advice", "try the first advice", "engine", "try", sends=True, on=("steps",)),
    GlobalKey("u", "u", "undo", "take the last change back", "engine", "undo", sends=True,
              on=("steps", "cluster")),
    GlobalKey("R", "R", "replay", "start or stop a replay", "engine", sends=True, on=("steps",)),
)  # fmt: skip
SCRUB = {"left": -1, "right": 1, "shift+left": -10, "shift+right": 10}


def offered(frame: Frame) -> tuple[GlobalKey, ...]:
    """Those that mean something on this screen, told as they are meant there."""
    return tuple(_offered(frame))


def _offered(frame: Frame) -> Iterator[GlobalKey]:
    panels = sets.of(frame)
    for key in GLOBAL:
        if panels.kind not in key.on:
            continue
        if key.action.startswith("panel("):
            number = int(key.keys)
            if number <= len(panels.names):
                yield replace(key, does=panels.titles[panels.names[number - 1]])
        elif key.action == "back" and frame.status.back:
            yield replace(key, does=f"{key.does}; at last back to {frame.status.back}")
        else:
            yield key
