"""How many workers of each role there are to be: who is to start, and who is to go. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from engine.cluster.protocol import ClusterControl, Role, WorkerPhase

# The field of ClusterControl that says how many of a role are wanted.
FIELDS: dict[Role, Literal["prefill", "decode", "replicas"]] = {
    "prefill": "prefill",
    "decode": "decode",
    "replica": "replicas",
}
SERVING: tuple[Role, ...] = ("decode", "replica")  # who is there to end what a request wants
HANDING: tuple[Role, ...] = ("prefill", "decode")  # who gives others its KV, or takes theirs

PROCESS_BYTES = 200 << 20  # that an engine's process takes beside its KV, with the smallest model (205 MB measured)


class ClusterControlError(ValueError):
    """A control that a cluster cannot take; the message names the field and what is allowed."""


class Member(Protocol):
    """A worker, as far as its coming and going goes."""

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> Role: ...

    @property
    def phase(self) -> WorkerPhase: ...


class Plan(NamedTuple):
    """`start` has the names of new workers, in order; `revive` and `drain` those of others."""

    start: tuple[tuple[str, Role], ...]
    revive: tuple[str, ...]
    drain: tuple[str, ...]


def wanted(control: ClusterControl, role: Role) -> int:
    return int(getattr(control, FIELDS[role]))


def total(control: ClusterControl) -> int:
    """Workers of all roles."""
    return sum(wanted(control, role) for role in FIELDS)


def check(control: ClusterControl) -> None:
    """Raises ClusterControlError for one with which nobody would be there to decode."""
    if not control.decode and not control.replicas:
        raise ClusterControlError("decode: must be at least 1 where there are no replicas, got 0")


def too_much(control: ClusterControl, each: int, memory: int) -> str:
    """Why a machine with so many bytes of memory cannot have such workers, `each` with so many for KV; "" if it can."""
    workers = total(control)
    if workers * (each + PROCESS_BYTES) <= memory:
        return ""
    return (
        f"{workers} engines with {each / 2**30:.1f} GiB each, swap space included, and {PROCESS_BYTES >> 20} MiB for "
        f"its process, need more than this machine's {memory / 2**30:.1f} GiB"
    )


def largest(control: ClusterControl) -> str:
    """The field of the role of which most are wanted."""
    return max(FIELDS.values(), key=lambda field: int(getattr(control, field)))


def told(control: ClusterControl) -> str:
    """For a person."""
    counts = ", ".join(f"{field} {getattr(control, field)}" for field in FIELDS.values())
    separate = "on" if control.separate else "off"
    return f"{counts}, separate {separate}, routing {control.routing}, local prefill {control.local_prefill}"


def plan(control: ClusterControl, members: Sequence[Member]) -> Plan:
    """What brings these workers, in the order of their starts, to the numbers wanted.

    Of too many the newest go. The last one that can serve does not go before another one can. One that is dead is not
    replaced: it would be so at once again, and is forgotten with the next change.
    """
    start: list[tuple[str, Role]] = []
    revive: list[str] = []
    drain: list[str] = []
    taken = {member.name for member in members}
    for role in FIELDS:
        mine = [member for member in members if member.role == role]
        stay = [member for member in mine if member.phase != "draining"]
        missing = wanted(control, role) - len(stay)
        if missing < 0:
            drain += [member.name for member in reversed(stay[missing:])]
        elif missing > 0:
            back = [member.name for member in mine if member.phase == "draining"][:missing]
            revive += back
            for _ in range(missing - len(back)):
                name = _free_name(role, taken)
                taken.add(name)
                start.append((name, role))
    return Plan(tuple(start), tuple(revive), tuple(_without_the_last(drain, members)))


def _free_name(role: Role, taken: set[str]) -> str:
    number = 0
    while f"{role}-{number}" in taken:
        number += 1
    return f"{role}-{number}"


def _without_the_last(drain: list[str], members: Sequence[Member]) -> list[str]:
    """Those of `drain` that may go now: one of those that serve stays while no other can. Where nobody is there who
    decodes, those are prefill workers."""
    ready = [member for member in members if member.phase == "ready"]
    able = [member.name for member in ready if member.role in SERVING] or [member.name for member in ready]
    if not able or any(name not in drain for name in able):
        return drain
    return [name for name in drain if name != able[0]]
