"""ShareGPT's chats: a JSON array of conversations, or one a line; messages of `human`, answers of `gpt`, no times.

Chats of that collection are cut where they got too long, so a third begins with an answer whose question is in another
chat. What cannot be asked is left out, and counted: such answers, empty messages, chats without a message.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import UNSET, UnsetType

from loadgen.traces.model import Header, Session, Turn
from loadgen.traces.reading import Format, Reader
from loadgen.traces.writing import Losses, Writer

ASKS = ("human", "user")
ANSWERS = ("gpt", "chatgpt", "assistant", "bing", "bard")
SYSTEM = "system"

OPENING = "answers that open a chat, whose question is not there"
SECOND = "answers after another answer"
EMPTY = "empty messages, with their answers"
NO_MESSAGE = "chats without a message"
SYSTEMS = "system messages"


class Message(msgspec.Struct, frozen=True):
    """`from`, and what is said. Other fields are ignored: the collection's copies have several."""

    sender: str = msgspec.field(name="from")
    value: str


class Conversation(msgspec.Struct, frozen=True):
    conversations: tuple[Message, ...]
    id: str | int | UnsetType = UNSET


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Conversation).decode


class ShareGPTReader(Reader):
    """Each conversation is a session of a turn for each message, named by its id."""

    format = Format.SHAREGPT
    may_be_array = True

    def read(self, line: int, record: bytes) -> Session | None:
        self.line = line
        read = _decode(record)
        turns = self._turns(read)
        if not turns:
            self.left_out[NO_MESSAGE] += 1
            return None
        name = str(line) if read.id is UNSET or read.id == "" else str(read.id)
        return Session(session=name, arrival=None, turns=tuple(turns))

    def _turns(self, read: Conversation) -> list[Turn]:
        turns: list[Turn] = []
        before = OPENING  # what an answer here would be, if it is no turn's own; "": it is the last turn's
        for index, message in enumerate(read.conversations):
            if message.sender in ASKS:
                before = "" if message.value else EMPTY
                if message.value:
                    turns.append(Turn(user=message.value))
                else:
                    self.left_out[EMPTY] += 1
            elif message.sender in ANSWERS:
                if not before:
                    turns[-1] = msgspec.structs.replace(turns[-1], reply=message.value)
                elif before != EMPTY:
                    self.left_out[before] += 1
                before = before or SECOND
            elif message.sender == SYSTEM:
                self.left_out[SYSTEMS] += 1
            else:
                allowed = ", ".join((*ASKS, *ANSWERS, SYSTEM))
                raise ValueError(f'conversations[{index}].from: allowed are {allowed}, got "{message.sender}"')
        return turns


class ShareGPTWriter(Writer):
    """One JSON array, a conversation a line."""

    format = Format.SHAREGPT
    holds = frozenset({"session", "system", "user", "reply"})
    answers_tell_lengths = True

    def __init__(self, header: Header, losses: Losses) -> None:
        super().__init__(header, losses)
        self._before = b"[\n"

    def write(self, session: Session) -> Iterator[bytes]:
        messages: list[Message] = []
        if session.system is not None:
            messages.append(Message(SYSTEM, self.header.systems[session.system]))
        for index, turn in enumerate(session.turns):
            if turn.regenerates is not UNSET:
                continue  # it was named as lost
            if turn.user is UNSET:
                raise ValueError(f"turns[{index}].user: the text is not known, which {self.format} needs")
            messages.append(Message("human", turn.user))
            if turn.reply is not UNSET:
                messages.append(Message("gpt", turn.reply))
        yield self._before + _encode(Conversation(tuple(messages), session.session))
        self._before = b",\n"

    def finish(self) -> Iterator[bytes]:
        yield b"\n]\n"
