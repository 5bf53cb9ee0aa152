"""What an engine did during a run, derived from its snapshots and step records. Pure.

Waste and sharing are weighted by time: what a record states holds until the next one. A share is
slot-seconds wasted over slot-seconds held, so that idle time counts nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from engine.protocol import Control, Counters, Record, SharingLedger, Snapshot, WasteLedger, counted
from loadgen.continued import Continued
from loadgen.interference import Interference
from loadgen.transfers import Transfers

Figure = float | int | str | bool | list[str] | None

MOST_MOMENTS = 8192  # that are kept: then every second one goes, and of those to come


@dataclass(frozen=True, slots=True)
class Moment:
    """What held from `time` (the engine's clock) on, for the plots."""

    time: float
    rows: int
    held: int
    internal: int
    external: int
    saved_blocks: int
    logical_blocks: int


def _since(before: msgspec.Struct, after: msgspec.Struct) -> dict[str, int]:
    """What each total has grown by."""
    old = msgspec.structs.asdict(before)
    return {name: value - old[name] for name, value in msgspec.structs.asdict(after).items()}


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


@dataclass(slots=True)
class _Area:
    """Integrals over time of what the ledgers say, in slot-seconds and block-seconds."""

    busy: float = 0.0  # seconds with slots held
    held: float = 0.0
    internal: float = 0.0
    external: float = 0.0
    saved_blocks: float = 0.0
    saved_bytes: float = 0.0

    def add(self, waste: WasteLedger, sharing: SharingLedger, seconds: float) -> None:
        if waste.held:
            self.busy += seconds
        self.held += waste.held * seconds
        self.internal += waste.internal * seconds
        self.external += waste.external * seconds
        self.saved_blocks += sharing.saved_blocks * seconds
        self.saved_bytes += sharing.saved_bytes * seconds


@dataclass(slots=True)
class EngineFigures:
    """Takes the records after `first` in order, then gives the figures of the window up to a last snapshot.

    The window begins with the first request after `first`, or with `first` if the engine is at work then: an idle
    engine's snapshot has the time of its last record, which may be long ago.
    """

    first: Snapshot
    next_seq: int = field(init=False)
    began: float = field(init=False)
    lost_records: int = 0
    interference: Interference = field(default_factory=Interference)
    transfers: Transfers = field(default_factory=Transfers)
    continued: Continued = field(default_factory=Continued)
    moments: list[Moment] = field(default_factory=list)  # every `_keep_every`-th record's
    _keep_every: int = 1
    _records: int = 0
    _area: _Area = field(default_factory=_Area)
    _time: float = field(init=False)
    _waste: WasteLedger = field(init=False)
    _sharing: SharingLedger = field(init=False)
    _steps: int = 0
    _steps_seconds: float = 0.0
    _longest_step: float | None = None
    _transfer_seconds: float = 0.0
    _preempted: Counter[str] = field(default_factory=Counter)
    _peak_host_blocks: int = field(init=False)
    _rows: int = 0
    _peak_rows: int = 0
    _peak_internal: float | None = None
    _peak_external: int = 0
    _peak_saved: tuple[int, int] = (0, 0)
    _modes: dict[str, None] = field(default_factory=dict)
    _begun: bool = field(init=False)
    _counters: Counters = field(init=False)  # by the records that came
    _control: Control = field(init=False)
    _host_blocks: int = field(init=False)

    def __post_init__(self) -> None:
        self.next_seq = self.first.seq + 1
        self.began = self._time = self.first.time  # on the engine's clock
        self._begun = bool(self.first.requests or self.first.waste.held)
        self._waste, self._sharing = self.first.waste, self.first.sharing
        self._peak_host_blocks = self._host_blocks = self.first.host_blocks
        self._counters, self._control = self.first.counters, self.first.control
        self.continued.begin(self.first.requests)
        self._peaks()

    def add(self, record: Record) -> None:
        """Take the next record; numbers missing before it are counted as lost, one seen already is left out."""
        if record.seq < self.next_seq:
            return
        self.lost_records += record.seq - self.next_seq
        self.next_seq = record.seq + 1
        if not self._begun:
            self.began = self._time = min([record.time, *(arrived.time for arrived in record.arrived)])
            self._begun = True
        self._advance(record.time, record.waste, record.sharing)
        self._modes[f"{record.control.batching}+{record.control.allocation}"] = None
        self._counters, self._control = counted(self._counters, record), record.control
        self._host_blocks = record.host_blocks
        self._peak_host_blocks = max(self._peak_host_blocks, record.host_blocks)
        self._transfer_seconds += record.durations.transfer
        if record.rows:
            seconds = sum(msgspec.structs.astuple(record.durations))
            self._steps += 1
            self._steps_seconds += seconds
            self._longest_step = max(seconds, self._longest_step or 0.0)
            self._rows += len(record.rows)
            self._peak_rows = max(self._peak_rows, len(record.rows))
            self.interference.add(record, seconds)
        self.transfers.add(record)
        self.continued.add(record)
        self._keep(record)

    def _keep(self, record: Record) -> None:
        """Remember the moment for the plots, in bounded memory."""
        self._records += 1
        if (self._records - 1) % self._keep_every:
            return
        waste, sharing = record.waste, record.sharing
        self.moments.append(
            Moment(
                record.time,
                len(record.rows),
                waste.held,
                waste.internal,
                waste.external,
                sharing.saved_blocks,
                sharing.logical_blocks,
            )
        )
        if len(self.moments) > MOST_MOMENTS:
            del self.moments[1::2]
            self._keep_every *= 2

    def _advance(self, time: float, waste: WasteLedger, sharing: SharingLedger) -> None:
        self._area.add(self._waste, self._sharing, time - self._time)
        self._time, self._waste, self._sharing = time, waste, sharing
        self._peaks()

    def _peaks(self) -> None:
        waste, sharing = self._waste, self._sharing
        if waste.held:
            self._peak_internal = max(self._peak_internal or 0.0, waste.internal / waste.held)
        self._peak_external = max(self._peak_external, waste.external)
        self._peak_saved = max(self._peak_saved, (sharing.saved_blocks, sharing.saved_bytes))

    def so_far(self) -> dict[str, Figure]:
        """The figures up to the last record, of an engine that tells no more: totals are of the records that came."""
        last = msgspec.structs.replace(
            self.first,
            seq=self.next_seq - 1,
            time=self._time,
            control=self._control,
            requests=(),
            blocks=(),
            waste=self._waste,
            sharing=self._sharing,
            counters=self._counters,
            host_blocks=self._host_blocks,
        )
        return self.figures(last)

    def figures(self, last: Snapshot) -> dict[str, Figure]:
        """The figures of the window from the first snapshot to `last`. Raises `ValueError` across a restart.

        Totals are differences of the engine's own counters, so lost records do not shorten them; means, peaks,
        percentiles, the seconds of transfer and what went to other engines are of the records that came.
        """
        if last.engine.started_unix != self.first.engine.started_unix or last.seq < self.first.seq:
            raise ValueError("the engine was restarted during the run")
        self.lost_records += max(0, last.seq + 1 - self.next_seq)
        self.next_seq = max(self.next_seq, last.seq + 1)
        self._advance(max(last.time, self._time), last.waste, last.sharing)
        engine, area = last.engine, self._area
        counted = _since(self.first.counters, last.counters)
        shared = _since(self.first.sharing, last.sharing)
        looked_up, found = shared["looked_up_tokens"], shared["found_tokens"]
        resumed_found = shared["resumed_found_tokens"]
        slots = engine.num_blocks * engine.block_size
        return {
            "model": engine.model,
            "dtype": engine.dtype,
            "quantize": engine.quantize,
            "device": engine.device,
            "block_size": engine.block_size,
            "num_blocks": engine.num_blocks,
            "max_model_len": engine.max_model_len,
            "modes": list(self._modes) or [f"{last.control.batching}+{last.control.allocation}"],
            "window_s": last.time - self.began,
            "busy_s": area.busy,
            "steps": counted["steps"],
            "mean_step_ms": _share(self._steps_seconds * 1000, self._steps),
            "max_step_ms": None if self._longest_step is None else self._longest_step * 1000,
            "mean_batch_rows": _share(self._rows, self._steps),
            "peak_batch_rows": self._peak_rows,
            **self.interference.figures(),
            "prefill_tokens": counted["prefill_tokens"],
            "decode_tokens": counted["decode_tokens"],
            "held_tokens": counted["held_tokens"],
            "sampled_tokens": counted["sampled_tokens"],
            "preemptions": counted["preemptions"],
            "preemptions_recompute": counted["preemptions"] - counted["swap_preemptions"],
            "preemptions_swap": counted["swap_preemptions"],
            "recomputed_tokens": counted["recomputed_tokens"],
            "num_host_blocks": engine.num_host_blocks,
            "peak_host_blocks": max(self._peak_host_blocks, last.host_blocks),
            "swapped_out_blocks": counted["swapped_out_blocks"],
            "swapped_in_blocks": counted["swapped_in_blocks"],
            "forks": counted["forks"],
            "copied_blocks": counted["copied_blocks"],
            "transfer_s": self._transfer_seconds,
            "mean_held_slots": _share(area.held, area.busy),
            "mean_internal_waste_share": _share(area.internal, area.held),
            "peak_internal_waste_share": self._peak_internal,
            "mean_external_waste_share": _share(area.external, area.busy * slots),
            "peak_external_waste_share": _share(self._peak_external, slots),
            "mean_saved_blocks": _share(area.saved_blocks, area.busy),
            "peak_saved_blocks": self._peak_saved[0],
            "mean_saved_bytes": _share(area.saved_bytes, area.busy),
            "peak_saved_bytes": self._peak_saved[1],
            "looked_up_tokens": looked_up,
            "found_tokens": found,
            "hit_rate": _share(found, looked_up),
            "found_prompt_tokens": found - shared["decoded_tokens"],
            "found_decoded_tokens": shared["decoded_tokens"],
            "found_copied_tokens": shared["copied_tokens"],
            "evicted_tokens": shared["evicted_tokens"],
            "forked_tokens": shared["forked_tokens"],
            "resumed_looked_up_tokens": shared["resumed_looked_up_tokens"],
            "resumed_found_tokens": resumed_found,
            "tokens_not_recomputed": found + resumed_found,
            **self.transfers.figures(),
            **self.continued.counts.figures(),
            "records_lost": self.lost_records,
        }


def since(moments: Sequence[Moment], start: float) -> list[Moment]:
    """The same moments on a clock that starts at `start`."""
    return [
        Moment(m.time - start, m.rows, m.held, m.internal, m.external, m.saved_blocks, m.logical_blocks)
        for m in moments
    ]
