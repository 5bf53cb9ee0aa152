"""What keys and the mouse mean, without an app: from a frame to a focus or a command."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tui import dispatch, scene
from tui.commands import Say, Seek
from tui.focus import PANELS, Focus, MapFocus, back
from tui.look import Look
from tui.panels.line import text_of
from tui.panels.modules import MODULES
from tui.view import Frame, Link, Past, Status

SIZES = [(40, 12), (80, 24), (120, 40), (200, 60)]


@pytest.fixture(scope="module")
def live(recording, fold, frame):
    return frame(fold(recording))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("panel", PANELS)
def test_every_panel_has_a_place_when_it_is_in_front(live, size, panel):
    for expanded in (False, True):
        frame = replace(live, focus=Focus(panel=panel, expanded=expanded))
        places = scene.arrange(*size, frame)
        place = dispatch.place_of(panel, places)
        assert place is not None
        assert {name for name in map(scene.owner, (place.name for place in places)) if name} >= {panel}
        if expanded:
            assert place.width == size[0]


@pytest.mark.parametrize("size", SIZES)
def test_places_cover_the_screen_once(live, size):
    for focus in (Focus(), Focus(expanded=True), Focus(panel="requests")):
        seen = set()
        for place in scene.arrange(*size, replace(live, focus=focus)):
            xs, ys = range(place.x, place.x + place.width), range(place.y, place.y + place.height)
            cells = {(x, y) for x in xs for y in ys}
            assert not cells & seen
            seen |= cells
        assert len(seen) == size[0] * size[1]


@pytest.mark.parametrize("panel", PANELS)
@pytest.mark.parametrize("size", SIZES)
def test_no_key_of_a_panel_is_one_that_works_everywhere(panel, size):
    from tui.keys import GLOBAL

    taken = {word for key in GLOBAL if "steps" in key.on for word in key.shown.split()}
    for key in MODULES[panel].KEYS:
        assert not taken & set(key.keys.split()), key


@pytest.mark.parametrize("panel", PANELS)
@pytest.mark.parametrize("size", SIZES)
def test_any_key_and_any_click_anywhere_give_a_focus_or_a_command(live, panel, size):
    """And what they give can be drawn."""
    keys = ("up", "down", "left", "right", "home", "end", "pageup", "pagedown", "enter", "plus", "minus",
            "less_than_sign", "greater_than_sign", "I", "x", "o", "v", "delete", "z", "ctrl+a", "é")  # fmt: skip
    for expanded in (False, True):
        frame = replace(live, focus=Focus(panel=panel, expanded=expanded))
        for key in keys:
            reaction = dispatch.press(frame, key, scene.arrange(*size, frame))
            if isinstance(reaction, Focus):
                frame = replace(frame, focus=reaction)
                assert len(scene.draw(frame, *size, Look())) == size[1]
        for place in scene.arrange(*size, frame):
            for x, y in ((0, 0), (place.width // 2, place.height // 2), (place.width - 1, place.height - 1)):
                for reaction in (
                    dispatch.point(frame, place, x, y),
                    dispatch.hover(frame, place, x, y),
                    dispatch.wheel(frame, place, x, y, True),
                    dispatch.wheel(frame, place, x, y, False),
                ):
                    if isinstance(reaction, Focus):
                        scene.draw(replace(frame, focus=reaction), *size, Look())


def test_a_click_brings_a_panel_to_the_front(live):
    for place in scene.arrange(200, 60, live):
        panel = scene.owner(place.name)
        reaction = dispatch.point(live, place, 3, 2)
        assert panel is None or (isinstance(reaction, Focus) and reaction.panel == panel)


def test_back_leaves_one_thing_at_a_time():
    focus = Focus(panel="batch", expanded=True, inspecting=True, helping=True, request="a", map=MapFocus(block=3))
    seen = []
    while focus is not None:
        seen.append((focus.helping, focus.inspecting, focus.expanded, focus.request))
        focus = back(focus)
    assert seen == [
        (True, True, True, "a"),
        (False, True, True, "a"),
        (False, False, True, "a"),
        (False, False, False, "a"),
        (False, False, False, None),
    ]
    assert back(Focus(panel="requests")) == Focus(panel="blocks")


def test_overlays_scroll_with_keys_and_wheel(live):
    frame = replace(live, focus=Focus(helping=True))
    places = scene.arrange(40, 12, frame)
    first = scene.draw(frame, 40, 12, Look())
    down = dispatch.press(frame, "J", places)
    assert isinstance(down, Focus)
    assert scene.draw(replace(frame, focus=down), 40, 12, Look()) != first
    overlay = next(place for place in places if place.name == "help")
    assert dispatch.wheel(frame, overlay, 1, 1, False) == down
    assert dispatch.press(replace(frame, focus=down), "K", places) == frame.focus
    assert dispatch.press(frame, "K", places) == frame.focus


def test_the_help_can_be_read_to_its_end_at_every_size(live):
    from tui.panels import help as help_panel

    for width, height in SIZES:
        frame, seen = replace(live, focus=Focus(helping=True)), set()
        place = next(place for place in scene.arrange(width, height, frame) if place.name == "help")
        everything = [text_of(line).strip() for line in help_panel.lines(live, place.width - 2, Look())]
        for _ in range(60):
            seen |= {text_of(line) for line in scene.draw(frame, width, height, Look())}
            reaction = dispatch.press(frame, "J", scene.arrange(width, height, frame))
            assert isinstance(reaction, Focus)
            frame = replace(frame, focus=reaction)
        shown = "\n".join(seen)
        for line in everything:
            assert line in shown


def test_a_click_on_the_line_of_time_seeks(live):
    frame = replace(live, status=replace(live.status, past=Past(100, 300, 200, 4.0)))
    place = next(place for place in scene.arrange(120, 40, frame) if place.name == "scrub")
    found = [dispatch.seek(frame, x, place.width) for x in range(place.width)]
    seqs = [seek.seq for seek in found if isinstance(seek, Seek)]
    assert seqs[0] == 100
    assert seqs[-1] == 300
    assert seqs == sorted(seqs)
    assert dispatch.seek(live, 30, 120) is None


def test_the_key_under_the_mouse_is_the_one_of_its_part():
    line = [(" ", "text"), ("m", "key"), (" batching", "dim"), ("  ", "text"), ("? h", "key"), (" help", "dim")]
    assert [dispatch.key_at(line, x) for x in (0, 1, 5, 10, 11, 12, 13, 16, 20, 40)] == [
        None, "m", "m", "m", None, None, "?", "?", "?", None,
    ]  # fmt: skip


def test_neighbours_go_round():
    assert [dispatch.neighbour("blocks", by) for by in (-1, 1, 6)] == ["control", "batch", "blocks"]


@pytest.mark.parametrize("panel", PANELS)
def test_before_anything_was_heard_a_key_of_a_panel_says_so(panel):
    frame = Frame(Status(Link("connecting")), None, Focus(panel=panel))
    places = scene.arrange(160, 48, frame)
    reaction = dispatch.press(frame, "enter", places)
    assert isinstance(reaction, Say)
    assert reaction.bad
