"""What the screen is attached to: real servers on loopback that come, go, hang and become others, and a real engine."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tests.servers.pages import EngineFigures
from tests.servers.stand_in import StandIn
from tui.app import PagedTop
from tui.child import Child, command
from tui.look import Look
from tui.sources.attach import Attach
from tui.sources.player import SourcePlayer
from tui.sources.poller import Poller
from tui.sources.targets import KvEndpoint, target

EVERY = 0.1
PATIENCE = 30.0  # seconds, for what comes in a second


class App:
    """The app over what it is attached to; `until` draws until something is so."""

    def __init__(self, app, pilot):
        self.app, self.pilot = app, pilot

    @property
    def attach(self):
        return self.app.attached

    def text(self, name):
        return self.app.query_one(f"#{name}").text

    def row(self, name):
        lines = self.text("fleet").splitlines()
        return next((line for line in lines if line[2:].startswith(name)), "")

    def source(self, name):
        return next(source for source in self.attach._servers.sources if source.name == name)

    async def until(self, true, what=""):
        async with asyncio.timeout(PATIENCE):
            while True:
                self.app.draw_frame()
                if true():
                    return
                await asyncio.sleep(0.02)

    async def press(self, *keys):
        for key in keys:
            await self.app.press(key)
        self.app.draw_frame()

    @property
    def kind(self):
        return self.app.shown.kind


@asynccontextmanager
async def showing(attached, **options):
    app = PagedTop(attached, Look(), frames=False, **options)
    async with app.run_test(size=(160, 30)) as pilot:
        try:
            yield App(app, pilot)
        finally:
            await attached.close()


@asynccontextmanager
async def serving(*stand_ins):
    for one in stand_ins:
        await one.start()
    try:
        yield stand_ins
    finally:
        for one in stand_ins:
            await one.stop()


def fleet(*stand_ins, **options):
    return Attach([target(one.url, f"s{at}") for at, one in enumerate(stand_ins)], every=EVERY, **options)


def alone(one, **options):
    return Attach([target(one.url)], every=EVERY, steps_first=True, **options)


@asynccontextmanager
async def engine(port=0):
    """A real one of `tiny`; gives its address."""
    serve = ["serve", "--port", str(port), "--model", "tiny", "--kv-memory", "1MiB"]
    server = await Child.start([*command("paged-engine", "engine.cli"), *serve])
    try:
        async with asyncio.timeout(60):
            while not any("serving tiny" in line for line in server.output):
                assert server.exit_code is None, server.output
                await asyncio.sleep(0.02)
        yield next(re.search(r"http://\S+", line)[0] for line in server.output if "serving tiny" in line)
    finally:
        await server.stop()


async def test_a_server_that_is_no_paged_engine_is_shown_by_its_metrics():
    async with serving(StandIn("vllm", [EngineFigures(running=7)])) as (server,), showing(alone(server)) as screen:
        assert screen.kind == "steps"
        await screen.until(lambda: screen.kind == "server" and "● live" in screen.text("header"))
        assert "/engine/snapshot" in server.asked
        assert "vLLM" in screen.text("header")
        assert "running 7" in screen.text("header")
        await screen.until(lambda: screen.attach._steps is None)  # it is not asked for steps any more
        steps = server.asked.count("/engine/snapshot")
        looks = server.metrics_asked
        await screen.until(lambda: server.metrics_asked >= looks + 3)
        assert server.asked.count("/engine/snapshot") == steps
        assert "esc" not in screen.text("footer")
        await screen.press("escape")
        assert screen.kind == "server"


async def test_what_answers_as_no_server_that_is_known_is_told_in_the_finders_words():
    server = StandIn("sglang")
    server.mode = "none"
    async with serving(server), showing(alone(server)) as screen:
        await screen.until(lambda: "SGLang without metrics: start it with --enable-metrics" in screen.text("header"))


async def test_nothing_that_answers_is_waited_for_as_a_paged_engine_is():
    server = StandIn("vllm")
    async with serving(server):
        pass
    async with showing(alone(server)) as screen:
        await screen.until(lambda: "nothing answers there" in screen.text("header"))
        assert screen.kind == "steps"
        assert screen.attach._servers is None
        await server.start()
        try:
            await screen.until(lambda: screen.kind == "server")
        finally:
            await server.stop()


async def test_a_paged_engine_that_comes_in_a_servers_place_is_shown_by_its_steps(monkeypatch):
    monkeypatch.setattr("tui.feed.BACK_OFF", (EVERY,))
    server = StandIn("vllm")
    await server.start()
    async with showing(alone(server)) as screen:
        await screen.until(lambda: screen.kind == "server" and "● live" in screen.text("header"))
        await server.stop()
        await screen.until(lambda: "no answer" in screen.text("header"))
        assert screen.kind == "server"
        async with engine(server.port):
            await screen.until(lambda: screen.kind == "steps" and "● live" in screen.text("header"))
            assert "tiny" in screen.text("header")
            await screen.until(lambda: screen.attach._servers is None)  # its metrics are asked no more
        await screen.until(lambda: "reconnecting" in screen.text("header"))
        await server.start()
        try:
            await screen.until(lambda: screen.kind == "server")
        finally:
            await server.stop()


async def test_a_fleet_with_a_real_engine_is_opened_and_left_while_it_is_polled_on():
    async with engine() as url, serving(StandIn("vllm", [EngineFigures(running=7)])) as (server,):
        attached = Attach([target(url, "ours"), target(server.url, "theirs")], every=EVERY)
        async with showing(attached) as screen:
            await screen.until(lambda: " live " in screen.row("ours") and " live " in screen.row("theirs"))
            assert "paged-engine" in screen.row("ours")
            assert "vLLM" in screen.row("theirs")
            await screen.press("enter")
            await screen.until(lambda: screen.kind == "steps" and "● live" in screen.text("header"))
            assert "tiny" in screen.text("header")
            assert "esc the fleet" in screen.text("footer")
            session = screen.app.session
            looks = server.metrics_asked
            await screen.until(lambda: server.metrics_asked >= looks + 3)
            await screen.press("m")  # an engine that is opened can be steered
            await screen.until(lambda: "batching is static" in screen.text("footer"))
            left = screen.app.operator
            await screen.press("escape")
            assert screen.kind == "fleet"
            await screen.until(lambda: not screen.attach._ending)
            assert session.feed.engine._http.is_closed
            await left.change({"batching": "continuous"})  # that waited: it is not sent any more
            assert [made.after for made in left.made] == [{"batching": "static"}]
            await screen.press("down", "enter")
            assert screen.kind == "server"
            await screen.until(lambda: "running 7" in screen.text("header"))
            await screen.press("escape")
            assert screen.kind == "fleet"


async def test_a_paged_engine_that_refuses_its_steps_is_shown_by_its_metrics():
    async with serving(StandIn("paged-engine"), StandIn("vllm")) as servers, showing(fleet(*servers)) as screen:
        await screen.until(lambda: " live " in screen.row("s0"))
        await screen.press("enter")
        await screen.until(lambda: screen.kind == "server" and "from its metrics" in screen.text("footer"))
        await screen.press("escape")
        assert screen.kind == "fleet"
        assert "metrics" not in screen.text("footer")


async def test_one_that_hangs_does_not_hold_up_the_others(monkeypatch):
    monkeypatch.setattr("tui.sources.poller.LEAST_TIMEOUT", 0.3)
    hanging = StandIn("vllm")
    hanging.mode = "hang"
    async with serving(StandIn("vllm"), hanging, StandIn("tgi")) as servers, showing(fleet(*servers)) as screen:
        await screen.until(lambda: " live " in screen.row("s0") and " live " in screen.row("s2"))
        seen = [screen.source(name).items for name in ("s0", "s2")]
        await screen.until(lambda: all(screen.source(f"s{at}").items >= seen[at // 2] + 5 for at in (0, 2)))
        assert " live " not in screen.row("s1")
        assert "of 2 of 3 that tell now" in screen.text("fleet")
        hanging.mode = "ok"
        await screen.until(lambda: " live " in screen.row("s1"))
        assert "of all 3 that tell now" in screen.text("fleet")


async def test_one_that_dies_leaves_the_totals_and_comes_back():
    servers = (StandIn("vllm", [EngineFigures(running=3)]), StandIn("vllm", [EngineFigures(running=4)]))
    async with serving(*servers), showing(fleet(*servers)) as screen:
        await screen.until(lambda: "running 7" in screen.text("header"))
        await servers[1].stop()
        await screen.until(lambda: " failing " in screen.row("s1"))
        assert "running 3" in screen.text("header")
        assert "of 1 of 2 that tell now" in screen.text("fleet")
        assert " 4 " in screen.row("s1")  # what it told last, which is dim
        servers[1].restart()
        servers[1].engine.running = 5
        await servers[1].start()
        await screen.until(lambda: "running 8" in screen.text("header"))


async def test_one_that_becomes_another_kind_is_shown_as_that():
    server, other = StandIn("vllm"), StandIn("tgi")
    async with serving(server, other), showing(fleet(server, other)) as screen:
        await screen.until(lambda: "vLLM" in screen.row("s0"))
        await screen.press("enter")
        await screen.until(lambda: "vLLM" in screen.text("header"))
        server.kind = "llama.cpp"
        await screen.until(lambda: "llama.cpp" in screen.text("header"))
        await screen.press("escape")
        await screen.until(lambda: "llama.cpp" in screen.row("s0"))


async def test_a_fault_of_this_program_over_one_is_told_in_its_row(monkeypatch):
    monkeypatch.setattr("tui.sources.watch.AGAIN_SECONDS", 0.05)
    look = Poller._look
    broken = {0}

    async def fails(self, http):
        if self._source in broken:
            raise ZeroDivisionError("by this program")
        return await look(self, http)

    monkeypatch.setattr(Poller, "_look", fails)
    async with serving(StandIn("vllm"), StandIn("vllm")) as servers, showing(fleet(*servers)) as screen:
        await screen.until(lambda: " failing " in screen.row("s0") and " live " in screen.row("s1"))
        assert "paged-top failed over what it says: ZeroDivisionError: by this program" in screen.text("fleet")
        broken.clear()
        await screen.until(lambda: " live " in screen.row("s0"))


async def test_a_fault_over_the_steps_of_one_leads_to_its_metrics_and_ends_nothing(monkeypatch):
    async def fails(self):
        raise ZeroDivisionError("by this program")

    monkeypatch.setattr("tui.session.Session.run", fails)
    async with serving(StandIn("paged-engine"), StandIn("vllm")) as servers, showing(fleet(*servers)) as screen:
        await screen.until(lambda: " live " in screen.row("s0"))
        await screen.press("enter")
        await screen.until(lambda: screen.kind == "server")
        assert "ZeroDivisionError: by this program" in screen.text("footer")
        await screen.press("escape")
        assert screen.kind == "fleet"
        assert screen.app.is_running


async def test_metrics_alone_ask_for_no_steps():
    async with serving(StandIn("paged-engine")) as (server,):
        async with showing(Attach([target(server.url)], every=EVERY)) as screen:
            await screen.until(lambda: screen.kind == "server" and "● live" in screen.text("header"))
            await screen.press("enter", "escape", "escape")
            assert screen.kind == "server"
            assert "leave --source metrics out" in " ".join(screen.text("blocks").replace("│", " ").split())
        assert "/engine/snapshot" not in server.asked
        beside = replace(target(server.url), kv=(KvEndpoint("tcp://127.0.0.1:1"),))
        async with showing(Attach([beside], every=EVERY)) as screen:
            await screen.until(lambda: screen.kind == "server" and "● live" in screen.text("header"))
            said = " ".join(screen.text("batch").replace("│", " ").split())
            assert "KV events are shown beside metrics: leave --kv-events out" in said


async def test_a_fleet_is_recorded_and_played_as_the_same_screen(tmp_path):
    path = tmp_path / "fleet.jsonl.gz"
    servers = (StandIn("vllm", [EngineFigures(running=3)]), StandIn("sglang", [EngineFigures(running=4)]))
    async with serving(*servers):
        attached = fleet(*servers)
        async with showing(attached) as screen:
            await screen.until(lambda: "running 7" in screen.text("header"))
            screen.app.recorder.start(str(path))
            at = screen.source("s1").items
            await screen.until(lambda: screen.source("s1").items >= at + 4)
            await screen.press("enter")
            await screen.until(lambda: "recording" in screen.text("footer"))
        assert len(attached.finished) == 1
        assert f"to {path}" in attached.finished[0]
    player = SourcePlayer(path, speed=1000.0)
    async with showing(Attach(player=player)) as screen:
        await screen.until(lambda: player.ended)
        assert "playback" in screen.text("header")
        assert "running 7" in screen.text("header")
        assert screen.row("s0")
        assert "SGLang" in screen.row("s1")
        await screen.press("r")
        assert "this is a recording already" in screen.text("footer")
        await screen.press("down", "enter")
        assert screen.kind == "server"
        assert "running 4" in screen.text("header")
        await screen.press("left_square_bracket")
        assert "500 times as fast as recorded" in screen.text("footer")
        await screen.press("escape")
        assert screen.kind == "fleet"


async def test_steps_are_recorded_of_the_one_that_is_open_and_the_fleet_goes_on(tmp_path):
    one, all_of_them = tmp_path / "one.jsonl.gz", tmp_path / "all.jsonl.gz"
    async with engine() as url, serving(StandIn("vllm")) as (other,):
        attached = Attach([target(url, "ours"), target(other.url, "s1")], every=EVERY)
        async with showing(attached) as screen:
            await screen.until(lambda: " live " in screen.row("ours") and " live " in screen.row("s1"))
            screen.app.recorder.start(str(all_of_them))
            await screen.press("enter")
            await screen.until(lambda: screen.kind == "steps" and screen.app.shown.session.link.phase == "live")
            screen.app.say("")
            screen.app.draw_frame()
            assert "all servers: recording all.jsonl.gz" in screen.text("footer")
            screen.app.recorder.start(str(one))
            screen.app.draw_frame()
            assert "recording the steps of ours alone to" in screen.text("footer")
            screen.app.say("")
            screen.app.draw_frame()
            assert "recording ours into one.jsonl.gz" in screen.text("footer")
            assert "all servers: recording all.jsonl.gz" in screen.text("footer")
            await screen.press("space")
            assert " esc go on " in screen.text("footer")
            await screen.press("escape")
            assert screen.kind == "steps"
            assert " esc the fleet " in screen.text("footer")
            at = screen.source("s1").items
            await screen.press("escape")
            assert screen.kind == "fleet"
            assert "the steps are left: recorded" in screen.text("footer")
            assert " of ours, " in screen.text("footer")
            assert attached.finished[0].endswith(f"to {one}")
            await screen.until(lambda: screen.source("s1").items >= at + 2)
            assert screen.app.recorder.running
        assert len(attached.finished) == 2
    from tui.player import Player

    assert await Player(one, float("inf")).snapshot()
    assert [source.name for source in SourcePlayer(all_of_them, 1.0).sources] == ["ours", "s1"]


async def test_secrets_are_left_out_of_what_is_recorded():
    from tui.sources.targets import HttpSettings

    settings = HttpSettings("an-api-key", "an-admin-key", (("X-Other", "a-third-one"),))
    attached = Attach([target("http://someone:pass%2Dword@127.0.0.1:9")], settings)
    found = set(attached._secrets())
    assert {"an-api-key", "an-admin-key", "a-third-one", "someone", "pass%2Dword", "pass-word"} <= found


async def test_closing_stops_all_that_was_started():
    async with serving(StandIn("vllm"), StandIn("tgi")) as servers:
        before = asyncio.all_tasks()
        attached = fleet(*servers)
        async with showing(attached) as screen:
            await screen.until(lambda: " live " in screen.row("s0"))
        await attached.close()
        assert attached._watching is None
        asked = [one.metrics_asked for one in servers]
        await asyncio.sleep(3 * EVERY)
        assert [one.metrics_asked for one in servers] == asked
        left = {task.get_coro().__qualname__ for task in asyncio.all_tasks() - before}
        assert not [name for name in left if not name.startswith(("RequestHandler.", "Connection"))], left


def test_it_needs_something_to_be_attached_to():
    with pytest.raises(ValueError, match="either targets or a player"):
        Attach()
    with pytest.raises(ValueError, match="steps are of one server, and 2 are named"):
        Attach([target("http://127.0.0.1:1"), target("http://127.0.0.1:2")], steps_first=True)


async def test_whoever_quits_does_not_wait_for_looks_at_servers():
    """The last messages of the screen come by the loop that a thousand servers keep busy: these are left first."""
    async with serving(StandIn("vllm"), StandIn("vllm")) as servers:
        attach = fleet(*servers)
        app = PagedTop(attach, Look(), frames=False)
        async with app.run_test(size=(160, 30)):
            screen = App(app, None)
            await screen.until(lambda: "vLLM" in screen.row("s0") and "vLLM" in screen.row("s1"))
            watching = attach._watching
            app.exit(0)
            assert app._following.is_cancelled  # at once: before any of the turns that ending the screen takes
        assert watching.cancelling()
        await attach.close()
