"""Load generators tell the engine of their runs, over HTTP, and everybody who asks sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from engine.protocol import LiveLoads, LoadRun, decode_loads
from engine.server.load_board import MAX_LOADS
from engine.server.load_routes import MAX_BYTES

RUN: dict[str, Any] = {
    "label": "replay", "trace": "chat500", "elapsed": 3.25, "share": 0.1, "sessions": 20, "sessions_done": 1,
    "turns": 90, "due": 12, "queued": 1, "sent": 11, "in_flight": 2, "completed": 8, "failed": 1, "output_tokens": 640,
    "speed": 20, "ttft": {"p50": 0.1, "p99": 0.3, "requests": 9}, "ttft_scheduled": {"p50": 0.2, "requests": 9},
    "tpot": {}, "e2e": {}, "e2e_scheduled": {},
}  # fmt: skip


@pytest.fixture(autouse=True)
def nobody_stays(http: httpx.Client) -> Iterator[None]:
    yield
    for load in told(http).loads:
        http.delete(f"/engine/loads/{load.id}").raise_for_status()


def told(http: httpx.Client) -> LiveLoads:
    return decode_loads(http.get("/engine/loads").raise_for_status().content)


def test_what_is_told_is_seen_until_it_is_over(http: httpx.Client, server) -> None:
    seq = server.snapshot()["seq"]
    assert told(http).loads == ()
    assert http.put("/engine/loads/a-1", json=RUN).status_code == 204
    (load,) = told(http).loads
    assert load.id == "a-1"
    assert 0 <= load.age < 5
    assert load.run == msgspec.convert(RUN, LoadRun)
    http.put("/engine/loads/a-1", json={**RUN, "completed": 9}).raise_for_status()
    (load,) = told(http).loads
    assert load.run.completed == 9
    assert http.delete("/engine/loads/a-1").status_code == 204
    assert told(http).loads == ()
    gone = http.delete("/engine/loads/a-1")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "load_not_found")
    assert server.snapshot()["seq"] == seq  # the engine itself has heard nothing


@pytest.mark.parametrize(
    ("changed", "param", "words"),
    [
        ({"elapsed": -1}, "elapsed", "must be from 0 to 1e+12, got -1"),
        ({"share": 1.5}, "share", "must be from 0 to 1, got 1.5"),
        ({"sent": 1.5}, "sent", "an integer"),
        ({"sent": 1 << 54}, "sent", "from 0 to 9007199254740992"),
        ({"label": "x" * 201}, "label", "a string of 0 to 200 characters, got 201 characters"),
        ({"trace": None}, "trace", "a string"),
        ({"ttft": {"p50": "soon"}}, "ttft.p50", 'a number from 0 to 1e+12, got "soon"'),
        ({"bottleneck": 1}, "bottleneck", "true or false, got 1"),
    ],
)
def test_a_field_that_cannot_be_is_named(http: httpx.Client, changed: dict[str, Any], param: str, words: str) -> None:
    answer = http.put("/engine/loads/a", json={**RUN, **changed})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert words in error["message"]
    assert told(http).loads == ()


def test_a_field_that_lacks_is_named(http: httpx.Client) -> None:
    without = {name: value for name, value in RUN.items() if name != "in_flight"}
    assert http.put("/engine/loads/a", json=without).json()["error"]["message"] == "in_flight: required, but missing"
    assert "not valid JSON" in http.put("/engine/loads/a", content=b"{").json()["error"]["message"]


@pytest.mark.parametrize("load", ["a%2Fb", "a%20b", "x" * 65, "%C3%A9"])
def test_an_id_is_short_and_plain(http: httpx.Client, load: str) -> None:
    answer = http.put(f"/engine/loads/{load}", json=RUN)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("id: must be 1 to 64 of ")


def test_a_long_body_is_not_read(http: httpx.Client) -> None:
    long = msgspec.json.encode({**RUN, "more": "x" * MAX_BYTES})
    answer = http.put("/engine/loads/a", content=long)
    assert answer.status_code == 413
    assert "at most 16 KiB are taken here" in answer.json()["error"]["message"]
    fitting = msgspec.json.encode({**RUN, "more": "x" * (MAX_BYTES - 1000)})
    assert http.put("/engine/loads/a", content=fitting).status_code == 204


def test_so_many_loads_and_no_more(http: httpx.Client) -> None:
    for number in range(MAX_LOADS):
        http.put(f"/engine/loads/{number}", json=RUN).raise_for_status()
    answer = http.put("/engine/loads/more", json=RUN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_loads")
    assert [load.id for load in told(http).loads] == [str(number) for number in range(MAX_LOADS)]


def test_routes_that_are_not_there_say_what_is(http: httpx.Client) -> None:
    message = http.post("/engine/loads").json()["error"]["message"]
    assert message == "POST is not allowed here; allowed: GET, HEAD, OPTIONS"
    message = http.get("/engine/loads/a").json()["error"]["message"]
    assert message == "GET is not allowed here; allowed: DELETE, OPTIONS, PUT"
