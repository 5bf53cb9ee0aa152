from engine.block_pool import BlockPool
from engine.kv_manager import KVManager, Prefix
from engine.prefix_cache import PARTIAL_LOOKS, Contents, PrefixCache, common_length
from engine.protocol import Control
from engine.request import Request
from engine.sampling_params import SchedulingParams
from tests.engine.mirror import expected_output, greedy, mirror_core
from tests.engine.test_scheduler import finish, step

ENDLESS = {"ignore_eos": True}


def contents(block_hash: bytes, *tokens: int, parent: bytes = b"root") -> Contents:
    return Contents(block_hash, parent, tokens, decoded=False)


def test_a_block_is_found_by_its_hash_until_it_is_forgotten():
    cache = PrefixCache(remember=4)
    cache.add(3, contents(b"a", 1, 2))
    assert (cache.find(b"a"), cache.find(b"b")) == (3, None)
    assert 3 in cache
    cache.forget(3)
    assert cache.find(b"a") is None
    assert (len(cache), 3 in cache) == (0, False)
    assert not cache.was_evicted(b"a"), "it was told to forget"


def test_of_two_equal_blocks_the_other_is_still_found():
    # Trap 5.
    cache = PrefixCache(remember=4)
    cache.add(1, contents(b"same", 1, 2))
    cache.add(2, contents(b"same", 1, 2))
    cache.evict(1)
    assert cache.find(b"same") == 2
    assert cache.find_beginning(b"root", (1,)) == (2, 1)
    assert not cache.was_evicted(b"same")
    cache.evict(2)
    assert cache.was_evicted(b"same")


def test_the_beginning_that_shares_most_is_found():
    cache = PrefixCache(remember=4)
    cache.add(1, contents(b"a", 1, 2, 3, 4))
    cache.add(2, contents(b"b", 1, 2, 9, 9))
    cache.add(3, contents(b"c", 5, 2, 3, 4))
    cache.add(4, contents(b"d", 1, 2, 3, 4, parent=b"other"))
    assert cache.find_beginning(b"root", (1, 2, 3, 7)) == (1, 3)
    assert cache.find_beginning(b"root", (1, 2, 9, 9)) == (2, 4)
    assert cache.find_beginning(b"root", (5,)) == (3, 1)
    assert cache.find_beginning(b"root", (2,)) is None
    assert cache.find_beginning(b"root", ()) is None
    assert set(cache.beginning_with(1)) == {1, 2}


def test_looking_for_a_beginning_compares_a_bounded_number_of_the_youngest():
    cache = PrefixCache(remember=4)
    cache.add(0, contents(b"best", 1, 2, 3, 4))
    for block in range(1, PARTIAL_LOOKS):
        cache.add(block, contents(bytes([block]), 1, 50 + block, 0, 0))
    assert cache.find_beginning(b"root", (1, 2, 3, 4)) == (0, 4)
    cache.add(PARTIAL_LOOKS, contents(b"one more", 1, 99, 0, 0))
    assert cache.find_beginning(b"root", (1, 2, 3, 4)) == (PARTIAL_LOOKS, 1)


def test_blocks_without_tokens_are_found_whole_alone():
    cache = PrefixCache(remember=4)
    cache.add(1, contents(b"a"))
    assert cache.find(b"a") == 1
    assert cache.find_beginning(b"root", (1,)) is None
    assert list(cache.beginning_with(1)) == [1]
    cache.forget(1)
    assert not len(cache)


def test_as_many_evictions_are_remembered_as_asked_the_latest_ones():
    cache = PrefixCache(remember=2)
    for block, name in enumerate((b"a", b"b", b"c")):
        cache.add(block, contents(name, 1))
        cache.evict(block)
    assert [cache.was_evicted(name) for name in (b"a", b"b", b"c")] == [False, True, True]
    cache.add(7, contents(b"b", 1))
    assert not cache.was_evicted(b"b"), "it is back"


def test_common_length_ends_where_the_shorter_does():
    assert common_length((1, 2, 3), (1, 2, 4)) == 2
    assert common_length((1, 2), (1, 2, 3)) == 2
    assert common_length((), (1,)) == common_length((2,), (1,)) == 0


def test_the_next_turn_of_a_chat_hits_the_answer():
    core = mirror_core()
    question = list(range(10))
    core.add("turn 1", question, greedy(9, **ENDLESS))
    answer = finish(core)[1]["turn 1"]
    core.add("turn 2", [*question, *answer, 30, 29], greedy(3, **ENDLESS))
    records, tokens, _ = finish(core)
    (joined,) = records[0].joined
    # 18 tokens are computed (the last was never fed): 4 whole blocks, the 3rd and 4th with generated tokens.
    assert (joined.cached_tokens, joined.decoded_tokens) == (16, 8)
    sharing = records[-1].sharing
    assert (sharing.looked_up_tokens, sharing.found_tokens, sharing.decoded_tokens) == (31, 16, 8)
    assert tokens["turn 2"] == expected_output([*question, *answer, 30, 29], greedy(3, **ENDLESS), 64)[0]


def test_what_was_found_is_told_with_every_token():
    core = mirror_core()
    core.add("a", list(range(9)), greedy(1))
    finish(core)
    core.add("b", list(range(9)), greedy(3, **ENDLESS), siblings=["b.1"])
    found = {(output.request, output.cached_tokens) for _ in range(3) for output in core.step()[0]}
    assert found == {("b", 8), ("b.1", 8)}


def test_a_block_to_copy_from_is_given_up_where_it_is_wanted_itself():
    core = mirror_core(4, 4, 16)
    core.add("a", [1] * 15, greedy(1))
    finish(core)
    prompt = [1, 1, *range(2, 15)]  # needs all four blocks, and the one it would copy from is one of them
    core.add("b", prompt, greedy(1))
    records, tokens, _ = finish(core)
    assert (records[0].joined[0].cached_tokens, records[0].copies) == (0, ())
    assert tokens["b"] == expected_output(prompt, greedy(1), 16)[0]


def test_what_one_is_to_copy_from_is_not_evicted_for_another_admitted_with_it():
    kv = KVManager(BlockPool(4, 4), 64)

    def leave(tokens: list[int]) -> int:
        request = Request("x", tokens, greedy(1), 0.0, 0)
        kv.admit_paged([request], [Prefix()], publish=True)
        assert kv.grow(request, len(tokens))
        kv.commit(request, len(tokens), publish=True)
        first = request.table[0]
        kv.free(request)
        return first

    oldest, other = leave([1, 2, 3, 4]), leave([5, 6, 7, 8])
    leave([9] * 8)
    one, two = Request("one", [5, 6, 0], greedy(1), 0.0, 1), Request("two", [1, 2, 3, 0], greedy(1), 0.0, 2)
    kv.admit_paged([one, two], [kv.cached_prefix(one), kv.cached_prefix(two)], publish=True)
    copies = kv.take_moves().copies
    assert [(copy.source, copy.tokens) for copy in copies] == [(other, 2), (oldest, 3)]
    assert {copy.target for copy in copies}.isdisjoint({oldest, other})


def test_a_miss_by_eviction_is_told_from_one_never_seen():
    core = mirror_core(num_blocks=8, max_model_len=32)
    core.add("a", [1] * 17, greedy(1))
    core.add("flood", [2] * 25, greedy(1))
    finish(core)
    core.add("a again", [1] * 17, greedy(1))
    core.add("new", [3] * 17, greedy(1))
    joined = {one.request: one for record in finish(core)[0] for one in record.joined}
    assert (joined["a again"].cached_tokens, joined["a again"].evicted_tokens) == (4, 12)
    assert (joined["new"].cached_tokens, joined["new"].evicted_tokens) == (0, 0)


def test_salts_keep_equal_prompts_apart_and_one_may_opt_out_both_ways():
    # Trap 4.
    core = mirror_core()
    hits = {}
    for name, scheduling in (
        ("none", SchedulingParams()),
        ("x", SchedulingParams(cache_salt="x")),
        ("y", SchedulingParams(cache_salt="y")),
        ("x again", SchedulingParams(cache_salt="x")),
        ("out", SchedulingParams(cache_salt="z", prefix_cache=False)),
        ("z", SchedulingParams(cache_salt="z")),
        ("out again", SchedulingParams(cache_salt="z", prefix_cache=False)),
    ):
        core.add(name, [1] * 9, greedy(1), scheduling)
        (joined,) = step(core).joined
        hits[name] = (joined.cached_tokens, joined.looked_up_tokens)
    assert hits == {
        "none": (0, 9),
        "x": (0, 9),
        "y": (0, 9),
        "x again": (8, 9),
        "out": (0, 0),
        "z": (0, 9),
        "out again": (0, 0),
    }


def test_clearing_forgets_every_prefix_is_recorded_and_disturbs_nobody():
    core = mirror_core()
    core.add("a", list(range(9)), greedy(6, **ENDLESS))
    step(core)
    assert core.clear_cache() == 2
    core.add("b", list(range(9)), greedy(6, **ENDLESS))
    records, tokens, _ = finish(core)
    assert [record.cleared for record in records[:2]] == [2, 0]
    assert records[0].joined[0].cached_tokens == 0
    assert core.clear_cache() > 0
    assert core.clear_cache() == 0
    record = core.flush()
    assert record is not None
    assert record.pool.free == 32
    assert tokens["b"] == expected_output(list(range(9)), greedy(6, **ENDLESS), 64)[0]


def test_switched_off_it_neither_finds_nor_keeps():
    core = mirror_core(control=Control(prefix_cache=False))
    for name in "ab":
        core.add(name, list(range(9)), greedy(3, **ENDLESS))
        assert step(core).joined[0].looked_up_tokens == 0
        finish(core)
    assert not len(core.pool.cache)
    assert core.pool.num_available == 32
