"""Servers that answer over HTTP and publish over ZMQ, recorded as the screen does it: a file that may be sent on."""

from __future__ import annotations

import asyncio
import json

from servers.kv_events import BlockStored
from tests.servers.kv_publisher import KvPublisher
from tests.servers.pages import EngineFigures
from tests.servers.stand_in import StandIn, busy
from tests.tui.sources.heard import told
from tests.tui.sources.waiting import until
from tui.attached import Said
from tui.focus import FIRST_FOCUS
from tui.sources.attach import Attach
from tui.sources.player import SourcePlayer
from tui.sources.report import encode, server_report
from tui.sources.targets import HttpSettings, KvEndpoint, target, with_kv

KEY, ADMIN, HEADER, USER, PASSWORD = (
    "sk-planted-1f9a",
    "adm-planted-77c2",
    "planted-header",
    "planted-user",
    "planted-pw",
)
PROMPT, SPOKEN, HOME = "planted words of somebody", "planted opening of a prompt", "planted-home"
MODEL = f"/home/{HOME}/models/weights-7b"
TOKENS = (48_112_001, 48_112_002, 48_112_003, 48_112_004)


async def test_what_is_recorded_of_real_servers_is_nobodys_secret_and_plays_back(tmp_path):
    path = tmp_path / "bug.jsonl"
    said = []
    vllm = StandIn("vllm", [EngineFigures(model=MODEL)], version="0.11.0")
    llama = StandIn("llama.cpp", [EngineFigures(model=MODEL)], key=KEY)
    llama.slots = [{"id": 0, "is_processing": True, "n_ctx": 512, "prompt": PROMPT, "id_task": 4}]
    vllm.words = lambda tokens: SPOKEN
    vllm.advance = llama.advance = busy
    locked = StandIn("sglang", key="another")
    async with vllm, llama, locked:
        with KvPublisher() as publisher:
            targets = [
                with_kv(target(vllm.url.replace("//", f"//{USER}:{PASSWORD}@")), (KvEndpoint(publisher.endpoint),)),
                target(llama.url),
                target(locked.url),
            ]
            http = HttpSettings(KEY, ADMIN, (("X-Tenant", HEADER),))
            attach = Attach(targets, http, 0.2)
            attach.begin(False, lambda words, bad: said.append(words))
            watching = asyncio.create_task(attach.run())
            sources, recorder = attach.shown.sources, attach.shown.recorder
            await asyncio.to_thread(publisher.wait_for_subscriber)
            await until(lambda: all(source.tape.looks_seen > 2 for source in sources))
            publisher.publish(BlockStored((11, 12), None, TOKENS, 2, lora=MODEL))
            await until(lambda: sources[0].view().kv[0].heard)
            attach.shown.selected = sources[0].name
            texts = attach.shown.frame(FIRST_FOCUS, Said()).prefixes
            await until(lambda: texts.of(TOKENS) == SPOKEN)  # the screen has it
            recorder.start(str(path))
            publisher.publish(BlockStored((13,), 12, TOKENS[:2], 2, lora=MODEL))
            await until(lambda: sources[0].view().kv[0].heard == 2)
            seen = [source.tape.looks_seen for source in sources]
            await until(lambda: all(one.tape.looks_seen > n + 2 for one, n in zip(sources, seen, strict=True)))
            recorder.stop()
            (run,) = sources[0].view().kv[0].tree.runs()
            assert sources[0].view().kv[0].tree.opening(run, 9) == (*TOKENS, *TOKENS[:2])
            paused = sources[0].view(sources[0].items).kv[0].tree  # the past has none
            assert [paused.opening(run, 9) for run in paused.runs()] == [()]
            reports = encode(server_report(sources[0].view(), 5.0))
            assert not any(secret in reports for secret in (SPOKEN, *map(str, TOKENS)))
            live = [source.view() for source in sources]
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await attach.close()
    assert any(KEY in header.get("Authorization", "") for header in llama.headers)  # it was sent indeed,
    assert any(HEADER in header.values() for header in vllm.headers)
    written = path.read_text()
    for secret in (KEY, ADMIN, HEADER, USER, PASSWORD, PROMPT, SPOKEN, HOME, *map(str, TOKENS)):
        assert secret not in written, secret
    assert {json.loads(line)["type"] for line in written.splitlines()} >= {"source", "scrape", "failed", "slots", "kv"}
    player = SourcePlayer(path, float("inf"))
    playing = asyncio.create_task(player.run())
    await until(lambda: player.ended)
    played = [source.view() for source in player.sources]
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    await player.close()
    for now, then in zip(played, live, strict=True):
        assert (now.name, now.url, now.kind, now.version, now.slots) == (
            then.name,
            then.url,
            then.kind,
            then.version,
            then.slots,
        )
        assert now.link.phase == then.link.phase
        newest, last = now.looks.newest_reading, then.looks.newest_reading
        assert (newest is None) == (last is None)
        if newest is not None:
            assert newest.time == last.time
            assert newest.reading.totals() == last.reading.totals()
    assert [kv[:2] + kv[6:9] for kv in told(played[0])["kv"]] == [kv[:2] + kv[6:9] for kv in told(live[0])["kv"]]
    assert [engine.model for engine in played[0].engines] == ["weights-7b"]
    assert said[-1].startswith("recorded ")
