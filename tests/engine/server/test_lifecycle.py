"""From start to end: signals end it cleanly, a dead core is told, and no process is left behind."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

LONG = {"prompt": "a", "max_tokens": 4000, "ignore_eos": True, "stream": True}


def core_of(server) -> psutil.Process:
    (core,) = psutil.Process(server.process.pid).children()
    assert "engine.core_process" in core.cmdline()
    return core


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_streams_and_processes(start_server, number: int) -> None:
    server = start_server("--model", "tiny", "--kv-memory", "4MiB", "--drain-timeout", "0.3")
    core = core_of(server)
    host, port = server.url.removeprefix("http://").split(":")
    with (
        socket.create_connection((host, int(port))) as stopped_reader,
        server.http as http,
        http.stream("POST", "/v1/completions", json=LONG) as response,
    ):
        stopped_reader.sendall(b"GET /engine/steps?from=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        core.send_signal(number)  # a terminal and a service manager tell every process
        assert len(server.snapshot()["requests"]) == 1
        server.process.send_signal(number)
        rest = list(lines)
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"abort"' in rest[-2]
    assert server.process.wait(20) == 0
    core.wait(10)
    assert server.stderr.read_text().splitlines() == [
        "paged-engine: stopping: 1 request has 0.3 s to end; another signal ends them at once"
    ]


def test_a_search_answers_what_it_has_when_the_server_stops(start_server) -> None:
    server = start_server("--model", "tiny", "--kv-memory", "4MiB", "--drain-timeout", "0.3")
    body = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "use_beam_search": True, "n": 2}
    with server.http as http, ThreadPoolExecutor() as pool:
        asked = pool.submit(http.post, "/v1/completions", json=body)
        while not any(request["num_tokens"] > 5 for request in server.snapshot()["requests"]):
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        choices = asked.result().raise_for_status().json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["abort"] * 2
    assert all(choice["text"] for choice in choices)
    assert server.process.wait(20) == 0
    (line,) = server.stderr.read_text().splitlines()
    assert line.startswith("paged-engine: stopping: 1 request has 0.3 s to end")


def test_a_pool_smaller_than_the_model_is_named(start_server) -> None:
    server = start_server("--model", "tiny", "--dtype", "float32", "--kv-memory", "64KiB")
    with server.http as http:
        size = http.get("/v1/models").json()["data"][0]["max_model_len"]
        assert size == 128
        answer = http.post("/v1/completions", json={"prompt": [65] * size})
        assert answer.status_code == 400
        assert "the KV cache holds 128 tokens (8 blocks of 16)" in answer.json()["error"]["message"]
        fits = http.post("/v1/completions", json={"prompt": [65] * (size - 8), "max_tokens": 8, "ignore_eos": True})
        assert fits.json()["usage"]["total_tokens"] == size


def test_what_is_not_http_is_refused_quietly(start_server) -> None:
    server = start_server("--model", "tiny", "--kv-memory", "4MiB")
    host, port = server.url.removeprefix("http://").split(":")
    for garbage in (
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x00\xff" * 20,
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    ):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(garbage)
            assert b" 400 " in connection.recv(1000)
    with socket.create_connection((host, int(port))) as connection:  # leaves in the middle of a body
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    assert server.http.get("/health").status_code == 200
    assert server.stop() == 0
    assert server.stderr.read_text() == ""


def test_a_request_that_no_token_is_left_for_fails_and_the_engine_serves_on(start_server) -> None:
    server = start_server("--model", "tiny", "--kv-memory", "4MiB", "--fault", "nan@1")
    body = {"prompt": "a", "max_tokens": 2, "ignore_eos": True}
    with server.http as http:
        answer = http.post("/v1/completions", json=body)
        assert answer.status_code == 500
        assert "no token can be chosen" in answer.json()["error"]["message"]
        assert http.post("/v1/completions", json=body).json()["choices"][0]["finish_reason"] == "length"
    assert server.snapshot()["counters"]["failed"] == 1
    assert server.stop() == 0
    warned, line = server.stderr.read_text().splitlines()
    assert warned == "paged-engine: --fault: faults will be made to happen: nan@1"
    assert "status=500" in line
    assert "no token can be chosen" in line


def test_the_api_process_dies_and_the_core_with_it(start_server) -> None:
    server = start_server("--model", "tiny", "--kv-memory", "4MiB")
    core = core_of(server)
    server.process.kill()
    server.process.wait()
    core.wait(20)


def test_a_module_in_the_working_folder_is_not_taken_for_a_library(tmp_path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('taken from the working folder')")
    command = [Path(sys.executable).parent / "paged-engine", "serve", "--model", "tiny", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path)
    try:
        assert process.stdout is not None
        assert "serving tiny" in process.stdout.readline()
    finally:
        process.terminate()
        assert process.wait(20) == 0


def test_health_says_why_until_it_can_serve(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.cli", "serve", "--model", "tiny", "--port", str(port)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        answers = []
        while not answers or answers[-1].status_code != 200:
            try:
                answers.append(httpx.get(f"http://127.0.0.1:{port}/health", timeout=30))
            except httpx.ConnectError:
                assert process.poll() is None
            time.sleep(0.02)
        assert answers[0].status_code == 503
        assert answers[0].json()["reason"] == "the engine is loading tiny"
        assert f"http://127.0.0.1:{port} " in process.stdout.readline()
    finally:
        process.terminate()
        assert process.wait(20) == 0


def test_it_serves_though_nobody_reads_its_line(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "engine.cli", "serve", "--model", "tiny", "--port", str(port)]
    with (tmp_path / "stderr").open("w") as errors:
        process = subprocess.Popen(command, stdout=writer, stderr=errors)
    os.close(writer)
    try:
        for _ in range(300):
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    break
            time.sleep(0.1)
        assert httpx.get(f"http://127.0.0.1:{port}/v1/models").status_code == 200
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        assert "Traceback" not in (tmp_path / "stderr").read_text()
    finally:
        process.kill()
        process.wait()


def test_the_api_process_never_loads_torch(server) -> None:
    maps = psutil.Process(server.process.pid).memory_maps()
    assert not [m.path for m in maps if "/torch/" in m.path]
    assert [m.path for m in core_of(server).memory_maps() if "/torch/" in m.path]


@pytest.mark.model
def test_smollm2_knows_the_capital_of_france(start_server) -> None:
    server = start_server("--model", "smollm2-135m", "--dtype", "float32", "--served-model-name", "small", "smollm2")
    try:
        with server.client as client:
            assert [model.id for model in client.models.list().data] == ["small", "smollm2"]
            messages = [{"role": "user", "content": "What is the capital of France?"}]
            ask = {"messages": messages, "temperature": 0, "max_tokens": 32}
            answer = client.chat.completions.create(model="smollm2", **ask)
            assert "Paris" in answer.choices[0].message.content
            assert answer.choices[0].finish_reason == "stop"
            chunks = list(client.chat.completions.create(model="small", stream=True, **ask))
        text = "".join(chunk.choices[0].delta.content for chunk in chunks)
        assert text == answer.choices[0].message.content
        assert len(chunks) == answer.usage.completion_tokens
    finally:
        assert server.stop() == 0
