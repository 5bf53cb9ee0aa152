"""What this program is attached to: an engine (its own, or one at a URL), its feed, and perhaps a replay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from tui.child import Child
from tui.engine_api import Accepted, Engine, Unreachable
from tui.engine_process import EngineFailed, EngineProcess
from tui.feed import NEWS_SHOWN, Feed
from tui.health import HealthReader
from tui.loads import LoadReader
from tui.player import Player
from tui.replay import FASTEST, SLOWEST, NoTrace, Replay, find_trace
from tui.sources.targets import NO_SETTINGS, HttpSettings
from tui.together import together
from tui.view import Link, Playing, View


class Session:
    """Run it in a task, and close it in any case. Without `url` (or an `engine`) it starts an engine of its own."""

    def __init__(
        self,
        url: str | None = None,
        model: str | None = None,
        replay: Replay | None = None,
        replay_sessions: int | None = None,
        replay_speed: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        engine: Engine | None = None,
        player: Player | None = None,
        trace: Path | None = None,
        http: HttpSettings = NO_SETTINGS,
        user: str = "",
        texts: bool = True,
        load_url: str | None = None,
    ) -> None:
        """`player`: a recording instead of an engine; `engine`: one that is there already (tests).

        `replay` starts when the engine is seen; `trace` is of one that is started later (None: the project's own).
        `http` says how the engine is asked, with its keys; `user` is of its address. `texts`: what requests and blocks
        say may be asked for. `load_url`: where replays are sent, if that is not where the engine tells its steps.
        """
        self.url = url
        self._load_url = load_url
        self.player = player
        self.replay = replay
        self.texts = texts
        self.feed: Feed | None = None
        self.loads: LoadReader | None = None
        self._health: HealthReader | None = None
        self.error = ""  # why the engine that was started is no more
        self._news = ("", 0.0)  # why the replay of the beginning did not start, and until when that is told
        self._replay_sessions = replay_sessions
        self._load_from_start = replay is not None
        self._trace = trace
        self._http = http
        self._user = user
        if replay is not None:
            replay.speed = replay_speed
        self._clock = clock
        self._started = self._clock()
        self._own = EngineProcess(model) if url is None and engine is None and player is None else None
        if engine is not None:
            self.feed = Feed(engine, self._clock)
        if player is not None:
            self.feed = Feed(player, player.now, player.wall)

    @property
    def clock(self) -> Callable[[], float]:
        return self._clock

    @property
    def unchecked(self) -> bool:
        """Whether its certificate is not looked at."""
        return self.url is not None and self._http.unchecked((self.url,))

    @property
    def link(self) -> Link:
        if self.error:
            return Link("ended", self.error)
        if self.feed is None:
            phase = "starting" if self._own else "connecting"
            return Link(phase, "", self._clock() - self._started)  # type: ignore[arg-type]
        link, (words, until) = self.feed.link, self._news
        if link.phase == "live" and self._health is not None:
            link = replace(link, unready=self._health.unready)
        return replace(link, news=words) if words and not link.news and self._clock() < until else link

    @property
    def target(self) -> str:
        """What it is attached to, in words."""
        if self.player is not None:
            return self.player.path.name
        return self.url or (f"an engine of its own, {self._own.model or 'the default model'}" if self._own else "")

    @property
    def playing(self) -> Playing | None:
        """How far a recording has been played."""
        player = self.player
        if player is None:
            return None
        return Playing(
            position=player.position.seconds,
            duration=player.duration,
            speed=player.speed,
            running=player.playing,
            ended=player.ended,
            waits=player.waits,
            note=player.note,
        )

    @property
    def log(self) -> tuple[str, ...]:
        return self._own.log if self._own else ()

    def view(self) -> View | None:
        return self.feed.view() if self.feed else None

    async def run(self) -> None:
        """Start what must be started, then follow the engine until cancelled."""
        if self._own:
            try:
                self.url = await self._own.start()
            except (EngineFailed, OSError) as error:
                self.error = str(error)
                return
        if self.feed is None:
            from tui.client import HttpEngine  # HTTP takes its time to load: the screen is there first

            self.feed = Feed(HttpEngine(self.url or "", self._http, self._user), self._clock)
        following = [asyncio.create_task(self.feed.run())]
        if self.player is None:
            self.loads = LoadReader(self.feed.engine)
            following.append(asyncio.create_task(self.loads.run()))
            self._health = HealthReader(self.feed.engine, self._is_live)
            following.append(asyncio.create_task(self._health.run()))
        if self._own and self._own.child:
            following.append(asyncio.create_task(self._watch(self._own.child)))
        if self._load_from_start:
            following.append(asyncio.create_task(self._start_replay(self.feed)))
        await together(following)

    async def change(self, changes: dict[str, Any]) -> Accepted:
        """Change the engine's control. Raises Refused or Unreachable."""
        if self.feed is None:
            raise Unreachable("there is no engine yet")
        return await self.feed.engine.change(changes)

    async def steer_replay(self, action: Literal["start", "stop", "speed"], speed: float = 1.0) -> tuple[str, bool]:
        """Start or stop the load against this engine, or set its speed; what came of it, and whether that is bad."""
        if self.feed is None or self.feed.fold is None or self.url is None:
            return "there is no engine to send a load to", True
        try:
            if self.replay is None:
                self.replay = Replay(self._trace or find_trace(), self._clock)
            match action:
                case "start":
                    url = self._load_url or self.url
                    await self.replay.start(url, self._replay_sessions, self._http.admin_key, self._http.api_key)
                case "stop":
                    await self.replay.stop()
                case "speed":
                    if not SLOWEST <= speed <= FASTEST:
                        return f"a replay's speed is from {SLOWEST:g} to {FASTEST:g}, not {speed:g}", True
                    self.replay.set_speed(speed)
        except NoTrace as error:
            return str(error), True
        except OSError as error:
            return f"the replay cannot be started: {error.strerror or error}", True
        return self.replay.failure or self.replay.line, bool(self.replay.failure)

    async def close(self) -> None:
        """Stop what was started here, and let go of the engine."""
        if self.replay:
            await self.replay.stop()
        if self.feed:
            await self.feed.engine.close()
        if self._own:
            await self._own.stop()

    def _is_live(self) -> bool:
        return self.feed is not None and self.feed.link.phase == "live"

    async def _watch(self, child: Child) -> None:
        """Tell when the engine of our own ends; the last picture stays."""
        code = await child.wait()
        last = self.log[-1] if self.log else ""
        self.error = f"exit code {code}. {last}"

    async def _start_replay(self, feed: Feed) -> None:
        """Start the load when the engine is seen for the first time."""
        while feed.fold is None:
            await asyncio.sleep(0.1)
        words, bad = await self.steer_replay("start")
        if bad:
            self._news = words, self._clock() + NEWS_SHOWN
