"""Keys of each panel, pressed in the running app: each does something there, and with --readonly none sends."""

from __future__ import annotations

import string

import pytest

from tui.advice import Suggestion
from tui.focus import PANELS, Focus
from tui.keys import GLOBAL, SCRUB
from tui.panels.modules import MODULES

SENDING = {name for key in GLOBAL if key.sends for name in key.keys.split(",")}

# From what a person reads in the help to the names of keys.
WRITTEN = {
    "arrows": ("up", "down", "left", "right"),
    "up": ("up",),
    "down": ("down",),
    "←": ("left",),
    "→": ("right",),
    "↑": ("up",),
    "↓": ("down",),
    "+": ("plus",),
    "-": ("minus",),
    "<": ("less_than_sign",),
    ">": ("greater_than_sign",),
    "pgup": ("pageup",),
    "pgdn": ("pagedown",),
    "click": (),  # in test_mouse.py
}
KEYS = [
    (panel, name)
    for panel in PANELS
    for key in MODULES[panel].KEYS
    for part in key.keys.split()
    for name in WRITTEN.get(part, (part,))
]
# What is pressed first, so that the key has something to do.
BEFORE = {
    "up": ("down", "down", "down"),
    "left": ("right", "right"),
    "home": ("end",),
    "end": ("home",),
    "pageup": ("end",),
    "minus": ("plus",),
    "enter": ("down",),
    ("blocks", "up"): ("end",),
    ("blocks", "minus"): ("down", "plus"),
    ("blocks", "plus"): ("down",),
    ("blocks", "pageup"): ("down", "plus", "plus", "end"),
    ("blocks", "pagedown"): ("home", "plus", "plus"),
    ("blocks", "left"): ("home", "right"),
    ("blocks", "o"): ("home",),
    ("batch", "plus"): ("minus",),
    ("batch", "minus"): (),
    ("batch", "right"): ("left", "left"),
    ("batch", "end"): ("left",),
    ("batch", "home"): (),
    ("sharing", "plus"): ("home", "minus"),
    ("sharing", "minus"): ("home",),
    ("sharing", "pagedown"): ("home",),
    ("requests", "x"): ("home",),
    ("requests", "enter"): ("home",),
    ("control", "plus"): ("down",) * 4,
    ("control", "minus"): ("down",) * 4,
    ("control", "enter"): (),
}


@pytest.mark.parametrize("panel", PANELS)
async def test_every_key_of_a_panel_does_something_there(running, panel):
    async with running((160, 48)) as screen:
        idle = []
        for name in (name for owner, name in KEYS if owner == panel):
            screen.app.focus_now = Focus(panel=panel)
            screen.app.draw_frame()
            await screen.press(*BEFORE.get((panel, name), BEFORE.get(name, ())))
            screen.app.say("")
            await screen.settle()
            picture = screen.strips()
            await screen.press(name)
            if screen.strips() == picture:
                idle.append(name)
            await screen.app._question.close()
        assert idle == []


async def test_a_key_without_meaning_changes_nothing(running):
    async with running((160, 48)) as screen:
        picture = screen.strips()
        await screen.press("z", "Z", "f7", "at")
        assert screen.strips() == picture


def every_key():
    """Whatever a keyboard has: letters and signs as Textual names them, and those with names of their own."""
    signs = {name for key in GLOBAL for name in key.keys.split(",")} | set(SCRUB)
    signs |= set(string.ascii_letters + string.digits)
    signs |= {"up", "down", "pageup", "pagedown", "home", "end", "enter", "plus", "minus", "equals_sign", "delete"}
    signs |= {"less_than_sign", "greater_than_sign", "backspace", "insert", "f2", "at", "upper_i"}
    return sorted(signs - {"q", "ctrl+p"})


@pytest.mark.parametrize("panel", PANELS)
async def test_readonly_sends_nothing_whatever_is_pressed(running, panel):
    async with running(readonly=True) as screen:
        sent = []

        async def steer(action, speed=1.0):
            sent.append(action)
            return "", False

        screen.app.session.steer_replay = steer
        view = screen.app.session.view()
        screen.app.steps.advice = (
            Suggestion({"max_num_seqs": 5}, "five are enough", ("5 of 5",), "the same with less"),
        )
        screen.app.steps.advised = (int(view.now), view.control)
        rows = range(14) if panel == "control" else range(1)
        for row in rows:
            for key in every_key() if row == 0 else ("enter", "plus", "minus", "y", "u", "x"):
                await screen.app.press(str(PANELS.index(panel) + 1)) if screen.app.focus_now.panel != panel else None
                if panel == "control":
                    await screen.app.press("home")
                    for _ in range(row):
                        await screen.app.press("down")
                elif panel == "requests":
                    await screen.app.press("home")
                await screen.app.press(key)
                assert screen.app._question.asked is None or screen.app._question.asked.what in (
                    "filter",
                    "step",
                    "record",
                )
                await screen.app._question.close()
                await screen.settle() if key in SENDING or key in ("enter", "x") else None
        assert screen.engine.changes == []
        assert screen.engine.cancelled == []
        assert sent == []
