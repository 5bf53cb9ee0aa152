"""One user: a session's turns one after the other, with the recorded think times and the real replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from loadgen.client import ChatRequest, Message, Response, clock, complete
from loadgen.outcome import Outcome, RequestRecord
from loadgen.pace import Pace
from loadgen.progress import Progress
from loadgen.trace import Session, turn_inputs


@dataclass(frozen=True, slots=True)
class Setting:
    """What all sessions of a run share. `pace` says when the trace is where; `slots` caps requests in flight."""

    http: aiohttp.ClientSession
    url: str  # of the chat completions
    model: str
    systems: dict[str, str]
    temperature: float
    pace: Pace
    timeout: float
    slots: asyncio.Semaphore
    progress: Progress
    report: Callable[[RequestRecord], None]


def messages(session: Session, systems: dict[str, str], index: int, replies: dict[int, str]) -> list[Message]:
    """The chat that turn `index` sends: system prompt, the turns of its branch with their replies, its message."""
    inputs = turn_inputs(session)
    chat = [Message("system", systems[session.system])]
    for earlier in inputs[index].history:
        chat += [Message("user", inputs[earlier].user), Message("assistant", replies[earlier])]
    return [*chat, Message("user", inputs[index].user)]


def _record(session: Session, index: int, scheduled: float, response: Response) -> RequestRecord:
    usage = response.usage
    return RequestRecord(
        session=session.session,
        turn=index,
        requested_tokens=session.turns[index].output_tokens,
        scheduled=scheduled,
        outcome=response.outcome,
        sent=response.sent,
        chunks=tuple(response.chunks),
        ended=response.ended,
        usage=usage is not None,
        input_tokens=usage.prompt_tokens if usage else None,
        output_tokens=usage.completion_tokens if usage else len(response.chunks),
        detail=response.detail,
    )


async def run_session(session: Session, start: float, setting: Setting) -> None:
    """Play one session from `start` (seconds of the trace) on, reporting one record for every turn whatever happens.

    A failed turn ends the session: its later turns are reported as not sent.
    """
    replies: dict[int, str] = {}
    reported = 0
    ready = start
    due: float | None = None
    rest = Outcome.NOT_REACHED
    try:
        for index, turn in enumerate(session.turns):
            due = scheduled = await setting.pace.until(ready + turn.think)
            request = ChatRequest(
                model=setting.model,
                messages=messages(session, setting.systems, index, replies),
                max_tokens=turn.output_tokens,
                temperature=setting.temperature,
                seed=turn.seed,
            )
            with setting.progress.waiting():
                await setting.slots.acquire()
            response = Response()
            try:
                with setting.progress.running():
                    await complete(
                        setting.http, setting.url, request, response, setting.timeout, setting.progress.count_chunk
                    )
            finally:
                setting.slots.release()
                setting.report(_record(session, index, scheduled, response))
                reported, due = index + 1, None
            if response.outcome is not Outcome.COMPLETED:
                rest = Outcome.NOT_SENT
                return
            replies[index] = response.text
            ready = setting.pace.trace(response.ended if response.ended is not None else clock())
    finally:
        for index in range(reported, len(session.turns)):
            requested = session.turns[index].output_tokens
            setting.report(RequestRecord(session.session, index, requested, due, rest))
            due = None
