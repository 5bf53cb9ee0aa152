"""The one model of a trace: sessions, their turns, when they happen and what they ask. Every format is read into it.

`paged-top-chat` is this model as JSON lines (traces/README.md, traces/chat.schema.json), so it holds whatever
another format held. Version 1 has only chats with text and a time.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

FORMAT = "paged-top-chat"
VERSION = 2
VERSIONS = (1, 2)

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Tokens = Annotated[int, Meta(ge=1, le=10_000_000)]
Index = Annotated[int, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Text = Annotated[str, Meta(min_length=1)]


class TraceError(Exception):
    """A trace that cannot be replayed; the message names file, line and field, and what is allowed."""


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request that is sent as it was written: `path` is from the server's root, `body` its JSON."""

    path: Text
    body: dict[str, Any]


class Turn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One request. It asks in one of four ways:

    - `user`: a message, after the history of `parent` with the parent's message and answer (without `parent`: of the
      turn before; null: no history). `user_tokens` are its tokens, where known;
    - `regenerates`: another answer to the message of an earlier turn;
    - `input_tokens`: a whole prompt of that many tokens whose text is unknown. `hash_ids` names its blocks of the
      header's `block_size` tokens, the last of which may be short: equal ids are equal tokens, and since an id stands
      for all up to its block too, prompts are equal up to it. Without `hash_ids` nothing of it is shared;
    - `request`: sent as it is.

    `think` is the seconds between the end of the turn before and this one; `at` instead is its own moment in seconds
    of the trace, whatever became of the turn before. `output_tokens` is the recorded answer's length, `reply` its
    text; without both the server decides how long it answers.
    """

    think: Seconds = 0.0
    at: Seconds | UnsetType = UNSET
    parent: Index | UnsetType | None = UNSET
    user: Text | UnsetType = UNSET
    user_tokens: Tokens | UnsetType = UNSET
    regenerates: Index | UnsetType = UNSET
    input_tokens: Tokens | UnsetType = UNSET
    hash_ids: tuple[Index, ...] | UnsetType = UNSET
    request: Asked | UnsetType = UNSET
    reply: str | UnsetType = UNSET
    output_tokens: Tokens | UnsetType = UNSET
    seed: Seed = 0


class Session(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One user's turns. `arrival` is in seconds from the start of the trace, null where the trace has no times.

    `system` names a system prompt of the header. `conversation` is the chat that this is a part of, where a trace
    has one line for each request of a chat and its own time for each; `turn` is the number it has in that, from 1.
    """

    session: Text
    arrival: Seconds | None
    system: str | None = None
    turns: Annotated[tuple[Turn, ...], Meta(min_length=1)]
    conversation: str | UnsetType = UNSET
    turn: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    labels: dict[str, str | int | float] = {}


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The first line: system prompts by name, the sampling temperature of all turns, where the trace is from.

    `block_size` is the tokens that a hash id names.
    """

    format: str
    version: int
    systems: dict[str, Text] = {}
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    recipe: dict[str, str | int | float] = {}
    block_size: Tokens | UnsetType = UNSET


class TurnInput(msgspec.Struct, frozen=True):
    """What a turn with a message asks: `history` is the indices of the turns before it in its branch, oldest first."""

    history: tuple[int, ...]
    user: str


BLOCK_SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048)  # that people hash by
WAYS = ("user", "regenerates", "input_tokens", "request")


def check_turn(turn: Turn, index: int, header: Header) -> None:
    """Raises `ValueError` that names the field, unless the turn asks in exactly one way and its numbers agree."""
    where = f"turns[{index}]"
    ways = [name for name in WAYS if getattr(turn, name) is not UNSET]
    if not ways:
        raise ValueError(f"{where}.user: missing; a turn has user, regenerates, input_tokens or request")
    if len(ways) > 1:
        raise ValueError(f"{where}.{ways[1]}: not allowed beside {ways[0]}")
    if turn.at is not UNSET and turn.think:
        raise ValueError(f"{where}.at: not allowed beside think")
    if index == 0 and turn.think:
        raise ValueError("turns[0].think: must be 0 or absent; a session's first turn happens at its arrival")
    if turn.user_tokens is not UNSET and turn.user is UNSET:
        raise ValueError(f"{where}.user_tokens: not allowed without user")
    if header.version == 1:
        for name in ("input_tokens", "request", "at", "reply"):
            if getattr(turn, name) is not UNSET:
                raise ValueError(f"{where}.{name}: needs a header of version 2")
        if turn.user is not UNSET and turn.user_tokens is UNSET:
            raise ValueError(f"{where}.user_tokens: missing; a turn has user and user_tokens, or regenerates")
        if turn.output_tokens is UNSET:
            raise ValueError(f"{where}.output_tokens: missing")
    if turn.parent is not UNSET and turn.user is UNSET:
        raise ValueError(f"{where}.parent: not allowed without user")
    if turn.hash_ids is not UNSET:
        if turn.input_tokens is UNSET:
            raise ValueError(f"{where}.hash_ids: not allowed without input_tokens")
        if header.block_size is UNSET:
            raise ValueError(f"{where}.hash_ids: the header has no block_size, the tokens that an id names")
        check_blocks(turn.hash_ids, turn.input_tokens, header.block_size, f"{where}.hash_ids")


def check_blocks(hash_ids: tuple[int, ...], input_tokens: int, block_size: int, field: str = "hash_ids") -> None:
    """Raises `ValueError` that names a block size that fits, unless there is one id for each block of a prompt."""
    blocks = -(-input_tokens // block_size)
    if len(hash_ids) == blocks:
        return
    text = f"{field}: must hold {blocks} ids, one for each {block_size} tokens of {input_tokens}, got {len(hash_ids)}"
    fitting = [size for size in BLOCK_SIZES if -(-input_tokens // size) == len(hash_ids)]
    raise ValueError(f"{text}; a block size of {fitting[0]} would fit" if fitting else text)


def check_session(session: Session, header: Header) -> None:
    """Raises `ValueError` that names the field, unless a session keeps the rules that its types do not say."""
    if header.version == 1:
        for name in ("system", "arrival"):
            if getattr(session, name) is None:
                raise ValueError(f"{name}: missing")
        for name in ("conversation", "turn", "labels"):
            if getattr(session, name) not in (UNSET, {}):
                raise ValueError(f"{name}: needs a header of version 2")
    if session.system is not None and session.system not in header.systems:
        known = ", ".join(f'"{name}"' for name in header.systems) or "none"
        raise ValueError(f'system: "{session.system}" is not in the header; allowed are {known}')
    latest = session.arrival
    for index, turn in enumerate(session.turns):
        check_turn(turn, index, header)
        if turn.at is not UNSET:
            if latest is None:
                raise ValueError(f"turns[{index}].at: not allowed in a session without arrival")
            if turn.at < latest or (index == 0 and turn.at != latest):
                raise ValueError(f"turns[{index}].at: {turn.at} is not in order; the moment before it is {latest}")
            latest = turn.at
    turn_inputs(session)


def turn_inputs(session: Session) -> tuple[TurnInput | None, ...]:
    """Follow each turn's parent and `regenerates` to its branch; None for a turn without a message.

    Raises `ValueError` naming the field.
    """
    inputs: list[TurnInput | None] = []
    for index, turn in enumerate(session.turns):
        where = f"turns[{index}]"
        if turn.regenerates is not UNSET:
            if turn.regenerates >= index:
                raise ValueError(f"{where}.regenerates: must be the index of an earlier turn, got {turn.regenerates}")
            again = inputs[turn.regenerates]
            if again is None:
                raise ValueError(f"{where}.regenerates: turn {turn.regenerates} has no message")
            inputs.append(again)
            continue
        if turn.user is UNSET:
            inputs.append(None)
            continue
        parent = (index - 1 if index else None) if turn.parent is UNSET else turn.parent
        if parent is not None and parent >= index:
            raise ValueError(f"{where}.parent: must be null or the index of an earlier turn, got {parent}")
        before = None if parent is None else inputs[parent]
        if parent is not None and before is None:
            raise ValueError(f"{where}.parent: turn {parent} has no message")
        history = () if parent is None or before is None else (*before.history, parent)
        inputs.append(TurnInput(history, turn.user))
    return tuple(inputs)
