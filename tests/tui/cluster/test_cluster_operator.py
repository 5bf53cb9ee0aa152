"""What is sent to a cluster, what is told of it, and how it is taken back."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from engine.cluster.protocol import ClusterControl, encode_cluster
from tests.tui.cluster.clusters import busy
from tui.cluster.operator import ClusterOperator, Made
from tui.cluster.states import ClusterStates
from tui.engine_api import Refused


class Late:
    """A cluster that answers a turn later, and refuses what a test names."""

    def __init__(self) -> None:
        self.control = busy().control
        self.changes: list[dict[str, Any]] = []
        self.refused: dict[str, Any] = {}

    async def change_cluster(self, changes: dict[str, Any]) -> ClusterControl:
        self.changes.append(changes)
        await asyncio.sleep(0)
        if changes.items() & self.refused.items():
            raise Refused("it may not be so")
        self.control = msgspec.structs.replace(self.control, **changes)
        return self.control


@pytest.fixture
def hand():
    states, cluster, told = ClusterStates(), Late(), []
    states.take(busy(), encode_cluster(busy()))
    operator = ClusterOperator(cluster, states, False, lambda words, bad: told.append((words, bad)))  # type: ignore[arg-type]
    return operator, cluster, told


async def test_keys_pressed_before_the_cluster_answers_are_done_one_after_the_other(hand):
    operator, cluster, _ = hand
    await asyncio.gather(operator.change({"decode": 3}), operator.change({"decode": 4}))
    assert cluster.changes == [{"decode": 3}, {"decode": 4}]
    assert operator.control.decode == 4  # accepted, though no state has told it yet
    assert operator.made == [Made({"decode": 2}, {"decode": 3}), Made({"decode": 3}, {"decode": 4})]


async def test_what_a_change_was_before_is_never_what_another_was_refused(hand):
    operator, cluster, told = hand
    cluster.refused = {"decode": 3}
    await asyncio.gather(operator.change({"decode": 3}), operator.change({"decode": 4}))
    assert told[0] == ("decode workers was not changed: it may not be so", True)
    assert operator.made == [Made({"decode": 2}, {"decode": 4})]
    await operator.undo()
    assert cluster.changes[-1] == {"decode": 2}


async def test_each_undo_takes_another_change_back(hand):
    operator, cluster, told = hand
    await operator.change({"separate": False})
    await asyncio.gather(operator.change({"decode": 3}), operator.undo(), operator.undo(), operator.undo())
    assert cluster.changes == [{"separate": False}, {"decode": 3}, {"decode": 2}, {"separate": True}]
    assert operator.made == []
    assert told[-1] == ("nothing was changed from this screen", True)


async def test_the_next_key_begins_with_what_an_undo_restores(hand):
    operator, cluster, _ = hand
    await operator.change({"decode": 3})
    undoing = asyncio.create_task(operator.undo())
    await asyncio.sleep(0)
    assert cluster.changes == [{"decode": 3}, {"decode": 2}]
    assert cluster.control.decode == 3
    assert operator.control.decode == 2
    await undoing
