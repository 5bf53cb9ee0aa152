"""What a step or an early end is told as: rows for the record, and news for those who asked."""

from __future__ import annotations

from engine.messages import Output
from engine.plan import Sampled, StepPlan, StepResult
from engine.protocol import FinishReason, Row
from engine.request import Request
from engine.scheduler import Scheduler


def tell_ended_early(scheduler: Scheduler) -> tuple[Output, ...]:
    """Tell those whose requests ended outside a step of their own: by a deadline, a fault, or with their parent."""
    ended, scheduler.ended_early = scheduler.ended_early, []
    found = scheduler.found_beams
    return tuple(
        Output(
            one.request.id,
            finished=one.reason,
            cached_tokens=one.request.found,
            error=one.error,
            beams=found.pop(one.request.id, ()),
        )
        for one in ended
    )


def tell_step(
    scheduler: Scheduler, plan: StepPlan, result: StepResult, ended: dict[str, FinishReason]
) -> tuple[tuple[Row, ...], list[Output]]:
    """A computed step's rows for the record, and the news for those who asked."""
    rows: list[Row] = []
    outputs: list[Output] = []
    sampled, scored, lost = result.sampled, result.scored, result.lost
    for row in plan.rows:
        request: Request = row.request  # type: ignore[assignment]  # the plan shows less of it
        name = request.id
        token = sampled.get(name)
        if row.kind == "decode" and token is not None and request.beams is None:  # as nearly all
            rows.append(Row(name, "decode", 1, row.start + 1, request.cached, 1))
            finished = ended.get(name) if ended else None
            stop = token.token_id if finished == "stop" else None
            outputs.append(Output(name, token.token_id, token.logprob, token.top, finished, stop, request.found))
            continue
        if lost and name in lost:
            continue
        context = row.start + row.count
        rows.append(Row(name, row.kind, row.count, context, request.cached, 0 if token is None else 1))
        if request.beams is not None:
            if name in ended:
                beams = scheduler.found_beams.pop(name, ())
                failed = (result.failed.get(member.id) for member in request.beams.members)
                error = next(filter(None, failed), None) if ended[name] == "error" else None
                outputs.append(
                    Output(name, finished=ended[name], cached_tokens=request.found, error=error, beams=beams)
                )
            continue
        if scored and name in scored:
            outputs.append(Output(name, prompt_start=row.scored.start, prompt_logprobs=scored[name]))
        finished = ended.get(name)
        if token is not None or finished is not None:
            outputs.append(_output(request, token, finished, result))
        for sibling in row.siblings:
            token, finished = sampled.get(sibling.id), ended.get(sibling.id)
            if token is not None or finished is not None:
                outputs.append(_output(sibling, token, finished, result))  # type: ignore[arg-type]
    rows.extend(Row(fork.id, "fork", 0, context, 0, 1) for fork, context in scheduler.forked)
    return tuple(rows), outputs


def _output(request: Request, token: Sampled | None, finished: FinishReason | None, result: StepResult) -> Output:
    if token is None:
        error = result.failed.get(request.id) if finished == "error" else None
        return Output(request.id, finished=finished, error=error, offer=request.outgoing)
    stop = token.token_id if finished == "stop" else None
    return Output(
        request.id,
        token.token_id,
        token.logprob,
        token.top,
        finished,
        stop,
        request.found,
        offer=request.outgoing,
    )
