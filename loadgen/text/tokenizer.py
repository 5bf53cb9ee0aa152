"""The server's tokenizer: asked over HTTP, or read from its file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import aiohttp
import msgspec

from loadgen.client import error_text, reason

if TYPE_CHECKING:
    import tokenizers

    from loadgen.server import ServerFacts

AT_ONCE = 4  # requests to /tokenize: the server's own work goes on beside them
_TIMEOUT = aiohttp.ClientTimeout(total=60)


class TokenizerError(Exception):
    """Texts cannot be counted; the message says what to give."""


class Tokenizer(Protocol):
    """Texts to token ids. All methods raise `TokenizerError`."""

    async def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids; with `special` also those that a prompt gets around it (a BOS)."""
        ...

    async def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        """Token ids of a chat's prompt; None where only its answers tell how many."""
        ...

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text by itself."""
        ...


class _Tokens(msgspec.Struct, frozen=True):
    tokens: list[int]


_decode = msgspec.json.Decoder(_Tokens).decode


class ServerTokenizer:
    """`POST /tokenize` as vLLM, SGLang and paged-engine have it, or as llama.cpp does, which reads other fields."""

    def __init__(self, http: aiohttp.ClientSession, url: str, model: str) -> None:
        self._http = http
        self._address = f"{url}/tokenize"
        self._model = model
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def encode(self, text: str, *, special: bool) -> list[int]:
        return await self._ask({"prompt": text, "add_special_tokens": special, "content": text, "add_special": special})

    async def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        try:
            tokens = await self._ask({"messages": list(messages), "add_generation_prompt": True})
        except TokenizerError:  # it takes plain texts only, or the model has no template
            return None
        return tokens or None

    async def count(self, texts: Sequence[str]) -> list[int]:
        encoded = await asyncio.gather(*(self.encode(text, special=False) for text in texts))
        return [len(tokens) for tokens in encoded]

    async def _ask(self, fields: Mapping[str, object]) -> list[int]:
        body = msgspec.json.encode({"model": self._model, **fields})
        headers = {"Content-Type": "application/json"}
        try:
            async with (
                self._slots,
                self._http.post(self._address, data=body, headers=headers, timeout=_TIMEOUT) as reply,
            ):
                answer = await reply.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TokenizerError(f"POST {self._address}: {reason(error)}") from None
        if reply.status != 200:
            raise TokenizerError(f"POST {self._address} answered {reply.status}: {error_text(answer)}")
        try:
            return _decode(answer).tokens
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TokenizerError(f"POST {self._address} gave no token ids: {error}") from None


class LocalTokenizer:
    """A `tokenizer.json`, or the folder it is in. Raises `TokenizerError` if there is none that can be read."""

    def __init__(self, path: str | Path) -> None:
        self._hub = _read(Path(path).expanduser())

    async def encode(self, text: str, *, special: bool) -> list[int]:
        encoding = await asyncio.to_thread(self._hub.encode, text, add_special_tokens=special)
        return list(encoding.ids)

    async def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        return None  # the server's template is not in the file

    async def count(self, texts: Sequence[str]) -> list[int]:
        return [len(await self.encode(text, special=False)) for text in texts]


def _read(path: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as HubTokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    where = f"--tokenizer {path}"
    if not file.is_file():
        what = "has no tokenizer.json" if path.is_dir() else "there is no such file or folder"
        raise TokenizerError(f"{where}: {what}; give the tokenizer.json of the server's model, or its folder")
    try:
        tokenizer = HubTokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower one
        raise TokenizerError(f"{where}: cannot be read as a tokenizer.json: {error}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def open_tokenizer(path: str | None, http: aiohttp.ClientSession, facts: ServerFacts) -> Tokenizer:
    """The tokenizer of that file or folder, else the server's own. Raises `TokenizerError` if there is neither."""
    if path is not None:
        return LocalTokenizer(path)
    if facts.tokenizes:
        return ServerTokenizer(http, facts.url, facts.model)
    raise TokenizerError(
        f"the server at {facts.url} has no /tokenize that gives token ids: "
        "name its model's tokenizer.json, or the folder it is in, with --tokenizer"
    )
