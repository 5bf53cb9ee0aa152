"""`paged-engine scale`: change a cluster that serves, and watch until its workers are as they are to be."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import SplitResult, urlsplit

from engine.cli import INTERRUPTED, Adder, between, file_name, number, show, unusable
from engine.cluster.protocol import MOST_LOCAL_PREFILL, MOST_WORKERS, ClusterState, Routing, WorkerPhase, WorkerState
from engine.cluster.sizes import FIELDS, told
from engine.keys import first_key, key
from engine.log import printable

if TYPE_CHECKING:
    from engine.cluster.cluster_server import ClusterServer

FAILED = 1  # exit code
MOST_WAIT = 86_400.0  # seconds
LOOK_SECONDS = 0.2  # between two looks


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    scale = commands.add_parser(
        "scale",
        help="change the workers of a cluster that serves",
        description="Change what is given of a cluster that serves, and wait until its workers are ready, or drained "
        "and gone. Ctrl-C ends the waiting alone.",
    )
    scale.set_defaults(command="scale", run=_scale)
    change = scale.add_argument  # never by the environment: `serve` has options of these names
    for option, what in (("prefill", "prefill workers"), ("decode", "decode workers"), ("replicas", "replicas")):
        change(f"--{option}", type=between(0, MOST_WORKERS), metavar="N", help=f"how many {what} there are to be")
    change("--separate", choices=("on", "off"), help="whether prompts are prefilled by the prefill workers")
    change("--routing", choices=get_args(Routing), help="how a worker is chosen for a request")
    change(
        "--local-prefill",
        type=between(0, MOST_LOCAL_PREFILL),
        metavar="N",
        help="prompts with at most so many tokens that are not cached are prefilled where they decode",
    )
    change(
        "--timeout",
        type=number(0, MOST_WAIT, "a number of seconds"),
        default=0.0,
        metavar="SECONDS",
        help="to wait at most; 0: as long as it takes (default: 0)",
    )
    add = Adder(scale)
    add("--url", type=_address, default="http://127.0.0.1:8000", help="of the server (default: %(default)s)")
    add(
        "--admin-key",
        nargs="+",
        type=key,
        metavar="KEY",
        help="of the server, which is shown the first; others on this machine can read it here: a file is better",
    )
    add("--admin-key-file", type=file_name, metavar="FILE", help="of such keys, one a line, unless one is given")


def _scale(arguments: argparse.Namespace) -> int:
    wanted = _wanted(arguments)
    if not wanted:
        return unusable("nothing to change: --prefill, --decode, --replicas, --separate, --routing or --local-prefill")
    try:
        file = arguments.admin_key_file
        shown = first_key(arguments.admin_key, file, "--admin-key", None if file is None else file.variable)
    except argparse.ArgumentTypeError as error:
        return unusable(str(error))
    from engine.cluster.cluster_server import ClusterServer, NotDone

    server = ClusterServer(arguments.url, shown, arguments.timeout)
    changed = False
    try:
        state, changed = server.change(wanted), True
        progress = _Progress(state)
        unwritten = progress.say(f"wanted: {told(state.control)}") or progress.tell(state)
        return unwritten or _follow(server, progress, arguments.timeout)
    except NotDone as error:
        print(f"paged-engine: error: {printable(str(error))}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        if changed:
            print("paged-engine: the change stays in place, and goes on without being watched", file=sys.stderr)
        return INTERRUPTED


def _wanted(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(arguments, name) for name in ("prefill", "decode", "replicas", "routing", "local_prefill")}
    if arguments.separate is not None:
        given["separate"] = arguments.separate == "on"
    return {name: value for name, value in given.items() if value is not None}


def _follow(server: ClusterServer, progress: _Progress, timeout: float) -> int:
    """Tell what becomes of the workers until they are as they are to be. Raises NotDone."""
    from engine.cluster.cluster_server import NotDone

    begun = time.monotonic()
    while True:
        state = server.state()
        if unwritten := progress.tell(state):
            return unwritten
        seconds = time.monotonic() - begun
        if is_done(state):
            return progress.say("done")
        if dead := hopeless(state):
            raise NotDone(f"{'; '.join(dead)}. The change stays in place, for when it can be done")
        if timeout and seconds > timeout:
            going = ", ".join(f"{one.name} is {one.phase}" for one in state.workers if one.phase != "ready")
            raise NotDone(f"not done after {timeout:g} s: {going}. The change stays in place")
        time.sleep(LOOK_SECONDS)


def is_done(state: ClusterState) -> bool:
    """Whether there are as many workers of each role as there are to be, and none comes or goes."""
    there = Counter((worker.role, worker.phase) for worker in state.workers)
    return not _under_way(state) and all(
        there[role, "ready"] == getattr(state.control, field) for role, field in FIELDS.items()
    )


def hopeless(state: ClusterState) -> list[str]:
    """Who died, and why, where nothing that is under way can still bring what is wanted."""
    if _under_way(state):
        return []
    return [f"{one.name} is dead: {one.reason}" for one in state.workers if one.phase == "dead"]


def _under_way(state: ClusterState) -> bool:
    return any(worker.phase in ("starting", "draining") for worker in state.workers)


class _Progress:
    """What becomes of the workers, a line for each change."""

    def __init__(self, state: ClusterState) -> None:
        """`state`: the first, of which those that are ready are no news."""
        # Each one's phase, and the requests that it has yet.
        ready = [worker for worker in state.workers if worker.phase == "ready"]
        self._known: dict[str, tuple[WorkerPhase, int]] = {worker.name: (worker.phase, 0) for worker in ready}
        self._begun = time.monotonic()

    def tell(self, state: ClusterState) -> int:
        """The changes since the last state; returns an exit code where they cannot be written."""
        now = {worker.name: (worker.phase, _requests(worker)) for worker in state.workers}
        known, self._known = self._known, now
        changed = [worker for worker in state.workers if known.get(worker.name) != now[worker.name]]
        lines = [f"{worker.name}: {worker.phase}{_more(worker)}" for worker in changed]
        lines += [f"{name}: gone" for name in known if name not in now]
        return next((code for line in lines if (code := self.say(line))), 0)

    def say(self, line: str) -> int:
        """Returns an exit code where it cannot be written."""
        return show(printable(f"{time.monotonic() - self._begun:6.1f} s  {line}"))


def _requests(worker: WorkerState) -> int:
    """That a worker which is drained has yet; of others it does not matter."""
    of = (worker.running, worker.waiting, worker.sending, worker.receiving)
    return sum(of) if worker.phase == "draining" else 0


def _more(worker: WorkerState) -> str:
    if worker.phase == "draining":
        requests = _requests(worker)
        return ", 1 request" if requests == 1 else f", {requests:,} requests"
    return f", {worker.reason}" if worker.reason and worker.phase != "ready" else ""


def _address(text: str) -> SplitResult:
    """Raises ArgumentTypeError."""
    wrong = argparse.ArgumentTypeError(f"must be an address such as http://127.0.0.1:8000, got {text!r}")
    try:
        url = urlsplit(text.rstrip("/").removesuffix("/v1"))
        usable = url.scheme in ("http", "https") and url.hostname and url.port != 0 and url.username is None
    except ValueError:  # of a port, or of brackets
        raise wrong from None
    if not usable or url.query or url.fragment or not text.isascii() or not text.isprintable() or " " in text:
        raise wrong
    return url
