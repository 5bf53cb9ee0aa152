"""When requests came, how long they were and which tokens they shared: what a trace of real traffic says of memory.

Three formats are told apart by their content: Mooncake JSON lines, this project's chat traces (traces/README.md) and
Azure LLM inference CSV. None of them holds tokens; equal pieces of prompts are known by an identity.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

MOONCAKE_BLOCK = 512  # tokens that one of `hash_ids` names; the last one of a prompt may name fewer
CHAT_FORMAT, CHAT_VERSION = "paged-top-chat", 1
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

# What ChatML puts around a message: <|im_start|> role \n text <|im_end|> \n, and before an answer the first three.
MESSAGE_OPENING, MESSAGE_CLOSING = 3, 2

_WORDS = re.compile(r"[^\W\d_]+|\d|[^\w\s]|_|\n")
_PATH = re.compile(r"^(?P<what>.*?) - at `\$\.?(?P<path>.*)`$", re.DOTALL)

_Tokens = Annotated[int, Meta(ge=1, le=10_000_000)]
_Index = Annotated[int, Meta(ge=0)]
_Seconds = Annotated[float, Meta(ge=0, le=1e9)]


class TraceError(Exception):
    """A trace that cannot be used; the message names file, line and field, and what is allowed."""


class TracedRequest(msgspec.Struct, frozen=True):
    """One request of a trace; times in seconds from the trace's start.

    `segments` is the prompt as (identity, tokens) pieces, which sum to `prompt_tokens`: two prompts have equal tokens
    as far as their leading pieces are equal. `answer` is the identity of what is generated, as later prompts name it.
    A turn of a chat follows the turn `after` (an index into the trace), `think` seconds after that one ended; its
    `arrival` is then the earliest there could be, as if answers took no time.
    """

    arrival: float
    prompt_tokens: int
    output_tokens: int
    segments: tuple[tuple[int, int], ...]
    answer: int
    after: int | None = None
    think: float = 0.0


class _Mooncake(msgspec.Struct, frozen=True):
    timestamp: Annotated[float, Meta(ge=0, le=1e12)]  # milliseconds
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: tuple[_Index, ...]


class _Turn(msgspec.Struct, frozen=True):
    output_tokens: _Tokens
    think: _Seconds = 0.0
    parent: _Index | UnsetType | None = UNSET
    user: str | UnsetType = UNSET
    user_tokens: _Tokens | UnsetType = UNSET
    regenerates: _Index | UnsetType = UNSET


class _Session(msgspec.Struct, frozen=True):
    arrival: _Seconds
    system: str
    turns: Annotated[tuple[_Turn, ...], Meta(min_length=1)]


class _Header(msgspec.Struct, frozen=True):
    format: str
    version: int
    systems: dict[str, str]


def read_trace(path: Path) -> tuple[TracedRequest, ...]:
    """Every request of the trace at `path`, sorted by arrival. Raises `TraceError`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not data.strip():
        raise TraceError(f"{path}: is empty")
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1].strip():
        lines.pop()
    try:
        return _sorted(_format(path, lines[0])(path, lines))
    except RecursionError:
        raise TraceError(f"{path}: holds JSON that is nested too deeply") from None


def _format(path: Path, first: bytes) -> Callable[[Path, list[bytes]], list[TracedRequest]]:
    """The reader for a file that begins with `first`."""
    if AZURE_COLUMNS[0] in _columns(first):
        return _read_azure
    try:
        head = msgspec.json.decode(first)
    except msgspec.MsgspecError:
        head = None
    if isinstance(head, dict) and "format" in head:
        return _read_chat
    if isinstance(head, dict) and head.keys() & {"hash_ids", "input_length"}:
        return _read_mooncake
    raise TraceError(
        f"{path}: line 1: neither a Mooncake line (timestamp, input_length, output_length, hash_ids) nor a chat "
        f'trace\'s header ("format": "{CHAT_FORMAT}") nor an Azure CSV\'s ({",".join(AZURE_COLUMNS)})'
    )


def _sorted(requests: list[TracedRequest]) -> tuple[TracedRequest, ...]:
    """By arrival, equal ones as they came; `after` names places in the new order."""
    order = sorted(range(len(requests)), key=lambda index: requests[index].arrival)
    place = {old: new for new, old in enumerate(order)}
    return tuple(
        request if request.after is None else msgspec.structs.replace(request, after=place[request.after])
        for request in map(requests.__getitem__, order)
    )


def _read_mooncake(path: Path, lines: list[bytes]) -> list[TracedRequest]:
    decode = msgspec.json.Decoder(_Mooncake).decode
    requests = []
    for number, line in enumerate(lines, 1):
        try:
            read = decode(line)
        except msgspec.MsgspecError as error:
            raise TraceError(f"{path}: line {number}: {_explain(error)}") from None
        whole, rest = divmod(read.input_length, MOONCAKE_BLOCK)
        sizes = [MOONCAKE_BLOCK] * whole + [rest] * (rest > 0)
        if len(read.hash_ids) != len(sizes):
            raise TraceError(
                f"{path}: line {number}: hash_ids: must hold {len(sizes)} ids, one for each {MOONCAKE_BLOCK} tokens "
                f"of input_length {read.input_length}, got {len(read.hash_ids)}"
            )
        segments = tuple(zip(read.hash_ids, sizes, strict=True))
        arrival = read.timestamp / 1000
        requests.append(TracedRequest(arrival, read.input_length, read.output_length, segments, -number))
    return requests


def _read_azure(path: Path, lines: list[bytes]) -> list[TracedRequest]:
    header = _columns(lines[0])
    missing = [name for name in AZURE_COLUMNS if name not in header]
    if missing:
        raise TraceError(f"{path}: line 1: no column {missing[0]}; needed are {', '.join(AZURE_COLUMNS)}")
    columns = [header.index(name) for name in AZURE_COLUMNS]
    rows = []
    for number, line in enumerate(lines[1:], 2):
        values = _columns(line)
        where = f"{path}: line {number}"
        if len(values) != len(header):
            raise TraceError(f"{where}: has {len(values)} fields, and the header names {len(header)}")
        moment, prompt, output = (values[column] for column in columns)
        rows.append(
            (_moment(where, moment), _count(where, "ContextTokens", prompt), _count(where, "GeneratedTokens", output))
        )
    if not rows:
        raise TraceError(f"{path}: has a header but no request")
    start = min(row[0] for row in rows)
    return [
        TracedRequest((moment - start).total_seconds(), prompt, output, ((number, prompt),), -number)
        for number, (moment, prompt, output) in enumerate(rows, 1)
    ]


def _columns(line: bytes) -> list[str]:
    return [value.strip() for value in line.decode(errors="replace").split(",")]


def _moment(where: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise TraceError(
            f"{where}: TIMESTAMP: must be a time such as 2023-11-16 18:15:46.6805900, got {text!r}"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _count(where: str, column: str, text: str) -> int:
    count = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    if not 1 <= count <= 10_000_000:
        raise TraceError(f"{where}: {column}: must be a whole number from 1 to 10000000, got {text!r}")
    return count


def _read_chat(path: Path, lines: list[bytes]) -> list[TracedRequest]:
    number = 1
    requests: list[TracedRequest] = []
    try:
        header = msgspec.json.decode(lines[0], type=_Header)
        if header.format != CHAT_FORMAT:
            raise ValueError(f'format: must be "{CHAT_FORMAT}", got "{header.format}"')
        if header.version != CHAT_VERSION:
            raise ValueError(f"version: this engine reads version {CHAT_VERSION}, got {header.version}")
        decode = msgspec.json.Decoder(_Session).decode
        identities: dict[object, int] = {}
        for line in lines[1:]:
            number += 1
            session = decode(line)
            if session.system not in header.systems:
                known = ", ".join(f'"{name}"' for name in header.systems)
                raise ValueError(f'system: "{session.system}" is not in the header; allowed are {known}')
            system = header.systems[session.system]
            requests += _session_requests(session, system, len(requests), identities)
    except msgspec.MsgspecError as error:
        raise TraceError(f"{path}: line {number}: {_explain(error)}") from None
    except ValueError as error:
        raise TraceError(f"{path}: line {number}: {error}") from None
    if not requests:
        raise TraceError(f"{path}: has a header but no session")
    return requests


def _session_requests(session: _Session, system: str, first: int, identities: dict[object, int]) -> list[TracedRequest]:
    """One request a turn. A user's piece holds the marks that end the answer before it and begin its own."""

    def identity(*key: object) -> int:
        return identities.setdefault(key, len(identities))

    around = MESSAGE_OPENING + MESSAGE_CLOSING
    opening = ((identity("system", system), estimated_tokens(system) + around),)
    requests: list[TracedRequest] = []
    arrival = session.arrival
    for index, turn in enumerate(session.turns):
        where = f"turns[{index}]"
        if turn.regenerates is not UNSET:
            if turn.regenerates >= index:
                raise ValueError(f"{where}.regenerates: must be the index of an earlier turn, got {turn.regenerates}")
            segments = requests[turn.regenerates].segments
        else:
            if turn.user is UNSET or turn.user_tokens is UNSET:
                name = "user" if turn.user is UNSET else "user_tokens"
                raise ValueError(f"{where}.{name}: missing; a turn has user and user_tokens, or regenerates")
            parent = (index - 1 if index else None) if turn.parent is UNSET else turn.parent
            if parent is None:
                segments = (*opening, (identity("user", turn.user), turn.user_tokens + around + MESSAGE_OPENING))
            elif parent < index:
                before = requests[parent]
                user = (identity("next", turn.user), MESSAGE_CLOSING + turn.user_tokens + around + MESSAGE_OPENING)
                segments = (*before.segments, (before.answer, before.output_tokens), user)
            else:
                raise ValueError(f"{where}.parent: must be null or the index of an earlier turn, got {parent}")
        arrival += turn.think
        requests.append(
            TracedRequest(
                arrival=arrival,
                prompt_tokens=sum(tokens for _, tokens in segments),
                output_tokens=turn.output_tokens,
                segments=segments,
                answer=identity("answer", first + index),
                after=first + index - 1 if index else None,
                think=turn.think,
            )
        )
    return requests


def estimated_tokens(text: str) -> int:
    """Tokens of a text whose count the trace does not tell: words, digits, marks and line ends."""
    return max(1, len(_WORDS.findall(text)))


def _explain(error: msgspec.MsgspecError) -> str:
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return f"not JSON: {text}"
    match = _PATH.match(text)
    if match:
        text = f"{match['path']}: {match['what']}"
    return text.replace("`", "")
