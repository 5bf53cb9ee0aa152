"""A real cluster of `tiny` over HTTP: its state, its control, each of its workers as a server of one, and `scale`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from engine.cluster.protocol import ClusterControl, ClusterState, WorkerState, decode_cluster
from engine.protocol import Record, decode_snapshot
from tests.engine.server.conftest import Server, start
from tests.engine.server.test_cluster_metrics import families, values
from tests.engine.server.test_openapi import check
from tui.client import HttpEngine
from tui.fold import EngineFold
from tui.sources.targets import HttpSettings

CLIENT, ADMIN = "client-client", "admin-admin"
PROMPT = "a prompt that is long enough to be prefilled by others than those who decode it"
ALL = ("prefill-0", "decode-0")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    tmp = tmp_path_factory.mktemp("cluster")
    for name, key in (("client", CLIENT), ("admin", ADMIN)):
        (tmp / name).write_text(f"{key}\n")
        (tmp / name).chmod(0o600)
    options = ["--model", "tiny", "--dtype", "float32", "--kv-memory", "2MiB", "--check-invariants"]
    options += ["--prefill", "1", "--decode", "1", "--local-prefill", "16", "--max-step-readers", "2"]
    server = start(tmp, *options, "--api-key-file", str(tmp / "client"), "--admin-key-file", str(tmp / "admin"))
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.stderr.read_text()


@pytest.fixture
def http(cluster: Server) -> Iterator[httpx.Client]:
    """An operator's."""
    with httpx.Client(base_url=cluster.url, timeout=60, headers={"Authorization": f"Bearer {ADMIN}"}) as client:
        yield client


def state_of(http: httpx.Client) -> ClusterState:
    return decode_cluster(http.get("/engine/cluster").raise_for_status().content)


def workers_of(http: httpx.Client) -> dict[str, WorkerState]:
    return {worker.name: worker for worker in state_of(http).workers}


def complete(http: httpx.Client, prompt: str = PROMPT, **settings: Any) -> None:
    body = {"prompt": prompt, "max_tokens": 4, "ignore_eos": True, **settings}
    http.post("/v1/completions", json=body).raise_for_status()


def settled(http: httpx.Client, done: Callable[[ClusterState], bool] | None = None) -> ClusterState:
    """The state once nothing runs, waits or is moved any more."""

    def is_idle(state: ClusterState) -> bool:
        busy = any(one.running + one.waiting + one.sending + one.receiving for one in state.workers)
        return not (busy or state.transfers)

    for state in states(http):
        if (done or is_idle)(state):
            return state
    raise AssertionError("the server ended")


def states(http: httpx.Client) -> Iterator[ClusterState]:
    with http.stream("GET", "/engine/cluster/events") as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: "):
                yield decode_cluster(line[6:])


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    return response.json()["error"]


def scale(cluster: Server, *options: str, **settings: Any) -> subprocess.Popen[str]:
    keys = str(Path(cluster.stderr).parent / "admin")
    command = [sys.executable, "-m", "engine.cli", "scale", "--url", cluster.url, "--admin-key-file", keys, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)


# The state


def test_the_state_tells_of_every_worker_and_of_what_goes_between_them(http: httpx.Client) -> None:
    before = settled(http)
    assert before.control == ClusterControl(local_prefill=16, prefill=1, decode=1)
    assert [(one.name, one.role, one.phase, one.path) for one in before.workers] == [
        ("prefill-0", "prefill", "ready", "/workers/prefill-0"),
        ("decode-0", "decode", "ready", "/workers/decode-0"),
    ]
    assert all(one.engine is not None and one.engine.model == "tiny" for one in before.workers)
    complete(http, "of this state alone: " + PROMPT)
    after = settled(http)
    sent, received = after.workers[0].sent, after.workers[1].received
    assert (sent.requests, received.requests) == (
        before.workers[0].sent.requests + 1,
        before.workers[1].received.requests + 1,
    )
    done = after.recent[-1]
    assert (done.source, done.target, done.error) == ("prefill-0", "decode-0", "")
    assert done.blocks == received.blocks - before.workers[1].received.blocks > 0
    assert done.nbytes == received.nbytes - before.workers[1].received.nbytes == done.blocks * 16 * 512
    assert after.workers[1].received_tokens > before.workers[1].received_tokens
    assert after.workers[1].separated.alone.steps >= before.workers[1].separated.alone.steps + 3
    assert after.router.handed_over == before.router.handed_over + 1
    assert after.number > before.number


def test_the_counts_of_each_worker_are_those_of_its_own_snapshot(http: httpx.Client) -> None:
    with http.stream("POST", "/v1/completions", json={"prompt": PROMPT, "max_tokens": 500, "stream": True}) as left:
        next(left.iter_lines())  # and then its client leaves
    for i in range(6):
        complete(http, f"{PROMPT} {i % 3}", n=1 + i % 2)
    told = settled(http)
    for worker in told.workers:
        snapshot = decode_snapshot(http.get(f"{worker.path}/engine/snapshot").raise_for_status().content)
        assert snapshot.seq == worker.seq
        assert worker.held_blocks == len({block for one in snapshot.requests for block in one.table}) == 0
        assert worker.cached_blocks == snapshot.pool.cached > 0
        counters = snapshot.counters
        assert (worker.prefill_tokens, worker.decode_tokens) == (counters.prefill_tokens, counters.decode_tokens)
        assert worker.received_tokens == counters.received_tokens
        assert (worker.looked_up_tokens, worker.found_tokens) == (
            snapshot.sharing.looked_up_tokens,
            snapshot.sharing.found_tokens,
        )


def test_states_come_one_at_once_and_then_with_every_change(http: httpx.Client) -> None:
    with httpx.Client(base_url=http.base_url, timeout=60, headers=http.headers) as watcher:
        seen = states(watcher)
        first = next(seen)
        assert first.control.local_prefill == 16
        http.patch("/engine/cluster", json={"local_prefill": 20}).raise_for_status()
        changed = next(state for state in seen if state.control.local_prefill == 20)
        assert changed.number > first.number
        http.patch("/engine/cluster", json={"local_prefill": 16}).raise_for_status()
        assert next(state for state in seen if state.control.local_prefill == 16).number > changed.number
        seen.close()


def test_so_many_readers_of_states_are_taken(http: httpx.Client) -> None:
    with http.stream("GET", "/engine/cluster/events") as one, http.stream("GET", "/engine/cluster/events") as other:
        assert (one.status_code, other.status_code) == (200, 200)
        assert error_of(http.get("/engine/cluster/events"), 429)["code"] == "too_many_readers"


# Its control


@pytest.mark.parametrize(
    ("sent", "param", "told"),
    [
        ({"prefill": -1}, "prefill", "must be from 0 to 1024, got -1"),
        ({"decode": 1025}, "decode", "must be from 0 to 1024, got 1025"),
        ({"replicas": "two"}, "replicas", 'an integer from 0 to 1024, got "two"'),
        ({"decode": 0}, "decode", "at least 1"),
        ({"routing": "magic"}, "routing", '"prefix"'),
        ({"separate": 1}, "separate", "true or false, got 1"),
        ({"local_prefill": 1 << 21}, "local_prefill", "must be from 0 to 1048576"),
        ({"workers": 2}, "workers", "unknown field; allowed: separate, routing"),
    ],
)
def test_a_field_of_the_control_that_cannot_be_is_named(http: httpx.Client, sent, param: str, told: str) -> None:
    before = state_of(http).control
    error = error_of(http.patch("/engine/cluster", json=sent), 400)
    assert error["param"] == param
    assert told in error["message"]
    assert state_of(http).control == before


def test_what_is_changed_holds_at_once_and_the_rest_stays(http: httpx.Client) -> None:
    answer = decode_cluster(http.patch("/engine/cluster", json={"separate": False}).raise_for_status().content)
    assert answer.control == ClusterControl(separate=False, local_prefill=16, prefill=1, decode=1)
    before = settled(http)
    complete(http, "colocated now: " + PROMPT)
    after = settled(http)
    assert after.router.handed_over == before.router.handed_over
    steps = [sum(one.colocated.alone.steps for one in state.workers) for state in (before, after)]
    assert steps[1] >= steps[0] + 3
    http.patch("/engine/cluster", json={"separate": True}).raise_for_status()


def test_scaling_up_and_down_shows_what_becomes_of_the_workers(cluster: Server, http: httpx.Client) -> None:
    growing = scale(cluster, "--replicas", "1")
    assert growing.stdout is not None
    assert "wanted: " in growing.stdout.readline()
    growing.send_signal(signal.SIGINT)  # which ends the watching, and not the change
    _, errors = growing.communicate(timeout=60)
    assert growing.returncode == 130
    assert errors == "paged-engine: the change stays in place, and goes on without being watched\n"

    growing = scale(cluster, "--decode", "2")
    starting = next(state for state in states(http) if len(state.workers) == 4)
    assert starting.workers[-1].name == "decode-1"
    assert starting.workers[-1].phase == "starting"
    loading = http.get("/workers/decode-1/engine/snapshot")
    assert (error_of(loading, 503)["code"], loading.headers["Retry-After"]) == ("engine_not_ready", "1")
    assert http.get("/workers/decode-1/health").status_code == 503
    out, errors = growing.communicate(timeout=60)
    assert (growing.returncode, errors) == (0, "")
    told = [line.split("  ")[-1] for line in out.splitlines()]
    assert told[0] == "wanted: prefill 1, decode 2, replicas 1, separate on, routing prefix, local prefill 16"
    assert {"decode-1: starting", "decode-1: ready"} < set(told)
    assert told[-1] == "done"
    assert {one.phase for one in workers_of(http).values()} == {"ready"}

    shrinking = scale(cluster, "--decode", "1", "--replicas", "0")
    out, errors = shrinking.communicate(timeout=60)
    assert (shrinking.returncode, errors) == (0, "")
    told = [line.split("  ")[-1] for line in out.splitlines()]
    assert {"decode-1: gone", "replica-0: gone"} < set(told)
    assert tuple(workers_of(http)) == ALL
    assert error_of(http.get("/workers/replica-0/health"), 404)["code"] == "worker_not_found"
    logged = cluster.stderr.read_text()
    assert "the cluster is to have prefill 1, decode 2, replicas 1, separate on" in logged
    for name in ("decode-1", "replica-0"):
        assert f"paged-engine: {name} serves\n" in logged
        assert f"paged-engine: {name} has gone\n" in logged


def test_what_a_cluster_refuses_is_told_by_scale(cluster: Server) -> None:
    refused = scale(cluster, "--decode", "0")
    out, errors = refused.communicate(timeout=60)
    assert (refused.returncode, out) == (1, "")
    assert "decode: must be at least 1" in errors
    assert errors.count("\n") == 1


# Each worker


@pytest.mark.parametrize("name", ALL)
async def test_paged_top_has_all_that_it_asks_for_at_a_workers_path(cluster: Server, http: httpx.Client, name) -> None:
    engine = HttpEngine(f"{cluster.url}/workers/{name}", HttpSettings(admin_key=ADMIN))
    try:
        snapshot = await engine.snapshot()
        fold = EngineFold.from_snapshot(snapshot)
        http.post("/engine/cache/clear").raise_for_status()
        complete(http)
        settled(http)
        last = await engine.snapshot()
        assert last.seq > snapshot.seq
        steps = engine.steps(snapshot.seq + 1)
        async for record in steps:
            assert isinstance(record, Record)
            fold.apply(record)
            if record.seq == last.seq:
                break
        await steps.aclose()
        assert fold.to_snapshot() == last
        accepted = await engine.change({"max_wait": 9.0})
        assert accepted.control.max_wait == 9.0
        await engine.change({"max_wait": 10.0})
        assert (await engine.block_text(0)).block == 0
        assert await engine.loads() == ()
        assert await engine.unready() == ""
    finally:
        await engine.close()


def test_a_workers_request_can_be_read_and_cancelled_there(http: httpx.Client) -> None:
    body = {"prompt": PROMPT, "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        request = json.loads(next(lines)[6:])["id"]
        at = settled(http, lambda state: any(one.running for one in state.workers[1:])).workers[1].path
        listed = http.get(f"{at}/engine/requests").raise_for_status().json()
        assert [one["request"] for one in listed["requests"]] == [request]
        assert http.get("/engine/requests").json()["running"] == 1  # the root has those of all workers
        told = http.get(f"{at}/engine/requests/{request}").raise_for_status().json()
        assert "".join(told["texts"]).startswith(PROMPT)
        assert http.get(f"/engine/requests/{request}").json()["prompt_tokens"] == told["prompt_tokens"]
        assert http.delete(f"{at}/engine/requests/{request}").json() == {"cancelled": [request]}
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert chunks[-1]["choices"][0]["finish_reason"] == "abort"
    assert not settled(http).transfers


def test_a_worker_that_is_not_there_is_named_with_those_that_are(http: httpx.Client, cluster: Server) -> None:
    error = error_of(http.get("/workers/decode-7/engine/steps"), 404)
    assert (error["param"], error["code"]) == ("name", "worker_not_found")
    assert error["message"] == "name: no worker 'decode-7'; there are: prefill-0, decode-0"
    strangers = httpx.get(f"{cluster.url}/workers/decode-7/health")
    assert "prefill-0" not in error_of(strangers, 404)["message"]


def test_an_engine_that_hands_over_keeps_the_control_it_needs(http: httpx.Client) -> None:
    for path in ("/engine/control", "/workers/prefill-0/engine/control"):
        error = error_of(http.patch(path, json={"batching": "static"}), 400)
        assert error["param"] == "batching"


def test_one_worker_may_have_another_control_and_the_root_sets_that_of_all(http: httpx.Client) -> None:
    def waits() -> list[float]:
        return [http.get(f"/workers/{name}/engine/control").json()["max_wait"] for name in ALL]

    http.patch("/workers/decode-0/engine/control", json={"max_wait": 3.0}).raise_for_status()
    assert waits() == [10.0, 3.0]
    assert http.patch("/engine/control", json={"max_wait": 4.0}).json()["max_wait"] == 4.0
    assert waits() == [4.0, 4.0]
    http.patch("/engine/control", json={"max_wait": 10.0}).raise_for_status()


# Who may


@pytest.mark.parametrize(
    ("method", "path", "stranger", "client", "admin"),
    [
        ("GET", "/engine/cluster", 401, 403, 200),
        ("PATCH", "/engine/cluster", 401, 403, 200),
        ("GET", "/workers/decode-0/engine/snapshot", 401, 403, 200),
        ("PATCH", "/workers/decode-0/engine/control", 401, 403, 200),
        ("POST", "/workers/decode-0/engine/cache/clear", 401, 403, 200),
        ("DELETE", "/workers/decode-0/engine/requests/nobody", 401, 403, 404),
        ("GET", "/workers/nobody/engine/snapshot", 401, 403, 404),
        ("GET", "/workers/decode-0/metrics", 401, 200, 200),
        ("GET", "/workers/decode-0/v1/models", 401, 200, 200),
        ("GET", "/workers/decode-0/health", 200, 200, 200),
        ("GET", "/workers/decode-0/version", 200, 200, 200),
        ("POST", "/workers/decode-0/v1/completions", 401, 404, 404),  # whoever asks a cluster asks all of it
    ],
)
def test_keys_open_as_much_of_a_worker_as_of_a_server(cluster, method, path, stranger, client, admin) -> None:
    for key, status in ((None, stranger), (CLIENT, client), (ADMIN, admin)):
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        body = "{}" if method == "PATCH" else None
        assert httpx.request(method, cluster.url + path, headers=headers, content=body).status_code == status


# The root


@pytest.mark.parametrize("path", ["/engine/snapshot", "/engine/steps", "/engine/blocks/0"])
def test_what_only_one_engine_can_tell_is_told_below_its_path(http: httpx.Client, path: str) -> None:
    error = error_of(http.get(path), 404)
    assert error["code"] == "cluster"
    assert f"/workers/prefill-0{path}, /workers/decode-0{path}" in error["message"]


def test_the_caches_of_all_are_cleared(http: httpx.Client) -> None:
    complete(http)
    cached = sum(one.cached_blocks for one in settled(http).workers)
    assert cached
    assert http.post("/engine/cache/clear").raise_for_status().json()["cleared_blocks"] == cached
    complete(http)


def test_metrics_are_of_all_workers_and_of_what_is_between_them(http: httpx.Client) -> None:
    complete(http)
    state = settled(http)
    found = families(http.get("/metrics").raise_for_status().content)
    assert set(values(found["paged:engine_up"], "engine").items()) == {((name,), 1.0) for name in ALL}
    for name, field in (("transferred_bytes", "nbytes"), ("transferred_requests", "requests")):
        told = values(found[f"paged:cluster_{name}"], "engine")
        assert told == {(one.name,): getattr(one.received, field) for one in state.workers}
    assert values(found["paged:cluster_handed_over_requests"])[()] == state.router.handed_over > 0
    count = next(one for one in found["paged:cluster_transfer_seconds"].samples if one.name.endswith("_count"))
    assert count.value == sum(one.received.requests for one in state.workers)
    alone = families(http.get("/workers/decode-0/metrics").raise_for_status().content)
    assert values(alone["paged:engine_up"], "engine") == {("decode-0",): 1.0}
    assert not [name for name in alone if name.startswith("paged:cluster")]


@pytest.fixture(scope="module")
def told(cluster: Server) -> dict:
    return httpx.get(f"{cluster.url}/openapi.json").raise_for_status().json()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/engine/cluster", None),
        ("PATCH", "/engine/cluster", {"local_prefill": 16}),
        ("PATCH", "/engine/cluster", {"decode": -1}),
        ("GET", "/engine/snapshot", None),
        ("GET", "/engine/requests", None),
        ("GET", "/engine/control", None),
        ("POST", "/engine/cache/clear", None),
        ("GET", "/workers/{name}/engine/snapshot", None),
        ("GET", "/workers/{name}/engine/requests", None),
        ("GET", "/workers/{name}/engine/loads", None),
        ("GET", "/workers/{name}/engine/control", None),
        ("PATCH", "/workers/{name}/engine/control", {"max_wait": 10.0}),
        ("GET", "/workers/{name}/health", None),
        ("GET", "/workers/{name}/v1/models", None),
        ("GET", "/workers/{name}/metrics", None),
    ],
)
def test_answers_are_as_the_document_states(http: httpx.Client, told: dict, method: str, path: str, body) -> None:
    for name in ("decode-0", "nobody") if "{name}" in path else ("",):
        content = None if body is None else json.dumps(body)
        check(told, path, http.request(method, path.replace("{name}", name), content=content))


def test_the_events_are_as_the_document_states(http: httpx.Client, told: dict) -> None:
    schema = told["paths"]["/engine/cluster/events"]["get"]["responses"]["200"]["content"]["text/event-stream"][
        "schema"
    ]
    validator = jsonschema.Draft202012Validator({**schema["contentSchema"], "components": told["components"]})
    with http.stream("GET", "/engine/cluster/events") as response:
        validator.validate(json.loads(next(line for line in response.iter_lines() if line.startswith("data: "))[6:]))


def test_the_document_has_a_workers_routes_where_there_are_workers_alone(told: dict, server: Server) -> None:
    below = {path for path in told["paths"] if path.startswith("/workers/{name}/")}
    assert {"/workers/{name}/engine/steps", "/workers/{name}/metrics", "/workers/{name}/health"} < below
    names = [method["operationId"] for methods in told["paths"].values() for method in methods.values()]
    assert len(set(names)) == len(names)
    with server.http as single:
        assert not re.search("workers", json.dumps(list(single.get("/openapi.json").json()["paths"])))


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("PATCH", ""), ("GET", "/events")])
def test_a_server_of_one_engine_says_that_it_is_no_cluster(server: Server, method: str, path: str) -> None:
    with server.http as single:
        error = error_of(single.request(method, f"/engine/cluster{path}", content="{}"), 404)
        assert error["code"] == "no_cluster"
        assert "--prefill" in error["message"]
        assert error_of(single.get("/workers/0/engine/snapshot"), 404)["code"] is None


# A death. The last, for it takes the engines' caches with it.


def test_engines_that_die_come_back_under_their_names(cluster: Server, http: httpx.Client) -> None:
    before = settled(http)
    engines = children_of(cluster.process.pid)
    assert len(engines) == len(ALL)
    for engine in engines:
        os.kill(engine, signal.SIGKILL)
    gone = settled(http, lambda state: all(one.phase == "starting" for one in state.workers))
    for one, was in zip(gone.workers, before.workers, strict=True):
        assert "SIGKILL" in one.reason
        assert (one.engine, one.seq, one.cached_blocks, one.decode_tokens) == (None, 0, 0, 0)
        assert (one.sent, one.received, one.separated) == (was.sent, was.received, was.separated)
        assert error_of(http.get(f"{one.path}/engine/snapshot"), 503)["code"] == "engine_not_ready"
    assert http.get("/health").status_code == 503
    up = values(families(http.get("/metrics").raise_for_status().content)["paged:engine_up"], "engine")
    assert set(up) == {(name,) for name in ALL}
    back = settled(http, lambda state: all(one.phase == "ready" for one in state.workers))
    assert [(one.name, one.restarts, one.reason) for one in back.workers] == [(name, 1, "") for name in ALL]
    complete(http)
    after = settled(http)
    assert after.workers[1].received.requests == before.workers[1].received.requests + 1
    assert after.workers[1].seq < before.workers[1].seq


def children_of(process: int) -> list[int]:
    """Whichever of its threads started them."""
    told = [task.read_text() for task in Path(f"/proc/{process}/task").glob("*/children")]
    return [int(child) for child in " ".join(told).split()]
