"""`paged-engine serve` with several engines, over HTTP: what a client is told is what one engine tells."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import httpx
import psutil
import pytest

from engine.cli import make_parser
from engine.cluster.options import check_cluster, chosen_cluster
from engine.cluster.worker import Worker
from engine.serve_command import configuration
from engine.server.serve import blocks_told
from tests.engine.server.conftest import Server, start
from tests.engine.server.test_cluster_metrics import families, values

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
    server = start_server(*TINY, "--replicas", "1")
    engines = psutil.Process(server.process.pid).children()
    assert len(engines) == 1
    whole = {"prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True}
    with server.http as http, http.stream("POST", "/v1/completions", json=whole) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        server.process.send_signal(signal.SIGINT)
        rest = list(lines)
    assert '"finish_reason":"length"' in rest[-2]
    assert server.process.wait(20) == 0
    _, alive = psutil.wait_procs(engines, 10)
    assert not alive


def test_a_deadline_holds_over_two_engines(http):
    for timeout in (0.5, 1.0, 2.0, 4.0, 8.0):  # a slow machine has no token in the first; nor is it done in the last
        http.post("/engine/cache/clear").raise_for_status()
        before = handed_over(http)
        body = {"prompt": PROMPT, "max_tokens": 3500, "ignore_eos": True, "timeout": timeout}
        answer = http.post("/v1/completions", json=body).json()
        if answer.get("usage", {}).get("completion_tokens"):
            break
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "deadline"
    assert 0 < answer["usage"]["completion_tokens"] < 3500
    assert handed_over(http) == before + 1
    until(lambda: not http.get("/engine/requests").json()["requests"])
    late = http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 8, "timeout": 1e-6})
    assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")


def test_every_answer_is_counted_once_by_how_it_ended(http):
    def ended() -> dict[tuple[str, ...], float]:
        return values(families(http.get("/metrics").content)["paged:cluster_ended_requests"], "finished_reason")

    def begun() -> float:
        return values(families(http.get("/metrics").content)["paged:cluster_requests"])[()]

    before, begun_before = ended(), begun()
    text = complete(http, n=2)["choices"][0]["text"]
    http.post("/engine/cache/clear").raise_for_status()
    complete(http, stop=text[0])  # found by the server, with the first token
    complete(http, max_tokens=1)
    complete(http, use_beam_search=True, n=2)
    with http.stream(
        "POST", "/v1/completions", json={"prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True, "stream": True}
    ) as response:
        next(response.iter_lines())
    until(lambda: ended()["abort",] == before["abort",] + 1)
    assert begun() == begun_before + 6
    added = {reason: count - before[reason,] for (reason,), count in ended().items() if count != before[reason,]}
    assert added == {"length": 4, "stop": 1, "abort": 1}


def streamed(http: httpx.Client, then=lambda: None, **settings) -> tuple[list[str], dict]:
    """Each choice's text and end, and the usage; `then` is done when the first has come."""
    body = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "stream": True} | settings
    told = [""] * settings["n"]
    with http.stream("POST", "/v1/completions", json=body | {"stream_options": {"include_usage": True}}) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            for choice in chunk["choices"]:
                told[choice["index"]] += choice["text"] + (choice["finish_reason"] or "")
                then()
                then = lambda: None  # noqa: E731
    return told, chunk["usage"]


def test_a_client_hears_each_token_once_though_its_engine_is_killed(http, server):
    """A stop string may have begun before, and what was told of the prompt stays."""
    whole = {"max_tokens": 600, "n": 2, "temperature": 1.0, "seed": 7}
    alone, _ = streamed(http, **whole)
    stop = alone[1][-12:].removesuffix("length")
    assert stop not in alone[0]
    assert alone[1].index(stop) > 100
    http.post("/engine/cache/clear").raise_for_status()
    before, used = streamed(http, **whole, stop=stop)

    http.post("/engine/cache/clear").raise_for_status()
    assert streamed(http, lambda: busy_engine(server).kill(), **whole, stop=stop) == (before, used)
    state = cluster_of(http)
    assert state["router"]["recovered"] == 1
    assert sum(worker["restarts"] for worker in state["workers"]) == 1


def busy_engine(server: Server) -> psutil.Process:
    """Whichever computes now."""
    engines = psutil.Process(server.process.pid).children()
    before = {engine: sum(engine.cpu_times()[:2]) for engine in engines}
    return until(
        lambda: next((one for one, seconds in before.items() if sum(one.cpu_times()[:2]) > seconds + 0.04), None)
    )


def test_a_signal_ends_a_server_that_starts(tmp_path):
    command = [sys.executable, "-m", "engine.cli", "serve", "--port", "0", *TINY, "--prefill", "1", "--decode", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    engines = until(lambda: len(found := psutil.Process(process.pid).children()) == 2 and found)
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=20)
    assert (process.returncode, told) == (0, ("", ""))
    _, alive = psutil.wait_procs(engines, 10)
    assert not alive


def test_the_third_signal_ends_it_as_it_stands_and_engines_that_are_stopped(start_server):
    server = start_server(*TINY, "--replicas", "1")
    (engine,) = psutil.Process(server.process.pid).children()
    whole = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with server.http as http, http.stream("POST", "/v1/completions", json=whole) as response:
        next(line for line in response.iter_lines() if line)
        engine.suspend()
        while server.process.poll() is None:
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.05)
    assert server.process.returncode == 128 + signal.SIGINT
    _, alive = psutil.wait_procs([engine], 10)
    assert not alive


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
        (("--decode", "1", "--batching", "static"), "--batching: must be continuous where KV is"),
        (("--decode", "1", "--allocation", "reserved"), "--allocation: must be paged where KV is"),
        (("--prefill", "1", "--decode", "1", "--device", "cuda"), "--device: must be cpu where KV is handed"),
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
        (("--routing", "round_robin"), "--routing: needs several engines"),
        (("--local-prefill", "0"), "--local-prefill: needs several engines"),
        (("--lease-seconds", "5"), "--lease-seconds: needs several engines"),
        (("--replicas", "1024", "--kv-memory", "1MiB"), "--kv-memory: 1024 engines with 0.0 GiB each, swap space"),
    ],
)
def test_it_is_one_line_and_exit_code_2(options, told):
    command = [sys.executable, "-m", "engine.cli", "serve", "--model", "tiny", "--port", "0", *options]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    (line,) = ran.stderr.strip().splitlines()
    assert told in line


def test_blocks_of_engines_are_told_as_far_as_they_differ():
    def workers(*counts: int) -> list[Worker]:
        infos = [SimpleNamespace(num_blocks=count, block_size=16) for count in counts]
        return [
            cast("Worker", SimpleNamespace(service=SimpleNamespace(loaded=SimpleNamespace(info=info))))
            for info in infos
        ]

    assert blocks_told(workers(728, 728)) == "728 blocks of 16 each"
    assert blocks_told(workers(1456, 728)) == "728 to 1,456 blocks of 16 each"
