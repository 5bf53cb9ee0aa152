"""The JSON lines of OpenAI's batch interface: whole requests, sent as they are. There are no times."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from loadgen.traces.model import Asked, Session, Text, Turn
from loadgen.traces.reading import Format, Reader
from loadgen.traces.writing import Request, RequestWriter


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    custom_id: Text
    method: Literal["POST"]
    url: Annotated[str, Meta(pattern="^/[!-~]*$")]
    body: dict[str, Any]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode


class OpenAIBatchReader(Reader):
    """Each line is a session of one turn, named by its `custom_id`."""

    format = Format.OPENAI_BATCH

    def read(self, line: int, record: bytes) -> Session | None:
        self.line = line
        read = _decode(record)
        return Session(session=read.custom_id, arrival=None, turns=(Turn(request=Asked(read.url, read.body)),))


class OpenAIBatchWriter(RequestWriter):
    """A line for each turn: a request as it is, or a chat with the answers that the trace has in its history."""

    format = Format.OPENAI_BATCH
    needs_time = False
    holds = frozenset({"session", "system", "user", "parent", "regenerates", "reply", "output_tokens", "seed"}) | {
        "temperature"
    }

    def line(self, request: Request) -> bytes:
        session, turn = request.session, request.turn
        name = session.session if len(session.turns) == 1 else f"{session.session}/{request.index}"
        asked = turn.request if turn.request is not UNSET else Asked("/v1/chat/completions", self._body(request))
        return _encode(Line(custom_id=name, method="POST", url=asked.path, body=asked.body)) + b"\n"

    def _body(self, request: Request) -> dict[str, Any]:
        session, turn, inputs = request.session, request.turn, request.inputs
        asked = inputs[request.index]
        if asked is None:
            raise ValueError(f"{request.where}user: the text is not known, which {self.format} needs")
        messages = []
        if session.system is not None:
            messages.append({"role": "system", "content": self.header.systems[session.system]})
        for index in asked.history:
            before, answer = inputs[index], session.turns[index].reply
            if before is None or answer is UNSET:
                raise ValueError(f"turns[{index}].reply: not known, and the history of turn {request.index} needs it")
            messages.append({"role": "user", "content": before.user})
            messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": asked.user})
        body: dict[str, Any] = {"messages": messages, "temperature": self.header.temperature, "seed": turn.seed}
        if turn.output_tokens is not UNSET:
            self.losses.remarks["lengths of answers are upper limits"] += 1
            body["max_tokens"] = turn.output_tokens
        self.losses.remarks["requests name no model"] += 1
        return body
