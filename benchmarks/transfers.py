"""What moving a KV block costs beside computing it anew: copies, swaps out and in, and prefill.

`python -m benchmarks.transfers [--model M] [--dtype bfloat16] [--device cpu]`. Times are the median of many plans of
that many blocks, scattered through the pool. Preempting by swap moves each block out and in again; by recompute, its
tokens are prefilled again, here in chunks of 512 after no context, which is the least it can cost.
"""

# ruff: noqa: E402 (torch reads its threads' settings when it is imported)
from __future__ import annotations

from engine.threads import set_threads

set_threads()

import argparse
import random
import statistics
from collections.abc import Callable

import torch

from engine.build import SettingError, choose_device, choose_dtype
from engine.loading.errors import ModelError
from engine.loading.resolve import resolve_model
from engine.loading.weights import Weights
from engine.model import Decoder
from engine.plan import FixedRequest, PlannedRow, StepPlan
from engine.protocol import Copy
from engine.runner import ModelRunner
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams

BLOCK_SIZE, NUM_BLOCKS, CHUNK = 16, 1024, 512
COUNTS = (1, 4, 16, 64, 256)


def seconds_per_block(runner: ModelRunner, plan: Callable[[list[int], list[int]], StepPlan], count: int) -> float:
    """The median over plans of `count` random pairs of blocks (source, target)."""
    found = []
    for _ in range(max(5, 100 // count)):
        blocks = random.sample(range(NUM_BLOCKS), 2 * count)
        found.append(runner.move(plan(blocks[:count], blocks[count:])) / count)
    return statistics.median(found)


def copies(sources: list[int], targets: list[int]) -> StepPlan:
    return StepPlan((), copies=tuple(Copy("", s, t, BLOCK_SIZE) for s, t in zip(sources, targets, strict=True)))


def swap_out(sources: list[int], targets: list[int]) -> StepPlan:
    return StepPlan((), swap_out=tuple(zip(sources, targets, strict=True)))


def swap_in(sources: list[int], targets: list[int]) -> StepPlan:
    return StepPlan((), swap_in=tuple(zip(sources, targets, strict=True)))


def prefill_seconds(runner: ModelRunner) -> float:
    """Per token, of a whole chunk."""
    tokens = [i % runner.model.config.vocab_size for i in range(CHUNK)]
    request = FixedRequest("", tokens, CHUNK, range(CHUNK // BLOCK_SIZE), SamplingParams(max_tokens=1))
    rows = [PlannedRow(request, "prefill", 0, CHUNK, True)]
    results = [runner.compute(rows) for _ in range(6)][1:]
    return statistics.median(r.prepare + r.forward + r.sample for r in results) / CHUNK


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transfers", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    try:
        device = choose_device(arguments.device)
        dtype = choose_dtype(arguments.dtype, device)
        resolved = resolve_model(arguments.model)
    except (SettingError, ModelError) as error:
        parser.error(str(error))
    model = Decoder(resolved.config, Weights(resolved.folder, dtype, device), CHUNK)
    runner = ModelRunner(model, Sampler(resolved.eos_token_ids), NUM_BLOCKS, BLOCK_SIZE, NUM_BLOCKS)
    runner.blocks.fill_(1.0)  # memory that was never written is not there yet, and reads as fast as cache
    runner.host_blocks.fill_(1.0)
    block_bytes = runner.blocks[0].numel() * dtype.itemsize
    print(
        f"{arguments.model}, {str(dtype).removeprefix('torch.')} on {device}, {torch.get_num_threads()} threads; "
        f"blocks of {BLOCK_SIZE} tokens, {block_bytes:,} bytes\n"
    )
    print(f"{'blocks a plan':<16}{'copy us/block':>15}{'out us/block':>15}{'in us/block':>15}")
    for count in COUNTS:
        costs = [seconds_per_block(runner, plan, count) for plan in (copies, swap_out, swap_in)]
        print(f"{count:<16}" + "".join(f"{cost * 1e6:>15.0f}" for cost in costs), flush=True)
    token = prefill_seconds(runner)
    swap = costs[1] + costs[2]
    print(
        f"\nprefill: {1 / token:,.0f} tokens/s, {token * BLOCK_SIZE * 1e6:,.0f} us a block; "
        f"swapping {COUNTS[-1]} blocks out and in again costs {token * BLOCK_SIZE / swap:,.0f} times less"
    )


if __name__ == "__main__":
    main()
