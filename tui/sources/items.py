"""What is heard of a server, item by item: a live source makes them, a recording is a line of each, a fold takes them.

Nothing in them is anybody's text: no token ids, no prompts, no keys.
"""

from __future__ import annotations

import msgspec

FORMAT = 1  # of a recording of these


class SourceHead(msgspec.Struct, frozen=True, tag="source"):
    """Begins a recording, one for each server in it; `source` is its number there. `recorded`: Unix time.

    `url` has no user and no query. `kind` is as `servers.dialects` names it, empty until it is found.
    """

    source: int
    name: str
    url: str
    kind: str = ""
    version: str = ""
    recorded: float = 0.0
    format: int = FORMAT


class Scrape(msgspec.Struct, frozen=True, tag="scrape"):
    """The lines of a server's metrics that its dialect knows, `time` seconds on the watcher's clock.

    `took` seconds from asking to the answer's end.
    """

    source: int
    time: float
    took: float
    text: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A scrape that gave nothing. `phase` is what that means: see `tui.sources.view.Phase`."""

    source: int
    time: float
    phase: str
    reason: str


class KvMessage(msgspec.Struct, frozen=True, tag="kv"):
    """One message of a KV event publisher, of `endpoint`; `payload` is a `servers.kv_events` message as builtins,
    without token ids."""

    source: int
    time: float
    endpoint: str
    payload: dict[str, object]


class Slot(msgspec.Struct, frozen=True):
    """A row of llama.cpp's /slots, without its prompt and its text. None: that version does not tell."""

    id: int
    busy: bool
    task: int | None = None
    context: int | None = None  # tokens that fit
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    decoded: int | None = None


class Slots(msgspec.Struct, frozen=True, tag="slots"):
    source: int
    time: float
    slots: tuple[Slot, ...]


Item = SourceHead | Scrape | Failed | KvMessage | Slots

encode_item = msgspec.json.Encoder().encode
decode_item = msgspec.json.Decoder(Item).decode
