"""Servers that answer requests as each kind does: fields that they take, shapes of streams, usage, tokenizers, errors.

Written after their documentation and source, not after `loadgen.quirks`. A character is a token; what a prompt begins
with like an earlier one is found in whole blocks, and at least one token is computed. Their metrics count the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from tests.servers.pages import EngineFigures, Kind
from tests.servers.stand_in import StandIn

Json = dict[str, Any]
BEFORE, AFTER = "<user>", "<assistant>"
BLOCK = 4  # tokens
BOS = 1
_ADDS_BOS = ("tgi", "tensorrt-llm", "llama.cpp")
_KNOWN_FIELDS = {  # of TensorRT-LLM, which refuses others
    "model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "seed", "stream",
    "stream_options", "ignore_eos", "min_tokens", "top_k", "n",
}  # fmt: skip


class ServerLike(StandIn):
    """One engine of a kind, with the OpenAI endpoints that it has. `bodies`: of all its completions, in order.

    `ends_after`: tokens after which an answer would end by itself. `tells_cached`: it was started to tell cached
    tokens, where that takes a flag; `tells_zero`: also where there are none, as newer versions do. `dated`: an older
    version: llama.cpp without usage in streams, TGI without [DONE].
    """

    def __init__(
        self,
        kind: Kind,
        *,
        ends_after: int = 2,
        tells_cached: bool = True,
        tells_zero: bool = True,
        dated: bool = False,
        per_chunk: int = 1,
        **more: Any,
    ) -> None:
        super().__init__(kind, **more)
        self.ends_after, self.tells_cached, self.tells_zero = ends_after, tells_cached, tells_zero
        self.dated, self.per_chunk = dated, per_chunk
        self.bodies: list[Json] = []
        self._found: set[tuple[int, ...]] = set()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            if request.path == "/v1/models" and self.kind == "triton":
                card = {"id": "m", "object": "model", "owned_by": "Triton Inference Server"}
                return web.json_response({"object": "list", "data": [card]})
            if request.path == "/info" and self.kind == "tgi":
                return web.json_response({"model_id": "m", "version": self.version, "max_total_tokens": 4096})
            return await super()._answer(request)
        self.asked.append(request.path)
        self.headers.append(dict(request.headers))
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "a key is needed"}}, status=401)
        if not request.can_read_body:
            return web.json_response({"detail": "Not Found"}, status=404)
        body = await request.json()
        if request.path in ("/v1/chat/completions", "/v1/completions"):
            return await self._complete(request, body)
        return self._tokens(request.path, body)

    # -- tokens -------------------------------------------------------------------------------------------------------

    def _encode(self, text: str, special: bool) -> list[int]:
        return [BOS] * (special and self.kind in _ADDS_BOS) + [ord(letter) + 10 for letter in text]

    def _tokens(self, path: str, body: Json) -> web.Response:
        match self.kind, path:
            case "tgi", "/tokenize" if "inputs" in body:
                return web.json_response(_listed(self._encode(body["inputs"], True)))
            case "tgi", "/chat_tokenize":
                told = _listed(self._encode(_template(body["messages"]), False))
                return web.json_response({"tokenize_response": told, "templated_text": ""})
            case "tgi", "/tokenize":
                return web.Response(status=422, text="Failed to deserialize: missing field `inputs`")
            case "tensorrt-llm", "/_internal/tokenize" if set(body) <= {"model", "prompt"}:
                ids = self._encode(body["prompt"], True)
                return web.json_response({"tokens": ids, "count": len(ids)})
            case "llama.cpp", "/tokenize":
                return web.json_response(
                    {"tokens": self._encode(body.get("content", ""), body.get("add_special", False))}
                )
            case "vllm" | "paged-engine" | "sglang", "/tokenize":
                if "messages" in body and self.kind == "sglang":
                    return web.json_response({"message": "prompt: Field required"}, status=400)
                text = _template(body["messages"]) if "messages" in body else body["prompt"]
                ids = self._encode(text, body.get("add_special_tokens", True))
                return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": 4096})
        return web.json_response({"detail": "Not Found"}, status=404)

    # -- answers ------------------------------------------------------------------------------------------------------

    async def _complete(self, request: web.Request, body: Json) -> web.StreamResponse:
        self.bodies.append(body)
        chat = "messages" in body
        if self.kind == "tensorrt-llm" and (unknown := sorted(set(body) - _KNOWN_FIELDS)):
            told = f"[{{'type': 'extra_forbidden', 'loc': ('body', '{unknown[0]}')}}]"
            answer = {"object": "error", "message": told, "type": "BadRequestError", "param": None, "code": 400}
            return web.json_response(answer, status=400)
        prompt = self._encode(_template(body["messages"]) if chat else body["prompt"], not chat)
        asked = int(body.get("max_completion_tokens", body.get("max_tokens", 16)))
        obeys = self.kind not in ("tgi", "triton") and body.get("ignore_eos") is True
        tokens = asked if obeys else min(asked, self.ends_after)
        cached = self._look_up(prompt)
        self.engine.serve(1, prompt=len(prompt), generated=tokens, cached=cached)
        usage = self._usage(len(prompt), tokens, cached)
        whole = "length" if tokens == asked else "eos_token" if self.kind == "tgi" and not chat else "stop"
        if not body.get("stream"):
            choice: Json = {"index": 0, "finish_reason": whole}
            choice |= {"message": {"role": "assistant", "content": "x" * tokens}} if chat else {"text": "x" * tokens}
            return web.json_response({"object": "chat.completion", "choices": [choice], "usage": usage})
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        for event in self._events(chat, tokens, whole, usage, wants_usage, len(prompt) - cached, cached):
            await reply.write(f"data: {json.dumps(event)}\n\n".encode())
        if not (self.dated and self.kind == "tgi"):
            await reply.write(b"data: [DONE]\n\n")
        return reply

    def _look_up(self, prompt: Sequence[int]) -> int:
        """How many of its tokens are found; all of its blocks are, from now on."""
        if self.kind == "triton":
            return 0
        pieces = [tuple(prompt[:end]) for end in range(BLOCK, len(prompt) + 1, BLOCK)]
        known = [piece for piece in pieces if piece in self._found and len(piece) < len(prompt)]
        self._found.update(pieces)
        return max(map(len, known), default=0)

    def _usage(self, prompt: int, tokens: int, cached: int) -> Json:
        usage: Json = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        told = self.tells_cached and self.kind not in ("tgi", "triton", "llama.cpp")
        if told and (cached or self.tells_zero):
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return usage

    def _events(
        self, chat: bool, tokens: int, finish: str, usage: Json, wants_usage: bool, computed: int, cached: int
    ) -> list[Json]:
        sizes = [self.per_chunk] * (tokens // self.per_chunk) + [tokens % self.per_chunk] * (
            tokens % self.per_chunk > 0
        )
        events = [self._content("x" * size, chat) for size in sizes]
        if self.kind == "tgi":  # the last token tells why it ended; of completions, the usage too
            events[-1]["choices"][0]["finish_reason"] = finish
            if not chat:
                events[-1]["usage"] = usage
            elif wants_usage:
                events.append({"object": "chat.completion.chunk", "choices": [], "usage": usage})
            return events
        if chat and self.kind == "paged-engine":
            events[0]["choices"][0]["delta"]["role"] = "assistant"
        elif chat:
            content = None if self.kind == "llama.cpp" else ""
            events.insert(0, _event({"delta": {"role": "assistant", "content": content}}, chat))
        events.append(_event({"delta": {}} if chat else {"text": ""}, chat, finish))
        if self.kind == "llama.cpp":
            timings = {"cache_n": cached, "prompt_n": computed, "prompt_ms": 1.5, "predicted_n": tokens}
            if self.dated or not chat:
                events[-1] |= {"timings": timings} | ({} if self.dated else {"usage": usage})
                return events
            if wants_usage:
                events.append({"object": "chat.completion.chunk", "choices": [], "usage": usage, "timings": timings})
        elif wants_usage:
            events.append({"object": "chat.completion.chunk", "choices": [], "usage": usage})
        return events

    def _content(self, text: str, chat: bool) -> Json:
        if self.kind == "tgi":
            part: Json = {"delta": {"role": "assistant", "content": text}} if chat else {"text": text}
            return _event(part, chat, None if chat else "")  # not null in completions
        return _event({"delta": {"content": text}} if chat else {"text": text}, chat)


def _event(part: Json, chat: bool, finish: str | None = None) -> Json:
    choice = {"index": 0, "logprobs": None, "finish_reason": finish, **part}
    return {"id": "x", "object": "chat.completion.chunk" if chat else "text_completion", "choices": [choice]}


def _template(messages: Sequence[Json]) -> str:
    return BEFORE + "".join(message["content"] for message in messages) + AFTER


def _listed(ids: Sequence[int]) -> list[Json]:
    return [{"id": token, "text": "?", "start": place, "stop": place + 1} for place, token in enumerate(ids)]


def counted(engine: EngineFigures) -> tuple[float, float, float]:
    """Prompt tokens, those found, and tokens generated, of all that it ever did."""
    return engine.prompt_tokens, engine.cached_tokens, engine.generation_tokens
