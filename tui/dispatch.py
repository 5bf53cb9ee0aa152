"""What a key or the mouse means, given what is on the screen: pure. The app carries out what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tui.commands import Reaction, Say, Seek
from tui.focus import PANELS, Focus
from tui.panels import scrub, sets
from tui.panels.line import Line
from tui.scene import Place, owner
from tui.view import Frame

PANEL_KEYS = ("up", "down", "left", "right", "pageup", "pagedown", "home", "end", "enter")
OVERLAY_STEP = 3  # lines that J, K and the wheel scroll


def place_of(panel: str, places: Sequence[Place]) -> Place | None:
    """The largest place of a panel."""
    own = [place for place in places if owner(place.name, (panel,)) == panel]
    return max(own, key=lambda place: place.width * place.height, default=None)


def press(frame: Frame, key: str, places: Sequence[Place]) -> Reaction:
    """A key that does not work everywhere: for an overlay, or for the panel in front."""
    focus = frame.focus
    if (focus.helping or focus.inspecting) and key in ("J", "K"):
        return scrolled(focus, OVERLAY_STEP if key == "J" else -OVERLAY_STEP)
    if focus.helping and key in ("up", "down", "pageup", "pagedown"):
        lines = 10 if key.startswith("page") else 1
        return scrolled(focus, lines if key.endswith("down") else -lines)
    place = place_of(focus.panel, places)
    handle = getattr(sets.of(frame).modules[focus.panel], "press", None)
    if place is None or handle is None:
        return None
    if frame.kind == "steps" and frame.view is None and key in PANEL_KEYS:
        return Say("nothing was heard of an engine yet", bad=True)
    reaction: Reaction = handle(frame, key, place.width, place.height)
    if _stands_in(frame, place) and isinstance(reaction, Focus) and not reaction.inspecting:
        reaction = reaction.but(expanded=True)  # what it changes is not seen in what stands in for it
    return _settled(focus, reaction)


def point(frame: Frame, place: Place, x: int, y: int) -> Reaction:
    """A click at a cell of a panel: it comes to the front too. What stands in for a panel leads to it."""
    panel = owner(place.name, sets.of(frame).names)
    if panel is None:
        return None
    handle = getattr(sets.of(frame).modules[panel], "point", None)
    front = frame.focus.but(panel=panel)
    if _stands_in(frame, place):
        return front.but(expanded=frame.focus.panel == panel)
    reaction = handle(replace(frame, focus=front), x, y, place.width, place.height) if handle else None
    return _settled(frame.focus, reaction) if reaction is not None else front


def hover(frame: Frame, place: Place, x: int, y: int) -> Reaction:
    """The mouse over a cell, where that means something."""
    panel = owner(place.name, sets.of(frame).names)
    handle = getattr(sets.of(frame).modules[panel], "hover", None) if panel else None
    reaction: Reaction = handle(frame, x, y, place.width, place.height) if handle else None
    return reaction


def wheel(frame: Frame, place: Place, x: int, y: int, up: bool) -> Reaction:
    """A turn of the wheel: overlays scroll, panels do what they do."""
    if place.name in ("help", "inspect"):
        return scrolled(frame.focus, -OVERLAY_STEP if up else OVERLAY_STEP)
    panel = owner(place.name, sets.of(frame).names)
    is_panel = panel is not None and not _stands_in(frame, place)
    handle = getattr(sets.of(frame).modules[panel], "wheel", None) if panel and is_panel else None
    reaction: Reaction = handle(frame, x, y, up, place.width, place.height) if handle else None
    return reaction


def seek(frame: Frame, x: int, width: int) -> Seek | None:
    """A click on the line of time."""
    share, past = scrub.share(frame, x, width), frame.status.past
    if share is None or past is None:
        return None
    return Seek(past.first + round(share * (past.last - past.first)))


def answered(frame: Frame, what: str, text: str) -> Reaction:
    """The answer to what the panel in front has asked."""
    handle = getattr(sets.of(frame).modules[frame.focus.panel], "answer", None)
    reaction: Reaction = handle(frame, what, text) if handle else None
    return reaction


def steer(frame: Frame, what: str) -> Reaction:
    """What a key does to a cluster: see `tui.panels.cluster.steering`."""
    from tui.panels.cluster import steering

    return steering.steer(frame, what)


def neighbour(panel: str, by: int, panels: Sequence[str] = PANELS) -> str:
    """The panel `by` places further, round and round."""
    return panels[(panels.index(panel) + by) % len(panels)]


def scrolled(focus: Focus, lines: int) -> Focus:
    """The overlay on top, scrolled."""
    if focus.helping:
        return focus.but(help_top=max(0, focus.help_top + lines))
    return focus.but(inspect_top=max(0, focus.inspect_top + lines))


def key_at(line: Line, x: int) -> str | None:
    """The key that is shown at cell `x` of a line: of the part it is in, from the key to the next double space."""
    at, found = 0, None
    for text, role in line:
        if role == "key":
            found = next(iter(text.split()), None)
        elif len(text) > 1 and text.isspace():
            found = None
        at += len(text)
        if x < at:
            return found
    return None


def _stands_in(frame: Frame, place: Place) -> bool:
    """Whether it shows a part of its panel in short, as waste and speed do of the ledgers."""
    return place.name.split("-")[0] not in sets.of(frame).modules


def _settled(focus: Focus, reaction: Reaction) -> Reaction:
    """An inspector that shows something else begins at its top."""
    if isinstance(reaction, Focus) and reaction.inspecting:
        same = reaction.but(inspect_top=0) == focus.but(inspect_top=0)
        return reaction if same else reaction.but(inspect_top=0)
    return reaction
