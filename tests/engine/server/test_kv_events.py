"""`--kv-events` from the outside: a process that subscribes to a running engine, and what is refused."""

from __future__ import annotations

import json
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import ANY as ANYTHING

import pytest

import engine
from engine.block_hash import extend_hashes
from engine.kv_events import event_hash
from tests.engine.server.test_restarts import core_of, until
from tests.engine.test_cli import check_one_line, run

ANY = "tcp://127.0.0.1:0"
TINY = ("--model", "tiny", "--dtype", "float32", "--kv-memory", "4MiB")
PUBLISHED = re.compile(r"KV events are published at (tcp://127\.0\.0\.1:\d+)(?:, and told again at (tcp://\S+))?")
PROMPT = [65 + index % 26 for index in range(40)]


def endpoints(server) -> tuple[str, str]:
    match = PUBLISHED.search(server.stderr.read_text())
    assert match, server.stderr.read_text()
    return match[1], match[2] or ""


class Listener:
    """What one that subscribes in another process hears. Nothing else may publish while it waits."""

    def __init__(self, endpoint: str, topic: str) -> None:
        command = [sys.executable, "-m", "tests.engine.server.kv_listener", endpoint, topic]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        threading.Thread(target=self._read, daemon=True).start()

    def hear(self, seconds: float = 30.0) -> dict[str, Any]:
        return self._messages.get(timeout=seconds)

    def follow(self, http) -> int:
        """Clear the cache until that is heard, and all of it: from then on nothing is missed. Returns the number of
        the last message."""
        cleared = 0
        while True:
            http.post("/engine/cache/clear").raise_for_status()
            cleared += 1
            try:
                last = self.hear(0.05)["sequence"]
            except queue.Empty:
                continue
            break
        while last < cleared - 1:
            last += 1
            assert self.hear() == {**self._cleared, "sequence": last, "time": ANYTHING}
        return last

    _cleared: ClassVar = {"topic": ANYTHING, "rank": 0, "events": [{"type": "AllBlocksCleared"}]}

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._messages.put(json.loads(line))


@contextmanager
def listening(endpoint: str, topic: str) -> Iterator[Listener]:
    listener = Listener(endpoint, topic)
    try:
        yield listener
    finally:
        listener.process.kill()
        listener.process.wait()


def test_another_process_hears_what_is_stored_and_cleared_also_after_a_crash(start_server) -> None:
    server = start_server(*TINY, "--kv-events", ANY, "--kv-events-replay", ANY)
    endpoint, replay = endpoints(server)
    assert replay
    assert endpoint != replay
    names = [event_hash(block_hash) for block_hash in extend_hashes([], PROMPT, 16)]
    stored = {
        "type": "BlockStored",
        "block_hashes": names,
        "parent_block_hash": None,
        "token_ids": PROMPT[:32],
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    with listening(endpoint, "kv-") as listener, server.http as http:
        for life in range(2):
            last = listener.follow(http)
            before = time.time()
            http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 1}).raise_for_status()
            message = listener.hear()
            assert before <= message.pop("time") <= time.time()
            assert message == {"topic": "kv-events", "sequence": last + 1, "rank": 0, "events": [stored]}
            http.post("/engine/cache/clear").raise_for_status()
            message = listener.hear()
            assert (message["sequence"], message["events"]) == (last + 2, [{"type": "AllBlocksCleared"}])
            if life == 0:
                core_of(server).kill()
                until(lambda: (health := http.get("/health")).is_success and health.json()["restarts"] == 1)
    assert server.stop() == 0
    with socket.create_server(("127.0.0.1", int(endpoint.rpartition(":")[2]))):
        pass  # it is free again


def test_beyond_loopback_it_warns_and_each_step_that_changes_the_cache_is_one_message(start_server) -> None:
    server = start_server(*TINY, "--kv-events", "tcp://0.0.0.0:0", "--kv-events-open", "--kv-events-topic", "")
    warning, told = server.stderr.read_text().splitlines()
    assert warning.startswith("paged-engine: --kv-events-open: --kv-events tcp://0.0.0.0:0: whoever reaches it reads")
    place, port = told.rsplit(":", 1)
    assert place == "paged-engine: KV events are published at tcp://0.0.0.0", "and told again nowhere"
    endpoint = f"tcp://127.0.0.1:{port}"
    with listening(endpoint, "") as listener, server.http as http:
        last = listener.follow(http)
        http.post("/v1/completions", json={"prompt": PROMPT[:20], "max_tokens": 1}).raise_for_status()
        http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 30, "ignore_eos": True}).raise_for_status()
        http.post("/engine/cache/clear").raise_for_status()
        messages = [listener.hear() for _ in range(5)]
        # 69 tokens have KV in the end. The first block is found; the third and fourth are filled by the answer.
        told = [[(event["type"], len(event.get("block_hashes", ()))) for event in one["events"]] for one in messages]
        assert told == [*[[("BlockStored", 1)]] * 4, [("AllBlocksCleared", 0)]]
        assert [one["sequence"] for one in messages] == list(range(last + 1, last + 6))
        assert {one["topic"] for one in messages} == {""}
        parents = [one["events"][0]["parent_block_hash"] for one in messages[:4]]
        assert parents == [None, *(one["events"][0]["block_hashes"][0] for one in messages[:3])]
    assert server.stop(signal.SIGINT) == 0


def test_an_endpoint_in_use_ends_it_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        serve = ("serve", *TINY, "--port", "0")
        check_one_line(run(*serve, "--kv-events", endpoint), f"--kv-events {endpoint}: ", "Address already in use")
        both = ("--kv-events", ANY, "--kv-events-replay", endpoint)
        check_one_line(run(*serve, *both), f"--kv-events-replay {endpoint}: ", "Address already in use")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--kv-events-replay", ANY), ("--kv-events-replay: needs --kv-events",)),
        (("--kv-events", ANY, "--no-text"), ("--kv-events: ", "--no-text")),
        (("--kv-events", "tcp://*:0"), ("--kv-events tcp://0.0.0.0:0: whoever", "say --kv-events-open")),
        (("--kv-events", ANY, "--kv-events-replay", "tcp://[::]:0"), ("--kv-events-replay tcp://[::]:0: whoever",)),
        (("--kv-events", "tcp://*:0", "--insecure"), ("--kv-events-open",)),
        (("--kv-events", "5557"), ("--kv-events: must be tcp://ADDRESS:PORT", "'5557'")),
        (("--kv-events-topic", "a\nb"), ("--kv-events-topic: must be at most 200",)),
    ],
)
def test_what_is_refused(options: tuple[str, ...], words: tuple[str, ...]) -> None:
    check_one_line(run("serve", *TINY, "--port", "0", *options), *words)


def test_the_environment_says_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.cli import make_parser
    from engine.config import EngineConfig
    from engine.kv_endpoint import KvPublishing
    from engine.serve_command import configuration

    assert configuration(make_parser().parse_args(["serve"])).kv_events is None
    assert EngineConfig().kv_events is None
    monkeypatch.setenv("PAGED_ENGINE_KV_EVENTS", "tcp://localhost:5557")
    monkeypatch.setenv("PAGED_ENGINE_KV_EVENTS_REPLAY", "tcp://127.0.0.1:5558")
    monkeypatch.setenv("PAGED_ENGINE_KV_EVENTS_TOPIC", "kv@here@tiny")
    config = configuration(make_parser().parse_args(["serve"]))
    assert config.kv_events == KvPublishing("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558", "kv@here@tiny")


def test_zmq_is_imported_only_where_it_is_asked_for() -> None:
    """The publisher alone needs it, and nobody needs the publisher before an option says so."""
    texts = {path.name: path.read_text() for path in Path(engine.__file__).parent.rglob("*.py")}
    assert [name for name, text in texts.items() if re.search(r"^ *(import|from) zmq", text, re.M)] == [
        "kv_publisher.py"
    ]
    assert not [name for name, text in texts.items() if re.search(r"^(import|from) engine.kv_publisher", text, re.M)]
    code = "import sys, engine.core_process, engine.serve_command\nassert 'zmq' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
