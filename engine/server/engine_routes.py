"""`/engine/...`: the step stream, snapshots and control, and an operator's hand on the cache and on requests."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated

import msgspec
from aiohttp import web

from engine.core_client import CallRefusedError, ControlInForce
from engine.protocol import MAX_BATCHED_TOKENS, MAX_NUM_SEQS, MAX_WAIT, Control, encode
from engine.server.answers import json_response
from engine.server.errors import ApiError
from engine.server.events import EventStream
from engine.server.parsing import parse
from engine.server.readers import Readers
from engine.server.service import Service
from engine.server.text_routes import no_live_request

KEEP_ALIVE_SECONDS = 15.0  # without a record: then a comment, so that proxies keep the stream and dead readers show
_RANGES: dict[str, object] = {
    "max_num_seqs": Annotated[int, msgspec.Meta(ge=1, le=MAX_NUM_SEQS)],
    "max_num_batched_tokens": Annotated[int, msgspec.Meta(ge=1, le=MAX_BATCHED_TOKENS)],
    "max_prefill_chunk": Annotated[int, msgspec.Meta(ge=0, le=MAX_BATCHED_TOKENS)],
    "max_wait": Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT)],
}
ControlChange = msgspec.defstruct(  # a Control of which any part may be missing
    "ControlChange",
    [
        (field.name, _RANGES.get(field.name, field.type) | msgspec.UnsetType, msgspec.UNSET)
        for field in msgspec.structs.fields(Control)
    ],
    forbid_unknown_fields=True,
)


class EngineRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._readers = Readers("the step stream", service.settings.limits.max_step_readers)

    async def snapshot(self, request: web.Request) -> web.Response:
        return web.Response(body=await self._service.snapshot(), content_type="application/json")

    async def steps(self, request: web.Request) -> web.StreamResponse:
        """Records as events, one each, from `?from=seq` or from the next one on; a gap where records were lost."""
        self._service.ready()
        at = self._first_wanted(request.query.get("from"))
        with self._readers.one():
            return await self._stream_steps(request, at)

    async def _stream_steps(self, request: web.Request, at: int) -> web.StreamResponse:
        hub = self._service.hub
        events = EventStream(request)
        with suppress(ConnectionResetError):
            await events.begin()
            while not hub.closed:
                batch = hub.read(at)
                at = batch.next_seq
                if batch.gap is not None:
                    await events.write(b"event: gap\ndata: %b\n\n" % encode(batch.gap))
                if batch.records:
                    await events.write(
                        b"".join(b"event: step\nid: %d\ndata: %b\n\n" % record for record in batch.records)
                    )
                if batch.gap is None and not batch.records:
                    try:
                        async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                            await hub.wait(at)
                    except TimeoutError:
                        await events.write(b": keep-alive\n\n")
        return events.response

    def _first_wanted(self, text: str | None) -> int:
        following = self._service.hub.newest + 1
        if text is None:
            return following
        if not text.isascii() or not text.isdecimal() or not 1 <= len(text) <= 18:
            raise ApiError(f"from: must be a step's number, got {text[:40]!r}", param="from")
        seq = max(1, int(text))
        if seq > following:
            raise ApiError(f"from: {seq} has not been made; the next is {following}", param="from")
        return seq

    async def control(self, request: web.Request) -> web.Response:
        client, _ = self._service.ready()
        return self._answer(client.in_force)

    async def change_control(self, request: web.Request) -> web.Response:
        client, _ = self._service.ready()
        change = parse(await self._service.bodies.read(request), ControlChange)
        wanted = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not msgspec.UNSET}
        try:
            in_force = await client.patch_control(lambda control: msgspec.structs.replace(control, **wanted))
        except CallRefusedError as error:
            message = str(error)
            param = next((name for name in wanted if message.startswith(name)), None)
            raise ApiError(message, param=param) from error
        return self._answer(in_force)

    async def clear_cache(self, request: web.Request) -> web.Response:
        """Forget every cached prefix; `step` is the record that tells of it."""
        client, _ = self._service.ready()
        cleared = await client.clear_cache()
        return json_response({"cleared_blocks": cleared.blocks, "step": cleared.seq})

    async def cancel(self, request: web.Request) -> web.Response:
        """End live requests: one by the id that records have, or all of an answer by the id that its client has.

        The client gets what there is, as an abort.
        """
        client, _ = self._service.ready()
        wanted = request.match_info["id"]
        ended = client.cancel(wanted)
        if not ended:
            raise no_live_request(wanted)
        return json_response({"cancelled": ended})

    def _answer(self, in_force: ControlInForce | None) -> web.Response:
        assert in_force is not None, "a ready engine has a control"
        return json_response({**msgspec.structs.asdict(in_force.control), "step": in_force.seq})
