"""AIPerf's JSON lines: chats with all their turns on a line, or single turns that a `session_id` puts in a row.

Times are in milliseconds: a turn has its own `timestamp`, or a `delay` after the answer before. The turns of a chat
go on from each other's answers; single turns with the same session id are sent one after the other, each by itself
(the format's own documents, ai-dynamo/aiperf).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from loadgen.traces.model import Session, Text, Tokens, Turn
from loadgen.traces.reading import Format, Reader, ReadOptions, Recent, TimeUnit

Time = Annotated[float, Meta(ge=0, le=1e18)]

MOST_TURNS = 100_000  # in a row of single turns, which is held in memory
FIRST_DELAY = "delays before a chat's first turn"


class Single(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A turn, or a line of one turn."""

    type: Literal["single_turn"] | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    text: Text
    timestamp: Time | None = None
    delay: Time | None = None
    role: Literal["user"] | UnsetType = UNSET
    output_length: Tokens | None = None


class Chat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    type: Literal["multi_turn"] | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    turns: Annotated[tuple[Single, ...], Meta(min_length=1)]


class Kind(msgspec.Struct, frozen=True):
    """What tells the two lines apart."""

    turns: msgspec.Raw | UnsetType = UNSET


_decode_kind = msgspec.json.Decoder(Kind).decode
_decode_chat = msgspec.json.Decoder(Chat).decode
_decode_single = msgspec.json.Decoder(Single).decode


@dataclass(slots=True)
class Pending:
    """A session that the next line may go on with: not if `row` is None, the session id of a row of single turns."""

    line: int
    name: str
    arrival: float | None
    turns: list[Turn]
    row: str | None


class AIPerfReader(Reader):
    """Each chat is a session, and each row of single turns, whose lines must be next to each other."""

    format = Format.AIPERF
    time_unit = TimeUnit.MILLISECONDS

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._pending: Pending | None = None
        self._names: Recent[str, None] = Recent()

    def read(self, line: int, record: bytes) -> Session | None:
        if _decode_kind(record).turns is not UNSET:
            chat = _decode_chat(record)
            return self._begin(line, chat.session_id, chat.turns, row=False)
        single = _decode_single(record)
        pending = self._pending
        if pending is None or single.session_id is UNSET or single.session_id != pending.row:
            return self._begin(line, single.session_id, (single,), row=True)
        if len(pending.turns) >= MOST_TURNS:
            raise ValueError(f"session_id: a session has at most {MOST_TURNS:,} turns")
        pending.turns.append(self._turn(single, "", parent=None))
        return None

    def finish(self) -> Session | None:
        return self._end()

    def _begin(self, line: int, name: str | UnsetType, singles: Sequence[Single], row: bool) -> Session | None:
        """Keep a session until the next line; the one before it is whole."""
        if name is not UNSET and name in self._names:
            raise ValueError(f'session_id: "{name}" is there already; its lines must be next to each other')
        first = singles[0]
        if first.delay:
            self.left_out[FIRST_DELAY] += 1
        turns = [self._turn(first, "" if row else "turns[0].", first=True)]
        for index, single in enumerate(singles[1:], 1):
            if single.session_id is not UNSET:
                raise ValueError(f"turns[{index}].session_id: not allowed in a turn of a chat")
            turns.append(self._turn(single, f"turns[{index}]."))
        arrival = None if first.timestamp is None else self.seconds(first.timestamp)
        session = self._end()
        if name is not UNSET:
            self._names[name] = None
        row_id = name if row and name is not UNSET else None
        self._pending = Pending(line, str(line) if name is UNSET else name, arrival, turns, row_id)
        return session

    def _end(self) -> Session | None:
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        self.line = pending.line
        return Session(session=pending.name, arrival=pending.arrival, turns=tuple(pending.turns))

    def _turn(self, single: Single, where: str, first: bool = False, parent: UnsetType | None = UNSET) -> Turn:
        if single.timestamp is not None and single.delay is not None:
            raise ValueError(f"{where}delay: not allowed beside timestamp")
        return Turn(
            user=single.text,
            parent=parent,
            output_tokens=single.output_length or UNSET,
            at=UNSET if single.timestamp is None or first else self.seconds(single.timestamp),
            think=self.seconds(single.delay) if single.delay and not first else 0.0,
        )
