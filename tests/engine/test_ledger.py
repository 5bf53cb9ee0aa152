from engine.block_pool import BlockPool
from engine.ledger import Ledger
from engine.prefix_cache import Contents
from engine.protocol import Joined, PoolTotals, WasteLedger
from tests.engine.mirror import greedy, mirror_core
from tests.engine.test_scheduler import step


def books(num_blocks: int = 6, block_size: int = 4) -> tuple[BlockPool, Ledger]:
    pool = BlockPool(num_blocks, block_size)
    return pool, Ledger(pool, kv_bytes_per_token=10)


def test_the_totals_follow_the_journal_through_every_state():
    pool, ledger = books()
    assert ledger.pool == PoolTotals(free=6)
    reserved, filling, full, shared, cached = pool.allocate(5)
    pool.fill(filling, 1)
    for block in (full, shared, cached):
        pool.fill(block, 4)
        pool.publish(block, Contents(bytes([block]), b"root", (1,), decoded=False))
    pool.acquire(shared)
    pool.release([cached])
    ledger.apply(pool.drain_journal())
    assert ledger.pool == PoolTotals(free=1, cached=1, reserved=1, filling=1, full=1, shared=1)
    assert [(block.block, block.state) for block in ledger.blocks] == [
        (reserved, "reserved"),
        (filling, "filling"),
        (full, "full"),
        (shared, "shared"),
        (cached, "cached"),
    ]
    pool.release([reserved, filling, full, shared, shared])
    pool.clear_cache()
    ledger.apply(pool.drain_journal())
    assert ledger.pool == PoolTotals(free=6)
    assert ledger.blocks == ()


def test_a_shared_block_is_held_once_and_its_saving_counted():
    pool, ledger = books()
    first, second = pool.allocate(2)
    pool.fill(first, 4)
    pool.fill(second, 3)
    pool.publish(first, Contents(b"a", b"root", (1,), decoded=False))
    pool.acquire(first)
    pool.acquire(first)
    assert ledger.waste(short_hole_blocks=2) == WasteLedger(held=8, filled=7, internal=1, external=8)
    sharing = ledger.sharing
    assert (sharing.logical_blocks, sharing.physical_blocks, sharing.saved_blocks) == (4, 2, 2)
    assert sharing.saved_bytes == 2 * 4 * 10


def test_what_is_found_after_a_preemption_is_counted_apart():
    # Trap 19.
    _, ledger = books()
    ledger.join(
        [
            Joined("a", 8, 10, "paged", resumed=False, decoded_tokens=4, copied_tokens=3, evicted_tokens=1),
            Joined("b", 2, 30, "paged", resumed=False, evicted_tokens=8),
            Joined("a", 12, 14, "paged", resumed=True, decoded_tokens=8, copied_tokens=2, evicted_tokens=5),
            Joined("b.1", 0, 0, "paged", resumed=False, parent="b", shared_tokens=30),
        ]
    )
    sharing = ledger.sharing
    assert (sharing.looked_up_tokens, sharing.found_tokens) == (40, 10)
    assert (sharing.resumed_looked_up_tokens, sharing.resumed_found_tokens) == (14, 12)
    assert (sharing.decoded_tokens, sharing.copied_tokens, sharing.evicted_tokens) == (4, 3, 9)
    assert sharing.forked_tokens == 30


def test_forks_share_without_looking_anything_up():
    core = mirror_core()
    core.add("a", [1] * 10, greedy(4, ignore_eos=True), siblings=["b", "c"])
    sharing = step(core).sharing
    assert (sharing.logical_blocks, sharing.physical_blocks, sharing.saved_blocks) == (9, 3, 6)
    assert (sharing.looked_up_tokens, sharing.found_tokens, sharing.forked_tokens) == (10, 0, 20)
    waste = step(core)  # each has a tail of its own now
    assert (waste.sharing.physical_blocks, waste.sharing.saved_blocks) == (2 + 3, 4)
    assert (waste.waste.filled, waste.waste.internal) == (8 + 3 * 3, 3)
