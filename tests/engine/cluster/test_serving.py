"""`paged-engine serve` with several engines, over HTTP: what a client is told is what one engine tells."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Iterator

import httpx
import psutil
import pytest

from engine.cli import make_parser
from engine.cluster.options import check_cluster, chosen_cluster
from engine.serve_command import configuration
from tests.engine.server.conftest import Server, start

TINY = ("--model", "tiny", "--dtype", "float32", "--kv-memory", "4MiB", "--check-invariants")
PROMPT = "a prompt that is too long to be prefilled where it decodes: " * 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--prefill", "1", "--decode", "1", "--max-num-batched-tokens", "128")
    server = start(tmp_path_factory.mktemp("cluster"), *TINY, *options)
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.stderr.read_text()


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http as client:
        client.post("/engine/cache/clear").raise_for_status()
        yield client


def complete(http: httpx.Client, **settings) -> dict:
    body = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0, "ignore_eos": True} | settings
    return http.post("/v1/completions", json=body).raise_for_status().json()


def cluster_of(http: httpx.Client) -> dict:
    return http.get("/engine/cluster").raise_for_status().json()


def handed_over(http: httpx.Client) -> int:
    return cluster_of(http)["router"]["handed_over"]


def colocated(http: httpx.Client, **settings) -> dict:
    """The same of engines that serve whole requests."""
    http.patch("/engine/cluster", json={"separate": False}).raise_for_status()
    try:
        return complete(http, **settings)
    finally:
        http.patch("/engine/cluster", json={"separate": True}).raise_for_status()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n": 4, "temperature": 1.0, "seed": 3},
        {"logprobs": 3, "echo": True, "max_tokens": 4},
        {"max_tokens": 1},
        {"presence_penalty": 1.5, "min_tokens": 8, "ignore_eos": False},
    ],
)
def test_an_answer_over_two_engines_is_that_of_one(http, settings):
    before = handed_over(http)
    separated = complete(http, **settings)
    assert handed_over(http) == before + (settings.get("max_tokens") != 1)
    http.post("/engine/cache/clear").raise_for_status()
    whole = colocated(http, **settings)
    assert separated["choices"] == whole["choices"]
    assert separated["usage"] == whole["usage"]


def test_a_stop_string_is_found_in_the_first_token_and_in_later_ones(http):
    text = complete(http)["choices"][0]["text"]
    for stop in (text[0], text[3:5]):
        http.post("/engine/cache/clear").raise_for_status()
        (choice,) = complete(http, stop=stop)["choices"]
        assert (choice["text"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")


def test_a_beam_search_is_not_handed_over(http):
    before = handed_over(http)
    answer = complete(http, use_beam_search=True, n=3)
    assert len(answer["choices"]) == 3
    assert handed_over(http) == before


def test_cached_tokens_are_told_of_the_first_engine(http):
    assert complete(http)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert complete(http)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_client_that_leaves_leaves_nothing_behind(http):
    with http.stream(
        "POST", "/v1/completions", json={"prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True, "stream": True}
    ) as response:
        next(line for line in response.iter_lines() if line)
    until(lambda: not http.get("/engine/requests").json()["requests"])
    for worker in cluster_of(http)["workers"]:
        pool = http.get(f"{worker['path']}/engine/snapshot").json()["pool"]
        assert pool["free"] + pool["cached"] == sum(pool.values())


def until(found, seconds: float = 30):
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
    return value


def test_a_signal_lets_requests_end_and_leaves_no_engine_behind(start_server):
    server = start_server(*TINY, "--replicas", "2")
    engines = psutil.Process(server.process.pid).children()
    assert len(engines) == 2
    whole = {"prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True}
    with server.http as http, http.stream("POST", "/v1/completions", json=whole) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        server.process.send_signal(signal.SIGINT)
        rest = list(lines)
    assert '"finish_reason":"length"' in rest[-2]
    assert server.process.wait(20) == 0
    _, gone = psutil.wait_procs(engines, 10)[::-1]
    assert len(gone) == 2


@pytest.fixture
def start_server(tmp_path) -> Iterator:
    servers: list[Server] = []

    def start_one(*options: str) -> Server:
        servers.append(start(tmp_path, *options))
        return servers[-1]

    yield start_one
    for server in servers:
        server.process.kill()
        server.process.wait()


def check(*options: str) -> None:
    arguments = make_parser().parse_args(["serve", "--model", "tiny", *options])
    control = chosen_cluster(arguments)
    assert control is not None
    check_cluster(configuration(arguments), control)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--prefill", "2"), "--decode: must be at least 1 where there are no replicas, got 0"),
        (("--colocated",), "--colocated: needs several engines (--prefill, --decode, --replicas)"),
        (("--replicas", "2", "--kv-events", "tcp://127.0.0.1:0"), "--kv-events: several engines cannot publish at one"),
        (("--replicas", "900", "--kv-memory", "1TiB"), "--kv-memory: 900 engines with 1024.0 GiB each"),
        (("--prefill", "1", "--decode", "1", "--batching", "static"), "--batching: must be continuous where KV is"),
        (("--replicas", "1", "--fault", "decode-0:exit@3"), "--fault: 'decode-0' is none of the workers, which are"),
    ],
)
def test_what_makes_no_sense_is_told_by_its_flag(options, told):
    with pytest.raises(ArgumentTypeError) as raised:
        check(*options)
    assert str(raised.value).startswith(told)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--prefill", "2"), "--decode: must be at least 1"),
        (("--fault", "decode-0:exit@3"), "--fault: names a worker, and this is no cluster"),
    ],
)
def test_it_is_one_line_and_exit_code_2(options, told):
    command = [sys.executable, "-m", "engine.cli", "serve", "--model", "tiny", "--port", "0", *options]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    (line,) = ran.stderr.strip().splitlines()
    assert told in line
