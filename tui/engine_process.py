"""An engine of paged-top's own: started when no `--url` is given, and always stopped with it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from tui.child import Child, command

_SERVING = re.compile(r"^paged-engine: serving .* at (https?://\S+)")


class EngineFailed(RuntimeError):
    """The engine ended before it could serve; the message has its last words."""


class EngineProcess:
    """`paged-engine serve --port 0` as a child."""

    def __init__(self, model: str | None) -> None:
        self.model = model
        self.child: Child | None = None

    @property
    def log(self) -> tuple[str, ...]:
        """What it has said, the latest last."""
        return tuple(line for line in self.child.lines if line.strip()) if self.child else ()

    async def start(self) -> str:
        """Start it and wait until it serves; returns its URL. Raises EngineFailed."""
        served: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def read(line: str) -> None:
            found = _SERVING.match(line)
            if found and not served.done():
                served.set_result(found[1])

        chosen = ["--model", self.model] if self.model else []
        # Nobody else uses it: when this program ends, its requests have nobody to answer.
        serve = ["serve", "--port", "0", "--drain-timeout", "0", *chosen]
        arguments = [*command("paged-engine", "engine.cli"), *serve]
        self.child = await Child.start(arguments, read)
        ended = asyncio.ensure_future(self.child.wait())
        waited: list[asyncio.Future[Any]] = [served, ended]
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if served.done():
                return served.result()
            raise EngineFailed("\n".join(self.log[-6:]) or f"paged-engine ended with exit code {ended.result()}")
        finally:
            for future in waited:
                future.cancel()

    async def stop(self) -> None:
        if self.child:
            await self.child.stop()
