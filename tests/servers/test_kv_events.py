import dataclasses
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servers.kv_events import (
    MAX_PAYLOAD,
    AllBlocksCleared,
    BadEvents,
    Batch,
    BlockRemoved,
    BlockStored,
    Heard,
    Missed,
    Restarted,
    decode,
    from_builtins,
    hash_from_builtin,
    hash_to_builtin,
    to_builtins,
)
from tests.servers.kv_publisher import ENCODINGS, encode

pack = msgspec.msgpack.encode

SHA = bytes(range(32))
FULL = BlockStored((1, SHA), -7, (10, 11, 12, 13), 2, "french", "GPU", 1)


def only(payload: object) -> object:
    """The one event of a batch."""
    (event,) = decode(pack(payload)).events
    return event


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "event",
    [
        FULL,
        BlockStored((2**64 - 1,), None, (), 16),
        BlockStored((-(2**63),), SHA, (0, 2**31), 2, None, "CPU"),
        BlockStored((5,), None, (), 0, None, "STORAGE", 0),
        BlockRemoved((SHA, 3), "CPU", 2),
        BlockRemoved((1,)),
        AllBlocksCleared(),
    ],
)
@pytest.mark.parametrize("rank", [None, 3])
def test_all_encodings_give_the_same_events(encoding, event, rank):
    payload = encode([event, event], encoding, 12.5, rank)
    assert decode(payload) == Batch(12.5, (event, event), rank)


ARRAYS = {
    "vLLM 0.9": (
        ["BlockStored", [1], None, [7, 8], 2, None],
        BlockStored((1,), None, (7, 8), 2),
    ),
    "vLLM 0.11, an adapter by its number": (
        ["BlockStored", [SHA], 9, [7, 8], 2, 4, "GPU"],
        BlockStored((SHA,), 9, (7, 8), 2, "4", "GPU"),
    ),
    "vLLM 0.19": (
        ["BlockStored", [1], 9, [7, 8], 2, 4, "GPU", "french", [["french"]], 1, "sliding_window", 128],
        BlockStored((1,), 9, (7, 8), 2, "french", "GPU", 1),
    ),
    "vLLM, blocks elsewhere by their hash alone": (
        ["BlockStored", [1], None, [], 0, None, "CPU"],
        BlockStored((1,), None, (), 0, None, "CPU"),
    ),
    "the first vLLM, whose hashes had their tokens beside them": (
        ["BlockStored", [[1, [7, 8], None]], [9, [5, 6]], [7, 8], 2, None],
        BlockStored((1,), 9, (7, 8), 2),
    ),
    "SGLang 0.5": (
        ["BlockStored", [1], 9, [7, 8], 2, None, "CPU_TIER1"],
        BlockStored((1,), 9, (7, 8), 2, None, "CPU_TIER1"),
    ),
    "SGLang, with a salt where vLLM has an adapter": (
        ["BlockStored", [1], 9, [7, 8], 2, None, "GPU", {"cache_salt": "tenant"}],
        BlockStored((1,), 9, (7, 8), 2, None, "GPU"),
    ),
    "SGLang, pairs of tokens": (
        ["BlockStored", [1], 9, [[7, 8], [8, 9]], 2, None, "GPU"],
        BlockStored((1,), 9, (7, 8), 2, None, "GPU"),
    ),
    "a removal before media": (["BlockRemoved", [1, 2]], BlockRemoved((1, 2))),
    "a removal with a group": (["BlockRemoved", [1], "GPU", 1], BlockRemoved((1,), "GPU", 1)),
    "a removal with something else there": (["BlockRemoved", [1], "GPU", ["full"]], BlockRemoved((1,), "GPU")),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_many_versions(name):
    came, expected = ARRAYS[name]
    assert only([1.0, [came]]) == expected


def test_a_map_as_vllm_has_it_since_2026():
    stored = {
        "type": "BlockStored", "block_hashes": [2**63 + 5], "parent_block_hash": None, "token_ids": [1, 2],
        "block_size": 2, "lora_id": 4, "medium": "GPU", "lora_name": "french", "extra_keys": [["french"]],
        "group_idx": 0, "kv_cache_spec_kind": "full_attention", "locality": "LOCAL", "session_id": "s",
    }  # fmt: skip
    removed = {"type": "BlockRemoved", "block_hashes": [2**63 + 5], "medium": "GPU", "remaining_copy_counts": [0]}
    batch = decode(pack([1.5, [stored, removed], 2]))
    assert batch.rank == 2
    assert batch.events == (
        BlockStored((2**63 + 5,), None, (1, 2), 2, "french", "GPU", 0),
        BlockRemoved((2**63 + 5,), "GPU"),
    )


@pytest.mark.parametrize("name", ["data_parallel_rank", "attn_dp_rank", "dp_rank"])
def test_the_batch_as_a_map_names_its_rank_as_each_server_does(name):
    assert decode(pack({"ts": 1, "events": [], name: 5})) == Batch(1.0, (), 5)


def test_types_that_are_not_known_are_counted():
    batch = decode(pack([1.0, [["BlockMoved", 1, 2], {"type": "Heartbeat"}, ["AllBlocksCleared"]]]))
    assert batch == Batch(1.0, (AllBlocksCleared(),), None, 2)


@pytest.mark.parametrize(
    ("came", "says"),
    [
        (b"", "not msgpack"),
        (b"\xc1", "not msgpack"),
        (b"\x91" * 100_000, "not msgpack"),
        (pack(5), "the batch: a list or a map is wanted, 5 came"),
        (pack([]), "events: a list is wanted, None came"),
        (pack(["now", []]), "ts: a time in seconds is wanted, 'now' came"),
        (pack([True, []]), "ts: a time in seconds is wanted, True came"),
        (pack([float("nan"), []]), "ts: a time in seconds is wanted, nan came"),
        (pack([1.0, {}]), "events: a list is wanted, dict of 0 came"),
        (pack([1.0, [7]]), "an event with its type is wanted, 7 came"),
        (pack([1.0, [[]]]), "an event with its type is wanted"),
        (pack([1.0, [{"block_hashes": []}]]), "an event with its type is wanted, dict of 1 came"),
        (pack([1.0, [["BlockStored"]]]), "block_size: 0 to"),
        (pack([1.0, [["BlockStored", [1], None, [], True]]]), "block_size: 0 to 1048576 tokens are wanted, True came"),
        (pack([1.0, [["BlockStored", [1], None, [], -1]]]), "block_size"),
        (pack([1.0, [["BlockStored", 1, None, [], 1]]]), "block_hashes: a list is wanted, 1 came"),
        (pack([1.0, [["BlockStored", ["a"], None, [], 1]]]), "a hash is a number or bytes, 'a' came"),
        (pack([1.0, [["BlockStored", [True], None, [], 1]]]), "a hash is a number or bytes, True came"),
        (pack([1.0, [["BlockStored", [1], 1.5, [], 1]]]), "a hash is a number or bytes, 1.5 came"),
        (pack([1.0, [["BlockStored", [1], None, ["a"], 1]]]), "token_ids: numbers are wanted"),
        (pack([1.0, [["BlockStored", [1], None, "abc", 1]]]), "token_ids: a list is wanted, 'abc' came"),
        (pack([1.0, [["BlockRemoved"]]]), "block_hashes: a list is wanted, None came"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_none_of_them_says_what_came(came, says):
    with pytest.raises(BadEvents) as error:
        decode(came)
    assert says in str(error.value)
    assert len(str(error.value)) < 250


def test_a_payload_that_is_too_long_is_not_read():
    with pytest.raises(BadEvents, match=f"{MAX_PAYLOAD} are allowed"):
        decode(b"\xc6" + MAX_PAYLOAD.to_bytes(4, "big") + bytes(MAX_PAYLOAD))


NAMES = ["type", "block_hashes", "token_ids", "block_size", "parent_block_hash", "events", "ts"]
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"])
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.sampled_from(NAMES) | st.text(), inner, max_size=6),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60) | ANYTHING.map(pack) | st.lists(ANYTHING, max_size=3).map(lambda came: pack([1.0, came])))
def test_nothing_else_is_raised_whatever_comes(payload):
    try:
        batch = decode(payload)
    except BadEvents:
        return
    assert isinstance(batch, Batch)


@given(st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=40))
@settings(max_examples=60, deadline=None)
def test_hashes_survive_json_readers_that_have_floats_alone(block_hash):
    as_json = json.dumps(hash_to_builtin(block_hash))
    assert hash_from_builtin(json.loads(as_json, parse_int=lambda digits: int(float(digits)))) == block_hash


@pytest.mark.parametrize(
    "message",
    [
        Restarted(),
        Missed(3, 2**40),
        Heard(0, Batch(12.25, ())),
        Heard(7, Batch(1e9, (FULL, BlockRemoved((SHA, -3), "CPU"), AllBlocksCleared()), 3, 2)),
    ],
)
def test_messages_survive_a_recording_without_token_ids(message):
    as_json = json.dumps(to_builtins(message))
    assert "token" not in as_json
    again = from_builtins(json.loads(as_json))
    if isinstance(message, Heard):
        bare = tuple(map(_without_tokens, message.batch.events))
        message = Heard(message.sequence, Batch(message.batch.time, bare, message.batch.rank, message.batch.unknown))
    assert again == message


def _without_tokens(event):
    if not isinstance(event, BlockStored):
        return event
    return dataclasses.replace(event, token_ids=())


@pytest.mark.parametrize(
    "came",
    [
        {},
        {"kind": "later"},
        {"kind": "missed", "first": 1},
        {"kind": "missed", "first": -1, "last": 2},
        {"kind": "heard", "ts": 1.0, "events": []},
        {"kind": "heard", "sequence": 1, "ts": "1", "events": []},
        {"kind": "heard", "sequence": 1, "ts": 1.0, "events": {}},
        {"kind": "heard", "sequence": 1, "ts": 1.0, "events": [1]},
        {"kind": "heard", "sequence": 1, "ts": 1.0, "events": [{"type": "Other"}]},
        {"kind": "heard", "sequence": 1, "ts": 1.0, "events": [{"type": "BlockRemoved", "block_hashes": ["xyz"]}]},
        {"kind": "heard", "sequence": 1, "ts": 1.0, "events": [{"type": "BlockRemoved", "block_hashes": ["9" * 5000]}]},
    ],
)
def test_what_no_recording_has_is_refused(came):
    with pytest.raises(BadEvents):
        from_builtins(came)
