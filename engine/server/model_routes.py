"""What a server says of itself and its model: health, version, models, metrics, and its tokenizer."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version

from aiohttp import web

from engine.server.access import is_stranger
from engine.server.answers import json_response
from engine.server.bodies import DetokenizeBody, TokenizeBody, check_token_ids
from engine.server.chat_messages import chat_messages, check_variables
from engine.server.errors import ApiError
from engine.server.parsing import parse
from engine.server.service import LONG_ANSWER, Service

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ModelRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self, request: web.Request) -> web.Response:
        """Whether requests can be answered, how often the engine was started again, and what it last died of. Where
        there are keys, that is for those who have one: it may name folders of this machine. That the server stops
        is for everybody: what balances loads has no key."""
        reason, death = self._service.unready_reason, self._service.last_death
        if is_stranger(request, self._service.settings.access):
            death = None
            if reason is not None and not self._service.stopping:
                reason = "the engine cannot serve now"
        told: dict[str, object] = {"restarts": self._service.restarts}
        if death is not None:
            told["last_failure"] = {"reason": death.reason, "unix": round(death.unix, 3)}
        if reason is None:
            return web.json_response({"status": "ok", **told})
        return web.json_response(
            {"status": "unavailable", "reason": reason, **told}, status=503, headers={"Retry-After": "1"}
        )

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": version("paged-top")})

    async def models(self, request: web.Request) -> web.Response:
        service = self._service
        service.ready()
        return json_response({"object": "list", "data": [self._card(name) for name in service.served_names]})

    async def model(self, request: web.Request) -> web.Response:
        self._service.ready()
        return json_response(self._card(self._service.check_model(request.match_info["name"])))

    async def metrics(self, request: web.Request) -> web.Response:
        """Also while the engine is started again: its gauges are 0 then, `paged:engine_up` among them."""
        metrics = self._service.metrics
        if metrics is None:
            self._service.ready()
            raise AssertionError("a ready engine has metrics")
        client = self._service.client
        metrics.set_up(client is not None and client.ready, self._service.restarts)
        metrics.set_refused(self._service.refusals.counts)
        return web.Response(body=metrics.text(), headers={"Content-Type": METRICS_TYPE})

    async def tokenize(self, request: web.Request) -> web.Response:
        service = self._service
        _, loaded = service.ready()
        body = parse(await self._service.bodies.read(request), TokenizeBody)
        service.check_model(body.model)
        check_variables(body.chat_template_kwargs)
        if body.messages is not None and body.prompt is None:
            tokens = await service.encode_chat(
                chat_messages(body.messages),
                add_generation_prompt=body.add_generation_prompt is not False,
                add_special_tokens=bool(body.add_special_tokens),
                variables=body.chat_template_kwargs,
            )
        elif body.prompt is not None and body.messages is None:
            tokens = await service.encode(
                body.prompt, add_special_tokens=body.add_special_tokens is not False, param="prompt"
            )
        else:
            raise ApiError("prompt: either prompt or messages is required, and not both", param="prompt")
        strings: list[str] | None = None
        if body.return_token_strs:
            strings = await service.aside(lambda: list(map(loaded.tokenizer.token_text, tokens)))
        return json_response(
            {
                "count": len(tokens),
                "max_model_len": loaded.info.max_model_len,
                "tokens": tokens,
                "token_strs": strings,
            }
        )

    async def detokenize(self, request: web.Request) -> web.Response:
        _, loaded = self._service.ready()
        body = parse(await self._service.bodies.read(request), DetokenizeBody)
        self._service.check_model(body.model)
        check_token_ids(body.tokens, "tokens", loaded.vocab_size)
        decode = partial(loaded.tokenizer.decode, body.tokens, skip_special_tokens=False)
        text = await self._service.aside(decode) if len(body.tokens) > LONG_ANSWER else decode()
        return json_response({"prompt": text})

    def _card(self, name: str) -> dict[str, object]:
        _, loaded = self._service.ready()
        return {
            "id": name,
            "object": "model",
            "created": self._service.created,
            "owned_by": "paged-top",
            "root": loaded.folder or name,
            "parent": None,
            "max_model_len": loaded.info.max_model_len,
        }
