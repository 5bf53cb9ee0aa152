"""Frames arrive in order, and what is none is told as such at once."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import framing
from engine.framing import MAX_FRAME, BadFrame, FrameSplitter, decode_from_core, decode_to_core, frame
from engine.messages import GetSnapshot, Reply


def test_frames_arrive_in_order_however_they_are_cut() -> None:
    sent = [Reply(i, i, b"y" * (i * 37 % 500)) for i in range(100)]
    data = b"".join(map(frame, sent))
    splitter = FrameSplitter()
    got = [decode_from_core(body) for i in range(0, len(data), 7) for body in splitter.feed(data[i : i + 7])]
    assert got == sent


def test_a_length_that_no_frame_has_is_refused_before_its_body_comes() -> None:
    splitter = FrameSplitter()
    before = frame(GetSnapshot(1))
    assert len(list(splitter.feed(before + struct.pack("<I", MAX_FRAME)))) == 1
    with pytest.raises(BadFrame, match="4,294,967,295 bytes, and none may have more than 536,870,912"):
        list(FrameSplitter().feed(b"\xff\xff\xff\xff"))


def test_a_message_that_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_FRAME", 1000)
    frame(Reply(1, 1, b"x" * 900))
    with pytest.raises(BadFrame, match="none may have more than 1,000"):
        frame(Reply(1, 1, b"x" * 1000))


@pytest.mark.parametrize(
    "wrong", [{"type": "Reboot"}, {"type": "GetSnapshot"}, {"type": "GetSnapshot", "call": "x"}, 7]
)
def test_a_message_of_no_known_kind_is_refused(wrong: object) -> None:
    with pytest.raises(BadFrame, match="is no message"):
        decode_to_core(msgspec.msgpack.encode(wrong))


@given(st.binary(max_size=60))
def test_garbage_is_refused_as_such(body: bytes) -> None:
    for decode in (decode_to_core, decode_from_core):
        with pytest.raises(BadFrame):
            decode(body)


def test_brackets_without_end_are_refused() -> None:
    with pytest.raises(BadFrame):
        decode_to_core(b"\x91" * 1_000_000)
