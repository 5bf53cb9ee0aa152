"""What KV that goes from one engine to another costs: the copy, and the memory that others can read.

`python -m benchmarks.hand_over [--model M] [--dtype D] [--tokens N] [--rounds N] [--json FILE]`.

The copy: another process has a pool of the model's shape; a connector, as an engine has it, copies a prompt's blocks
out of it into a pool here, when they follow one another and when they are scattered. Beside it, in each round, a copy
of as many bytes between two arrays by one thread (numpy's, which is the C library's memcpy).
The calls: what a transfer between hosts begins and ends with, `read_blocks` of scattered blocks of the other process
and `write_blocks` into it: the first of each, which maps the pool, and those that find it mapped.
The memory: decode steps of several requests over long contexts, by one model with its pool in memory of its own, in
memory that others can read, with and without MADV_HUGEPAGE (which the kernel may or may not heed: the share of the pool
that is in pages of 2 MiB is told), and while a thread copies all the time.
"""

# ruff: noqa: E402 (torch reads its threads' settings when it is imported)
from __future__ import annotations

from engine.threads import set_threads

set_threads()

import argparse
import contextlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from benchmarks.figures import Spread
from engine.build import SettingError, choose_device, choose_dtype
from engine.cpu_decoder import CPUDecoder, load_decoder
from engine.loading.config import ModelConfig
from engine.loading.errors import ModelError
from engine.loading.resolve import ResolvedModel, resolve_model
from engine.loading.weights import Weights
from engine.model import Decoder
from engine.plan import FixedRequest, PlannedRow
from engine.runner import ModelRunner
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams
from engine.transfer.connector import Transfer
from engine.transfer.offer import Compatibility, Offer, PoolPlace
from engine.transfer.pool_memory import Pool, PoolMemory, pool_in, read_blocks, write_blocks
from engine.transfer.shared_memory import SharedMemoryConnector

BLOCK_SIZE = 16
ROWS, CONTEXT = 8, 1000  # of the decode steps
PEER = "--peer"


class CopyCost(msgspec.Struct, frozen=True):
    """Of one prompt's blocks: milliseconds from `load` to the call of `wake`, and of a memcpy of as many bytes."""

    blocks: str
    nbytes: int
    ms: Spread
    memcpy_ms: Spread
    ratio: Spread  # of the two, round by round

    @property
    def gigabytes_per_second(self) -> float:
        return self.nbytes / self.ms.median / 1e6


class CallCost(msgspec.Struct, frozen=True):
    """Milliseconds of a call that moves a prompt's blocks out of another process's pool, or into it."""

    call: str
    first_ms: float
    ms: Spread


class StepCost(msgspec.Struct, frozen=True):
    """Milliseconds of a decode step with the pool in that memory, and how it compares with memory of its own."""

    memory: str
    huge_share: float  # of the pool's pages
    ms: Spread
    ratio: Spread


def make_pool(config: ModelConfig, num_blocks: int, itemsize: int) -> tuple[PoolMemory, PoolPlace, Pool]:
    """A pool as the model's engine has it, every page of it used."""
    block = config.num_kv_heads * BLOCK_SIZE * config.head_dim
    layer = num_blocks * block
    shape = (num_blocks, config.num_layers, 2, config.num_kv_heads, BLOCK_SIZE, config.head_dim)
    strides = (block, 2 * layer, layer, BLOCK_SIZE * config.head_dim, config.head_dim, 1)
    memory = PoolMemory(num_blocks * config.num_layers * 2 * block * itemsize)
    place = memory.place("here", shape, strides, itemsize)
    pool = pool_in(memory.buffer, place)
    pool[:] = 1
    return memory, place, pool


def be_peer(model: str, num_blocks: int, itemsize: int) -> None:
    """The other process: tell where the pool is, and live until nobody listens."""
    _, place, _ = make_pool(resolve_model(model).config, num_blocks, itemsize)
    print(msgspec.json.encode(place).decode(), flush=True)
    sys.stdin.read()


def measure_calls(theirs: PoolPlace, blocks: Sequence[int], rounds: int) -> list[CallCost]:
    def milliseconds(call: Callable[[], object]) -> float:
        begun = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - begun)

    first = {"read_blocks": milliseconds(lambda: read_blocks(theirs, blocks))}
    data = read_blocks(theirs, blocks)
    first["write_blocks"] = milliseconds(lambda: write_blocks(theirs, blocks, data))
    found: dict[str, list[float]] = {name: [] for name in first}
    for _ in range(rounds):
        found["read_blocks"].append(milliseconds(lambda: read_blocks(theirs, blocks)))
        found["write_blocks"].append(milliseconds(lambda: write_blocks(theirs, blocks, data)))
    return [CallCost(name, first[name], _spread(times)) for name, times in found.items()]


def measure_copies(
    model: ResolvedModel, itemsize: int, tokens: int, rounds: int
) -> tuple[list[CopyCost], list[CallCost]]:
    count = -(-tokens // BLOCK_SIZE)
    num_blocks = 2 * count
    peer = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.hand_over", PEER, model.name, str(num_blocks), str(itemsize)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert peer.stdout is not None
    theirs = msgspec.json.decode(peer.stdout.readline(), type=PoolPlace)
    _, ours, pool = make_pool(model.config, num_blocks, itemsize)
    over = threading.Event()
    connector = SharedMemoryConnector("benchmark", Compatibility("", ""), ours, pool, over.set)
    block_bytes = pool[0].size * itemsize
    source = np.ones(count * block_bytes, np.uint8)
    target = np.ones_like(source)

    def seconds(pairs: Sequence[tuple[int, int]]) -> float:
        blocks = tuple(block for block, _ in pairs)
        offer = Offer("", "peer", "", theirs, blocks, tokens, block_bytes, time.monotonic() + 60)
        over.clear()
        connector.allocated(Transfer("", offer, tuple(pairs)))
        begun = time.perf_counter()
        connector.load()
        over.wait()
        taken = time.perf_counter() - begun
        (ended,) = connector.poll()
        assert not ended.error, ended.error
        return taken

    costs = []
    for name in ("in a row", "scattered"):
        seconds([(i, i) for i in range(num_blocks)])  # both pools are mapped page by page then
        copies, plain = [], []
        for _ in range(rounds):
            if name == "in a row":
                pairs = [(i, i + count // 2) for i in range(count)]
            else:
                numbers = range(num_blocks)
                pairs = list(zip(random.sample(numbers, count), random.sample(numbers, count), strict=True))
            copies.append(1e3 * seconds(pairs))
            begun = time.perf_counter()
            np.copyto(target, source)
            plain.append(1e3 * (time.perf_counter() - begun))
        ratios = [a / b for a, b in zip(copies, plain, strict=True)]
        costs.append(CopyCost(name, count * block_bytes, _spread(copies), _spread(plain), _spread(ratios)))
    connector.close()
    calls = measure_calls(theirs, random.sample(range(num_blocks), count), rounds)
    peer.communicate()
    return costs, calls


def measure_steps(
    resolved: ResolvedModel, model: Decoder | CPUDecoder, dtype: torch.dtype, rounds: int
) -> list[StepCost]:
    """In each round a step over each memory, in turn."""
    blocks_each = -(-(CONTEXT + 1) // BLOCK_SIZE)
    num_blocks = ROWS * blocks_each
    nbytes = num_blocks * BLOCK_SIZE * resolved.config.kv_bytes_per_token(dtype.itemsize)
    memories = {
        "its own": None,
        "shared": PoolMemory(nbytes, huge_pages=False),
        "shared, MADV_HUGEPAGE": PoolMemory(nbytes),
    }
    sampler = Sampler(resolved.eos_token_ids)
    runners = {}
    for name, memory in memories.items():
        buffer = None if memory is None else memory.buffer
        runner = runners[name] = ModelRunner(model, sampler, num_blocks, BLOCK_SIZE, 0, buffer)
        runner.blocks.normal_(generator=torch.Generator().manual_seed(1))
    order = random.Random(1).sample(range(num_blocks), num_blocks)  # as a pool is after a while
    rows = []
    for i in range(ROWS):
        tokens = [j % resolved.config.vocab_size for j in range(CONTEXT + 1)]
        table = order[i * blocks_each : (i + 1) * blocks_each]
        request = FixedRequest(str(i), tokens, CONTEXT, table, SamplingParams(max_tokens=2, temperature=0.0))
        rows.append(PlannedRow(request, "decode", CONTEXT, 1, True))
    busy = "shared, while a thread copies"
    found: dict[str, list[float]] = {name: [] for name in (*memories, busy)}
    for i in range(rounds + 2):
        for name in found:
            with _copying(nbytes) if name == busy else contextlib.nullcontext():
                begun = time.perf_counter()
                runners.get(name, runners["shared"]).compute(rows)
                if i >= 2:
                    found[name].append(1e3 * (time.perf_counter() - begun))
    shares = {name: 0.0 if memory is None else _huge_share(memory) for name, memory in memories.items()}
    own = found["its own"]
    return [
        StepCost(name, shares.get(name, 0.0), _spread(times), _spread([a / b for a, b in zip(times, own, strict=True)]))
        for name, times in found.items()
    ]


@contextlib.contextmanager
def _copying(nbytes: int) -> Iterator[None]:
    """A thread that copies for as long as this lasts, as one of a connector does."""
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    over = threading.Event()

    def copy() -> None:
        while not over.is_set():
            for begin in range(0, nbytes, 1 << 20):
                target[begin : begin + (1 << 20)] = source[begin : begin + (1 << 20)]

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _huge_share(memory: PoolMemory) -> float:
    """Which part of this process's mapping is in pages of 2 MiB."""
    _, _, lines = Path("/proc/self/smaps").read_text().partition(f"/memfd:{memory.name}")
    sizes = {}
    for line in lines.splitlines()[1:]:
        name, _, value = line.partition(":")
        if name in ("Rss", "ShmemPmdMapped"):
            sizes[name] = int(value.split()[0])
        if len(sizes) == 2:
            break
    return sizes["ShmemPmdMapped"] / sizes["Rss"] if sizes.get("Rss") else 0.0


def _spread(values: Sequence[float]) -> Spread:
    found = Spread.of(values)
    assert found is not None
    return found


def _told(spread: Spread, form: str) -> str:
    return f"{spread.median:{form}} ({spread.least:{form}} to {spread.most:{form}})"


def main(argv: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == [PEER]:
        be_peer(arguments[1], int(arguments[2]), int(arguments[3]))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hand_over", description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=3000, help="of the prompt handed over (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="of each measurement (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    options = parser.parse_args(arguments)
    if options.tokens < 1 or options.rounds < 1:
        parser.error("--tokens and --rounds must be at least 1")
    cpu = choose_device("cpu")
    try:
        dtype = choose_dtype(options.dtype, cpu)
        resolved = resolve_model(options.model)
    except (SettingError, ModelError) as error:
        parser.error(str(error))
    told = f"{options.model}, {str(dtype).removeprefix('torch.')}, {torch.get_num_threads()} threads"
    copies, calls = measure_copies(resolved, dtype.itemsize, options.tokens, options.rounds)
    print(f"{told}: {options.tokens:,} tokens are {copies[0].nbytes:,} bytes\n")
    print(f"{'blocks':<12}{'ms':>26}{'GB/s':>8}{'memcpy, ms':>26}{'ratio':>26}")
    for cost in copies:
        print(
            f"{cost.blocks:<12}{_told(cost.ms, '.1f'):>26}{cost.gigabytes_per_second:>8.1f}"
            f"{_told(cost.memcpy_ms, '.1f'):>26}{_told(cost.ratio, '.2f'):>26}",
            flush=True,
        )
    print(f"\n{'call':<14}{'first, ms':>12}{'ms':>26}")
    for call in calls:
        print(f"{call.call:<14}{call.first_ms:>12.1f}{_told(call.ms, '.1f'):>26}", flush=True)
    with Weights(resolved.folder, dtype, cpu) as weights:
        model = load_decoder(resolved.config, weights, CONTEXT + 1)
    steps = measure_steps(resolved, model, dtype, options.rounds)
    print(f"\ndecode steps of {ROWS} requests over {CONTEXT:,} tokens each")
    print(f"{'memory':<30}{'2 MiB pages':>12}{'ms':>26}{'ratio':>26}")
    for step in steps:
        print(f"{step.memory:<30}{step.huge_share:>12.0%}{_told(step.ms, '.1f'):>26}{_told(step.ratio, '.2f'):>26}")
    if options.json is not None:
        options.json.write_bytes(
            msgspec.json.format(msgspec.json.encode({"copies": copies, "calls": calls, "steps": steps}))
        )


if __name__ == "__main__":
    main()
