"""`--once` and `--json` of a cluster, live or as a recording."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress
from math import inf
from pathlib import Path

import msgspec

from engine.cluster.protocol import ClusterState, encode_cluster
from tui.cluster.client import HttpCluster
from tui.cluster.feed import ClusterFeed
from tui.cluster.player import ClusterPlayer
from tui.focus import FIRST_FOCUS, Focus
from tui.look import Look
from tui.once import BAD_INPUT, FIRST_STATE, OBSERVED, fail, played_to, say_of_play, write_frame
from tui.recording import RecordingError
from tui.sources.targets import HttpSettings, Target
from tui.view import Frame, Link, Status


def state_json(state: ClusterState) -> str:
    """A state as the cluster told it."""
    return json.dumps(msgspec.json.decode(encode_cluster(state)), indent=2)


async def run_cluster_once(
    target: Target, json: bool, size: tuple[int, int], look: Look, focus: Focus, http: HttpSettings
) -> int:
    """Print once and return the exit code."""
    cluster = HttpCluster(target.url, http, target.user)
    feed = ClusterFeed(cluster, time.monotonic)
    following = asyncio.create_task(feed.run())
    try:
        waited = 0.0
        while feed.states.state is None and feed.link.phase not in ("foreign", "locked") and waited < FIRST_STATE:
            await asyncio.sleep(0.05)
            waited += 0.05
        if feed.states.state is None:
            return fail(f"{target.url}: {feed.link.detail or f'no state within {FIRST_STATE:.0f} s'}")
        if json:
            print(state_json(feed.states.state))
            return 0
        await asyncio.sleep(OBSERVED)  # so that there are rates
        status = Status(feed.link, target.url, readonly=True, unchecked=http.unchecked((target.url,)))
        write_frame(
            Frame(status, None, focus, cluster=feed.states.newest(silent=feed.silent), of_cluster=True),
            *size,
            look,
            sys.stdout,
        )
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await cluster.close()
    return 0


async def play_cluster_once(
    path: Path, step: int | None, json: bool, size: tuple[int, int], look: Look, focus: Focus = FIRST_FOCUS
) -> int:
    """Print a recording's state of that number, or its last one, and return the exit code."""
    try:
        player = ClusterPlayer(path, inf)
    except RecordingError as error:
        say_of_play(f"error: {error}")
        return BAD_INPUT
    async with played_to(player, step):
        shown = player.states.heard
        if step is not None and shown != step:
            say_of_play(f"state {step:,} is not in it: this is {shown:,}")
        view = player.states.newest()
        if view is None:
            return fail(f"{path}: no state before {step} is in it")
        if json:
            print(state_json(view.state))
        else:
            status = Status(Link("live"), path.name, playing=player.status, readonly=True)
            write_frame(Frame(status, None, focus, cluster=view, of_cluster=True), *size, look, sys.stdout)
    return 0
