"""The core dies, and another one serves: nothing hangs, everyone is told, and what was chosen is kept."""

import json
import signal
import threading
import time

import httpx
import psutil
import pytest

from engine.server.answer_shapes import Health

TINY = ("--model", "tiny", "--dtype", "float32", "--kv-memory", "4MiB", "--check-invariants")
LONG = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "stream": True}
SHORT = {"prompt": "a", "max_tokens": 2}


def core_of(server) -> psutil.Process:
    (core,) = psutil.Process(server.process.pid).children()
    return core


def until(found, seconds=20):
    """What `found` returns, once that is something."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
    return value


def serves_again(http):
    return until(lambda: http.get("/health").status_code == 200)


def test_a_core_dies_and_another_one_serves(start_server) -> None:
    server = start_server(*TINY)
    with server.http as http, server.http as watcher:
        http.patch("/engine/control", json={"batching": "static", "max_num_seqs": 7}).raise_for_status()
        before = server.snapshot()
        answers = []
        whole = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{server.url}/v1/completions", json={**LONG, "stream": False}))
        )
        with (
            http.stream("POST", "/v1/completions", json=LONG) as response,
            watcher.stream("GET", "/engine/steps") as steps,
        ):
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            whole.start()
            until(lambda: len(server.snapshot()["requests"]) == 2)
            core_of(server).kill()
            rest = list(lines)
            list(steps.iter_lines())  # it ends
        whole.join()
        assert rest[-1] == "data: [DONE]"
        error = json.loads(rest[-2].removeprefix("data: "))["error"]
        assert "SIGKILL" in error["message"]
        assert error["code"] == "engine_not_ready"
        (answer,) = answers
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_not_ready")
        refused = until(lambda: None if (told := http.get("/health")).status_code == 200 else told)
        assert refused.headers["Retry-After"] == "1"
        assert "SIGKILL" in refused.json()["reason"]

        serves_again(http)
        health = http.get("/health").json()
        assert (health["status"], health["restarts"]) == ("ok", 1)
        assert "SIGKILL" in health["last_failure"]["reason"]
        after = server.snapshot()
        assert after["engine"]["started"] > before["engine"]["started"]
        assert (after["engine"]["restarts"], after["requests"], after["blocks"]) == (1, [], [])
        assert (after["control"]["batching"], after["control"]["max_num_seqs"]) == ("static", 7)
        assert http.post("/v1/completions", json=SHORT).json()["choices"][0]["finish_reason"] == "length"
        with watcher.stream("GET", "/engine/steps?from=1") as steps:  # the new one's, from its first
            first = next(line for line in steps.iter_lines() if line.startswith("data:"))
        assert json.loads(first[5:])["seq"] == 1
    assert server.stop() == 0
    assert server.stderr.read_text().splitlines()[0].count("another one is started") == 1


def test_counters_go_on_over_a_death(start_server) -> None:
    server = start_server(*TINY)
    with server.http as http:

        def figures():
            text = http.get("/metrics").raise_for_status().text
            rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
            return {name: float(value) for name, value in rows}

        def of(name, found, **labels):
            (value,) = (
                value
                for key, value in found.items()
                if key.startswith(name + "{") and all(f'{k}="{v}"' in key for k, v in labels.items())
            )
            return value

        http.post("/v1/completions", json={"prompt": "a", "max_tokens": 5, "ignore_eos": True}).raise_for_status()
        with http.stream("POST", "/v1/completions", json=LONG) as response:
            lines = response.iter_lines()
            next(lines)
            until(lambda: of("vllm:num_requests_running", figures()) == 1)
            core_of(server).kill()
            assert "data: [DONE]" in list(lines)
        down = figures()
        assert (of("paged:engine_up", down), of("vllm:num_requests_running", down)) == (0, 0)
        assert of("vllm:kv_cache_usage_perc", down) == 0
        generated = of("vllm:generation_tokens_total", down)
        assert generated > 5
        assert of("vllm:request_success_total", down, finished_reason="error") == 1
        serves_again(http)
        fresh = figures()
        assert of("paged:blocks", fresh, state="free") == server.snapshot()["engine"]["num_blocks"]
        assert (of("paged:engine_up", fresh), of("paged:engine_restarts_total", fresh)) == (1, 1)
        http.post("/v1/completions", json={"prompt": "a", "max_tokens": 5, "ignore_eos": True}).raise_for_status()
        up = until(lambda: found if of("vllm:generation_tokens_total", found := figures()) >= generated + 5 else None)
        assert of("vllm:generation_tokens_total", up) == generated + 5
        assert of("vllm:prefix_cache_queries_total", up) == of("vllm:prefix_cache_queries_total", down) + 1
        assert of("vllm:request_success_total", up, finished_reason="length") == 2
        assert (of("paged:engine_up", up), of("paged:engine_restarts_total", up)) == (1, 1)


def test_without_restarts_the_server_ends_with_its_core(start_server) -> None:
    server = start_server("--model", "tiny", "--kv-memory", "4MiB", "--max-restarts", "0")
    with server.http as http, http.stream("POST", "/v1/completions", json=LONG) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        core_of(server).kill()
        rest = list(lines)
    assert rest[-1] == "data: [DONE]"
    assert "SIGKILL" in rest[-2]
    assert server.process.wait(20) == 1
    (line,) = server.stderr.read_text().splitlines()
    assert "killed by SIGKILL" in line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_requests_end(start_server, number) -> None:
    server = start_server(*TINY, "--admin-key", "the-admin-key")
    whole = {**LONG, "max_tokens": 400}
    with server.http as http, server.http as other, http.stream("POST", "/v1/completions", json=whole) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        server.process.send_signal(number)
        told = until(lambda: None if (answer := other.get("/health")).status_code == 200 else answer)
        assert told.json()["reason"] == "the server is shutting down"  # also to those without a key
        refused = other.post("/v1/completions", json=SHORT)
        assert (refused.status_code, refused.json()["error"]["message"]) == (503, "the server is shutting down")
        watched = other.get("/engine/snapshot", headers={"Authorization": "Bearer the-admin-key"})
        assert len(watched.json()["requests"]) == 1  # it can be watched to its end
        rest = list(lines)
    assert '"finish_reason":"length"' in rest[-2]
    assert server.process.wait(20) == 0
    assert "1 request has 30 s to end" in server.stderr.read_text()


@pytest.mark.parametrize(("options", "signals"), [(("--drain-timeout", "0"), 1), (("--drain-timeout", "60"), 2)])
def test_no_time_or_a_second_signal_ends_them(start_server, options, signals) -> None:
    server = start_server(*TINY, *options)
    with server.http as http, http.stream("POST", "/v1/completions", json=LONG) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        for _ in range(signals):
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.2)  # two at once are one
        rest = list(lines)
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"abort"' in rest[-2]
    assert server.process.wait(20) == 0


def test_a_third_signal_leaves_no_core_behind(start_server) -> None:
    server = start_server(*TINY)
    core = core_of(server)
    with server.http as http, http.stream("POST", "/v1/completions", json=LONG) as response:
        next(line for line in response.iter_lines() if line)
        core.suspend()  # it cannot notice that nobody is there any more
        for _ in range(3):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)  # two at once are one
        assert server.process.wait(20) == 128 + signal.SIGTERM
    until(lambda: not core.is_running() or core.status() == psutil.STATUS_ZOMBIE)


def test_a_death_while_it_stops_is_told_and_starts_nothing(start_server) -> None:
    server = start_server(*TINY)
    with server.http as http, http.stream("POST", "/v1/completions", json=LONG) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{server.url}/health").status_code == 503)
        core_of(server).kill()
        rest = list(lines)
    assert rest[-1] == "data: [DONE]"
    assert "SIGKILL" in rest[-2]
    assert server.process.wait(20) == 0
    stopping, died = server.stderr.read_text().splitlines()
    assert "stopping: 1 request has 30 s to end" in stopping
    assert "SIGKILL" in died
    assert "none is started" in died


def test_only_those_with_a_key_learn_what_it_died_of(start_server) -> None:
    keys = {"--api-key": "a-clients-key", "--admin-key": "the-admin-key"}
    server = start_server(*TINY, *(word for pair in keys.items() for word in pair))
    with server.http as http:
        core_of(server).kill()
        down = until(lambda: None if (told := http.get("/health")).status_code == 200 else told)
        assert down.json()["reason"] == "the engine cannot serve now"
        serves_again(http)
        assert http.get("/health").json() == {"status": "ok", "restarts": 1}
        assert "last_failure" not in http.get("/health", headers={"Authorization": "Bearer another-key"}).json()
        for key in keys.values():
            told = http.get("/health", headers={"Authorization": f"Bearer {key}"}).json()
            assert "SIGKILL" in told["last_failure"]["reason"]
            assert {*told, "reason"} == set(Health.__struct_fields__)  # as /openapi.json has it
