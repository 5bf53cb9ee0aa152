"""The control panel: every control is the fold's, keys ask for what the engine takes, readonly sends nothing."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from engine.core import check_control
from engine.protocol import Control
from tui import controls
from tui.advice import Suggestion
from tui.commands import Ask, Change, Replay, Say
from tui.controls import CONTROLS, NUMBERS
from tui.figures import seconds
from tui.focus import ControlFocus, Focus
from tui.look import ASCII, Look
from tui.panels import compare, control
from tui.panels.control import FIRST_ADVICE, REPLAY_ROW
from tui.panels.line import text_of
from tui.panels.measures import COMPARED
from tui.replay import Load

LOOK = Look()
ADVICE = (
    Suggestion({"allocation": "paged"}, "78 % of it is waste", ("waste 78 % over 30 s",), "less waste"),
    Suggestion({"max_num_seqs": 128}, "all 64 rows are taken", ("64 of 64 rows",), "more rows"),
)
ROWS = {one.field: row for row, one in enumerate(CONTROLS)}


@pytest.fixture(scope="module")
def frame(recording, fold, request):
    from tui.view import Frame, Link, Status

    view = fold(recording).view()
    return Frame(Status(Link("live")), view, Focus(panel="control"), advice=ADVICE)


def on(frame, row, **status):
    focus = frame.focus.but(control=ControlFocus(row))
    return replace(frame, focus=focus, status=replace(frame.status, **status))


def text(frame, width=100, height=60, look=LOOK):
    lines = control.draw(frame, width, height, look)
    assert len(lines) == height
    assert {len(text_of(line)) for line in lines} == {width}
    return "\n".join(text_of(line) for line in lines)


def press(frame, key):
    return control.press(frame, key, 100, 60)


def with_control(frame, **changes):
    return replace(frame, view=replace(frame.view, control=msgspec.structs.replace(frame.view.control, **changes)))


def test_every_control_is_told_with_its_value(frame):
    shown = text(frame).splitlines()
    for row, one in enumerate(CONTROLS):
        value = controls.reads(one.field, getattr(frame.view.control, one.field))
        assert shown[row + 1][2:].split("  ")[0].startswith(f"{one.key} {one.name}".strip() if one.key else "")
        assert one.name in shown[row + 1]
        assert value in shown[row + 1]


def test_what_was_changed_last_and_from_which_step_is_told(frame):
    last = frame.view.history.switches[-1]
    words = f"static → continuous, reserved → paged from step {last.seq:,}"
    assert words in text(frame)


def test_before_and_after_are_the_historys(frame):
    comparison = compare.comparison_of(frame.view)
    shown = text(frame)
    for measure in COMPARED:
        assert f"{measure.name:<15}{compare.pair(measure, comparison, LOOK)}" in shown
    first = next(line for line in shown.splitlines() if "before and after" in line)
    assert compare.changed(comparison, LOOK) in first
    assert f"{seconds(comparison.after.observed)} each" in first


def test_what_does_nothing_here_says_why(frame):
    assert "matters only under reserved" in text(frame)
    assert "matters only under reserved" not in text(with_control(frame, allocation="reserved"))


@pytest.mark.parametrize("field", [one.field for one in CONTROLS if one.field not in NUMBERS])
def test_enter_moves_a_choice_on(frame, field):
    reaction = press(on(frame, ROWS[field]), "enter")
    assert isinstance(reaction, Change)
    changed = msgspec.structs.replace(frame.view.control, **reaction.changes)
    check_control(changed, frame.view.engine)
    assert list(reaction.changes) == [field]
    assert getattr(changed, field) != getattr(frame.view.control, field)


def test_choices_that_the_engine_refuses_are_left_out(frame):
    small = msgspec.structs.replace(frame.view.engine, num_host_blocks=0, num_blocks=3)
    here = replace(frame, view=replace(frame.view, engine=small))
    assert press(on(with_control(here, preempt="recompute"), ROWS["preempt"]), "enter") == Change({"preempt": "auto"})
    reaction = press(on(with_control(here, allocation="paged"), ROWS["allocation"]), "enter")
    assert isinstance(reaction, Say)
    assert reaction.bad
    assert "allocation stays paged: one reservation is" in reaction.text


@pytest.mark.parametrize("field", sorted(NUMBERS))
def test_enter_on_a_number_asks_for_it(frame, field):
    reaction = press(on(frame, ROWS[field]), "enter")
    assert reaction == NUMBERS[field].ask(frame.view.control)
    assert isinstance(reaction, Ask)
    value = NUMBERS[field].read(reaction.value)
    assert control.answer(frame, field, reaction.value) == Change({field: value})


def test_an_answer_is_read_or_told_what_it_could_be(frame):
    assert control.answer(frame, "max_num_batched_tokens", "1,024") == Change({"max_num_batched_tokens": 1024})
    reaction = control.answer(frame, "max_num_seqs", "a few")
    assert reaction == Say("batch limit: must be a whole number from 1 to 4,096, got 'a few'", bad=True)
    assert control.answer(frame, "filter", "x") is None


def test_plus_and_minus_double_and_halve_numbers(frame):
    here = with_control(frame, max_num_seqs=64, max_num_batched_tokens=1 << 20, max_wait=10.0)
    rows = on(here, ROWS["max_num_seqs"])
    assert press(rows, "plus") == Change({"max_num_seqs": 128})
    assert press(rows, "minus") == Change({"max_num_seqs": 32})
    assert press(on(here, ROWS["max_wait"]), "minus") == Change({"max_wait": 5.0})
    most = press(on(here, ROWS["max_num_batched_tokens"]), "plus")
    assert most == Say("token budget is 1,048,576: it can be 1 to 1,048,576", bad=True)
    assert press(on(here, ROWS["batching"]), "plus") is None
    assert press(on(here, FIRST_ADVICE), "plus") is None


def test_the_row_stays_within_what_there_is(frame):
    last = FIRST_ADVICE + len(ADVICE) - 1

    def row(reaction):
        return reaction.control.row

    assert row(press(on(frame, 0), "up")) == 0
    assert row(press(on(frame, 0), "down")) == 1
    assert row(press(on(frame, 0), "end")) == last
    assert row(press(on(frame, last), "down")) == last
    assert row(press(on(frame, 3), "home")) == 0
    assert row(press(on(frame, 3), "pagedown")) == 8
    assert row(control.wheel(on(frame, 3), 0, 0, True, 100, 60)) == 2
    assert row(press(replace(on(frame, 40), advice=()), "down")) == REPLAY_ROW
    assert press(frame, "z") is None


def test_advice_is_applied_as_it_is(frame):
    shown = text(on(frame, FIRST_ADVICE))
    for suggestion in ADVICE:
        assert suggestion.why in shown
        assert suggestion.evidence[0] in shown
    assert "y allocation " in shown
    assert press(on(frame, FIRST_ADVICE), "enter") == Change({"allocation": "paged"})
    assert press(on(frame, FIRST_ADVICE + 1), "enter") == Change({"max_num_seqs": 128})
    assert "none: nothing measured asks for a change" in text(replace(frame, advice=()))


def test_the_replay_is_started_stopped_and_rescaled(frame):
    running = Load("running", "chat500", 6.0, None, "00:41", 12, 500)
    idle, runs = on(frame, REPLAY_ROW), on(frame, REPLAY_ROW, replay=running.line)
    assert "running 00:41, 6x, chat500, 12 of 500 sessions" in text(runs)
    assert press(idle, "enter") == Replay("start")
    assert press(runs, "enter") == Replay("stop")
    assert press(runs, "plus") == Replay("speed", 12.0)
    assert press(runs, "minus") == Replay("speed", 3.0)
    assert press(idle, "plus") == Replay("speed", 2.0)
    asked = on(frame, REPLAY_ROW, replay=replace(running, asked=64.0).line)
    assert "6x (asked for 64x)" in text(asked)
    assert press(asked, "plus") == Say("a replay's speed is from 0.25x to 64x", bad=True)
    for state in ("waits", "done", "stopped"):
        ended = on(
            frame, REPLAY_ROW, replay=replace(running, state=state, took="" if state == "waits" else "00:10").line
        )
        assert press(ended, "enter") == Replay("start")


@pytest.mark.parametrize("row", [ROWS["batching"], ROWS["max_num_seqs"], REPLAY_ROW, FIRST_ADVICE])
def test_readonly_sends_nothing_and_says_so(frame, row):
    here = on(frame, row, readonly=True)
    assert "readonly: nothing is sent" in text(here)
    said = Say("readonly: nothing is sent", bad=True)
    assert press(here, "enter") == said
    assert press(here, "plus") in (said, None)
    assert control.answer(here, "max_num_seqs", "3") == said
    assert isinstance(press(here, "down"), Focus)


def test_before_the_first_snapshot_there_is_nothing_to_change(frame):
    here = replace(frame, view=None, advice=())
    assert "no engine yet" in text(here)
    assert press(here, "enter") == Say("there is no engine yet", bad=True)
    assert press(on(here, ROWS["max_wait"]), "plus") == Say("there is no engine yet", bad=True)


@pytest.mark.parametrize("size", [(100, 60), (60, 14), (40, 12), (24, 5)])
def test_a_click_selects_a_line_and_changes_on_its_value(frame, size):
    width, height = size
    for row in range(FIRST_ADVICE + len(ADVICE)):
        here = on(frame, row)
        lines = control.draw(here, width, height, LOOK)
        y = next(at for at, line in enumerate(lines) if text_of(line)[1] == LOOK.glyphs.right)
        assert control.point(here, 1, y, width, height) == here.focus
        begins = sum(len(part) for part, role in _until_value(lines[y]))
        assert control.point(here, begins, y, width, height) == press(here, "enter")
    assert control.point(frame, 5, 0, width, height) is None


def _until_value(line):
    """The spans before the value of the selected line."""
    out = []
    for part, role in line:
        if role == "cursor":
            break
        out.append((part, role))
    return out


@pytest.mark.parametrize("look", [LOOK, Look(ASCII)])
@pytest.mark.parametrize("size", [(24, 5), (40, 12), (80, 24), (400, 100)])
def test_the_selected_line_is_in_sight_at_every_size(frame, size, look):
    for row in range(FIRST_ADVICE + len(ADVICE)):
        shown = text(on(frame, row), *size, look)
        assert any(line[1:2] == look.glyphs.right for line in shown.splitlines()[1:-1])


def test_details_tell_what_it_is_and_what_was_measured(frame):
    title, lines = control.detail(on(frame, ROWS["batching"]), 60, LOOK)
    words = " ".join(text_of(line).strip() for line in lines)
    assert title == "batching"
    assert "can be: continuous / static" in words
    assert f"from step {frame.view.history.switches[-1].seq:,}: static → continuous" in words
    title, lines = control.detail(on(frame, FIRST_ADVICE), 60, LOOK)
    words = " ".join(text_of(line).strip() for line in lines)
    assert (title, "measured: waste 78 % over 30 s" in words, "expected: less waste" in words) == ("advice", True, True)
    for row in range(FIRST_ADVICE):
        assert control.detail(on(frame, row), 30, LOOK)[1]


def test_a_line_breaks_at_no_figures_unit():
    for width in range(10, 40):
        lines = control._wrap("waste 78 % of 1,024 slots over 30 s, 12 ms", width)
        assert not any(line.startswith(("%", "s,", "ms")) for line in lines)


def test_controls_are_those_of_the_default_too():
    assert {one.field for one in CONTROLS} == set(msgspec.structs.asdict(Control()))
