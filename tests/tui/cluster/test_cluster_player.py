"""Recordings of a cluster: written, played, stepped through, and printed once."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import msgspec
import pytest

from engine.cluster.protocol import encode_cluster
from tests.tui.cluster.clusters import BEGIN, busy, early, worker, wounded
from tests.tui.sources.waiting import until
from tui.cli import main
from tui.cluster.attach import ClusterAttach
from tui.cluster.player import ClusterPlayer
from tui.cluster.recording import ClusterReading, ClusterRecorder
from tui.recording import RecordingError, is_of_cluster, is_of_sources
from tui.together import ended


@pytest.fixture
def file(tmp_path):
    """Three states, the last of them 6 s after the first."""
    path = tmp_path / "cluster.jsonl"
    path.write_bytes(b"".join(encode_cluster(state) + b"\n" for state in (early(), busy(), wounded())))
    return path


def test_what_is_recorded_is_read_again_without_folders_and_keys(tmp_path):
    path = tmp_path / "kept.jsonl.gz"
    recorder = ClusterRecorder(path, ("s3cret-key",))
    died = msgspec.structs.replace(
        early(), workers=(worker("decode-0", phase="dead", engine=None, reason="s3cret-key: /home/me/model is gone"),)
    )
    for state in (early(), died, busy()):
        recorder.put(state)
    recorder.close()
    assert (recorder.records, recorder.error) == (3, "")
    found = [told.state for told in ClusterReading(path)]
    assert [found[0], found[2]] == [early(), busy()]
    assert found[1].workers[0].reason == "…: model is gone"
    assert is_of_cluster(path)
    assert not is_of_sources(path)


def test_files_that_are_none(tmp_path):
    path = tmp_path / "kept.jsonl"
    path.write_bytes(b"")
    with pytest.raises(RecordingError, match="is empty"):
        ClusterPlayer(path)
    path.write_bytes(encode_cluster(msgspec.structs.replace(early(), version=7)) + b"\n")
    with pytest.raises(RecordingError, match="recorded by a newer version: 7, this paged-top knows 1 of a cluster"):
        ClusterPlayer(path)
    path.write_bytes(encode_cluster(early()) + b'\n{"type":"cluster"}\n')
    reading = ClusterReading(path)
    assert next(reading).state == early()
    with pytest.raises(RecordingError, match="line 2 does not decode"):
        next(reading)
    path.write_bytes(encode_cluster(early()) + b"\n" + encode_cluster(busy())[:300])
    reading = ClusterReading(path)
    assert len(list(reading)) == 1
    assert reading.note == "truncated at line 2"


async def test_it_is_played_in_time_and_stepped_through(file):
    clock = [0.0]
    asleep = asyncio.Event()

    async def sleep(seconds):
        asleep.set()
        await asyncio.Event().wait()

    player = ClusterPlayer(file, clock=lambda: clock[0], sleep=sleep, scan_after=0.0)
    task = asyncio.create_task(player.run())
    await asyncio.wait_for(asleep.wait(), 10)
    assert player.states.state == early()
    assert player.waits == 5
    clock[0] += 2.5
    assert player.now() == BEGIN + 2.5
    player.speed = 2.0
    clock[0] += 1.25
    player.pause()
    player.seek(2)
    await until(lambda: player.states.state == busy())
    assert not player.playing
    player.seek_event()
    await until(lambda: player.states.state == wounded())
    player.span.join()
    assert player.duration == 6
    player.resume()
    await until(lambda: player.ended)
    assert player.complete
    player.pause()
    player.seek(1)  # read again from the beginning
    await until(lambda: player.states.state == early() and player.states.heard == 1)
    await player.close()
    await ended([task])


async def test_the_screen_of_a_recording(file, showing):
    player = ClusterPlayer(file, math.inf, scan_after=0.0)
    attach = ClusterAttach(None, player=player)

    async def ready():
        await until(lambda: player.ended)
        player.span.join()

    async with showing(attach, None, None, ready, (160, 48)) as screen:
        assert "● playback" in screen.text("header")
        assert "cluster.jsonl" in screen.text("header")
        assert "ended 00:06 of 00:06" in screen.text("scrub")
        assert "dead: the engine's process" in screen.text("workers")
        await screen.press("comma")
        assert "state 2" in screen.text("scrub")
        assert "1 moving" in screen.text("transfers")
        await screen.press("comma", "N")
        assert "no event is known before this" in screen.text("footer")
        for key, words in (
            ("m", "a recording cannot be changed"),
            ("plus", "a recording cannot be changed"),
            ("enter", "a recording of a cluster has no steps of its workers"),
            ("r", "this is a recording already"),
            ("right_square_bracket", "1000 times as fast"),
        ):
            await screen.press(key)
            assert words in screen.text("footer")
        await screen.press("space")
        assert screen.app.scrub.seq is None
    await attach.close()


@pytest.fixture
def no_config(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("LINES", "40")


def test_it_is_printed_once(file, no_config, capsys):
    assert main(["play", str(file), "--once"]) == 0
    shown = capsys.readouterr()
    assert "dead: the engine's process" in shown.out
    assert "COLOCATED" in shown.out
    assert shown.err == ""
    assert main(["play", str(file), "--json", "--step", "2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads(encode_cluster(busy()))
    assert main(["play", str(file), "--json", "--step", "9"]) == 0
    assert "state 9 is not in it: this is 3" in capsys.readouterr().err


def test_the_files_beside_it_are_told_apart(no_config, tmp_path, capsys):
    assert is_of_sources(Path(__file__).parents[3] / "docs" / "fleet.jsonl.gz")
    (tmp_path / "broken.jsonl").write_bytes(encode_cluster(early()) + b"\nnonsense\n")
    assert main(["play", str(tmp_path / "broken.jsonl"), "--once"]) == 0
    assert "line 2 does not decode" in capsys.readouterr().err
