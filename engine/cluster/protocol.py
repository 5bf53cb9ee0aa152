"""What a cluster of engines tells of itself, and what can be changed while it serves. Each engine's own step stream is
beside it, under `WorkerState.path`.

Everything was counted or measured: by the front, or by an engine in its step records. `None`: not known (yet).
Times are Unix seconds, durations are seconds. This module imports nothing but `engine.protocol`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from engine.protocol import EngineInfo

CLUSTER_VERSION = 1
MOST_WORKERS = 1024  # of each role
MOST_LOCAL_PREFILL = 1 << 20  # tokens
RECENT_TRANSFERS = 64

Role = Literal["prefill", "decode", "replica"]
WorkerPhase = Literal["starting", "ready", "draining", "dead"]
Routing = Literal["prefix", "least_loaded", "round_robin"]
TransferPhase = Literal["offered", "waiting", "moving", "overdue"]
Size = Annotated[int, msgspec.Meta(ge=0, le=MOST_WORKERS)]


class ClusterControl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What can be switched while requests run.

    With `separate`, prompts are prefilled by prefill workers and go on in decode workers; without it every worker
    serves whole requests, as replicas do: the same engines, colocated. A prompt of which at most `local_prefill` tokens
    are not cached where it would decode is prefilled there. The sizes are how many workers of each role are wanted;
    more are started, and what is too many is drained first.
    """

    separate: bool = True
    routing: Routing = "prefix"
    local_prefill: Annotated[int, msgspec.Meta(ge=0, le=MOST_LOCAL_PREFILL)] = 64
    prefill: Size = 0
    decode: Size = 0
    replicas: Size = 0


class StepTimes(msgspec.Struct, frozen=True):
    """Steps that had at least one decode row, as one engine measured them: their number, seconds in all, and p50 and
    p99 of the seconds that one took (of the newest ones; None: there was none)."""

    steps: int = 0
    seconds: float = 0.0
    p50: float | None = None
    p99: float | None = None
    max: float | None = None


class Interference(msgspec.Struct, frozen=True):
    """What prefills cost the decodes beside them: `alone` are steps of decode rows only, `mixed` those with at least
    one prefill token too."""

    alone: StepTimes = StepTimes()
    mixed: StepTimes = StepTimes()


class TransferTotals(msgspec.Struct, frozen=True):
    """Requests handed over, since the worker's name was first used. `received`: what came. `sent`: what was kept for
    another until it needed that no more, also where that had some of it, or wanted none in the end."""

    requests: int = 0
    blocks: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    failed: int = 0  # did not come, and was computed again here
    expired: int = 0  # leases that nobody acknowledged


class WorkerState(msgspec.Struct, frozen=True):
    """One engine. Counts are as of its newest step record; of one that is not ready they are 0."""

    name: str  # "prefill-0"; kept over restarts
    role: Role
    phase: WorkerPhase
    path: str  # below the server's address, where its /engine/... routes are: "/workers/prefill-0"
    node: str  # the machine or Ray node it runs on
    reason: str = ""  # why it is dead, or starts again
    restarts: int = 0
    engine: EngineInfo | None = None
    seq: int = 0
    running: int = 0
    waiting: int = 0
    sending: int = 0  # prefilled, and held until another engine has the blocks
    receiving: int = 0  # have blocks whose contents are on their way
    held_blocks: int = 0
    cached_blocks: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    looked_up_tokens: int = 0
    found_tokens: int = 0
    received_tokens: int = 0  # prompt tokens that came from another engine
    load: float = 0.0  # as the router has it: outstanding tokens
    routed: int = 0  # requests sent there
    colocated: Interference = Interference()  # while it served whole requests
    separated: Interference = Interference()  # of a decode worker, while prompts were prefilled elsewhere
    sent: TransferTotals = TransferTotals()
    received: TransferTotals = TransferTotals()


class TransferState(msgspec.Struct, frozen=True):
    """A request between two engines. `offered`: the front has yet to place it. `waiting`: the decode side has not taken
    blocks for it yet. `moving`: they are being filled. `overdue`: for long nobody has told whether
    they were, and the request went on elsewhere; they are kept until somebody does, or the engine ends."""

    request: str
    lease: str
    source: str
    target: str  # "": not placed yet
    phase: TransferPhase
    blocks: int  # to be moved, as far as it is known: all of the prompt's, less those found at the target
    nbytes: int
    age: float  # since the offer


class TransferDone(msgspec.Struct, frozen=True):
    """One that ended: `waited` from the offer until the target had blocks for it, `moved` from then on."""

    request: str
    lease: str
    source: str
    target: str
    blocks: int
    nbytes: int
    waited: float
    moved: float
    time: float  # when it ended
    error: str = ""


class RouterState(msgspec.Struct, frozen=True):
    """`decisions`: looks for a worker; a request that is handed over takes some. `decision_seconds`: in all.
    `imbalance`: of the tokens sent to each worker that takes prompts, the most over the mean; None before the first."""

    decisions: int = 0
    decision_seconds: float = 0.0
    by_prefix: int = 0  # decisions that followed a cached prefix
    bounded: int = 0  # would have, but for the load there
    local: int = 0  # prefilled where they decode, though there was a prefill pool
    handed_over: int = 0
    recovered: int = 0  # went on elsewhere, after a death, a drain or an overdue transfer
    indexed_blocks: int = 0
    imbalance: float | None = None


class ClusterState(msgspec.Struct, frozen=True, tag="cluster"):
    """The whole of it at `time`; `number` grows with every change of workers, control or transfers."""

    number: int
    time: float
    control: ClusterControl
    workers: tuple[WorkerState, ...]
    transfers: tuple[TransferState, ...]
    recent: tuple[TransferDone, ...]  # the newest last
    router: RouterState
    version: int = CLUSTER_VERSION


encode_cluster = msgspec.json.Encoder().encode
decode_cluster = msgspec.json.Decoder(ClusterState).decode
