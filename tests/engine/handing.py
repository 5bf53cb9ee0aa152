"""Two engines that hand requests over, over mirrors of a device, and whoever stands in front of them: with a connector
that takes its time, writes garbage wherever it may, fails, and finds out when blocks change that must not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from engine.books import check_books
from engine.core import EngineCore, seeded
from engine.invariants import check_state
from engine.messages import Output, Taken
from engine.protocol import Control, FinishReason, Record, decode_item, encode
from engine.sampling_params import SamplingParams, SchedulingParams
from engine.transfer.connector import Ended, Transfer, Unavailable
from engine.transfer.offer import Offer, PoolPlace
from tests.engine.kv_fold import KvFold
from tests.engine.mirror import Clock, MirrorRunner, expected_output, mirror_core
from tui.checks import check_record
from tui.fold import EngineFold

Side = Literal["p", "d"]
OTHER: dict[Side, Side] = {"p": "d", "d": "p"}


class Job:
    """A transfer: `left` blocks are still to be copied. `fate` is how it ends once it is not held up any more."""

    def __init__(self, transfer: Transfer, began: float) -> None:
        self.transfer = transfer
        self.began = began
        self.left = list(transfer.pairs)
        self.loading = self.cancelled = False
        self.error = ""


class MirrorConnector:
    """Copies slots between mirrors, a block of each transfer whenever `tick` is called. `answer` is what it says of
    an offer: all that is wanting, its whole blocks alone, nothing, or that it cannot be read. Each of its methods that
    `breaks` names raises so often. An engine survives what it raises: what was wrong is kept."""

    def __init__(self, name: str, peers: dict[str, MirrorConnector], clock: Clock, block_size: int) -> None:
        self.name, self.peers, self.clock, self.block_size = name, peers, clock, block_size
        self.runner: MirrorRunner = None  # type: ignore[assignment]  # whoever makes the engine sets it
        self.leases: dict[str, tuple[tuple[int, ...], list[list[int | None]], float]] = {}
        self.jobs: dict[str, Job] = {}
        self.ended: list[Ended] = []
        self.answer: Literal["all", "whole", "nothing", "unreadable"] = "all"
        self.exports = 0
        self.breaks: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.read: list[tuple[str, int]] = []  # (lease, block), in the order in which they were copied
        peers[name] = self

    def block(self, block: int) -> list[int | None]:
        return self.runner.slots[block * self.block_size :][: self.block_size]

    def _break(self, method: str) -> None:
        if self.breaks[method]:
            self.breaks[method] -= 1
            raise OSError(f"{method} is broken")

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(what)

    def available(self, offer: Offer, found: int) -> int:
        self._require(found % self.block_size == 0, "a part of a block was found")
        self._break("available")
        if self.answer == "unreadable":
            raise Unavailable("it cannot be read")
        if offer.deadline <= self.clock.now:
            raise Unavailable("it has expired")
        if offer.place.path not in self.peers:
            raise Unavailable("its engine is gone")
        if self.answer == "nothing":
            return 0
        last = offer.tokens if self.answer == "all" else offer.tokens // self.block_size * self.block_size
        return last - found

    def allocated(self, transfer: Transfer) -> None:
        self._require(transfer.request not in self.jobs, "a request is transferred twice at once")
        self._require(bool(transfer.pairs), "nothing is transferred")
        self._break("allocated")
        self.jobs[transfer.request] = Job(transfer, self.clock.now)

    def load(self) -> None:
        self._break("load")
        for job in self.jobs.values():
            if not job.loading:
                job.loading = True
                for _, target in job.transfer.pairs:
                    self._write(target, [None] * self.block_size)

    def cancel(self, request: str) -> None:
        self._break("cancel")
        if request in self.jobs:  # else it has ended, and nobody has been told yet
            self.jobs[request].cancelled = True

    def fail(self, request: str, error: str) -> None:
        self.jobs[request].error = error

    def poll(self) -> Sequence[Ended]:
        self._break("poll")
        ended, self.ended = self.ended, []
        return ended

    def export(self, request: str, blocks: Sequence[int], tokens: int, deadline: float) -> Offer:
        self._break("export")
        self.exports += 1
        lease = f"{self.name}:{self.exports}:{request}"
        self.leases[lease] = (tuple(blocks), [self.block(block) for block in blocks], deadline)
        place = PoolPlace(host="host", path=self.name, name=self.name, nbytes=0, shape=(), strides=(), itemsize=1)
        return Offer(lease, self.name, "mirror", place, tuple(blocks), tokens, self.block_size * 8, deadline)

    def release(self, lease: str) -> None:
        self._check_unchanged(lease)
        del self.leases[lease]
        self._break("release")

    def tick(self) -> None:
        """A block of each transfer is copied, or garbage where that has failed; those with none left end."""
        for request, job in list(self.jobs.items()):
            if not job.loading and not job.cancelled:
                continue
            if not job.loading:
                job.left = []
            offer = job.transfer.offer
            peer = self.peers.get(offer.place.path)
            if job.left:
                source, target = job.left.pop(0)
                copied = [None] * self.block_size if peer is None or job.error or job.cancelled else peer.block(source)
                if peer is not None and offer.lease in peer.leases:
                    peer._check_unchanged(offer.lease)
                self._write(target, copied)
                self.read.append((offer.lease, source))
                continue
            error = job.error or ("cancelled" if job.cancelled else "")
            if peer is None:
                error = "its engine is gone"
            elif self.clock.now >= offer.deadline:
                error = "it has expired"
            self.ended.append(Ended(request, offer.lease, self.clock.now - job.began, error))
            del self.jobs[request]

    def _write(self, block: int, values: list[int | None]) -> None:
        self.runner.slots[block * self.block_size : (block + 1) * self.block_size] = values

    def _check_unchanged(self, lease: str) -> None:
        blocks, contents, deadline = self.leases[lease]
        if self.clock.now < deadline:
            same = [self.block(block) for block in blocks] == contents
            self._require(same, "blocks changed that others may read")


class Answer:
    """A request as its sender has it."""

    def __init__(self, prompt: list[int], sampling: SamplingParams, scheduling: SchedulingParams, limit: int) -> None:
        self.prompt, self.sampling, self.scheduling, self.limit = prompt, sampling, scheduling, limit
        self.family: tuple[str, ...] = ()
        self.place = 0
        self.tokens: list[int] = []
        self.arrived = 0.0
        self.side: Side | None = None  # None: it is between the two
        self.scores = 0  # places of its prompt that were scored

    @property
    def expected(self) -> tuple[list[int], FinishReason]:
        return expected_output(self.prompt, seeded(self.sampling, self.place), self.limit)


class Passing(msgspec.Struct):
    """Requests of one family that one engine has handed over, and that wait to be placed; `offer` None: it is gone."""

    names: list[str]
    offer: Offer | None


class Handing:
    """A prefill side `p`, a decode side `d`, and what stands in front of both. Every answer, record, block and offer
    is held against what it must be."""

    def __init__(
        self,
        blocks: tuple[int, int] = (32, 32),
        block_size: int = 4,
        max_model_len: int = 64,
        control: Control | None = None,
        host_blocks: int = 0,
        lease_seconds: float = 30.0,
    ) -> None:
        self.clock = Clock()
        self.peers: dict[str, MirrorConnector] = {}
        self.sizes: dict[Side, int] = {"p": blocks[0], "d": blocks[1]}
        self.block_size, self.max_model_len, self.host_blocks = block_size, max_model_len, host_blocks
        self.control, self.lease_seconds = control or Control(), lease_seconds
        self.cores: dict[Side, EngineCore] = {}
        self.connectors: dict[Side, MirrorConnector] = {}
        self.folds: dict[Side, EngineFold] = {}
        self.kv_folds: dict[Side, KvFold] = {}
        self.started = 0
        self.live: dict[str, Answer] = {}
        self.ends: dict[str, FinishReason] = {}  # of those that were told
        self.answers: dict[str, list[int]] = {}
        self.passing: list[Passing] = []
        self.placed: dict[
            str, Side
        ] = {}  # offers that were sent to a decode side and are to be told as taken, by lease
        self.taken: list[Taken] = []
        self.records: dict[Side, list[Record]] = {"p": [], "d": []}
        self.outputs: list[Output] = []
        self.costly = False  # faults may cost requests their answers
        self.releases = True  # whoever is told of a taken offer passes it on
        self.added = 0
        self.reached: Counter[str] = Counter()
        for side in ("p", "d"):
            self.start(side)

    def start(self, side: Side) -> None:
        """An engine with nothing in it, in the place of the one that there was: what that one had is gone."""
        if side in self.connectors:
            del self.peers[self.connectors[side].name]
        self.started += 1
        connector = MirrorConnector(f"{side}{self.started}", self.peers, self.clock, self.block_size)
        core = mirror_core(
            self.sizes[side],
            self.block_size,
            self.max_model_len,
            self.control,
            self.host_blocks,
            kv_events=True,
            connector=connector,
            lease_seconds=self.lease_seconds,
            clock=self.clock,
        )
        assert isinstance(core.runner, MirrorRunner)
        connector.runner = core.runner
        core.runner.during = self.tick
        self.connectors[side], self.cores[side] = connector, core
        self.folds[side], self.kv_folds[side] = EngineFold.from_snapshot(core.snapshot()), KvFold()
        self.control = core.control

    def restart(self, side: Side) -> None:
        """It dies, and another one comes: its requests go on elsewhere, from what was told of them."""
        self.take_taken(side)
        dead = self.connectors[side].name
        lost: dict[tuple[str, ...], list[str]] = {}
        for name, answer in self.live.items():
            if answer.side == side:
                answer.side = None
                lost.setdefault(answer.family, []).append(name)
        self.start(side)
        self.passing.extend(Passing(names, None) for names in lost.values())
        for passing in self.passing:
            if passing.offer is not None and passing.offer.engine == dead:
                passing.offer = None
        for lease in [lease for lease, placed in self.placed.items() if placed == side]:
            del self.placed[lease]
            self.cores[OTHER[side]].release([lease])

    # What is asked for

    def add(
        self,
        prompt: list[int],
        sampling: SamplingParams,
        siblings: int = 0,
        scheduling: SchedulingParams | None = None,
        side: Side = "p",
        hand_over: bool = True,
    ) -> str:
        name = f"r{self.added}"
        self.added += 1
        names = (name, *(f"{name}.{i + 1}" for i in range(siblings)))
        scheduling = scheduling or SchedulingParams()
        self.cores[side].add(name, prompt, sampling, scheduling, names[1:], hand_over=hand_over)
        for place, one in enumerate(names):
            answer = Answer(prompt, sampling, scheduling, self.max_model_len)
            answer.family, answer.place, answer.side = names, place, side
            answer.arrived = self.cores[side].scheduler.requests[one].arrived
            self.live[one], self.answers[one] = answer, answer.tokens
        return name

    def place(self, passing: Passing, side: Side = "d", *, offered: bool = True, apart: bool = False) -> None:
        """Let requests that were handed over, or lost, go on: with what is offered, together or each `apart`."""
        self.passing.remove(passing)
        core, offer = self.cores[side], passing.offer
        if offer is not None and not offered:
            self.release(offer.lease)
            offer = None
        groups = [[name] for name in passing.names] if apart and offer is None else [passing.names]
        for names in groups:
            answers = [self.live[name] for name in names]
            first = answers[0]
            if core.tells_an_end_of(names):
                self.tell(side, core.flush())
            begun = any(answer.tokens for answer in answers)
            core.add(
                names[0],
                first.prompt,
                first.sampling,
                first.scheduling,
                names[1:],
                arrived=first.arrived,
                hand_over=side == "p" and not begun,
                offer=offer,
                generated=tuple(tuple(answer.tokens) for answer in answers) if begun else (),
                places=tuple(answer.place for answer in answers),
            )
            for answer in answers:
                answer.side, answer.family = side, tuple(names)
        if offer is not None:
            self.placed[offer.lease] = side

    def release(self, lease: str) -> None:
        self.cores["p"].release([lease])

    def abort(self, name: str, reason: FinishReason = "abort") -> None:
        """Its sender wants no more of it."""
        answer = self.live.pop(name)
        if answer.side is not None:
            self.cores[answer.side].abort(name, reason)
            return
        for passing in list(self.passing):
            if name in passing.names:
                passing.names.remove(name)
                if not passing.names:
                    self.passing.remove(passing)
                    if passing.offer is not None:
                        self.release(passing.offer.lease)

    # What becomes of it

    def tick(self) -> None:
        for connector in self.connectors.values():
            connector.tick()

    def step(self, side: Side) -> tuple[tuple[Output, ...], Record | None]:
        core = self.cores[side]
        outputs, record = core.step()
        self.tell(side, record)
        self.check_kv_events(side)
        self.take(side, outputs)
        self.take_taken(side)
        self.check()
        return outputs, record

    def take(self, side: Side, outputs: Sequence[Output]) -> None:
        self.outputs += outputs
        handed: list[str] = []
        offers: list[Offer] = []
        for output in outputs:
            name = output.request
            answer = self.live.get(name)
            if output.offer is not None:
                assert output.finished is not None
                offers.append(output.offer)
            if answer is not None and output.prompt_logprobs:
                assert output.prompt_start <= max(1, answer.scores)  # again, where it was computed again
                answer.scores = max(answer.scores, output.prompt_start + len(output.prompt_logprobs))
            if answer is None:  # its sender has left
                if output.finished == "handed_over":
                    handed.append(name)
                continue
            assert answer.side == side
            if output.token_id is not None:
                answer.tokens.append(output.token_id)
                assert answer.tokens == answer.expected[0][: len(answer.tokens)]
            if output.finished is None:
                continue
            if output.finished == "handed_over":
                answer.side = None
                handed.append(name)
                continue
            self.ends[name] = output.finished
            del self.live[name]
            if output.finished == "error":
                assert self.costly, f"{name} fails and nothing was wrong"
            elif output.finished not in ("abort", "deadline"):
                assert (answer.tokens, output.finished) == answer.expected
        assert bool(handed) == bool(offers)
        for offer in offers:
            leader = offer.lease.split(":")[2]
            names = [name for name in handed if name.split(".")[0] == leader.split(".")[0]]
            assert names, "KV is offered and nobody goes on"
            # Those of one family that were placed apart are offered apart.
            wanted = [name for name in names if name in self.live and self.live[name].family[0] == leader]
            if wanted:
                self.passing.append(Passing(wanted, offer))
            else:
                self.release(offer.lease)

    def take_taken(self, side: Side) -> None:
        for taken in self.cores[side].drain_taken():
            assert self.placed.pop(taken.lease) == side, "an offer is taken twice, or was never sent"
            self.taken.append(taken)
            self.reached["taken" if not taken.error else f"not taken: {taken.error}"] += 1
            assert min(taken.waited, taken.moved) >= 0
            if self.releases:
                self.release(taken.lease)

    def tell(self, side: Side, record: Record | None) -> None:
        if record is None:
            return
        assert decode_item(encode(record)) == record
        check_record(record, self.folds[side])
        self.folds[side].apply(record)
        self.records[side].append(record)
        assert self.cores[side].flush() is None

    def check_kv_events(self, side: Side) -> None:
        self.kv_folds[side].take(self.cores[side].drain_kv_events())
        self.kv_folds[side].check(self.cores[side])

    def check(self) -> None:
        for side in ("p", "d"):
            core = self.cores[side]
            self.tell(side, core.flush())
            self.check_kv_events(side)
            check_state(core.scheduler)
            check_books(core.scheduler, core.ledger)
            assert self.folds[side].to_snapshot() == core.snapshot()
            sharing = core.snapshot().sharing
            assert sharing.found_tokens <= sharing.looked_up_tokens
            assert sharing.resumed_found_tokens <= sharing.resumed_looked_up_tokens
            moving = set(core.scheduler.hand_over.receiving)
            assert not self.connectors[side].wrong
            assert {request.id for request in moving} == self.connectors[side].jobs.keys() | {
                ended.request for ended in self.connectors[side].ended
            }

    def run(self, most: int = 5000) -> None:
        """Until all has ended: what waits to be placed is placed."""
        for _ in range(most):
            while self.passing:
                self.place(self.passing[0])
            self.tick()
            for side in ("p", "d"):
                self.step(side)
            if not self.passing and not any(core.has_work for core in self.cores.values()):
                break
        assert not self.live, "some request never ends, or ends without a word"
        self.settle()

    def settle(self) -> None:
        """Nothing is left of anything."""
        for side in ("p", "d"):
            core = self.cores[side]
            assert not core.has_work
            assert core.pool.num_available == core.info.num_blocks, "a block is lost"
            assert core.scheduler.kv.host.num_used == 0
            assert not self.connectors[side].leases
            assert not self.connectors[side].jobs
        assert not self.placed, "an offer was never told as taken"
