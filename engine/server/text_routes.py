"""`/engine/requests` and `/engine/blocks`: what live requests and physical blocks hold, in tokens and as text."""

from __future__ import annotations

from aiohttp import web

from engine.protocol import BlockText, RequestText, encode
from engine.server.errors import ApiError
from engine.server.pieces import BEFORE, is_enough, pieces_of
from engine.server.service import Service

_MOST_DIGITS = 9


class TextRoutes:
    """Each answer is of one moment, between two steps; a prompt is in it as its client sent it."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def requests(self, request: web.Request) -> web.Response:
        """All live requests in short."""
        client, _ = self._service.ready()
        return web.Response(body=await client.requests(), content_type="application/json")

    async def request(self, request: web.Request) -> web.Response:
        """One live request's tokens from `?from=place` on, or all."""
        self._check_shown()
        client, loaded = self._service.ready()
        table, wanted = loaded.tokenizer.table, request.match_info["id"]
        first, before = _place(request.query.get("from", "0")), BEFORE
        while True:
            told = await client.request_tokens(wanted, first, before)
            if told is None:
                raise no_live_request(wanted)
            seq, found = told
            if is_enough(table, found.part):
                break
            before *= 8  # most of them have no bytes
        texts = await pieces_of(table, found.part)
        return _answer(RequestText(seq, wanted, found.prompt_tokens, found.first, found.part.tokens, texts))

    async def block(self, request: web.Request) -> web.Response:
        """One physical block's tokens."""
        self._check_shown()
        client, loaded = self._service.ready()
        block = _block(request.match_info["block"], loaded.info.num_blocks)
        seq, found = await client.block_tokens(block, BEFORE)
        texts = await pieces_of(loaded.tokenizer.table, found.part)
        return _answer(BlockText(seq, block, found.hash, found.parent_hash, found.part.tokens, texts))

    def _check_shown(self) -> None:
        if not self._service.settings.access.show_text:
            raise ApiError(
                "the server was started with --no-text: it tells nobody what requests and blocks hold",
                status=403,
                code="text_off",
            )


def no_live_request(wanted: str) -> ApiError:
    return ApiError(f"id: no live request {wanted[:100]!r}", status=404, param="id", code="request_not_found")


def _place(text: str) -> int:
    if not _is_number(text):
        raise ApiError(f"from: must be a token's place, 0 or more, got {text[:40]!r}", param="from")
    return int(text)


def _block(text: str, num_blocks: int) -> int:
    allowed = f"block: must be from 0 to {num_blocks - 1}, got {text[:40]!r}"
    if not _is_number(text):
        raise ApiError(allowed, param="block")
    if int(text) >= num_blocks:
        raise ApiError(allowed, status=404, param="block", code="block_not_found")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def _answer(found: RequestText | BlockText) -> web.Response:
    return web.Response(body=encode(found), content_type="application/json")
