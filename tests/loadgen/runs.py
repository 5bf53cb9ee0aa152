"""Whole runs against golden servers for tests: traces, what is answered, and who plays."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from golden import GoldenServer, Script, answer
from rich.console import Console

from loadgen.keys import NO_KEYS, Keys
from loadgen.outcome import RequestRecord
from loadgen.perform import perform
from loadgen.results.document import document
from loadgen.results.run_file import RunFile
from loadgen.settings import Settings
from loadgen.target import Steering, Target
from loadgen.traces.chat import trace_lines
from loadgen.traces.model import Header, Session, Turn

CLOCK_STEP = 0.002  # seconds an event loop may wake early
HEADER = Header("paged-top-chat", 2, {"main": "Be kind."}, 0.7)
_names = itertools.count()


def turn(user: str, tokens: int = 3, **more: Any) -> Turn:
    return Turn(user=user, user_tokens=1, output_tokens=tokens, **{"seed": 1, **more})


def again(index: int, **more: Any) -> Turn:
    return Turn(regenerates=index, output_tokens=3, **{"seed": 2, **more})


def trace_of(*sessions: tuple[float, list[Turn]]) -> list[Session]:
    return [
        Session(session=f"s{i}", arrival=arrival, system="main", turns=tuple(turns))
        for i, (arrival, turns) in enumerate(sessions)
    ]


def words(body: dict[str, Any]) -> Script:
    return answer([f"{body['messages'][-1]['content']}/{body['seed']}."] * body["max_tokens"])


class Ran(NamedTuple):
    run: RunFile
    server: GoldenServer

    @property
    def records(self) -> list[RequestRecord]:
        return sorted(self.run.records(), key=lambda record: record.key)

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = document([self.run])["summary"]
        return summary


class Runner:
    """Runs traces against golden servers, each into a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said = ""  # while the last run went on

    def settings(self, sessions: Sequence[Session], /, **options: Any) -> Settings:
        trace = self.folder / f"trace-{next(_names)}.jsonl"
        trace.write_bytes(b"".join(trace_lines(HEADER, sessions)))
        return Settings(**{"file": str(trace), "timeout": 30.0, "probe": False, **options})

    async def perform(
        self,
        settings: Settings,
        url: str,
        stop: asyncio.Event | None = None,
        into: Path | None = None,
        keys: Keys = NO_KEYS,
        **more: Any,
    ) -> RunFile:
        said = io.StringIO()
        console = Console(file=said)
        path = into or self.folder / f"run-{next(_names)}.jsonl"
        ran = await perform(settings, Target(url, keys=keys), path, console, Steering(stop), **more)
        self.said = said.getvalue()
        return ran

    async def __call__(
        self,
        trace: Sequence[Session],
        /,
        script_of: Callable[[dict[str, Any]], Script] = words,
        stop: asyncio.Event | None = None,
        server_type: type[GoldenServer] = GoldenServer,
        **options: Any,
    ) -> Ran:
        async with server_type(script_of) as server:
            return Ran(await self.perform(self.settings(trace, **options), server.url, stop), server)


def talk(body: dict[str, Any]) -> list[str]:
    return [message["content"] for message in body["messages"]]


class Gate(GoldenServer):
    """Answers nobody before a number of requests has come."""

    wanted = 0

    async def _answer(self, request: Any, script: Script, served: Any) -> Any:
        while len(self.served) < self.wanted:
            await asyncio.sleep(0.001)
        return await super()._answer(request, script, served)
