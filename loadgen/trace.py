"""A chat trace: sessions, their turns and when they happen, read from and written to JSON lines.

The format is documented in traces/README.md and traces/chat.schema.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

FORMAT = "paged-top-chat"
VERSION = 1

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Tokens = Annotated[int, Meta(ge=1, le=10_000_000)]
Index = Annotated[int, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Text = Annotated[str, Meta(min_length=1)]


class TraceError(Exception):
    """A trace that cannot be replayed; the message names file, line and field, and what is allowed."""


class Turn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One request: a user message, or another answer to the message of an earlier turn (`regenerates`).

    `think` is the seconds between the end of the turn before and this one. The history is that of `parent`
    with the parent's message and answer; without one it goes on from the turn before (null: no history).
    """

    think: Seconds = 0.0
    parent: Index | UnsetType | None = UNSET
    user: Text | UnsetType = UNSET
    user_tokens: Tokens | UnsetType = UNSET
    regenerates: Index | UnsetType = UNSET
    output_tokens: Tokens
    seed: Seed


class Session(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One user's chat; `arrival` is in seconds from the start of the trace, `system` names a system prompt."""

    session: Text
    arrival: Seconds
    system: str
    turns: Annotated[tuple[Turn, ...], Meta(min_length=1)]


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line: system prompts by name, the sampling temperature of all turns, and where it is from."""

    format: str
    version: int
    systems: dict[str, Text]
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    recipe: dict[str, str | int | float] = {}


class Trace(msgspec.Struct, frozen=True):
    """A whole trace, sessions in order of arrival."""

    header: Header
    sessions: tuple[Session, ...]

    @property
    def num_turns(self) -> int:
        return sum(len(session.turns) for session in self.sessions)


class TurnInput(msgspec.Struct, frozen=True):
    """What a turn asks: `history` is the indices of the turns before it in its branch, oldest first."""

    history: tuple[int, ...]
    user: str


def turn_inputs(session: Session) -> tuple[TurnInput, ...]:
    """Follow each turn's parent and `regenerates` to its branch. Raises `ValueError` naming the field."""
    inputs: list[TurnInput] = []
    for index, turn in enumerate(session.turns):
        where = f"turns[{index}]"
        if turn.regenerates is not UNSET:
            if turn.regenerates >= index:
                raise ValueError(f"{where}.regenerates: must be the index of an earlier turn, got {turn.regenerates}")
            for name in ("user", "user_tokens", "parent"):
                if getattr(turn, name) is not UNSET:
                    raise ValueError(f"{where}.{name}: not allowed beside regenerates, which takes it over")
            inputs.append(inputs[turn.regenerates])
            continue
        if turn.user is UNSET:
            raise ValueError(f"{where}.user: missing; a turn has user and user_tokens, or regenerates")
        if turn.user_tokens is UNSET:
            raise ValueError(f"{where}.user_tokens: missing; a turn has user and user_tokens, or regenerates")
        parent = (index - 1 if index else None) if turn.parent is UNSET else turn.parent
        if parent is not None and parent >= index:
            raise ValueError(f"{where}.parent: must be null or the index of an earlier turn, got {parent}")
        history = () if parent is None else (*inputs[parent].history, parent)
        inputs.append(TurnInput(history, turn.user))
    return tuple(inputs)


_encode = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(Header).decode
_decode_session = msgspec.json.Decoder(Session).decode
_PATH = re.compile(r"^(?P<what>.*?) - at `\$\.?(?P<path>.*)`$", re.DOTALL)


def _explain(error: msgspec.MsgspecError) -> str:
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return f"not JSON: {text}"
    match = _PATH.match(text)
    if match:
        text = f"{match['path']}: {match['what']}"
    return text.replace("`", "")


def _check_header(header: Header) -> None:
    if header.format != FORMAT:
        raise ValueError(f'format: must be "{FORMAT}", got "{header.format}"')
    if header.version != VERSION:
        raise ValueError(f"version: this loadgen reads version {VERSION}, got {header.version}")
    if not header.systems:
        raise ValueError("systems: must name at least one system prompt")


def _check_session(session: Session, header: Header, seen: set[str], earliest: float) -> None:
    if session.session in seen:
        raise ValueError(f'session: "{session.session}" is there already; each name is used once')
    if session.system not in header.systems:
        known = ", ".join(f'"{name}"' for name in header.systems)
        raise ValueError(f'system: "{session.system}" is not in the header; allowed are {known}')
    if session.arrival < earliest:
        raise ValueError(f"arrival: {session.arrival} is before the session above it ({earliest}); sort by arrival")
    if session.turns[0].think:
        raise ValueError("turns[0].think: must be 0 or absent; a session's first turn happens at its arrival")
    turn_inputs(session)


def read_trace(path: Path) -> Trace:
    """Read and check a whole trace file. Raises `TraceError`."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None
    if lines[-1] == b"":
        lines.pop()
    if not lines:
        raise TraceError(f'{path}: is empty; the first line must be a header {{"format": "{FORMAT}", ...}}')
    number = 1
    try:
        header = _decode_header(lines[0])
        _check_header(header)
        sessions: list[Session] = []
        seen: set[str] = set()
        for line in lines[1:]:
            number += 1
            session = _decode_session(line)
            _check_session(session, header, seen, sessions[-1].arrival if sessions else 0.0)
            seen.add(session.session)
            sessions.append(session)
    except msgspec.MsgspecError as error:
        kind = "" if number > 1 else " (the first line must be the header)"
        raise TraceError(f"{path}: line {number}{kind}: {_explain(error)}") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: line {number}: {error}") from None
    if not sessions:
        raise TraceError(f"{path}: has a header but no session")
    return Trace(header, tuple(sessions))


def trace_lines(header: Header, sessions: Iterable[Session]) -> Iterable[bytes]:
    """The lines of a trace file, each with its line end."""
    yield _encode(header) + b"\n"
    for session in sessions:
        yield _encode(session) + b"\n"
