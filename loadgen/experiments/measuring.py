"""The runs of an experiment, one after the other: each on an engine of its own, on one cluster that is started for all,
or on a server that is there."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import aiohttp
from rich.console import Console

from loadgen.client import open_http
from loadgen.command import Interrupt
from loadgen.engine_watch import CALL_TIMEOUT
from loadgen.keys import Keys
from loadgen.perform import RunBroken, perform
from loadgen.results.output import OutputError, temporary_folder
from loadgen.results.run_file import BY_HAND, ENGINE_ENDED, RunFile
from loadgen.settings import Settings
from loadgen.target import Steering, Target, open_target

CLEAR = "/engine/cache/clear"


def came_to_its_end(run: RunFile) -> bool:
    """Whether all was played, or as much as a stop rule allows: then it can be held against another run."""
    return run.end is not None and run.end.stopped_by not in (BY_HAND, ENGINE_ENDED)


class Bench:
    """Measures runs until Ctrl-C, each on a fresh engine or on a server that is asked to forget its cache before."""

    def __init__(self, console: Console, interrupt: Interrupt, keys: Keys) -> None:
        self._console, self._interrupt, self._keys = console, interrupt, keys
        self._shared: Target | None = None
        self.kept: set[str] = set()  # servers that did not forget their cache before each run

    @contextlib.asynccontextmanager
    async def sharing(self, settings: Settings | None) -> AsyncIterator[None]:
        """While this lasts, one engine started for these settings serves all runs. None: none is shared.

        Raises as `open_target`.
        """
        if settings is None:
            yield
            return
        async with open_target(settings, self._console, self._keys) as target:
            self._shared = target
            try:
                yield
            finally:
                self._shared = None

    @property
    def stopped(self) -> bool:
        return self._interrupt.stop.is_set()

    def keeping(self, measured: Collection[object]) -> AbstractContextManager[list[BaseException]]:
        """What ends this block early, to be raised after the report of what is measured."""
        return self._interrupt.keeping(measured)

    async def measure(self, settings: Settings, path: Path, label: str) -> RunFile:
        """One run. A file that is there is written anew. Raises as `perform` and `open_target`."""
        async with self._target(settings) as target:
            is_used_again = settings.url is not None or self._shared is not None
            if is_used_again and not await self.forgets(target.url):
                self.kept.add(target.url)
            with self._interrupt.reported() as stop:
                try:
                    return await perform(settings, target, path, self._console, Steering(stop), label, overwrite=True)
                except RunBroken as broken:  # half a run is not held against others
                    raise broken.problem from None

    def _target(self, settings: Settings) -> contextlib.AbstractAsyncContextManager[Target]:
        if self._shared is not None:
            return contextlib.nullcontext(self._shared)
        return open_target(settings, self._console, self._keys)

    async def forgets(self, url: str) -> bool:
        """Tell a paged-engine, or a cluster, which tells all its workers, to forget its prefix cache; False: it did
        not, and what a run left is there for the next."""
        async with open_http(self._keys.at(url).engine) as http:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):  # the run itself tells what is wrong
                async with http.post(f"{url}{CLEAR}", timeout=CALL_TIMEOUT, allow_redirects=False) as reply:
                    return reply.status == 200
        return False


@contextlib.contextmanager
def run_folder(out: Path | None) -> Iterator[Path]:
    """Where the runs' files are: in --out, which is made if it is not there, or only until the command ends.

    Raises `OutputError`.
    """
    if out is None:
        with temporary_folder() as folder:
            yield folder
        return
    try:
        out.mkdir(exist_ok=True)
        (probe := out / ".loadgen").touch()
        probe.unlink()
    except FileExistsError:
        raise OutputError(f"--out {out}: is a file; name a folder") from None
    except OSError as error:
        raise OutputError(f"--out {out}: cannot be written: {error.strerror or error}") from None
    yield out
