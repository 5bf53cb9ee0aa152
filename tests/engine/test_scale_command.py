"""`paged-engine scale` without a cluster: what it takes, when it is done, and what it says of servers that are none."""

from __future__ import annotations

import socket

import pytest

from engine.cli import main
from engine.cluster.protocol import ClusterControl, ClusterState, Role, RouterState, WorkerPhase, WorkerState
from engine.scale_command import FAILED, hopeless, is_done

ONE_AND_ONE = ClusterControl(prefill=1, decode=1)


def state(control: ClusterControl, *workers: tuple[Role, WorkerPhase]) -> ClusterState:
    found = tuple(
        WorkerState(
            f"{role}-{i}", role, phase, f"/workers/{role}-{i}", "here", reason="it was killed" * (phase == "dead")
        )
        for i, (role, phase) in enumerate(workers)
    )
    return ClusterState(1, 0.0, control, found, (), (), RouterState())


@pytest.mark.parametrize(
    ("workers", "done", "dead"),
    [
        ([("prefill", "ready"), ("decode", "ready")], True, False),
        ([("prefill", "ready"), ("decode", "starting")], False, False),
        ([("prefill", "ready"), ("decode", "ready"), ("replica", "draining")], False, False),
        ([("prefill", "ready"), ("decode", "ready"), ("decode", "ready")], False, False),  # one has yet to be drained
        ([("prefill", "ready")], False, False),
        ([("prefill", "ready"), ("decode", "dead")], False, True),
        ([("prefill", "dead"), ("decode", "dead"), ("prefill", "starting")], False, False),
        ([("prefill", "dead"), ("prefill", "ready"), ("decode", "ready")], True, True),  # another is in its place
    ],
)
def test_it_is_done_when_there_are_as_many_as_wanted_and_none_comes_or_goes(workers, done: bool, dead: bool) -> None:
    now = state(ONE_AND_ONE, *workers)
    assert is_done(now) == done
    assert bool(hopeless(now)) == dead
    assert all("is dead: it was killed" in told for told in hopeless(now))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "nothing to change: --prefill, --decode"),
        (["--decode", "-1"], "--decode: must be a whole number from 0 to 1024, got '-1'"),
        (["--decode", "1025"], "from 0 to 1024, got '1025'"),
        (["--separate", "maybe"], "--separate: invalid choice: 'maybe'"),
        (["--routing", "magic"], "--routing: invalid choice: 'magic'"),
        (["--decode", "1", "--url", "ftp://x"], "--url: must be an address such as http://127.0.0.1:8000"),
        (["--decode", "1", "--url", "http://x:99999"], "--url: must be an address"),
        (["--decode", "1", "--admin-key", "short"], "--admin-key: a key must have 8 to 512 characters, got 5"),
        (["--decode", "1", "--admin-key-file", "/nowhere"], "--admin-key-file /nowhere: cannot read it: No such file"),
        (["--decode", "1", "--timeout", "soon"], "--timeout: must be a number of seconds from 0 to 86400, got 'soon'"),
    ],
)
def test_bad_options_are_one_line_that_names_them(options: list[str], told: str, capsys) -> None:
    try:
        code = main(["scale", *options])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    errors = capsys.readouterr().err
    assert told in errors
    assert errors.count("\n") == 1


def test_sizes_come_from_the_command_line_alone(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("PAGED_ENGINE_DECODE", "3")  # it is what `serve` begins with
    assert main(["scale"]) == 2
    assert "nothing to change" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_told(capsys) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert main(["scale", "--decode", "1", "--url", url]) == FAILED
    assert capsys.readouterr().err == f"paged-engine: error: {url} cannot be asked: Connection refused\n"


def test_a_server_that_says_nothing_is_waited_for_as_long_as_the_timeout_says(capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes connections, and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert main(["scale", "--decode", "1", "--url", url, "--timeout", "0.1"]) == FAILED
    assert capsys.readouterr().err == f"paged-engine: error: {url} cannot be asked: nothing came for 1 s\n"
