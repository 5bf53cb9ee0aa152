"""Recording servers from the screen: one file at a time, whatever keys come."""

from __future__ import annotations

from pathlib import Path

from tests.tui.sources.fleets import Clock, fill
from tui.sources.recorder_switch import SourcesSwitch
from tui.sources.recording import read_items
from tui.sources.source import Source


def test_a_second_recording_does_not_begin_beside_the_first_nor_end_it(tmp_path: Path) -> None:
    clock, said = Clock(), list[tuple[str, bool]]()
    sources = tuple(Source(f"s{at}", "http://127.0.0.1:1", clock, at) for at in range(5))
    fill(sources, clock)
    switch = SourcesSwitch(sources, lambda words, bad: said.append((words, bad)))
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    switch.start(str(first))
    assert switch.running
    switch.start(str(second))
    switch.start(str(first))
    assert switch.running
    assert not second.exists()
    assert "first.jsonl" in switch.words
    assert [words for words, _ in said] == [f"recording to {first}; r ends it"]
    switch.stop()
    switch.stop()
    assert (switch.running, switch.words, len(switch.finished)) == (False, "", 1)
    kept = first.read_bytes()
    assert len(list(read_items(first))) >= 5
    switch.start(str(first))  # a file that is there is not written over
    assert (switch.running, said[-1][1]) == (False, True)
    switch.start(str(second))
    switch.stop()
    assert len(switch.finished) == 2
    assert first.read_bytes() == kept
    assert len(list(read_items(second))) >= 5
