"""The server's tokenizer: asked over HTTP, or read from its file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import aiohttp
import msgspec

from loadgen.access import hidden
from loadgen.client import error_text, reason
from loadgen.quirks import TokenizeBy

if TYPE_CHECKING:
    import tokenizers

    from loadgen.server import ServerFacts

_Answer = TypeVar("_Answer")

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


class _Token(msgspec.Struct, frozen=True):
    id: int


class _OfChat(msgspec.Struct, frozen=True):
    tokenize_response: list[_Token]


_decode_tokens = msgspec.json.Decoder(_Tokens).decode
_decode_list = msgspec.json.Decoder(list[_Token]).decode
_decode_chat = msgspec.json.Decoder(_OfChat).decode


class ServerTokenizer:
    """The server's own, over HTTP, in the way that it has for it. Raises ValueError if that is none."""

    def __init__(self, http: aiohttp.ClientSession, url: str, model: str, by: TokenizeBy = TokenizeBy.PROMPT) -> None:
        if by is TokenizeBy.NOTHING:
            raise ValueError("a server that tells no token ids")
        self._http = http
        self._url = url
        self._model = model
        self._by = by
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._special: tuple[int, int] | None = None  # tokens before and after every text, once they are known

    async def encode(self, text: str, *, special: bool) -> list[int]:
        if self._by is TokenizeBy.PROMPT:  # llama.cpp reads the latter two
            asked = {"prompt": text, "add_special_tokens": special, "content": text, "add_special": special}
            return (await self._ask("/tokenize", asked, _decode_tokens)).tokens
        if special:
            return await self._with_special(text)
        if not text:
            return []
        before, after = await self._around()
        tokens = await self._with_special(text)
        return tokens[before : len(tokens) - after]

    async def _with_special(self, text: str) -> list[int]:
        """Of servers that always add what a prompt gets around it."""
        if self._by is TokenizeBy.INTERNAL:
            return (await self._ask("/_internal/tokenize", {"prompt": text}, _decode_tokens)).tokens
        return [token.id for token in await self._ask("/tokenize", {"inputs": text}, _decode_list)]

    async def _around(self) -> tuple[int, int]:
        """How many tokens those are before and after a text: what two texts without a common letter share."""
        if self._special is None:
            one, other = await self._with_special("a"), await self._with_special("b")
            before = sum(1 for _ in takewhile(_equal, zip(one, other, strict=False)))
            ends = zip(reversed(one[before:]), reversed(other[before:]), strict=False)
            self._special = before, sum(1 for _ in takewhile(_equal, ends))
        return self._special

    async def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        chat = {"messages": list(messages)}
        try:
            if self._by is TokenizeBy.PROMPT:
                asked = {**chat, "add_generation_prompt": True}
                return (await self._ask("/tokenize", asked, _decode_tokens)).tokens or None
            if self._by is TokenizeBy.INPUTS:
                told = (await self._ask("/chat_tokenize", chat, _decode_chat)).tokenize_response
                return [token.id for token in told] or None
        except TokenizerError:  # it takes plain texts only, or the model has no template
            pass
        return None

    async def count(self, texts: Sequence[str]) -> list[int]:
        encoded = await asyncio.gather(*(self.encode(text, special=False) for text in texts))
        return [len(tokens) for tokens in encoded]

    async def _ask(self, path: str, fields: Mapping[str, object], decode: Callable[[bytes], _Answer]) -> _Answer:
        address = f"{self._url}{path}"
        body = msgspec.json.encode({"model": self._model, **fields})
        headers = {"Content-Type": "application/json"}
        try:
            async with (
                self._slots,
                self._http.post(address, data=body, headers=headers, timeout=_TIMEOUT, allow_redirects=False) as reply,
            ):
                answer = await reply.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TokenizerError(f"POST {address}: {reason(error)}") from None
        if reply.status != 200:
            told = hidden(self._http.headers, error_text(answer))
            raise TokenizerError(f"POST {address} answered {reply.status}: {told}")
        try:
            return decode(answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TokenizerError(f"POST {address} gave no token ids: {error}") from None


def _equal(pair: tuple[int, int]) -> bool:
    return pair[0] == pair[1]


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
        return ServerTokenizer(http, facts.url, facts.model, facts.tokenize_by)
    raise TokenizerError(
        f"the server at {facts.url} has no /tokenize that gives token ids: "
        "name its model's tokenizer.json, or the folder it is in, with --tokenizer"
    )
