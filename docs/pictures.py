"""paged-top over a recording, standing still at a step, to be drawn as SVG."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from textual.pilot import Pilot

from tui.app import PagedTop
from tui.attached import Attached
from tui.cluster.attach import ClusterAttach
from tui.cluster.player import ClusterPlayer
from tui.controls import changes
from tui.look import Look
from tui.player import Player
from tui.recording import RecordHead, read_heads
from tui.session import Session
from tui.sources.attach import Attach
from tui.sources.player import SourcePlayer

FOLDER = Path(__file__).parent
DEMO = FOLDER / "demo.jsonl.gz"
VLLM = FOLDER / "vllm.jsonl.gz"  # a real one, under load, and its KV events
FLEET = FOLDER / "fleet.jsonl.gz"  # vLLM, llama.cpp and a paged-engine
CLUSTER = FOLDER / "cluster.jsonl.gz"  # a prefill and a decode worker, colocated and then separate
_FONT_FROM_THE_NET = re.compile(r',\s*url\("https?://[^"]*"\)\s*format\("[^"]*"\)')


class Screen:
    """The app over a recording whose time stands still: it goes on only to where it is told."""

    def __init__(self, app: PagedTop, player: Player, pilot: Pilot[int]) -> None:
        self.app = app
        self._player = player
        self._pilot = pilot

    async def at(self, step: int) -> None:
        """Go on to a step."""
        self._player.seek(step)
        feed = self.app.session.feed
        while (
            feed is None or feed.fold is None or not self._player.arrived or feed.fold.seq < self._player.position.seq
        ):
            await asyncio.sleep(0.01)

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def picture(self, title: str = "paged-top") -> str:
        """The screen as it is now."""
        self.app.draw_frame()
        await self._pilot.pause()
        return without_net(self.app.export_screenshot(title=title))


@asynccontextmanager
async def screen(size: tuple[int, int], recording: Path = DEMO) -> AsyncIterator[Screen]:
    """A screen of `size` (columns, rows) at the recording's first step."""
    player = Player(recording, clock=lambda: 0.0)
    session = Session(player=player, clock=lambda: 0.0)
    app = PagedTop(session, Look(), frames=0)
    try:
        async with app.run_test(size=size) as pilot:
            yield Screen(app, player, pilot)
    finally:
        await session.close()


async def servers_picture(recording: Path, size: tuple[int, int], keys: Sequence[str], title: str = "paged-top") -> str:
    """The end of a recording of servers, after these keys."""
    player = SourcePlayer(recording, math.inf)
    return await _at_its_end(player, Attach(player=player, clock=player.now), size, keys, title)


async def cluster_picture(recording: Path, size: tuple[int, int], keys: Sequence[str], title: str = "paged-top") -> str:
    """The end of a recording of a cluster, after these keys."""
    player = ClusterPlayer(recording, math.inf)
    return await _at_its_end(player, ClusterAttach(None, player=player, clock=player.now), size, keys, title)


async def _at_its_end(
    player: SourcePlayer | ClusterPlayer, attached: Attached, size: tuple[int, int], keys: Sequence[str], title: str
) -> str:
    app = PagedTop(attached, Look(), frames=0)
    try:
        async with app.run_test(size=size) as pilot:
            while not player.ended:
                await asyncio.sleep(0.01)
            await pilot.press(*keys)
            app.draw_frame()
            await pilot.pause()
            return without_net(app.export_screenshot(title=title))
    finally:
        await attached.close()


@dataclass(frozen=True, slots=True)
class Steps:
    """A recording's steps with their times in seconds; the first switch holds from `switch` on."""

    all: tuple[tuple[int, float], ...]
    switch: int

    def after_switch(self, seconds: float) -> int:
        """The step that is the newest so long after the switch, or before it where `seconds` are negative."""
        switched = dict(self.all)[self.switch]
        return max(step for step, time in self.all if time <= switched + seconds)


def steps_of(recording: Path) -> Steps:
    """Read a recording through once."""
    heads = [head for head in read_heads(recording) if isinstance(head, RecordHead)]
    switch = next(new.seq for old, new in pairwise(heads) if changes(old.control, new.control))
    return Steps(tuple((head.seq, head.time) for head in heads), switch)


def without_net(svg: str) -> str:
    """An SVG that asks no other host for a font."""
    return _FONT_FROM_THE_NET.sub("", svg)
