"""Makes docs/vllm-prefixes.svg of a server that runs: `python -m docs.live_prefixes URL KV-ENDPOINTS`.

A recording has no texts, so this picture cannot come from one: it is of a real vLLM while `loadgen replay` plays the
project's own trace against it.
"""

from __future__ import annotations

import argparse
import asyncio

from docs.pictures import FOLDER, without_net
from tui.app import PagedTop
from tui.focus import Focus
from tui.look import Look
from tui.sources.attach import Attach
from tui.sources.targets import kv_endpoint, target

PICTURE = FOLDER / "vllm-prefixes.svg"
SIZE = (120, 36)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("kv", type=kv_endpoint, help="tcp://host:5557,tcp://host:5558")
    parser.add_argument("--seconds", type=float, default=40.0, help="until the picture is taken")
    options = parser.parse_args()
    asyncio.run(_make(options))


async def _make(options: argparse.Namespace) -> None:
    attached = Attach((target(options.url, "vllm", options.kv),))
    app = PagedTop(attached, Look(), focus=Focus(panel="sharing", expanded=True))
    try:
        async with app.run_test(size=SIZE) as pilot:
            await asyncio.sleep(options.seconds)
            await pilot.pause()
            PICTURE.write_text(without_net(app.export_screenshot(title="paged-top")), encoding="utf-8")
    finally:
        await attached.close()
    print(PICTURE)


if __name__ == "__main__":
    main()
