import random

import pytest

from engine.request import Request
from engine.sampling_params import SchedulingParams
from engine.waiting_queue import QUEUE_KEYS, WaitingQueue
from tests.engine.mirror import greedy


def request(sequence: int, length: int = 4, priority: int = 0) -> Request:
    scheduling = SchedulingParams(priority=priority)
    return Request(f"r{sequence}", [1] * length, greedy(8), float(sequence), sequence, scheduling)


def order(queue: WaitingQueue) -> list[int]:
    return [one.sequence for one in queue]


def filled(policy: str) -> tuple[WaitingQueue, list[Request]]:
    requests = [request(0, 9, 1), request(1, 2, 2), request(2, 5, 0), request(3, 2, 1)]
    queue = WaitingQueue(policy)  # type: ignore[arg-type]
    for one in requests:
        queue.add(one)
    return queue, requests


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("fcfs", [0, 1, 2, 3]), ("priority", [2, 0, 3, 1]), ("shortest_prefill", [1, 3, 2, 0])],
)
def test_the_order_of_each_policy_and_ties_by_arrival(policy, expected):
    queue, _ = filled(policy)
    assert order(queue) == expected
    assert [one.sequence for one in queue.first(2)] == expected[:2]
    assert len(queue) == 4


def test_one_that_comes_back_takes_its_place_by_arrival():
    queue, requests = filled("fcfs")
    queue.remove(requests[1])
    assert requests[1] not in queue
    queue.add(requests[1])
    assert order(queue) == [0, 1, 2, 3]


def test_a_request_whose_kv_waits_in_host_memory_has_a_short_prefill():
    queue, _ = filled("shortest_prefill")
    swapped = request(4, 100)
    swapped.num_swapped = 99
    queue.add(swapped)
    assert order(queue)[0] == 4


def test_the_order_changes_with_the_policy():
    queue, requests = filled("fcfs")
    queue.reorder("shortest_prefill")
    assert order(queue) == [1, 3, 2, 0]
    queue.remove(requests[3])
    queue.add(request(4, 1))
    queue.reorder("priority")
    assert order(queue) == [2, 4, 0, 1]
    assert queue.oldest() is requests[0]


def test_the_oldest_is_first_once_it_is_overdue_and_is_there_once():
    queue, requests = filled("shortest_prefill")
    assert [one.sequence for one in queue.first(2, overdue_before=0.0)] == [1, 3]
    assert [one.sequence for one in queue.first(2, overdue_before=0.5)] == [0, 1, 3]
    assert [one.sequence for one in queue.first(9, overdue_before=0.5)] == [0, 1, 3, 2]
    queue.remove(requests[0])
    assert queue.oldest() is requests[1]


def test_nothing_is_first_in_an_empty_queue():
    queue = WaitingQueue("fcfs")
    assert queue.oldest() is None
    assert queue.first(3, overdue_before=1.0) == []


def test_only_one_that_waits_can_be_removed():
    queue, requests = filled("fcfs")
    queue.remove(requests[0])
    with pytest.raises(KeyError):
        queue.remove(requests[0])
    assert order(queue) == [1, 2, 3]


def test_arrivals_do_not_heap_up_behind_one_that_stays():
    queue = WaitingQueue("shortest_prefill")
    queue.add(request(0, 100))
    for sequence in range(1, 5000):
        short = request(sequence, 1)
        queue.add(short)
        queue.remove(short)
        oldest = queue.oldest()
        assert oldest is not None
        assert oldest.sequence == 0
    assert len(queue._arrivals) < 100


@pytest.mark.parametrize("policy", list(QUEUE_KEYS))
def test_any_coming_and_going_keeps_the_order(policy):
    chance = random.Random(policy)
    queue, waiting = WaitingQueue(policy), []
    key = QUEUE_KEYS[policy]
    for sequence in range(500):
        if waiting and chance.random() < 0.45:
            queue.remove(waiting.pop(chance.randrange(len(waiting))))
        else:
            waiting.append(request(sequence, chance.randint(1, 5), chance.randint(0, 2)))
            queue.add(waiting[-1])
        assert list(queue) == sorted(waiting, key=key)
        assert queue.oldest() is min(waiting, key=lambda one: one.sequence, default=None)
