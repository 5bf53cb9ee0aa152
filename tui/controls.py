"""The controls: what each can be and how that reads, which key changes it, and what changed between two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from engine.protocol import (
    MAX_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    MAX_WAIT,
    Allocation,
    Batching,
    Control,
    EngineInfo,
    Preempt,
    ReservedFit,
    SchedulingPolicy,
)
from tui.commands import Ask

_SEPARATORS = str.maketrans("", "", ",_ \u00a0\u202f")  # of thousands
_LEAST_WAIT = 0.25  # seconds, under which halving goes to 0


@dataclass(frozen=True, slots=True)
class Keyed:
    """A control and the key that moves it to the next of its `choices`."""

    key: str
    field: str  # of Control
    name: str
    short: str
    choices: tuple[Any, ...]

    def after(self, value: Any) -> Any:
        """The choice that follows `value`, round and round."""
        return self.choices[(self.choices.index(value) + 1) % len(self.choices)]

    @property
    def allowed(self) -> str:
        return (" / " if len(self.choices) < 4 else "/").join(map(word, self.choices))


@dataclass(frozen=True, slots=True)
class Number:
    """A control that is a number from `least` to `most`, and the key that asks for it (empty: none).

    `zero` is what 0 stands for, `unit` what others are in.
    """

    key: str
    field: str
    name: str
    short: str
    least: int
    most: int
    zero: str = ""
    unit: str = ""

    @property
    def allowed(self) -> str:
        return f"{self.least:,} to {self.most:,}{self.unit}{f', 0: {self.zero}' if self.zero else ''}"

    def reads(self, value: float) -> str:
        return self.zero if self.zero and not value else f"{word(value)}{self.unit}"

    def ask(self, control: Control) -> Ask:
        """Ask for it, beginning with what it is."""
        return Ask(self.field, f"{self.name} ({self.allowed})", word(getattr(control, self.field)))

    def read(self, text: str) -> float:
        """The number that a person wrote, thousands separated or not. Raises ValueError: it names what is allowed."""
        plain = text.strip().removesuffix(self.unit.strip()).translate(_SEPARATORS)
        try:
            value: float = float(plain) if self.unit else int(plain)
        except ValueError:
            value = self.least - 1
        if not plain.isascii() or not self.least <= value <= self.most:
            kind = "number" if self.unit else "whole number"
            raise ValueError(f"{self.name}: must be a {kind} from {self.allowed}, got {text[:40]!r}")
        return value

    def doubled(self, control: Control) -> float:
        return min(self.most, (self._in_force(control) * 2) or 1)

    def halved(self, control: Control) -> float:
        value = self._in_force(control)
        if self.unit:
            return value / 2 if value / 2 >= _LEAST_WAIT else 0.0
        return max(self.least, value // 2, 1)

    def _in_force(self, control: Control) -> float:
        """Its value, or what 0 stands for."""
        value: float = getattr(control, self.field)
        if self.field == "max_prefill_chunk" and not value:
            return max(1, control.max_num_batched_tokens // 2)
        return value


KEYED = (
    Keyed("m", "batching", "batching", "batching", get_args(Batching)),
    Keyed("a", "allocation", "allocation", "alloc", get_args(Allocation)),
    Keyed("f", "reserved_fit", "reserved fit", "fit", get_args(ReservedFit)),
    Keyed("c", "prefix_cache", "prefix cache", "cache", (True, False)),
    Keyed("s", "scheduling_policy", "policy", "policy", get_args(SchedulingPolicy)),
    Keyed("w", "preempt", "preempt", "preempt", get_args(Preempt)),
    Keyed("k", "chunked_prefill", "chunked prefill", "chunks", (True, False)),
)
BY_FIELD = {keyed.field: keyed for keyed in KEYED}
_NUMBERS = (
    Number("l", "max_num_seqs", "batch limit", "batch limit", 1, MAX_NUM_SEQS),
    Number("b", "max_num_batched_tokens", "token budget", "budget", 1, MAX_BATCHED_TOKENS),
    Number("", "max_prefill_chunk", "longest chunk", "longest chunk", 0, MAX_BATCHED_TOKENS, "half the budget"),
    Number("", "max_wait", "longest wait", "longest wait", 0, int(MAX_WAIT), unit=" s"),
)
NUMBERS = {number.field: number for number in _NUMBERS}

AnyControl = Keyed | Number
_BY_ANY: dict[str, AnyControl] = {**BY_FIELD, **NUMBERS}
CONTROLS: tuple[AnyControl, ...] = tuple(
    _BY_ANY[field]
    for field in (
        "batching",
        "allocation",
        "reserved_fit",
        "prefix_cache",
        "max_num_seqs",
        "max_num_batched_tokens",
        "chunked_prefill",
        "max_prefill_chunk",
        "scheduling_policy",
        "max_wait",
        "preempt",
    )
)
_NAMED = ("reserved_fit", "prefix_cache", "preempt", "chunked_prefill", *NUMBERS)  # whose values do not name them


def word(value: Any) -> str:
    """A control's value as it reads."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) or value % 1 else f"{value:,.0f}"
    return str(value).replace("_", " ")


def reads(field: str, value: Any) -> str:
    """The value of a field as it reads, with its unit."""
    number = NUMBERS.get(field)
    return number.reads(value) if number else word(value)


def named(field: str) -> str:
    """What a person calls a field of Control."""
    return _BY_ANY[field].name


def idle(field: str, control: Control, engine: EngineInfo | None = None) -> str:
    """Why a control does nothing as things are; empty if it does something."""
    match field:
        case "reserved_fit" if control.allocation != "reserved":
            return "matters only under reserved"
        case "prefix_cache" if control.allocation == "reserved":
            return "reservations share nothing"
        case "max_prefill_chunk" if not control.chunked_prefill:
            return "matters only with chunked prefill"
        case "max_wait" if control.scheduling_policy != "shortest_prefill":
            return "matters only under shortest prefill"
        case "preempt" if engine is not None and not engine.num_host_blocks:
            return "no swap space: by recompute"
    return ""


def cannot(field: str, control: Control, engine: EngineInfo) -> dict[Any, str]:
    """The choices of a field that this engine would refuse, and why."""
    reservation = -(-engine.max_model_len // engine.block_size)
    if field == "allocation" and reservation > engine.num_blocks:
        return {"reserved": f"one reservation is {reservation:,} blocks, the pool {engine.num_blocks:,}"}
    if field == "preempt" and not engine.num_host_blocks:
        return {"swap": "no swap space"}
    return {}


def changes(before: Control, after: Control) -> list[tuple[str, str]]:
    """What differs between two controls, in words; what does nothing on a side counts as no change."""
    out = []
    for control in CONTROLS:
        field = control.field
        old, new = getattr(before, field), getattr(after, field)
        if old == new or (field in ("reserved_fit", "max_wait") and (idle(field, before) or idle(field, after))):
            continue
        name = f"{control.short} " if field in _NAMED else ""
        out.append((f"{name}{reads(field, old)}", reads(field, new)))
    return out
