"""What the server is and can do, found out before anything is measured."""

from __future__ import annotations

import aiohttp
import msgspec

from loadgen.settings import Settings
from loadgen.text.vocabulary import Endpoint, Vocabulary


class ServerError(Exception):
    """The server cannot be used; the message is for a person."""


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server tells of itself, and what a trial request found out. None: it does not say, or was not asked.

    `max_model_len` is in tokens, prompt and answer together. `tokenizes`: POST /tokenize gives token ids.
    """

    url: str  # its root
    model: str  # that is asked
    models: tuple[str, ...] = ()  # that it lists
    kind: str = "unknown"
    version: str | None = None
    max_model_len: int | None = None
    tokenizes: bool = False
    chat: bool | None = None  # whether there is /v1/chat/completions
    completions: bool | None = None  # and /v1/completions
    usage: bool | None = None  # its answers tell their tokens
    takes_stream_options: bool = True
    length_field: str = "max_tokens"  # of a chat; newer models of OpenAI take max_completion_tokens


async def find_server(http: aiohttp.ClientSession, url: str, model: str | None) -> ServerFacts:
    """Ask a server what it is. Raises `ServerError` if there is none, if it wants another key, or no model is known."""
    raise NotImplementedError


async def probe(
    http: aiohttp.ClientSession,
    facts: ServerFacts,
    settings: Settings,
    endpoints: tuple[Endpoint, ...],
    vocabulary: Vocabulary | None = None,
) -> tuple[ServerFacts, Vocabulary | None]:
    """Send a tiny request as those of the run, and see what comes. Raises `ServerError`."""
    raise NotImplementedError
