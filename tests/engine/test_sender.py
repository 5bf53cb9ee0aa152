"""The sender keeps outputs, bounds step records, and never waits for the other side."""

import socket

from engine.framing import FrameSplitter, decode_from_core
from engine.messages import Output, Outputs, Step
from engine.sender import Sender


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
