"""What the screen is attached to where that may be another server than a paged-engine, or several of them.

One server is tried as a paged-engine first; what turns out to be none is shown by its metrics. Several are watched all
the time, and one of them is opened: a paged-engine by its steps, any other by what its metrics told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tui.attached import Shown, Steps
from tui.operator import Tell
from tui.session import Session
from tui.sources.clock import now
from tui.sources.targets import IN_RECORDINGS, NO_SETTINGS, HttpSettings, Target, no_steps

if TYPE_CHECKING:  # what a paged-engine alone does not need takes its time to load
    from tui.sources.player import SourcePlayer
    from tui.sources.shown import Servers
    from tui.sources.watch import Watch

SETTLE_SECONDS = 0.1  # between two looks at what is shown
OURS = "paged-engine"
STRANGE = ("", OURS)  # kinds of which nothing is shown before their steps were tried


class Attach:
    """Servers that are named, or those of a recording (`player`). `steps_first`: see above; of one server alone."""

    def __init__(
        self,
        targets: Sequence[Target] = (),
        http: HttpSettings = NO_SETTINGS,
        every: float = 1.0,
        steps_first: bool = False,
        clock: Callable[[], float] = now,
        player: SourcePlayer | None = None,
        texts: bool = True,
    ) -> None:
        """`every`: seconds between two looks at a server's metrics. `texts`: what prompts say may be shown."""
        if bool(targets) == (player is not None):
            raise ValueError("either targets or a player")
        if steps_first and len(targets) != 1:
            raise ValueError(f"steps are of one server, and {len(targets)} are named")
        self.targets = tuple(targets)
        self.finished: list[str] = []
        self.report: list[str] = []
        self.error = ""
        self._http = http
        self._every = every
        self._steps_first = steps_first
        self._clock = clock
        self._player = player
        self._texts = texts
        self._readonly = False
        self._tell: Tell = _silent
        self._watch: Watch | None = None
        self._watching: asyncio.Task[None] | None = None
        self._servers: Servers | None = None
        self._steps: Steps | None = None
        self._following: asyncio.Task[None] | None = None  # the steps
        self._ending: set[asyncio.Task[None]] = set()
        self._refusal = ""  # and why
        self._refused = ""  # the server whose steps could not be had, which was told

    @property
    def clock(self) -> Callable[[], float]:
        return self._clock

    @property
    def shown(self) -> Shown:
        if self._steps is not None and (self._servers is None or self._has_steps(self._steps)):
            return self._steps
        assert self._servers is not None, "begin comes first"
        return self._servers

    @property
    def back(self) -> str:
        several = self._servers is not None and len(self._servers.sources) > 1
        return "the fleet" if several and self._servers is not None and self._servers.selected is not None else ""

    def begin(self, readonly: bool, tell: Tell) -> None:
        self._readonly, self._tell = readonly, tell
        if self._steps_first:
            self._start_steps(self.targets[0])
        else:
            self._servers = self._make_servers()

    async def run(self) -> None:
        """Watch until cancelled."""
        if self._player is not None:
            await self._player.run()
            return
        try:
            while True:
                self._settle()
                self._follow()
                if self._servers is not None:
                    self._servers.recorder.check()  # also while it is not what is shown
                await asyncio.sleep(SETTLE_SECONDS)
        finally:
            if self._watching is not None:  # what was heard is shown and recorded until this is closed
                self._watching.cancel()

    async def open(self, server: str) -> None:
        """Show one alone: a paged-engine with a stream of its steps. A frozen picture stays one."""
        assert self._servers is not None
        self._servers.selected, self._refused, self._refusal = server, "", ""
        self._settle()
        self._follow()

    async def leave(self) -> None:
        if self.back and self._servers is not None:
            self._servers.selected = None
            self._stop_steps()

    async def close(self) -> None:
        """Stop what was started, and let go of all servers. What was recorded is in `finished`."""
        self._stop_steps()
        self._stop_watch()
        if self._player is not None:
            await self._player.close()
        await asyncio.gather(*self._ending, return_exceptions=True)

    # What is shown

    def _settle(self) -> None:
        """Start and stop what the server that is shown wants now."""
        if self._player is not None:
            return
        if not self._steps_first:
            self._start_watch()
        target = self._target()
        if target is None or self._wants_steps():
            if target is not None and self._steps is None:
                self._start_steps(target)
        elif self._steps is not None and self._phase(self._steps) != "live":
            self._stop_steps()
        if self._steps_first and self._steps is not None:
            match self._phase(self._steps):
                case "foreign" | "locked":
                    self._start_watch()
                case "live":
                    self._stop_watch()
        self._tell_refusal()

    def _target(self) -> Target | None:
        """The server that is shown alone, where it is live and not a picture of the past."""
        if self._steps_first:
            return self.targets[0]
        servers = self._servers
        if servers is None or servers.scrub.seq is not None or servers.selected is None or len(self.targets) == 1:
            return None
        return next(target for target in self.targets if target.name == servers.selected)

    def _wants_steps(self) -> bool:
        """Whether they are worth a try: of one server until it shows that it is another, of several of ours alone."""
        kind, fresh = self._kind()
        if self._steps_first:
            return not fresh or kind in STRANGE
        assert self._servers is not None
        return kind == OURS and (self._steps is not None or (fresh and self._refused != self._servers.selected))

    def _has_steps(self, steps: Steps) -> bool:
        """Whether the stream is what there is to show: else what the metrics tell."""
        phase, (kind, fresh) = self._phase(steps), self._kind()
        if phase == "live" or self._servers is None:
            return True
        if self._steps_first:
            other = kind not in STRANGE
            return not other and not (phase == "foreign" and self._standing() == "foreign")
        return not (fresh and phase in ("foreign", "locked"))

    def _kind(self) -> tuple[str, bool]:
        """What the metrics of the one that is shown say it is, and whether they say it now."""
        source = self._servers.source if self._servers is not None else None
        return ("", False) if source is None else (source.kind, source.view().link.fresh)

    def _standing(self) -> str:
        source = self._servers.source if self._servers is not None else None
        return "" if source is None else source.view().link.phase

    @staticmethod
    def _phase(steps: Steps) -> str:
        return steps.session.link.phase

    def _tell_refusal(self) -> None:
        """Once, of one of several: why its steps are not shown."""
        if self._steps is None or self._steps_first or self._has_steps(self._steps):
            return
        assert self._servers is not None
        if self._refused != self._servers.selected:
            self._refused, self._refusal = self._servers.selected or "", self._steps.session.link.detail
            self._tell(f"this is from its metrics, for its steps: {self._refusal}", True)

    # Starting and stopping

    def _start_watch(self) -> None:
        if self._watching is not None:
            return
        self._servers = self._servers or self._make_servers()
        assert self._watch is not None
        self._watching = asyncio.create_task(self._watch.run())

    def _stop_watch(self) -> None:
        """What was heard is forgotten where there is a stream of steps."""
        if self._servers is not None:
            self._servers.recorder.stop()
            self.finished += self._servers.recorder.finished
        if self._watching is not None:
            self._end(self._watching)
        self._watching = self._watch = self._servers = None

    def _make_servers(self) -> Servers:
        from tui.sources.recorder_switch import SourcesSwitch
        from tui.sources.shown import Servers
        from tui.sources.watch import Watch

        player = self._player
        if player is None:
            self._watch = Watch(self.targets, self._http, self._every, self._clock, self._texts)
        sources = player.sources if player is not None else self._watch.sources if self._watch is not None else ()
        recorder = SourcesSwitch(sources, self._tell, self._secrets(), player is not None)
        clock = player.now if player is not None else self._clock
        words = player.path.name if player is not None else ""
        unchecked = self._http.unchecked(target.url for target in self.targets)
        texts = self._watch.texts if self._watch is not None and self._texts else None
        return Servers(
            sources, self._readonly, self._tell, clock, recorder, words, player, self._no_steps, unchecked, texts
        )

    def _secrets(self) -> Iterator[str]:
        """What is left out of recordings: the values of headers, a key among them, and users of addresses."""
        for target in self.targets:
            for ours in (False, True):
                for value in self._http.headers_for(target, ours).values():
                    yield value
                    yield value.rpartition(" ")[2]
            for part in target.user.split(":"):
                yield part
                yield unquote(part)

    def _start_steps(self, target: Target) -> None:
        session = Session(target.url, http=self._http, user=target.user, clock=self._clock, texts=self._texts)
        several = self._servers is not None and len(self.targets) > 1
        self._steps = Steps(session, self._readonly, self._tell, target.name if several else "", self._recording)

    def _no_steps(self) -> str:
        """Why metrics are shown, of an engine that has steps."""
        if self._player is not None:
            return IN_RECORDINGS
        if self._steps is not None:
            return self._steps.session.link.detail or self._steps.session.link.phase
        if len(self.targets) > 1:
            if self._servers is not None and self._servers.scrub.seq is not None:
                return "while paused, a fleet shows what metrics told"
            return self._refusal
        return no_steps(self.targets[0])

    def _recording(self) -> str:
        """What is recorded of all servers, which goes on while one is shown alone."""
        words = self._servers.recorder.words if self._servers is not None else ""
        return f"all servers: {words}" if words else ""

    def _follow(self) -> None:
        """Run what is started, and tell of what ended by a fault of this program: of one of several, on its screen."""
        if self._watching is not None and self._watching.done():
            self._watching.result()
        if self._steps is not None and self._following is None:
            self._following = asyncio.create_task(self._steps.session.run())
        elif self._following is not None and self._following.done():
            error = self._following.exception()
            if error is not None and self._steps_first:
                raise error
            if error is not None and self._servers is not None:
                self._refused = self._servers.selected or ""
                self._refusal = f"paged-top failed over them: {type(error).__name__}: {error}"
                self._tell(f"no steps: {self._refusal}", True)
                self._stop_steps()

    def _stop_steps(self) -> None:
        steps, following = self._steps, self._following
        self._steps = self._following = None
        if steps is None:
            return
        steps.operator.ended = True
        steps.recorder.stop("the steps are left: ")
        self.finished += steps.recorder.finished
        self._end(following, steps.session)

    def _end(self, task: asyncio.Task[None] | None, session: Session | None = None) -> None:
        """Cancel a task, and close its session; nobody waits for that but `close`."""

        async def end() -> None:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            if session is not None:
                await session.close()
                if session.replay is not None:
                    self.report += session.replay.report
                    self.error = session.replay.failure or self.error

        ending = asyncio.create_task(end())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


def _silent(text: str, bad: bool) -> None:
    """Before there is a screen."""
