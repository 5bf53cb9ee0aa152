"""What one worker does, counted from its step records and from nothing else, so that it cannot disagree with them."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter, deque

import msgspec

from engine.cluster.protocol import Interference, StepTimes, TransferTotals, WorkerState
from engine.protocol import HAS_ENDED, Counters, PoolTotals, Record, RequestStatus, SharingLedger, Snapshot, counted

WINDOW = 1024  # of the newest steps: what percentiles are of


class WorkerTally:
    """Takes every record in order; `told` fills a worker's state with what they came to.

    When records are missing, nothing is taken until `resume` gets a snapshot: the times of the steps lost, and the
    transfers that ended in them, are in no total. What another engine under the same name begins anew is said at
    `begin_again`.
    """

    def __init__(self) -> None:
        self._colocated = _Interference()
        self._separated = _Interference()
        self._sent = TransferTotals()
        self._received = TransferTotals()
        self.begin_again()

    def begin_again(self) -> None:
        """Another engine serves, with an empty pool. Step times and transfers go on: they are the name's."""
        self.seq = 0
        self.lost = False
        self._status: dict[str, RequestStatus] = {}
        self._with: Counter[RequestStatus] = Counter()  # how many requests have each status
        self._counters = Counters()
        self._pool = PoolTotals()
        self._sharing = SharingLedger()

    def take(self, record: Record, separate: bool) -> None:
        """Take the next record, of a time when prompts were prefilled by others (`separate`) or here; sets `lost` if
        records before it are missing."""
        if record.seq <= self.seq:
            return  # a snapshot told it already
        if record.seq != self.seq + 1:
            self.lost = True
        if self.lost:
            return
        self.seq = record.seq
        self._counters = counted(self._counters, record)
        self._pool, self._sharing = record.pool, record.sharing
        self._take_statuses(record)
        self._take_transfers(record)
        (self._separated if separate else self._colocated).take(record)

    def resume(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot after records were lost."""
        self.seq, self.lost = snapshot.seq, False
        self._counters, self._pool, self._sharing = snapshot.counters, snapshot.pool, snapshot.sharing
        self._status = {state.request: state.status for state in snapshot.requests}
        self._with = Counter(self._status.values())

    def told(self, worker: WorkerState) -> WorkerState:
        """The state of a worker whose engine serves, with the counts in it."""
        pool, counters = self._pool, self._counters
        return msgspec.structs.replace(
            self.told_of_name(worker),
            seq=self.seq,
            running=self._with["running"],
            waiting=self._with["waiting"],
            sending=self._with["sending"],
            receiving=self._with["receiving"],
            held_blocks=pool.reserved + pool.filling + pool.full + pool.shared,
            cached_blocks=pool.cached,
            prefill_tokens=counters.prefill_tokens,
            decode_tokens=counters.decode_tokens,
            looked_up_tokens=self._sharing.looked_up_tokens,
            found_tokens=self._sharing.found_tokens,
            received_tokens=counters.received_tokens,
        )

    def told_of_name(self, worker: WorkerState) -> WorkerState:
        """The same of one whose engine does not serve: what goes on over restarts."""
        return msgspec.structs.replace(
            worker,
            colocated=self._colocated.told(),
            separated=self._separated.told(),
            sent=self._sent,
            received=self._received,
        )

    def _take_statuses(self, record: Record) -> None:
        for request in record.released:  # before arrivals: one of these may take its id
            self._drop(request)
        for arrived in record.arrived:
            self._put(arrived.request, "waiting")
        for receiving in record.receiving:
            self._put(receiving.request, "receiving")
        for done in record.transferred:
            if done.side == "received" and self._status.get(done.request) == "receiving":
                self._put(done.request, "waiting")  # `joined` says if it goes on at once
        for event in record.preempted:
            self._put(event.request, "waiting")
        for joined in record.joined:
            self._put(joined.request, "running")
        for ended in record.held:
            self._put(ended.request, "held")
        for offered in record.offered:
            self._put(offered.request, "sending")
        for left in record.left:
            self._drop(left.request)

    def _put(self, request: str, status: RequestStatus) -> None:
        self._drop(request)
        self._status[request] = status
        self._with[status] += 1

    def _drop(self, request: str) -> None:
        before = self._status.pop(request, None)
        if before is not None:
            self._with[before] -= 1

    def _take_transfers(self, record: Record) -> None:
        for done in record.transferred:
            totals = self._sent if done.side == "sent" else self._received
            if not done.error:
                changed = TransferTotals(
                    totals.requests + 1,
                    totals.blocks + done.blocks,
                    totals.nbytes + done.nbytes,
                    totals.seconds + done.seconds,
                    totals.failed,
                    totals.expired,
                )
            elif done.side == "sent":
                changed = msgspec.structs.replace(totals, expired=totals.expired + 1)
            elif done.error != HAS_ENDED:  # else nothing is computed again here
                changed = msgspec.structs.replace(totals, failed=totals.failed + 1)
            else:
                changed = totals
            if done.side == "sent":
                self._sent = changed
            else:
                self._received = changed


class _Interference:
    """What prefills cost the decodes beside them, in the steps of one kind of serving."""

    def __init__(self) -> None:
        self._alone = _StepTimes()
        self._mixed = _StepTimes()

    def take(self, record: Record) -> None:
        kinds = {row.kind for row in record.rows}
        if "decode" in kinds:
            seconds = math.fsum(msgspec.structs.astuple(record.durations))
            (self._mixed if "prefill" in kinds else self._alone).add(seconds)

    def told(self) -> Interference:
        return Interference(self._alone.told(), self._mixed.told())


class _StepTimes:
    """Steps of one kind: their number and seconds in all, and the newest one by one, in the order that they came in and
    in that of their length, so that percentiles cost nothing."""

    def __init__(self) -> None:
        self._steps = 0
        self._seconds = 0.0
        self._newest: deque[float] = deque()
        self._ordered: list[float] = []

    def add(self, seconds: float) -> None:
        self._steps += 1
        self._seconds += seconds
        if len(self._newest) == WINDOW:
            del self._ordered[bisect_left(self._ordered, self._newest.popleft())]
        self._newest.append(seconds)
        insort(self._ordered, seconds)

    def told(self) -> StepTimes:
        if not self._steps:
            return StepTimes()
        return StepTimes(self._steps, self._seconds, self._percentile(0.50), self._percentile(0.99), self._ordered[-1])

    def _percentile(self, share: float) -> float:
        """The least of the newest that at least this share of them does not exceed."""
        return self._ordered[math.ceil(share * len(self._ordered)) - 1]
