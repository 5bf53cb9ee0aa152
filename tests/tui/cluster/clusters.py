"""Clusters whose figures are known by hand, and a front that tells them: real HTTP on 127.0.0.1, no engines."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import msgspec
from aiohttp import web

from engine.cluster.protocol import (
    ClusterControl,
    ClusterState,
    Interference,
    RouterState,
    StepTimes,
    TransferDone,
    TransferState,
    TransferTotals,
    WorkerState,
    encode_cluster,
)
from engine.protocol import EngineInfo

BEGIN = 1_000_000.0  # Unix time
SECONDS = 5.0  # between the two states that rates are of
ENGINE = EngineInfo(
    model="tiny", dtype="float32", device="cpu", block_size=16, num_blocks=400, kv_bytes_per_token=512,
    max_model_len=512, version="0.1.0",
)  # fmt: skip
COLOCATED = Interference(StepTimes(2_400, 9.6, 0.004, 0.0061, 0.009), StepTimes(800, 40.0, 0.038, 0.121, 0.190))
SEPARATED = Interference(StepTimes(3_000, 12.0, 0.0039, 0.0058, 0.0102), StepTimes(12, 0.12, 0.009, 0.014, 0.014))


def worker(name: str, **told: Any) -> WorkerState:
    """One that is ready."""
    role = told.pop("role", name.rpartition("-")[0])
    told = {"phase": "ready", "node": "127.0.0.1", "engine": ENGINE, **told}
    return WorkerState(name=name, role=role, path=f"/workers/{name}", **told)


def early() -> ClusterState:
    """Two pools that have served for a while, colocated at first."""
    return ClusterState(
        number=40,
        time=BEGIN,
        control=ClusterControl(prefill=1, decode=2),
        workers=(
            worker("prefill-0", seq=900, prefill_tokens=50_000, decode_tokens=10, routed=300),
            worker("decode-0", seq=2_000, decode_tokens=9_000, routed=150),
            worker("decode-1", seq=1_900, decode_tokens=8_000, routed=140),
        ),
        transfers=(),
        recent=(),
        router=RouterState(decisions=500, decision_seconds=0.02),
    )


def busy() -> ClusterState:
    """The same five seconds later: requests are on their way, and one transfer failed."""
    return ClusterState(
        number=77,
        time=BEGIN + SECONDS,
        control=ClusterControl(prefill=1, decode=2),
        workers=(
            worker("prefill-0", seq=960, running=2, waiting=5, sending=3, held_blocks=180, cached_blocks=120,
                   prefill_tokens=56_000, decode_tokens=10, looked_up_tokens=10_000, found_tokens=4_300, load=2_310.0,
                   routed=330, colocated=COLOCATED, sent=TransferTotals(316, 3_800, 31_000_000, 2.1, 0, 1)),
            worker("decode-0", seq=2_400, running=12, receiving=2, held_blocks=300, cached_blocks=60,
                   prefill_tokens=140, decode_tokens=13_500, looked_up_tokens=9_000, found_tokens=8_000,
                   received_tokens=48_000, load=610.0, routed=170, colocated=COLOCATED, separated=SEPARATED,
                   received=TransferTotals(160, 1_900, 15_000_000, 1.0)),
            worker("decode-1", seq=2_310, running=9, waiting=1, held_blocks=220, cached_blocks=10,
                   prefill_tokens=90, decode_tokens=11_000, looked_up_tokens=8_000, found_tokens=6_100,
                   received_tokens=41_000, load=440.0, routed=160, restarts=1, reason="exit code -9",
                   separated=msgspec.structs.replace(
                       SEPARATED, alone=StepTimes(2_100, 9.0, 0.0043, 0.0071, 0.0123)),
                   received=TransferTotals(155, 1_880, 15_700_000, 1.1, 2, 0)),
        ),
        transfers=(
            TransferState("chatcmpl-00000319", "l-319", "prefill-0", "decode-1", "moving", 24, 196_608, 0.004),
            TransferState("chatcmpl-0000031a", "l-31a", "prefill-0", "decode-0", "waiting", 9, 73_728, 0.012),
            TransferState("chatcmpl-0000031b", "l-31b", "prefill-0", "", "offered", 30, 245_760, 0.001),
        ),
        recent=(
            TransferDone("chatcmpl-00000315", "l-315", "prefill-0", "decode-0", 75, 4_718_592, 0.003, 0.0023,
                         BEGIN + 4.5),
            TransferDone("chatcmpl-00000316", "l-316", "prefill-0", "decode-0", 12, 98_304, 0.002, 0.0011, BEGIN + 4.6),
            TransferDone("chatcmpl-00000317", "l-317", "prefill-0", "decode-1", 20, 163_840, 0.013, 0.0, BEGIN + 4.7,
                         "the process of prefill-0 is no more"),
            TransferDone("chatcmpl-00000318", "l-318", "prefill-0", "decode-0", 0, 0, 0.001, 0.0002, BEGIN + 4.9),
        ),
        router=RouterState(
            decisions=560, decision_seconds=0.0252, by_prefix=310, bounded=12, local=41, handed_over=330, recovered=3,
            indexed_blocks=1_540, imbalance=1.08,
        ),
    )  # fmt: skip


def wounded() -> ClusterState:
    """One decode worker is dead, another starts, a replica is drained, and prompts are served where they decode."""
    state = busy()
    prefill, first, _ = state.workers
    dead = worker("decode-1", phase="dead", engine=None, reason="the engine's process ended by signal 9", restarts=1)
    return msgspec.structs.replace(
        state,
        number=90,
        time=BEGIN + SECONDS + 1,
        control=ClusterControl(separate=False, routing="round_robin", prefill=1, decode=3, replicas=0),
        workers=(
            prefill,
            first,
            dead,
            worker("decode-2", phase="starting", engine=None),
            worker("replica-0", phase="draining", running=1, held_blocks=20),
        ),
        transfers=(),
    )


def many(count: int = 1_000) -> ClusterState:
    """A third prefills, the others decode."""
    before = busy()
    prefill, decode = before.workers[0], before.workers[1]
    third = count // 3
    workers = (
        *(msgspec.structs.replace(prefill, name=f"prefill-{at}", path=f"/workers/prefill-{at}", load=float(at))
          for at in range(third)),
        *(msgspec.structs.replace(decode, name=f"decode-{at}", path=f"/workers/decode-{at}", running=at % 32)
          for at in range(count - third)),
    )  # fmt: skip
    control = ClusterControl(prefill=third, decode=count - third)
    return msgspec.structs.replace(before, control=control, workers=workers)


class Front:
    """Tells states at /engine/cluster, and takes changes. Change its attributes while it runs.

    `streams`: whether it has events too; `refusal`: what it answers to changes; `key`: that it wants.
    """

    def __init__(self, state: ClusterState, streams: bool = True) -> None:
        self.state = state
        self.streams = streams
        self.refusal = ""
        self.is_cluster = True
        self.changes: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self._told: list[asyncio.Queue[ClusterState | None]] = []
        self._port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def tell(self, state: ClusterState) -> None:
        self.state = state
        for queue in self._told:
            queue.put_nowait(state)

    async def start(self) -> None:
        """On the port that it had, where it had one."""
        app = web.Application(middlewares=[self._noted])
        app.router.add_get("/engine/cluster", self._get)
        app.router.add_patch("/engine/cluster", self._patch)
        app.router.add_get("/engine/cluster/events", self._events)
        app.router.add_get("/engine/snapshot", self._snapshot)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        for queue in self._told:
            queue.put_nowait(None)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @web.middleware
    async def _noted(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        response: web.StreamResponse = await handler(request)
        return response

    async def _get(self, request: web.Request) -> web.Response:
        if not self.is_cluster:
            return web.json_response({"error": {"message": "there is no cluster", "code": "not_found"}}, status=404)
        return web.Response(body=encode_cluster(self.state), content_type="application/json")

    async def _snapshot(self, request: web.Request) -> web.Response:
        words = {"error": {"message": "a cluster has a snapshot of each worker", "code": "cluster"}}
        return web.json_response(words if self.is_cluster else {}, status=404)

    async def _patch(self, request: web.Request) -> web.Response:
        changes = await request.json()
        self.changes.append(changes)
        if self.refusal:
            return web.json_response({"error": {"message": self.refusal}}, status=400)
        control = msgspec.structs.replace(self.state.control, **changes)
        self.tell(msgspec.structs.replace(self.state, control=control, number=self.state.number + 1))
        return web.Response(body=encode_cluster(self.state), content_type="application/json")

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if not self.streams or not self.is_cluster:
            return web.json_response({}, status=404)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        queue: asyncio.Queue[ClusterState | None] = asyncio.Queue()
        self._told.append(queue)
        state: ClusterState | None = self.state
        try:
            while state is not None:
                await response.write(b"data: " + encode_cluster(state) + b"\n\n")
                state = await queue.get()
        finally:
            self._told.remove(queue)
        return response
