"""Limits that processes share are kept to by all of them together, and none has a part that it does not use."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile

import pytest

from loadgen.limits import Budget, SharedSlots, Tickets, open_limits

TAKE = """
import sys
from loadgen.limits import Tickets
tickets = Tickets(int(sys.argv[1]), 3000)
while (number := tickets.take()) is not None:
    print(number)
"""


def test_each_number_is_given_once_in_whichever_process_asks() -> None:
    with open_limits(3000, None, 3) as limits:
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", TAKE, str(limits.sent)], stdout=subprocess.PIPE, pass_fds=[limits.sent]
            )
            for _ in range(3)
        ]
        given = [[int(line) for line in process.communicate()[0].split()] for process in processes]
        assert sorted(number for numbers in given for number in numbers) == list(range(3000))
        assert all(numbers == sorted(numbers) for numbers in given)
        assert Tickets(limits.sent, 3000).take() is None


def test_without_files_in_memory_there_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with open_limits(2, None, 1) as limits:
        assert [Tickets(limits.sent, 2).take() for _ in range(3)] == [0, 1, None]


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files in memory are Linux's")
def test_no_room_on_a_disk_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    with open_limits(1, 1, 2) as limits:
        assert Tickets(limits.sent, 1).take() == 0


def test_a_budget_is_over_with_its_last_ticket_and_when_it_is_ended() -> None:
    with open_limits(2, None, 1) as limits:
        budgets = [limits.open_budget(), limits.open_budget()]  # of two processes
        assert [budget.take() for budget in budgets] == [True, True]
        assert not any(budget.over for budget in budgets)
        assert not budgets[0].take()
        assert budgets[0].over
    endless = Budget()
    assert all(endless.take() for _ in range(10))
    endless.end()
    assert not endless.take()


async def test_slots_go_to_whichever_process_waits() -> None:
    with open_limits(None, 2, 3) as limits:
        one, other = limits.open_slots(), limits.open_slots()
        assert isinstance(one, SharedSlots)
        await one.acquire()
        await one.acquire()  # all of them, though they are two processes
        waiting = asyncio.create_task(other.acquire())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        one.release()
        await asyncio.wait_for(waiting, 10)


async def test_who_waits_in_a_process_is_served_in_turn_and_who_left_is_passed_over() -> None:
    with open_limits(None, 1, 2) as limits:
        slots = limits.open_slots()
        await slots.acquire()
        served: list[int] = []

        async def wait(number: int) -> None:
            await slots.acquire()
            served.append(number)
            await asyncio.sleep(0)
            slots.release()

        tasks = [asyncio.create_task(wait(number)) for number in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        slots.release()
        await asyncio.wait(tasks, timeout=10)
        assert served == [0, 2, 3]
        await asyncio.wait_for(slots.acquire(), 10)  # none was lost


async def test_a_slot_that_came_to_who_is_cancelled_is_given_back() -> None:
    with open_limits(None, 1, 2) as limits:
        slots = limits.open_slots()
        assert isinstance(slots, SharedSlots)
        await slots.acquire()
        waiting = asyncio.create_task(slots.acquire())
        await asyncio.sleep(0)
        slots.release()
        slots._serve()  # it is served, and has not run since
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(slots.acquire(), 10)


@pytest.mark.parametrize("processes", [1, 2])
async def test_there_are_as_many_slots_as_asked_for(processes: int) -> None:
    with open_limits(None, 3, processes) as limits:
        slots = limits.open_slots()
        for _ in range(3):
            await asyncio.wait_for(slots.acquire(), 10)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slots.acquire(), 0.05)
