"""One user: a session's turns one after the other, with the recorded think times and the real replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp
from msgspec import UNSET

from loadgen.asking import Asker, Payload
from loadgen.client import Response, clock, complete
from loadgen.limits import Budget, Slots
from loadgen.live.tally import Tally
from loadgen.outcome import Outcome, RequestRecord, TokenSource
from loadgen.pace import Ended, Pace
from loadgen.request_ids import request_id
from loadgen.text.replies import count_replies
from loadgen.text.tokenizer import Tokenizer, TokenizerError
from loadgen.traces.model import Session


@dataclass(frozen=True, slots=True)
class Setting:
    """What all sessions of a run share. `pace` says when the trace is where; `slots` caps requests in flight.

    `zero` is the moment of the clock from which records count. `tokenizer` counts what neither the trace nor the server
    does.
    """

    http: aiohttp.ClientSession
    url: str
    asker: Asker
    pace: Pace
    timeout: float
    retries: int
    stream: bool
    slots: Slots
    budget: Budget
    tally: Tally
    zero: float
    report: Callable[[RequestRecord], None]
    tokenizer: Tokenizer | None
    retry_refused: int = 0
    run: str = ""  # what its requests' ids begin with; empty: they have none

    def relative(self, moment: float | None) -> float | None:
        """Seconds of the run, to the microsecond."""
        return None if moment is None else round(moment - self.zero, 6)


async def _counted(response: Response, setting: Setting) -> int | None:
    """The tokens of a whole answer of which the server does not tell them, by the tokenizer; None: nobody counts.

    A server that is loaded may not come to count: that ends no run, and the token source tells.
    """
    if (
        response.output_tokens is not None
        or setting.tokenizer is None
        or response.outcome is not Outcome.COMPLETED
        or not response.chunks
    ):
        return None
    try:
        (tokens,) = await setting.tokenizer.count([response.text])
    except TokenizerError:
        return None
    return tokens


def _output_tokens(response: Response, counted: int | None) -> tuple[int, TokenSource]:
    """The answer's tokens, and who counted them."""
    if (told := response.output_tokens) is not None:
        return told, TokenSource.USAGE
    if counted is not None:
        return counted, TokenSource.TOKENIZER
    if response.chunks:
        return len(response.chunks), TokenSource.CHUNKS
    return 0, TokenSource.NONE


async def _send(
    session: Session, index: int, turn: int, scheduled: float, payload: Payload, setting: Setting
) -> Response:
    """Send one turn in the slot that it has, free that, and report the turn, whatever comes."""
    response = Response(streamed=setting.stream)
    counted = None
    try:
        try:
            with setting.tally.running():
                await complete(
                    setting.http,
                    setting.url,
                    payload,
                    response,
                    timeout=setting.timeout,
                    on_chunk=setting.tally.count_chunk,
                    retries=setting.retries,
                    refused_retries=setting.retry_refused,
                    stream=setting.stream,
                    request_id=request_id(setting.run, index, turn) if setting.run else "",
                )
        finally:
            setting.slots.release()
        counted = await _counted(response, setting)
    finally:
        tokens, source = _output_tokens(response, counted)
        setting.report(
            RequestRecord(
                session=session.session,
                index=index,
                turn=turn,
                outcome=response.outcome,
                scheduled=setting.relative(scheduled),
                sent=setting.relative(response.sent),
                chunks=tuple(round(moment - setting.zero, 6) for moment in response.chunks),
                ended=setting.relative(response.ended),
                asked_input=payload.asked_input,
                asked_output=payload.asked_output,
                input_tokens=response.input_tokens,
                cached_tokens=response.cached_tokens,
                output_tokens=tokens,
                token_source=source,
                streamed=response.streamed,
                finish=response.finish,
                retries=response.retries,
                refusals=response.refusals,
                waited=round(response.waited, 6),
                status=response.status,
                code=response.code,
                detail=response.detail,
            )
        )
    return response


async def run_session(session: Session, index: int, arrive: Callable[[], Awaitable[float]], setting: Setting) -> float:
    """Play one session, reporting one record for every turn whatever happens; returns the moment it was over.

    `index` is its place in the trace; `arrive` waits for its arrival and returns the moment of that. A failed turn ends
    the session: its later turns are reported as not sent.
    """
    pace = setting.pace
    replies: dict[int, str] = {}
    reported = 0
    start = ready = 0.0  # in seconds of the trace, known once it has arrived
    due: float | None = None
    over: float | None = None
    rest, uncounted = Outcome.NOT_REACHED, ""
    try:
        session = await count_replies(session, setting.tokenizer)
        for number, turn in enumerate(session.turns):
            payload = setting.asker.payload(session, index, number, replies)  # before it is due: it may take a while
            if number == 0:
                scheduled = await arrive()
                start = pace.trace(scheduled)
            else:
                own = None if turn.at is UNSET else start + max(0.0, turn.at - (session.arrival or 0.0))
                scheduled = await pace.until(ready + turn.think if own is None else own)
            due = scheduled
            setting.tally.due()
            with setting.tally.waiting():
                await setting.slots.acquire()
            if not setting.budget.take():
                setting.slots.release()
                break
            reported, due = number + 1, None  # whatever happens now, it is reported there
            response = await _send(session, index, number, scheduled, payload, setting)
            over = response.ended
            if response.outcome is not Outcome.COMPLETED:
                rest = Outcome.NOT_SENT
                setting.tally.session_done()
                break
            replies[number] = response.text
            ready = pace.trace(clock() if over is None else over)
        else:
            setting.tally.session_done()
    except Ended:
        pass  # what is left is told below
    except TokenizerError as error:
        setting.tally.session_done()
        rest, uncounted = Outcome.NOT_SENT, f"its recorded replies cannot be counted: {error}"
    finally:
        for number in range(reported, len(session.turns)):
            asked = session.turns[number].output_tokens
            cause = uncounted if number == 0 else ""
            setting.report(
                RequestRecord(
                    session=session.session,
                    index=index,
                    turn=number,
                    outcome=Outcome.CONNECTION if cause else rest,
                    scheduled=setting.relative(due),
                    asked_output=None if asked is UNSET else asked,
                    streamed=setting.stream,
                    detail=cause,
                )
            )
            due = None
    return clock() if over is None else over
