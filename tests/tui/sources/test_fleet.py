"""The table of a fleet: its totals are sums made by hand, and what does not tell now is in none of them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.servers.pages import EngineFigures
from tests.tui.sources.fleets import BEGIN, NAMES, Clock, fleet, hear, named
from tui import scene
from tui.focus import FleetFocus, Focus
from tui.look import ASCII, Look
from tui.panels import fleet as panel
from tui.panels import fleet_columns as columns
from tui.panels.fleet_columns import BY_NAME, COLUMNS, SORTS, fitting, ordered
from tui.panels.line import length, text_of
from tui.sources import fleet as figures
from tui.sources.items import Failed
from tui.sources.source import Source
from tui.sources.view import FleetView
from tui.view import Frame, Link, Status

WIDE = 260


def frame_of(view, **focus):
    return Frame(Status(Link("live")), None, Focus().but(panel="fleet", **focus), fleet=view)


def lines(view, width=WIDE, height=20, look=None, **focus):
    return [text_of(line) for line in scene.draw(frame_of(view, **focus), width, height, look or Look())]


def cells(view, row, width=WIDE):
    """What a row has in each column: of a server by its name, `total`, or `told` of the line below."""
    table = lines(view, width)
    if row in ("total", "told"):
        at = next(index for index, line in enumerate(table) if line.startswith("│ total"))
        line = table[at + (row == "told")]
    else:
        line = next(line for line in table if line[2:].startswith(row[:8]))
    shown, _ = fitting(width - 2, max(len(server.name) for server in view.servers))
    found, start = {}, 2
    for column, cells in shown:
        found[column.name] = line[start : start + cells].strip()
        start += cells + 1
    return found


@pytest.fixture(scope="module")
def view():
    return fleet()


def test_totals_are_the_sums_of_those_that_tell_now(view):
    rows = figures.rows(view, 60.0)
    totals = figures.totals(rows)
    assert [row.tells for row in rows] == [True, True, True, False, False]
    assert totals.gauge("running") == 6 + 3 + 1
    assert totals.gauge("waiting") == 2 + 0 + 4
    assert totals.gauge("kv_capacity") == 16_000 + 48_000
    assert totals.gauge("kv_usage") == pytest.approx((0.5 * 16_000 + 0.9 * 48_000) / 64_000)
    assert totals.hit_rate == pytest.approx((60 * 80 + 30 * 100) / (60 * 100 + 30 * 400))
    assert totals.sum(lambda part: figures.pace(part, "generation_tokens")) == pytest.approx(
        (60 * 20 + 30 * 40 + 15 * 10) / 30
    )
    assert totals.sum(lambda part: part.rate("requests")) == pytest.approx((60 + 30 + 15) / 30)
    assert (totals.at_most("ttft", 50), totals.at_most("ttft", 99)) == (0.05, 0.5)  # 60 of 0.04 s, 30 of 0.3 s


def test_the_screen_has_those_totals_and_of_how_many_they_are(view):
    total, told = cells(view, "total"), cells(view, "told")
    assert total["running"] == "10"
    assert total["waiting"] == "6"
    assert total["KV"] == "80 %"
    assert total["capacity"] == "64,000"
    assert total["hit rate"] == "43 %"
    assert total["out tok/s"] == "85"
    assert total["in tok/s"] == "605"
    assert total["req/s"] == "3.5"
    assert (total["TTFT p50"], total["TTFT p99"]) == ("≤ 50 ms", "≤ 500 ms")
    assert total["preemptions"] == "3"
    assert told["running"] == ""
    assert told["KV"] == told["capacity"] == told["hit rate"] == told["TTFT p99"] == "of 2"
    assert any("of 3 of 5 that tell now" in line for line in lines(view))


def test_a_row_has_what_its_server_tells_and_a_dash_for_the_rest(view):
    alpha, gamma, last = cells(view, "alpha"), cells(view, "gamma"), cells(view, NAMES[4])
    assert (alpha["kind"], alpha["model"], alpha["state"]) == ("vLLM", "model-7b", "live")
    assert (alpha["KV"], alpha["hit rate"], alpha["out tok/s"]) == ("50 %", "80 %", "40")
    assert (gamma["KV"], gamma["capacity"], gamma["hit rate"], gamma["TTFT p99"]) == ("—",) * 4
    assert gamma["running"] == "1"
    assert {last[name] for name in ("running", "waiting", "KV", "out tok/s", "TTFT p50")} == {"—"}
    assert last["state"] == "foreign"


def test_a_server_that_does_not_tell_now_is_dim_with_its_age(view):
    drawn = scene.draw(frame_of(view), WIDE, 20, Look())
    row = next(line for line in drawn if text_of(line)[2:].startswith("delta"))
    assert "failing 10 s" in text_of(row)
    roles = {role for text, role in row if text.strip() and text.strip() not in ("│", "failing 10 s")}
    assert roles <= {"dim", "border"}
    assert ("bad", True) in {(role, "failing" in text) for text, role in row}


def test_kv_has_no_total_where_one_capacity_is_not_known():
    clock = Clock()
    sources = [Source(f"s{at}", f"http://127.0.0.1:{at}", clock, at) for at in (0, 1)]
    for source in sources:
        named(source, "vllm")
        engine = EngineFigures(running=1, kv_usage=0.5)
        hear(source, "vllm", engine, BEGIN, _without_capacity if source.number else str)
        hear(source, "vllm", engine, BEGIN + 1, _without_capacity if source.number else str)
    clock.time = BEGIN + 1
    view = FleetView(tuple(source.view() for source in sources), clock.time)
    assert [cells(view, name)["KV"] for name in ("s0", "s1")] == ["50 %", "50 %"]
    total = cells(view, "total")
    assert total["KV"] == "—"
    assert total["capacity"] == "16,000"
    assert cells(view, "told")["capacity"] == "of 1"


def _without_capacity(text):
    return "".join(line for line in text.splitlines(keepends=True) if "cache_config_info" not in line)


def test_what_is_more_than_the_last_bound_is_said_to_be_more():
    clock = Clock()
    source = Source("s", "http://127.0.0.1:1", clock, 0)
    engine = EngineFigures()
    hear(source, "vllm", engine, BEGIN)
    engine.serve(10, ttft=9.0)
    clock.time = BEGIN + 10
    hear(source, "vllm", engine, clock.time)
    view = FleetView((source.view(),), clock.time)
    assert cells(view, "s")["TTFT p99"] == "> 5.0 s"
    assert cells(view, "total")["TTFT p50"] == "> 5.0 s"


def test_after_one_look_there_are_gauges_and_no_rates():
    clock = Clock()
    source = Source("s", "http://127.0.0.1:1", clock, 0)
    hear(source, "vllm", EngineFigures(running=4, generation_tokens=1e6), BEGIN)
    row = cells(FleetView((source.view(),), clock.time), "s")
    assert (row["running"], row["out tok/s"], row["req/s"], row["hit rate"]) == ("4", "—", "—", "—")


def test_figures_are_reckoned_once_for_a_look(view, monkeypatch):
    lines(view)
    asked = []
    monkeypatch.setattr("servers.looks.Looks.measure", lambda looks, seconds, engine=None: asked.append(looks) or None)
    again = replace(view, now=view.now + 1, servers=tuple(replace(one, now=one.now + 1) for one in view.servers))
    for _ in range(3):
        lines(view)
        lines(again)
    assert asked == []
    lines(fleet())
    assert len(asked) == len(NAMES)


@pytest.mark.parametrize("name", SORTS)
def test_every_column_sorts_both_ways_and_what_is_not_told_is_last(view, name):
    rows = figures.rows(view, 60.0)
    falling, rising = (
        ordered(rows, replace(Focus().fleet, sort=name, descending=descending)) for descending in (True, False)
    )
    assert {row.name for row in falling} == {row.name for row in rising} == set(NAMES)
    if name == "as named":
        assert [row.name for row in rising] == list(NAMES)
        assert falling == rising[::-1]
    elif name == "state":
        assert [row.server.link.phase for row in rising] == ["failing", "foreign", "live", "live", "live"]
    else:
        column = BY_NAME[name]
        told = [row for row in rows if column.value(row) is not None]
        if not column.words and name != "restarts":
            told = [row for row in told if row.tells]
        untold = {row.name for row in rows} - {row.name for row in told}
        assert {row.name for row in rising[len(told) :]} == {row.name for row in falling[len(told) :]} == untold
        values = [column.value(row) for row in rising[: len(told)]]
        assert values == sorted(values)
        assert [column.value(row) for row in falling[: len(told)]] == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("", NAMES),
        ("ALPHA", ("alpha",)),
        ("vllm", ("alpha", "delta")),
        ("70b", ("delta",)),
        ("foreign", NAMES[4:]),
        ("live", NAMES[:3]),
        ("nobody", ()),
    ],
)
def test_a_filter_finds_names_kinds_models_and_states(view, wanted, names):
    focus = replace(Focus().fleet, filter=wanted)
    assert tuple(row.name for row in ordered(figures.rows(view, 60.0), focus)) == names
    text = "\n".join(lines(view, fleet=focus))
    if wanted:
        assert f'with "{wanted}", 5 in all' in text
    if not names:
        assert 'no server has "nobody": / changes that' in text
    if wanted == "vllm":
        assert "of 1 of 2 that tell now" in text  # a total is of what the filter shows


def test_columns_give_way_by_their_importance():
    seen = set()
    for inner in range(38, 300):
        shown, plot = fitting(inner)
        names = {column.name for column, _ in shown}
        assert seen <= names
        seen = names
        places = sorted(column.place for column in COLUMNS if column.name not in names)
        assert not places or max(column.place for column, _ in shown) < places[0]
        assert 1 + sum(width + 1 for _, width in shown) + (plot + 1 if plot else 0) <= inner + 1
    assert {column.name for column, _ in fitting(38)[0]} == {"name", "state", "running", "KV"}
    assert seen == set(BY_NAME)
    assert plot == columns.MOST_PLOT


@pytest.mark.parametrize("width", [40, 41, 60, 80, 100, 120, 160, 200, 260, 400])
@pytest.mark.parametrize("height", [12, 13, 24, 60])
def test_it_fills_every_screen(view, width, height):
    for look in (Look(), Look(ASCII)):
        drawn = scene.draw(frame_of(view), width, height, look)
        assert [length(line) for line in drawn] == [width] * height
        text = [text_of(line) for line in drawn]
        if look.glyphs.ascii:
            assert all(line.isascii() for line in text)
            assert not any("?" in line.replace("? help", "") for line in text)
        assert any("alpha" in line for line in text)
        assert any(line.startswith(("│ total", "| total")) for line in text)


def test_a_fleet_larger_than_the_screen_follows_its_cursor():
    clock = Clock()
    sources = [Source(f"server-{at:03}", f"http://127.0.0.1:{at}", clock, at) for at in range(100)]
    for source in sources:
        source.take(Failed(source.number, BEGIN, "failing", "nothing answers there"))
    view = FleetView(tuple(source.view() for source in sources), clock.time)
    frame = frame_of(view)
    for key, name in (("end", "server-099"), ("pageup", "server-086"), ("home", "server-000"), ("down", "server-001")):
        frame = replace(frame, focus=panel.press(frame, key, 80, 20))
        assert frame.focus.fleet.row == name
        drawn = [text_of(line) for line in panel.draw(frame, 80, 20, Look())]
        assert sum("server-" in line for line in drawn) == 14
        assert any(line.startswith(f"│▸{name}") for line in drawn)
    assert any("of 0 of 100" in line for line in drawn)


def test_where_nobody_tells_there_are_dashes():
    clock = Clock()
    source = Source("s", "http://127.0.0.1:1", clock, 0)
    view = FleetView((source.view(),), clock.time)
    assert {cells(view, "total")[name] for name in ("running", "KV", "out tok/s", "TTFT p50")} == {"—"}
    assert "finding" in "\n".join(lines(view))


def test_the_header_says_how_many_are_how(view):
    assert "● 3 live  ○ 1 foreign  ○ 1 failing" in lines(view)[0]
    assert "of 3 of 5   running 10   waiting 6   generated 85 tok/s   models 2" in lines(view)[1]


def test_the_server_under_the_cursor_tells_when_its_tokens_are_counted(view):
    """A rate of what is counted at a request's end is of requests that ended, not of now."""
    for name, kind in (("alpha", "vllm"), ("gamma", "tgi")):
        focus = FleetFocus(row=name)
        shown = "\n".join(lines(view, fleet=focus))
        _, detail = panel.detail(frame_of(view, fleet=focus), 60, Look())
        for said in (shown, "\n".join(text_of(line) for line in detail)):
            assert ("counted when a request ends" in said) == (kind == "tgi"), name


def test_what_has_no_column_is_told_of_the_server_under_the_cursor_where_lines_are_left(view):
    shown = lines(view, 80, 24, fleet=FleetFocus(row="alpha"))
    columns_shown, _ = fitting(78, max(len(server.name) for server in view.servers))
    (row, *_) = figures.rows(view, 60.0)
    for column in COLUMNS:
        if column not in [one for one, _ in columns_shown]:
            said = f" {column.head} +{re.escape(column.text(column.value(row)))} "
            assert any(re.search(said, line) for line in shown), column.name
    assert not any("KV tokens" in line for line in lines(view, 80, 14, fleet=FleetFocus(row="alpha")))
    old = scene.draw(frame_of(view, fleet=FleetFocus(row="delta")), 80, 24, Look())
    at = next(at for at, line in enumerate(old) if "KV tokens" in text_of(line))
    assert {role for line in old[at : at + 3] for text, role in line if text.strip(" │")} == {"dim"}  # it tells no more


# Counts of requests and tokens, seconds of a histogram's bucket: from what is usual to the most that is believed.
HUGE = (0.0, 9.949, 99.6, 999.6, 99_002.0, 999_499.0, 999_950.0, 1_234_567.0, 98_765_432_109.0, 9.996e14, 1e30)


@pytest.mark.parametrize("column", [column for column in COLUMNS if not column.words], ids=lambda column: column.name)
def test_no_number_is_cut_whatever_it_is(column):
    for value in (*HUGE, *(1000 * value for value in HUGE), *(-value for value in HUGE if column.name[-3:-2] == "p")):
        text = column.fitted(value, column.width)
        assert len(text) <= column.width, text
        assert text == column.text(value) or len(column.text(value)) > column.width
    assert column.fitted(None, column.width) == "—"


def test_numbers_without_room_are_rounded():
    shown = {value: BY_NAME["running"].fitted(value, 5) for value in HUGE}
    assert list(shown.values()) == ["0", "10", "100", "1,000", "99k", "999k", "1.0M", "1.2M", "99G", "1e+15", "1e+30"]
    bounds = [BY_NAME["TTFT p99"].fitted(value, 9) for value in (3_600.0, 36_000_000.0, 36_001_000.0, -36_001_000.0)]
    assert bounds == ["≤ 1:00:00", "≤ 10k h", "≤ 11k h", "> 10k h"]


@pytest.mark.parametrize("width", range(40, 261, 11))
def test_a_fleet_of_huge_figures_shows_none_of_them_cut(width):
    clock = Clock()
    sources = [Source(f"s-{place}", "http://127.0.0.1:1", clock, place) for place in range(120)]
    engine = EngineFigures(model="m", running=99_002, waiting=123_456, kv_usage=0.5, kv_blocks=10_000_000)
    few = EngineFigures(running=1)
    for step in range(2):
        clock.time = BEGIN + step
        for source in sources[:119]:
            hear(source, "tgi" if source.number > 109 else "vllm", few if source.number > 109 else engine, clock.time)
        engine.serve(500_000_000, prompt=1000, generated=2000, cached=800)
        engine.preemptions += 12_345_678
    view = FleetView(tuple(source.view() for source in sources), clock.time)
    rows = figures.rows(view, 60.0)
    totals = figures.totals(rows)
    shown = {name: text for name, text in cells(view, "s-0 ", width).items() if not BY_NAME[name].words}
    sums = {name: text for name, text in cells(view, "total", width).items() if not BY_NAME[name].words}
    for name, text in shown.items():
        assert text == BY_NAME[name].fitted(BY_NAME[name].value(rows[0]), BY_NAME[name].width)
        assert sums[name] == BY_NAME[name].fitted(BY_NAME[name].total(totals), BY_NAME[name].width)
    if "running" in shown:
        assert (shown["running"], sums["running"]) == ("99k", "11M")
    if "KV" in shown:
        assert cells(view, "told", width)["KV"] == "of 110"
    if "waiting" in shown:
        assert shown["waiting"] == "123k"
    assert any(" of 119 of 120" in line or " 119/120" in line for line in lines(view, width))
