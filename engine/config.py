"""How one engine is set up: what `paged-engine serve` was asked for, as one frozen value."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.kv_endpoint import KvPublishing
from engine.protocol import Control, Quantize
from engine.transfer.offer import LEASE_SECONDS

# none: nothing is handed over. shared_memory: between engines of one host. parent: blocks of other hosts are fetched by
# whoever started the engine; those of its own host are read as with shared_memory.
Transport = Literal["none", "shared_memory", "parent"]
DEFAULT_MODEL = "smollm2-135m"
DEFAULT_KV_MEMORY = 512 * 1024 * 1024


class EngineConfig(msgspec.Struct, frozen=True):
    """Settings fixed for an engine's life, and the control it starts with. `kv_memory` is in bytes."""

    model: str = DEFAULT_MODEL
    dtype: str = "auto"  # auto | bfloat16 | float16 | float32
    quantize: Quantize = "none"  # of the matrices, on a CPU: see `engine.quantizer`
    device: str = "auto"  # auto | cpu | cuda
    block_size: int = 16
    kv_memory: int = DEFAULT_KV_MEMORY
    swap_space: int = 0  # bytes of host memory for preempted requests' KV
    max_model_len: int | None = None  # None: the model's own, or what the pool holds if that is less
    control: Control = Control()
    check_invariants: bool = False  # assert the pool's invariants after every step
    seed: int = 0  # of the random `tiny` model
    check_every: int = 1000  # steps between two cheap checks of the books; 0: never
    crash_dir: str | None = None  # where crash files go; None: the cache folder's `crashes`
    step_timeout: float = 300.0  # seconds after which a step that does not end ends the process; 0: never
    faults: tuple[str, ...] = ()  # to be made to happen, for tests: see `engine.faults`
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    kv_events: KvPublishing | None = None  # where what changes in the prefix cache is published; None: nowhere
    name: str = ""  # of an engine that is one of several
    host: str = ""  # who says the same can read its memory; "": this machine's own name for itself
    transfer: Transport = "none"  # how KV comes from other engines
    lease_seconds: float = LEASE_SECONDS  # that blocks are kept for an engine that does not say it has them
    transfer_seconds: float = 20.0  # for a copy; between hosts for reading and writing each. Then all is computed
    tell_kv: bool = False  # what changes in the prefix cache, to the process that routes by it
    threads: int | None = None  # of the numerics; None: the machine's cores
    restarts: int = 0  # how often an engine was started before this one, after deaths
