"""The JSON lines of vLLM's custom data set: a prompt, and how many tokens are to be answered. There are no times."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from loadgen.traces.model import Session, Text, Tokens, Turn
from loadgen.traces.reading import Format, Reader


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    prompt: Text
    output_tokens: Tokens | UnsetType = UNSET


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
