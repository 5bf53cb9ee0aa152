"""Keys and the mouse walk the batch timeline: over its steps, its lanes, and those that wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.protocol import Control
from tui import figures, scene
from tui.focus import BatchFocus
from tui.history import step_seconds
from tui.look import ASCII, UNICODE, Look
from tui.panels import batch
from tui.panels.batch_plan import plan
from tui.panels.line import text_of
from tui.themes import MONO

LOOK = Look()


def text(name, frame, width, height, look=LOOK):
    return "\n".join(text_of(line) for line in scene.panel(name, frame, width, height, look))


def inside(frame, width, height):
    """The lines within the border."""
    return [line[1:-1] for line in text("batch", frame, width, height).splitlines()[1:-1]]


def focused(frame, **batch_focus):
    return replace(frame, focus=frame.focus.but(panel="batch", batch=BatchFocus(**batch_focus)))


def pressed(frame, *keys, width=80, height=20):
    for key in keys:
        focus = batch.press(frame, key, width, height)
        assert focus is not None, key
        frame = replace(frame, focus=focus)
    return frame


@pytest.fixture(scope="module")
def busy(recording, fold, frame):
    """The end of the recording: more rows than fit, and a queue."""
    return frame(fold(recording))


@pytest.fixture(scope="module")
def queued(simulated, fold, frame):
    """A batch of twelve, full, and more that wait."""
    controls = {0: simulated.STATIC_RESERVED, 80: Control(max_num_seqs=12)}
    return frame(fold(simulated.simulate(150, controls, rate=3.0, blocks=900, max_model_len=3000)))


def test_the_cursor_walks_and_says_where_it_is(busy):
    seqs = [step.seq for step in busy.view.steps]
    frame = focused(busy)
    assert batch.press(frame, "right", 80, 20).batch.step is None
    frame = pressed(frame, "left")
    assert frame.focus.batch.step == seqs[-1]
    frame = pressed(frame, "left", "left", "left", "right")
    assert frame.focus.batch.step == seqs[-3]
    assert pressed(frame, "right", "right", "right").focus.batch.step is None
    assert pressed(frame, "home").focus.batch.step == seqs[0]
    assert pressed(frame, "home", "left").focus.batch.step == seqs[0]
    assert pressed(frame, "home", "end").focus.batch.step is None
    assert pressed(frame, "enter").focus.inspecting


@pytest.mark.parametrize("look", [LOOK, Look(ASCII, MONO)])
@pytest.mark.parametrize("zoom", [0, 1])
def test_the_step_under_the_cursor_is_marked_and_told(busy, look, zoom):
    steps = busy.view.steps
    for step in (steps[0], steps[70], steps[-5], steps[-1]):
        frame = focused(busy, step=step.seq, zoom=zoom)
        planned = plan(frame, busy.view, 100, 20)
        lines = scene.panel("batch", frame, 100, 20, look)
        line = text_of(lines[-3])
        x = line.index(look.glyphs.down_open)
        assert planned.column(x) == planned.cursor
        assert step in planned.shown[planned.cursor].steps
        assert line[1:].startswith(f" step {step.seq} ")
        kinds = [cell.kind for cell in step.cells.values()]
        for kind in set(kinds):
            assert f"{kinds.count(kind)} {kind}" in line
        assert f"{step.tokens} of {step.budget} tokens" in line
        assert f" step {step.seq} {figures.seconds(step_seconds(step.durations))}: " in text_of(lines[-1])
        marked = [text for text, role in lines[1] if role == "cursor"]
        assert [len(text) for text in marked] == [1]


def test_a_step_that_is_not_kept_is_no_other_one(busy):
    shown = text("batch", focused(busy, step=0), 100, 20)
    assert "step 0 is not kept" in shown
    assert UNICODE.down_open not in shown


def test_the_selection_goes_over_lanes_and_the_queue(queued):
    view = queued.view
    by_lane = sorted(view.lanes, key=view.lanes.__getitem__)
    waiting = [state.request for state in view.requests.values() if state.status == "waiting"]
    frame, seen = focused(queued), []
    for _ in range(len(by_lane) + len(waiting) + 2):
        frame = pressed(frame, "down", height=12)
        seen.append(frame.focus.request)
        row = next(line for line in inside(frame, 80, 12) if line[0] == UNICODE.right)
        assert row[1:].startswith(frame.focus.request[-4:])
    names = [*by_lane, *waiting]
    assert seen == [*names, names[-1], names[-1]]
    assert pressed(frame, "up", height=12).focus.request == names[-2]
    page = plan(frame, view, 80, 12).drawn
    assert pressed(frame, "pageup", height=12).focus.request == names[-1 - page]
    gone = replace(frame, focus=frame.focus.but(request="gone", batch=BatchFocus()))
    assert pressed(gone, "down", height=12).focus.request == names[0]


def test_a_click_selects_the_step_and_the_request_under_it(busy, queued):
    for frame, width, height in ((busy, 80, 20), (queued, 120, 40), (busy, 40, 9), (busy, 24, 5)):
        planned = plan(frame, frame.view, width, height)
        for y in range(1, height - 1):
            for x in range(1, width - 1, 3):
                focus = batch.point(frame, x, y, width, height)
                row = planned.row(y)
                assert focus.request == (row.request if row and row.request else None)
                index = x - 1 - planned.label - planned.blank
                if index < 0:
                    assert focus.batch.step is None
                elif planned.shown[index].steps:
                    assert focus.batch.step == planned.shown[index].steps[-1].seq
                assert focus.panel == "batch"


def test_the_same_click_again_lets_the_step_go(busy):
    focus = batch.point(busy, 70, 3, 80, 20)
    again = batch.point(replace(busy, focus=focus), 70, 3, 80, 20)
    assert (focus.batch.step is None, again.batch.step) == (False, None)


def test_the_mouse_over_a_step_shows_it_until_the_mouse_goes(busy):
    over = batch.hover(busy, 70, 3, 80, 20)
    frame = replace(busy, focus=over)
    assert over.batch.step == batch.point(busy, 70, 3, 80, 20).batch.step
    assert batch.hover(frame, 70, 4, 80, 20) is None
    assert batch.hover(frame, 2, 4, 80, 20).batch == BatchFocus()
    assert batch.hover(frame, -1, -1, 80, 20).batch == BatchFocus()
    chosen = batch.point(frame, 70, 4, 80, 20)
    assert chosen.batch.step == over.batch.step
    assert batch.hover(replace(busy, focus=chosen), 60, 4, 80, 20) is None


def test_the_wheel_scrolls_and_the_selection_stays(busy):
    frame = replace(busy, focus=busy.focus.but(panel="batch", request=min(busy.view.lanes, key=busy.view.lanes.get)))
    first = inside(frame, 80, 12)
    down = replace(frame, focus=batch.wheel(frame, 5, 5, False, 80, 12))
    assert down.focus.request == frame.focus.request
    assert inside(down, 80, 12)[0] == first[3]
    assert inside(replace(down, focus=batch.wheel(down, 5, 5, True, 80, 12)), 80, 12) == first
    assert batch.wheel(frame, 5, 5, True, 80, 12) is None


def test_zoom_has_ends(busy):
    frame = focused(busy)
    assert batch.press(frame, "plus", 80, 20) is None
    frame = pressed(frame, *["minus"] * batch.MAX_ZOOM)
    assert frame.focus.batch.zoom == batch.MAX_ZOOM
    assert batch.press(frame, "minus", 80, 20) is None
    assert pressed(frame, *["plus"] * batch.MAX_ZOOM).focus.batch.zoom == 0
