"""What the screen's tests share: simulated and recorded streams, an engine that plays them, and folded frames."""

from __future__ import annotations

import asyncio
import gzip
import importlib.util
import sys
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engine.protocol import BlockText, Gap, LiveLoad, Record, RequestText, Snapshot, decode_item
from tui.engine_api import Accepted, Missing, Refused
from tui.feed import Feed
from tui.view import Frame, Link, Status

HERE = Path(__file__).parent


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tui_tests_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class PlayedEngine:
    """Plays a stream that exists already, then stays silent; notes what it was asked to change."""

    def __init__(self, items: Iterable[Snapshot | Record]) -> None:
        first, *self.records = items
        assert isinstance(first, Snapshot)
        self.first = first
        self.changes: list[dict[str, Any]] = []
        self.cancelled: list[str] = []
        self.texts: dict[str | int, tuple[tuple[int, ...], tuple[str, ...]]] = {}  # of requests and blocks, to be set
        self.told: tuple[LiveLoad, ...] = ()  # of load generators, to be set
        self.refusal = ""
        self.played = asyncio.Event()
        self.closed = False

    async def snapshot(self) -> Snapshot:
        return self.first

    async def steps(self, first: int) -> AsyncIterator[Record | Gap]:
        for record in self.records:
            yield record
        self.played.set()
        await asyncio.Event().wait()

    async def change(self, changes: dict[str, Any]) -> Accepted:
        self.changes.append(changes)
        if self.refusal:
            raise Refused(self.refusal)
        import msgspec

        return Accepted(msgspec.structs.replace(self.records[-1].control, **changes), 18_210)

    async def request_text(self, request: str, first: int) -> RequestText:
        if request not in self.texts:
            raise Missing(f"request {request} has ended")
        tokens, pieces = self.texts[request]
        return RequestText(self.first.seq, request, 2, first, tokens[first:], pieces[first:])

    async def block_text(self, block: int) -> BlockText:
        if block not in self.texts:
            raise Missing(f"there is no block {block}")
        return BlockText(self.first.seq, block, None, None, *self.texts[block])

    async def cancel(self, request: str) -> tuple[str, ...]:
        self.cancelled.append(request)
        if self.refusal:
            raise Refused(self.refusal)
        return (request,)

    async def loads(self) -> tuple[LiveLoad, ...]:
        return self.told

    async def failure(self) -> str:
        return ""

    async def unready(self) -> str:
        return ""

    async def close(self) -> None:
        self.closed = True


class Clock:
    """One that moves only when told."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


class Screen:
    """An app under test, with what is on its screen."""

    def __init__(self, app: Any, pilot: Any, engine: PlayedEngine, clock: Clock) -> None:
        self.app, self.pilot, self.engine, self.clock = app, pilot, engine, clock

    async def press(self, *keys: str) -> None:
        """Press keys one by one, each when all that came of the one before is done."""
        for key in keys:
            await self.send(key)
        await self.settle()

    @property
    def asked(self) -> Any:
        """What the last line asks for; None: nothing."""
        return self.app._question.asked

    async def answer(self, text: str) -> None:
        """Write over the answer that the last line suggests, and send it."""
        self.app.screen.focused.value = text
        await self.press("enter")

    async def send(self, key: str) -> None:
        """A key as the terminal's driver tells it; `pilot.press` does this too, and waits much longer."""
        from textual import events
        from textual.keys import _get_unicode_name_from_key

        try:
            character: str | None = unicodedata.lookup(_get_unicode_name_from_key(key))
        except KeyError:
            character = key if len(key) == 1 else None
        event = events.Key(key, character)
        event.set_sender(self.app)
        self.app._driver.send_message(event)
        for _ in range(3):  # to the screen, what has the focus, and back to the app
            await self._handled()

    async def _handled(self) -> None:
        """Until the app, the screen and what has the focus have taken all that was in their queues."""
        if not self.app.is_running or not self.app.screen_stack:
            return
        for pump in (self.app, self.app.screen, self.app.screen.focused):
            done = asyncio.Event()
            if pump is not None and pump.call_later(done.set):
                with suppress(asyncio.TimeoutError):  # it was closed meanwhile
                    await asyncio.wait_for(done.wait(), 1)

    async def settle(self) -> None:
        changes = [worker for worker in self.app.workers if worker.group == "control"]
        if changes:
            await self.app.workers.wait_for_complete(changes)
        while self.app._soon and self.app.is_running:  # its timer is late where cores are busy, which looks idle
            await asyncio.sleep(0.005)
        await self.pilot.pause()

    def widget(self, name: str) -> Any:
        return self.app.query_one(f"#{name}")

    def text(self, name: str) -> str:
        return self.widget(name).text

    def strips(self) -> list[Any]:
        """What the terminal shows, as Textual painted it, colours included."""
        return self.app.screen._compositor.render_strips()

    def painted(self) -> list[str]:
        """What the terminal shows, without colours."""
        return ["".join(segment.text for segment in strip) for strip in self.strips()]


def fold_all(items: Iterable[Snapshot | Record]) -> Feed:
    """A feed that has taken every item of a stream, without a loop; its clock stands at the last record."""
    iterator = iter(items)
    feed = Feed(None, lambda: 0.0)  # type: ignore[arg-type]
    feed._read(next(iterator))  # type: ignore[arg-type]
    feed._enter("live")
    for record in iterator:
        feed._take(record)  # type: ignore[arg-type]
    return feed


def frame_of(feed: Feed, **status: Any) -> Frame:
    return Frame(Status(**{"link": Link("live"), "target": "http://127.0.0.1:8000", **status}), feed.view())


@pytest.fixture(scope="session")
def simulated() -> ModuleType:
    return _load("simulated")


@pytest.fixture(scope="session")
def recording() -> list[Snapshot | Record]:
    """Static + reserved for 130 records, then continuous + paged for 48, with forks, copies and swaps."""
    with gzip.open(HERE / "recording.jsonl.gz", "rb") as file:
        return [decode_item(line) for line in file]  # type: ignore[misc]


@pytest.fixture
def played() -> Callable[[Iterable[Snapshot | Record]], PlayedEngine]:
    return PlayedEngine


@pytest.fixture(scope="session")
def fold() -> Callable[[Iterable[Snapshot | Record]], Feed]:
    return fold_all


@pytest.fixture(scope="session")
def frame() -> Callable[..., Frame]:
    return frame_of


@pytest.fixture
def showing() -> Callable[..., Any]:
    """The app over a session; nothing moves by itself. `ready` is waited for before the first frame."""
    from tui.app import PagedTop
    from tui.look import Look

    @asynccontextmanager
    async def show(
        session: Any, engine: Any, clock: Any, ready: Any, size: Any = (80, 24), look: Any = None, **options: Any
    ) -> Any:
        app = PagedTop(session, look or Look(), frames=False, **options)
        async with app.run_test(size=size) as pilot:
            await asyncio.wait_for(ready(), 20)
            app.draw_frame()
            await pilot.pause()
            yield Screen(app, pilot, engine, clock)

    return show


@pytest.fixture
def running(recording: Any, played: Any, showing: Any) -> Callable[..., Any]:
    """The app over an engine that has played the recording, or `items`."""
    from tui.session import Session

    def run(size: tuple[int, int] = (80, 24), items: Any = None, look: Any = None, **options: Any) -> Any:
        engine, clock = played(items or recording), Clock()
        session = Session(engine=engine, clock=clock)
        return showing(session, engine, clock, engine.played.wait, size, look, **options)

    return run


@pytest.fixture
def clock() -> Clock:
    return Clock()
