"""`--once` and `--json` of servers that tell no steps: their figures, null for what is not told, and totals."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from servers.kv_events import BlockStored
from tests.servers.certificates import make_authority
from tests.servers.kv_publisher import KvPublisher
from tests.servers.pages import EngineFigures
from tests.servers.stand_in import StandIn
from tui.cli import main

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("PAGED_TOP_")}


@pytest.fixture(autouse=True)
def no_config(monkeypatch, tmp_path):
    monkeypatch.setitem(CLEAN, "XDG_CONFIG_HOME", str(tmp_path))


# The program, but that it looks at servers for so many seconds.
PROGRAM = "import sys, tui.sources.once as once; once.OBSERVED = {}; from tui.cli import main; sys.exit(main())"


async def run(*arguments, observed=0.3, **environment):
    """The exit code, and what was printed."""
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM.format(observed),
        *arguments,
        "--every=0.2",
        env={**CLEAN, "COLUMNS": "120", "LINES": "36", **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(program.communicate(), 60)
    return program.returncode, out.decode(), err.decode()


def once_a_look(**shape):
    """So many requests between two looks, whenever these are."""
    return lambda engine, seconds: engine.serve(**shape)


async def test_the_figures_of_one_server():
    async with StandIn("vllm", version="0.11.2") as server:
        server.advance = once_a_look(requests=2, prompt=100, generated=10, cached=25, ttft=0.04, itl=9.0)
        server.engine.running, server.engine.kv_usage = 7, 0.25
        code, out, err = await run("--url", server.url, "--json")
        told = json.loads(out)
        assert (code, err) == (0, "")
        assert (told["kind"], told["version"], told["phase"], told["url"]) == ("vllm", "0.11.2", "live", server.url)
        assert told["models"] == ["m"]
        assert told["facts"]["block_size"] == "16"
        gauges, rates = told["gauges"], told["rates"]
        assert (gauges["running"], gauges["waiting"], gauges["kv_usage"]) == (7, 0, 0.25)
        assert gauges["kv_capacity"] == 16_000
        assert gauges["swapped"] is None
        assert rates["requests"] > 0
        assert rates["prompt_tokens"] == pytest.approx(rates["requests"] * 100)
        assert rates["generation_tokens"] == pytest.approx(rates["requests"] * 10)
        assert rates["steps"] is None
        assert told["hit_rate"] == 0.25
        seconds = told["observed_seconds"]
        assert seconds >= 0.98 * 0.3
        ttft, itl = told["quantiles"]["ttft"], told["quantiles"]["itl"]
        assert ttft["count"] == pytest.approx(rates["requests"] * seconds)
        assert (ttft["p50_at_most"], ttft["p99_at_most"]) == (0.05, 0.05)
        assert (itl["p99_at_most"], itl["p99_more_than"]) == (None, 5.0)
        assert told["quantiles"]["prefill"] is None
        assert (told["slots"], told["kv_events"], told["engines"]) == (None, [], [])


async def test_a_frame_of_one_server_and_of_several():
    async with StandIn("sglang") as one, StandIn("tgi") as other:
        for server in (one, other):
            server.advance = once_a_look(requests=1)
            server.engine.running = 21
        alone, both = await asyncio.gather(
            run("--url", one.url, "--once"), run("--url", one.url, "--url", other.url, "--once")
        )
        assert (alone[0], alone[2]) == (both[0], both[2]) == (0, "")
        assert "SGLang" in alone[1]
        assert "21" in alone[1]
        assert len(alone[1].splitlines()) == 36
        assert "running 42" in both[1]


async def test_a_fleet_with_totals_by_the_right_rules(tmp_path):
    async with AsyncExitStack() as stack:
        small, large, other, absent = [
            await stack.enter_async_context(server)
            for server in (
                StandIn("vllm", [EngineFigures("m", "0", kv_blocks=1000)]),
                StandIn("vllm", [EngineFigures("m", "0", kv_blocks=2000), EngineFigures("m", "1", kv_blocks=1000)]),
                StandIn("tgi"),
                StandIn("sglang"),
            )
        ]
        absent.mode = "none"
        small.engine.kv_usage, large.engines[0].kv_usage, large.engines[1].kv_usage = 0.9, 0.1, 0.2
        for server in (small, large, other):
            for engine in server.engines:
                engine.running = 3
            server.advance = once_a_look(requests=1, cached=50)
        fleet = tmp_path / "fleet"
        fleet.write_text(
            f"{small.url} small\n{large.url} large\n{other.url} other\n{absent.url} absent\nhttp://127.0.0.1:1 gone\n"
        )
        code, out, err = await run("--fleet", str(fleet), "--json")
        told = json.loads(out)
        assert code == 0
        assert "paged-top: absent: SGLang without metrics: start it with --enable-metrics" in err
        assert "paged-top: gone: nothing answers there" in err
        phases = {server["name"]: (server["kind"], server["phase"]) for server in told["servers"]}
        assert phases == {
            "small": ("vllm", "live"),
            "large": ("vllm", "live"),
            "other": ("tgi", "live"),
            "absent": (None, "foreign"),
            "gone": (None, "failing"),
        }
        gone = told["servers"][-1]
        assert {server["window_seconds"] for server in told["servers"]} == {told["total"]["window_seconds"]} == {0.3}
        assert gone["observed_seconds"] is gone["gauges"]["running"] is gone["rates"]["requests"] is None
        two = told["servers"][1]["engines"]
        assert [(engine["rank"], engine["gauges"]["kv_usage"]) for engine in two] == [("0", 0.1), ("1", 0.2)]
        total = told["total"]
        assert (total["servers"], total["telling"]) == (5, 3)
        assert total["gauges"]["running"] == 12
        # By capacity, of those that tell theirs: neither the sum nor the mean.
        assert total["gauges"]["kv_usage"] == pytest.approx((0.9 * 1000 + 0.1 * 2000 + 0.2 * 1000) / 4000)
        rates = [server["rates"]["requests"] for server in told["servers"][:3]]
        assert total["rates"]["requests"] == pytest.approx(sum(rates))
        assert total["told_by"]["kv_usage"] == 2
        assert total["hit_rate"] == 0.5


async def test_what_is_neither_an_engine_nor_another_server_is_told(tmp_path):
    async with StandIn("sglang", key="k3y") as server:
        none, metrics, (code, out, err) = await asyncio.gather(
            run("--url", server.url, "--json"),
            run("--url", server.url, "--json", "--source", "metrics"),
            run("--url", server.url, "--json", PAGED_TOP_API_KEY="k3y"),
        )
        no_key = "needs a key: --api-key or --api-key-file\n"
        no_admin = "needs an admin key: --admin-key or --admin-key-file; for its metrics it"
        assert none == (1, "", f"paged-top: error: {server.url}: {no_admin} {no_key}")
        assert metrics == (1, "", f"paged-top: error: {server.url}: {no_key}")
        assert (code, json.loads(out)["kind"]) == (0, "sglang")
        assert "k3y" not in out + err
        server.key, server.mode = None, "none"
        (code, out, err), nobody = await asyncio.gather(
            run("--url", server.url, "--once"), run("--url", "127.0.0.1:1", "--url", "127.0.0.1:2", "--once")
        )
        assert (code, out) == (1, "")
        assert "/engine/snapshot answers HTTP 404; a paged-engine answers 200; SGLang without metrics: " in err
        assert nobody[:2] == (1, "")
        assert nobody[2].splitlines()[-1] == "paged-top: error: none of the servers answers"


async def test_tls_users_and_headers_and_none_of_them_shown(tmp_path):
    authority = make_authority(tmp_path)
    async with StandIn("vllm", tls=authority.server) as server, StandIn(tls=authority.server) as unknown:
        url = server.url.replace("//", "//me:s3cret@")
        tenant = ("--url", url, "--header", "X-Tenant: t3nant")
        (code, out, err), careless, refused = await asyncio.gather(
            run(*tenant, "--json", "--ca-file", str(authority.ca)),
            run(*tenant, "--once", "--insecure"),
            run("--url", unknown.url.replace("//", "//me:s3cret@"), "--once"),
        )
        told = json.loads(out)
        assert (code, err, told["url"], told["name"]) == (0, "", server.url, server.url.removeprefix("https://"))
        assert all(headers["X-Tenant"] == "t3nant" for headers in server.headers)
        assert all(headers["Authorization"].startswith("Basic ") for headers in server.headers)
        assert "/engine/snapshot" in server.asked  # which is asked with the same
        assert careless[0] == 0
        assert "warning: --insecure: certificates are not checked" in careless[2]
        assert "certificates not checked" in careless[1].splitlines()[-1]
        assert (*refused[:2], unknown.asked) == (1, "", [])
        assert "no TLS with what answers there" in refused[2]
        assert "--ca-file names who is to be believed" in refused[2]
        assert not any("s3cret" in text for _, *texts in ((code, out, err), careless, refused) for text in texts)


async def test_a_publisher_that_is_not_there_is_told_with_its_reason():
    async with StandIn("vllm") as server, StandIn("vllm") as other:
        place = other.url.replace("http://", "tcp://")
        for where, reason in (
            ("tcp://127.0.0.1:1", "connection refused: nothing listens there"),
            (place, "what listens there says nothing, which no publisher does: it speaks another protocol"),
        ):
            code, told, err = await run("--url", server.url, "--kv-events", where, "--json")
            (kv,) = json.loads(told)["kv_events"]
            assert (code, kv["endpoint"], kv["phase"], kv["detail"]) == (0, where, "connecting", reason)
            assert f"KV events of {where}: connecting: {reason}" in err
        code, shown, err = await run("--url", server.url, "--kv-events", "tcp://127.0.0.1:1", "--once")
        assert "connecting to tcp://127.0.0.1:1 for" in " ".join(shown.split())
        assert "1 of 1 endpoint not connected" in shown
        assert "switch them on" not in shown


async def test_slots_and_kv_events_are_counted():
    async with StandIn("llama.cpp") as llama, StandIn("vllm") as vllm:
        llama.slots = [{"id": 0, "id_task": 3, "n_ctx": 512, "is_processing": True, "prompt": "s3cret"}]
        with KvPublisher(replay=True) as publisher:
            publisher.publish(BlockStored((1, 2, 3), None, tuple(range(12)), 4))
            endpoints = f"{publisher.endpoint},{publisher.replay_endpoint}"
            (code, out, _), (other, told, _) = await asyncio.gather(
                run("--url", llama.url, "--json"),
                run("--url", vllm.url, "--json", "--kv-events", endpoints, observed=1.5),  # they come beside
            )
        assert (code, other) == (0, 0)
        (slot,) = json.loads(out)["slots"]
        assert (slot["busy"], slot["task"], slot["context"], slot["decoded"]) == (True, 3, 512, None)
        assert "s3cret" not in out
        (kv,) = json.loads(told)["kv_events"]
        assert (kv["endpoint"], kv["phase"], kv["messages"], kv["resident_blocks"]) == (
            publisher.endpoint, "live", 1, 3,
        )  # fmt: skip


async def test_json_has_nothing_that_moves_a_cursor():
    name = "a\x1b[31m\x9b2J\u202eb\U000e0001\u00e9"
    async with StandIn("vllm", [EngineFigures(name)]) as server:
        code, out, _ = await run("--url", server.url, "--json")
    assert code == 0
    assert all(sign.isprintable() or sign == "\n" for sign in out)
    assert "\u00e9" in out
    assert json.loads(out)["models"] == [name]


def test_a_recording_is_told_over_the_window_of_its_screen(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    path = str(Path(__file__).parents[3] / "docs" / "fleet.jsonl.gz")
    assert main(["play", path, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {server["window_seconds"] for server in told["servers"]} == {60.0} == {told["total"]["window_seconds"]}
    assert main(["play", path, "--once"]) == 0
    shown = capsys.readouterr().out
    assert f"generated {told['total']['rates']['generation_tokens']:.0f} tok/s" in shown
    for server in told["servers"]:
        assert f" {100 * server['hit_rate']:.0f} % " in next(
            line for line in shown.splitlines() if server["name"] in line
        )
