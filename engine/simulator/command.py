"""`paged-engine simulate`: what an engine with given settings would do with a trace, without a model."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from engine.cli import (
    INTERRUPTED,
    LEAST_MODEL_LEN,
    USAGE,
    Adder,
    add_control,
    between,
    chosen_control,
    number,
    show,
    size,
    size_or_none,
)
from engine.config import DEFAULT_KV_MEMORY

if TYPE_CHECKING:
    from engine.simulator.prediction import Settings
    from engine.simulator.simulate import Simulator
    from engine.trace_lengths import TracedRequest

KV_BYTES_PER_TOKEN = 23_040  # SmolLM2-135M in bf16
LINE_EVERY = 5.0  # seconds between two lines of progress; on a terminal the line is rewritten
REFRESH_EVERY = 0.25
MAX_REQUESTS = 10_000_000
SPEEDS = (0.001, 1_000_000)  # a year at the slowest is 3e10 s, of which a float still tells microseconds
MAX_BLOCKS = 1 << 26  # the pool's books take some hundred bytes a block
COSTS = {
    "step": "every step",
    "token": "each computed token",
    "context": "each token of context that a row reads",
    "move": "each slot that is copied or swapped",
}


def add_command(commands: Any) -> None:
    """Add `simulate` to `paged-engine`'s subcommands."""
    parser = commands.add_parser(
        "simulate",
        help="predict hit rate, waste, preemptions and queueing for a trace, without a model",
        description="Replay a trace on the engine's own scheduler and block pool, on a simulated clock. Reads Mooncake "
        "JSON lines, Azure LLM inference CSV and chat traces (traces/README.md).",
    )
    parser.set_defaults(command="simulate", run=run)
    parser.add_argument("trace", type=Path, metavar="TRACE", help="the trace file")
    add = Adder(parser)
    add_length = Adder(parser, parser.add_mutually_exclusive_group())
    add_length("--repeat", type=between(1, 100_000), metavar="N", help="play the trace N times over")
    add_length(
        "--requests", type=between(1, MAX_REQUESTS), metavar="N", help="stop after N requests, repeating the trace"
    )
    add(
        "--repeat-as",
        choices=("new", "same"),
        default="new",
        help="a repetition is new text, or the same and finds what was cached (default: %(default)s)",
    )
    add(
        "--speed",
        type=number(*SPEEDS),
        default=1.0,
        metavar="X",
        help="arrivals and think times X times as fast (default: 1)",
    )
    add("--block-size", type=between(1, 1024), default=16, metavar="N", help="slots per KV block (default: 16)")
    add_pool = Adder(parser, parser.add_mutually_exclusive_group())
    add_pool(
        "--kv-memory", type=size, default=DEFAULT_KV_MEMORY, metavar="SIZE", help="for KV blocks (default: 512MiB)"
    )
    add_pool("--num-blocks", type=between(1, MAX_BLOCKS), metavar="N", help="instead: so many blocks")
    add_pool("--infinite", action="store_true", help="instead: as many blocks as are ever wanted, none evicted")
    add(
        "--kv-bytes-per-token",
        type=between(1),
        default=KV_BYTES_PER_TOKEN,
        metavar="N",
        help="of the model in mind (default: %(default)s, SmolLM2-135M in bf16)",
    )
    add("--swap-space", type=size_or_none, default=0, metavar="SIZE", help="host memory for swapped KV (default: 0)")
    add(
        "--max-model-len",
        type=between(LEAST_MODEL_LEN),
        metavar="N",
        help="tokens per request, prompt and answer together (default: what the trace's longest needs)",
    )
    add_control(add)
    add(
        "--cost",
        choices=("cpu", "none"),
        default="cpu",
        help="what a step takes: cpu as SmolLM2-135M does on two cores, none no time (default: %(default)s)",
    )
    for name, what in COSTS.items():
        add(
            f"--{name}-seconds",
            type=number(0, 3600, "a number of seconds"),
            metavar="S",
            help=f"for {what} (default: as --cost has it)",
        )
    add("--no-partial-hits", action="store_true", help="find whole cached blocks alone, copy no parts of them")
    add("--check-invariants", action="store_true", help="check the block pool after every step (slow)")
    add("--json", action="store_true", help="print the prediction as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Simulate and print; 130 if interrupted, with the prediction so far."""
    import msgspec

    from engine.garbage import look_rarely
    from engine.simulator.report import report
    from engine.simulator.simulate import Simulator
    from engine.trace_lengths import TraceError, read_trace

    try:
        trace = read_trace(arguments.trace)
        settings = _settings(arguments, trace)
        simulator = Simulator(trace, settings)
    except (TraceError, ValueError, MemoryError) as error:
        print(f"paged-engine: error: {error}", file=sys.stderr)
        return USAGE
    look_rarely()
    with _interruptible() as interrupted, _Progress(simulator) as progress:
        simulator.run(lambda: progress.stopped(bool(interrupted)))
    prediction = simulator.prediction()
    unwritten = show(msgspec.json.encode(prediction).decode() if arguments.json else report(prediction))
    return unwritten or (INTERRUPTED if interrupted else 0)


def _settings(arguments: argparse.Namespace, trace: tuple[TracedRequest, ...]) -> Settings:
    """Raises ValueError naming the flag."""
    import msgspec

    from engine.simulator.prediction import Settings
    from engine.simulator.runner import NO_COST, StepCost

    block_bytes = arguments.block_size * arguments.kv_bytes_per_token
    num_blocks = arguments.num_blocks or arguments.kv_memory // block_bytes
    if not num_blocks and not arguments.infinite:
        raise ValueError(
            f"--kv-memory: {arguments.kv_memory:,} bytes hold no block of {arguments.block_size} tokens, "
            f"which takes {block_bytes:,}"
        )
    requests = arguments.requests or len(trace) * (arguments.repeat or 1)
    if requests > MAX_REQUESTS:
        raise ValueError(f"--repeat {arguments.repeat} makes {requests} requests; at most {MAX_REQUESTS} are allowed")
    cost = msgspec.structs.asdict(NO_COST if arguments.cost == "none" else StepCost())
    stated = {name: getattr(arguments, f"{name}_seconds") for name in COSTS}
    cost.update({name: value for name, value in stated.items() if value is not None})
    return Settings(
        control=chosen_control(arguments),
        block_size=arguments.block_size,
        num_blocks=None if arguments.infinite else num_blocks,
        num_host_blocks=arguments.swap_space // block_bytes,
        kv_bytes_per_token=arguments.kv_bytes_per_token,
        max_model_len=arguments.max_model_len or max(traced.prompt_tokens + traced.output_tokens for traced in trace),
        cost=StepCost(**cost),
        speed=arguments.speed,
        requests=requests,
        fresh=arguments.repeat_as == "new",
        partial_hits=not arguments.no_partial_hits,
        check_invariants=arguments.check_invariants,
    )


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """The first interrupt is noted, for the step under way to end; a second one raises KeyboardInterrupt."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


class _Progress:
    """A line on standard error for as long as a simulation lasts."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._live = sys.stderr.isatty()
        self._every = REFRESH_EVERY if self._live else LINE_EVERY
        self._begun = self._shown = time.monotonic()
        self._width = 0

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)

    def stopped(self, interrupted: bool) -> bool:
        """Show how far it is now and then; says whether to stop."""
        now = time.monotonic()
        if now - self._shown >= self._every:
            self._shown = now
            line = self._line(now - self._begun)
            if self._live:
                self._width = max(self._width, len(line))
                print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
            else:
                print(line, file=sys.stderr, flush=True)
        return interrupted

    def _line(self, elapsed: float) -> str:
        simulator = self._simulator
        done, total, tally = simulator.done, simulator.arrivals.total, simulator.tally
        left = f", about {elapsed / done * (total - done):,.0f} s left" if done else ""
        return (
            f"simulate: {done:,}/{total:,} requests done, {tally.waiting:,} wait, {tally.steps:,} steps, "
            f"simulated {simulator.clock.now:,.0f} s in {elapsed:.0f} s{left}"
        )
