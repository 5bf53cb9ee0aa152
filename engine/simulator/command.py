"""`paged-engine simulate`: what an engine with given settings would do with a trace, without a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
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
    unicode_text,
)
from engine.config import DEFAULT_KV_MEMORY
from engine.simulator.pool_options import add_pools, chosen_clusters

if TYPE_CHECKING:
    from engine.cluster.protocol import ClusterControl
    from engine.simulator.hardware import Roofline
    from engine.simulator.prediction import Pools, PoolsPrediction, Settings
    from engine.simulator.runner import StepCost
    from engine.sizing.shape import ModelShape
    from engine.trace_lengths import TracedRequest

KV_BYTES_PER_TOKEN = 23_040  # SmolLM2-135M in bf16
MAX_REQUESTS = 10_000_000
SPEEDS = (0.001, 1_000_000)  # a year at the slowest is 3e10 s, of which a float still tells microseconds
MAX_BLOCKS = 1 << 26  # the pool's books take some hundred bytes a block
_RATE = number(1, 1e21)
COSTS = {
    "step": "every step",
    "token": "each computed token",
    "context": "each token of context that a row reads",
    "move": "each slot that is copied or swapped",
    "row": "each token that is drawn",
    "attention": "each pair of a computed token and one before it",
}
HARDWARE = ("model", "flops", "memory_bandwidth")
OVERHEAD = 0.001  # seconds of a step, whatever it computes


def add_command(commands: Any) -> None:
    """Add `simulate` to `paged-engine`'s subcommands."""
    parser = commands.add_parser(
        "simulate",
        help="predict hit rate, waste, preemptions and queueing for a trace, without a model",
        description="Replay a trace on the engine's own scheduler and block pool, on a simulated clock. Reads Mooncake "
        "JSON lines, Azure LLM inference CSV and chat traces (traces/README.md). With --prefill, --decode, --replicas, "
        "--workers or --ratios: on several engines behind the router, which hand KV over.",
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
        choices=("new", "same", "sessions"),
        default="new",
        help="a repetition is new text, or the same and finds what was cached, or new sessions, which begin with what "
        "sessions have in common (default: %(default)s)",
    )
    add(
        "--speed",
        type=number(*SPEEDS),
        default=1.0,
        metavar="X",
        help="arrivals and think times X times as fast (default: 1)",
    )
    add(
        "--crowd",
        type=number(*SPEEDS),
        default=1.0,
        metavar="X",
        help="X times as many people: arrivals X times as fast again, think times as they are (default: 1)",
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
        metavar="N",
        help=f"of the model in mind (default: --model's, or {KV_BYTES_PER_TOKEN}, SmolLM2-135M in bf16)",
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
    of_hardware = parser.add_argument
    of_hardware(
        "--model", type=unicode_text, help="instead of the seconds above: a config.json, a folder, a hub id, ..."
    )
    of_hardware("--flops", type=_RATE, metavar="N", help="operations a second that a device reaches on it")
    of_hardware("--memory-bandwidth", type=_RATE, metavar="N", help="bytes a second that it reads from its memory")
    of_hardware(
        "--overhead-seconds",
        type=number(0, 3600, "a number of seconds"),
        default=OVERHEAD,
        metavar="S",
        help="for each step beside these (default: %(default)g)",
    )
    add_pools(add)
    add("--no-partial-hits", action="store_true", help="find whole cached blocks alone, copy no parts of them")
    add("--check-invariants", action="store_true", help="check the block pool after every step (slow)")
    add("--json", action="store_true", help="print the prediction as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Simulate and print; 130 if interrupted, with the prediction so far."""
    from engine.garbage import look_rarely
    from engine.loading.errors import ModelError
    from engine.sizing.memory import SizingError
    from engine.trace_lengths import TraceError, read_trace

    try:
        trace = read_trace(arguments.trace)
        settings = _settings(arguments, trace)
        clusters = chosen_clusters(arguments)
        for cluster in clusters:
            _check_pools(settings, cluster)
        look_rarely()
        return _pools(arguments, trace, settings, clusters) if clusters else _alone(arguments, trace, settings)
    except (TraceError, ModelError, SizingError, ValueError, MemoryError, argparse.ArgumentTypeError) as error:
        print(f"paged-engine: error: {error}", file=sys.stderr)
        return USAGE


def _alone(arguments: argparse.Namespace, trace: Sequence[TracedRequest], settings: Settings) -> int:
    import msgspec

    from engine.simulator.progress import Progress, interruptible
    from engine.simulator.report import report
    from engine.simulator.simulate import Simulator

    simulator = Simulator(_whole(arguments, trace, settings), settings)
    with interruptible() as interrupted, Progress(simulator) as progress:
        simulator.run(lambda: progress.stopped(bool(interrupted)))
    prediction = simulator.prediction()
    unwritten = show(msgspec.json.encode(prediction).decode() if arguments.json else report(prediction))
    return unwritten or (INTERRUPTED if interrupted else 0)


def _pools(
    arguments: argparse.Namespace,
    trace: Sequence[TracedRequest],
    settings: Settings,
    clusters: Sequence[ClusterControl],
) -> int:
    import msgspec

    from engine.simulator.pools import PoolSimulator
    from engine.simulator.pools_report import name, pools_report, sweep_report
    from engine.simulator.progress import Progress, interruptible

    predictions: list[PoolsPrediction] = []
    with interruptible() as interrupted:
        for number, cluster in enumerate(clusters, 1):
            of_these = _for_each(settings, cluster) if arguments.load_per_worker else settings
            whole = _whole(arguments, trace, of_these)
            simulator = PoolSimulator(whole, of_these, _pool_settings(arguments, cluster))
            which = f"{name(cluster)} ({number} of {len(clusters)}): " if len(clusters) > 1 else ""
            with Progress(simulator, which) as progress:
                simulator.run(lambda progress=progress: progress.stopped(bool(interrupted)))  # type: ignore[misc]
            predictions.append(simulator.prediction())
            if interrupted:
                break
    is_sweep = arguments.ratios is not None or arguments.workers is not None
    if arguments.json:
        told = msgspec.json.encode({"predictions": predictions} if is_sweep else predictions[0]).decode()
    else:
        told = sweep_report(predictions) if is_sweep else pools_report(predictions[0])
    return show(told) or (INTERRUPTED if interrupted else 0)


def _whole(
    arguments: argparse.Namespace, trace: Sequence[TracedRequest], settings: Settings
) -> Sequence[TracedRequest]:
    """The trace as it is to be repeated."""
    from engine.simulator.repeated import with_new_sessions

    return with_new_sessions(trace, settings.requests) if arguments.repeat_as == "sessions" else trace


def _for_each(settings: Settings, cluster: ClusterControl) -> Settings:
    """What was for one engine, for all of these."""
    import msgspec

    from engine.cluster.sizes import total

    engines = total(cluster)
    return msgspec.structs.replace(settings, requests=settings.requests * engines, crowd=settings.crowd * engines)


def _pool_settings(arguments: argparse.Namespace, cluster: ClusterControl) -> Pools:
    from engine.simulator.prediction import Pools

    return Pools(cluster, arguments.link, arguments.link_latency, arguments.lease_seconds, arguments.slo)


def _check_pools(settings: Settings, cluster: ClusterControl) -> None:
    """Raises ValueError naming the flag."""
    from engine.cluster.sizes import total

    engines = total(cluster)
    if settings.num_blocks is None and engines > 1:
        raise ValueError("--infinite: is for one engine; say with --num-blocks or --kv-memory what each of several has")
    if settings.num_blocks is not None and settings.num_blocks * engines > MAX_BLOCKS:
        raise ValueError(
            f"--num-blocks, --kv-memory: {engines} engines with {settings.num_blocks:,} blocks each are "
            f"{settings.num_blocks * engines:,}; at most {MAX_BLOCKS:,} are simulated"
        )


def _settings(arguments: argparse.Namespace, trace: tuple[TracedRequest, ...]) -> Settings:
    """Raises ValueError naming the flag."""
    from engine.simulator.hardware import kv_bytes_per_token
    from engine.simulator.prediction import Settings

    shape = _shape(arguments)
    kv_bytes = arguments.kv_bytes_per_token
    if kv_bytes is None:
        kv_bytes = KV_BYTES_PER_TOKEN if shape is None else kv_bytes_per_token(shape)
    block_bytes = arguments.block_size * kv_bytes
    num_blocks = arguments.num_blocks or arguments.kv_memory // block_bytes
    if not num_blocks and not arguments.infinite:
        raise ValueError(
            f"--kv-memory: {arguments.kv_memory:,} bytes hold no block of {arguments.block_size} tokens, "
            f"which takes {block_bytes:,}"
        )
    requests = arguments.requests or len(trace) * (arguments.repeat or 1)
    if requests > MAX_REQUESTS:
        raise ValueError(f"--repeat {arguments.repeat} makes {requests} requests; at most {MAX_REQUESTS} are allowed")
    return Settings(
        control=chosen_control(arguments),
        block_size=arguments.block_size,
        num_blocks=None if arguments.infinite else num_blocks,
        num_host_blocks=arguments.swap_space // block_bytes,
        kv_bytes_per_token=kv_bytes,
        max_model_len=arguments.max_model_len or max(traced.prompt_tokens + traced.output_tokens for traced in trace),
        cost=_cost(arguments, shape),
        speed=arguments.speed,
        crowd=arguments.crowd,
        requests=requests,
        fresh=arguments.repeat_as != "same",
        partial_hits=not arguments.no_partial_hits,
        check_invariants=arguments.check_invariants,
    )


def _shape(arguments: argparse.Namespace) -> ModelShape | None:
    """Raises ValueError naming the flags, and ModelError."""
    from engine.sizing.find import find_shape

    stated = [name for name in HARDWARE if getattr(arguments, name) is not None]
    if not stated:
        return None
    if len(stated) < len(HARDWARE):
        raise ValueError(
            "--model, --flops and --memory-bandwidth go together: they are what a step's seconds follow from"
        )
    if any(getattr(arguments, f"{name}_seconds") is not None for name in COSTS):
        raise ValueError("--model: goes without --step-seconds and the like; --overhead-seconds adds to what it takes")
    return find_shape(arguments.model)


def _cost(arguments: argparse.Namespace, shape: ModelShape | None) -> StepCost | Roofline:
    """Raises SizingError."""
    import msgspec

    from engine.simulator.hardware import roofline
    from engine.simulator.runner import NO_COST, StepCost

    if shape is not None:
        return roofline(shape, arguments.flops, arguments.memory_bandwidth, arguments.overhead_seconds)
    stated = {name: getattr(arguments, f"{name}_seconds") for name in COSTS}
    base = NO_COST if arguments.cost == "none" else StepCost()
    return msgspec.structs.replace(base, **{name: value for name, value in stated.items() if value is not None})
