"""Two real engines in one process, and what a front does between them: one prefills, the other goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from engine.build import Links, build_core
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import Output
from engine.protocol import Record
from engine.sampling_params import SamplingParams
from engine.transfer.connector import KVConnector

Settings = Mapping[str, Any]
NONE: Settings = {}


class Family(msgspec.Struct, frozen=True):
    """A request and its siblings, in order of their places, as it was asked for."""

    names: tuple[str, ...]
    prompt: tuple[int, ...]
    sampling: SamplingParams


class Engine:
    """One of several: its records, and whether a step has anything to do."""

    def __init__(self, name: str, woken: threading.Event, **settings: Any) -> None:
        config = EngineConfig(
            **{"name": name, "dtype": "float32", "transfer": "shared_memory", "check_invariants": True, **settings}
        )
        self.core: EngineCore = build_core(config, Links(woken.set, lambda pull: None))
        self.records: list[Record] = []

    def step(self) -> tuple[Output, ...]:
        outputs, record = self.core.step()
        if record is not None:
            self.records.append(record)
        return outputs

    @property
    def connector(self) -> KVConnector:
        assert self.core.connector is not None
        return self.core.connector

    @property
    def received_tokens(self) -> int:
        return sum(joined.received_tokens for record in self.records for joined in record.joined)

    @property
    def found_tokens(self) -> int:
        """Beside what was received, in its own prefix cache."""
        return sum(joined.cached_tokens for record in self.records for joined in record.joined)

    def check_idle(self) -> None:
        """Nothing is left of any request."""
        core = self.core
        if (flushed := core.flush()) is not None:
            self.records.append(flushed)
        assert not core.scheduler.requests
        assert core.pool.num_available == core.info.num_blocks
        assert not core.scheduler.hand_over.sending
        assert not core.scheduler.hand_over.receiving


class Pools:
    """`outputs` has what each request told, on either side. `between` is called before each round of steps."""

    def __init__(self, prefill: Settings = NONE, decode: Settings = NONE, **both: Any) -> None:
        self.woken = threading.Event()
        self.prefill = Engine("prefill-0", self.woken, **{**both, **prefill})
        self.decode = Engine("decode-0", self.woken, **{**both, **decode})
        self.outputs: dict[str, list[Output]] = {}
        self.between: Callable[[int], None] = lambda rounds: None
        self._families: dict[str, Family] = {}  # that the first engine has, by its leader

    def ask(self, names: Sequence[str], prompt: Sequence[int], sampling: SamplingParams) -> None:
        family = Family(tuple(names), tuple(prompt), sampling)
        self._families[names[0]] = family
        self.prefill.core.add(names[0], prompt, sampling, siblings=names[1:], hand_over=True)

    def run(self) -> dict[str, list[int]]:
        """Until all is answered; the tokens of each request."""
        rounds = 0
        while self.prefill.core.has_work or self.decode.core.has_work:
            self.between(rounds)
            rounds += 1
            self.woken.clear()
            early = self._take(self.prefill.step())
            told = self._take(self.decode.step())
            taken = self.decode.core.drain_taken()
            self.prefill.core.release([one.lease for one in taken])
            if not (early or told or taken):
                self.woken.wait(0.01)  # for a copy, or for a lease to end
        return self.tokens

    @property
    def tokens(self) -> dict[str, list[int]]:
        return {
            name: [output.token_id for output in outputs if output.token_id is not None]
            for name, outputs in self.outputs.items()
        }

    def check_idle(self) -> None:
        self.prefill.check_idle()
        self.decode.check_idle()

    def begin_anew(self) -> None:
        """As if they had served nothing."""
        self.outputs.clear()
        self._families.clear()
        for engine in (self.prefill, self.decode):
            engine.core.clear_cache()
            engine.check_idle()
            engine.records.clear()

    def close(self) -> None:
        for engine in (self.prefill, self.decode):
            close: Callable[[], None] = engine.connector.close  # type: ignore[attr-defined]
            close()

    def _take(self, outputs: Sequence[Output]) -> bool:
        for output in outputs:
            self.outputs.setdefault(output.request, []).append(output)
        for output in outputs:
            if output.offer is not None:
                self._go_on(self._families.pop(output.request), output)
        return bool(outputs)

    def _go_on(self, family: Family, leader: Output) -> None:
        """With those whose first token is not their last."""
        places = [i for i, name in enumerate(family.names) if self.outputs[name][-1].finished == "handed_over"]
        names = [family.names[i] for i in places]
        self.decode.core.add(
            names[0],
            family.prompt,
            family.sampling,
            siblings=names[1:],
            offer=leader.offer,
            generated=[self.tokens[name] for name in names],
            places=places,
        )


def alone(requests: Sequence[Family], **settings: Any) -> tuple[dict[str, list[int]], dict[str, list[Output]]]:
    """What one engine answers."""
    engine = Engine("", threading.Event(), **{**settings, "transfer": "none"})
    outputs: dict[str, list[Output]] = {}
    for family in requests:
        engine.core.add(family.names[0], family.prompt, family.sampling, siblings=family.names[1:])
    while engine.core.has_work:
        for output in engine.step():
            outputs.setdefault(output.request, []).append(output)
    found = {name: [one.token_id for one in told if one.token_id is not None] for name, told in outputs.items()}
    return found, outputs
