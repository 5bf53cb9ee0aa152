"""What an engine must be like for others to take its KV, or to give it theirs."""

from __future__ import annotations

from typing import Literal, NamedTuple

from engine.protocol import Control


class Need(NamedTuple):
    """A setting, what it must be, and what it is."""

    setting: Literal["batching", "allocation", "device"]
    must: str
    got: str


def unmet(control: Control, device: str = "cpu") -> Need | None:
    """What keeps an engine on `device` from handing KV over while `control` is in force; None if nothing does. What
    `auto` comes to as a device only the engine's own host can tell."""
    if device not in ("auto", "cpu"):  # other processes map the memory that KV lies in
        return Need("device", "cpu", device)
    if control.batching != "continuous":
        return Need("batching", "continuous", control.batching)
    if control.allocation != "paged":
        return Need("allocation", "paged", control.allocation)
    return None
