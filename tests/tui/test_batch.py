"""The batch timeline shows what the records say, cell by cell, and counts what there is no room for."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest

from engine.protocol import Control, Parts, Queue, Wait
from tui import figures, scene
from tui.focus import BatchFocus
from tui.look import ASCII, UNICODE, Look
from tui.panels import stays, timeline
from tui.panels.batch_plan import plan
from tui.panels.line import length, text_of
from tui.panels.waits import reason
from tui.themes import MONO
from tui.view import Frame

LOOK = Look()
END_MARKS = {
    "left": UNICODE.left,
    "finished": UNICODE.left,
    "aborted": UNICODE.aborted,
    "preempted": UNICODE.preempted,
    "swapped": UNICODE.swapped,
}
KIND_MARKS = {"prefill": UNICODE.prefill, "decode": UNICODE.decode, "fork": UNICODE.fork, "held": UNICODE.held}


def text(name, frame, width, height, look=LOOK):
    return "\n".join(text_of(line) for line in scene.panel(name, frame, width, height, look))


def inside(frame, width, height):
    """The lines within the border."""
    return [line[1:-1] for line in text("batch", frame, width, height).splitlines()[1:-1]]


def focused(frame, **batch_focus):
    return replace(frame, focus=frame.focus.but(panel="batch", batch=BatchFocus(**batch_focus)))


def expanded(frame, **batch_focus):
    frame = focused(frame, **batch_focus)
    return replace(frame, focus=frame.focus.but(expanded=True))


@pytest.fixture(scope="module")
def frames(simulated, recording, fold, frame):
    """Before anything, in static batches, at the switch and after it; and one with aborts."""
    aborted = list(simulated.simulate(40, rate=4.0, aborts=0.3))
    return [*(frame(fold(recording[:end])) for end in (1, 40, 129, 132, 150)), frame(fold(aborted))]


@pytest.fixture(scope="module")
def busy(recording, fold, frame):
    """The end of the recording: preempted both ways, swapped out in part, copied in the last step, a queue."""
    return frame(fold(recording))


PARTS = Parts(norm=0.002, qkv=0.004, rope=0.001, attention=0.006, output=0.004, gate_up=0.016, down=0.008, head=0.005)


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (100, " forward: norm 4 qkv 8 rope 2 attention 12 output 8 gate_up 33 down 16 head 10 %"),
        (80, " fwd: norm 4 qkv 8 rope 2 attention 12 output 8 gate_up 33 down 16 head 10 %"),
        (58, " fwd: attention 12 output 8 gate_up 33 down 16 head 10 %"),
        (28, " fwd: gate_up 33 down 16 %"),
    ],
)
def test_the_forward_is_told_by_part_as_far_as_there_is_room(recording, fold, frame, width, line):
    last = msgspec.structs.replace(recording[-1], parts=PARTS)
    shown = text("batch", frame(fold([*recording[:-1], last])), width, 12).splitlines()
    assert line in [inside[1:-1].rstrip() for inside in shown]


def test_parts_that_were_not_measured_are_not_shown(busy):
    for width in (80, 27):
        shown = text("batch", busy, width, 12)
        assert "fwd:" not in shown


def test_a_fork_has_its_own_mark(recording, fold, frame):
    newest = max(
        index for index, record in enumerate(recording[1:], 1) if any(row.kind == "fork" for row in record.rows)
    )
    forks = sum(row.kind == "fork" for row in recording[newest].rows)
    shown = text("batch", frame(fold(recording[: newest + 1])), 120, 60).splitlines()
    assert f"{UNICODE.fork} {forks} fork" in shown[0]
    assert sum(f"{UNICODE.fork}│" in line for line in shown[1:]) == forks


@pytest.mark.parametrize(
    ("wait", "long", "short"),
    [
        (Wait("r", "rows"), "the batch is full (64 rows)", "batch is full"),
        (Wait("r", "tokens"), "the token budget is spent (512 a step)", "budget is spent"),
        (Wait("r", "blocks", 12, 3), "needs 12 blocks, 3 available", "12 blocks, 3 left"),
        (Wait("r", "hole", 128, 300, 96), "no hole of 128 blocks (free 300, longest hole 96)", "no hole of 128"),
        (Wait("r", "batch"), "a static batch runs, and nobody joins it", "for static batch"),
        (Wait("r", "prefix"), "its prefix is being computed by another request", "for its prefix"),
        (Wait("r", "parent"), "its parent's prompt is being computed", "for its parent"),
    ],
)
def test_the_next_request_says_why_it_waits(busy, wait, long, short):
    assert reason(wait, Control(), 60) == long
    assert reason(wait, Control(), 17) == short
    view = replace(busy.view, queue=Queue(2, 1.0, wait))
    for width, height, words in ((80, 20, f"next waits: {long}"), (27, 9, f"waits: {short}")):
        line = text("batch", Frame(busy.status, view), width, height).splitlines()[-3]
        assert line.strip("│ ") == words


def test_the_batch_has_a_row_for_each_running_request(frames):
    for frame in frames[1:]:
        view = frame.view
        shown = text("batch", frame, 80, 75)
        last = view.steps[-1]
        kinds = [cell.kind for cell in last.cells.values()]
        for kind in ("decode", "prefill", "held"):
            assert re.search(rf" {kinds.count(kind)} {kind}", shown.splitlines()[0])
        for request, lane in view.lanes.items():
            row = shown.splitlines()[1 + lane]
            assert row[2:].startswith(request.removeprefix("chatcmpl-"))
            assert f"{view.requests[request].computed_tokens:,}" in row


def test_a_lane_shows_prefill_decode_and_end(frames):
    shown = text("batch", frames[2], 160, 30)
    assert re.search(r"█+━+┤", shown)
    assert "┤╌" in shown
    assert UNICODE.aborted in text("batch", frames[-1], 160, 30)


def test_requests_that_do_not_fit_are_counted(busy):
    shown = text("batch", busy, 60, 9).splitlines()
    rows = 9 - 3 - (busy.view.queue.head is not None)
    waiting = sum(state.status == "waiting" for state in busy.view.requests.values())
    assert f"and {len(busy.view.lanes) - (rows - 1)} more requests in the batch, {waiting} wait" in "\n".join(shown)


def marks_of(step, lane):
    """What one step shows of one lane."""
    cell = step.cells.get(lane)
    if cell is None:
        return " "
    return END_MARKS[cell.end] if cell.end else KIND_MARKS[cell.kind]


@pytest.mark.parametrize(("width", "height"), [(80, 20), (60, 40), (200, 60), (36, 9)])
def test_every_cell_is_what_the_step_did(frames, busy, width, height):
    for frame in (*frames, busy):
        view, planned = frame.view, plan(frame, frame.view, width, height)
        lines = inside(frame, width, height)
        lanes = [row.lane for row in planned.rows[: planned.drawn] if row.lane is not None]
        for lane, line in zip(lanes, lines, strict=False):
            drawn = line[planned.label + planned.blank :]
            wanted = [marks_of(column.steps[-1], lane) if column.steps else UNICODE.switch for column in planned.shown]
            assert drawn == "".join(wanted)
        steps = [step.seq for column in planned.shown for step in column.steps]
        assert steps == [step.seq for step in view.steps[len(view.steps) - len(steps) :]]


def test_rows_that_were_shown_before_stay_right(recording, fold, frame):
    """What is remembered of steps must not outlive a mark that a later record sets."""
    feed = fold(recording[:1])
    for record in recording[1:]:
        feed._take(record)
        shown = frame(feed)
        planned = plan(shown, shown.view, 60, 40)
        drawn = inside(shown, 60, 40)[: planned.drawn]
        for row, line in zip(planned.rows, drawn, strict=False):
            if row.lane is not None:
                assert line[-1] == marks_of(shown.view.steps[-1], row.lane)


def test_zoomed_columns_show_what_is_rarest(busy):
    view = busy.view
    order = [" ", UNICODE.held, UNICODE.decode, UNICODE.fork, UNICODE.prefill, *dict.fromkeys(END_MARKS.values())]
    for zoom in (1, 2, 3):
        frame = focused(busy, zoom=zoom)
        planned = plan(frame, view, 100, 30)
        shown = text("batch", frame, 100, 30)
        assert f", {1 << zoom} steps a column" in shown.splitlines()[0]
        for lane in range(10):
            line = shown.splitlines()[1 + lane][1:-1][planned.label + planned.blank :]
            for glyph, column in zip(line, planned.shown, strict=True):
                if not column.steps:
                    assert glyph == UNICODE.switch
                    continue
                assert len({step.seq >> zoom for step in column.steps}) == 1
                seen = {marks_of(step, lane) for step in column.steps}
                assert glyph in seen
                assert order.index(glyph) >= max(order.index(mark) for mark in seen - set(END_MARKS.values()) | {" "})
                assert bool(seen & set(END_MARKS.values())) == (glyph in END_MARKS.values())


def test_a_zoomed_column_stays_as_it_is_when_steps_come(recording, fold, frame):
    def columns(count):
        shown = focused(frame(fold(recording[:count])), zoom=2)
        return [[step.seq for step in column.steps] for column in plan(shown, shown.view, 40, 20).shown]

    before, after = columns(150), columns(157)
    kept = [column for column in before[:-1] if column in after]
    assert len(kept) >= len(before) - 4


def test_a_switch_goes_through_all_rows(busy):
    lines = inside(busy, 100, 30)
    at = {line.index(UNICODE.switch) for line in lines if UNICODE.switch in line}
    assert len(at) == 1
    rows = plan(busy, busy.view, 100, 30).drawn
    assert all(line[next(iter(at))] == UNICODE.switch for line in lines[:rows])
    assert lines[-1][next(iter(at))] == UNICODE.switch


@pytest.fixture(scope="module")
def queued(simulated, fold, frame):
    """A batch of twelve, full, and more that wait."""
    controls = {0: simulated.STATIC_RESERVED, 80: Control(max_num_seqs=12)}
    return frame(fold(simulated.simulate(150, controls, rate=3.0, blocks=900, max_model_len=3000)))


def test_who_waits_has_a_row_with_how_long_and_since_when(queued):
    view = queued.view
    waiting = [state for state in view.requests.values() if state.status == "waiting"]
    assert 3 < len(waiting) < 20
    lines = inside(queued, 80, 50)
    planned = plan(queued, view, 80, 50)
    for index, state in enumerate(waiting):
        line = lines[12 + index]
        assert line[1:].startswith(state.request.removeprefix("chatcmpl-"))
        assert figures.seconds(view.now - state.arrived) in line
        steps = [column.steps[-1] for column in planned.shown]
        wanted = "".join(UNICODE.waiting if step.time > state.arrived else " " for step in steps)
        assert line[planned.label + planned.blank :] == wanted
    rows = 17 - 2 - 1 - (view.queue.head is not None)
    assert f"and {12 + len(waiting) - (rows - 1)} more wait" in "\n".join(inside(queued, 80, 17))


def test_who_was_preempted_waits_from_then_on(recording, fold, frame):
    at = max(index for index, record in enumerate(recording[1:], 1) if record.preempted)
    shown = frame(fold(recording[: at + 3]))
    lost = recording[at].preempted[0].request
    assert shown.view.requests[lost].status == "waiting"
    before = [record for record in recording[1:at] if record.rows][-1]
    since = stays.waiting_since(shown.view, [shown.view.requests[lost]])
    assert since == {lost: before.time}
    line = next(line for line in inside(shown, 80, 95) if line[1:].startswith(lost[-4:]))
    assert figures.seconds(shown.view.now - before.time) in line
    assert line.count(UNICODE.waiting) == 3


def budget_of(view):
    steps = view.steps[-60:]
    return figures.percent(sum(step.tokens for step in steps) / sum(step.budget for step in steps))


def test_one_line_in_words_tells_static_from_continuous(frames, busy, queued):
    for frame in (*frames[1:], busy, queued):
        view = frame.view
        shown = inside(expanded(frame), 160, 40)[0]
        steps = view.steps[-60:]
        cells = [cell for step in steps for cell in step.cells.values()]
        last = list(steps[-1].cells.values())
        held = sum(cell.kind == "held" for cell in cells)
        prefill = sum(cell.kind == "prefill" for cell in last)
        assert f"{len(last)} of {view.control.max_num_seqs} rows full, {prefill} prefill" in shown
        assert f"budget {budget_of(view)} over the last {len(steps)} steps" in shown
        assert f"held rows {sum(cell.kind == 'held' for cell in last)}" in shown
        share = f", {figures.percent(held / len(cells))} of all rows in those steps"
        assert (share in shown) == bool(held)
    assert "of all rows" not in inside(expanded(queued), 160, 40)[0]
    assert "in the last" not in inside(focused(queued), 160, 40)[0]


def test_static_has_held_tails_and_continuous_full_lanes(frames, simulated, fold, frame):
    full = frame(fold(simulated.simulate(90, {0: Control(max_num_seqs=8)}, rate=6.0, blocks=900)))
    for one, held in ((frames[2], True), (full, False)):
        lanes = plan(one, one.view, 120, 40)
        shown = text("batch", one, 120, 40, Look(ASCII, MONO)).splitlines()[1 : 1 + lanes.drawn]
        assert any("|~" in line for line in shown) == held
        assert any("~" in line for line in shown) == held
        assert held or any("=|#" in line for line in shown)


def test_more_is_told_when_there_is_room(busy):
    view = busy.view
    lines = inside(expanded(busy), 200, 50)
    assert lines[1].split()[:5] == ["request", "doing", "context", "gener.", "tok/s"]
    by_lane = {lane: request for request, lane in view.lanes.items()}
    for lane, line in enumerate(lines[2:20]):
        if lane not in by_lane:
            assert not line[:44].strip()
            continue
        state = view.requests[by_lane[lane]]
        speed = stays.rate(stays.speed(view, state))
        wanted = [f"{state.computed_tokens:,}", f"{state.num_tokens - state.prompt_tokens:,}", speed]
        assert line[:44].split() == [state.request.removeprefix("chatcmpl-"), stays.doing(state), *wanted]


def test_it_fits_every_size(frames, busy, queued):
    for frame in (frames[0], frames[2], busy, queued, replace(busy, view=None)):
        for width in (24, 25, 31, 36, 43, 62, 80, 91, 120, 200, 400):
            for height in (5, 6, 7, 9, 14, 26, 40, 100):
                for shown in (frame, expanded(frame, step=100, zoom=1)):
                    lines = scene.panel("batch", shown, width, height, LOOK)
                    assert (len(lines), {length(line) for line in lines}) == (height, {width})
    for shown in (busy, expanded(busy, step=100)):
        assert text("batch", shown, 120, 40, Look(ASCII)).isascii()


def test_bars_are_the_shares_rounded_up():
    shares = (0.0, 0.001, 0.5, 0.625, 1.0)
    steps = [timeline.Column((None,))] * len(shares)
    lines = timeline.bars(steps, shares, 2, UNICODE, "text")
    assert [text_of(line) for line in lines] == ["   ▃█", "▁▂███"]
    one = timeline.bars([*steps, timeline.Column(())], [*shares, 0.0], 1, UNICODE, "text")
    assert text_of(one[0]) == "▁▂▅▆█" + UNICODE.switch
