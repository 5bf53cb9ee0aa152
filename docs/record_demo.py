"""Makes docs/demo.jsonl.gz, which the README plays and its pictures come from: `python -m docs.record_demo`.

An engine serves the trace static and reserved, then continuous and paged, and paged-top's recorder writes it down.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from tui.recorder_switch import RecorderSwitch
from tui.replay import Replay, find_trace
from tui.session import Session

DEMO = Path(__file__).with_name("demo.jsonl.gz")
BEFORE = {"batching": "static", "allocation": "reserved"}
AFTER = {"batching": "continuous", "allocation": "paged"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DEMO, help="must not exist yet")
    parser.add_argument("--model", help="model of the engine that is started (default: smollm2-135m)")
    parser.add_argument("--sessions", type=int, default=120)
    parser.add_argument("--speed", type=float, default=6.0)
    parser.add_argument("--settle", type=float, default=8.0, help="seconds of load before the recording begins")
    parser.add_argument("--before", type=float, default=9.0, help="seconds of static and reserved")
    parser.add_argument("--after", type=float, default=17.0, help="seconds of continuous and paged")
    options = parser.parse_args()
    asyncio.run(_record(options))


async def _record(options: argparse.Namespace) -> None:
    replay = Replay(find_trace(), time.monotonic)
    session = Session(None, options.model, replay, options.sessions, options.speed)
    running = asyncio.create_task(session.run())
    recorder = RecorderSwitch(session, lambda words, bad: print(words))
    try:
        while session.feed is None or session.feed.fold is None:
            if session.error:
                raise SystemExit(f"the engine ended: {session.error}")
            await asyncio.sleep(0.1)
        await session.change(BEFORE)
        await asyncio.sleep(options.settle)
        recorder.start(str(options.out))
        await asyncio.sleep(options.before)
        await session.change(AFTER)
        await asyncio.sleep(options.after)
    finally:
        recorder.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await session.close()


if __name__ == "__main__":
    main()
