"""How hard `benchmarks.separation` loads its engines, from what these can do, which is measured first. Pure.

A long prompt that is computed in one step stops every chat beside it for L seconds, once. Is that in the p99 of all
gaps between tokens? Of the gaps of a chat that shares its engine with `r` such prompts a second, and otherwise gets a
token every `w` seconds, a share of r w / (1 - r L + r w) is such a stop: rarely 1 %, where steps are quick and stops
are long. So the number of chats, which sets w, is chosen for that share, and it is measured in each run and told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.mix import Kind, Lengths, Mix

LONG_PROMPT = 3000  # tokens
PREFILL_LOAD = 0.75  # of the prefill worker's time that long prompts take
STOPPED_SHARE = 0.025  # of the gaps of chats: two and a half times what a p99 needs
MOST_USERS = 200
LEAST_USERS = 8
CHAT_PROMPT = Lengths(16, 24)  # few tokens: chats are there to decode
CHAT_OUTPUT = Lengths(48, 80)
LONG_OUTPUT = Lengths(4, 4)


@dataclass(frozen=True, slots=True)
class Speed:
    """What one worker alone does: seconds of a long prompt, and of a step that decodes `rows` requests."""

    prefill: float
    step: float  # of no rows, by extrapolation
    row: float  # each more

    def __post_init__(self) -> None:
        if self.prefill <= 0 or self.row <= 0:
            raise ValueError(f"a prefill and a row take time, measured were {self.prefill:g} and {self.row:g} s")


@dataclass(frozen=True, slots=True)
class Load:
    """What is played: `users` who chat without a pause, and `rate` long prompts a second at even intervals."""

    users: int
    rate: float

    def mix(self, seconds: float, turns: int, seed: int) -> Mix:
        """The trace of it."""
        chats = Kind(1.0, CHAT_PROMPT, CHAT_OUTPUT, self.users, turns)
        return Mix(chats, Kind(self.rate, Lengths(LONG_PROMPT, LONG_PROMPT), LONG_OUTPUT), seconds, seed, even=True)


def fitted(prefill: float, few: tuple[float, float], many: tuple[float, float]) -> Speed:
    """From a long prompt, and from steps with few and with many rows: how many, and the seconds."""
    row = (many[1] - few[1]) / (many[0] - few[0])
    return Speed(prefill, max(0.0, few[1] - few[0] * row), row)


def chosen(speed: Speed) -> Load:
    """Chats, half of them beside each of two colocated workers, so that stops are that share of their gaps."""
    rate = PREFILL_LOAD / speed.prefill
    beside = rate / 2
    gap = STOPPED_SHARE * (1 - beside * speed.prefill) / (beside * (1 - STOPPED_SHARE))
    users = 2 * (gap - speed.step) / speed.row
    return Load(min(MOST_USERS, max(LEAST_USERS, math.ceil(users))), rate)


def stopped_share(gaps: Sequence[float], prefill: float) -> float | None:
    """Of gaps in seconds, how many are as long as half a long prompt takes; None without any."""
    return sum(gap > prefill / 2 for gap in gaps) / len(gaps) if gaps else None
