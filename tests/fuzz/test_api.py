"""`make fuzz`, as much of it as is quick (PAGED_TOP_FUZZ_REQUESTS: more): no request brings the server out of step."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.api import judged
from tests.fuzz.attempt import Answer, Attempt, Hangs, make
from tests.fuzz.request_maker import RequestMaker

REQUESTS = os.environ.get("PAGED_TOP_FUZZ_REQUESTS", "300")


def test_no_request_does_lasting_harm(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.api", "--count", REQUESTS, "--save", str(tmp_path), "--hang", "60"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{int(REQUESTS):,} requests in" in done.stdout
    assert "0 failures" in done.stdout
    assert " by the schemas" in done.stdout
    for status in (" 200,", " 400,", " 404,"):
        assert status in done.stdout.replace("\n", ",")


def test_attempts_are_made_again_by_their_number(tmp_path: Path) -> None:
    first, second = RequestMaker(5, waiting=0.1), RequestMaker(5, waiting=0.1)
    made = [first.make(number) for number in range(400)]
    assert made == [second.make(number) for number in range(400)]
    assert len({attempt.label for attempt in made}) == 11
    for attempt in made[:50]:
        attempt.save(tmp_path / "saved")
        assert Attempt.load(tmp_path / "saved") == attempt


ERROR = b'{"error": {"message": "n: must be 1", "type": "invalid_request_error", "param": "n", "code": null}}'
JSON = "application/json"
WHOLE = Attempt("x", (b"",))


def test_only_a_timeout_that_was_asked_for_may_end_a_request() -> None:
    assert not judged(Attempt("x", (b'{"timeout": 0.1}',)), Answer(504, JSON, ERROR))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Answer(400, JSON, ERROR), ""),
        (Answer(200, JSON, b"{}"), ""),
        (Answer(204), ""),
        (Answer(500, JSON, ERROR), "status 500"),
        (Answer(503, JSON, ERROR), "status 503"),
        (Answer(504, JSON, ERROR), "status 504"),
        (Answer(400, "text/plain", b"Bad Request"), "without an error in JSON"),
        (Answer(400, JSON, b'{"error": "x"}'), "without an error in JSON"),
        (Answer(404, JSON, ERROR.replace(b"n: must be 1", b"")), "without an error in JSON"),
        (Answer(200, JSON, b"{"), "no JSON"),
        (Answer(200, "text/event-stream", b"data: {}\n\n"), "without [DONE]"),
        (Answer(200, "text/event-stream", b'data: {"error":{}}\n\ndata: [DONE]\n\n'), "ends with an error"),
        (Answer(0, problem="RemoteDisconnected"), "no answer to a whole request"),
    ],
)
def test_answers_are_judged(answer: Answer, problem: str) -> None:
    found = judged(WHOLE, answer)
    assert problem in found
    assert bool(found) == bool(problem)


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """A server that takes a request, and says nothing: nobody accepts the connection that the kernel made."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()


def test_a_hang_is_found(silent: tuple[str, int]) -> None:
    with pytest.raises(Hangs):
        make(Attempt("x", (b"GET / HTTP/1.1\r\n\r\n",)), silent, 0.3)


def test_a_client_that_leaves_waits_for_nothing(silent: tuple[str, int]) -> None:
    assert make(Attempt("x", (b"GET /",), end="cut", whole=False), silent, 30.0).problem == "left"
