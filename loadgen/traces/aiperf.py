"""AIPerf's JSON lines: chats with all their turns on a line, or single turns that a `session_id` puts in a row.

Times are in milliseconds: a turn has its own `timestamp`, or a `delay` after the answer before. The turns of a chat
go on from each other's answers; single turns with the same session id are sent one after the other, each by itself
(the format's own documents, ai-dynamo/aiperf).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from loadgen.traces.model import Session, Text, Tokens, Turn
from loadgen.traces.reading import Format, Reader, ReadOptions, Recent, TimeUnit
from loadgen.traces.writing import Writer, follows, number

Time = Annotated[float, Meta(ge=0, le=1e18)]

MOST_TURNS = 100_000  # in a row of single turns, which is held in memory
FIRST_DELAY = "delays before a chat's first turn"


class Single(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A turn, or a line of one turn."""

    type: Literal["single_turn"] | UnsetType = UNSET
    session_id: Text | UnsetType = UNSET
    text: Text
    timestamp: Time | None = None
    delay: Time | None = None
    role: Literal["user"] | UnsetType = UNSET
    output_length: Tokens | None = None


class Chat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    type: Literal["multi_turn"] | UnsetType = UNSET
    session_id: Text | UnsetType = UNSET
    turns: Annotated[tuple[Single, ...], Meta(min_length=1)]


class Kind(msgspec.Struct, frozen=True):
    """What tells the two lines apart."""

    turns: msgspec.Raw | UnsetType = UNSET


_encode = msgspec.json.Encoder().encode
_decode_kind = msgspec.json.Decoder(Kind).decode
_decode_chat = msgspec.json.Decoder(Chat).decode
_decode_single = msgspec.json.Decoder(Single).decode


@dataclass(slots=True)
class Pending:
    """A session that the next line may go on with, if that has the same `row`: the session id of single turns."""

    line: int
    name: str
    arrival: float | None
    turns: list[Turn]
    latest: float  # the timestamp of a turn so far
    row: str | UnsetType

    def add(self, single: Single, turn: Turn, where: str = "") -> None:
        if single.timestamp is not None:
            if self.arrival is None:
                raise ValueError(f"{where}timestamp: not allowed where the session's first turn has none")
            if single.timestamp < self.latest:
                raise ValueError(f"{where}timestamp: {single.timestamp} is before that of a turn above it")
            self.latest = single.timestamp
        if len(self.turns) == MOST_TURNS:
            raise ValueError(f"session_id: a session has at most {MOST_TURNS:,} turns")
        self.turns.append(turn)


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
            session = self._first(line, chat.session_id, chat.turns[0], "turns[0].")
            for index, single in enumerate(chat.turns[1:], 1):
                where = f"turns[{index}]."
                if single.session_id is not UNSET:
                    raise ValueError(f"{where}session_id: not allowed in a turn of a chat")
                session.add(single, self._later(single, where), where)
            return self._begin(session)
        single = _decode_single(record)
        row = self._pending
        if row is None or single.session_id is UNSET or single.session_id != row.row:
            begun = self._first(line, single.session_id, single, "")
            begun.row = single.session_id
            return self._begin(begun)
        row.add(single, msgspec.structs.replace(self._later(single, ""), parent=None))
        return None

    def finish(self) -> Session | None:
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        self.line = pending.line
        return Session(session=pending.name, arrival=pending.arrival, turns=tuple(pending.turns))

    def _begin(self, pending: Pending) -> Session | None:
        """Keep a session until the next line; the one before it is whole."""
        whole = self.finish()
        self._names[pending.name] = None
        self._pending = pending
        return whole

    def _first(self, line: int, name: str | UnsetType, single: Single, where: str) -> Pending:
        if name is not UNSET and name in self._names:
            raise ValueError(f'session_id: "{name}" is there already; its lines must be next to each other')
        if single.delay:
            self.left_out[FIRST_DELAY] += 1
        turn = msgspec.structs.replace(self._later(single, where), at=UNSET, think=0.0)
        arrival = None if single.timestamp is None else self.seconds(single.timestamp)
        return Pending(line, name or str(line), arrival, [turn], single.timestamp or 0.0, UNSET)

    def _later(self, single: Single, where: str) -> Turn:
        if single.timestamp is not None and single.delay is not None:
            raise ValueError(f"{where}delay: not allowed beside timestamp")
        return Turn(
            user=single.text,
            output_tokens=single.output_length or UNSET,
            at=UNSET if single.timestamp is None else self.seconds(single.timestamp),
            think=self.seconds(single.delay or 0.0),
        )


class AIPerfWriter(Writer):
    """A chat on a line, or single turns in a row where each turn is by itself."""

    format = Format.AIPERF
    holds = frozenset({"session", "arrival", "at", "think", "user", "output_tokens", "parent"})

    def write(self, session: Session) -> Iterator[bytes]:
        later = session.turns[1:]
        row = bool(later) and all(turn.parent is None for turn in later)
        singles = []
        for index, turn in enumerate(session.turns):
            if turn.regenerates is not UNSET:
                continue  # it was named as lost
            if turn.user is UNSET:
                raise ValueError(f"turns[{index}].user: the text is not known, which {self.format} needs")
            if not row and not follows(turn, index):
                self.losses.lose("parent", where=f"turns[{index}].")
            time = session.arrival if index == 0 else None if turn.at is UNSET else turn.at
            singles.append(
                Single(
                    session_id=session.session if row else UNSET,
                    text=turn.user,
                    timestamp=None if time is None else number(time * 1000, 4),
                    delay=number(turn.think * 1000, 4) if turn.think else None,
                    output_length=None if turn.output_tokens is UNSET else turn.output_tokens,
                )
            )
        lines: Sequence[Single | Chat] = singles if row else [Chat(session_id=session.session, turns=tuple(singles))]
        yield from (_encode(line) + b"\n" for line in lines)
