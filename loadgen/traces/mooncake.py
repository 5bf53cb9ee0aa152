"""Mooncake's JSON lines: times in milliseconds, prompts as the ids of their blocks of 512 tokens.

The format is that of the public repository kvcache-ai/Mooncake, FAST'25 release. A last block that is short has an id
of its own. Other tools write the same lines with other block sizes, which the file does not say.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from loadgen.traces.model import Index, Session, Tokens
from loadgen.traces.reading import Format, Reader, TimeUnit
from loadgen.traces.writing import BlockWriter, Request, lengths, number

BLOCK_SIZE = 512
RawTime = Annotated[float, Meta(ge=0, le=1e18)]


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    timestamp: RawTime
    input_length: Tokens
    output_length: Tokens
    hash_ids: tuple[Index, ...] | UnsetType = UNSET


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode


class MooncakeReader(Reader):
    """Each line is a session of one turn, named by the line's number."""

    format = Format.MOONCAKE
    block_size = BLOCK_SIZE
    time_unit = TimeUnit.MILLISECONDS

    def read(self, line: int, record: bytes) -> Session | None:
        self.line = line
        read = _decode(record)
        turn = self.prompt(read.input_length, read.output_length, read.hash_ids)
        return Session(session=str(line), arrival=self.seconds(read.timestamp), turns=(turn,))


class MooncakeWriter(BlockWriter):
    """A line for each turn."""

    format = Format.MOONCAKE
    default_block_size = BLOCK_SIZE
    holds = frozenset({"arrival", "at", "parent", "regenerates", "user_tokens", "hash_ids", "output_tokens"})

    def line(self, request: Request) -> bytes:
        input_tokens, output_tokens = lengths(request, self.format)
        hash_ids = self.hash_ids(request.turn, input_tokens)
        return _encode(Line(number(request.time * 1000, 4), input_tokens, output_tokens, hash_ids)) + b"\n"
