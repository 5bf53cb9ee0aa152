"""Starting an engine again: how soon, with what, and when no more. Processes are stood in for; real ones die in
tests/engine/server/test_restarts.py."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from engine import supervisor
from engine.config import EngineConfig
from engine.core_client import ControlInForce, EngineDiedError
from engine.kv_endpoint import KvPublishing
from engine.protocol import Control, EngineInfo
from engine.server.settings import Recovery
from engine.supervisor import BACK_OFF, CannotStart, GaveUp, Supervisor, started

INFO = EngineInfo("tiny", "float32", "cpu", 16, 8, 64, 64, "0")
LOADING = 100.0  # seconds, which do not count as served
STATIC = Control(batching="static")


def dead(served=True, unusable=False, control=None, kv_events=None):
    """A client whose engine has died."""
    return SimpleNamespace(
        info=INFO if served else None,
        death=EngineDiedError("it died", unusable=unusable),
        in_force=ControlInForce(control or Control(), 1) if served else None,
        kv_events=kv_events,
    )


class Trial:
    """Lives one after the other; what was slept and started between them. The list's end stops the supervisor."""

    def __init__(self, lives, monkeypatch, most=10, lasting=0.0, failing_starts=0):
        self.lives = iter(lives)
        self.started, self.slept, self.now = [], [], 0.0
        self.lasting, self.failing = lasting, failing_starts
        self.ends_asleep = False
        self.supervisor = Supervisor(EngineConfig(), Recovery(most), "first", self.serve, self.start)
        monkeypatch.setattr(supervisor.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(supervisor.asyncio, "sleep", self.sleep)

    async def serve(self, core):
        self.now += LOADING
        life = next(self.lives, None)
        if life is None:
            self.supervisor.end()
            return dead()
        if life.info is not None:
            life.info = replace(life.info, started=self.now)
            self.now += self.lasting
        return life

    def start(self, config):
        if self.failing:
            self.failing -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        self.started.append(config)
        return f"core {len(self.started)}"

    async def sleep(self, seconds):
        self.slept.append(seconds)
        if self.ends_asleep:
            self.supervisor.end()

    def run(self):
        asyncio.run(self.supervisor.run())


def test_deaths_in_a_row_wait_longer_and_longer(monkeypatch) -> None:
    trial = Trial([dead()] * 8, monkeypatch)
    trial.run()
    assert trial.slept == [*BACK_OFF, BACK_OFF[-1], BACK_OFF[-1]]
    assert [config.restarts for config in trial.started] == list(range(1, 9))
    assert (trial.supervisor.deaths, trial.supervisor.core) == (8, "core 8")


def test_one_that_served_for_long_begins_a_new_row(monkeypatch) -> None:
    trial = Trial([dead()] * 4, monkeypatch, lasting=supervisor.STEADY)
    trial.run()
    assert trial.slept == [BACK_OFF[0]] * 4


def test_the_control_in_force_is_kept(monkeypatch) -> None:
    trial = Trial([dead(control=STATIC), dead(served=False), dead()], monkeypatch)
    trial.run()
    assert [config.control for config in trial.started] == [STATIC, STATIC, Control()]


def test_the_port_that_was_free_is_kept(monkeypatch) -> None:
    """Who subscribed comes back to it."""
    bound = KvPublishing("tcp://127.0.0.1:43210")
    trial = Trial([dead(kv_events=bound), dead(served=False), dead()], monkeypatch)
    trial.run()
    assert [config.kv_events for config in trial.started] == [bound] * 3


@pytest.mark.parametrize("unusable", [True, False])
def test_a_first_start_that_fails_is_the_end(unusable, monkeypatch) -> None:
    trial = Trial([dead(served=False, unusable=unusable)], monkeypatch)
    with pytest.raises(GaveUp, match=r"^it died$") as told:
        trial.run()
    assert (told.value.unusable, trial.started) == (unusable, [])


def test_so_many_failed_starts_in_a_row_are_the_end(monkeypatch) -> None:
    lives = [dead(), dead(served=False), dead(), *[dead(served=False)] * 3]
    trial = Trial(lives, monkeypatch, most=3)
    with pytest.raises(GaveUp, match=r"it died; 3 starts in a row failed \(--max-restarts 3\)") as told:
        trial.run()
    assert not told.value.unusable
    assert len(trial.started) == 5


def test_without_restarts_the_first_death_is_the_end(monkeypatch) -> None:
    trial = Trial([dead()], monkeypatch, most=0)
    with pytest.raises(GaveUp, match=r"^it died$"):
        trial.run()
    assert trial.started == []


def test_a_process_that_cannot_be_started_is_tried_again(monkeypatch) -> None:
    trial = Trial([dead()], monkeypatch, failing_starts=2)
    trial.run()
    assert trial.slept == list(BACK_OFF[:3])
    assert [config.restarts for config in trial.started] == [3]
    assert "cannot be started" in trial.supervisor.last.reason


def test_and_given_up_like_any_other(monkeypatch) -> None:
    trial = Trial([dead()], monkeypatch, most=3, failing_starts=9)
    with pytest.raises(GaveUp, match=r"cannot be started: .* 3 starts in a row failed"):
        trial.run()


def test_nothing_is_started_for_a_server_that_stops_meanwhile(monkeypatch) -> None:
    trial = Trial([dead()] * 3, monkeypatch)
    trial.ends_asleep = True
    trial.run()
    assert (trial.slept, trial.started) == ([BACK_OFF[0]], [])


def test_what_cannot_be_started_now_is_tried_again_under_its_name(monkeypatch, capsys) -> None:
    trial = Trial([dead(), dead(), dead()], monkeypatch)
    trial.supervisor._config = EngineConfig(name="decode-3")
    refusals = [CannotStart("no node has room")]

    def start(config):
        if refusals:
            raise refusals.pop()
        return trial.start(config)

    trial.supervisor._start = start
    trial.run()
    assert len(trial.started) == 3
    told = capsys.readouterr().err
    assert "decode-3: the engine process cannot be started: no node has room" in told


async def test_whoever_is_cancelled_while_a_core_starts_leaves_none_behind() -> None:
    may_start, stopped = threading.Event(), threading.Event()

    def start():
        may_start.wait()
        return SimpleNamespace(stop=lambda timeout: stopped.set())

    starting = asyncio.create_task(started(start))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    may_start.set()
    while not stopped.is_set():
        await asyncio.sleep(0.001)


async def test_starts_that_wait_take_no_threads_from_others() -> None:
    may_go_on = threading.Event()
    starting = [asyncio.create_task(started(may_go_on.wait)) for _ in range(50)]
    await asyncio.wait_for(asyncio.to_thread(lambda: None), 60)
    may_go_on.set()
    assert await asyncio.gather(*starting) == [True] * 50
