"""The queue's limits: who is refused, with which words, and that every place is given back once."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.server.admission import LATEST, Admission, Asked
from engine.server.answer_names import AnswerNames
from engine.server.errors import ApiError
from engine.server.settings import Limits
from tests.engine.server.conftest import Server, start

LONG = {"prompt": "a", "max_tokens": 4000, "ignore_eos": True, "stream": True}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def refused(admission: Admission, client: str, count: int) -> ApiError:
    with pytest.raises(ApiError) as error:
        admission.check(client, Asked(count, "n"))
    return error.value


def retry_after(error: ApiError) -> int:
    assert error.headers is not None
    return int(error.headers["Retry-After"])


def test_which_limit_it_was_and_how_many_wait() -> None:
    admission = Admission(Limits(max_queue=10, max_queue_per_client=6))
    admission.enter("a", {"one": 1, "search": 4}, "n")
    error = refused(admission, "a", 2)
    assert (error.status, error.code, error.param) == (429, "queue_full", None)
    assert "of 6 places (--max-queue-per-client) 5 are taken by this client's requests" in error.message
    assert "this needs 2" in error.message
    admission.enter("b", {"two": 5}, "n")
    error = refused(admission, "c", 1)
    assert "of 10 places (--max-queue) 10 are taken by requests" in error.message


def test_what_could_never_wait_is_not_told_to_come_back() -> None:
    admission = Admission(Limits(max_queue=10, max_queue_per_client=6))
    for count, flag in ((11, "10 may wait (--max-queue)"), (7, "6 may wait (--max-queue-per-client)")):
        error = refused(admission, "a", count)
        assert (error.status, error.param) == (400, "n")
        assert flag in error.message
        assert error.headers is None


def test_nothing_is_taken_of_what_is_refused() -> None:
    admission = Admission(Limits(max_queue=3))
    admission.enter("a", {"x": 2}, "n")
    with pytest.raises(ApiError):
        admission.enter("b", {"y": 1, "z": 1}, "n")
    assert (admission.waiting, admission.waiting_of("a"), admission.waiting_of("b")) == (2, 2, 0)


def test_when_to_come_back_follows_from_the_rate_of_first_tokens() -> None:
    clock = Clock()
    admission = Admission(Limits(max_queue=100), clock)
    ticket = admission.enter("a", {f"r{i}": 1 for i in range(100)}, "n")
    clock.now += 0.2
    assert retry_after(refused(admission, "b", 1)) == 1, "the least"
    clock.now += 7.3
    assert retry_after(refused(admission, "b", 1)) == 8, "as if the first came now"
    for i in range(10):
        clock.now += 0.5
        ticket.got_token(f"r{i}")
    admission.enter("a", {f"again{i}": 1 for i in range(10)}, "n")
    assert retry_after(refused(admission, "b", 10)) == 13, "12.5 s for the latest 10"
    clock.now += 1000
    assert retry_after(refused(admission, "b", 10)) == 60, "the most"


def test_the_rate_is_that_of_the_latest_first_tokens() -> None:
    clock = Clock()
    admission = Admission(Limits(max_queue=1000), clock)
    ticket = admission.enter("a", {f"r{i}": 1 for i in range(500)}, "n")
    clock.now += 300
    for i in range(LATEST):
        clock.now += 0.25
        ticket.got_token(f"r{i}")
    admission.enter("b", {f"s{i}": 1 for i in range(564)}, "n")
    ticket.got_token(f"r{LATEST}")
    assert retry_after(refused(admission, "c", 9)) == 2


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_every_place_is_given_back_once_whatever_happens_in_which_order(data) -> None:
    limits = Limits(max_queue=data.draw(st.integers(1, 12)), max_queue_per_client=data.draw(st.integers(1, 12)))
    admission = Admission(limits)
    tickets: list[tuple[object, str, dict[str, int]]] = []
    for number in range(data.draw(st.integers(0, 25))):
        what = data.draw(st.sampled_from(["enter", "got_token", "ended", "close"]))
        if what == "enter":
            client = data.draw(st.sampled_from("ab"))
            places = {f"{number}-{i}": data.draw(st.integers(1, 4)) for i in range(data.draw(st.integers(1, 4)))}
            before, count = (admission.waiting, admission.waiting_of(client)), sum(places.values())
            fits = before[0] + count <= limits.max_queue and before[1] + count <= limits.max_queue_per_client
            if fits:
                tickets.append((admission.enter(client, places, "n"), client, places))
                continue
            with pytest.raises(ApiError) as error:
                admission.enter(client, places, "n")
            never = count > min(limits.max_queue, limits.max_queue_per_client)
            assert error.value.status == (400 if never else 429)
            assert (admission.waiting, admission.waiting_of(client)) == before
        elif tickets:
            ticket, client, left = data.draw(st.sampled_from(tickets))
            if what == "close":
                ticket.close()
                left.clear()
            else:
                one = data.draw(st.sampled_from([*left, "unknown"]))
                getattr(ticket, what)(one)
                left.pop(one, None)
        for client in "ab":
            assert admission.waiting_of(client) == sum(sum(p.values()) for _, whose, p in tickets if whose == client)
        assert admission.waiting == admission.waiting_of("a") + admission.waiting_of("b")
    for ticket, _, _ in tickets:
        ticket.close()
        ticket.close()
    assert (admission.waiting, admission._clients) == (0, {})


def test_no_two_answers_have_one_name_nor_a_choice_that_of_another() -> None:
    names = AnswerNames(100)
    assert names.unlike("cmpl-a") == "cmpl-a"
    again = names.unlike("cmpl-a")
    assert again not in ("cmpl-a", names.unlike("cmpl-a"))
    assert names.unlike("cmpl-a-0") != "cmpl-a-0", "so may a choice of the first be called"
    assert names.unlike(again) != again
    assert names.unlike("cmpl-0123456789abcdef") == "cmpl-0123456789abcdef"
    assert names.unlike("cmpl-7b0c1c1e-0d6a-4f3a-9a57-446655440000").endswith("-446655440000")
    for number in range(100 + 10):
        names.unlike(f"cmpl-{number}")
    assert len(names._given) == 100


# With a real engine.


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One row, and four may wait."""
    options = ("--model", "tiny", "--dtype", "float32", "--kv-memory", "4MiB", "--max-num-seqs", "1")
    limits = ("--max-queue", "4", "--max-queue-per-client", "3", "--check-invariants")
    server = start(tmp_path_factory.mktemp("narrow"), *options, *limits)
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.stderr.read_text()


class Streams:
    """Requests that go on until they are closed."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.http = server.http
        self.responses: list[httpx.Response] = []
        self.lines: list[Iterator[str]] = []

    def open(self, **fields) -> Iterator[str]:
        """Returns its further lines when it has a first chunk."""
        request = self.http.build_request("POST", "/v1/completions", json={**LONG, **fields})
        response = self.http.send(request, stream=True)
        assert response.status_code == 200, response.read()
        self.responses.append(response)
        self.lines.append(response.iter_lines())  # who lets go of it closes the response
        next(self.lines[-1])
        return self.lines[-1]

    def close(self) -> None:
        for response in self.responses:
            response.close()
        self.http.close()


@pytest.fixture
def streams(narrow: Server) -> Iterator[Streams]:
    held = Streams(narrow)
    yield held
    held.close()
    until(lambda: narrow.snapshot()["requests"] == [])


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


def post(server: Server, **fields) -> httpx.Response:
    with server.http as http:
        return http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, **fields})


def waiting(server: Server) -> int:
    return sum(one["status"] == "waiting" for one in server.snapshot()["requests"])


def in_background(server: Server, count: int, **fields) -> list[threading.Thread]:
    threads = [threading.Thread(target=post, args=(server,), kwargs=fields) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_a_full_queue_is_told_with_when_to_come_back(narrow: Server, streams: Streams) -> None:
    streams.open()
    threads = in_background(narrow, 3)
    until(lambda: waiting(narrow) == 3)
    for fields in ({}, {"stream": True}, {"prompt": "x" * 2_000_000}):
        response = post(narrow, **fields)
        assert response.status_code == 429, response.text
        error = response.json()["error"]
        assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
        assert "of 3 places (--max-queue-per-client) 3 are taken" in error["message"]
        assert 1 <= int(response.headers["Retry-After"]) <= 60
    state = narrow.snapshot()
    assert len(state["requests"]) == 4, "nothing of a refused request reached the engine"
    streams.close()
    for thread in threads:
        thread.join(20)
    assert post(narrow).status_code == 200


def test_a_client_that_leaves_gives_its_place_back(narrow: Server, streams: Streams) -> None:
    streams.open()
    for _ in range(3):
        with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=narrow.url, timeout=0.3) as http:
            http.post("/v1/completions", json={"prompt": ["a", "b", "c"], "max_tokens": 1})
        until(lambda: waiting(narrow) == 0)
    streams.close()
    assert post(narrow, prompt=["a", "b", "c"]).status_code == 200


def test_one_that_ends_without_a_token_gives_its_place_back(narrow: Server, streams: Streams) -> None:
    streams.open()
    for _ in range(2):
        response = post(narrow, prompt=["a", "b", "c"], timeout=0.1)
        assert response.status_code == 504, response.text
    streams.close()
    for _ in range(3):  # refused by the core: the whole pool is too small
        assert post(narrow, prompt=["a"] * 3, max_tokens=4000).status_code in (200, 400)


@pytest.mark.parametrize(
    ("fields", "param", "count"),
    [({"prompt": ["a"] * 4}, "prompt", 4), ({"prompt": [[1]] * 9}, "prompt", 9)],
)
def test_what_can_never_wait_is_a_bad_request(narrow: Server, fields: dict, param: str, count: int) -> None:
    response = post(narrow, **fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert f"makes {count} requests" in error["message"]
    assert "--max-queue" in error["message"]


def test_choices_and_beams_count_one_by_one(narrow: Server) -> None:
    with narrow.control(max_num_seqs=8):
        for fields in ({"n": 4}, {"n": 1, "use_beam_search": True, "beam_width": 4}):
            response = post(narrow, **fields)
            assert response.status_code == 400, response.text
            assert "makes 4 requests" in response.json()["error"]["message"]
        for fields in ({"n": 3}, {"n": 1, "use_beam_search": True, "beam_width": 3}):
            assert post(narrow, **fields).status_code == 200


def test_the_same_request_id_twice_at_a_time_and_after_one_another(narrow: Server, streams: Streams) -> None:
    with narrow.control(max_num_seqs=4, batching="static"):
        streams.http.headers["X-Request-Id"] = "twice"
        streams.open(max_tokens=40)
        bodies = [{"prompt": "a", "max_tokens": 2}, {"prompt": "a", "max_tokens": 1, "n": 2}]
        ids = set()
        for body in bodies * 2:
            with narrow.http as http:
                response = http.post("/v1/completions", json=body, headers={"X-Request-Id": "twice"})
            assert response.status_code == 200, response.text
            assert response.headers["X-Request-Id"] == "twice"
            ids.add(response.json()["id"])
        assert len(ids) == 4
        assert all(one.startswith("cmpl-twice") for one in ids)


def test_when_the_core_dies_all_places_are_given_back(start_server, tmp_path: Path) -> None:
    server = start_server("--model", "tiny", "--kv-memory", "4MiB", "--max-num-seqs", "1", "--max-queue", "3")
    held = Streams(server)
    stream = held.open()
    answers: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: answers.append(post(server))) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: waiting(server) == 3)
    assert post(server).status_code == 429
    (core,) = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    os.kill(int(core), signal.SIGKILL)
    for thread in threads:
        thread.join(20)
    assert [answer.status_code for answer in answers] == [503] * 3
    for answer in answers:
        assert answer.json()["error"]["code"] == "engine_not_ready"
        assert answer.headers["Retry-After"] == "1"
    lines = [line for line in stream if line]
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "engine_not_ready"
    assert lines[-1] == "data: [DONE]"
    held.close()
    until(lambda: httpx.get(f"{server.url}/health").status_code == 200)
    again = [threading.Thread(target=lambda: answers.append(post(server))) for _ in range(3)]
    for thread in again:
        thread.start()
    for thread in again:
        thread.join(20)
    assert [answer.status_code for answer in answers[3:]] == [200] * 3
