"""A cluster whose states and engines a test sets: for what no real one does when it is asked to."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web
from golden import GoldenServer, answer
from steps import snapshot

from engine.cluster.protocol import ClusterControl, ClusterState, RouterState, WorkerState, encode_cluster
from engine.protocol import Record, Snapshot, encode


def worker(name: str, **changes: Any) -> WorkerState:
    """A worker that is ready; its role is in its name."""
    base: dict[str, Any] = {"phase": "ready", "path": f"/workers/{name}", "node": "here"}
    return WorkerState(**{"name": name, "role": name.rpartition("-")[0], **base, **changes})


def state(*workers: WorkerState, **changes: Any) -> ClusterState:
    """A cluster of these, with as many as its control wants."""
    roles = [one.role for one in workers]
    sizes = {"prefill": roles.count("prefill"), "decode": roles.count("decode"), "replicas": roles.count("replica")}
    base: dict[str, Any] = {
        "number": 1,
        "time": 0.0,
        "control": ClusterControl(**sizes),
        "transfers": (),
        "recent": (),
        "router": RouterState(),
    }
    return ClusterState(workers=workers, **{**base, **changes})


class GoldenCluster(GoldenServer):
    """Tells `now`; each worker's engine tells `records[name]`, and its snapshot is of before them until one reads."""

    def __init__(self, now: ClusterState, records: dict[str, list[Record]]) -> None:
        super().__init__(lambda _: answer(["x"]))
        self.now, self.records = now, records
        self.read: set[str] = set()  # whose stream was asked for
        self.asked_from: dict[str, int] = {}
        self.patched: list[dict[str, Any]] = []
        self.obeys = True
        add = self.app.router
        add.add_get("/engine/cluster", self._state)
        add.add_patch("/engine/cluster", self._change)
        add.add_get("/workers/{name}/engine/snapshot", self._snapshot)
        add.add_get("/workers/{name}/engine/steps", self._steps)

    def last(self, name: str) -> Snapshot:
        """An engine's present state."""
        seq = len(self.records[name])
        return snapshot(seq, float(seq))

    async def _state(self, _: web.Request) -> web.Response:
        return web.Response(body=encode_cluster(self.now), content_type="application/json")

    async def _change(self, request: web.Request) -> web.Response:
        self.patched.append(change := await request.json())
        if self.obeys:
            control = msgspec.structs.replace(self.now.control, **change)
            self.now = msgspec.structs.replace(self.now, control=control)
        return await self._state(request)

    async def _snapshot(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.records:
            return web.json_response({"error": {"message": "gone", "code": "worker_not_found"}}, status=404)
        told = self.last(name) if name in self.read else snapshot(0, 0.0)
        return web.Response(body=encode(told), content_type="application/json")

    async def _steps(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        self.read.add(name)
        self.asked_from[name] = first = int(request.query["from"])
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        for item in self.records[name]:
            if item.seq >= first:
                await reply.write(b"data: " + encode(item) + b"\n\n")
        await asyncio.sleep(3600)
        return reply
