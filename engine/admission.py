"""Admission: a waiting request joins the batch, on what the prefix cache has of it, if there is room for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine import forks
from engine.kv_manager import NOTHING, Prefix
from engine.protocol import Joined, Wait
from engine.request import Request

if TYPE_CHECKING:
    from engine.scheduler import Scheduler


def is_reserving(scheduler: Scheduler, request: Request) -> bool:
    """Whether it will be given a reservation. Beams never are: they live by sharing."""
    return scheduler.control.allocation == "reserved" and request.beams is None


def reads_cache(scheduler: Scheduler, request: Request) -> bool:
    """Whether it may start on cached blocks; one that wants its prompt scored must compute all of it."""
    return (
        scheduler.control.prefix_cache
        and request.scheduling.prefix_cache
        and request.sampling.prompt_logprobs is None
        and not is_reserving(scheduler, request)
    )


def cached_prefix(scheduler: Scheduler, request: Request) -> Prefix:
    """What it may start on."""
    return scheduler.kv.cached_prefix(request) if reads_cache(scheduler, request) else NOTHING


def admit(scheduler: Scheduler, request: Request, prefix: Prefix, spare: int) -> Wait | None:
    """Move a waiting request into the batch, with all beams of its search; or say why it must wait.

    `spare` blocks are left alone, if anything runs: those that do will need them.
    """
    kv, pool = scheduler.kv, scheduler.kv.pool
    if is_reserving(scheduler, request):
        brought_back = kv.admit_reserved(request, scheduler.control.reserved_fit)
        if brought_back is None:
            return Wait(request.id, "hole", kv.reservation_blocks, pool.num_available, pool.longest_hole())
        forks.part(scheduler, request)  # what is reserved is not shared
        _join(scheduler, request, prefix, brought_back)
        return None
    order = [request, *(member for member in scheduler.members(request) if member is not request)]
    prefixes = [prefix, *(cached_prefix(scheduler, member) for member in order[1:])]
    will_run = scheduler.running or scheduler.hand_over.receiving
    spare = spare + sum(member.num_rows - 1 for member in order) if will_run else 0  # each fork copies a tail
    needed = _blocks_taken(scheduler, order, prefixes)
    if needed + spare > pool.num_available:  # the blocks to copy from might be those that are wanting
        prefixes = [found.whole() for found in prefixes]
        needed = _blocks_taken(scheduler, order, prefixes)
    if needed + spare > pool.num_available:
        return Wait(request.id, "blocks", needed + spare, pool.num_available)
    moved = kv.admit_paged(order, prefixes, scheduler.control.prefix_cache)
    for joining in zip(order, prefixes, moved, strict=True):
        _join(scheduler, *joining)
    return None


def tell_joined(
    scheduler: Scheduler, request: Request, prefix: Prefix, swapped_blocks: int = 0, received: tuple[int, int] = (0, 0)
) -> None:
    """`received`: the tokens whose KV has come from another engine, and the blocks that are filled with it."""
    size, first = scheduler.kv.block_size, request.preemptions == 0
    if first:
        request.found = request.cached
    # What was found when it began to receive was looked up, though the cache may be off by now.
    looked_up = request.num_tokens if request.cached or reads_cache(scheduler, request) else 0
    again, request.lost = max(0, request.lost - request.num_computed), 0
    scheduler.events.joined.append(
        Joined(
            request.id,
            request.cached,
            looked_up,
            request.allocation or "paged",
            resumed=not first,
            decoded_tokens=prefix.decoded_tokens(size),
            copied_tokens=request.cached - len(prefix.blocks) * size if request.cached else 0,
            evicted_tokens=prefix.evicted_tokens,
            swapped_tokens=request.num_computed - request.cached - received[0],
            swapped_blocks=swapped_blocks,
            recomputed_tokens=again,
            received_tokens=received[0],
            received_blocks=received[1],
        )
    )


def _blocks_taken(scheduler: Scheduler, requests: Sequence[Request], prefixes: Sequence[Prefix]) -> int:
    return sum(
        scheduler.kv.blocks_taken(request, prefix, request.num_tokens)
        for request, prefix in zip(requests, prefixes, strict=True)
    )


def _join(scheduler: Scheduler, request: Request, prefix: Prefix, swapped_blocks: int) -> None:
    scheduler.waiting.admit(request)
    scheduler.run(request)
    tell_joined(scheduler, request, prefix, swapped_blocks)
