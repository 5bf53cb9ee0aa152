"""A trace made longer by new people: what its sessions have in common stays common, all else is new text."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.trace_lengths import TracedRequest


def with_new_sessions(trace: Sequence[TracedRequest], requests: int) -> tuple[TracedRequest, ...]:
    """The first `requests` requests of a trace that is repeated, as `Arrivals` repeats it, by other sessions.

    Pieces of prompts that more than one session has, as system prompts, are the same in all repetitions.
    """
    sessions: list[int] = []  # of each request, the one that opened its session
    owners: dict[int, int] = {}  # of each piece, the session that first had it
    shared: set[int] = set()
    for index, traced in enumerate(trace):
        sessions.append(index if traced.after is None else sessions[traced.after])
        shared.update(
            identity
            for identity, _ in traced.segments
            if owners.setdefault(identity, sessions[index]) != sessions[index]
        )
    several = 1 + max([*owners, *(traced.answer for traced in trace)])
    span = trace[-1].arrival - trace[0].arrival
    period = span * len(trace) / max(1, len(trace) - 1)

    def again(number: int) -> TracedRequest:
        round, index = divmod(number, len(trace))
        traced = trace[index]

        def renamed(identity: int) -> int:
            return identity if identity in shared else identity + round * several

        return msgspec.structs.replace(
            traced,
            arrival=traced.arrival + round * period,
            segments=tuple([(renamed(identity), tokens) for identity, tokens in traced.segments]),
            answer=renamed(traced.answer),
            after=None if traced.after is None else traced.after + round * len(trace),
        )

    return tuple(map(again, range(requests)))
