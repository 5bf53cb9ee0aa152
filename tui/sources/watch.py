"""Several servers watched at once, each by a poller of its own: one that hangs, or fails here, ends no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from servers.kv_events import Message, Restarted
from servers.kv_tree import MAX_OPENINGS
from tui.sources.clock import now
from tui.sources.items import Failed, Item
from tui.sources.poller import Poller
from tui.sources.prefix_reader import PrefixReader
from tui.sources.source import Source
from tui.sources.stretch import CHECK_SECONDS, Stretch, shift
from tui.sources.tape import BUDGET
from tui.sources.targets import HttpSettings, Target
from tui.together import together

AGAIN_SECONDS = 5.0  # until one that failed here is begun anew
FILES = 2  # that a server has open at most: its connection, and one that ends
OTHER_FILES = 128


class Watch:
    """Run it in a task. `sources` are in the order of the targets."""

    def __init__(
        self,
        targets: Sequence[Target],
        http: HttpSettings,
        every: float = 1.0,
        clock: Callable[[], float] = now,
        texts: bool = False,
    ) -> None:
        """`every`: seconds between two looks at one server. `texts`: token ids of KV events are kept for screens, and
        servers are asked for their texts."""
        self.targets = tuple(targets)
        share = BUDGET // len(self.targets)
        self.sources = tuple(Source(one.name, one.url, clock, at, share) for at, one in enumerate(self.targets))
        endpoints = sum(len(one.kv) for one in self.targets)
        self._openings = MAX_OPENINGS // max(1, endpoints)  # blocks of each that are kept so
        self.texts: dict[str, PrefixReader] = {  # by the server's name
            one.name: PrefixReader(one, http, source, clock)
            for one, source in zip(self.targets, self.sources, strict=True)
            if texts and one.kv
        }
        self._http = http
        self._every = every
        self._clock = clock
        self._stretch = Stretch(clock)

    async def run(self) -> None:
        """Watch all of them until cancelled."""
        _allow_files(len(self.targets) * FILES)
        following = [asyncio.create_task(self._follow(*one)) for one in zip(self.targets, self.sources, strict=True)]
        following += [asyncio.create_task(self._read(reader)) for reader in self.texts.values()]
        following.append(asyncio.create_task(self._pace()))
        await together(following)

    async def _pace(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self._stretch.reckon()

    async def _follow(self, target: Target, source: Source) -> None:
        """One server, for ever. A fault of this program over what it said is told in its row, and nowhere else."""
        while True:
            try:
                beside = partial(self._keep, source) if target.name in self.texts else None
                poller = Poller(
                    target, self._http, source.take, source.number, self._every, self._clock, beside,
                    shift(source.number, self._every),
                    lambda: self._stretch.times,
                )  # fmt: skip
                await poller.run()
            except Exception as error:
                words = f"paged-top failed over what it says: {type(error).__name__}: {error}"
                self._tell(source, Failed(source.number, self._clock(), "failing", words))
            await asyncio.sleep(AGAIN_SECONDS)

    def _keep(self, source: Source, endpoint: str, message: Message) -> None:
        """What no item has: how blocks begin."""
        if isinstance(message, Restarted):
            self.texts[source.name].forget()
        source.keep_openings(endpoint, message, self._openings)

    @staticmethod
    async def _read(reader: PrefixReader) -> None:
        """Texts, for ever: without them all else is shown."""
        while True:
            try:
                await reader.run()
            except Exception as error:
                reader.fail(f"no texts: paged-top failed over them: {type(error).__name__}: {error}")
            await asyncio.sleep(AGAIN_SECONDS)

    @staticmethod
    def _tell(source: Source, item: Item) -> None:
        with suppress(Exception):  # what has failed may be the telling
            source.take(item)


def _allow_files(count: int) -> None:
    """As many open files besides others: a shell's usual limit is 1,024, of which connections to a fleet are a part."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
