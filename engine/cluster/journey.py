"""One request's way through a cluster, with all who answer the same prompt: which engine is to do what next, with
which tokens. No I/O: whoever keeps it sends what it says, tells it what came, and chooses the workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from engine.block_pool import IllegalState
from engine.messages import Add, Output
from engine.sampling_params import SchedulingParams
from engine.transfer.offer import Offer

# routed: no engine has it, and it is to be sent to one. prefill: one computes the prompt, to hand it over. offered: it
# keeps the KV until another has it, which is to be chosen. placed: the other has been told, and has yet to say that
# it reads the offer no more. decoding: one engine has it whole.
State = Literal["routed", "prefill", "offered", "placed", "decoding", "ended"]
MOST_MOVES = 3  # to other engines, because one died: it may be the request that kills them


class Member:
    """One answer that is not over: its place in the family, and its tokens so far."""

    __slots__ = ("is_handed_over", "place", "tokens")

    def __init__(self, place: int) -> None:
        self.place = place
        self.tokens: list[int] = []
        self.is_handed_over = False


class Journey:
    """`live` has the members by their requests; of a beam search only the one that reports.

    `leg` counts what was sent: what comes of an earlier one is not listened to. `came` is in seconds, on the clock of
    every `now` here.
    """

    def __init__(self, message: Add, came: float) -> None:
        self.message = message
        self.came = came
        self.is_search = message.sampling.beam is not None
        family = (message.request, *(() if self.is_search else message.siblings))
        self.live = {request: Member(place) for place, request in enumerate(family)}
        self.state: State = "routed"
        self.leg = 0
        self.moves = 0  # because an engine died
        self.offer: Offer | None = None  # while nobody has been told to take it
        self.lease = ""  # of the offer that it was placed with
        self._cached: int | None = None  # prompt tokens found by the first engine that computed it

    @property
    def has_tokens(self) -> bool:
        """Its prompt has been computed once."""
        return self._cached is not None or any(member.tokens for member in self.live.values())

    @property
    def generated(self) -> int:
        """Tokens that its clients have, of all that live: an engine that goes on without an offer computes them too."""
        return sum(len(member.tokens) for member in self.live.values())

    @property
    def rows(self) -> int:
        """Answers that an engine generates for it at once."""
        beam = self.message.sampling.beam
        return len(self.live) if beam is None else beam.width * len(self.live)

    @property
    def is_at_engine(self) -> bool:
        return self.state in ("prefill", "placed", "decoding")

    def seconds_left(self, now: float) -> float | None:
        """Until its client's deadline; None if there is none."""
        timeout = self.message.scheduling.timeout
        return None if timeout is None else self.came + timeout - now

    def prefill(self, now: float) -> Add:
        """What is to be sent to the engine that computes its prompt and hands it over."""
        if self.state != "routed" or self.has_tokens or self.is_search:
            raise IllegalState(f"{self.message.request}: is handed over from {self.state}")
        self._send("prefill")
        return msgspec.structs.replace(self._first(now), hand_over=True)

    def decode(self, now: float) -> tuple[Add, ...]:
        """What is to be sent to the engine that goes on with it to its end.

        With an offer the whole family takes it together. Without, each member computes its own again: what they
        share is found in the prefix cache.
        """
        if self.state not in ("routed", "offered"):
            raise IllegalState(f"{self.message.request}: is sent on from {self.state}")
        offer = self.withdraw()
        self.lease = "" if offer is None else offer.lease
        self._send("decoding" if offer is None else "placed")
        if not self.has_tokens:
            return (self._first(now),)
        if offer is not None:
            return (msgspec.structs.replace(self._go_on(self.live, now), offer=offer),)
        return tuple(self._go_on((request,), now) for request in self.live)

    def hear(self, output: Output, leg: int) -> Output | None:
        """Take an engine's news, which came of what was sent as `leg`; returns what its client is to be told."""
        member = self.live.get(output.request)
        if member is None or leg != self.leg or not self.is_at_engine:
            return None
        is_leader = output.request == self.message.request
        if self._cached is not None and output.cached_tokens != (cached := self._cached if is_leader else 0):
            output = msgspec.structs.replace(output, cached_tokens=cached)
        if output.token_id is not None:
            member.tokens.append(output.token_id)
            if is_leader and self._cached is None:
                self._cached = output.cached_tokens
        if output.offer is not None:
            self.offer = output.offer
            output = msgspec.structs.replace(output, offer=None)
        if output.finished == "handed_over":
            member.is_handed_over = True
            output = msgspec.structs.replace(output, finished=None)
        elif output.finished is not None:
            del self.live[output.request]
        self._settle()
        return output

    def taken(self, lease: str) -> None:
        """Whoever it was handed over to reads the offer no more."""
        if self.state == "placed" and lease == self.lease:
            self.state = "decoding"

    def withdraw(self) -> Offer | None:
        """The offer, if nobody has been told to take it; from now on nobody is."""
        offer, self.offer = self.offer, None
        return offer

    def end(self, requests: Iterable[str]) -> tuple[str, ...]:
        """Nobody wants to hear of these any more. Returns those that lived."""
        ended = tuple(request for request in dict.fromkeys(requests) if self.live.pop(request, None) is not None)
        self._settle()
        return ended

    def lost(self, *, by_death: bool) -> bool:
        """The engine that has it, or the one that keeps its KV until another is chosen, does so no more: it has died,
        or is to go. Returns whether it may go on elsewhere: with what there is, it is `routed` again. The offer was
        withdrawn before."""
        if self.state in ("routed", "ended") or self.offer is not None:
            raise IllegalState(f"{self.message.request}: is lost while {self.state}")
        for member in self.live.values():
            member.is_handed_over = False
        self.state = "routed"
        self.moves += by_death
        return self.moves <= MOST_MOVES

    def _send(self, state: State) -> None:
        self.state = state
        self.leg += 1

    def _settle(self) -> None:
        """All news of a step is heard one by one: only with the last of it everybody has ended or is handed over."""
        if not self.live:
            self.state = "ended"
        elif self.state == "prefill" and all(member.is_handed_over for member in self.live.values()):
            self.state = "offered"

    def _first(self, now: float) -> Add:
        """The request as it came, less who has ended."""
        scheduling = self._scheduling(now)
        if self.is_search or len(self.live) == 1 + len(self.message.siblings):
            return msgspec.structs.replace(self.message, scheduling=scheduling)
        return self._go_on(self.live, now)

    def _go_on(self, requests: Iterable[str], now: float) -> Add:
        first, *others = requests
        members = [self.live[request] for request in (first, *others)]
        message, sampling = self.message, self.message.sampling
        if self.has_tokens:  # those of the prompt have been told
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=None)
        return Add(
            first,
            message.prompt,
            sampling,
            self._scheduling(now),
            tuple(others),
            generated=tuple(tuple(member.tokens) for member in members),
            places=tuple(member.place for member in members),
        )

    def _scheduling(self, now: float) -> SchedulingParams:
        """An engine counts from when it is sent there; what has passed is over."""
        left = self.seconds_left(now)
        scheduling = self.message.scheduling
        return scheduling if left is None else msgspec.structs.replace(scheduling, timeout=max(0.0, left))
