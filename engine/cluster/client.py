"""A cluster as one client has it: requests go to whichever worker can take them, and calls to all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from engine.core_client import (
    IDLE_SECONDS,
    CallFailedError,
    CallRefusedError,
    CallUnansweredError,
    Cleared,
    ControlInForce,
    EngineDiedError,
    Sink,
    to_its_end,
)
from engine.messages import Add, BlockTokens, Reply, RequestTokens
from engine.protocol import Control, EngineInfo, FinishReason, LiveRequest, LiveRequests, encode
from engine.transfer.needs import unmet

if TYPE_CHECKING:
    from engine.cluster.cluster import Cluster
    from engine.core_client import CoreClient

T = TypeVar("T")
ANSWER_SECONDS = 5.0  # within which an engine tells what it has; a step may be between
_decode_requests = msgspec.json.Decoder(LiveRequests).decode


class ClusterClient:
    """See `engine.client.Client`. `info` is that of the smallest engine: what it takes, each of them takes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._draining = False
        self.patching = asyncio.Lock()  # held while the control of engines is being changed
        self.info: EngineInfo | None = None  # None until one can serve
        self.death: EngineDiedError | None = None  # the cluster cannot be kept alive
        self.in_force: ControlInForce | None = ControlInForce(cluster.config.control, 0)
        self._told: dict[str, Control] = {}  # by worker: what it last got of here; it may have been given another since

    @property
    def ready(self) -> bool:
        return self.info is not None and self.death is None and self._cluster.missing is None

    @property
    def num_live(self) -> int:
        return len(self._cluster.dispatcher.live)

    def drain(self) -> None:
        self._draining = True

    def add(self, message: Add, sink: Sink, answer: str) -> None:
        """Start a request and its siblings. Raises EngineDiedError if no engine can take any now."""
        if self._draining:
            raise EngineDiedError("the server is shutting down")
        if self.death is not None:
            raise self.death
        if (missing := self._cluster.missing) is not None:
            raise EngineDiedError(missing)
        self._cluster.dispatcher.add(message, self._cluster.metrics.timed(sink), answer)

    def abort(self, requests: Sequence[str], reason: FinishReason) -> None:
        self._cluster.dispatcher.abort(requests, reason)

    def cancel(self, name: str) -> tuple[str, ...]:
        return self._cluster.dispatcher.cancel(name)

    def end_streams(self) -> None:
        self._cluster.dispatcher.cancel_all()

    async def until_idle(self) -> None:
        while self.num_live:
            await asyncio.sleep(IDLE_SECONDS)

    async def snapshot(self) -> Reply:
        """Each worker has its own: raises CallRefusedError."""
        raise CallRefusedError("a cluster has no snapshot, each of its workers has one")

    async def requests(self) -> bytes:
        """Those of all workers that answer, one after the other; `seq` is of none of them: 0. One that is being handed
        over is told by both."""
        told = await self._ask(lambda client: client.requests())
        found = [_decode_requests(one) for one in told if isinstance(one, bytes)]
        requests: list[LiveRequest] = [request for one in found for request in one.requests]
        return encode(
            LiveRequests(
                0,
                sum(one.waiting for one in found),
                sum(one.running for one in found),
                sum(one.held for one in found),
                tuple(requests),
                sum(one.sending for one in found),
                sum(one.receiving for one in found),
            )
        )

    async def request_tokens(self, request: str, first: int, before: int) -> tuple[int, RequestTokens] | None:
        """Of whichever engine has most of it."""
        told = await self._ask(lambda client: client.request_tokens(request, first, before))
        found = [one for one in told if one is not None and not isinstance(one, BaseException)]
        return max(found, key=lambda one: one[1].first + len(one[1].part.tokens), default=None)

    async def block_tokens(self, block: int, before: int) -> tuple[int, BlockTokens]:
        """Each worker has its own blocks: raises CallRefusedError."""
        raise CallRefusedError("a cluster has no blocks, each of its workers has some")

    async def clear_cache(self) -> Cleared:
        """Forget every cached prefix, of all workers."""
        clients = self._clients()
        told = await self._ask(lambda client: to_its_end(client.clear_cache()), clients)
        for (name, _), one in zip(clients, told, strict=True):
            if isinstance(one, TimeoutError):
                silent = f"{name} has not answered for {ANSWER_SECONDS:g} s"
                raise CallUnansweredError(f"{silent}; the others have done it, and it does when it can")
            if isinstance(one, BaseException) and not isinstance(one, EngineDiedError):  # else it has nothing any more
                raise one
        return Cleared(sum(one.blocks for one in told if not isinstance(one, BaseException)), 0)

    async def patch_control(self, change: Callable[[Control], Control]) -> ControlInForce:
        """Change the control of all engines, also of those that come later. Raises CallRefusedError where one of them
        cannot take it: none has it then."""
        return await to_its_end(self._patch_in_turn(change))

    async def _patch_in_turn(self, change: Callable[[Control], Control]) -> ControlInForce:
        async with self.patching:
            wanted = change(self.control)
            if self._cluster.hands_over and (need := unmet(wanted)) is not None:  # also engines that have yet to come
                raise CallRefusedError(
                    f"{need.setting} must be {need.must!r} where KV is handed over, not {need.got!r}"
                )
            clients = [(name, client) for name, client in self._clients() if client.in_force is not None]
            before = {client: client.in_force.control for _, client in clients if client.in_force is not None}
            told = await self._ask(lambda client: client.patch_control(lambda _: wanted), clients)
            if refusals := [one for one in told if isinstance(one, (CallRefusedError, CallFailedError))]:
                await self._ask(lambda client: client.patch_control(lambda _: before[client]), clients)
                raise refusals[0]
            # Of those that died the next ones are told when they are ready; one that is stopped is told already.
            seqs = []
            for (name, _), one in zip(clients, told, strict=True):
                if isinstance(one, ControlInForce):
                    self._told[name] = wanted
                    seqs.append(one.seq)
                else:  # what the next of its name begins with is not known
                    self._told.pop(name, None)
            self.in_force = ControlInForce(wanted, max(seqs, default=0))
            return self.in_force

    @property
    def control(self) -> Control:
        """What all engines are to have."""
        assert self.in_force is not None, "a cluster has a control from its start"
        return self.in_force.control

    def begins(self, worker: str) -> Control:
        """What a new worker begins with."""
        self._told[worker] = self.control
        return self.control

    async def adopt(self, worker: str, client: CoreClient) -> None:
        """Have an engine that has just come take what was decided while it was on its way."""
        async with self.patching:
            wanted = self.control
            if self._told.get(worker) != wanted:
                with contextlib.suppress(TimeoutError):  # one that is stopped takes it when it goes on
                    await asyncio.wait_for(client.patch_control(lambda _: wanted), ANSWER_SECONDS)
                    self._told[worker] = wanted

    async def shutdown(self, timeout: float = 3.0) -> None:
        await self._cluster.shutdown(timeout)

    async def _ask(
        self, call: Callable[[CoreClient], Awaitable[T]], clients: Sequence[tuple[str, CoreClient]] | None = None
    ) -> list[T | BaseException]:
        """Ask engines, or all, at once: one that is stopped does not keep the others' answers."""
        asked = self._clients() if clients is None else clients
        return await asyncio.gather(
            *(asyncio.wait_for(call(client), ANSWER_SECONDS) for _, client in asked), return_exceptions=True
        )

    def _clients(self) -> list[tuple[str, CoreClient]]:
        """Those of engines that are ready, with their workers' names."""
        serving = [worker for worker in self._cluster.workers if worker.phase != "dead" and worker.serves]
        return [(worker.name, worker.client) for worker in serving if worker.client is not None]
