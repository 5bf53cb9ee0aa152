"""Engines' own processes over their sockets: one goes on with another's KV, and either may be killed meanwhile."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np
import pytest

from engine.config import EngineConfig
from engine.framing import frame
from engine.messages import (
    Abort,
    Add,
    ClearCache,
    FromCore,
    GetSnapshot,
    Output,
    Outputs,
    Pull,
    Pulled,
    Ready,
    Release,
    Reply,
    Start,
    Step,
    Taken,
    ToCore,
)
from engine.protocol import Record, Snapshot, Transferred, decode_item
from engine.sampling_params import SamplingParams
from engine.transfer.offer import Offer
from engine.transfer.pool_memory import own_host, read_blocks, write_blocks
from tests.engine.test_core_process import Core
from tests.engine.transfer.pools import Family, alone

MEMORY = 4 << 20
PROMPT = tuple(np.random.default_rng(1).integers(0, 250, 300).tolist())  # 19 blocks: two pieces of a copy
SAMPLING = SamplingParams(max_tokens=16, temperature=0.9, seed=5, ignore_eos=True)
M = TypeVar("M", bound=FromCore)


class Worker(Core):
    """What it has told is kept: `steps`, and `outputs` of each request. It is started, and not waited for."""

    def __init__(self, folder: Path, name: str, **settings: Any) -> None:
        super().__init__(folder)
        self.steps: list[Record] = []
        self.outputs: dict[str, list[Output]] = {}
        config = EngineConfig(
            model="tiny",
            dtype="float32",
            kv_memory=MEMORY,
            crash_dir=str(self.crash_dir),
            log_format="json",
            name=name,
            check_invariants=True,
            **{"transfer": "shared_memory", **settings},
        )
        self.send(Start(config))

    @cached_property
    def ready(self) -> Ready:
        return self.until(Ready)

    def send(self, message: ToCore) -> None:
        self.socket.sendall(frame(message))

    def until(self, kind: type[M], wanted: Callable[[M], object] = lambda message: True) -> M:
        """Read on to such a message."""
        while True:
            message = self.next()
            if isinstance(message, Step) and isinstance(record := decode_item(message.json), Record):
                self.steps.append(record)
            elif isinstance(message, Outputs):
                for output in message.outputs:
                    self.outputs.setdefault(output.request, []).append(output)
            if isinstance(message, kind) and wanted(message):
                return message

    def until_receiving(self) -> None:
        self.until(Step, lambda step: self.steps[-1].receiving)

    def until_mapped(self, offer: Offer) -> None:
        """Until its copying thread has come to the pool: what is said of the step goes before."""
        maps, deadline = Path(f"/proc/{self.process.pid}/maps"), time.monotonic() + 60
        while offer.place.name not in maps.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def answer(self, request: str) -> list[int]:
        """Its tokens, once it has ended."""
        while not self.outputs.get(request) or self.outputs[request][-1].finished is None:
            self.until(Outputs)
        return [output.token_id for output in self.outputs[request] if output.token_id is not None]

    def prefill(self, request: str) -> tuple[Offer, int]:
        """The offer, and the token that is known."""
        self.send(Add(request, PROMPT, SAMPLING, hand_over=True))
        (token,) = self.answer(request)
        last = self.outputs[request][-1]
        assert last.finished == "handed_over"
        assert last.offer is not None
        return last.offer, token

    def go_on(self, request: str, offer: Offer, token: int) -> None:
        self.send(Add(request, PROMPT, SAMPLING, offer=offer, generated=((token,),)))

    def snapshot(self) -> Snapshot:
        self.send(GetSnapshot(1))
        return msgspec.json.decode(self.until(Reply).json, type=Snapshot)

    def check_idle(self) -> None:
        """It has no request, and all blocks can be had."""
        snapshot = self.snapshot()
        assert snapshot.requests == ()
        assert snapshot.pool.free + snapshot.pool.cached == snapshot.engine.num_blocks

    def begin_anew(self) -> None:
        """As if it had served nothing; what nobody has taken goes."""
        assert self.ready
        offers = [told[-1].offer for told in self.outputs.values()]
        self.send(Release(tuple(offer.lease for offer in offers if offer is not None)))
        self.send(ClearCache(2))
        self.until(Reply)
        self.check_idle()
        self.steps.clear()
        self.outputs.clear()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Workers:
    """Some that share what they have to load: one that a test has killed is started again for the next one. `decode`
    takes a tenth of a second for each piece that it copies; `far` says that it is on another host, and keeps what it
    offers for a second."""

    SETTINGS: ClassVar[dict[str, dict[str, Any]]] = {
        "prefill": {"name": "prefill-0", "transfer": "parent"},
        "decode": {"name": "decode-0", "faults": ("slow-transfer=0.1%1",)},
        "far": {"name": "decode-1", "transfer": "parent", "host": "far", "lease_seconds": 1.0},
    }

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._workers: dict[str, Worker] = {}
        self.begin()

    def begin(self) -> None:
        for name, settings in self.SETTINGS.items():
            if name not in self._workers or self._workers[name].process.poll() is not None:
                self._workers[name] = Worker(self._folders.mktemp(name), **settings)

    def begin_anew(self) -> None:
        self.begin()
        for worker in self._workers.values():
            worker.begin_anew()

    @property
    def prefill(self) -> Worker:
        return self._workers["prefill"]

    @property
    def decode(self) -> Worker:
        return self._workers["decode"]

    @property
    def far(self) -> Worker:
        return self._workers["far"]

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()


@pytest.fixture(scope="module")
def all_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    workers = Workers(tmp_path_factory)
    yield workers
    workers.close()


@pytest.fixture
def workers(all_workers: Workers) -> Workers:
    """With nothing in their prefix caches."""
    all_workers.begin_anew()
    return all_workers


@pytest.fixture(scope="module")
def wanted() -> list[int]:
    return alone([Family(("a",), PROMPT, SAMPLING)], model="tiny", kv_memory=MEMORY)[0]["a"]


def test_a_request_goes_on_in_another_process(workers: Workers, wanted: list[int]) -> None:
    """Between engines of one host the parent has nothing to do, though one of them has one who would."""
    prefill, decode = workers.prefill, workers.decode
    assert prefill.ready.compatibility == decode.ready.compatibility
    assert prefill.ready.compatibility is not None
    offer, token = prefill.prefill("a")
    assert (offer.engine, offer.compatibility) == ("prefill-0", prefill.ready.compatibility.digest)
    assert offer.place.path.startswith(f"/proc/{prefill.process.pid}/fd/")
    assert offer.place.host == own_host()
    decode.go_on("a", offer, token)
    taken = decode.until(Taken)
    assert (taken.request, taken.lease, taken.blocks, taken.error) == ("a", offer.lease, 19, "")
    prefill.send(Release((offer.lease, "one that has ended")))
    assert [token, *decode.answer("a")] == wanted
    assert {row.kind for record in decode.steps for row in record.rows} == {"decode"}
    prefill.check_idle()
    decode.check_idle()


def test_the_end_of_a_transfer_wakes_a_loop_that_has_nothing_else_to_do(workers: Workers) -> None:
    """It is told in the step after it; until then there are no empty steps."""
    offer, token = workers.prefill.prefill("a")
    workers.decode.go_on("a", offer, token)
    workers.decode.answer("a")
    first, second = workers.decode.steps[:2]
    assert first.receiving
    assert second.transferred
    assert [row.kind for row in second.rows] == ["decode"]


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Worker]:
    """It takes a second at least for what it copies."""
    worker = Worker(tmp_path, "decode-2", faults=("slow-transfer=0.5%1",))
    yield worker
    worker.close()


def test_an_abort_waits_until_nothing_is_written_any_more(workers: Workers, slow: Worker, wanted: list[int]) -> None:
    prefill, decode = workers.prefill, slow
    assert decode.ready
    offer, token = prefill.prefill("a")
    decode.go_on("a", offer, token)
    decode.until_receiving()
    decode.socket.sendall(frame(Abort(("a",), "abort")) + frame(GetSnapshot(1)))  # it takes them both at once
    snapshot = msgspec.json.decode(decode.until(Reply).json, type=Snapshot)
    assert [(one.request, one.status) for one in snapshot.requests] == [("a", "receiving")]
    assert snapshot.pool.free == snapshot.engine.num_blocks - 19
    taken = decode.until(Taken)
    assert (taken.lease, taken.error) == (offer.lease, "the request has ended")
    decode.check_idle()
    decode.go_on("b", offer, token)  # which is still there
    assert [token, *decode.answer("b")] == wanted
    decode.check_idle()


def test_the_parent_pulls_from_another_host(workers: Workers, wanted: list[int]) -> None:
    prefill, decode = workers.prefill, workers.far
    offer, token = prefill.prefill("a")
    decode.go_on("a", offer, token)
    pull = decode.until(Pull)
    assert (pull.offer, pull.into.host, len(pull.pairs)) == (offer, "far", 19)
    sources, targets = zip(*pull.pairs, strict=True)
    write_blocks(pull.into, targets, read_blocks(pull.offer.place, sources))
    decode.send(Pulled("a", "another lease"))
    for _ in range(2):
        decode.send(Pulled("a", offer.lease))
    taken = decode.until(Taken)
    assert (taken.blocks, taken.error) == (19, "")
    assert [token, *decode.answer("a")] == wanted
    assert {row.kind for record in decode.steps for row in record.rows} == {"decode"}
    decode.begin_anew()
    offer, token = prefill.prefill("b")
    decode.go_on("b", offer, token)
    decode.until(Pull)
    decode.send(Pulled("b", offer.lease, "node one is gone"))
    assert decode.until(Taken).error == "node one is gone"
    assert [token, *decode.answer("b")] == wanted
    decode.check_idle()


def test_what_nobody_takes_is_free_when_the_lease_has_ended(workers: Workers, wanted: list[int]) -> None:
    """Also of an engine that has nothing else to do."""
    far = workers.far
    leases = [far.prefill(name)[0].lease for name in "ab"]

    def ended() -> list[Transferred]:
        return [one for record in far.steps for one in record.transferred]

    far.until(Step, lambda step: len(ended()) == 2)
    error = "nobody took the blocks within 1 s"
    assert [(one.lease, one.side, one.error) for one in ended()] == [(lease, "sent", error) for lease in leases]
    far.check_idle()
    far.send(Add("x", PROMPT, SAMPLING))
    assert far.answer("x") == wanted
    far.check_idle()


def test_a_decode_engine_killed_while_it_copies_costs_the_other_nothing(workers: Workers, wanted: list[int]) -> None:
    """Its blocks are free when the front says so."""
    prefill, decode = workers.prefill, workers.decode
    offer, token = prefill.prefill("a")
    decode.go_on("a", offer, token)
    decode.until_receiving()
    decode.kill()
    snapshot = prefill.snapshot()
    assert snapshot.pool.free == snapshot.engine.num_blocks - 19
    prefill.send(Release((offer.lease,)))
    prefill.until(Step, lambda step: prefill.steps[-1].transferred)
    (told,) = prefill.steps[-1].transferred
    assert (told.lease, told.side, told.error) == (offer.lease, "sent", "")
    prefill.check_idle()
    prefill.send(Add("x", PROMPT, SAMPLING))
    assert prefill.answer("x") == wanted
    prefill.check_idle()


def test_a_prefill_engine_killed_while_its_blocks_are_copied(workers: Workers, wanted: list[int]) -> None:
    """What is being copied is good. What it has offered else is gone: it is computed, with the same answer."""
    prefill, decode = workers.prefill, workers.decode
    (offer, token), (later, its_token) = (prefill.prefill(name) for name in "ab")
    decode.go_on("a", offer, token)
    decode.until_receiving()
    decode.until_mapped(offer)
    prefill.kill()
    taken = decode.until(Taken)
    assert (taken.lease, taken.error) == (offer.lease, "")
    assert [token, *decode.answer("a")] == wanted
    decode.begin_anew()
    decode.go_on("b", later, its_token)
    taken = decode.until(Taken)
    assert (taken.lease, taken.blocks) == (later.lease, 0)
    assert taken.error == "prefill-0 has ended, and its blocks with it"
    assert [its_token, *decode.answer("b")] == wanted
    assert {row.kind for record in decode.steps for row in record.rows} == {"prefill", "decode"}
    decode.check_idle()
