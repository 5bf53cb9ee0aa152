"""A server that is missing this or that: what is found out of it before a run. Each character is a token to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Json = dict[str, Any]
TEMPLATE_BEFORE, TEMPLATE_AFTER = "<user>", "<assistant>"


def code(text: str) -> list[int]:
    return [ord(sign) for sign in text]


@dataclass
class Picky:
    """`async with Picky(...) as server: server.url`. `refuses` maps a field of a body to what is said of it."""

    key: str | None = None
    models: Sequence[Json] | None = ({"id": "m", "owned_by": "vllm", "max_model_len": 4096},)
    status: int = 200  # of /v1/models
    only: str | None = None  # the one model it answers for
    endpoints: tuple[str, ...] = ("/v1/chat/completions", "/v1/completions")
    refuses: Mapping[str, str] = field(default_factory=dict)
    streams: bool = True
    usage: bool = True
    tokenize: str | None = "vllm"
    pages: Mapping[str, Json] = field(default_factory=dict)
    begin: str = ""  # that the server puts before each plain prompt, and its tokenizer does not tell
    factor: int = 1  # tokens of a character by its usage
    asked: list[tuple[str, Json]] = field(default_factory=list)

    async def __aenter__(self) -> Picky:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/v1/models", self._models)
        for path in self.endpoints:
            app.router.add_post(path, self._complete)
        if self.tokenize:
            app.router.add_post("/tokenize", self._tokenize)
        for path in self.pages:
            app.router.add_get(path, self._page)
        self._runner = web.AppRunner(app, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def bodies(self, path: str) -> list[Json]:
        return [body for asked, body in self.asked if asked == path]

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return _error(401, "no such key")
        return await handler(request)  # type: ignore[no-any-return]

    async def _models(self, _: web.Request) -> web.Response:
        if self.status != 200:
            return _error(self.status, "the model is loading")
        return web.json_response({"object": "list", "data": self.models} if self.models is not None else ["hello"])

    async def _page(self, request: web.Request) -> web.Response:
        return web.json_response(self.pages[request.path])

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append((request.path, body))
        if self.only is not None and body["model"] != self.only:
            return _error(404, f"The model `{body['model']}` does not exist.")
        match self.tokenize:
            case "vllm" if "messages" in body:
                tokens = code(_template(body["messages"]))
            case "vllm":
                tokens = code(body["prompt"])
            case "plain":  # SGLang's takes no chats
                if "prompt" not in body:
                    return _error(400, "prompt: missing")
                tokens = code(body["prompt"])
            case "llama.cpp":
                tokens = ([1] if body.get("add_special") else []) + code(body.get("content", ""))
            case _:
                return web.json_response({"count": len(body.get("prompt", ""))})
        return web.json_response({"tokens": tokens})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append((request.path, body))
        if self.only is not None and body["model"] != self.only:
            return _error(404, f"The model `{body['model']}` does not exist.")
        for name, words in self.refuses.items():
            if name in body:
                return _error(400, words)
        text = _template(body["messages"]) if "messages" in body else self.begin + body["prompt"]
        tokens = body.get("max_tokens", body.get("max_completion_tokens", 1))
        usage = {"prompt_tokens": len(text) * self.factor, "completion_tokens": tokens}
        delta = {"delta": {"content": "x"}, "text": "x", "message": {"content": "x"}}
        choice = {"index": 0, "finish_reason": "length", **delta}
        whole = {"choices": [choice], **({"usage": usage} if self.usage else {})}
        if not (body.get("stream") and self.streams):
            return web.json_response(whole)
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        told = self.usage and body.get("stream_options", {}).get("include_usage")
        chunks: list[Json] = [{"choices": [choice]}, *([{"choices": [], "usage": usage}] if told else [])]
        for chunk in chunks:
            await reply.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await reply.write(b"data: [DONE]\n\n")
        return reply


def _template(messages: Sequence[Mapping[str, str]]) -> str:
    return TEMPLATE_BEFORE + "".join(message["content"] for message in messages) + TEMPLATE_AFTER


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)
