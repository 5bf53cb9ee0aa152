"""What crosses the border between `benchmarks.compare` and those it measures: one JSON object a line each way."""

from __future__ import annotations

import msgspec

from benchmarks.works import Work
from engine.protocol import Quantize


class Settings(msgspec.Struct, frozen=True):
    """How the engine, and with it everyone else in a process of this program, is set up. `kv_memory` is in bytes."""

    model: str
    dtype: str
    kv_memory: int
    max_num_batched_tokens: int
    quantize: Quantize = "none"
    max_num_seqs: int = 64


class StepShape(msgspec.Struct, frozen=True):
    """`count` steps that computed `tokens` tokens, of which `sampled` rows went through the output layer."""

    tokens: int
    sampled: int
    count: int


class Run(msgspec.Struct, frozen=True):
    """One participant's run of a work; times in seconds.

    `token_seconds` is the mean time from one token to the next, of a single request; `steps` are times of single
    steps, for `benchmarks.growth`. `durations` are sums over the steps, by the names of `engine.protocol.Durations`;
    `parts` by those of `Parts`, for the floor its products'.
    """

    seconds: float
    output_tokens: int
    token_seconds: float | None = None
    prefill_tokens: int | None = None
    distinct_tokens: int | None = None
    schedule: tuple[StepShape, ...] = ()
    durations: dict[str, float] = {}
    parts: dict[str, float] = {}
    steps: tuple[float, ...] = ()
    note: str = ""

    @property
    def output_rate(self) -> float:
        """Output tokens per second."""
        return self.output_tokens / self.seconds


class Facts(msgspec.Struct, frozen=True):
    """What must be known of a model before works can be made."""

    vocab_size: int
    max_model_len: int
    weight_bytes: int
    kv_bytes_per_token: int
    dtype: str


class Do(msgspec.Struct, frozen=True, tag="do"):
    """Run `work`. The floor gets the `schedule` that the engine ran, instead of the work itself."""

    work: Work
    batching: str = "continuous"
    schedule: tuple[StepShape, ...] = ()


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    facts: Facts | None = None


class Say(msgspec.Struct, frozen=True, tag="say"):
    """How far a run is."""

    text: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    run: Run


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    reason: str


FromWorker = Ready | Say | Done | Failed

encode = msgspec.json.Encoder().encode
decode_do = msgspec.json.Decoder(Do).decode
decode_settings = msgspec.json.Decoder(Settings).decode
decode_answer = msgspec.json.Decoder(FromWorker).decode
