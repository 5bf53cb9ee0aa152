"""Blocks of other hosts: asked of the parent, once each, and over when it says so."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from engine.messages import Pull, Pulled
from engine.transfer.connector import Ended, Transfer, Unavailable
from engine.transfer.parent import ParentConnector
from engine.transfer.pool_memory import read_blocks, write_blocks
from engine.transfer.shared_memory import CANCELLED
from tests.engine.transfer.peer import Peer, offer_of
from tests.engine.transfer.test_shared_memory import SCATTERED, Taker


class Far(Taker):
    """A taker whose parent does as it is told, when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.pulls: list[Pull] = []
        self.parent = ParentConnector(self.connector, self.pulls.append, lambda: self.now)

    def fill(self, pull: Pull) -> None:
        """What the parent does, by two processes."""
        sources, targets = zip(*pull.pairs, strict=True)
        write_blocks(pull.into, targets, read_blocks(pull.offer.place, sources))


@pytest.fixture
def taker() -> Iterator[Far]:
    taker = Far()
    yield taker
    taker.close()


@pytest.fixture(scope="module")
def giver() -> Iterator[Peer]:
    peer = Peer("there")
    yield peer
    peer.kill()


@pytest.fixture
def transfer(giver: Peer) -> Transfer:
    return Transfer("a", offer_of(giver.place, [source for source, _ in SCATTERED], deadline=1.0), tuple(SCATTERED))


def test_the_parent_is_asked_once_and_what_it_fills_is_there(taker: Far, transfer: Transfer) -> None:
    parent = taker.parent
    assert parent.available(transfer.offer, 8) == transfer.offer.tokens - 8  # the deadline is on another host's clock
    parent.allocated(transfer)
    assert taker.pulls == []
    parent.load()
    parent.load()
    (pull,) = taker.pulls
    assert pull == Pull("a", transfer.offer, taker.place, transfer.pairs)
    taker.fill(pull)
    assert parent.poll() == []
    taker.now += 2.5
    parent.pulled(Pulled("a", "lease-1"))
    assert parent.poll() == [Ended("a", "lease-1", 2.5)]
    assert parent.poll() == []
    taker.check(SCATTERED)


def test_what_the_parent_could_not_do_is_told(taker: Far, transfer: Transfer) -> None:
    taker.parent.allocated(transfer)
    taker.parent.load()
    taker.parent.pulled(Pulled("a", "lease-1", "the node is gone"))
    assert taker.parent.poll() == [Ended("a", "lease-1", 0.0, "the node is gone")]


def test_a_parent_that_cannot_be_asked_costs_that_transfer_alone(taker: Far, transfer: Transfer) -> None:
    def pull(message: Pull) -> None:
        if message.request == "a":
            raise OSError("the line is down")
        taker.pulls.append(message)

    parent = ParentConnector(taker.connector, pull, lambda: taker.now)
    for request in "ab":
        parent.allocated(Transfer(request, transfer.offer, transfer.pairs))
    parent.load()
    (ended,) = parent.poll()
    assert (ended.request, ended.error) == ("a", "asking for prefill-0's blocks failed: OSError: the line is down")
    assert [pull.request for pull in taker.pulls] == ["b"]


def test_answers_that_nobody_waits_for_change_nothing(taker: Far, giver: Peer, transfer: Transfer) -> None:
    parent = taker.parent
    answer = Pulled("a", "lease-1")
    parent.pulled(answer)
    parent.allocated(transfer)
    parent.pulled(answer)  # it cannot be that of this one, which the parent has not been told of
    assert parent.poll() == []
    parent.load()
    parent.pulled(answer)
    parent.pulled(answer)
    assert len(parent.poll()) == 1
    again = Transfer("a", offer_of(giver.place, [3], lease="lease-2"), ((3, 5),))
    parent.allocated(again)
    parent.load()
    parent.pulled(answer)  # a second time: the parent still writes for lease-2
    assert parent.poll() == []
    parent.pulled(Pulled("a", "lease-2"))
    assert [ended.lease for ended in parent.poll()] == ["lease-2"]


def test_one_that_is_cancelled_ends_at_once_or_when_the_parent_writes_no_more(taker: Far, transfer: Transfer) -> None:
    parent = taker.parent
    parent.allocated(transfer)
    parent.cancel("a")
    assert [ended.error for ended in parent.poll()] == [CANCELLED]
    parent.load()
    assert taker.pulls == []
    parent.allocated(transfer)
    parent.load()
    parent.cancel("a")
    parent.cancel("nobody")
    assert parent.poll() == []
    parent.pulled(Pulled("a", "lease-1"))
    assert len(parent.poll()) == 1


def test_a_request_has_one_transfer_at_a_time_near_or_far(taker: Far, transfer: Transfer) -> None:
    near = Transfer("a", offer_of(taker.place, [0]), ((0, 1),))
    for first, second in ((transfer, near), (near, transfer)):
        taker.parent.allocated(first)
        with pytest.raises(ValueError, match="request a is being transferred already"):
            taker.parent.allocated(second)
        taker.parent.cancel("a")
        assert len(taker.parent.poll()) == 1


def test_pools_of_its_own_host_are_read_without_the_parent(taker: Far) -> None:
    near = Peer("here")
    transfer = Transfer("a", offer_of(near.place, [source for source, _ in SCATTERED]), tuple(SCATTERED))
    assert taker.parent.available(transfer.offer, 0) == transfer.offer.tokens
    taker.parent.allocated(transfer)
    taker.parent.load()
    assert taker.woken.acquire(timeout=60)
    assert [ended.error for ended in taker.parent.poll()] == [""]
    assert taker.pulls == []
    taker.check(SCATTERED)
    near.kill()


def test_an_offer_of_another_model_is_not_asked_for(taker: Far, giver: Peer) -> None:
    with pytest.raises(Unavailable, match="prefill-0 has another model or layout"):
        taker.parent.available(offer_of(giver.place, [0], compatibility="other"), 0)


def test_what_it_offers_is_in_its_own_pool(taker: Far) -> None:
    offer = taker.parent.export("a", [3], 4, 130.0)
    assert (offer.place, offer.engine) == (taker.place, "decode-0")
    assert taker.parent.compatibility == taker.connector.compatibility
    taker.pool[3] = 7
    assert np.array_equal(read_blocks(offer.place, offer.blocks), taker.pool[[3]])
    taker.parent.release(offer.lease)
