"""What the selected request and the selected block hold, asked of the engine bit by bit.

The stream of records tells no tokens. Only what is selected is asked for and kept, so that memory stays bounded
and the engine pays for what somebody reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from engine.protocol import BlockText, RequestText
from tui.engine_api import Missing, NotAnEngine, Unreachable

EVERY = 0.25  # seconds, at least, between two questions about the same
NO_SOURCE = "a recording holds no text"
SWITCHED_OFF = "texts are kept off this screen: --no-texts"


class TextSource(Protocol):
    """Both raise Missing, Unreachable or NotAnEngine."""

    async def request_text(self, request: str, first: int) -> RequestText: ...

    async def block_text(self, block: int) -> BlockText: ...


@dataclass(frozen=True, slots=True)
class Texts:
    """What is known of what is selected. `unknown` says why there is no more than this, or no news of it."""

    requests: Mapping[str, RequestText] = field(default_factory=dict)
    blocks: Mapping[int, BlockText] = field(default_factory=dict)
    unknown: str = ""


NO_TEXTS = Texts()


class TextReader:
    """Keeps the texts of one request and of one block as new as they are asked for.

    `source` gives the engine to ask, or None where there can be no texts, and `no_source` says why. `clock` is in
    seconds.
    """

    def __init__(
        self,
        source: Callable[[], TextSource | None],
        clock: Callable[[], float] = time.monotonic,
        no_source: str = NO_SOURCE,
    ) -> None:
        self._told = Texts()
        self._glances: dict[int, BlockText] = {}
        self._source = source
        self._no_source = no_source
        self._clock = clock
        self._selected: tuple[str | None, int | None] = (None, None)
        self._due = 0.0

    @property
    def texts(self) -> Texts:
        """What is known of what is selected, and of blocks that were looked at."""
        return replace(self._told, blocks={**self._glances, **self._told.blocks}) if self._glances else self._told

    async def glance(self, wanted: Mapping[int, int]) -> None:
        """Ask about one of some blocks that is not known yet, or has changed since; forget all others.

        `wanted`: the last record that told of each block. Raises nothing that a server can cause.
        """
        self._glances = {block: text for block, text in self._glances.items() if block in wanted}
        source = self._source()
        for block, changed in wanted.items():
            known = self._glances.get(block)
            if source is not None and (known is None or known.seq < changed):
                with suppress(Missing, Unreachable, NotAnEngine):
                    self._glances[block] = await source.block_text(block)
                return

    async def read(self, request: str | None, block: int | None) -> None:
        """Ask about what is selected now (None: nothing), and forget the rest. Raises nothing that a server can cause.

        The texts of a request that has ended, or of an engine that does not answer, stay as they were last told.
        """
        selected, now = (request, block), self._clock()
        if selected == self._selected:
            if now < self._due:
                return
        else:
            self._select(request, block)
        self._due = now + EVERY
        if selected == (None, None):
            return
        source, unknown = self._source(), ""
        if source is None:
            self._told = Texts(unknown=self._no_source)
            return
        try:
            if request is not None:
                told = await self._read_request(source, request)
                if self._selected == selected:
                    self._told = replace(self._told, requests={request: told})
            if block is not None:
                found = await source.block_text(block)
                if self._selected == selected:
                    self._told = replace(self._told, blocks={block: found})
        except (Missing, Unreachable, NotAnEngine) as error:
            unknown = str(error)
        if self._selected == selected:
            self._told = replace(self._told, unknown=unknown)

    def _select(self, request: str | None, block: int | None) -> None:
        before = self._told
        self._selected = (request, block)
        self._told = Texts(
            {name: text for name, text in before.requests.items() if name == request},
            {number: text for number, text in before.blocks.items() if number == block},
        )

    async def _read_request(self, source: TextSource, request: str) -> RequestText:
        """What is kept of it with what is new; all of it where that does not go on from what is kept."""
        kept = self._told.requests.get(request)
        if kept is None:
            return await source.request_text(request, 0)
        told = await source.request_text(request, len(kept.tokens))
        goes_on = told.seq >= kept.seq and told.prompt_tokens == kept.prompt_tokens
        if not goes_on or not told.first <= len(kept.tokens) <= told.first + len(told.tokens):
            return told if told.first == 0 else await source.request_text(request, 0)
        return msgspec.structs.replace(
            told,
            first=0,
            tokens=kept.tokens[: told.first] + told.tokens,
            texts=kept.texts[: told.first] + told.texts,
        )
