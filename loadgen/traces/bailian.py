"""Bailian's JSON lines: times in seconds, prompts as the ids of their blocks of 16 tokens, requests linked to chats.

The format is that of the public repository alibaba-edu/qwen-bailian-usagetraces-anon. Each line has its own time and
its whole prompt, the chat's history included, so it is a session of its own; `conversation` and `turn` say where it
belongs. `parent_chat_id` is the request before it in the chat, -1 for the first.
"""

from __future__ import annotations

from itertools import count
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from loadgen.traces.model import Header, Index, Session, Tokens
from loadgen.traces.reading import Format, Reader, ReadOptions, Recent, TimeUnit
from loadgen.traces.writing import BlockWriter, Losses, Request, lengths, number

BLOCK_SIZE = 16
ROOT = -1


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    chat_id: Index
    parent_chat_id: Annotated[int, Meta(ge=ROOT)]
    timestamp: Annotated[float, Meta(ge=0, le=1e18)]
    input_length: Tokens
    output_length: Tokens
    type: str | UnsetType = UNSET
    turn: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    hash_ids: tuple[Index, ...] | UnsetType = UNSET


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode


class BailianReader(Reader):
    """A chat is named by its first request, or by the oldest one known of it where that is not in the trace."""

    format = Format.BAILIAN
    block_size = BLOCK_SIZE
    time_unit = TimeUnit.SECONDS

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._conversations: Recent[int, str] = Recent()

    def read(self, line: int, record: bytes) -> Session | None:
        self.line = line
        read = _decode(record)
        turn = self.prompt(read.input_length, read.output_length, read.hash_ids)
        labels: dict[str, str | int | float] = {"parent_chat_id": read.parent_chat_id}
        if read.type is not UNSET:
            labels["type"] = read.type
        return Session(
            session=str(read.chat_id),
            arrival=self.seconds(read.timestamp),
            turns=(turn,),
            conversation=self._conversation(read),
            turn=read.turn,
            labels=labels,
        )

    def _conversation(self, read: Line) -> str:
        if read.parent_chat_id == ROOT:
            name = str(read.chat_id)
        else:
            name = self._conversations.get(read.parent_chat_id, str(read.parent_chat_id))
        self._conversations[read.chat_id] = name
        return name


class BailianWriter(BlockWriter):
    """A line for each turn. Chat ids stay if the trace was Bailian's; else requests are numbered from 0.

    Then each is linked to the one before of its conversation, or of its session.
    """

    format = Format.BAILIAN
    default_block_size = BLOCK_SIZE
    holds = frozenset({"arrival", "at", "parent", "regenerates", "user_tokens", "hash_ids", "output_tokens"}) | {
        "session",
        "conversation",
        "turn",
        "labels",
    }

    def __init__(self, header: Header, losses: Losses) -> None:
        super().__init__(header, losses)
        self._kept = header.recipe.get("source_format") == self.format
        self._numbers = count()
        self._latest: Recent[str, tuple[int, int]] = Recent()  # chat id and turn of a conversation's latest request

    def line(self, request: Request) -> bytes:
        session = request.session
        input_tokens, output_tokens = lengths(request, self.format)
        labels = dict(session.labels)
        kind, parent = labels.pop("type", UNSET), labels.pop("parent_chat_id", None)
        if labels:
            self.losses.lose("labels")
        turn = session.turn
        if self._kept and isinstance(parent, int):
            chat_id = int(session.session)
        else:
            self.losses.lose("session")
            chat_id = next(self._numbers)
            name = f"session {session.session}" if session.conversation is UNSET else session.conversation
            parent, before = self._latest.get(name, (ROOT, 0))
            turn = before + 1
            self._latest[name] = chat_id, turn
        line = Line(
            chat_id=chat_id,
            parent_chat_id=parent,
            timestamp=number(request.time, 7),
            input_length=input_tokens,
            output_length=output_tokens,
            type=kind if kind is UNSET else str(kind),
            turn=turn,
            hash_ids=self.hash_ids(request.turn, input_tokens),
        )
        return _encode(line) + b"\n"
