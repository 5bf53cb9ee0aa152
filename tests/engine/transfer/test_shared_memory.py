"""Blocks from another process's pool into one's own: which, when, until when, and what is told of what went wrong."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.faults import Faults
from engine.transfer.connector import Ended, Transfer, Unavailable
from engine.transfer.offer import Compatibility, PoolPlace
from engine.transfer.pool_memory import OtherLayout, PoolGone
from engine.transfer.shared_memory import CANCELLED, LeasePassed, SharedMemoryConnector
from tests.engine.transfer.peer import ALIKE, BLOCK_BYTES, SHAPE, Peer, make_pool, mapped, offer_of

NUM_BLOCKS = 60
SCATTERED = [(2 * i, 50 - i) for i in range(24)]  # no two follow one another: each is copied alone


class Taker:
    """An engine's connector without the engine. `moment` is called by its thread before and after each piece."""

    def __init__(
        self, engine: str = "decode-0", host: str = "here", faults: Sequence[str] = (), patience: float = math.inf
    ) -> None:
        self.now = 100.0
        self.moment: Callable[[int], None] = lambda count: None
        self.looks = 0  # at the clock, by the copying thread
        self.woken = threading.Semaphore(0)
        self.memory, self.place, self.pool = make_pool(host, NUM_BLOCKS)
        wake = self.woken.release
        self.connector = SharedMemoryConnector(
            engine, ALIKE, self.place, self.pool, wake, self.clock, faults=Faults(faults), patience=patience
        )

    def clock(self) -> float:
        if threading.current_thread() is not threading.main_thread():
            self.looks += 1
            self.moment(self.looks)
        return self.now

    def begin(self, place: PoolPlace, pairs: Sequence[tuple[int, int]], name: str = "a", **changes: Any) -> Transfer:
        """Allocate a transfer of that offer and load it."""
        transfer = Transfer(name, offer_of(place, [source for source, _ in pairs], **changes), tuple(pairs))
        self.looks = 0
        self.connector.allocated(transfer)
        self.connector.load()
        return transfer

    def ended(self) -> Ended:
        """Wait for an end."""
        assert self.woken.acquire(timeout=60)
        (ended,) = self.connector.poll()
        return ended

    def check(self, pairs: Sequence[tuple[int, int]]) -> None:
        """The pairs were copied, all of them, and nothing else was touched."""
        wanted = np.zeros_like(self.pool)
        for source, target in pairs:
            wanted[target] = source + 1
        assert np.array_equal(self.pool, wanted)

    def close(self) -> None:
        self.connector.close()
        self.memory.close()


@pytest.fixture
def taker() -> Iterator[Taker]:
    taker = Taker()
    yield taker
    taker.close()


@pytest.fixture(scope="module")
def giver() -> Iterator[Peer]:
    peer = Peer("here")
    yield peer
    peer.kill()


@pytest.fixture
def mortal() -> Iterator[Peer]:
    peer = Peer("here")
    yield peer
    peer.kill()


@pytest.mark.parametrize(
    ("pairs", "pieces"),
    [(SCATTERED, 24), ([(i, i + 7) for i in range(40)], 3), ([(39 - i, 46 - i) for i in range(40)], 3), ([(3, 3)], 1)],
    ids=["one by one", "run", "backwards", "one"],
)
def test_blocks_arrive_where_they_should_and_nowhere_else(
    taker: Taker, giver: Peer, pairs: list[tuple[int, int]], pieces: int
) -> None:
    transfer = taker.begin(giver.place, pairs)
    assert transfer.nbytes == len(pairs) * BLOCK_BYTES
    ended = taker.ended()
    assert (ended.request, ended.lease, ended.error) == ("a", "lease-1", "")
    taker.check(pairs)
    assert taker.looks == pieces + 2  # at the clock: before each, after the last, and for the end
    assert taker.connector.poll() == []
    assert not taker.woken.acquire(blocking=False)


def test_nothing_is_copied_before_the_steps_own_moves(taker: Taker, giver: Peer) -> None:
    later = Transfer("b", offer_of(giver.place, [5]), ((5, 1),))
    taker.begin(giver.place, SCATTERED)
    taker.connector.allocated(later)
    assert taker.ended().request == "a"
    taker.check(SCATTERED)
    taker.connector.load()
    assert taker.ended().request == "b"
    taker.check([*SCATTERED, (5, 1)])


def test_a_request_has_one_transfer_at_a_time(taker: Taker, giver: Peer) -> None:
    transfer = taker.begin(giver.place, SCATTERED)
    with pytest.raises(ValueError, match="request a is being transferred already"):
        taker.connector.allocated(transfer)
    taker.ended()
    taker.begin(giver.place, SCATTERED)
    assert taker.ended().error == ""


@pytest.mark.parametrize("pairs", [[(0, NUM_BLOCKS)], [(0, -1)], [(SHAPE[0], 0)]])
def test_blocks_that_are_in_no_pool_are_not_begun(taker: Taker, giver: Peer, pairs: list[tuple[int, int]]) -> None:
    transfer = Transfer("a", offer_of(giver.place, [0]), tuple(pairs))
    with pytest.raises(OtherLayout, match="blocks must lie in"):
        taker.connector.allocated(transfer)
    taker.begin(giver.place, SCATTERED)
    assert taker.ended().error == ""


def test_one_that_is_cancelled_before_it_is_loaded_ends_at_once(taker: Taker, giver: Peer) -> None:
    transfer = Transfer("a", offer_of(giver.place, [5]), ((5, 1),))
    taker.connector.allocated(transfer)
    taker.connector.cancel("a")
    taker.connector.cancel("nobody")
    (ended,) = taker.connector.poll()
    assert (ended.request, ended.error) == ("a", CANCELLED)
    taker.connector.load()
    taker.begin(giver.place, SCATTERED, name="b")
    assert taker.ended().request == "b"
    taker.check(SCATTERED)


def test_one_that_is_cancelled_while_it_copies_ends_between_two_blocks(taker: Taker, giver: Peer) -> None:
    taker.moment = lambda look: taker.connector.cancel("a") if look == 5 else None
    taker.begin(giver.place, SCATTERED)
    ended = taker.ended()
    assert ended.error == CANCELLED
    taker.check(SCATTERED[:5])
    taker.connector.cancel("a")  # it is over
    assert taker.connector.poll() == []


def test_one_that_is_cancelled_while_it_waits_for_another_copies_nothing(taker: Taker, giver: Peer) -> None:
    """And nobody is told of its end before: until then its blocks are the connector's."""
    reached, go_on = threading.Event(), threading.Event()

    def hold(look: int) -> None:
        if look == 2:
            reached.set()
            assert go_on.wait(60)

    taker.moment = hold
    taker.begin(giver.place, SCATTERED)
    assert reached.wait(60)
    taker.connector.allocated(Transfer("b", offer_of(giver.place, [5], lease="lease-2"), ((5, 1),)))
    taker.connector.load()
    taker.connector.cancel("b")
    assert taker.connector.poll() == []
    go_on.set()
    assert taker.woken.acquire(timeout=60)
    assert taker.woken.acquire(timeout=60)
    first, second = taker.connector.poll()
    assert (first.request, first.error) == ("a", "")
    assert (second.request, second.lease, second.error) == ("b", "lease-2", CANCELLED)
    taker.check(SCATTERED)


@pytest.mark.parametrize("look", [1, 10, len(SCATTERED) + 1], ids=["before", "within", "after the last block"])
def test_what_is_copied_past_the_deadline_is_worth_nothing(taker: Taker, giver: Peer, look: int) -> None:
    """The clock is looked at once more when all is copied."""

    def expire(count: int) -> None:
        if count == look:
            taker.now = 160.25

    taker.moment = expire
    taker.begin(giver.place, SCATTERED, deadline=160.0)
    assert taker.ended().error == "the lease of prefill-0's blocks has ended 0.2 s ago"
    taker.check(SCATTERED[: look - 1])


def test_at_the_deadline_itself_it_is_too_late(taker: Taker, giver: Peer) -> None:
    """From then on the engine that offers may use its blocks for others."""

    def expire(count: int) -> None:
        if count == len(SCATTERED) + 1:
            taker.now = 160.0

    taker.moment = expire
    taker.begin(giver.place, SCATTERED, deadline=160.0)
    assert taker.ended().error == "the lease of prefill-0's blocks has ended 0.0 s ago"


@pytest.mark.parametrize(("seconds", "error"), [(20.0, ""), (20.5, "prefill-0's blocks were not here within 20 s")])
def test_what_takes_too_long_is_given_up(giver: Peer, seconds: float, error: str) -> None:
    """Waiting for others included; at a piece's end, whose blocks are then the connector's no more."""
    taker = Taker(patience=20.0)

    def wait(count: int) -> None:
        if count == 5:
            taker.now = 100.0 + seconds

    taker.moment = wait
    taker.begin(giver.place, SCATTERED)
    assert taker.ended().error == error
    taker.check(SCATTERED[:4] if error else SCATTERED)
    taker.close()


def test_what_is_copied_in_time_is_good(taker: Taker, giver: Peer) -> None:
    def late(count: int) -> None:
        if count == len(SCATTERED) + 1:
            taker.now = 159.9

    taker.moment = late
    taker.begin(giver.place, SCATTERED, deadline=160.0)
    ended = taker.ended()
    assert ended.error == ""
    assert ended.seconds == pytest.approx(59.9)


def test_a_giver_killed_while_its_blocks_are_copied_costs_nothing(taker: Taker, mortal: Peer) -> None:
    """What is mapped stays, and nobody writes it any more. The next transfer says that the engine is gone."""

    def kill(look: int) -> None:
        if look == 4:
            mortal.kill()

    taker.moment = kill
    taker.begin(mortal.place, SCATTERED)
    assert taker.ended().error == ""
    assert mortal.process.returncode is not None
    taker.check(SCATTERED)
    taker.begin(mortal.place, SCATTERED)
    assert taker.ended().error == "prefill-0 has ended, and its blocks with it"
    with pytest.raises(PoolGone, match="prefill-0 has ended"):
        taker.connector.available(offer_of(mortal.place, [1]), 0)


def test_pools_of_the_dead_are_let_go_though_nothing_is_transferred(
    taker: Taker, mortal: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.transfer.pool_memory.FORGET_SECONDS", 0.01)
    taker.begin(mortal.place, SCATTERED)
    taker.ended()
    assert mapped(mortal.place)
    mortal.kill()
    deadline = time.monotonic() + 60
    while mapped(mortal.place):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_copy_that_fails_costs_one_transfer(taker: Taker, giver: Peer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    taker.pool.flags.writeable = False
    taker.begin(giver.place, SCATTERED)
    assert taker.ended().error.startswith("copying prefill-0's blocks failed: ValueError: assignment destination")
    taker.pool.flags.writeable = True
    taker.begin(giver.place, SCATTERED)
    assert taker.ended().error == ""


def test_a_failure_is_told_though_it_cannot_be_logged(
    taker: Taker, giver: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what comes after it is copied."""

    def full(*_: object, **__: object) -> None:
        raise OSError("no space is left")

    monkeypatch.setattr("engine.transfer.shared_memory.event", full)
    taker.pool.flags.writeable = False
    taker.begin(giver.place, SCATTERED)
    assert taker.ended().error.startswith("copying prefill-0's blocks failed")
    taker.pool.flags.writeable = True
    taker.begin(giver.place, SCATTERED)
    assert taker.ended().error == ""


def test_a_copy_can_be_made_to_fail_or_to_take_longer(giver: Peer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    taker = Taker(faults=("transfer-error@2", "slow-transfer=0.001@3"))
    errors = []
    for _ in range(3):
        taker.begin(giver.place, SCATTERED)
        errors.append(taker.ended().error)
    assert [bool(error) for error in errors] == [False, True, False]
    assert "InjectedError: an error made to happen by --fault transfer-error@2" in errors[1]
    taker.check(SCATTERED)
    taker.close()


def test_a_pool_that_may_not_be_read_is_told(taker: Taker, giver: Peer) -> None:
    place = msgspec.structs.replace(giver.place, path="/proc/self/mem/x")
    taker.begin(place, SCATTERED)
    told = "prefill-0's blocks cannot be read: cannot open /proc/self/mem/x: Not a directory"
    assert taker.ended().error == told
    with pytest.raises(Unavailable, match=told):
        taker.connector.available(offer_of(place, [1]), 0)


def test_an_offer_is_worth_the_tokens_that_are_not_here(taker: Taker, giver: Peer) -> None:
    offer = offer_of(giver.place, [1, 2, 3], tokens=10)
    available = taker.connector.available
    assert [available(offer, found) for found in (0, 4, 8, 12)] == [10, 6, 2, 0]


def test_an_offer_that_cannot_be_taken_says_why(taker: Taker, giver: Peer) -> None:
    replace = msgspec.structs.replace
    place, blocks = giver.place, [1, 2, 3]

    def why(**changes: Any) -> str:
        with pytest.raises(Unavailable) as told:
            taker.connector.available(offer_of(**{"place": place, "blocks": blocks, **changes}), 0)
        return str(told.value)

    assert why(compatibility="other") == "prefill-0 has another model or layout than a model"
    assert why(place=replace(place, host="there")) == (
        "prefill-0 is on there, and this engine reads those of its host alone"
    )
    assert "the pools' blocks must be alike" in why(place=replace(place, shape=(*SHAPE[:5], 9)))
    assert "blocks must lie in 0..47" in why(blocks=[1, 2, 48])
    for wrong in ({"tokens": 8}, {"tokens": 13}, {"block_bytes": 2 * BLOCK_BYTES}):
        assert "prefill-0 offers 3 blocks for" in why(**wrong)
    assert why(place=replace(place, name="of before")) == "prefill-0 has ended, and its blocks with it"
    with pytest.raises(LeasePassed, match=r"the lease of prefill-0's blocks has ended 0\.0 s ago"):
        taker.connector.available(offer_of(place, blocks, deadline=100.0), 0)


def test_what_is_offered_can_be_taken(taker: Taker) -> None:
    other = Taker("prefill-0")
    other.pool[9] = 1234
    offer = other.connector.export("a", [8, 9], 7, 130.0)
    assert (offer.engine, offer.tokens, offer.block_bytes, offer.deadline) == ("prefill-0", 7, BLOCK_BYTES, 130.0)
    assert taker.connector.available(offer, 4) == 3
    taker.connector.allocated(Transfer("a", offer, ((9, 2),)))
    taker.connector.load()
    assert taker.ended() == Ended("a", offer.lease, 0.0)
    assert (taker.pool[2] == 1234).all()
    other.connector.release(offer.lease)
    other.connector.release("one that has expired")
    other.close()


def test_no_lease_comes_twice_though_the_engine_is_started_again() -> None:
    leases = []
    for _ in range(2):
        life = Taker("prefill-0")
        leases += [life.connector.export("a", [0], 4, 130.0).lease for _ in range(3)]
        life.close()
    assert len(set(leases)) == 6
    assert all(lease.startswith("prefill-0-") for lease in leases)


def test_a_connector_tells_what_others_must_have_in_common_with_it(taker: Taker) -> None:
    assert taker.connector.compatibility == Compatibility("same", "a model")
