"""The batch timeline shows what the records say, cell by cell; keys and the mouse walk it; a step is told in full."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest

from engine.protocol import Control, Parts, Queue, Wait
from tui import figures, scene
from tui.focus import BatchFocus
from tui.history import step_seconds
from tui.look import ASCII, UNICODE, Look
from tui.panels import batch, stays, timeline
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


def pressed(frame, *keys, width=80, height=20):
    for key in keys:
        focus = batch.press(frame, key, width, height)
        assert focus is not None, key
        frame = replace(frame, focus=focus)
    return frame


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


# --- one step in full


def told(frame, record, width=100):
    title, lines = batch.detail(
        replace(frame, step=record, focus=frame.focus.but(batch=BatchFocus(step=0))), width, LOOK
    )
    assert title == f"step {record.seq:,}"
    return "\n".join(text_of(line) for line in lines)


def entry(shown, name):
    return next(line[13:] for line in shown.splitlines() if line[1:].startswith(f"{name} "))


def test_a_step_is_told_with_every_figure_of_its_record(busy, recording):
    for record in recording[1:]:
        shown = told(busy, record)
        tokens = sum(row.tokens for row in record.rows)
        budget = record.control.max_num_batched_tokens
        share = figures.percent(tokens / budget)
        assert entry(shown, "budget") == f"{tokens:,} of {budget:,} tokens, {share}"
        assert entry(shown, "rows") == f"{len(record.rows)} of {record.control.max_num_seqs}"
        assert entry(shown, "modes") == f"{record.control.batching}, {record.control.allocation}"
        for kind in ("prefill", "decode", "fork", "held"):
            rows = [row for row in record.rows if row.kind == kind]
            sums = [len(rows), *(sum(getattr(r, f) for r in rows) for f in ("tokens", "sampled", "context", "cached"))]
            found = re.search(rf"^ {kind} +(\d.*)$", shown, re.M)
            assert (found[1].split() if found else None) == ([f"{value:,}" for value in sums] if rows else None)
        whole = step_seconds(record.durations)
        for name in ("schedule", "prepare", "forward", "sample", "publish"):
            spent = getattr(record.durations, name)
            if whole:
                found = re.search(rf"  {name} +([\d.,]+) ms +(\d+) %", shown)
                assert found.groups() == (f"{spent * 1000:,.1f}", f"{100 * spent / whole:.0f}")
        assert ("transfer" in shown) == bool(record.durations.transfer)
        counts = {state: sum(block.state == state for block in record.blocks) for state in ("full", "shared", "cached")}
        changed = shown[shown.index(" changed to") : shown.index(" pool now")]
        for state, count in counts.items():
            assert (f"{count:,} {state}" in changed) == bool(count)
        assert f"{record.pool.filling:,} filling" in shown[shown.index(" pool now") :]
        assert entry(shown, "queue").startswith(figures.plural(record.queue.length, "request"))
        for copy in record.copies[:64]:
            assert f"block {copy.source:,} → {copy.target:,}, {figures.plural(copy.tokens, 'token')}" in shown


def test_who_joined_left_and_was_preempted_is_told_with_why(busy, recording):
    seen = set()
    for record in recording[1:]:
        shown = " ".join(told(busy, record, 300).split())
        for joined in record.joined:
            name = joined.request.removeprefix("chatcmpl-")
            words = f"{joined.cached_tokens:,} of {joined.looked_up_tokens:,} tokens looked up were cached"
            if joined.parent:
                words = f"forked off {joined.parent.removeprefix('chatcmpl-')}, shares {joined.shared_tokens:,} tokens"
            assert f"{name} {'resumed, ' if joined.resumed else ''}{words}" in shown
            seen.add("fork" if joined.parent else "join")
        for lost in record.preempted:
            expected = f"{figures.seconds(lost.recompute_seconds)}, by swap {figures.seconds(lost.swap_seconds)}"
            assert f"by {lost.by}" in shown
            assert f"{lost.lost_tokens:,} tokens; expected by recompute {expected}" in shown
            seen.add(lost.by)
        for left in (*record.left, *record.held):
            assert f"{left.request.removeprefix('chatcmpl-')} {left.reason}" in shown
            seen.add("left")
        if record.released:
            assert f"{record.released[0].removeprefix('chatcmpl-')} its static batch has ended" in shown
    assert seen == {"fork", "join", "swap", "recompute", "left"}


def test_parts_are_told_where_they_were_measured(busy, recording):
    assert "gate_up" not in told(busy, recording[-1])
    measured = msgspec.structs.replace(recording[-1], parts=PARTS)
    assert re.search(r"gate_up +16\.0 ms +33 %", told(busy, measured))


def test_a_record_that_is_gone_says_so(busy):
    frame = focused(busy, step=3)
    title, lines = batch.detail(frame, 80, LOOK)
    assert (title, text_of(lines[0])) == ("step 3", " record 3 is not kept any more")
    assert batch.detail(focused(busy), 80, LOOK)[0] == f"step {busy.view.record.seq}"


def test_details_fit_narrow_overlays(busy, recording):
    for record in recording[150:]:
        for width in (30, 60):
            frame = replace(busy, step=record)
            title, lines = batch.detail(frame, width, LOOK)
            assert title
            assert all(length(line) <= 3 * width for line in lines)
