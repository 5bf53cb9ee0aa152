"""A core in an actor on a Ray cluster, with a socket here as if it were a child: two threads carry what is said.

Between two hosts blocks go as objects of Ray's object store, which moves them from node to node. Ray Direct Transport
would save two copies, and is not used: in Ray 2.60 it is alpha, takes tensors of torch alone (the actors have no torch,
and the pools are memory of other processes), its transport for CPUs needs a collective group of two actors that does
not outlive the death of one of them, and nobody promises that restarted actors can go on with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from engine.cluster.ray.actor import Begun, Over, boot
from engine.cluster.ray.errors import in_a_sentence
from engine.core_client import Core
from engine.messages import Pull

MOST_WRITE = 1 << 18  # bytes of one call
MOST_WRITES = 16  # calls that may be under way at a time
LEAVE_SECONDS = 3.0  # that an actor has to end itself, before Ray ends it


class RayCore:
    """A `Distant` core: engine `life` of `actor`. `end_actor` ends it for good, whoever would start it again."""

    def __init__(
        self,
        name: str,
        actor: Any,
        life: str,
        begun: Begun,
        patience: float,
        end_actor: Callable[[], None],
    ) -> None:
        self.name = name
        self.actor = actor
        self.life = life
        self.begun = begun
        self.node = f"{begun.address}/{begun.node[:8]}"
        self.shares_clock = begun.boot == boot()
        self.socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._patience = patience  # seconds for the blocks of a pull
        self._end_actor = end_actor
        self._ending = ""  # how it ended
        self._ended = threading.Event()
        self._ending_once = threading.Lock()
        self._window = threading.BoundedSemaphore(MOST_WRITES)
        for work in (self._carry_there, self._carry_back):
            threading.Thread(target=work, name=f"{name}-{work.__name__}", daemon=True).start()

    def ending(self) -> str:
        return self._ending or "the engine's actor closed its connection"

    def kill(self) -> None:
        """It ends in a moment, and Ray starts its actor again."""
        threading.Thread(target=self._kill, name=f"{self.name}-kill", daemon=True).start()

    def _kill(self) -> None:
        if self._ended.is_set():
            return
        try:
            ray.get(self.actor.leave.remote(self.life), timeout=LEAVE_SECONDS)
        except GetTimeoutError:  # it hangs, or its node is gone and nobody knows yet
            if not self._ended.is_set():  # by now another life may be there
                with contextlib.suppress(RayError, ValueError):
                    ray.kill(self.actor, no_restart=False)
        except (RayError, ValueError):
            pass  # as it should: it ends while it is asked
        self._end(f"the engine's actor on node {self.node} was ended")

    def wait(self, timeout: float | None = None) -> None:
        """Until it has ended. Raises TimeoutError."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"the engine of {self.name} has not ended after {timeout} s")

    def stop(self, timeout: float) -> None:
        """Close the socket, wait, and end the actor for good."""
        self.socket.close()
        self._ended.wait(timeout)
        self._end_actor()
        self._end("the engine was stopped")

    async def fill(self, pull: Pull, source: Core) -> str:
        """Fill this engine's blocks with those of `source`. Returns what went wrong; "" if nothing did. Nothing touches
        the blocks when it returns."""
        if not isinstance(source, RayCore):
            return "the engine that offers the blocks is on no Ray node"
        try:
            return await self._fill(pull, source)
        except (RayError, ValueError, TimeoutError) as error:
            return f"the blocks of {source.name} did not come: {in_a_sentence(error)}"

    async def _fill(self, pull: Pull, source: RayCore) -> str:
        """Raises RayError or TimeoutError where nothing was written."""
        blocks = tuple(block for block, _ in pull.pairs)
        # The blocks do not come here: Ray takes the object from the source's node to this engine's.
        told, data = source.actor.read_blocks.options(num_returns=2).remote(source.life, pull.offer, blocks)
        try:
            wrong = str(await asyncio.wait_for(_awaited(told), self._patience))
        except TimeoutError:
            raise TimeoutError(f"they were not read within {self._patience:g} s") from None
        if wrong:
            return f"{source.name}: {wrong}"
        filling = asyncio.ensure_future(_awaited(self.actor.fill.remote(self.life, pull, data)))
        filling.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait any more
        try:
            return str(await asyncio.wait_for(asyncio.shield(filling), self._patience))
        except TimeoutError:
            await self._give_up(pull)
            raise TimeoutError(f"they were not there after {self._patience:g} s") from None
        except RayActorError as error:  # it may still write, into an engine that is of no use any more
            self._lose(error)
            return self.ending()

    async def _give_up(self, pull: Pull) -> None:
        """Until nobody will write the blocks: the actor says so, or it is ended, and its engine with it."""
        try:
            await asyncio.wait_for(_awaited(self.actor.give_up.remote(self.life, pull.offer.lease)), self._patience)
        except TimeoutError:  # it hangs
            self.kill()
        except RayError as error:
            self._lose(error)

    def _carry_there(self) -> None:
        """From our socket to the actor."""
        number = 0
        with contextlib.suppress(OSError, RayError, ValueError):
            while data := self._theirs.recv(MOST_WRITE):
                self._window.acquire()
                if self._ended.is_set():
                    return
                self.actor.write.remote(self.life, number, data).future().add_done_callback(self._written)
                number += 1
            if not self._ended.is_set():
                self.actor.write.remote(self.life, number, b"")

    def _written(self, done: Any) -> None:
        """In a thread of Ray's."""
        with contextlib.suppress(ValueError):  # whoever waited was let go
            self._window.release()
        if (error := done.exception()) is not None:
            self._lose(error)  # what was sent after it makes no sense without it

    def _carry_back(self) -> None:
        """From the actor to our socket, until there is no more to come."""
        try:
            while not isinstance(said := ray.get(self.actor.read.remote(self.life)), Over):
                with contextlib.suppress(OSError):  # nobody listens any more: it is read all the same, to its end
                    self._theirs.sendall(said)
        except (RayError, ValueError) as error:
            self._lose(error)
            return
        if said.asked:
            self._end(said.ending)
        else:
            self._let_leave()
            self._end(f"{said.ending}; its log is {self.begun.log} on node {self.node}")

    def _end(self, ending: str) -> None:
        """It is over; the first one to say so tells how."""
        with self._ending_once:
            if self._ended.is_set():
                return
            self._ending = ending
            self._ended.set()
        with contextlib.suppress(OSError):
            self._theirs.shutdown(socket.SHUT_RDWR)
        self._theirs.close()
        with contextlib.suppress(ValueError):
            self._window.release()

    def _lose(self, error: BaseException) -> None:
        """The actor cannot be spoken with. If it lives all the same, it and its engine are not to go on."""
        if not self._ended.is_set():
            self._let_leave()
            self._end(f"the engine's actor on node {self.node} was lost: {in_a_sentence(error)}")

    def _let_leave(self) -> None:
        """Ray has another process started for the actor, before whoever hears that this life is over asks for another.
        One that does not hear this is ended when the next life is to begin."""
        with contextlib.suppress(RayError, ValueError):
            self.actor.leave.remote(self.life)


async def _awaited(reference: Any) -> Any:
    return await asyncio.wrap_future(reference.future())
