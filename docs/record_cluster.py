"""Makes docs/cluster.jsonl.gz, which the README plays and its picture comes from: `python -m docs.record_cluster FILE
URL`.

Watches a real cluster, colocated and then separate, and paged-top's recorder writes down what is heard. A load is
somebody else's matter: `loadgen replay mix.jsonl --url`.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from tui.cluster.client import HttpCluster
from tui.cluster.feed import ClusterFeed
from tui.cluster.recording import ClusterRecorder

SPACING = 0.5  # seconds between two states that are kept: a picture of the end wants rates, not every change


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="must not exist yet")
    parser.add_argument("url", help="the cluster")
    parser.add_argument("--before", type=float, default=20.0, help="seconds colocated")
    parser.add_argument("--after", type=float, default=20.0, help="seconds separate")
    options = parser.parse_args()
    asyncio.run(_record(options))


async def _record(options: argparse.Namespace) -> None:
    cluster = HttpCluster(options.url)
    feed = ClusterFeed(cluster, time.monotonic)
    following = asyncio.create_task(feed.run())
    recorder = ClusterRecorder(options.file)
    try:
        for separate, seconds in ((False, options.before), (True, options.after)):
            await cluster.change_cluster({"separate": separate})
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                await asyncio.sleep(SPACING)
                if feed.states.state is not None:
                    recorder.put(feed.states.state)
        while not (state := feed.states.state) or not state.transfers:  # the last one has something in flight
            await asyncio.sleep(0.001)
        recorder.put(state)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        recorder.close()
        await cluster.close()
    print(f"{options.file}: {options.file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
