"""The JSON lines of OpenAI's batch interface: whole requests, sent as they are. There are no times."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from loadgen.traces.model import Asked, Session, Text, Turn
from loadgen.traces.reading import Format, Reader


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    custom_id: Text
    method: Literal["POST"]
    url: Annotated[str, Meta(pattern="^/[!-~]*$")]
    body: dict[str, Any]


_decode = msgspec.json.Decoder(Line).decode


class OpenAIBatchReader(Reader):
    """Each line is a session of one turn, named by its `custom_id`."""

    format = Format.OPENAI_BATCH

    def read(self, line: int, record: bytes) -> Session | None:
        self.line = line
        read = _decode(record)
        return Session(session=read.custom_id, arrival=None, turns=(Turn(request=Asked(read.url, read.body)),))
