"""A trace of short chats among long prompts, of exact lengths: how much do those who wait for a token suffer from them?

Chats come by a Poisson process, or a number of users write one after the other without a pause; long prompts come by a
process of their own, or at even intervals. Prompts are given as lengths alone: their text is made of the server's own
tokens when they are sent, and no two share any of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge

from loadgen.arrivals import Constant, Poisson
from loadgen.metrics.classes import SPLIT
from loadgen.traces.model import FORMAT, VERSION, Header, Session, Turn

LEAST_TOKENS, MOST_TOKENS = 1, 1_000_000


class MixError(ValueError):
    """A mix that cannot be made; the message names the option and says what is allowed."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens, each number in between equally often."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not LEAST_TOKENS <= self.least <= self.most <= MOST_TOKENS:
            raise MixError(f"expected tokens from {LEAST_TOKENS} to {MOST_TOKENS:,}, as in 64..192, got {self}")

    def __str__(self) -> str:
        return f"{self.least}..{self.most}" if self.least != self.most else str(self.least)


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the two: how many of them come in a second, and how long their prompts and answers are.

    `users` instead of a rate: so many write at any time, each `turns` times, the next as soon as the last is answered.
    """

    rate: float
    prompt: Lengths
    output: Lengths
    users: int | None = None
    turns: int = 1


@dataclass(frozen=True, slots=True)
class Mix:
    """Everything about a trace. `even`: long prompts come at even intervals, the first half of one after the beginning,
    so that as many come in one part of the run as in another."""

    chats: Kind
    long: Kind
    seconds: float
    seed: int = 0
    even: bool = False

    def __post_init__(self) -> None:
        if self.chats.prompt.most >= self.long.prompt.least:
            raise MixError(
                f"--chat-prompt {self.chats.prompt}: must be shorter than --long-prompt {self.long.prompt}, "
                "by which they are told apart"
            )


def mixed(mix: Mix) -> tuple[Header, list[Session]]:
    """The trace. Raises `MixError` if nothing of one kind comes within its time."""
    chats = list(_sessions("chat", mix.chats, _moments(mix.chats, mix, "chats", even=False), mix.seed))
    long = list(_sessions("long", mix.long, _moments(mix.long, mix, "long", even=mix.even), mix.seed))
    for option, kind, found in (("--chat-rate", mix.chats, chats), ("--long-rate", mix.long, long)):
        if not found:
            raise MixError(
                f"{option} {kind.rate:g}: none comes within --seconds {mix.seconds:g} with --seed {mix.seed}"
            )
    recipe: dict[str, str | int | float] = {
        "made_by": "loadgen mix",
        SPLIT: mix.chats.prompt.most,
        "seconds": mix.seconds,
        "seed": mix.seed,
        "even": int(mix.even),
        **_told("chat", mix.chats),
        **_told("long", mix.long),
    }
    return Header(FORMAT, VERSION, {}, 0.0, recipe), list(merge(chats, long, key=_arrival))


def _arrival(session: Session) -> float:
    assert session.arrival is not None
    return session.arrival


def _told(name: str, kind: Kind) -> dict[str, str | int | float]:
    when: dict[str, str | int | float] = {f"{name}_rate": kind.rate}
    if kind.users is not None:
        when = {f"{name}_users": kind.users, f"{name}_turns": kind.turns}
    return when | {f"{name}_prompt": str(kind.prompt), f"{name}_output": str(kind.output)}


def _moments(kind: Kind, mix: Mix, name: str, *, even: bool) -> Iterator[float]:
    """When they come, in seconds from the beginning; users within the first second, evenly."""
    if kind.users is not None:
        yield from (round(user / kind.users, 3) for user in range(kind.users))
        return
    stream = random.Random(f"{mix.seed}/{name}")
    arrivals = Constant(kind.rate) if even else Poisson(kind.rate, stream.randrange(2**31))
    first = 0.5 / kind.rate if even else stream.expovariate(kind.rate)
    endless: Iterator[None] = iter(lambda: None, 0)
    for moment in arrivals.times(endless):
        if (at := first + moment) >= mix.seconds:
            return
        yield round(at, 3)


def _sessions(name: str, kind: Kind, moments: Iterator[float], seed: int) -> Iterator[Session]:
    lengths = random.Random(f"{seed}/{name}/lengths")
    for number, moment in enumerate(moments, 1):
        turns = tuple(_turn(kind, lengths) for _ in range(kind.turns))
        yield Session(session=f"{name}{number:04d}", arrival=moment, turns=turns)


def _turn(kind: Kind, lengths: random.Random) -> Turn:
    prompt = lengths.randint(kind.prompt.least, kind.prompt.most)
    output = lengths.randint(kind.output.least, kind.output.most)
    return Turn(input_tokens=prompt, output_tokens=output, seed=lengths.randrange(2**31))
