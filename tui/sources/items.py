"""What is heard of a server, item by item: a live source makes them, a recording is a line of each, a fold takes them.

Nothing in them is anybody's text: no token ids, no prompts, no keys.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from servers.slots import Slot

FORMAT = 1  # of a recording of these


class SourceHead(msgspec.Struct, frozen=True, tag="source"):
    """Begins a recording, one for each server in it; `source` is its number there. `recorded`: Unix time.

    `url` has no user and no query. `kind` is as `servers.dialects` names it, empty until it is found. `time` is on the
    watcher's clock, as `recorded` is Unix time at that moment; `every` is the seconds between two looks, 0: not told.
    One in the middle tells that another server, or another version, answers there now.
    """

    source: int
    name: str
    url: str
    kind: str = ""
    version: str = ""
    recorded: float = 0.0
    format: int = FORMAT
    time: float = 0.0
    every: float = 0.0


class Scrape(msgspec.Struct, frozen=True, tag="scrape"):
    """The lines of a server's metrics that its dialect knows, `time` seconds on the watcher's clock.

    `took` seconds from asking to the answer's end.
    """

    source: int
    time: float
    took: float
    text: str


FailedPhase = Literal["finding", "failing", "locked", "foreign"]
KvPhase = Literal["connecting", "live", "failing"]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A scrape that gave nothing. `phase` is what that means: see `tui.sources.view.Phase`."""

    source: int
    time: float
    phase: FailedPhase
    reason: str


class KvMessage(msgspec.Struct, frozen=True, tag="kv"):
    """One message of a KV event publisher, of `endpoint`; `payload` is a `servers.kv_events` message as builtins,
    without token ids."""

    source: int
    time: float
    endpoint: str
    payload: dict[str, object]


class KvLink(msgspec.Struct, frozen=True, tag="kv link"):
    """How the subscription to a KV event publisher stands from now on, `detail` in words. A message makes it live.

    `since`: on the watcher's clock, where it has stood so for longer than that; None: not so, or not known.
    """

    source: int
    time: float
    endpoint: str
    phase: KvPhase
    detail: str = ""
    since: float | None = None


class KvState(msgspec.Struct, frozen=True, tag="kv state"):
    """The tree of an endpoint when a recording began, as `servers.kv_tree` makes one into builtins and back.

    `heard` messages led to it, the first of them at `since` on the watcher's clock.
    """

    source: int
    time: float
    endpoint: str
    heard: int
    since: float | None
    state: dict[str, object]


class Slots(msgspec.Struct, frozen=True, tag="slots"):
    """What llama.cpp's rows do; None: it told, and does so no more."""

    source: int
    time: float
    slots: tuple[Slot, ...] | None


Item = SourceHead | Scrape | Failed | KvMessage | KvLink | KvState | Slots

encode_item = msgspec.json.Encoder().encode
decode_item = msgspec.json.Decoder(Item).decode
