"""The JSON lines of vLLM's custom data set: a prompt, and how many tokens are to be answered. There are no times."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from loadgen.traces.model import Session, Text, Tokens, Turn
from loadgen.traces.reading import Format, Reader
from loadgen.traces.writing import Request, RequestWriter


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    prompt: Text
    output_tokens: Tokens | UnsetType = UNSET


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode


class VllmReader(Reader):
    """Each line is a session of one turn, named by its number."""

    format = Format.VLLM

    def read(self, line: int, record: bytes) -> Session | None:
        self.line = line
        read = _decode(record)
        return Session(
            session=str(line), arrival=None, turns=(Turn(user=read.prompt, output_tokens=read.output_tokens),)
        )


class VllmWriter(RequestWriter):
    """A line for each turn."""

    format = Format.VLLM
    needs_time = False
    holds = frozenset({"user", "output_tokens", "parent", "regenerates"})

    def line(self, request: Request) -> bytes:
        asked = request.inputs[request.index]
        if asked is None:
            raise ValueError(f"{request.where}user: the text is not known, which {self.format} needs")
        if asked.history:
            self.losses.lose("history", where=request.where)
        return _encode(Line(prompt=asked.user, output_tokens=request.turn.output_tokens)) + b"\n"
