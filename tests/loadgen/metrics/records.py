"""Requests for the tests of this folder: made by hand, and any that could be."""

from __future__ import annotations

from hypothesis import strategies as st

from loadgen.outcome import Outcome, RequestRecord, TokenSource


def record(**changes: object) -> RequestRecord:
    """Three chunks at 500, 750 and 1,500 ms after it was sent, which was 500 ms late."""
    base: dict[str, object] = {
        "session": "s",
        "index": 0,
        "turn": 0,
        "asked_output": 3,
        "scheduled": 10.0,
        "outcome": Outcome.COMPLETED,
        "sent": 10.5,
        "chunks": (11.0, 11.25, 12.0),
        "ended": 12.5,
        "token_source": TokenSource.USAGE,
        "input_tokens": 20,
        "output_tokens": 3,
    }
    return RequestRecord(**{**base, **changes})  # type: ignore[arg-type]


_delays = st.integers(0, 5000).map(lambda milliseconds: milliseconds / 1000)


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    """Any request of a run of a few sessions."""
    outcome = draw(st.sampled_from(Outcome))
    scheduled = draw(_delays)
    sent = scheduled + draw(_delays)
    chunks = [sent]
    for delay in draw(st.lists(_delays, max_size=6)):
        chunks.append(chunks[-1] + delay)
    unsent = outcome in (Outcome.NOT_SENT, Outcome.NOT_REACHED)
    return RequestRecord(
        session="s",
        index=draw(st.integers(0, 9)),
        turn=draw(st.integers(0, 3)),
        outcome=outcome,
        scheduled=draw(st.sampled_from([None, scheduled])) if unsent else scheduled,
        sent=None if unsent else sent,
        chunks=() if unsent else tuple(chunks[1:]),
        ended=None if unsent else chunks[-1] + draw(_delays),
        asked_input=draw(st.none() | st.integers(1, 9)),
        asked_output=draw(st.none() | st.integers(1, 9)),
        input_tokens=draw(st.none() | st.integers(1, 9)),
        cached_tokens=draw(st.none() | st.integers(0, 9)),
        output_tokens=0 if unsent else draw(st.integers(0, 9)),
        token_source=draw(st.sampled_from(TokenSource)),
        streamed=draw(st.booleans()),
        retries=draw(st.integers(0, 2)),
    )
