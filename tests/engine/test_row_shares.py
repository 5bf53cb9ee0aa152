"""Rows of the batch under `fair`: a client with a long queue leaves others theirs, and only while there are others."""

from collections import Counter

import pytest

from engine.core import EngineCore
from engine.protocol import Control
from engine.row_shares import LATELY, RowShares
from engine.sampling_params import SchedulingParams
from tests.engine.mirror import greedy, mirror_core

ENDLESS = {"ignore_eos": True}
ROWS = 10


def of(client: str) -> SchedulingParams:
    return SchedulingParams(client=client)


def test_rows_are_shared_by_those_who_have_requests_or_lately_had() -> None:
    shares = RowShares()
    assert shares.most(8, 0.0) == 8
    shares.came("a")
    assert shares.most(8, 0.0) == 8
    shares.came("b")
    shares.came("b")
    shares.came("c")
    assert shares.most(8, 0.0) == 3
    shares.went("b", 5.0)
    assert shares.most(8, 5.0) == 3
    shares.went("b", 5.0)
    assert shares.most(8, 5.0 + LATELY) == 3
    assert shares.most(8, 5.1 + LATELY) == 4
    shares.came("b")
    assert shares.most(8, 6.1 + LATELY) == 3
    assert shares.most(1, 6.1 + LATELY) == 1


def test_one_that_has_no_request_cannot_end_one() -> None:
    with pytest.raises(KeyError):
        RowShares().went("a", 0.0)


def flooded(policy: str) -> tuple[EngineCore, list[Counter[str]], int]:
    """Four calm clients that ask anew a step after each answer, and one with 60 long requests from the start; the rows
    of each client, step by step, and the answers of the calm ones."""
    control = Control(scheduling_policy=policy, max_num_seqs=ROWS, max_num_batched_tokens=200)
    core = mirror_core(num_blocks=400, control=control)
    asked, answered, batches = Counter(), 0, []
    for client in "abcd":
        core.add(f"{client}-0", [1] * 4, greedy(6, **ENDLESS), of(client))
    core.step()
    for number in range(60):
        core.add(f"flood-{number}", [2] * 4, greedy(50, **ENDLESS), of("flood"))
    again: list[str] = []
    for _ in range(300):
        for client in again:
            asked[client] += 1
            core.add(f"{client}-{asked[client]}", [1] * 4, greedy(6, **ENDLESS), of(client))
        outputs, record = core.step()
        ended = [output.request for output in outputs if output.finished]
        again = [name.split("-")[0] for name in ended if not name.startswith("flood")]
        answered += len(again)
        batches.append(Counter(row.request.split("-")[0] for row in record.rows))
    return core, batches, answered


def test_a_flood_takes_no_more_than_its_share_of_the_batch() -> None:
    core, batches, answered = flooded("fair")
    assert max(batch["flood"] for batch in batches) == ROWS // 5
    assert answered >= 4 * 300 // 8  # six tokens, and a step until the next one is asked
    assert core.scheduler.wait is not None
    assert core.scheduler.wait.cause == "share"
    _, batches, under_fcfs = flooded("fcfs")
    assert batches[-1]["flood"] == ROWS
    assert under_fcfs < answered / 4


def test_with_nobody_else_it_takes_all_of_it() -> None:
    core, _, _ = flooded("fair")
    for name in [name for name in core.scheduler.requests if not name.startswith("flood")]:
        core.abort(name)
    rows = []
    while core.has_work and len(rows) < 1500:
        record = core.step()[1]
        rows.append(len(record.rows))
    assert max(rows) == ROWS


def test_what_needs_more_rows_than_a_share_runs_when_its_client_has_none() -> None:
    control = Control(scheduling_policy="fair", max_num_seqs=ROWS, max_num_batched_tokens=200)
    core = mirror_core(num_blocks=400, control=control)
    core.add("calm", [1] * 4, greedy(50, **ENDLESS), of("calm"))
    for name in ("first", "second"):
        core.add(name, [2] * 4, greedy(6, **ENDLESS), of("many"), [f"{name}{i}" for i in range(6)])
    _, record = core.step()
    assert {joined.request for joined in record.joined if joined.parent is None} == {"calm", "first"}
    left = set()
    while core.has_work:
        left |= {one.request for one in core.step()[1].left}
    assert {"calm", "first", "second", "second5"} <= left


def test_what_waits_for_its_share_is_not_passed_by_its_own_clients_later_requests() -> None:
    """Or one with several answers would wait for as long as its client asks for single ones."""
    control = Control(scheduling_policy="fair", max_num_seqs=8, max_num_batched_tokens=200)
    core = mirror_core(num_blocks=400, control=control)
    core.add("other", [1] * 4, greedy(300, **ENDLESS), of("other"))
    for number in range(4):
        core.add(f"one-{number}", [2] * 4, greedy(6 + 3 * number, **ENDLESS), of("many"))
    core.step()
    core.add("four", [2] * 4, greedy(6, **ENDLESS), of("many"), [f"four{i}" for i in range(3)])
    begun: list[str] = []
    for number in range(4, 40):
        core.add(f"one-{number}", [2] * 4, greedy(6 + 3 * (number % 4), **ENDLESS), of("many"))
        begun += [joined.request for joined in core.step()[1].joined if joined.parent is None]
    assert begun[0] == "four"
    assert len(begun) > 1


def test_a_client_that_waits_for_its_share_is_in_nobodys_way() -> None:
    """However many of its requests come before theirs."""
    control = Control(scheduling_policy="fair", max_num_seqs=8, max_num_batched_tokens=200)
    core = mirror_core(num_blocks=400, max_model_len=500, control=control)
    for number in range(2):  # the second one awaits the prefix that the first computes, which cost more than all below
        core.add(f"other-{number}", [1] * 9, greedy(400 - 394 * number, **ENDLESS), of("other"))
    for number in range(3):
        core.add(f"one-{number}", [2] * 4, greedy(30, **ENDLESS), of("many"))
    core.step()
    for number in range(60):
        core.add(f"two-{number}", [2] * 4, greedy(1, **ENDLESS), of("many"), [f"two-{number}-1"])
    assert [joined.request for joined in core.step()[1].joined] == ["other-1"]
    assert core.scheduler.wait is not None
    assert (core.scheduler.wait.request, core.scheduler.wait.cause) == ("two-0", "share")
