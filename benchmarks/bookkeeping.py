"""What planning a step and keeping its books cost, without a model: the engine core over a runner that only counts.

`python -m benchmarks.bookkeeping [--steps N] [--json FILE]`. All requests decode, on a pool of 100,000 blocks of 16:
first with an empty prefix cache, then with one that fills the pool, so that each new block evicts another.
Planning is admission, growth and the plan; bookkeeping is the commit, the news for those who asked and the record.
Turning the record into JSON is shown apart. Figures are medians of the steps, in this process's own CPU time, so that
what else runs on the machine counts as little as can be.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from engine.core import EngineCore
from engine.garbage import look_rarely
from engine.plan import PlannedRow, Sampled, StepPlan, StepResult
from engine.protocol import Control, EngineInfo, encode
from engine.sampling_params import SamplingParams

RUNNING = (16, 64, 256, 1000)
NUM_BLOCKS, BLOCK_SIZE = 100_000, 16
WARM_STEPS = 40


class CountingRunner:
    """Gives every row that samples the same token. `seconds` is the CPU time of its latest step."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def move(self, plan: StepPlan) -> float:
        self.seconds = 0.0
        return 0.0

    def compute(self, rows: Sequence[PlannedRow]) -> StepResult:
        begun = time.thread_time()
        token = Sampled(7)
        sampled = {draw.request_id: token for row in rows for draw in row.draws}
        self.seconds = time.thread_time() - begun
        return StepResult(sampled, 0.0, 0.0, 0.0)


class Cost(msgspec.Struct, frozen=True):
    """Median milliseconds of one step; `worst` is the longest step."""

    running: int
    full_cache: bool
    planning: float
    bookkeeping: float
    together: float
    worst: float
    encoding: float
    record_bytes: int


def measure(running: int, steps: int, full_cache: bool) -> Cost:
    info = EngineInfo("none", "none", "none", BLOCK_SIZE, NUM_BLOCKS, 23_040, 8192, "0")
    runner = CountingRunner()
    core = EngineCore(runner, info, Control(max_num_seqs=4096, max_num_batched_tokens=1 << 20), clock=time.monotonic)
    sampling = SamplingParams(max_tokens=WARM_STEPS + steps + 10, temperature=0.0)
    if full_cache:
        _fill_cache(core)
    for i in range(running):  # lengths that reach a block's end at different steps, as in life
        core.add(f"cmpl-{i:016x}", [*range(40 + i % 61), i], sampling)
    for _ in range(WARM_STEPS):
        core.step()
    look_rarely()  # as the engine's process does when it has started
    scheduler = core.scheduler
    plan = scheduler.plan
    planned = 0.0

    def timed_plan(now: float) -> StepPlan:
        nonlocal planned
        begun = time.thread_time()
        found = plan(now)
        planned = time.thread_time() - begun
        return found

    scheduler.plan = timed_plan  # type: ignore[method-assign]
    planning, whole, encoding = [], [], []
    data = b""
    for _ in range(steps):
        begun = time.thread_time()
        _, record = core.step()
        ended = time.thread_time()
        assert record is not None
        assert len(record.rows) == running
        data = encode(record)
        encoding.append(time.thread_time() - ended)
        planning.append(planned)
        whole.append(ended - begun - runner.seconds)
    books = [all_of_it - part for all_of_it, part in zip(whole, planning, strict=True)]
    planned_ms, books_ms, whole_ms, encoding_ms = (
        statistics.median(times) * 1e3 for times in (planning, books, whole, encoding)
    )
    return Cost(running, full_cache, planned_ms, books_ms, whole_ms, max(whole) * 1e3, encoding_ms, len(data))


def _fill_cache(core: EngineCore) -> None:
    """Serve prompts that differ until every block is cached, and then as many again."""
    longest = core.info.max_model_len - 1
    for i in range(2 * NUM_BLOCKS * BLOCK_SIZE // longest):
        core.add(f"fill{i}", [100 + i, *range(longest - 1)], SamplingParams(max_tokens=1))
    while core.has_work:
        core.step()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.bookkeeping", description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=400, help="measured steps of each load (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    arguments = parser.parse_args(argv)
    if arguments.steps < 1:
        parser.error(f"--steps: must be at least 1, got {arguments.steps}")
    costs = [measure(running, arguments.steps, full) for full in (False, True) for running in RUNNING]
    print("running  cache   planning  bookkeeping   together  per request     worst      JSON")
    for cost in costs:
        print(
            f"{cost.running:>7}  {'full' if cost.full_cache else 'empty':>5}{cost.planning:>8.3f} ms"
            f"{cost.bookkeeping:>10.3f} ms{cost.together:>8.3f} ms{cost.together / cost.running * 1e3:>10.2f} µs"
            f"{cost.worst:>7.2f} ms{cost.encoding:>7.3f} ms"
        )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([msgspec.structs.asdict(cost) for cost in costs], indent=1) + "\n")


if __name__ == "__main__":
    main()
