"""What a format's reader is: it makes a session of each record, and says what it leaves out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from enum import StrEnum
from typing import ClassVar, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from loadgen.traces.model import FORMAT, VERSION, Header, Session, Turn, check_blocks

Key = TypeVar("Key")
Value = TypeVar("Value")


PLACES = 7  # decimal places of a second that are kept: 100 ns, the finest that a format has


class Format(StrEnum):
    """The formats that people have traces in."""

    CHAT = FORMAT
    MOONCAKE = "mooncake"
    BAILIAN = "bailian"
    BURSTGPT = "burstgpt"
    AZURE = "azure"
    SHAREGPT = "sharegpt"
    VLLM = "vllm"
    OPENAI_BATCH = "openai-batch"
    AIPERF = "aiperf"


class TimeUnit(StrEnum):
    """Of the numbers in a trace's times."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"

    @property
    def per_second(self) -> int:
        return {"s": 1, "ms": 1_000, "us": 1_000_000}[self.value]


class ReadOptions(msgspec.Struct, frozen=True):
    """What a file does not say of itself; None: as its format has it."""

    block_size: int | None = None
    time_unit: TimeUnit | None = None


class Reader(ABC):
    """One pass over a file's records, by the format's own rules.

    `line` is where the session begins that came last from `read` or `finish`; its times are in seconds, not yet from
    the first one on. `left_out` counts, in words, what the records hold and no session does.
    """

    format: ClassVar[Format]
    time_field: ClassVar[str] = "timestamp"  # that errors name
    head: ClassVar[str] = ""  # what the first record must be, if it is no session but says how the others are read
    may_be_array: ClassVar[bool] = False  # the file may be one JSON array
    block_size: ClassVar[int | None] = None  # tokens of a hash id; None: the format has none
    time_unit: ClassVar[TimeUnit | None] = None  # None: it has no times, or they are no mere numbers

    def __init__(self, options: ReadOptions) -> None:
        """Raises `ValueError` if an option is given that the format has no use for."""
        for name in ("block_size", "time_unit"):
            if getattr(options, name) is not None and getattr(self, name) is None:
                raise ValueError(f"--{name.replace('_', '-')}: the format {self.format} has none to set")
        self.line = 0
        self.left_out: Counter[str] = Counter()
        unit = options.time_unit or self.time_unit
        self._per_second = unit.per_second if unit else 1
        recipe: dict[str, str | int | float] = {"source_format": str(self.format)}
        if unit:
            recipe["time_unit"] = str(unit)
        self._block_size = options.block_size or self.block_size
        self.header = Header(FORMAT, VERSION, recipe=recipe, block_size=self._block_size or UNSET)

    def begin(self, record: bytes) -> None:
        """Take the head that the format has. Raises `ValueError` or `msgspec.MsgspecError` that names the field."""
        raise AssertionError(f"{self.format} has no head")

    @abstractmethod
    def read(self, line: int, record: bytes) -> Session | None:
        """The session of a record, if one is whole now. Raises `ValueError` or `msgspec.MsgspecError` as `begin`."""

    def finish(self) -> Session | None:
        """The session that the end of the file made whole."""
        return None

    def prompt(self, input_tokens: int, output_tokens: int, hash_ids: tuple[int, ...] | UnsetType) -> Turn:
        """A turn whose text is not known. Raises `ValueError` unless there is an id for each block of it."""
        if hash_ids is not UNSET and self._block_size:
            check_blocks(hash_ids, input_tokens, self._block_size)
        return Turn(input_tokens=input_tokens, output_tokens=output_tokens, hash_ids=hash_ids)

    def seconds(self, time: float) -> float:
        """A time of the file, to 100 ns."""
        return round(time / self._per_second, PLACES)


class Recent(OrderedDict[Key, Value]):
    """A dict of the latest entries only, so that a long trace needs no more memory than a short one."""

    LIMIT = 100_000

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self.LIMIT:
            self.popitem(last=False)
