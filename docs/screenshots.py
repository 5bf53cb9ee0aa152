"""Makes the README's pictures of paged-top: `python -m docs.screenshots [--url URL] [--model NAME]`.

An engine serves the trace static and reserved, then continuous and paged, and its screen is drawn.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from pathlib import Path

from textual.pilot import Pilot

from tui.app import PagedTop
from tui.look import Look
from tui.replay import Replay, find_trace
from tui.session import Session

FOLDER = Path(__file__).parent
WIDE, SMALL = (160, 48), (80, 24)
_FONT_FROM_THE_NET = re.compile(r',\s*url\("https?://[^"]*"\)\s*format\("[^"]*"\)')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="an engine that runs; without it one is started")
    parser.add_argument("--model", help="model of the engine that is started")
    parser.add_argument("--sessions", type=int, default=120)
    parser.add_argument("--speed", type=float, default=6.0)
    parser.add_argument("--before", type=float, default=30.0, help="seconds of static and reserved")
    parser.add_argument("--after", type=float, default=45.0, help="seconds of continuous and paged")
    asyncio.run(_make(parser.parse_args()))


async def _make(options: argparse.Namespace) -> None:
    replay = Replay(find_trace(), time.monotonic)
    session = Session(options.url, options.model, replay, options.sessions, options.speed)
    app = PagedTop(session, Look())
    try:
        async with app.run_test(size=WIDE) as pilot:
            while session.feed is None or session.feed.fold is None:
                if session.error:
                    raise SystemExit(f"the engine ended: {session.error}")
                await asyncio.sleep(0.1)
            await session.change({"batching": "static", "allocation": "reserved"})
            await asyncio.sleep(options.before)
            await _save(app, pilot, "static", WIDE)
            await session.change({"batching": "continuous", "allocation": "paged"})
            await asyncio.sleep(options.after)
            await _save(app, pilot, "", SMALL, WIDE)
    finally:
        await session.close()


async def _save(app: PagedTop, pilot: Pilot[int], kind: str, *sizes: tuple[int, int]) -> None:
    """Draw the live screen at each size."""
    for width, height in sizes:
        await pilot.resize_terminal(width, height)
        await asyncio.sleep(0.5)
        name = "-".join(part for part in ("paged-top", kind, f"{width}x{height}") if part)
        picture = app.export_screenshot(title="paged-top")
        (FOLDER / f"{name}.svg").write_text(_FONT_FROM_THE_NET.sub("", picture), encoding="utf-8")
        print(FOLDER / f"{name}.svg")


if __name__ == "__main__":
    main()
