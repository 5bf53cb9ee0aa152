"""Makes docs/vllm.jsonl.gz and docs/fleet.jsonl.gz, which the README shows: `python -m docs.record_servers FILE ...`.

Watches real servers, one or several, and paged-top's recorder writes down what is heard. A load is somebody else's
matter: `loadgen replay --url`.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from tui.sources.recorder import SourceRecorder
from tui.sources.targets import HttpSettings, fleet
from tui.sources.watch import Watch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="must not exist yet")
    parser.add_argument("fleet", type=Path, help="the servers, as for paged-top --fleet")
    parser.add_argument("--settle", type=float, default=3.0, help="seconds until the recording begins")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    asyncio.run(_record(options))


async def _record(options: argparse.Namespace) -> None:
    watch = Watch(fleet(options.fleet), HttpSettings())
    running = asyncio.create_task(watch.run())
    await asyncio.sleep(options.settle)
    recorder = SourceRecorder(options.file, watch.sources)
    try:
        await asyncio.sleep(options.seconds)
    finally:
        recorder.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    print(f"{options.file}: {recorder.records:,} items, {recorder.bytes:,} bytes")


if __name__ == "__main__":
    main()
