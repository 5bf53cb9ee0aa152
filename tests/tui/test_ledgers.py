"""The ledgers' charts and the comparison: every figure is read back and is the history's."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest

from engine.protocol import Control
from tui import figures, scene
from tui.focus import Focus, LedgersFocus
from tui.history import Comparison, quantile
from tui.look import ASCII, UNICODE, Look
from tui.panels import charts, compare, ledgers, measures
from tui.panels.line import length, text_of
from tui.themes import THEMES
from tui.view import Frame, Link, Status

LOOK = Look()
NAMES = [chart.measures[0].name for chart in measures.CHARTS]


def lines_of(frame, width, height, look=LOOK, name="ledgers"):
    return [text_of(line) for line in scene.panel(name, frame, width, height, look)]


def chosen(frame, chart, window=60.0):
    return replace(frame, focus=Focus(panel="ledgers", expanded=True, ledgers=LedgersFocus(window=window, chart=chart)))


@pytest.fixture(scope="module")
def frames(simulated, fold, frame):
    """Before anything, static, just switched, and long continuous: with preemption, forks and hits."""
    controls = {0: simulated.STATIC_RESERVED, 150: Control()}
    hard = {"blocks": 360, "max_model_len": 900, "rate": 4.0, "follow": 0.4, "forked": 0.3, "system_tokens": 300}
    items = list(simulated.simulate(420, controls, host_blocks=60, **hard))
    return [frame(fold(items[:end])) for end in (1, 120, 153, 421)]


def test_the_list_is_the_window(frames):
    for frame in frames:
        view = frame.view
        for window in ledgers.WINDOWS:
            whole = view.history.window(view.now - window, view.now)
            shown = lines_of(chosen(frame, 0, window), 80, 24)
            for chart in measures.CHARTS:
                measure = chart.measures[0]
                row = next(line for line in shown if line[2:].startswith(measure.name))
                assert row[16:29].strip() == measure.show(measure.of(whole))
                assert not measure.requests or f" of {measure.requests(whole):,} " in row
            assert f"last {figures.seconds(window)}" in shown[0]
            observed = f"{figures.seconds(whole.observed)} observed, {figures.plural(round(whole.steps), 'step')}"
            assert observed in shown[-1]


def test_measures_are_what_a_window_says(frames):
    view = frames[-1].view
    whole = view.history.window(view.now - 900, view.now)
    shown = {measure.name: measure.show(measure.of(whole)) for chart in measures.CHARTS for measure in chart.measures}
    assert shown["internal waste"] == figures.percent(whole.internal_slot_seconds / whole.held_slot_seconds)
    assert shown["external waste"] == figures.percent(whole.external_share)
    assert shown["KV held"] == figures.percent(whole.occupancy)
    assert shown["output"] == f"{whole.output_tokens / whole.observed:,.0f} tok/s"
    assert shown["prefill"] == f"{whole.prefill_tokens / whole.observed:,.0f} tok/s"
    for name, values in (("TTFT", whole.ttft), ("TPOT", whole.tpot), ("E2E", whole.e2e)):
        assert values
        for percent in (50, 90, 99):
            assert shown[f"{name} p{percent}"] == figures.seconds(quantile(values, percent / 100))
    assert shown["queue"] == f"{view.queue.length:,}"
    assert whole.preempted
    assert shown["preemptions"] == measures.per_minute(len(whole.preempted) / whole.observed * 60)
    assert shown["hit rate"] == figures.percent(whole.found_tokens / whole.looked_up_tokens)
    assert shown["step time"] == figures.seconds(whole.step_seconds / whole.steps)


def test_quantiles_of_many_are_those_of_few(frames):
    values = tuple(((at * 7919) % 1000) / 7 for at in range(1000))
    whole = replace(frames[-1].view.history.window(0.0, 2000.0), ttft=values)
    for measure, q in zip(measures.TTFT, (0.5, 0.9, 0.99), strict=True):
        assert measure.of(whole) == pytest.approx(quantile(values, q))


@pytest.mark.parametrize("chart", range(len(measures.CHARTS)))
def test_the_large_chart_has_its_figures_and_of_how_many(frames, chart):
    frame = chosen(frames[-1], chart)
    view, drawn = frame.view, measures.CHARTS[chart]
    whole = view.history.window(view.now - 60.0, view.now)
    legend = lines_of(frame, 160, 40)[1]
    for measure in drawn.measures:
        assert f"{measure.show(measure.of(whole))} {measure.short}" in legend
        if measure.requests:
            assert f"  {measure.requests(whole)} requests  " in legend
    if drawn.stacked:
        spent = msgspec.structs.asdict(whole.durations)
        for part, seconds in spent.items():
            assert f"{part} {figures.percent(seconds / sum(spent.values()))}" in legend


def plot_of(frame, width=160, height=40):
    """The cells of the large chart: rows right of the scale, and the axis."""
    shown = lines_of(frame, width, height)
    axis = next(y for y, line in enumerate(shown) if line[1 + charts.SCALE_WIDTH - 1] == UNICODE.corners[2])
    return [line[1 + charts.SCALE_WIDTH : -2] for line in shown[2:axis]], shown[axis][1 + charts.SCALE_WIDTH : -2]


def test_bars_are_as_high_as_the_figures(frames):
    frame = chosen(frames[-1], 1)  # KV held, to a scale of 1
    rows, _ = plot_of(frame)
    columns = charts.Columns.of(frame.view, 60.0, 160 - 3 - charts.SCALE_WIDTH)
    heights = len(rows) * 8
    checked = 0
    for at, (window, switched) in enumerate(zip(columns.windows, columns.switched, strict=True)):
        if switched:
            continue
        column = [row[columns.lead + at * columns.cells] for row in rows]
        eighths = sum(UNICODE.bars.index(cell) + 1 for cell in column if cell != " ")
        value = window.occupancy
        assert eighths == (0 if value is None else max(1, round(value * heights)))
        checked += eighths > 0
    assert checked > 20


def test_quantiles_are_points_over_the_bars(frames):
    frame = chosen(frames[-1], 5)
    rows, _ = plot_of(frame)
    columns = charts.Columns.of(frame.view, 60.0, 160 - 3 - charts.SCALE_WIDTH)
    highest = max(quantile(window.e2e, 0.99) or 0.0 for window in columns.windows)
    most = charts.top_of(highest)
    points = 0
    for at, (window, switched) in enumerate(zip(columns.windows, columns.switched, strict=True)):
        column = [row[columns.lead + at * columns.cells] for row in rows]
        p99 = quantile(window.e2e, 0.99)
        if p99 is None or switched:
            assert UNICODE.live not in column
        else:
            assert column.index(UNICODE.live) == len(rows) - 1 - min(len(rows) - 1, int(p99 / most * len(rows)))
            points += 1
    assert points > 5


def test_a_step_is_stacked_by_its_parts(frames):
    frame = chosen(frames[-1], len(measures.CHARTS) - 1)
    rows, _ = plot_of(frame)
    columns = charts.Columns.of(frame.view, 60.0, 160 - 3 - charts.SCALE_WIDTH)
    at, window = next((at, one) for at, one in enumerate(columns.windows) if one.steps and not columns.switched[at])
    column = [row[columns.lead + at * columns.cells] for row in rows]
    split = measures.shares(window)
    assert sum(split) == pytest.approx(1.0)
    for letter, share in zip(measures.LETTERS, split, strict=True):
        assert abs(column.count(letter) - share * len(rows)) <= 1
    assert set(column) <= set(measures.LETTERS)


def test_switches_are_marked_on_every_time_axis(frames):
    for frame in frames[2:]:
        switch = frame.view.history.switches[-1].time
        for chart in range(len(measures.CHARTS)):
            rows, axis = plot_of(chosen(frame, chart))
            columns = charts.Columns.of(frame.view, 60.0, 160 - 3 - charts.SCALE_WIDTH)
            marked = [at for at, cell in enumerate(axis) if cell == UNICODE.switch]
            inside = [at for at, one in enumerate(columns.windows) if one.start < switch <= one.end]
            assert sorted({(at - columns.lead) // columns.cells for at in marked}) == inside
            for row in rows:
                assert [at for at, cell in enumerate(row) if cell == UNICODE.switch] == marked
    last = lines_of(chosen(frames[-1], 0), 80, 24)
    assert all(UNICODE.switch in row for row in last if row[2:].startswith(tuple(NAMES)))


def test_what_was_not_observed_has_no_axis_and_no_figures(recording, fold, frame):
    """A gap in the records: nothing is drawn there, and the border says how much was seen."""
    first = fold(recording[:60])
    later = fold(recording[:150]).fold.to_snapshot()
    feed = fold(recording[:60])
    feed._distrust = True
    feed._read(later)
    for record in recording[150:]:
        feed._take(record)
    shown = frame(feed)
    hole = first.fold.time, later.time
    view = shown.view
    _, axis = plot_of(chosen(shown, 1, 15.0))
    columns = charts.Columns.of(view, 15.0, 160 - 3 - charts.SCALE_WIDTH)
    blank = 0
    for at, one in enumerate(columns.windows):
        cell = axis[columns.lead + at * columns.cells]
        if hole[0] <= one.start and one.end <= hole[1]:
            assert cell == " "
            blank += 1
        elif one.observed and not columns.switched[at]:
            assert cell == UNICODE.rest
    assert blank
    whole = view.history.window(view.now - 15.0, view.now)
    assert whole.observed < min(15.0, view.now - recording[0].time) - (hole[1] - hole[0]) / 2
    assert f"{figures.seconds(whole.observed)} observed" in lines_of(chosen(shown, 1, 15.0), 80, 24)[-1]


def test_nothing_measured_is_a_dash(frames):
    shown = lines_of(chosen(frames[0], 3), 120, 40)
    for name in NAMES:
        row = next(line for line in shown if line[2:].startswith(name))
        if name != "queue":
            assert "—" in row
    assert "0 requests" in shown[1]
    assert "nothing was switched yet" in "\n".join(shown)


def compared_rows(shown):
    """Rows of the table: name to (before, after, ratio, verdict)."""
    out = {}
    for measure in measures.COMPARED:
        for line in shown:
            found = re.search(
                rf" {measure.name} +(\S+(?: [^\d\s]\S*)?) +(\S+(?: [^\d\s]\S*)?) +(<?×[\d.,]+|—)(?: +(.))?", line
            )
            if found:
                out[measure.name] = found.groups()
    return out


def test_the_comparison_is_the_two_windows(frames):
    view = frames[-1].view
    comparison = view.history.comparison(view.now)
    title, lines = ledgers.detail(chosen(frames[-1], 0), 90, LOOK)
    shown = [text_of(line) for line in lines]
    assert title == "before and after"
    assert "static → continuous, reserved → paged" in shown[0]
    before, after = comparison.before, comparison.after
    assert before.observed == pytest.approx(after.observed)
    assert f"{figures.seconds(before.observed)} before, {figures.seconds(after.observed)} since" in shown[1]
    assert f"step {comparison.last.seq}" in shown[1]
    rows = compared_rows(shown)
    assert list(rows) == [measure.name for measure in measures.COMPARED]
    for measure in measures.COMPARED:
        old, new = measure.of(before), measure.of(after)
        ratio = None if not old or new is None else new / old
        told = rows[measure.name]
        assert told[:3] == (measure.show(old), measure.show(new), compare.times(ratio, LOOK))
        if measure.requests:
            row = next(line for line in shown if measure.name in line)
            assert f"{measure.requests(before)} and {measure.requests(after)} requests" in row
    assert rows["internal waste"][3] == UNICODE.taken
    assert rows["output"][3] == UNICODE.taken


def test_the_comparison_stays_short_on_the_dashboard(frames):
    comparison = frames[-1].view.history.comparison(frames[-1].view.now)
    shown = "\n".join(lines_of(frames[-1], 80, 23, name="speed"))
    assert compare.pair(measures.OUTPUT, comparison, LOOK) in shown
    assert "E2E" not in shown


def test_the_panel_has_the_comparison_beside_or_below(frames):
    for width, height in ((140, 40), (140, 18), (80, 50)):
        shown = lines_of(chosen(frames[-1], 0), width, height)
        assert len(compared_rows(shown)) > 8 or height == 18
        assert any("static → continuous" in line for line in shown)


@pytest.fixture(scope="module")
def window(frames):
    return frames[-1].view.history.window(0.0, 2000.0)


def sides(window, **named):
    """A comparison whose windows differ only so."""
    return Comparison(
        None,
        None,
        *(replace(window, **{name: values[at] for name, values in named.items()}) for at in (0, 1)),
    )


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [(3.4, 0.108, "3.4 s → 108 ms"), (0.06, 0.062, "60 → 62 ms"), (None, 0.5, "— → 500 ms"), (2.0, 3.0, "2.0 → 3.0 s")],
)
def test_a_unit_is_left_out_only_where_both_have_it(window, before, after, shown):
    comparison = sides(window, ttft=[() if side is None else (side,) for side in (before, after)])
    assert compare.pair(measures.TTFT[0], comparison, LOOK) == shown


@pytest.mark.parametrize(
    ("before", "after", "ratio", "verdict"),
    [
        ((1.0,), (0.5,), "×0.50", 1),
        ((1.0,), (1.8,), "×1.8", -1),
        ((1.0,), (1.01,), "×1.0", 0),
        ((1.0,), (), "—", 0),
        ((1.0,), (0.0,), "×0", 1),
        ((), (1.0,), "—", 0),
        ((1.0,), (30.0,), "×30", -1),
        ((100.0,), (0.001,), "<×0.001", 1),
    ],
)
def test_better_and_worse(window, before, after, ratio, verdict):
    comparison = sides(window, ttft=[before * compare.ENOUGH, after * compare.ENOUGH])
    assert compare.times(compare.ratio(measures.TTFT[0], comparison), LOOK) == ratio
    assert compare.verdict(measures.TTFT[0], comparison) == verdict
    few = sides(window, ttft=[before * compare.ENOUGH, after * (compare.ENOUGH - 1)])
    assert compare.verdict(measures.TTFT[0], few) == 0
    brief = sides(window, ttft=[before * 8, after * 8], observed=[60.0, compare.ENOUGH_SECONDS - 0.1])
    assert compare.verdict(measures.TTFT[0], brief) == 0


def test_more_output_is_better_and_more_prefill_neither(window):
    comparison = sides(window, output_tokens=[100.0, 200.0], prefill_tokens=[100.0, 200.0])
    assert compare.verdict(measures.OUTPUT, comparison) == 1
    assert compare.verdict(measures.PREFILL, comparison) == 0


def test_a_moment_is_not_compared(frames):
    view = frames[2].view
    assert view.history.switches
    assert view.history.comparison(view.now).after.observed < compare.MIN_COMPARED
    assert compare.comparison_of(view) is None
    assert "measuring" in "\n".join(lines_of(chosen(frames[2], 0), 140, 40))


@pytest.mark.parametrize(
    ("most", "top"),
    [(0.0, 1.0), (0.9, 1.0), (1.0, 1.0), (1.2, 2.0), (2.1, 4.0), (387.0, 400.0), (0.07, 0.08), (8.1, 10.0)],
)
def test_a_scale_ends_in_a_round_number(most, top):
    assert charts.top_of(most) == pytest.approx(top)


def press(frame, key):
    reaction = ledgers.press(frame, key, 140, 40)
    assert isinstance(reaction, Focus), key
    return replace(frame, focus=reaction)


def test_keys_change_the_window_and_the_chart(frames):
    frame = chosen(frames[-1], 0)
    assert press(frame, "greater_than_sign").focus.ledgers.window == 300.0
    assert press(frame, "less_than_sign").focus.ledgers.window == 15.0
    assert ledgers.press(press(frame, "less_than_sign"), "less_than_sign", 140, 40) is None
    wide = press(press(frame, "greater_than_sign"), "greater_than_sign")
    assert wide.focus.ledgers.window == 900.0
    assert ledgers.press(wide, "greater_than_sign", 140, 40) is None
    assert press(frame, "down").focus.ledgers.chart == 1
    assert press(frame, "up").focus.ledgers.chart == 0
    assert press(frame, "end").focus.ledgers.chart == len(measures.CHARTS) - 1
    assert press(press(frame, "end"), "down").focus.ledgers.chart == len(measures.CHARTS) - 1
    assert press(frame, "enter").focus.inspecting
    for key in ("left", "right", "comma", "full_stop", "x"):
        assert ledgers.press(frame, key, 140, 40) is None


@pytest.mark.parametrize("size", [(140, 40), (80, 24), (40, 18), (24, 6), (100, 12)])
def test_a_click_chooses_the_chart_of_its_row(frames, size):
    frame = chosen(frames[-1], 7)
    shown = lines_of(frame, *size)
    marked = [y for y, line in enumerate(shown) if line[1] == UNICODE.right]
    assert len(marked) == 1
    assert shown[marked[0]][2:].startswith(NAMES[7])
    large = size[1] - 2 >= len(NAMES) + ledgers.LARGE_ROWS  # its first line is the chart's name, no row of the list
    listed = {y: name for y, line in enumerate(shown) for name in NAMES if line[2:].startswith(name) and y > large}
    assert listed
    for y, name in listed.items():
        reaction = ledgers.point(frame, 3, y, *size)
        assert NAMES[reaction.ledgers.chart] == name
    assert ledgers.point(frame, 3, 0, *size) is None
    assert ledgers.wheel(frame, 3, 3, False, *size).ledgers.chart == 8


@pytest.mark.parametrize("look", [LOOK, Look(ASCII)])
def test_every_size_fits(frames, look):
    blank = Frame(Status(Link("live")), None, Focus(panel="ledgers"))
    for shown in (chosen(frames[-1], 5), chosen(frames[0], 0), chosen(frames[-1], 9, 900.0), blank):
        for width in (24, 31, 40, 60, 80, 95, 98, 130, 400):
            for height in (5, 8, 12, 18, 24, 40, 100):
                for name in ("ledgers", "speed", "waste"):
                    lines = scene.panel(name, shown, width, height, look)
                    assert len(lines) == height
                    assert {length(line) for line in lines} == {width}, (name, width, height)
                    if look.glyphs.ascii:
                        assert all(text_of(line).isascii() for line in lines)


@pytest.mark.parametrize("theme", THEMES)
def test_every_theme_has_the_roles(frames, theme):
    look = Look(theme=THEMES[theme])
    for chart in range(len(measures.CHARTS)):
        for line in scene.panel("ledgers", chosen(frames[-1], chart), 160, 48, look):
            assert all(isinstance(look.style(role), str) for _, role in line)


def test_without_colours_glyphs_tell_the_parts_apart(frames):
    """Bars, two kinds of points, letters of parts, and better and worse are all different characters."""
    for look in (LOOK, Look(ASCII)):
        glyphs = look.glyphs
        marks = [glyphs.bars[-1], glyphs.down, glyphs.live, glyphs.switch, glyphs.right, *measures.LETTERS]
        assert len(set(marks)) == len(marks)
        assert glyphs.taken != glyphs.released
        assert not {glyphs.down, glyphs.live, glyphs.switch} & set(glyphs.bars)


def test_keys_are_told_for_the_help():
    assert {"up down", "< >", "enter"} <= {key.keys for key in ledgers.KEYS}
