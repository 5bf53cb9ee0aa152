"""Load generators on the screen: each figure is the client's word or the history's; none costs a panel its place."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest

from engine.protocol import LiveLoad, LoadLatency, LoadRun
from tui import figures, scene
from tui.engine_api import Missing, NotAnEngine, Unreachable
from tui.focus import Focus
from tui.loads import LoadReader
from tui.look import ASCII, Look
from tui.once import totals_json
from tui.panels import loads
from tui.panels.line import length, text_of
from tui.panels.measures import E2E, TPOT, TTFT
from tui.themes import MONO
from tui.view import Past

LOOK = Look()
RUN = LoadRun(
    label="replay", trace="chat500", elapsed=20.0, share=0.3, sessions=40, sessions_done=12, turns=120, due=50,
    queued=5, sent=45, in_flight=8, completed=34, failed=3, output_tokens=3456, speed=20.0,
    ttft=LoadLatency(0.12, 0.31, 37), ttft_scheduled=LoadLatency(1.5, None, 37), tpot=LoadLatency(0.031, 0.077, 34),
    e2e=LoadLatency(2.25, 8.4, 37), e2e_scheduled=LoadLatency(3.6, None, 37), left=46.0, send_lag=0.0123,
    loop_lag=0.004, cpu_share=0.21, failure="timed out: no complete answer",
)  # fmt: skip
LOAD = LiveLoad("a", 0.4, RUN)


def but(**changes):
    age = changes.pop("age", 0.4)
    return LiveLoad("b", age, msgspec.structs.replace(RUN, **changes))


@pytest.fixture(scope="module")
def shown(recording, fold, frame):
    return replace(frame(fold(recording)), loads=(LOAD,))


def text(frame, width, height, look=LOOK):
    lines = scene.panel("loads", frame, width, height, look)
    assert len(lines) <= height
    assert all(length(line) <= width for line in lines)
    return "\n".join(text_of(line) for line in lines)


def roles(frame, width, height):
    return {text.strip(): role for line in loads.draw(frame, width, height, LOOK) for text, role in line}


def own(frame, elapsed=RUN.elapsed):
    return frame.view.history.window(frame.view.now - elapsed, frame.view.now)


def test_one_line_has_the_wait_before_the_server(shown):
    line = text(shown, 80, 1)
    engine = figures.seconds(TTFT[0].of(own(shown)))
    assert line.startswith(" client replay  37/120 turns  3 failed  TTFT p50 due 1.5 s, ")
    assert f"engine {engine}" in line
    wide = text(shown, 120, 1)
    assert f"due 1.5 s, sent 120 ms, engine {engine}" in wide
    assert "8 in flight" in wide


def test_three_lines_have_both_sides_of_each_latency(shown):
    progress, client, engine = text(shown, 160, 3).splitlines()
    assert progress.startswith(" client replay of chat500  ━━━───────")
    for part in ("30 %", "00:20, 00:46 left", "12/40 sessions", "37/120 turns", "3 failed", "8 in flight"):
        assert part in progress
    assert progress.rstrip().endswith("5 queued  speed 20x  send lag p99 12 ms")
    assert re.findall(r"(\S+) (\S+ m?s), (\S+ m?s|failed)", client) == [
        ("TTFT", "120 ms", "310 ms"),
        ("due", "1.5 s", "failed"),
        ("TPOT", "31 ms", "77 ms"),
        ("E2E", "2.2 s", "8.4 s"),
        ("due", "3.6 s", "failed"),
    ]
    window = own(shown)
    assert engine.startswith(" engine p50, p99 TTFT")
    for name, measures in (("TTFT", TTFT), ("TPOT", TPOT), ("E2E", E2E)):
        p50, _, p99 = (figures.seconds(measure.of(window)) for measure in measures)
        assert f"{name} {p50}, {p99} " in engine
        assert engine.index(f"{name} ") == client.index(f"{name} ")
    assert f"over {figures.seconds(window.observed)} seen" in engine


def test_what_was_seen_of_the_engine_is_told_where_it_is_less_than_the_run(shown):
    seen = own(shown).observed
    whole = replace(shown, loads=(but(elapsed=seen),))
    part = replace(shown, loads=(but(elapsed=seen * 3),))
    assert f"engine {figures.seconds(TTFT[0].of(own(whole, seen)))}  8 in flight" in text(whole, 120, 1)
    assert f" of {figures.seconds(own(part, seen * 3).observed)}  8 in flight" in text(part, 120, 1)


def test_what_is_wrong_is_in_colour(shown):
    assert roles(shown, 160, 3)["3 failed"] == roles(shown, 160, 3)["failed"] == "bad"
    trouble = replace(shown, loads=(but(bottleneck=True, stopping="errors=5%", failed=0, age=4.2),))
    found = roles(trouble, 160, 3)
    assert found["no word for 4.2 s"] == found["too slow itself"] == found["stopping: errors=5%"] == "warn"
    assert "none failed" not in text(trouble, 80, 1)
    assert "left" not in text(trouble, 160, 3)
    fine = replace(shown, loads=(but(failed=0),))
    assert "none failed" in text(fine, 160, 3)


def test_what_was_not_measured_is_a_dash(shown):
    nothing = LoadLatency()
    run = but(ttft=nothing, ttft_scheduled=nothing, tpot=nothing, e2e=nothing, e2e_scheduled=nothing, send_lag=None)
    drawn = text(replace(shown, loads=(run,)), 160, 3)
    assert "TTFT —, —" in drawn
    assert "send lag" not in drawn


def test_of_several_each_has_a_line_and_those_without_are_counted(shown):
    many = replace(shown, loads=(LOAD, but(label="rate 4"), but(label="B"), but(label="C")))
    lines = text(many, 100, 3).splitlines()
    assert [line.split()[1] for line in lines] == ["replay", "rate", "B"]
    assert lines[-1].endswith("  +1 more")
    assert text(many, 80, 1).endswith("  +3 more")
    assert loads.rows(many, 160, 45) == (3, 2, 1)
    assert loads.rows(many, 80, 21) == (2, 1)


def test_while_paused_the_engine_is_of_another_moment(shown):
    past = replace(shown, status=replace(shown.status, past=Past(1, 9, 5, 1.0)))
    for height in (1, 3):
        drawn = text(past, 160, height)
        assert drawn.startswith(" client at the pause replay")
        assert "engine" not in drawn


def test_names_from_outside_are_one_cell_each(shown):
    bad = replace(shown, loads=(but(label="\x1b[31mr\u4e16", trace="\u202e", failure="\x07", stopping="\n"),))
    for height in (1, 3):
        assert text(bad, 160, height).isprintable() or "\n" in text(bad, 160, height)
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e\u4e16]", text(bad, 160, 3))
    assert text(bad, 160, 3, Look(ASCII, MONO)).isascii()


def panels(places):
    return {place.name for place in places} - {"loads", "scrub", "header", "footer"}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_they_have_a_place_at_every_size(shown, count):
    busy = replace(shown, loads=(LOAD,) * count)
    past = replace(busy, status=replace(busy.status, past=Past(1, 9, 5, 1.0)))
    for width in range(40, 210, 17):
        for height in range(12, 60):
            for frame in (busy, past):
                places = scene.arrange(width, height, frame)
                spans = sorted({(place.y, place.y + place.height) for place in places if place.x == 0})
                assert spans[0][0] == 0
                assert spans[-1][1] == height
                assert all(one[1] == other[0] for one, other in pairwise(spans))
            assert "loads" in {place.name for place in scene.arrange(width, height, busy)}


@pytest.mark.parametrize("size", [(80, 23), (80, 24), (80, 40), (120, 40), (160, 48), (200, 60)])
def test_they_cost_no_panel_its_place(shown, size):
    for status in (shown.status, replace(shown.status, past=Past(1, 9, 5, 1.0))):
        busy = replace(shown, status=status)
        assert panels(scene.arrange(*size, busy)) == panels(scene.arrange(*size, replace(busy, loads=())))


def test_the_control_panel_has_all_that_was_told(shown):
    frame = replace(shown, focus=Focus(panel="control", expanded=True), loads=(LOAD, but(label="rate 4")))
    drawn = "\n".join(text_of(line) for line in scene.panel("control", frame, 100, 60, LOOK))
    assert "load generators  as they measured it themselves" in drawn
    assert drawn.count(" client replay") == drawn.count(" client rate 4") == 1
    for part in (
        "50 due",
        "45 sent",
        "34 completed",
        "3,456 output tokens",
        "21 % of a core",
        "5 queued",
        "its event loop late p99 4.0 ms",
        "timed out: no complete answer",
        "client p50, p99",
        "engine p50, p99",
    ):
        assert drawn.count(part) == 2, part
    alone = "\n".join(text_of(line) for line in scene.panel("control", replace(frame, loads=()), 100, 60, LOOK))
    assert "load generators" not in alone


# Asking


class Teller:
    """Answers with what is next; an exception is raised."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = 0

    async def loads(self):
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_the_reader_keeps_the_last_word_and_none_of_who_is_away():
    reader = LoadReader(Teller((LOAD,), Unreachable("gone"), (LOAD,), NotAnEngine("<html>"), ()))
    for expected in ((LOAD,), (), (LOAD,), (), ()):
        await reader.read()
        assert reader.loads == expected


async def test_an_engine_that_takes_no_word_is_asked_once(monkeypatch):
    monkeypatch.setattr("tui.loads.EVERY", 0.001)
    teller = Teller((LOAD,), (), Missing("this engine does not tell loads"), (LOAD,))
    reader = LoadReader(teller)
    await asyncio.wait_for(reader.run(), 20)
    assert (teller.asked, reader.loads) == (3, ())


async def test_the_app_shows_them_as_long_as_they_are_there(running):
    async with running((120, 40)) as screen:
        app = screen.app
        assert not app.query_one("#loads").display
        screen.engine.told = (LOAD,)
        await app.session.loads.read()
        app.draw_frame()
        await screen.settle()
        painted = "\n".join(screen.painted())
        assert " client replay of chat500" in painted
        assert " engine p50, p99 TTFT" in painted
        await screen.press("space")
        screen.engine.told = ()
        await app.session.loads.read()
        app.draw_frame()
        await screen.settle()
        assert " client at the pause replay" in "\n".join(screen.painted())
        await screen.press("space")
        assert " client" not in "\n".join(screen.painted())
        assert not app.query_one("#loads").display


def test_json_has_them_beside_the_totals(recording):
    told = json.loads(totals_json(recording[0], (LOAD,)))
    assert msgspec.convert(told["loads"], tuple[LiveLoad, ...]) == (LOAD,)
    assert "loads" not in json.loads(totals_json(recording[0]))
