"""The options of `paged-engine serve` that make it a cluster, and what is ruled out with one."""

from __future__ import annotations

import argparse
import os
from typing import get_args

from engine.cli import Adder, between, number
from engine.cluster import sizes
from engine.cluster.protocol import MOST_LOCAL_PREFILL, MOST_WORKERS, ClusterControl, Role, Routing
from engine.config import EngineConfig
from engine.faults import parse
from engine.transfer.needs import unmet

LEAST_LEASE, MOST_LEASE = 0.1, 3600.0  # seconds
FLAGS: dict[Role, str] = {"prefill": "--prefill", "decode": "--decode", "replica": "--replicas"}


def add_cluster(add: Adder) -> None:
    defaults, config = ClusterControl(), EngineConfig()

    def workers(role: Role, what: str) -> None:
        add(FLAGS[role], type=between(0, MOST_WORKERS), default=0, metavar="N", help=f"{what} (default: 0)")

    workers("prefill", "engines that compute prompts and hand them over to those that decode")
    workers("decode", "engines that go on with what others have prefilled")
    workers("replica", "engines that serve whole requests")
    add(
        "--routing",
        choices=get_args(Routing),
        default=defaults.routing,
        help="where a request goes: to most of its prefix, bounded by load (default: %(default)s)",
    )
    add(
        "--local-prefill",
        type=between(0, MOST_LOCAL_PREFILL),
        default=defaults.local_prefill,
        metavar="TOKENS",
        help="prompts with at most so many that are not cached are prefilled where they decode (default: %(default)s)",
    )
    add(
        "--colocated",
        action="store_true",
        help="begin with every engine serving whole requests: it can be switched while they run",
    )
    add(
        "--lease-seconds",
        type=number(LEAST_LEASE, MOST_LEASE, "a number of seconds"),
        default=config.lease_seconds,
        metavar="SECONDS",
        help=f"that KV is kept for an engine that does not say it has it (default: {config.lease_seconds:g})",
    )


def chosen_cluster(arguments: argparse.Namespace) -> ClusterControl | None:
    """None for one engine alone. Raises ArgumentTypeError for a cluster in which nobody would decode."""
    control = ClusterControl(
        separate=not arguments.colocated,
        routing=arguments.routing,
        local_prefill=arguments.local_prefill,
        prefill=arguments.prefill,
        decode=arguments.decode,
        replicas=arguments.replicas,
    )
    if not sizes.total(control):
        if arguments.colocated:
            raise argparse.ArgumentTypeError("--colocated: needs several engines (--prefill, --decode, --replicas)")
        return None
    try:
        sizes.check(control)
    except sizes.ClusterControlError as error:
        raise argparse.ArgumentTypeError(f"--{error}") from None
    return control


def check_alone(arguments: argparse.Namespace) -> None:
    """Raises ArgumentTypeError for what one engine alone would pass over."""
    usual = ClusterControl()
    for flag, given in (
        ("--routing", arguments.routing != usual.routing),
        ("--local-prefill", arguments.local_prefill != usual.local_prefill),
        ("--lease-seconds", arguments.lease_seconds != EngineConfig().lease_seconds),
    ):
        if given:
            raise argparse.ArgumentTypeError(f"{flag}: needs several engines (--prefill, --decode, --replicas)")


def check_cluster(config: EngineConfig, control: ClusterControl) -> None:
    """Raises ArgumentTypeError for what several engines cannot share."""
    if config.kv_events is not None:
        raise argparse.ArgumentTypeError(
            "--kv-events: several engines cannot publish at one endpoint; it is for one engine alone"
        )
    need = unmet(config.control, config.device) if control.prefill or control.decode else None
    if need is not None:
        instead = "; engines there can be --replicas only" if need.setting == "device" else ""
        wrong = f"must be {need.must} where KV is handed over, got {need.got}{instead}"
        raise argparse.ArgumentTypeError(f"--{need.setting}: {wrong}")
    names = {f"{role}-{number}" for role in sizes.FIELDS for number in range(sizes.wanted(control, role))}
    for fault in config.faults:
        whose, colon, _ = fault.rpartition(":")
        if colon and whose not in names:
            raise argparse.ArgumentTypeError(
                f"--fault: {whose!r} is none of the workers, which are {', '.join(sorted(names))}"
            )
    memory, each = host_memory(config), config.kv_memory + config.swap_space
    if memory is not None and (told := sizes.too_much(control, each, memory)):
        raise argparse.ArgumentTypeError(f"--kv-memory: {told}")


def host_memory(config: EngineConfig) -> int | None:
    """This machine's, in bytes; None if KV is not there."""
    return None if config.device == "cuda" else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def fault(text: str) -> str:
    """A fault of every engine, or of one of several, as decode-0:kill@100. Raises ArgumentTypeError."""
    _, _, what = text.rpartition(":")
    try:
        parse(what)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
