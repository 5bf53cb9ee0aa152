"""The table of requests says what the fold says, in the order and of the kind that was asked for."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol import Control
from tui import figures, scene
from tui.commands import Ask, Cancel, Say
from tui.focus import RequestsFocus
from tui.history import step_seconds
from tui.look import ASCII, UNICODE, Look
from tui.panels import requests, stays
from tui.panels.line import length, text_of
from tui.panels.request_columns import COLUMNS, fitting, ordered
from tui.themes import MONO
from tui.view import Link

LOOK = Look()
NAMES = [column.name for column in COLUMNS]
ENDS = (1, 30, 129, 132, 150, 160, 179)


def text(frame, width, height, look=LOOK):
    return "\n".join(text_of(line) for line in scene.panel("requests", frame, width, height, look))


def focused(frame, request=None, **requests_focus):
    return replace(
        frame, focus=frame.focus.but(panel="requests", request=request, requests=RequestsFocus(**requests_focus))
    )


def pressed(frame, *keys, width=100, height=20):
    for key in keys:
        focus = requests.press(frame, key, width, height)
        assert focus is not None, key
        frame = replace(frame, focus=focus)
    return frame


def cells(frame, width, height):
    """What is drawn, row by row, by the columns' names."""
    rows = []
    for line in text(frame, width, height).splitlines()[2:-1]:
        start, row = 2, {}
        for column, cell in fitting(width - 2):
            row[column.name] = line[start : start + cell].strip()
            start += cell + 1
        if row["id"]:
            rows.append(row)
    return rows


@pytest.fixture(scope="module")
def frames(recording, fold, frame):
    return {end: frame(fold(recording[:end])) for end in ENDS}


@pytest.fixture(scope="module")
def busy(frames):
    return frames[179]


class Truth:
    """What the records themselves say of each request, without the fold."""

    def __init__(self, records):
        self.began, self.last, self.first, self.tokens = {}, {}, {}, {}
        self.preempted, self.cached = {}, {}
        before = None
        for record in records:
            for lost in record.preempted:
                self.preempted[lost.request] = before
            began = record.time - (step_seconds(record.durations) - record.durations.publish)
            for joined in record.joined:
                self.cached[joined.request] = joined.cached_tokens
            for row in record.rows:
                self.began.setdefault(row.request, began)
                if row.sampled:
                    self.first.setdefault(row.request, record.time)
                    self.last[row.request] = record.time
                    self.tokens[row.request] = self.tokens.get(row.request, 0) + row.sampled
            if record.rows:
                before = record.time


@pytest.mark.parametrize("end", ENDS[1:])
def test_every_figure_is_what_the_records_say(frames, recording, end):
    frame, truth = frames[end], Truth(recording[1:end])
    view = frame.view
    drawn = {row["id"]: row for row in cells(focused(frame), 200, 110)}
    assert len(drawn) == len(view.requests)
    holders, known_waits = {}, 0
    for state in view.requests.values():
        for block in state.table:
            holders[block] = holders.get(block, 0) + 1
    for name, state in view.requests.items():
        row, made = drawn[name.removeprefix("chatcmpl-")], truth.tokens.get(name, 0)
        first, last = truth.first.get(name), truth.last.get(name)
        assert row["state"] == stays.doing(state)
        assert row["prompt"] == f"{state.prompt_tokens:,}"
        assert row["generated"] == f"{made:,}" == f"{state.num_tokens - state.prompt_tokens:,}"
        assert row["max"] == f"{state.max_tokens:,}"
        assert row["blocks"] == f"{len(state.table):,}"
        assert row["shared"] == f"{sum(holders[block] > 1 for block in state.table):,}"
        assert row["TTFT"] == figures.seconds(None if first is None else first - state.arrived)
        assert row["preemptions"] == f"{state.preemptions}"
        assert row["priority"] == f"{state.priority}"
        assert row["arrived"] == f"{figures.seconds(view.now - state.arrived)} ago"
        assert row["cached"] == ("—" if state.status == "waiting" else f"{truth.cached[name]:,}")
        known = made > 1 and state.status != "waiting"
        assert row["tok/s"] == stays.rate((made - 1) / (last - first) if known else None)
        if state.status == "waiting":
            since = truth.preempted[name] if state.preemptions else state.arrived
            assert row["waited"] == figures.seconds(view.now - since)
        else:
            waited = figures.seconds(truth.began[name] - state.arrived) if name in truth.began else "—"
            unsure = state.preemptions or state.arrived < stays.began(view.steps[0])
            assert row["waited"] == waited or (unsure and row["waited"] == "—")
            known_waits += row["waited"] != "—"
    assert end == ENDS[1] or known_waits > len(view.lanes) / 2  # at first nobody was seen to come


def test_states_are_told_apart(frames):
    shown = [frame for frame in frames.values() if frame.view.requests]
    seen = {row["state"] for frame in shown for row in cells(focused(frame), 120, 110)}
    assert {"prefill", "decode", "held", "waiting", "swapped"} <= seen <= set(stays.DOINGS)


def plain(view, name):
    """A column's values, one request at a time."""
    single = next(column for column in COLUMNS if column.name == name).values
    return {request: single(view, [state])[0] for request, state in view.requests.items()}


@settings(max_examples=60, deadline=None)
@given(
    end=st.sampled_from(ENDS),
    name=st.sampled_from(NAMES),
    descending=st.booleans(),
    wanted=st.sampled_from(["", "wait", "state:wait", "state:de", "00", "0043", "-1", "HELD", "state:00", "e"]),
)
def test_rows_are_filtered_and_sorted_as_a_plain_sort_does(frames, end, name, descending, wanted):
    view = frames[end].view
    values = plain(view, name)

    def fits(state):
        doing = stays.doing(state)
        if wanted.startswith("state:"):
            return wanted[6:] in doing
        return wanted.lower() in state.request or wanted.lower() in doing

    rows = [state.request for state in view.requests.values() if fits(state)]
    if name == "arrived":
        wanted_rows = rows[::-1] if descending else rows
    else:
        measured = [row for row in rows if values[row] is not None]
        sign = sorted(set(map(values.get, measured)), reverse=descending)
        wanted_rows = [row for value in sign for row in measured if values[row] == value]
        wanted_rows += [row for row in rows if values[row] is None]
    shown = ordered(view, RequestsFocus(name, descending, wanted))
    assert [state.request for state in shown] == wanted_rows


def test_the_title_counts_what_is_shown_and_says_the_order(busy):
    count = len(busy.view.requests)
    waiting = sum(stays.doing(state) == "waiting" for state in busy.view.requests.values())
    first = text(focused(busy), 120, 20).splitlines()[0]
    assert f"requests, 17 of {count} shown, by arrived, oldest first" in first
    assert f"{waiting} waiting" in first
    shown = text(focused(busy, sort="tok/s", descending=True, filter="state:wait"), 100, 20).splitlines()[0]
    assert f'requests, 17 of {waiting} shown with "state:wait", {count} in all, by tok/s, falling' in shown
    assert f"requests 17/{waiting} by arrived /wait" in text(focused(busy, filter="wait"), 50, 20).splitlines()[0]


def test_an_empty_table_says_why(frames, busy):
    assert not frames[1].view.requests
    for width in (60, 120):
        empty = focused(frames[1])
        assert requests.EMPTY in text(empty, width, 10)
        gone = replace(empty, status=replace(empty.status, link=Link("reconnecting", "nothing answers there", 3.0)))
        assert "no requests when the engine was last heard of" in text(gone, width, 10)
        assert "send some" not in text(gone, width, 10)
        fixed = replace(empty, status=replace(empty.status, readonly=True))
        assert "start a replay" not in text(fixed, width, 10)
    assert 'no request has "zzz": / changes that' in text(focused(busy, filter="zzz"), 60, 10)


def test_the_head_marks_the_column_and_says_what_the_mean_is(busy):
    shown = text(focused(busy, sort="tok/s", descending=True), 200, 10)
    assert f"mean tok/s{UNICODE.down_open}" in shown
    assert "mean tok/s^" in text(focused(busy, sort="tok/s"), 200, 10)
    assert "mean tok/s: from a request's first token to its last" in shown


def test_narrow_tables_drop_what_matters_least():
    before = set(NAMES)
    for width in range(200, 23, -1):
        chosen = {column.name for column, _ in fitting(width - 2)}
        assert chosen <= before
        before = chosen
        assert sum(cell + 1 for _, cell in fitting(width - 2)) <= width - 2
    assert [column.name for column, _ in fitting(200)] == NAMES
    assert {column.name for column, _ in fitting(22)} == {"id", "state"}
    assert {column.name for column, _ in fitting(40)} == {"id", "state", "generated", "tok/s"}


def test_the_selection_moves_and_stays_on_its_request(busy):
    names = [state.request for state in ordered(busy.view, RequestsFocus("generated", True))]
    frame = focused(busy, sort="generated", descending=True)
    seen = []
    for _ in range(30):
        frame = pressed(frame, "down")
        seen.append(frame.focus.request)
        line = next(line for line in text(frame, 100, 20).splitlines() if line[1] == UNICODE.right)
        assert line[2:].startswith(frame.focus.request.removeprefix("chatcmpl-"))
    assert seen == names[:30]
    assert pressed(frame, "up").focus.request == names[28]
    assert pressed(frame, "pageup").focus.request == names[29 - 17]
    assert pressed(frame, "pagedown").focus.request == names[29 + 17]
    assert pressed(frame, "home").focus.request == names[0]
    assert pressed(frame, "end").focus.request == names[-1]
    assert pressed(frame, "end", "down", "pagedown").focus.request == names[-1]
    turned = pressed(frame, "I")
    assert turned.focus.request == names[29]
    assert UNICODE.right + names[29].removeprefix("chatcmpl-") in text(turned, 100, 20)


def test_a_selection_that_has_left_begins_again_with_what_is_seen(busy):
    names = list(busy.view.requests)
    gone = focused(busy, request="chatcmpl-0001", top=5)
    assert "chatcmpl-0001" not in names
    assert UNICODE.right not in text(gone, 100, 20)
    assert pressed(gone, "down").focus.request == names[5]
    assert pressed(gone, "up").focus.request == names[5 + 16]
    assert requests.press(focused(busy, filter="zzz"), "down", 100, 20) is None


def test_columns_are_chosen_with_the_keys(busy):
    shown = [column.name for column, _ in fitting(98)]
    assert "arrived" not in shown
    frame, seen = focused(busy), []
    for _ in range(len(shown) + 1):
        frame = pressed(frame, "greater_than_sign")
        seen.append(frame.focus.requests.sort)
    assert seen == [*shown, "arrived"]
    assert pressed(frame, "less_than_sign").focus.requests.sort == shown[-1]
    assert not pressed(frame, ">").focus.requests.descending  # by id: from a to z
    figures_first = pressed(focused(busy, sort="state"), ">").focus.requests
    assert (figures_first.sort, figures_first.descending) == ("waited", True)


def test_a_click_on_a_head_sorts_and_again_inverts(busy):
    for width in (60, 100, 200):
        head = text(focused(busy), width, 20).splitlines()[1]
        for column, _ in fitting(width - 2):
            x = head.index(column.head)
            focus = requests.point(focused(busy), x, 1, width, 20)
            if column.name != "arrived":
                assert (focus.requests.sort, focus.requests.descending) == (column.name, not column.words)
            again = requests.point(replace(busy, focus=focus), x, 1, width, 20)
            assert again.requests.sort == column.name
            assert again.requests.descending != focus.requests.descending


def test_a_click_on_a_row_selects_it(busy):
    frame = focused(busy, sort="waited", descending=True, top=4)
    for y, row in enumerate(cells(frame, 100, 20), 2):
        focus = requests.point(frame, 30, y, 100, 20)
        assert focus.request.removeprefix("chatcmpl-") == row["id"]
        assert cells(replace(frame, focus=focus), 100, 20)[y - 2] == row
    assert requests.point(frame, 30, 19, 100, 20).request is None
    assert requests.point(focused(busy, filter="zzz"), 30, 3, 100, 20).request is None


def test_the_wheel_scrolls_and_the_selection_stays(busy):
    frame = focused(busy, request=next(iter(busy.view.requests)))
    first = cells(frame, 100, 20)
    down = replace(frame, focus=requests.wheel(frame, 5, 5, False, 100, 20))
    assert cells(down, 100, 20)[:-3] == first[3:]
    assert down.focus.request == frame.focus.request
    assert cells(replace(down, focus=requests.wheel(down, 5, 5, True, 100, 20)), 100, 20) == first
    assert requests.wheel(frame, 5, 5, True, 100, 20) is None


def test_the_filter_is_asked_for_and_set(busy):
    frame = focused(busy, filter="old", top=9)
    for key in ("/", "slash"):
        assert requests.press(frame, key, 100, 20) == Ask("filter", "show requests with", "old")
    answered = requests.answer(frame, "filter", " state:decode ")
    assert (answered.requests.filter, answered.requests.top) == ("state:decode", 0)
    assert requests.answer(frame, "other", "x") is None
    rows = cells(replace(frame, focus=answered), 100, 100)
    assert len(rows) == sum(stays.doing(state) == "decode" for state in busy.view.requests.values())
    assert {row["state"] for row in rows} == {"decode"}


def test_the_filter_is_text_and_cannot_break_the_screen(busy):
    for wanted in ("\x1b[31m", "模型", "[a-z", "x" * 300):
        lines = scene.panel("requests", focused(busy, filter=wanted), 80, 10, LOOK)
        assert {length(line) for line in lines} == {80}
        assert "\x1b" not in "".join(map(text_of, lines))


def test_a_live_request_can_be_cancelled(busy, frames):
    waiting = next(state for state in busy.view.requests.values() if state.status == "waiting")
    for key in ("x", "delete"):
        assert requests.press(focused(busy, request=waiting.request), key, 100, 20) == Cancel(waiting.request)
    held = next(state for state in frames[129].view.requests.values() if state.status == "held")
    for request in (None, "gone"):
        assert isinstance(requests.press(focused(busy, request=request), "x", 100, 20), Say)
    assert isinstance(requests.press(focused(frames[129], request=held.request), "x", 100, 20), Say)


def test_it_fits_every_size(busy, frames):
    for frame in (busy, frames[1], frames[129], replace(busy, view=None)):
        for width in (24, 25, 36, 43, 62, 80, 120, 131, 200, 400):
            for height in (5, 6, 9, 26, 100):
                lines = scene.panel("requests", focused(frame, sort="TTFT"), width, height, LOOK)
                assert (len(lines), {length(line) for line in lines}) == (height, {width})
    for width in (40, 200):
        assert text(focused(busy, request=next(iter(busy.view.requests))), width, 30, Look(ASCII, MONO)).isascii()


def test_priorities_and_parents_are_told(simulated, fold, frame):
    snapshot, *records = simulated.simulate(12, {0: Control(max_num_seqs=1)}, rate=20.0, forked=0.5)
    feed = fold([snapshot, *records])
    state = next(state for state in feed.fold.requests.values() if state.parent)
    feed.fold.requests[state.request] = msgspec.structs.replace(state, priority=3)
    shown = frame(feed)
    lines = "\n".join(text_of(line) for line in requests.detail(focused(shown, request=state.request), 60, LOOK)[1])
    assert f"forked off  {state.parent.removeprefix('chatcmpl-')}" in lines
    assert "priority    3" in lines
    row = next(r for r in cells(focused(shown), 200, 60) if state.request.endswith(r["id"]))
    assert row["priority"] == "3"
