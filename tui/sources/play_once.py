"""`paged-top play FILE --once` and `--json` of a recording of servers."""

from __future__ import annotations

import sys
from math import inf
from pathlib import Path

from tui.focus import FIRST_FOCUS, Focus
from tui.look import Look
from tui.once import BAD_INPUT, played_to, say_of_play, write_frame
from tui.recording import RecordingError
from tui.sources.player import SourcePlayer
from tui.sources.report import encode, fleet_report, server_report
from tui.sources.targets import IN_RECORDINGS
from tui.sources.view import FleetView
from tui.view import Frame, Link, Status


async def play_servers_once(
    path: Path, step: int | None, json: bool, size: tuple[int, int], look: Look, focus: Focus = FIRST_FOCUS
) -> int:
    """Print what a recording tells at a look, or at its end, and return the exit code."""
    try:
        player = SourcePlayer(path, inf)
    except RecordingError as error:
        say_of_play(f"error: {error}")
        return BAD_INPUT
    async with played_to(player, step):
        if step is not None and player.looks != step:
            say_of_play(f"look {step:,} is not in it: this is {player.looks:,}")
        now = player.now()
        fleet = FleetView(tuple(source.view(now=now) for source in player.sources), now)
        alone = fleet.servers[0] if len(fleet.servers) == 1 else None
        if json:
            window = focus.ledgers.window  # as on the screen
            print(encode(fleet_report(fleet, window) if alone is None else server_report(alone, window)))
        else:
            status = Status(Link("live"), path.name, playing=player.status, readonly=True, no_steps=IN_RECORDINGS)
            frame = Frame(status, None, focus, server=alone, fleet=None if alone is not None else fleet)
            write_frame(frame, *size, look, sys.stdout)
    return 0
