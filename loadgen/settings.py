"""What one run was asked for: the options of `loadgen replay` as data, kept in the head of the run's file."""

from __future__ import annotations

import msgspec

SEPARATED, COLOCATED = "separated", "colocated"  # what prefill and decode workers do: each its part, or all of it


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything but secrets and where figures go. None: not asked for.

    `arrivals` is what `loadgen.arrivals.parse_arrivals` reads; `control` is set on the engine before the run.
    """

    file: str
    format: str | None = None
    skip_bad: bool = False
    block_size: int | None = None  # tokens of a hash id; None: as the trace's format has it
    time_unit: str | None = None  # of the trace's times, "s", "ms" or "us"; None: as its format has it
    sessions: int | None = None
    url: str | None = None  # None: an engine of loadgen's own
    metrics_url: str | None = None  # None: its metrics are where servers of its kind have them
    headers: tuple[str, ...] = ()  # names of those that go with every request beside loadgen's own
    ca_file: str | None = None  # whose certificates are believed; None: the system's
    insecure: bool = False  # any certificate is believed
    engine_args: tuple[str, ...] = ()
    model: str | None = None
    arrivals: str = "recorded"
    speed: float = 1.0
    concurrency: int | None = None
    seed: int = 0
    workers: int = 1
    timeout: float = 3600.0
    retries: int = 0
    retry_refused: int = 0
    pools: str | None = None  # of a cluster: `SEPARATED` or `COLOCATED`, set before the run; None: as they are
    control: dict[str, str | int | float | bool] = {}
    endpoint: str | None = None  # "chat" or "completions"; None: what the trace's turns ask for
    stream: bool = True
    ignore_eos: bool = True
    extra_body: dict[str, object] = {}
    tokenizer: str | None = None
    length_scale: float | None = None
    too_long: str = "error"  # "error", "skip", "cut"
    probe: bool = True  # one small request before the run finds out what the server cannot do
    warmup: str | None = None
    cooldown: str | None = None
    slo: str | None = None
    split_prompt_tokens: int | None = None  # prompts of up to so many are told apart; None: as the trace says
    until: tuple[str, ...] = ()
