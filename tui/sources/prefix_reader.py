"""Texts of token ids, asked of the server that has them in its cache: of what somebody looks at, one at a time.

They are kept while they are looked at, and are written nowhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tui.sources.http import Answer, Http, NoAnswer
from tui.sources.source import Source
from tui.sources.targets import HttpSettings, Target

PATH = "/detokenize"
MOST = 256  # texts
MOST_BYTES = 64 << 10  # of an answer
MOST_CHARACTERS = 2_000  # of a text
LOOKED = 5.0  # seconds for which a text is kept that nobody looks at any more
TIMEOUT = 5.0  # seconds
REST = 10.0  # seconds after no answer, or one that it has too much to do

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """How a kind of server is asked: fields beside the tokens, and the field of the answer that has the text."""

    answer: str
    fields: Mapping[str, object] = field(default_factory=dict)


WAYS = {
    "vllm": Way("prompt"),
    "paged-engine": Way("prompt"),
    "sglang": Way("text", {"skip_special_tokens": False}),
}
NOT_YET = "its text is not read yet"


class PrefixReader:
    """Run it in a task; `of` is what screens look texts up in, and `forget` is for a server that was started again."""

    def __init__(
        self, target: Target, settings: HttpSettings, source: Source, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`source`: what is known of the server, which is asked with the same keys as for its metrics."""
        self._target = target
        self._settings = settings
        self._source = source
        self._clock = clock
        self._looked: dict[Tokens, float] = {}  # when each was looked at, the last one last
        self._texts: dict[Tokens, str] = {}  # empty: it has none for these
        self._server = ("", "")  # its kind and version, which the texts are of
        self._refused = ""  # why it is not asked any more
        self._rests_until = 0.0
        self._asked = asyncio.Event()

    @property
    def unknown(self) -> str:
        kind = self._source.kind
        if self._refused:
            return self._refused
        if kind not in WAYS:
            return "nothing is known of this server that makes text of token ids" if kind else NOT_YET
        return NOT_YET if self._clock() >= self._rests_until else "its text was not told, and is asked for again soon"

    def of(self, tokens: Sequence[int]) -> str:
        key = tuple(tokens)
        if not key:
            return ""
        self._looked.pop(key, None)
        self._looked[key] = self._clock()
        if key not in self._texts:
            self._asked.set()
        return self._texts.get(key, "")

    def forget(self) -> None:
        """Another process answers now: perhaps with other words for the same ids."""
        self._texts, self._refused = {}, ""

    def fail(self, why: str) -> None:
        """Ask no more, and say why."""
        self._refused = why

    async def run(self) -> None:
        """Ask for what is looked at, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            if self._next() is None:
                continue
            async with Http(self._target, self._settings, TIMEOUT, self._clock) as http:
                while (tokens := self._next()) is not None:
                    await self._ask(http, tokens)

    def _next(self) -> Tokens | None:
        """What is to be asked for: the first that is looked at and not known. All that nobody looks at is forgotten."""
        server = (self._source.kind, self._source.version)
        if server != self._server:
            self._server = server
            self.forget()
        now = self._clock()
        looked = list(self._looked.items())[-MOST:]
        self._looked = {tokens: at for tokens, at in looked if now - at <= LOOKED}
        self._texts = {tokens: text for tokens, text in self._texts.items() if tokens in self._looked}
        if self._refused or server[0] not in WAYS or now < self._rests_until:
            return None
        return next((tokens for tokens in self._looked if tokens not in self._texts), None)

    async def _ask(self, http: Http, tokens: Tokens) -> None:
        server = self._server
        way = WAYS[server[0]]
        try:
            answer = await http.post(PATH, {"tokens": list(tokens), **way.fields}, MOST_BYTES)
        except NoAnswer:
            self._rests_until = self._clock() + REST
            return
        if server != (self._source.kind, self._source.version):
            return
        match answer.status:
            case 200:
                text = _text(answer, way.answer)
                if text is None:
                    self._refused = f"{PATH} answers, but with no text"
                else:
                    self._texts[tokens] = text[:MOST_CHARACTERS]
            case 400 | 422:  # these ids are none that it knows; others may be
                self._texts[tokens] = ""
            case 408 | 425 | 429 | 500 | 502 | 503 | 504:
                self._rests_until = self._clock() + REST
            case status:
                self._refused = f"{PATH} answers HTTP {status}: it makes no text of token ids for this screen"


def _text(answer: Answer, name: str) -> str | None:
    try:
        told = msgspec.json.decode(answer.body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    text = told.get(name) if isinstance(told, dict) else None
    return text if isinstance(text, str) else None
