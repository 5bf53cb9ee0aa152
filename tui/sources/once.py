"""`--once` and `--json` of servers that are read by their metrics, one or a fleet."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress

from tui.engine_api import Locked, NotAnEngine
from tui.focus import FIRST_FOCUS, Focus
from tui.look import Look
from tui.once import fail, write_frame
from tui.sources.clock import now
from tui.sources.finder import Found, find, title
from tui.sources.http import Http
from tui.sources.poller import LEAST_TIMEOUT, TIMEOUT_LOOKS, Poller
from tui.sources.report import encode, fleet_report, server_report
from tui.sources.source import Source
from tui.sources.targets import HttpSettings, Target, no_steps
from tui.sources.view import FleetView, ServerView
from tui.view import Frame, Link, Status

OBSERVED = 1.5  # seconds that lie between two looks at least, so that there are rates


async def run_servers_once(
    targets: Sequence[Target],
    http: HttpSettings,
    every: float,
    json: bool,
    size: tuple[int, int],
    look: Look,
    focus: Focus = FIRST_FOCUS,
) -> int:
    """Print once and return the exit code: 1 where no server tells anything. What the others do not is told besides."""
    observed = max(OBSERVED, every)
    views = await observe(targets, http, every, observed)
    telling = [view for view in views if view.link.fresh]
    for view in views:
        if not view.link.fresh and (telling or len(views) > 1):
            print(f"paged-top: {view.name}: {view.link.detail}", file=sys.stderr)
        for kv in view.kv:
            if kv.phase != "live":
                said = f"{kv.phase}: {kv.detail}" if kv.detail else kv.phase
                print(f"paged-top: {view.name}: KV events of {kv.endpoint}: {said}", file=sys.stderr)
    if not telling:
        return fail(f"{views[0].url}: {views[0].link.detail}" if len(views) == 1 else "none of the servers answers")
    fleet = FleetView(tuple(views), views[0].now) if len(views) > 1 else None
    if json:
        print(encode(server_report(views[0], observed) if fleet is None else fleet_report(fleet, observed)))
        return 0
    write_frame(
        _frame(views, fleet, focus, no_steps(targets[0]), http.unchecked(one.url for one in targets)),
        *size,
        look,
        sys.stdout,
    )
    return 0


async def run_other_once(
    target: Target,
    http: HttpSettings,
    every: float,
    json: bool,
    size: tuple[int, int],
    look: Look,
    focus: Focus,
    error: NotAnEngine,
) -> int:
    """The same for what is no paged-engine, which `error` tells; where it is no other server either, or is locked,
    that is told."""
    async with Http(target, http, LEAST_TIMEOUT) as asking:
        found = await find(asking)
    if isinstance(found, Found) and found.kind != "paged-engine":
        return await run_servers_once((target,), http, every, json, size, look, focus)
    if isinstance(found, Found):
        more = "--source metrics shows what it tells without" if isinstance(error, Locked) else ""
    else:
        more = f"for its metrics it {found.reason.removeprefix('it ')}" if found.phase == "locked" else found.reason
    return fail("; ".join(filter(None, (f"{target.url}: {error}", more))))


async def observe(targets: Sequence[Target], http: HttpSettings, every: float, seconds: float) -> list[ServerView]:
    """Look at each until it has told figures over so many seconds, or said or shown that it does not."""
    clock = now
    sources = [Source(one.name, one.url, clock, number) for number, one in enumerate(targets)]
    tasks = [
        asyncio.create_task(Poller(one, http, source.take, source.number, every, clock).run())
        for one, source in zip(targets, sources, strict=True)
    ]
    last = clock() + max(LEAST_TIMEOUT, TIMEOUT_LOOKS * every) + seconds + every
    try:
        while clock() < last and not all(_is_done(source.view(), seconds) for source in sources):
            for task in tasks:
                if task.done():
                    task.result()  # none ends by itself but by a fault of this program
            await asyncio.sleep(0.02)
        return [source.view() for source in sources]
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


def _is_done(view: ServerView, seconds: float) -> bool:
    if view.link.phase in ("failing", "locked", "foreign"):
        return True
    if any(kv.phase == "connecting" and not kv.detail for kv in view.kv):
        return False
    measures = view.measure(seconds)
    return measures is not None and measures.seconds >= seconds * 0.98


def _frame(views: Sequence[ServerView], fleet: FleetView | None, focus: Focus, why: str, unchecked: bool) -> Frame:
    if fleet is not None:
        telling = sum(view.link.fresh for view in views)
        told = f"{telling} of {len(views)} servers"
        return Frame(Status(Link("live"), told, readonly=True, unchecked=unchecked), None, focus, fleet=fleet)
    (view,) = views
    named = " ".join(filter(None, (title(view.kind), view.version, view.url)))
    return Frame(
        Status(Link("live"), named, readonly=True, no_steps=why, unchecked=unchecked), None, focus, server=view
    )
