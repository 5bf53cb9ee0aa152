"""Makes the README's pictures of paged-top from docs/demo.jsonl.gz: `python -m docs.screenshots`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from docs.animate import MOVING, animate
from docs.pictures import DEMO, FOLDER, screen, steps_of


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


async def make() -> None:
    """Draw them all anew."""
    steps = steps_of(DEMO)
    for still in STILLS:
        async with screen(still.size) as shown:
            await shown.at(steps.after_switch(still.after))
            (FOLDER / still.name).write_text(await shown.picture(), encoding="utf-8")
        print(FOLDER / still.name)
    await animate(DEMO, MOVING)


if __name__ == "__main__":
    asyncio.run(make())
