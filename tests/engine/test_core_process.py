"""The core's sender keeps outputs, bounds step records, and never waits for the other side."""

import queue
import socket

from engine.core_process import IDLE_SECONDS, CoreLoop, Sender
from engine.framing import FrameSplitter, decode_from_core, frame
from engine.messages import Add, Output, Outputs, Reply, Shutdown, Step
from engine.request import RequestTooLarge
from engine.sampling_params import BeamParams, SamplingParams


def test_a_stopped_reader_loses_old_records_and_no_outputs() -> None:
    ours, theirs = socket.socketpair()
    sender = Sender(ours, max_step_bytes=100_000)
    record = b"x" * 1000
    most = 0
    for seq in range(1, 5001):
        sender.send(Step(seq, record))
        sender.send(Outputs((Output(f"r{seq}", seq),)))
        most = max(most, sender.pending_step_bytes)
    assert most <= 100_000
    sender.close(timeout=0)  # it goes on writing what is kept
    received: list[object] = []
    splitter = FrameSplitter()
    while len(received) < 5000 or not isinstance(received[-1], Outputs) or received[-1].outputs[0].token_id != 5000:
        received += map(decode_from_core, splitter.feed(theirs.recv(1 << 16)))
    outputs = [m.outputs[0].token_id for m in received if isinstance(m, Outputs)]
    steps = [m.seq for m in received if isinstance(m, Step)]
    assert outputs == list(range(1, 5001))
    assert steps == sorted(set(steps))
    assert steps[-1] == 5000
    assert len(steps) < 5000
    ours.close()


def test_frames_arrive_in_order_however_they_are_cut() -> None:
    sent = [Reply(i, i, b"y" * (i * 37 % 500)) for i in range(100)]
    data = b"".join(map(frame, sent))
    splitter = FrameSplitter()
    got = [decode_from_core(body) for i in range(0, len(data), 7) for body in splitter.feed(data[i : i + 7])]
    assert got == sent


class FullCore:
    """A core that no request fits."""

    has_work = False

    def add(self, *_: object, arrived: float | None) -> None:
        raise RequestTooLarge("too large")

    def step(self) -> tuple[tuple[Output, ...], None]:
        return (), None


def test_a_request_that_can_never_fit_is_refused_and_the_loop_goes_on() -> None:
    ours, theirs = socket.socketpair()
    inbox: queue.SimpleQueue = queue.SimpleQueue()
    inbox.put(Add("a", (1,), SamplingParams(1), siblings=("b", "c")))
    inbox.put(Add("d", (1,), SamplingParams(1, beam=BeamParams(2)), siblings=("e",)))  # of beams one reports
    inbox.put(Shutdown())
    sender = Sender(ours)
    CoreLoop(FullCore(), inbox, sender).run()  # type: ignore[arg-type]
    sender.close()
    received = [decode_from_core(body) for body in FrameSplitter().feed(theirs.recv(1 << 16))]
    assert received == [
        Outputs(tuple(Output(request, finished="error", error="too large", refused=True) for request in reporting))
        for reporting in ("abc", "d")
    ]
    ours.close()
    theirs.close()


class IdleCore:
    """A core with a request that can never run, to see that the loop does not spin on it."""

    has_work = True
    steps = 0

    def step(self) -> tuple[tuple[Output, ...], None]:
        self.steps += 1
        assert self.steps < 100, "the loop spins"
        return (), None


class WatchedInbox:
    """Empty until it has been waited at a few times; keeps the time-outs of the waits."""

    def __init__(self) -> None:
        self.waits: list[float | None] = []

    def get(self, timeout: float | None = None) -> Shutdown:
        self.waits.append(timeout)
        if len(self.waits) < 4:
            raise queue.Empty
        return Shutdown()

    def get_nowait(self) -> Shutdown:
        raise queue.Empty


def test_a_loop_without_progress_waits_for_frames_before_every_step() -> None:
    ours, theirs = socket.socketpair()
    core, inbox = IdleCore(), WatchedInbox()
    CoreLoop(core, inbox, Sender(ours)).run()  # type: ignore[arg-type]
    assert inbox.waits == [IDLE_SECONDS] * 4
    assert core.steps == 3
    ours.close()
    theirs.close()
