"""Bailian's JSON lines: times in seconds, prompts as the ids of their blocks of 16 tokens, requests linked to chats.

The format is that of the public repository alibaba-edu/qwen-bailian-usagetraces-anon. Each line has its own time and
its whole prompt, the chat's history included, so it is a session of its own; `conversation` and `turn` say where it
belongs. `parent_chat_id` is the request before it in the chat, -1 for the first.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from loadgen.traces.model import Index, Session, Tokens
from loadgen.traces.reading import Format, Reader, ReadOptions, Recent, TimeUnit

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


_decode = msgspec.json.Decoder(Line).decode


class BailianReader(Reader):
    """A chat is named by its first request, or by the oldest one known of it where that is not in the trace."""

    format = Format.BAILIAN
    block_size = 16
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
