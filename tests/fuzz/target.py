"""A reader of what strangers wrote: good inputs to be damaged, and the errors that it says it raises."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.mutator import Mutator, zipped

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SHARED = ROOT.parent / "shared" / "traces"


class Wrong(Exception):
    """A reader did what no input may make it do."""


@dataclass(frozen=True)
class Target:
    """`read` takes an input and the folder for its files; it may raise `named` alone."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    read: Callable[[bytes, Path], object]
    named: tuple[type[Exception], ...]
    words: tuple[bytes, ...] = ()
    binary: bool = False
    may_be_zipped: bool = False

    def generator(self) -> Callable[[random.Random], bytes]:
        mutator = Mutator(self.seeds(), self.words, binary=self.binary)

        def make(chance: random.Random) -> bytes:
            data = mutator.make(chance)
            return zipped(data, chance) if self.may_be_zipped and chance.random() < 0.1 else data

        return make

    def take(self, data: bytes, folder: Path) -> type[Exception] | None:
        """Give it to the reader: which of its named errors came, None for none. Raises what else comes."""
        try:
            self.read(data, folder)
        except self.named as error:
            if not str(error).strip():
                raise Wrong(f"{type(error).__name__} says nothing") from error
            return type(error)
        return None


def jsons(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]
