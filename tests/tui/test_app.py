"""Keys, frames and pauses of the running app, over an engine that plays a recording and notes what it is asked."""

from __future__ import annotations

import asyncio

import pytest

from tui import scene
from tui.app import NOTICE_SECONDS, PagedTop
from tui.keys import GLOBAL
from tui.look import Look
from tui.panels.line import text_of
from tui.session import Session
from tui.widgets.panel import Panel
from tui.widgets.too_small import TooSmall


@pytest.mark.parametrize("size", [(80, 24), (160, 48), (40, 12), (64, 20)])
async def test_the_painted_screen_is_the_scene(running, size):
    async with running(size) as screen:
        scene_lines = scene.draw(screen.app.frame(), *size, Look())
        assert screen.painted() == [text_of(line) for line in scene_lines]


@pytest.mark.parametrize(
    ("key", "change", "said"),
    [
        ("m", {"batching": "static"}, "batching is static from step 18,210"),
        ("a", {"allocation": "reserved"}, "allocation is reserved from step 18,210"),
        ("f", {"reserved_fit": "best"}, "reserved fit is best from step 18,210"),
        ("c", {"prefix_cache": False}, "prefix cache is off from step 18,210"),
        ("s", {"scheduling_policy": "priority"}, "policy is priority from step 18,210"),
        ("w", {"preempt": "recompute"}, "preempt is recompute from step 18,210"),
    ],
)
async def test_a_mode_key_sends_the_next_choice_and_says_what_was_accepted(running, key, change, said):
    async with running() as screen:
        await screen.press(key)
        assert screen.engine.changes == [change]
        assert said in screen.text("footer")
        screen.clock.time += NOTICE_SECONDS
        screen.app.draw_frame()
        assert "quit" in screen.text("footer")


async def test_a_refusal_is_shown_and_nothing_raised(running):
    async with running() as screen:
        screen.engine.refusal = "HTTP 400: allocation cannot be 'reserved'"
        await screen.press("a")
        assert "allocation was not changed: HTTP 400: allocation cannot be 'reserved'" in screen.text("footer")


async def test_a_refused_choice_is_passed_over_by_the_next_press(running):
    async with running() as screen:
        screen.engine.refusal = "HTTP 400: preempt cannot be 'recompute'"
        await screen.press("w")
        assert "preempt was not changed: HTTP 400: preempt cannot be 'recompute'" in screen.text("footer")
        screen.engine.refusal = ""
        await screen.press("w")
        await screen.press("w")
        assert [change["preempt"] for change in screen.engine.changes] == ["recompute", "swap", "auto"]


async def test_an_answer_that_kept_the_old_mode_is_told(running):
    async with running() as screen:
        change = screen.engine.change

        async def keeps(changes):
            return await change({})

        screen.engine.change = keeps
        await screen.press("m")
        assert "the engine kept: batching is continuous" in screen.text("footer")


@pytest.mark.parametrize("key", ["m", "a", "f", "c", "s", "w"])
async def test_readonly_sends_nothing(running, key):
    async with running(readonly=True) as screen:
        assert "readonly" in screen.text("footer")
        await screen.press(key)
        assert screen.engine.changes == []
        assert "readonly: nothing is sent" in screen.text("footer")
        assert screen.text("header").splitlines()[1].startswith(" CONTINUOUS  PAGED  cache on")


@pytest.mark.parametrize("key", ["p", "space"])
async def test_pause_holds_the_view_and_counts_what_came(running, recording, key):
    async with running(items=recording[:-20]) as screen:
        await screen.press(key)
        assert "paused, 0 records since" in screen.text("header")
        before = {name: screen.text(name) for name in ("blocks", "batch", "speed", "sharing")}
        feed = screen.app.session.feed
        for newer in recording[-20:]:
            feed._take(newer)
        screen.app.draw_frame()
        assert "paused, 20 records since" in screen.text("header")
        assert {name: screen.text(name) for name in before} == before
        await screen.press(key)
        assert "live" in screen.text("header")
        assert f"step {newer.seq}" in screen.text("header")
        assert screen.text("batch") != before["batch"]


async def pages(screen):
    """All that help has to say, page by page."""
    out = [screen.text("help")]
    while True:
        await screen.press("J")
        if screen.text("help") == out[-1]:
            return "\n".join(out)
        out.append(screen.text("help"))


@pytest.mark.parametrize("key", ["question_mark", "h", "f1"])
async def test_help_opens_and_closes(running, key):
    async with running() as screen:
        panel = screen.widget("help")
        assert not panel.display
        await screen.press(key)
        assert panel.display
        assert panel.text.splitlines()[1] in "\n".join(screen.painted())
        await screen.press(key)
        assert not panel.display
        await screen.press(key, "escape")
        assert not panel.display


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (160, 48)])
async def test_help_lists_every_key_and_every_glyph_at_every_size(running, size):
    async with running(size) as screen:
        await screen.press("question_mark")
        told = await pages(screen)
        for key in GLOBAL:
            if not key.replays:
                assert f" {key.shown} " in told
        for words in (
            "in block map",
            "the screen",
            "time",
            "the engine",
            "batching: continuous/static",
            "policy: fcfs",
            "preempt: recompute",
            "shared: held by several",
            "copied just now: the copy",
            "fork: goes on from its parent",
            "held: ended, kept",
            "quit",
        ):
            assert all(word in told for word in words.split())  # a narrow screen breaks lines between words


async def test_help_scrolls_both_ways_and_begins_at_its_top_again(running):
    async with running() as screen:
        await screen.press("question_mark")
        top = screen.text("help")
        await screen.press("J")
        below = screen.text("help")
        assert below != top
        await screen.press("J", "K")
        assert screen.text("help") == below
        await screen.press("K", "K")
        assert screen.text("help") == top
        await screen.press("J", "question_mark", "question_mark")
        assert screen.text("help") == top


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_quit(running, key):
    async with running() as screen:
        await screen.pilot.press(key)
        await screen.pilot.pause()
        assert screen.app.return_value == 0


async def test_a_resize_moves_panels_and_says_when_it_is_too_small(running):
    async with running() as screen:
        await screen.pilot.resize_terminal(39, 10)
        await screen.pilot.pause()
        assert screen.app.query_one(TooSmall).display
        assert "paged-top needs 40 x 12" in "\n".join(screen.painted())
        await screen.pilot.resize_terminal(100, 30)
        await screen.pilot.pause()
        screen.app.draw_frame()
        await screen.pilot.pause()
        assert screen.painted() == [text_of(line) for line in scene.draw(screen.app.frame(), 100, 30, Look())]


async def test_a_frame_paints_only_lines_that_changed(running, monkeypatch):
    async with running() as screen:
        painted = []
        monkeypatch.setattr(Panel, "refresh", lambda self, *regions, **_: painted.extend(regions))
        screen.app.draw_frame()
        assert painted == []
        screen.app.say("something new")
        assert [(region.height, region.width) for region in painted] == [(1, 80)]


async def test_keys_before_there_is_an_engine_say_so(played):
    class Silent:
        async def snapshot(self):
            await asyncio.Event().wait()

        async def loads(self):
            await asyncio.Event().wait()

        async def close(self):
            pass

    app = PagedTop(Session(engine=Silent(), clock=lambda: 0.0), Look(), frames=False)
    async with app.run_test(size=(80, 24)) as pilot:
        for key, words in (("m", "no engine to switch yet"), ("p", "nothing to pause yet")):
            await pilot.press(key)
            await pilot.pause()
            assert words in app.query_one("#footer", Panel).text
        assert "connecting" in app.query_one("#header", Panel).text
