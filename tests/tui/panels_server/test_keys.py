"""Keys and clicks on a server's panels: each makes a new focus, or says why not."""

from __future__ import annotations

import re

import pytest

from tests.tui.panels_server import watched
from tui import scene
from tui.commands import Key, Say
from tui.focus import Focus, LedgersFocus, ServerFocus
from tui.look import Look
from tui.panels import help as help_of
from tui.panels.line import text_of
from tui.panels.server import modules
from tui.panels.server.choice import KEYS
from tui.panels.server.plots import CHARTS

LOOK = Look()
SIZE = (100, 30)


def press(name, frame, key, size=SIZE):
    return modules.MODULES[name].press(frame, key, *size)


def rows(name, frame, size=SIZE):
    return [text_of(line) for line in scene.panel(name, frame, *size, LOOK)]


@pytest.mark.parametrize("name", list(modules.MODULES))
def test_every_panel_tells_its_keys_and_chooses_window_and_engine(name):
    module = modules.MODULES[name]
    assert all(isinstance(key, Key) for key in module.KEYS)
    assert set(KEYS) <= set(module.KEYS)
    frame = watched.frame(watched.server("vllm", engines=3, count=4), Focus(panel=name))
    longer = press(name, frame, "greater_than_sign")
    assert longer.ledgers.window == 300.0
    shorter = press(name, frame, "less_than_sign")
    assert shorter.ledgers.window == 15.0
    least = watched.frame(frame.server, Focus(ledgers=LedgersFocus(window=15.0)))
    assert isinstance(press(name, least, "less_than_sign"), Say)
    focus, chosen = frame.focus, []
    for _ in range(4):
        focus = press(name, watched.frame(frame.server, focus), "v")
        chosen.append(focus.server.engine)
    assert chosen == [("m", "0"), ("m", "1"), ("m", "2"), None]
    assert press(name, frame, "V").server.engine == ("m", "2")
    alone = watched.frame(watched.server("vllm", count=2))
    assert isinstance(press(name, alone, "v"), Say)


def test_a_chart_is_chosen_by_keys_and_clicks():
    frame = watched.frame(watched.server("vllm"), Focus(panel="ledgers"))
    down = press("ledgers", frame, "down")
    assert down.ledgers.chart == 1
    assert press("ledgers", watched.frame(frame.server, down), "up").ledgers.chart == 0
    assert press("ledgers", frame, "end").ledgers.chart == len(CHARTS) - 1
    assert press("ledgers", frame, "up").ledgers.chart == 0
    shown = rows("ledgers", frame)
    for at, chart in enumerate(CHARTS):
        y = max(row for row, line in enumerate(shown) if line[2:].startswith(f"{chart.name} "))
        focus = modules.MODULES["ledgers"].point(frame, 10, y, *SIZE)
        assert focus.ledgers.chart == at
        large = rows("ledgers", watched.frame(frame.server, focus))
        assert chart.name in large[1]
    assert modules.MODULES["ledgers"].point(frame, 10, 1, *SIZE) is None
    assert press("ledgers", frame, "enter").inspecting


def test_slots_are_walked_and_inspected():
    view = watched.server("llama.cpp", slots=watched.SLOTS, count=3)
    for name in ("batch", "requests"):
        frame = watched.frame(view, Focus(panel=name))
        first = press(name, frame, "down")
        assert first.server.slot == 0
        second = press(name, watched.frame(view, first), "down")
        assert second.server.slot == 1
        assert press(name, watched.frame(view, second), "end").server.slot == 2
        opened = press(name, watched.frame(view, second), "enter")
        assert opened.inspecting
        assert opened.server.slot == 1
        title, lines = modules.MODULES[name].detail(watched.frame(view, first), 60, LOOK)
        shown = "\n".join(text_of(line) for line in lines)
        assert title == "slot 0"
        assert all(figure in shown for figure in ("1,200", "800", "300", "4,096"))
        assert modules.MODULES[name].wheel(frame, 5, 5, False, *SIZE).server.slot == 0


def test_where_there_is_nothing_to_walk_it_is_said():
    frame = watched.frame(watched.server("vllm", count=3))
    assert "KV events" in press("blocks", frame, "down").text
    assert "KV events" in press("sharing", frame, "down").text
    assert "who was in a batch" in press("batch", frame, "left").text
    assert "no single requests" in press("requests", frame, "x").text
    assert "nothing can be switched" in press("control", frame, "plus").text
    ours = watched.frame(watched.server("paged-engine", count=3))
    assert "step stream" in press("control", ours, "plus").text
    assert press("blocks", frame, "z") is None


def test_inspectors_open_on_every_panel():
    view = watched.server("vllm", engines=2, count=3, kv=(watched.heard(watched.forest()),))
    for name in modules.MODULES:
        frame = watched.frame(view, Focus(panel=name, inspecting=True))
        shown = rows("inspect", frame, (70, 20))
        assert len(shown) == 20
        assert "esc closes" in shown[0] or "more lines" in shown[0]
        assert any(len(line.strip("│ ")) > 8 for line in shown[1:-1]), name
    scrolled = watched.frame(view, Focus(panel="control", inspecting=True, inspect_top=3))
    assert rows("inspect", scrolled, (70, 8))[1] == rows("inspect", frame, (70, 8))[4]


def test_an_engine_that_went_is_all_of_them():
    view = watched.server("vllm", engines=2, count=3)
    frame = watched.frame(view, Focus(server=ServerFocus(engine=("m", "9"))))
    assert press("blocks", frame, "v").server.engine == ("m", "0")


@pytest.mark.parametrize("name", ["batch", "requests"])
@pytest.mark.parametrize("size", [(100, 30), (100, 14), (80, 9)])
def test_slots_are_clicked_and_again_inspected(name, size):
    view = watched.server("llama.cpp", slots=watched.SLOTS, count=3)
    frame = watched.frame(view, Focus(panel=name))
    shown = rows(name, frame, size)
    head = next(at for at, line in enumerate(shown) if "slot state" in line)
    clicked = 0
    for y, line in enumerate(shown):
        focus = modules.MODULES[name].point(frame, 10, y, *size)
        cells = line.strip("│").split()
        if y > head and cells[1:2] in (["busy"], ["idle"]):
            assert focus.server.slot == int(cells[0])
            clicked += 1
            again = modules.MODULES[name].point(watched.frame(view, focus), 10, y, *size)
            assert again is not None
        else:
            assert focus is None
    assert clicked
    chosen = watched.frame(view, Focus(panel=name, server=ServerFocus(slot=0)))
    y = next(at for at, line in enumerate(rows(name, chosen, size)) if re.search(r" 0 busy ", line))
    assert modules.MODULES[name].point(chosen, 10, y, *size).inspecting


def test_a_row_of_the_tree_is_clicked_and_again_inspected():
    view = watched.server("vllm", count=3, kv=(watched.heard(watched.forest()),))
    frame = watched.frame(view, Focus(panel="sharing"))
    y = next(at for at, line in enumerate(rows("sharing", frame)) if "prefix 2" in line)
    focus = modules.MODULES["sharing"].point(frame, 20, y, *SIZE)
    assert not focus.inspecting
    assert modules.MODULES["sharing"].point(watched.frame(view, focus), 20, y, *SIZE).inspecting


def test_the_help_tells_what_the_map_by_prefix_means():
    def told(view):
        return " ".join(text_of(line) for line in help_of.lines(watched.frame(view), 78, LOOK))

    assert "the map by prefix" not in told(watched.server("vllm", count=3))
    with_events = told(watched.server("vllm", count=3, kv=(watched.heard(watched.forest()),)))
    assert "what more than 3/4 of all blocks go on from" in with_events
    assert "marks the others, where they are not 0" in re.sub(r"\s+", " ", with_events)
