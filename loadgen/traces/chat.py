"""Our own format, `paged-top-chat`: the model of a trace as JSON lines, a header and then a line for each session.

It is documented in traces/README.md and traces/chat.schema.json, both of its versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import UNSET

from loadgen.traces.model import FORMAT, VERSIONS, Header, Session, check_session
from loadgen.traces.reading import Format, Reader, ReadOptions, Recent
from loadgen.traces.writing import DETAIL, LOAD, Writer

encode = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(Header).decode
_decode_session = msgspec.json.Decoder(Session).decode


def check_header(header: Header) -> None:
    """Raises `ValueError` that names the field."""
    if header.format != FORMAT:
        raise ValueError(f'format: must be "{FORMAT}", got "{header.format}"')
    if header.version not in VERSIONS:
        raise ValueError(f"version: this loadgen reads versions {VERSIONS[0]} and {VERSIONS[1]}, got {header.version}")
    if header.version == 1:
        if not header.systems:
            raise ValueError("systems: must name at least one system prompt")
        if header.block_size is not UNSET:
            raise ValueError("block_size: needs version 2")


class ChatReader(Reader):
    """The first line is the header. A session's name may come again only a long way after."""

    format = Format.CHAT
    time_field = "arrival"
    head = "the header"

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._names: Recent[str, None] = Recent()

    def begin(self, record: bytes) -> None:
        self.header = _decode_header(record)
        check_header(self.header)

    def read(self, line: int, record: bytes) -> Session | None:
        self.line = line
        session = _decode_session(record)
        if session.session in self._names:
            raise ValueError(f'session: "{session.session}" is there already; each name is used once')
        check_session(session, self.header)
        self._names[session.session] = None
        return session


class ChatWriter(Writer):
    """It holds all of the model."""

    format = Format.CHAT
    holds = frozenset({*LOAD, *DETAIL})
    answers_tell_lengths = True

    def begin(self) -> bytes:
        return encode(self.header) + b"\n"

    def write(self, session: Session) -> Iterator[bytes]:
        yield encode(session) + b"\n"


def trace_lines(header: Header, sessions: Iterable[Session]) -> Iterable[bytes]:
    """The lines of a trace file, each with its line end."""
    yield encode(header) + b"\n"
    for session in sessions:
        yield encode(session) + b"\n"
