"""What is to be done by everyone who is compared: prompts of random token ids, and how much is to be generated.

Prompts are drawn anew for every round, so that no cache of an earlier one helps. The output lengths of `ragged` are
those of `traces/azure_conv_excerpt.csv` (AzureLLMInferenceTrace_conv, Azure/AzurePublicDataset, CC-BY-4.0), capped;
its prompts are short and equally long, so that what differs is how long the answers are.
"""

from __future__ import annotations

import csv
import itertools
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec

TRACE = Path(__file__).parent.parent / "traces" / "azure_conv_excerpt.csv"
FIRST_TOKEN = 256  # lower ids are special tokens and single bytes, where a vocabulary is as large as that
RAGGED_CAP = 512  # output tokens


class Work(msgspec.Struct, frozen=True):
    """Request i has the token ids `prompts[i]` and generates exactly `outputs[i]` tokens, greedily."""

    name: str
    prompts: tuple[tuple[int, ...], ...]
    outputs: tuple[int, ...]

    @property
    def output_tokens(self) -> int:
        return sum(self.outputs)

    @property
    def distinct_tokens(self) -> int:
        """The prompt tokens that differ, or follow ones that do: what must be computed at least."""
        ordered = sorted(self.prompts)
        shared = (_common(a, b) for a, b in itertools.pairwise(ordered))
        return sum(map(len, ordered)) - sum(shared)

    def cut(self, requests: int, output: int) -> Work:
        """The first requests of it, with short answers: to warm up with."""
        outputs = tuple(min(output, length) for length in self.outputs[:requests])
        return Work(self.name, self.prompts[:requests], outputs)


class Dice:
    """Draws token ids and counts; `scale` makes works smaller, for a trial."""

    def __init__(self, seed: str, vocab_size: int, scale: float) -> None:
        self._random = random.Random(seed)
        self._ids = range(min(FIRST_TOKEN, vocab_size // 4), vocab_size)
        self._scale = scale

    def scaled(self, count: int, least: int = 1) -> int:
        return max(least, round(count * self._scale))

    def prompt(self, tokens: int) -> tuple[int, ...]:
        return tuple(self._random.choices(self._ids, k=self.scaled(tokens)))

    def lengths(self, count: int, cap: int) -> tuple[int, ...]:
        """Output lengths in shuffled rounds of the trace, each once a round, so that its quantiles stay."""
        found: list[int] = []
        while len(found) < count:
            turn = list(_traced_lengths())
            self._random.shuffle(turn)
            found += turn
        return tuple(self.scaled(min(length, cap), least=2) for length in found[:count])


def _burst(dice: Dice) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    count = dice.scaled(64)
    return tuple(dice.prompt(256) for _ in range(count)), (dice.scaled(64, 2),) * count


def _single(dice: Dice) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    return (dice.prompt(64),), (dice.scaled(128, 2),)


def _ragged(dice: Dice) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    count = dice.scaled(256)
    return tuple(dice.prompt(64) for _ in range(count)), dice.lengths(count, RAGGED_CAP)


def _shared_prefix(dice: Dice) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    count, shared = dice.scaled(64), dice.prompt(960)
    return tuple(shared + dice.prompt(64) for _ in range(count)), (dice.scaled(64, 2),) * count


_MAKERS: dict[str, Callable[[Dice], tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]]] = {
    "burst": _burst,
    "single": _single,
    "ragged": _ragged,
    "shared-prefix": _shared_prefix,
}
WORKS = tuple(_MAKERS)
ABOUT = {
    "burst": "64 requests at once, 256 prompt tokens, 64 generated each",
    "single": "one request, 64 prompt tokens, 128 generated",
    "ragged": f"256 requests at once, 64 prompt tokens, output lengths of the Azure trace up to {RAGGED_CAP}",
    "shared-prefix": "64 requests at once, 960 prompt tokens shared and 64 of their own, 64 generated each",
}


def make_work(name: str, seed: str, vocab_size: int, scale: float = 1.0) -> Work:
    """The work `name`, the same for the same seed."""
    prompts, outputs = _MAKERS[name](Dice(f"{name} {seed}", vocab_size, scale))
    return Work(name, prompts, outputs)


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


@cache
def _traced_lengths() -> tuple[int, ...]:
    with TRACE.open(encoding="ascii", newline="") as file:
        return tuple(int(row["GeneratedTokens"]) for row in csv.DictReader(file))
