"""Makes the README's pictures of paged-top from the recordings in docs: `python -m docs.screenshots`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from docs.animate import MOVING, animate
from docs.pictures import CLUSTER, DEMO, FLEET, FOLDER, VLLM, cluster_picture, screen, servers_picture, steps_of


@dataclass(frozen=True, slots=True)
class Still:
    """A picture that does not move: its file, its size in cells, and the seconds since the switch."""

    name: str
    size: tuple[int, int]
    after: float


STILLS = (
    Still("paged-top-static-160x48.svg", (160, 48), -0.5),
    Still("paged-top-160x48.svg", (160, 48), 12.0),
    Still("paged-top-80x24.svg", (80, 24), 12.0),
)


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a recording of servers, or of a cluster: the picture's file, what is played, the size, and the keys
    that lead there."""

    name: str
    recording: Path
    size: tuple[int, int]
    keys: tuple[str, ...] = ()


ENDINGS = (
    Ending("vllm-160x48.svg", VLLM, (160, 48)),
    Ending("vllm-80x24.svg", VLLM, (80, 24)),
    Ending("fleet-120x16.svg", FLEET, (120, 16)),
    Ending("cluster-160x48.svg", CLUSTER, (160, 48)),
)


async def make() -> None:
    """Draw them all anew."""
    steps = steps_of(DEMO)
    for still in STILLS:
        async with screen(still.size) as shown:
            await shown.at(steps.after_switch(still.after))
            (FOLDER / still.name).write_text(await shown.picture(), encoding="utf-8")
        print(FOLDER / still.name)
    for ending in ENDINGS:
        drawn = cluster_picture if ending.recording == CLUSTER else servers_picture
        picture = await drawn(ending.recording, ending.size, ending.keys)
        (FOLDER / ending.name).write_text(picture, encoding="utf-8")
        print(FOLDER / ending.name)
    await animate(DEMO, MOVING)


if __name__ == "__main__":
    asyncio.run(make())
