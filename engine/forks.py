"""Requests that go on from another's KV: those that answer the same prompt, and the beams of a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.beam_search import BeamGroup, Continuation
from engine.block_pool import IllegalState
from engine.plan import StepResult
from engine.protocol import FinishReason, Joined
from engine.request import Request

if TYPE_CHECKING:
    from engine.scheduler import Scheduler

Endings = dict[str, FinishReason]  # of requests that end with a step, and why
Drawn = tuple[Request, FinishReason | None, FinishReason | None]  # how it ends early, or with its first token


def drawn(scheduler: Scheduler, request: Request, result: StepResult, now: float) -> list[Drawn]:
    """The children of a request whose prompt is computed, which are its children no more, each with a first token of
    its own; one that got none ends early."""
    children, request.children = request.children, []
    return [_draw(scheduler, request, child, result, now) for child in children]


def _draw(scheduler: Scheduler, request: Request, child: Request, result: StepResult, now: float) -> Drawn:
    child.parent = None
    del scheduler.unforked[child]
    early = scheduler.aborting.pop(child, None)
    token = result.sampled.get(child.id)
    if token is None:
        return child, early or "error", None
    child.first_token, child.found = now, request.found
    scheduler.forked.append((child, request.num_computed))
    return child, early, child.append(token.token_id)


def fork(scheduler: Scheduler, request: Request, family: Sequence[Drawn], result: StepResult, ended: Endings) -> None:
    """Start those that were drawn for a request whose prompt is computed."""
    for child, early, reason in family:
        if child.id in result.sampled:
            join(scheduler, request, child)
        if early is not None:
            scheduler.end(child, early)
            ended[child.id] = early
        elif reason is not None:
            scheduler.finish(child, reason)
            ended[child.id] = reason


def part(scheduler: Scheduler, request: Request) -> None:
    """Let those to be forked off a request run on their own: there will be nothing that they could share."""
    children, request.children = request.children, []
    for child in children:
        child.parent = None
        del scheduler.unforked[child]
        scheduler.waiting.add(child)


def join(scheduler: Scheduler, parent: Request, child: Request) -> None:
    """Let `child` run on all that `parent` has computed."""
    scheduler.kv.fork(parent, child)
    scheduler.run(child)
    scheduler.events.joined.append(
        Joined(child.id, 0, 0, "paged", resumed=False, parent=parent.id, shared_tokens=child.num_computed)
    )


def advance(scheduler: Scheduler, group: BeamGroup, result: StepResult, now: float, ended: Endings) -> None:
    """Take the candidates of all beams of a search; go on with the best, or end it."""
    family = (*group.members, *group.leader.children)
    marks = [scheduler.aborting.pop(member) for member in family if member in scheduler.aborting]
    early: FinishReason | None = marks[0] if marks else None
    if any(member.id not in result.sampled for member in group.members):
        early = early or "error"
    if early is not None:
        scheduler.end_early(group.leader, early)
        if early == "error":
            ended[group.leader.id] = early
        return
    for member in group.members:
        if member.first_token is None:
            member.first_token = now
    outputs = [member.tokens[member.prompt_length :] for member in group.members]
    going = group.search.advance([result.sampled[member.id].top for member in group.members], outputs)
    if group.search.done and not group.search.finished:  # every token was forbidden
        scheduler.end_early(group.leader, "error")
        ended[group.leader.id] = "error"
    elif group.search.done:
        reason = group.search.finished[0].finished
        scheduler.found_beams[group.leader.id] = tuple(group.search.finished)
        ended[group.leader.id] = reason
        for member in family:
            if member in scheduler.unforked:
                scheduler.end(member, reason)
            else:
                member.tokens.append(result.sampled[member.id].token_id)  # its row tells of one
                scheduler.finish(member, reason)
    else:
        _continue(scheduler, group, going, now)


def _continue(scheduler: Scheduler, group: BeamGroup, going: Sequence[Continuation], now: float) -> None:
    """Give each beam that goes on a member: its parent's own for the first, for others one whose beam ended."""
    parents = group.members
    kept = {beam.parent for beam in going}
    idle = [member for place, member in enumerate(parents) if place not in kept]
    for member in idle:
        scheduler.kv.free(member)
    children, group.leader.children = group.leader.children, []
    idle.extend(children)
    members: list[Request] = []
    for beam in going:
        parent = parents[beam.parent]
        if parent not in members:
            members.append(parent)
            continue
        member = idle.pop(0)
        member.tokens = list(parent.tokens)
        if member in scheduler.unforked:
            member.parent, member.first_token, member.found = None, now, group.leader.found
            del scheduler.unforked[member]
            join(scheduler, parent, member)
            scheduler.forked.append((member, member.num_computed))
        else:
            scheduler.kv.fork(parent, member)
        members.append(member)
    if idle:
        raise IllegalState(f"beam search {group.leader.id} goes on with {len(going)} beams")
    for member, beam in zip(members, going, strict=True):
        member.tokens.append(beam.token)
    group.members = members
