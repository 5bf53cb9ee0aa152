"""Preemption: a running request gives its blocks up and waits again, by whichever way back is expected to cost less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from engine.kv_manager import Loss
from engine.protocol import Preempted, PreemptedBy

if TYPE_CHECKING:
    from engine.request import Request
    from engine.scheduler import Scheduler

Costs = tuple[float | None, float | None]  # seconds to compute again, and to swap; None: not measured yet


def preempt(scheduler: Scheduler, request: Request) -> None:
    """Take a running request's blocks, and those of all beams with it; its tokens stay. Their KV is moved to host
    memory, or computed again when it resumes."""
    kv, members = scheduler.kv, scheduler.members(request)
    losses = kv.losses(members)
    costs = [_costs(scheduler, loss) for loss in losses]
    by = _preempted_by(scheduler, losses, costs)
    for member, (recompute, swap) in zip(list(members), costs, strict=True):
        lost, moved = member.num_computed, 0
        scheduler.running.remove(member)
        if by == "swap":
            moved, lost = kv.swap_out(member), 0
        else:
            kv.free(member)
        member.cached, member.lost = 0, lost
        member.preemptions += 1
        scheduler.waiting.add(member)
        scheduler.events.preempted.append(Preempted(member.id, lost, by, moved, recompute, swap))


def recompute_after_all(scheduler: Scheduler, request: Request) -> None:
    """A waiting request's KV never came to host memory: it was preempted by recomputing, and the events say so."""
    scheduler.waiting.remove(request)
    request.lost = request.num_swapped
    scheduler.kv.free(request)
    scheduler.waiting.add(request)
    told = {"lost_tokens": request.lost, "by": "recompute", "swapped_blocks": 0}
    scheduler.events.preempted = [
        msgspec.structs.replace(one, **told) if one.request == request.id else one for one in scheduler.events.preempted
    ]


def _costs(scheduler: Scheduler, loss: Loss) -> Costs:
    rates = scheduler.rates
    swap = rates.swap_seconds(loss.blocks_out + loss.blocks_in) if scheduler.kv.host.num_blocks else None
    return rates.recompute_seconds(loss.tokens), swap


def _preempted_by(scheduler: Scheduler, losses: Sequence[Loss], costs: Sequence[Costs]) -> PreemptedBy:
    """By cost where that is left open; swapping is tried once to be measured."""
    wanted = sum(loss.blocks_out for loss in losses)
    if not any(loss.tokens for loss in losses) or wanted > scheduler.kv.host.num_free:
        return "recompute"
    if scheduler.control.preempt != "auto":
        return scheduler.control.preempt
    recompute = swap = 0.0
    for to_compute, to_move in costs:
        if to_compute is None or to_move is None:
            return "swap"
        recompute += to_compute
        swap += to_move
    return "swap" if swap < recompute else "recompute"
