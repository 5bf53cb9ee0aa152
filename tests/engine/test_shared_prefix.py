"""500 sessions with one system prompt: what the pool holds and the ledger says (docs/kv-arithmetic.md, exercise 3)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from engine.cli import main
from engine.core import EngineCore
from engine.plan import PlannedRow, Sampled, StepPlan, StepResult
from engine.protocol import Control, EngineInfo, Record
from engine.sampling_params import SamplingParams

SESSIONS, SHARED, OWN, ANSWER = 500, 1000, 20, 12
BYTES_PER_TOKEN = 23_040  # SmolLM2-135M in bf16


class CountingRunner:
    def move(self, plan: StepPlan) -> float:
        return 0.0

    def compute(self, rows: Sequence[PlannedRow]) -> StepResult:
        sampled = {draw.request_id: Sampled(7) for row in rows for draw in row.draws}
        return StepResult(sampled, 0.0, 0.0, 0.0)


def test_500_sessions_hold_their_shared_prefix_once():
    info = EngineInfo("smollm2-135m", "bfloat16", "none", 16, 4000, BYTES_PER_TOKEN, 2048, "0")
    control = Control(max_num_seqs=SESSIONS, max_num_batched_tokens=4096)
    core = EngineCore(CountingRunner(), info, control, check_invariants=False)
    system = [token % 997 for token in range(SHARED)]
    for session in range(SESSIONS):
        own = [1000 + session, *range(OWN - 1)]
        core.add(f"s{session}", [*system, *own], SamplingParams(max_tokens=ANSWER, temperature=0.0))
    records: list[Record] = []
    most: Record | None = None
    while core.has_work:
        _, record = core.step()
        assert record is not None
        records.append(record)
        if sum(row.kind == "decode" for row in record.rows) == SESSIONS and not record.left:
            most = record
            tables = [request.table for request in core.scheduler.running]
    assert most is not None, "all sessions were never running at once"

    prefix = tables[0][:62]
    assert all(table[:62] == prefix for table in tables)
    own_blocks = [block for table in tables for block in table[62:]]
    assert len(set(own_blocks)) == len(own_blocks)
    # 8 tokens are left over; with the session's own they fill the blocks that it needs anyway but for one tail.
    assert all(len(table) - 62 <= (8 + OWN + ANSWER) // 16 + 1 for table in tables)

    # The prefix was computed once, and its last 8 tokens were copied, not computed, by the others.
    computed = sum(row.tokens for record in records for row in record.rows if row.kind == "prefill")
    assert computed == SHARED + SESSIONS * OWN
    joined = [joined for record in records for joined in record.joined]
    assert sorted(one.cached_tokens for one in joined) == [0] + [SHARED] * (SESSIONS - 1)
    assert most.sharing.copied_tokens == 8 * (SESSIONS - 1)

    saved = 62 * (SESSIONS - 1)
    assert most.sharing.saved_blocks == saved
    assert most.sharing.saved_bytes == saved * 16 * BYTES_PER_TOKEN  # 10.62 GiB of the 10.73 apart


def test_the_plan_tool_says_the_same(capsys):
    main(["plan", "--sessions", "500", "--shared-tokens", "1000", "--kv-bytes-per-token", "23040", "--json"])
    sharing = json.loads(capsys.readouterr().out)["sharing"]
    assert (sharing["shared_blocks"], sharing["left_over"], sharing["bytes_per_token"]) == (62, 8, BYTES_PER_TOKEN)
    assert sharing["tokens_apart"] == SESSIONS * SHARED
