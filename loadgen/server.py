"""What the server is, found out before anything is measured: all it tells of itself."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from loadgen.access import hidden
from loadgen.client import error_text, reason
from loadgen.quirks import UNKNOWN, IgnoreEos, Quirks, TokenizeBy, quirks_by, quirks_of
from loadgen.text.tokenizer import ServerTokenizer, TokenizerError
from loadgen.text.vocabulary import Endpoint

CALL_TIMEOUT = aiohttp.ClientTimeout(total=30)
CERTIFICATES = "--ca-file names the certificate of its authority; --insecure believes any certificate"
LONGEST_BODY = 1 << 24  # bytes; far more than any server's list of models

_Body = TypeVar("_Body")


class ServerError(Exception):
    """The server cannot be used; the message is for a person."""


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server tells of itself, and what a trial request found out. None: it does not say, or was not asked.

    `max_model_len` is in tokens, prompt and answer together. `tokenizes`: it gives token ids, in the way of
    `tokenize_by`. `left_out`: fields of a body that it does not take, with its words if it was asked. `found`: what the
    trial's answer had, by the names of `Quirks` where these have one; `differs`: what of that is not as they say.
    """

    url: str  # its root
    model: str  # that is asked
    models: tuple[str, ...] = ()  # that it lists
    kind: str = "unknown"
    version: str | None = None
    max_model_len: int | None = None
    tokenizes: bool = False
    tokenize_by: TokenizeBy = TokenizeBy.PROMPT
    chat: bool | None = None  # whether there is /v1/chat/completions
    completions: bool | None = None  # and /v1/completions
    usage: bool | None = None  # its answers tell their tokens
    takes_stream_options: bool = True
    length_field: str = "max_tokens"  # of a chat; newer models of OpenAI take max_completion_tokens
    left_out: dict[str, str] = {}
    found: dict[str, str | bool] = {}
    differs: tuple[str, ...] = ()

    @property
    def quirks(self) -> Quirks:
        return quirks_of(self.kind)

    def has(self, endpoint: Endpoint) -> bool | None:
        """Whether there is that endpoint."""
        return self.chat if endpoint is Endpoint.CHAT else self.completions

    def with_endpoint(self, endpoint: Endpoint, there: bool, usage: bool | None) -> ServerFacts:
        """The same with what a request to that endpoint found."""
        if endpoint is Endpoint.CHAT:
            return msgspec.structs.replace(self, chat=there, usage=usage)
        return msgspec.structs.replace(self, completions=there, usage=usage)

    def notes(self) -> list[str]:
        """What a reader of the figures must know."""
        notes = []
        if self.usage is False:
            notes.append("The server does not tell how many tokens its answers have (no usage): they are counted here.")
        for field, words in self.left_out.items():
            told = f" ({words})" if words else ""
            notes.append(f"{field} was left out of all requests: {self.quirks.title} does not take it{told}.")
        if self.differs:
            notes.append(f"The server is not quite what is known of {self.quirks.title}: {'; '.join(self.differs)}.")
        return notes


class _Card(msgspec.Struct, frozen=True):
    id: str
    owned_by: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct, frozen=True):
    data: list[_Card]


class _Slot(msgspec.Struct, frozen=True):
    n_ctx: int | None = None


class _About(msgspec.Struct, frozen=True):
    """The answers to /version, /props, /info and /server_info, as far as they matter."""

    version: str | None = None
    build_info: str | None = None  # of llama.cpp
    default_generation_settings: _Slot | None = None  # of llama.cpp: one slot's context
    max_total_tokens: int | None = None  # of TGI


async def find_server(http: aiohttp.ClientSession, url: str, model: str | None) -> ServerFacts:
    """Ask a server what it is. Raises `ServerError` if there is none, if it wants another key, or no model is known."""
    cards = await _models(http, url, model)
    chosen = cards[0].id if model is None else model
    quirks = quirks_by(urlsplit(url).hostname or "", cards[0].owned_by if cards else None)
    about = _About()
    for path in quirks.version:
        if (about := await _about(http, url + path)) != _About():
            break
    if quirks is UNKNOWN and about.max_total_tokens is not None:
        quirks = quirks_of("tgi")
    facts = ServerFacts(
        url=url,
        model=chosen,
        models=tuple(card.id for card in cards),
        kind=quirks.kind,
        version=about.version or about.build_info,
        max_model_len=_context(next((card for card in cards if card.id == chosen), None), about),
        length_field=quirks.length_field,
        left_out={"ignore_eos": ""} if quirks.ignore_eos is IgnoreEos.REFUSED else {},
    )
    by = await _tokenizes(http, url, chosen, quirks)
    listed = not facts.models or chosen in facts.models
    if by is None and not listed and await _tokenizes(http, url, facts.models[0], quirks) is not None:
        raise ServerError(f"--model {chosen}: {url} does not serve it; it lists {', '.join(facts.models)}")
    return facts if by is None else msgspec.structs.replace(facts, tokenizes=True, tokenize_by=by)


async def _tokenizes(http: aiohttp.ClientSession, url: str, model: str, quirks: Quirks) -> TokenizeBy | None:
    """How the server tells token ids: as those of its kind do, or else; None: not at all."""
    if quirks.tokenize is TokenizeBy.NOTHING:
        return None
    for by in dict.fromkeys((quirks.tokenize, TokenizeBy.PROMPT, TokenizeBy.INPUTS)):
        with suppress(TokenizerError):
            if await ServerTokenizer(http, url, model, by).encode("one two", special=True):
                return by
    return None


async def _models(http: aiohttp.ClientSession, url: str, wanted: str | None) -> list[_Card]:
    """What the server lists; nothing where it lists none but one is wanted."""
    where = f"GET {url}/v1/models"
    try:
        async with http.get(f"{url}/v1/models", timeout=CALL_TIMEOUT, allow_redirects=False) as reply:
            body = await _body(reply)
    except aiohttp.ClientConnectorCertificateError as error:
        raise ServerError(f"no server at {url} that can be trusted: {reason(error)}; {CERTIFICATES}") from None
    except aiohttp.ClientConnectorSSLError as error:
        raise ServerError(f"no server at {url} that speaks TLS: {reason(error)}; http:// may be meant") from None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise ServerError(f"no server at {url}: {reason(error)}") from None
    if 300 <= reply.status < 400:
        raise ServerError(
            f"{where} answered {reply.status}: it sends to {reply.headers.get('Location')}; give that address"
        )
    if reply.status in (401, 403):
        raise wrong_key(http, f"{where} answered {reply.status}")
    if reply.status >= 500:
        raise ServerError(f"{where} answered {reply.status}: {hidden(http.headers, error_text(body))}")
    listed = _read(body, _Models) if reply.status == 200 else None
    if wanted is None and (listed is None or not listed.data):
        what = f"answered {reply.status}" if reply.status != 200 else "lists no model"
        raise ServerError(f"{where} {what}; name the model with --model")
    return listed.data if listed is not None else []


def wrong_key(http: aiohttp.ClientSession, what: str) -> ServerError:
    """The error of a server that wants a key, or another one."""
    if "Authorization" in http.headers:
        return ServerError(f"{what}: the server refuses the key; give its key with --api-key or --api-key-file")
    return ServerError(f"{what}: the server wants a key; give it with --api-key or --api-key-file")


async def _about(http: aiohttp.ClientSession, address: str) -> _About:
    """What the server tells there; nothing where it does not."""
    try:
        async with http.get(address, timeout=CALL_TIMEOUT, allow_redirects=False) as reply:
            body = await _body(reply)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return _About()
    return (_read(body, _About) if reply.status == 200 else None) or _About()


async def _body(reply: aiohttp.ClientResponse) -> bytes:
    """A whole body. Raises `ValueError` for one that goes on and on, before it takes all memory."""
    body = bytearray()
    async for received in reply.content.iter_any():
        body += received
        if len(body) > LONGEST_BODY:
            raise ValueError(f"GET {reply.url}: its answer is longer than {LONGEST_BODY:,} bytes")
    return bytes(body)


def _read(body: bytes, kind: type[_Body]) -> _Body | None:
    """A body, if it is one of that kind."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _context(card: _Card | None, about: _About) -> int | None:
    slot = about.default_generation_settings
    told = (
        card.max_model_len if card is not None else None,
        slot.n_ctx if slot is not None else None,
        about.max_total_tokens,
    )
    return next((tokens for tokens in told if tokens and tokens > 0), None)
