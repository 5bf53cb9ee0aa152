"""The server's tokenizer: asked over HTTP, or read from its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import aiohttp

if TYPE_CHECKING:
    from loadgen.server import ServerFacts


class TokenizerError(Exception):
    """Texts cannot be counted; the message says what to give."""


class Tokenizer(Protocol):
    """Texts to token ids. Raises `TokenizerError`."""

    async def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids; with `special` those that a prompt gets around it too (a BOS)."""
        ...

    async def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        """Token ids of a chat's prompt; None if only the server can tell."""
        ...

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text by itself."""
        ...


def open_tokenizer(path: str | None, http: aiohttp.ClientSession, facts: ServerFacts) -> Tokenizer:
    """The tokenizer of that file or folder, else the server's own. Raises `TokenizerError` if there is neither."""
    raise NotImplementedError
