"""KV cache events as vLLM and SGLang publish them, decoded from any of their three encodings. Pure.

They name blocks by hashes of their contents: not physical blocks, and not who holds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

BlockHash = int | bytes

MAX_PAYLOAD = 16 * 2**20  # bytes: a step of a million prompt tokens is a third of it
MAX_BLOCK_SIZE = 2**20  # tokens


class BadEvents(ValueError):
    """A payload that is none of the known encodings; the message says what came."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Full blocks that can be found now, each the next one's parent; `parent` is of the first, None: a root.

    `token_ids` are of all blocks together, empty where a recording leaves them out. A `block_size` of 0 is of
    publishers that know the hash alone, as some that keep blocks outside the GPU do: then nothing tells the parent.
    """

    hashes: tuple[BlockHash, ...]
    parent: BlockHash | None
    token_ids: tuple[int, ...]
    block_size: int
    lora: str | None = None
    medium: str | None = None
    group: int | None = None  # of layers that share block tables, in hybrid models


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    hashes: tuple[BlockHash, ...]
    medium: str | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    pass


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step changed; `time` is the publisher's Unix time, `rank` its data-parallel rank.

    `unknown` is how many events more there were, of types that are not known here.
    """

    time: float
    events: tuple[KvEvent, ...]
    rank: int | None = None
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class Heard:
    """One message of a publisher, by its sequence number."""

    sequence: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class Missed:
    """Messages `first` to `last` never came or could not be read, and could not be had again."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Restarted:
    """The publisher counts from the beginning again: what it had stored is gone."""


Message = Heard | Missed | Restarted

# The names of fields, in the order in which older versions send them without names. Only what vLLM and SGLang have in
# the same place is told by place; from then on a value is taken where its type says that it is the one.
STORED = (
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    *("lora_name", "extra_keys", "group_idx"),
)
REMOVED = ("block_hashes", "medium", "group_idx")
BATCH = ("ts", "events", "data_parallel_rank")
RANKS = ("data_parallel_rank", "attn_dp_rank", "dp_rank")  # vLLM's name for it, SGLang's, and the short one


def decode(payload: bytes) -> Batch:
    """The batch in a message's last frame. Raises BadEvents."""
    if len(payload) > MAX_PAYLOAD:
        raise BadEvents(f"a payload of {len(payload)} bytes; {MAX_PAYLOAD} are allowed")
    try:
        outer = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadEvents(f"not msgpack: {error}") from None
    fields = _fields(outer, BATCH, "the batch")
    events = fields.get("events")
    if not isinstance(events, list):
        raise BadEvents(f"events: a list is wanted, {_shown(events)} came")
    known = [event for event in map(_event, events) if event is not None]
    rank = next((fields[name] for name in RANKS if _is_int(fields.get(name))), None)
    assert rank is None or isinstance(rank, int)
    return Batch(_time(fields), tuple(known), rank, len(events) - len(known))


def _event(came: object) -> KvEvent | None:
    """None: of a type that is not known here."""
    if isinstance(came, dict):
        tag = came.get("type")
    else:
        tag = came[0] if isinstance(came, list) and came else None
        came = came[1:] if isinstance(came, list) else came
    if not isinstance(tag, str):
        raise BadEvents(f"an event with its type is wanted, {_shown(came)} came")
    if tag == "BlockStored":
        return _stored(_fields(came, STORED, tag))
    if tag == "BlockRemoved":
        fields = _fields(came, REMOVED, tag)
        return BlockRemoved(_hashes(fields), _text(fields.get("medium")), _number(fields.get("group_idx")))
    return AllBlocksCleared() if tag == "AllBlocksCleared" else None


def _stored(fields: Mapping[str, object]) -> BlockStored:
    size = fields.get("block_size")
    if not _is_int(size) or not isinstance(size, int) or not 0 <= size <= MAX_BLOCK_SIZE:
        raise BadEvents(f"block_size: 0 to {MAX_BLOCK_SIZE} tokens are wanted, {_shown(size)} came")
    parent = fields.get("parent_block_hash")
    lora = _text(fields.get("lora_name"))
    if lora is None and (number := _number(fields.get("lora_id"))) is not None:
        lora = str(number)  # older versions name an adapter by its number
    return BlockStored(
        hashes=_hashes(fields),
        parent=None if parent is None else _hash(parent),
        token_ids=_tokens(fields.get("token_ids")),
        block_size=size,
        lora=lora,
        medium=_text(fields.get("medium")),
        group=_number(fields.get("group_idx")),
    )


def _fields(came: object, names: Sequence[str], what: str) -> Mapping[str, object]:
    if isinstance(came, dict):
        return came
    if isinstance(came, list):
        return dict(zip(names, came, strict=False))
    raise BadEvents(f"{what}: a list or a map is wanted, {_shown(came)} came")


def _hashes(fields: Mapping[str, object]) -> tuple[BlockHash, ...]:
    came = fields.get("block_hashes")
    if not isinstance(came, list):
        raise BadEvents(f"block_hashes: a list is wanted, {_shown(came)} came")
    return tuple(map(_hash, came))


def _hash(came: object) -> BlockHash:
    if isinstance(came, list) and came:
        came = came[0]  # the first vLLM that published had the block's tokens beside its hash
    if isinstance(came, bytes) or _is_int(came):
        assert isinstance(came, int | bytes)
        return came
    raise BadEvents(f"a hash is a number or bytes, {_shown(came)} came")


def _tokens(came: object) -> tuple[int, ...]:
    """Of pairs, as speculative decoding has them in SGLang, the first of each."""
    if came is None:
        return ()
    if not isinstance(came, list):
        raise BadEvents(f"token_ids: a list is wanted, {_shown(came)} came")
    tokens = tuple(one[0] if isinstance(one, list) and one else one for one in came)
    if any(type(one) is not int for one in tokens):
        raise BadEvents(f"token_ids: numbers are wanted, {_shown(came)} came")
    return tokens


def _time(fields: Mapping[str, object]) -> float:
    came = fields.get("ts")
    if isinstance(came, bool) or not isinstance(came, int | float) or not abs(came) < 1e15:
        raise BadEvents(f"ts: a time in seconds is wanted, {_shown(came)} came")
    return float(came)


def _is_int(came: object) -> bool:
    return isinstance(came, int) and not isinstance(came, bool)


def _text(came: object) -> str | None:
    return came if isinstance(came, str) else None


def _number(came: object) -> int | None:
    return came if isinstance(came, int) and not isinstance(came, bool) else None


def _shown(came: object) -> str:
    text = repr(came) if not isinstance(came, list | dict) else f"{type(came).__name__} of {len(came)}"
    return text if len(text) <= 80 else f"{text[:77]}…"


def hash_to_builtin(block_hash: BlockHash) -> int | str:
    """Numbers that JSON readers may round go as text; bytes as hexadecimal digits after an x."""
    if isinstance(block_hash, bytes):
        return f"x{block_hash.hex()}"
    return block_hash if abs(block_hash) <= 2**53 else str(block_hash)


def hash_from_builtin(came: object) -> BlockHash:
    """Raises BadEvents."""
    if isinstance(came, str):
        try:
            return bytes.fromhex(came[1:]) if came.startswith("x") else int(came)
        except ValueError:
            came = came[:80]
    if _is_int(came):
        assert isinstance(came, int)
        return came
    raise BadEvents(f"a hash is a number, its digits, or x and hexadecimal digits, {_shown(came)} came")


def to_builtins(message: Message) -> dict[str, object]:
    """What a recording keeps of a message: no token ids, and numbers that survive JSON."""
    if isinstance(message, Restarted):
        return {"kind": "restarted"}
    if isinstance(message, Missed):
        return {"kind": "missed", "first": message.first, "last": message.last}
    batch = message.batch
    out: dict[str, object] = {"kind": "heard", "sequence": message.sequence, "ts": batch.time}
    out["events"] = [_event_to_builtins(event) for event in batch.events]
    if batch.rank is not None:
        out["data_parallel_rank"] = batch.rank
    if batch.unknown:
        out["unknown"] = batch.unknown
    return out


def _event_to_builtins(event: KvEvent) -> dict[str, object]:
    if isinstance(event, AllBlocksCleared):
        return {"type": "AllBlocksCleared"}
    out: dict[str, object] = {"type": type(event).__name__}
    out["block_hashes"] = [hash_to_builtin(one) for one in event.hashes]
    if isinstance(event, BlockStored):
        out["parent_block_hash"] = None if event.parent is None else hash_to_builtin(event.parent)
        out["block_size"] = event.block_size
        out["lora_name"] = event.lora
    out["medium"] = event.medium
    out["group_idx"] = event.group
    return {name: value for name, value in out.items() if value is not None}


def from_builtins(came: Mapping[str, object]) -> Message:
    """The message of which `to_builtins` made this, without token ids. Raises BadEvents."""
    kind = came.get("kind")
    if kind == "restarted":
        return Restarted()
    if kind == "missed":
        return Missed(_sequence(came, "first"), _sequence(came, "last"))
    if kind != "heard":
        raise BadEvents(f"kind: heard, missed or restarted is wanted, {_shown(kind)} came")
    events = came.get("events")
    if not isinstance(events, list | tuple):
        raise BadEvents(f"events: a list is wanted, {_shown(events)} came")
    rank, unknown = _number(came.get("data_parallel_rank")), _number(came.get("unknown"))
    batch = Batch(_time(came), tuple(map(_event_from_builtins, events)), rank, unknown or 0)
    return Heard(_sequence(came, "sequence"), batch)


def _event_from_builtins(came: object) -> KvEvent:
    if not isinstance(came, dict):
        raise BadEvents(f"an event is a map, {_shown(came)} came")
    hashes, parent = came.get("block_hashes"), came.get("parent_block_hash")
    fields = dict(came)
    if isinstance(hashes, list | tuple):
        fields["block_hashes"] = [hash_from_builtin(one) for one in hashes]
    if parent is not None:
        fields["parent_block_hash"] = hash_from_builtin(parent)
    event = _event(fields)
    if event is None:
        raise BadEvents(f"type: {_shown(came.get('type'))} is not known")
    return event


def _sequence(came: Mapping[str, object], name: str) -> int:
    number = _number(came.get(name))
    if number is None or number < 0:
        raise BadEvents(f"{name}: a sequence number is wanted, {_shown(came.get(name))} came")
    return number
