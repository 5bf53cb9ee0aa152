"""What is asked of a simulation and what it answers; the JSON of `paged-engine simulate` is this."""

from __future__ import annotations

import msgspec

from engine.cluster.protocol import ClusterControl, Role, RouterState
from engine.protocol import Control
from engine.simulator.hardware import Roofline
from engine.simulator.ideal import Ideal
from engine.simulator.runner import StepCost
from engine.simulator.slo import Slo
from engine.transfer.offer import LEASE_SECONDS


class Settings(msgspec.Struct, frozen=True):
    """What was simulated. `num_blocks` None: a pool that never has to evict. Sizes in tokens, memory in blocks."""

    control: Control
    block_size: int
    num_blocks: int | None
    num_host_blocks: int
    kv_bytes_per_token: int
    max_model_len: int
    cost: StepCost | Roofline
    speed: float = 1.0
    crowd: float = 1.0  # arrivals alone are so many times as fast again
    requests: int = 1
    fresh: bool = True  # each repetition of the trace is new text
    partial_hits: bool = True  # also parts of cached blocks are found, and copied
    check_invariants: bool = False


class Percentiles(msgspec.Struct, frozen=True):
    """Seconds, with linear interpolation; None where nobody was counted."""

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


class Requests(msgspec.Struct, frozen=True):
    """How the requests fared. `refused` could never run; `unsent` are later turns of theirs."""

    total: int
    completed: int
    cut_short: int  # of these: the context was full before the answer was whole
    refused: int
    unsent: int
    prompt_tokens: int  # of completed ones
    output_tokens: int


class Hits(msgspec.Struct, frozen=True):
    """The prefix cache at first admissions. A prompt's last, shorter block counts as a block too."""

    looked_up_tokens: int
    found_tokens: int
    looked_up_blocks: int
    found_blocks: int
    copied_tokens: int  # of the found ones: parts of blocks
    evicted_tokens: (
        int  # not found, though cached once: of each request, those in the run of blocks after what it found
    )
    token_rate: float | None
    block_rate: float | None
    ideal: Ideal
    ideal_repeated_rate: float
    ideal_reusable_rate: float


class Waste(msgspec.Struct, frozen=True):
    """Slots, each step weighted by its seconds (by 1 if steps take no time). `external` lies in short holes."""

    mean_held: float
    mean_filled: float
    internal_share: float  # of the held slots: not filled
    external_share: float  # of the pool: free and of no use
    peak_held_blocks: int
    peak_used_blocks: int  # cached ones included


class Preemptions(msgspec.Struct, frozen=True):
    recompute: int
    swap: int
    lost_tokens: int  # to be computed again
    swapped_out_blocks: int
    requests: int  # preempted at least once


class Queueing(msgspec.Struct, frozen=True):
    """`wait` is from a request's arrival to the step it first runs in; one still waiting is not in it."""

    wait: Percentiles
    max_length: int
    time_to_first_token: Percentiles
    end_to_end: Percentiles
    inter_token: Percentiles = Percentiles(0)  # the gaps between the tokens of all answers, to 0.4 %


class Throughput(msgspec.Struct, frozen=True):
    """Over simulated seconds from the first arrival to the last end; rates are None where no time passed."""

    seconds: float
    busy_seconds: float
    steps: int
    mean_rows: float
    computed_tokens: int
    requests_per_second: float | None
    prompt_tokens_per_second: float | None
    output_tokens_per_second: float | None


class SimulationCost(msgspec.Struct, frozen=True):
    """What the prediction itself took; memory is the whole process's peak."""

    complete: bool
    wall_seconds: float
    peak_memory_bytes: int


class Prediction(msgspec.Struct, frozen=True):
    """What an engine with these settings would do with a trace."""

    settings: Settings
    requests: Requests
    hits: Hits
    waste: Waste
    preemptions: Preemptions
    queue: Queueing
    throughput: Throughput
    simulation: SimulationCost


class Pools(msgspec.Struct, frozen=True):
    """Several engines, each with the pool and the costs that `Settings` has, behind the router.

    Each has a `link` of so many bytes a second in each direction, which its transfers share alike; one goes at what the
    busier end leaves it, `link_latency` seconds after it was begun.
    """

    control: ClusterControl
    link: float
    link_latency: float = 0.0
    lease_seconds: float = LEASE_SECONDS
    slo: Slo | None = None


class RoleUse(msgspec.Struct, frozen=True):
    """What the engines of one role did, together. `busy_share` is of the seconds that all of them had."""

    engines: int
    steps: int
    computed_tokens: int
    busy_seconds: float
    busy_share: float | None
    most_busy_share: float | None  # of the one that did the most


class TransfersMade(msgspec.Struct, frozen=True):
    """`waited`: from the offer until there were blocks for it; `moved`: from then until they were filled."""

    done: int
    failed: int  # computed again instead
    expired: int  # leases that ended before anybody had what was offered
    blocks: int
    nbytes: int
    waited: Percentiles
    moved: Percentiles


class Goodput(msgspec.Struct, frozen=True):
    """Requests that kept to all limits, of those served; a gap beyond the limit is one too many."""

    slo: Slo
    met: int
    share: float | None
    requests_per_second: float | None


class PoolsPrediction(Prediction, frozen=True):
    """What several engines would do. Figures of `Prediction` are of all of them; `waste` is that of one while it has
    rows, its peaks those of the fullest."""

    pools: Pools
    roles: dict[Role, RoleUse]
    transfers: TransfersMade
    router: RouterState
    goodput: Goodput | None
