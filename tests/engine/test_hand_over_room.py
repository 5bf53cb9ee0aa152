"""Room for what is received: blocks, rows and tokens, beside those that run, wait and grow."""

from __future__ import annotations

from engine.protocol import Control
from tests.engine.handed import ENDLESS, PROMPT, handed, statuses
from tests.engine.handing import Handing
from tests.engine.mirror import greedy


def test_who_has_no_room_for_its_first_row_waits_with_its_offer() -> None:
    """It would have to give up at once what was just copied for it."""
    both = Handing(blocks=(32, 12))
    both.add([5] * 32, greedy(2, **ENDLESS), side="d")  # it is sent from there, and holds 8 blocks
    both.step("d")
    other = both.passing.pop()
    handed(both, prompt=PROMPT[:16])
    both.place(both.passing[0])
    _, record = both.step("d")
    assert statuses(both, "d") == {"r0": "sending", "r1": "waiting"}
    assert (record.queue.head.cause, record.queue.head.needed_blocks) == ("blocks", 5)
    both.cores["d"].release([other.offer.lease])
    both.passing.append(other)
    other.offer = None
    both.run()
    assert both.cores["d"].counters.preemptions == 0
    assert both.cores["d"].counters.received == 1


def test_an_older_request_is_not_preempted_for_one_that_has_just_joined() -> None:
    both = Handing(blocks=(32, 12))
    both.add([8] * 17, greedy(30, **ENDLESS), side="d", hand_over=False)
    both.step("d")
    handed(both, max_tokens=20)
    both.place(both.passing[0])
    both.step("d")
    core, connector = both.cores["d"], both.connectors["d"]
    older = core.scheduler.requests["r0"]
    job = connector.jobs["r1"]
    while core.pool.num_available or older.num_tokens % 4 != 1:
        both.step("d")
        job.left = list(job.transfer.pairs)
    while connector.jobs:  # all is there in the very step in which no block is left for the other's next token
        both.tick()
    _, record = both.step("d")
    assert [joined.request for joined in record.joined] == ["r1"]
    assert record.preempted == ()
    _, record = both.step("d")
    assert [lost.request for lost in record.preempted] == ["r1"], "the last to come, in the next one"
    both.run()
    assert older.preemptions == 0


def test_a_prompt_that_this_step_has_too_few_tokens_for_holds_up_no_offer() -> None:
    both = Handing(blocks=(32, 64), control=Control(max_num_batched_tokens=12, chunked_prefill=False))
    both.add([8] * 8, greedy(3, **ENDLESS), side="d", hand_over=False)
    both.add([9] * 10, greedy(3, **ENDLESS), side="d", hand_over=False)
    handed(both)
    both.place(both.passing[0])
    both.add([6] * 2, greedy(3, **ENDLESS), side="d", hand_over=False)
    _, record = both.step("d")
    assert statuses(both, "d") == {"r0": "running", "r1": "waiting", "r2": "receiving", "r3": "waiting"}
    assert record.queue.head.request == "r1"
    assert record.queue.head.cause == "tokens"
    both.run()


def test_no_prompt_waits_for_ever_behind_what_is_received() -> None:
    """Each row takes a token of each step: were there as many as tokens, none would be left for a prompt."""
    both = Handing(blocks=(64, 96), control=Control(max_num_batched_tokens=4, max_num_seqs=64))
    for index in range(3):
        handed(both, prompt=[index] * 9, max_tokens=40)
        both.place(both.passing[0])
    both.add([9] * 6, greedy(3, **ENDLESS), side="d", hand_over=False)
    for index in range(12):
        handed(both, prompt=[10 + index] * 9, max_tokens=40)
        both.place(both.passing[0])
        for _ in range(4):
            both.tick()
        both.step("d")
        assert len([one for one in statuses(both, "d").values() if one in ("running", "receiving")]) <= 4
    assert both.ends == {"r3": "length"}
    both.run()
