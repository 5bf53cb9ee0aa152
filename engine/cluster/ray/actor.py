"""The actor of one worker: it starts the engine's process on its Ray node, and carries bytes to it and from it.

Ray keeps it alive (`max_restarts`): one whose engine has died ends too, and comes back on a node that has room for it.
Each engine is a life with a name of its own, and a process of the actor's has one at most: what was said to the one
that it had reaches no other, however late it comes. Whoever speaks to another life is told so.

What an engine says is fetched by `read`, one call after the other: each brings all that has gathered since the last,
and nobody who is slow has more on the way. A streaming generator, measured beside it on two cores, took 1.3 ms there
and back for a decode step's 200 bytes where this took 1.1 ms, with equal processor time; with 60 kB it carried 1,610 a
second where this carried 1,250, and engines never say so much. Two calls under way at a time gained nothing.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path

import msgspec
import ray

from engine.config import EngineConfig
from engine.core_client import LAST_SECONDS, CoreProcess
from engine.messages import Pull
from engine.transfer.offer import Offer
from engine.transfer.pool_memory import Pool, read_blocks, write_blocks

MOST_READ = 1 << 18  # bytes of one `read`
UNREAD_SECONDS = 5.0  # that an actor whose engine has died waits for somebody to be told of it
FAILED = 1  # exit code: Ray starts those again that end with it
_decode_config = msgspec.msgpack.Decoder(EngineConfig).decode


class Begun(msgspec.Struct, frozen=True):
    """Where an engine's process was started."""

    node: str  # Ray's id of the node
    address: str  # of the node
    boot: str  # of the machine: who has the same has the same monotonic clock
    pid: int
    log: str  # the file on that node into which it writes


class Over(msgspec.Struct, frozen=True):
    """The engine's process has ended: `ending` tells a person how. `asked`: it was told to."""

    ending: str
    asked: bool


class OtherLife(Exception):
    """The actor has another engine by now, or none, or has had one."""


class OtherVersion(Exception):
    """This node has another paged-top than whoever wants an engine here; the message tells a person."""


def own_version() -> str:
    """Of the paged-top that is installed here."""
    return version("paged-top")


def boot() -> str:
    """Of this machine since it was started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class EngineActor:
    """Its methods run in threads: one for what goes to the engine, one for what comes from it, two for blocks, and one
    for the rest. None of them computes anything."""

    def __init__(self) -> None:
        self._life = ""
        self._core: CoreProcess | None = None
        self._early: dict[int, bytes] = {}  # what came before what was sent before it
        self._next = 0
        self._writing_blocks = threading.Lock()
        self._given_up: set[str] = set()  # leases

    def begin(self, life: str, wanted: str, config: bytes) -> Begun:
        """Start an engine; its `host` becomes this node. `wanted` is the version of paged-top that `config` was
        encoded by. Raises OtherLife if there has been one here, OtherVersion."""
        if self._core is not None:
            raise OtherLife(f"this process had the engine {self._life}")
        if wanted != (here := own_version()):
            raise OtherVersion(f"{ray.util.get_node_ip_address()} has paged-top {here}, and {wanted} is wanted")
        node = ray.get_runtime_context().get_node_id()
        self._core = CoreProcess(msgspec.structs.replace(_decode_config(config), host=node))
        self._life = life
        log = os.readlink(f"/proc/self/fd/{sys.stderr.fileno()}")
        return Begun(node, ray.util.get_node_ip_address(), boot(), self._core.process.pid, log)

    @ray.method(concurrency_group="there")
    def write(self, life: str, number: int, data: bytes) -> None:
        """Calls may overtake each other: `number` counts them from 0. No data: nothing comes after it, and the engine
        is to end; what it still says is read."""
        core = self._living(life)
        self._early[number] = data
        while (following := self._early.pop(self._next, None)) is not None:
            self._next += 1
            try:
                if following:
                    core.socket.sendall(following)
                else:
                    core.socket.shutdown(socket.SHUT_WR)
            except OSError:
                return  # it has ended: `read` tells

    @ray.method(concurrency_group="back")
    def read(self, life: str) -> bytes | Over:
        """What the engine has said since the last call; waits until there is something."""
        core = self._living(life)
        try:
            data = core.socket.recv(MOST_READ)
        except OSError:
            data = b""
        return data or self._over(core)

    def _over(self, core: CoreProcess) -> Over:
        try:
            core.wait(LAST_SECONDS)
        except TimeoutError:
            core.kill()
            core.wait()
        asked = core.process.returncode == 0
        if not asked:
            self._end_later()
        return Over(core.ending(), asked)

    def leave(self, life: str) -> None:
        """End the engine as it stands, and this process with it, for Ray to start another."""
        self._living(life).kill()
        os._exit(FAILED)

    def _end_later(self) -> None:
        timer = threading.Timer(UNREAD_SECONDS, os._exit, (FAILED,))
        timer.daemon = True
        timer.start()

    @ray.method(concurrency_group="blocks")
    def read_blocks(self, life: str, offer: Offer, blocks: tuple[int, ...]) -> tuple[str, Pool | None]:
        """What is wrong, or "", and the blocks of this engine's offer: two objects, so that the first is told alone."""
        try:
            self._living(life)
            data = read_blocks(offer.place, blocks)
        except (OtherLife, ValueError) as error:
            return str(error), None
        late = time.monotonic() - offer.deadline
        if late >= 0:  # while they were read they may have become anybody's
            return f"the offer had expired {late:.1f} s before its blocks were read", None
        return "", data

    @ray.method(concurrency_group="blocks")
    def fill(self, life: str, pull: Pull, data: Pool) -> str:
        """Write blocks into this engine's pool. Returns what went wrong, or ""."""
        with self._writing_blocks:
            if pull.offer.lease in self._given_up:
                self._given_up.discard(pull.offer.lease)
                return "nobody waits for these blocks any more"
            try:
                self._living(life)
                write_blocks(pull.into, tuple(target for _, target in pull.pairs), data)
            except (OtherLife, ValueError) as error:
                return str(error)
        return ""

    def give_up(self, life: str, lease: str) -> None:
        """From its return on nobody writes the blocks of this lease."""
        self._living(life)
        with self._writing_blocks:
            self._given_up.add(lease)

    def _living(self, life: str) -> CoreProcess:
        if self._core is None or life != self._life:
            raise OtherLife(f"engine {life} is not here any more")
        return self._core
