"""Faults that are made to happen, in a real engine over `tiny`: when they do, and what comes of them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engine.attempt import attempt
from engine.build import build_core
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.cpu_decoder import CPUDecoder
from engine.faults import Fault, Faults, FaultyRunner, InjectedError, parse
from engine.invariants import InvariantViolated, check_state
from engine.loading.resolve import resolve_model
from engine.loading.weights import Weights
from engine.messages import Output
from engine.model import Decoder
from engine.plan import FixedRequest, PlannedRow
from engine.protocol import Control, PoolTotals, Record
from engine.runner import UNUSABLE_LOGITS, ModelRunner, lacks_memory
from engine.sampler import Sampler
from engine.sampling_params import BeamParams, SamplingParams
from tests.engine.mirror import MirrorRunner, greedy, mirror_core
from tests.engine.test_scheduler import step

ENDLESS = {"ignore_eos": True}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("step-error@100", Fault("step-error@100", "step-error", 0, 100, 0)),
        ("kill%500", Fault("kill%500", "kill", 0, 500, 500)),
        ("memory=64", Fault("memory=64", "memory", 64, 1, 1)),
        ("memory=0%3", Fault("memory=0%3", "memory", 0, 3, 3)),
        ("slow=0.25@2", Fault("slow=0.25@2", "slow", 0.25, 2, 0)),
    ],
)
def test_faults_are_read(text: str, fault: Fault) -> None:
    assert parse(text) == fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be one of step-error, move-error, memory=TOKENS, nan,"),
        ("explode@3", "must be one of .* got 'explode@3'"),
        ("nan@", "must be one of"),
        ("nan@-1", "must be one of"),
        ("memory=1" + "0" * 400, "must be one of"),  # more than a float holds
        ("nan@" + "1" * 5000, "must be one of"),
        ("nan", r"must say when: nan is followed by @STEP \(once\) or %N"),
        ("nan@0", "must name a step from 1 on"),
        ("nan=3@1", "must be nan, without an argument"),
        ("memory@3", "must be memory=TOKENS, got"),
        ("memory=1.5", "must be memory=TOKENS with a whole number"),
        ("slow=1.2.3@4", "must be slow=SECONDS with a number"),
    ],
)
def test_what_is_no_fault_is_refused_with_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)
    with pytest.raises(ValueError, match=message):
        Faults([text])


def faulty(*faults: str, control: Control | None = None, host: int = 0) -> EngineCore:
    core = mirror_core(control=control, num_host_blocks=host)
    core.runner = Faults(faults).wrap(core.runner)
    return core


def faults_of(core: EngineCore, steps: int) -> list[int]:
    """The steps of so many that had a fault."""
    found = []
    for number in range(1, steps + 1):
        core.add(f"r{number}", [1, 2], greedy(1))
        if step(core).fault:
            found.append(number)
    return found


def test_a_fault_happens_once_or_every_so_often() -> None:
    assert faults_of(faulty("step-error@3"), 12) == [3]
    assert faults_of(faulty("step-error%5"), 12) == [5, 10]
    assert faults_of(faulty("step-error%5", "memory=1@7"), 12) == [5, 7, 10]


def test_without_a_fault_of_the_device_the_runner_is_left_alone() -> None:
    runner = MirrorRunner(4, 4)
    assert Faults([]).wrap(runner) is runner
    assert Faults(["plan-error@1", "corrupt%2"]).wrap(runner) is runner
    assert isinstance(Faults(["kill@9"]).wrap(runner), FaultyRunner)


def test_a_move_error_waits_for_a_step_that_moves() -> None:
    core = faulty("move-error@1")
    core.add("a", list(range(10)), greedy(9, **ENDLESS), siblings=["b"])
    assert step(core).fault == ""
    assert step(core).fault.startswith("moving blocks failed: InjectedError: an error made to happen by --fault move")
    assert step(core).fault == ""


def test_memory_that_is_short_is_short_for_the_whole_step() -> None:
    core = faulty("memory=2@1")
    core.add("a", list(range(8)), greedy(3, **ENDLESS))
    assert "they were computed in 4 parts" in step(core).fault
    core.add("b", list(range(20, 28)), greedy(3, **ENDLESS))
    assert step(core).fault == ""


def test_errors_outside_the_device_come_before_a_step_that_has_something_to_do() -> None:
    core, faults = mirror_core(), Faults(["plan-error@2"])
    faults.before_step(core)
    core.add("a", [1], greedy(9, **ENDLESS))
    faults.before_step(core)
    step(core)
    with pytest.raises(InjectedError, match="plan-error@2"):
        faults.before_step(core)


def test_corrupted_books_are_noticed() -> None:
    core, faults = mirror_core(), Faults(["corrupt@1"])
    core.add("a", [1, 2], greedy(9, **ENDLESS))
    faults.before_step(core)
    check_state(core.scheduler)  # nothing held a block
    step(core)
    faults.before_step(core)
    with pytest.raises(InvariantViolated, match="2 references, in 1 tables"):
        check_state(core.scheduler)


def test_a_slow_step_takes_longer() -> None:
    core = faulty("slow=0.05@1")
    core.add("a", [1, 2], greedy(9, **ENDLESS))
    begun = time.perf_counter()
    step(core)
    assert time.perf_counter() - begun > 0.05


ENDING = """
import sys
from engine.faults import Faults
from tests.engine.mirror import greedy, mirror_core
core = mirror_core()
core.runner = Faults(sys.argv[1:]).wrap(core.runner)
core.add("a", [1, 2], greedy(9, ignore_eos=True))
core.step()
print("one step", flush=True)
core.step()
print("two steps", flush=True)
"""


@pytest.mark.parametrize(("fault", "status"), [("kill@2", -9), ("exit@2", 3)])
def test_a_process_can_be_made_to_end_in_a_step(fault: str, status: int) -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING, fault], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (status, "one step\n")


def test_a_process_can_be_made_to_hang_in_a_step() -> None:
    with subprocess.Popen([sys.executable, "-c", ENDING, "hang@2"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "one step\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.kill()


# Over a model


def real_core(*faults: str, control: Control | None = None) -> EngineCore:
    os.environ["OMP_NUM_THREADS"] = "1"
    config = EngineConfig(
        model="tiny",
        dtype="float32",
        block_size=4,
        kv_memory=1 << 20,
        check_invariants=True,
        control=control or Control(),
        faults=tuple(faults),
    )
    return build_core(config)


def load(core: EngineCore) -> None:
    core.add("greedy", list(range(40, 77)), SamplingParams(max_tokens=12, temperature=0, ignore_eos=True))
    seeded = SamplingParams(max_tokens=12, seed=5, logprobs=2, top_p=0.9, ignore_eos=True)
    core.add("seeded", list(range(30)), seeded, siblings=["seeded.1", "seeded.2"])
    penalized = SamplingParams(max_tokens=12, seed=6, repetition_penalty=1.2, min_tokens=3)
    core.add("penalized", list(range(100, 109)), penalized)
    scored = SamplingParams(max_tokens=4, temperature=0, prompt_logprobs=1, ignore_eos=True)
    core.add("scored", list(range(200, 231)), scored)
    beams = SamplingParams(max_tokens=6, beam=BeamParams(3), ignore_eos=True)
    core.add("beams", list(range(50, 61)), beams, siblings=["beams.1", "beams.2"])


def run(core: EngineCore) -> tuple[dict[str, list[Output]], list[Record]]:
    told: dict[str, list[Output]] = {}
    records: list[Record] = []
    while core.has_work:
        outputs, record = core.step()
        assert record is not None
        records.append(record)
        for output in outputs:
            told.setdefault(output.request, []).append(output)
    assert core.pool.num_available == core.info.num_blocks
    return told, records


def near(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and math.isclose(one, other, abs_tol=1e-4))


def assert_alike(told: dict[str, list[Output]], expected: dict[str, list[Output]]) -> None:
    """The same tokens and ends; log-probabilities but for the noise of another order of summing."""
    assert told.keys() == expected.keys()
    for name, outputs in told.items():
        kinds = [(o.token_id, o.finished, o.error, o.prompt_start, len(o.prompt_logprobs)) for o in outputs]
        others = [(o.token_id, o.finished, o.error, o.prompt_start, len(o.prompt_logprobs)) for o in expected[name]]
        assert kinds == others
        for one, other in zip(outputs, expected[name], strict=True):
            assert near(one.logprob, other.logprob)
            assert [beam.token_ids for beam in one.beams] == [beam.token_ids for beam in other.beams]
            for scored, wanted in zip(one.prompt_logprobs, other.prompt_logprobs, strict=True):
                assert near(scored.logprob, wanted.logprob)
                assert scored.rank == wanted.rank


@pytest.mark.parametrize(
    "control", [Control(), Control(batching="static", allocation="reserved")], ids=["paged", "static"]
)
@pytest.mark.parametrize("most", [1, 3, 20])
def test_with_little_memory_every_answer_is_what_it_would_be(control: Control, most: int) -> None:
    cores = [real_core(control=control), real_core(f"memory={most}", control=control)]
    for core in cores:
        load(core)
    (expected, _), (told, records) = map(run, cores)
    assert_alike(told, expected)
    assert any("at once: they were computed in" in record.fault for record in records)
    assert not any(output.finished == "error" for outputs in told.values() for output in outputs)


def test_without_memory_for_a_token_each_request_says_so() -> None:
    core = real_core("memory=0@2")
    core.add("a", list(range(10)), greedy(9, **ENDLESS))
    core.step()
    outputs, record = core.step()
    assert record is not None
    assert [output.request for output in outputs] == ["a"]
    assert outputs[0].error is not None
    assert "there is not enough memory to compute this request" in outputs[0].error
    assert core.snapshot().pool == PoolTotals(free=core.info.num_blocks - 2, cached=2)


def test_a_failed_step_leaves_the_others_as_they_would_be() -> None:
    control = Control(max_num_seqs=1)
    cores = [real_core(control=control), real_core("step-error@4", control=control)]
    for core in cores:
        core.add("a", list(range(10)), greedy(9, **ENDLESS))
        core.add("b", list(range(10)), SamplingParams(max_tokens=9, seed=1, ignore_eos=True))
    (expected, _), (told, _) = map(run, cores)
    assert told["a"][:3] == expected["a"][:3]
    assert told["a"][3].error == (
        "the step that computed this request failed: InjectedError: an error made to happen by --fault step-error@4; "
        "the engine goes on"
    )
    assert [output.token_id for output in told["b"]] == [output.token_id for output in expected["b"]]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        *((name, first) for name in ("greedy", "sampled", "logprobs", "forks", "beams", "scored") for first in (1, 2)),
        ("chunk", 1),  # of a prompt, scored and not sampled
    ],
)
def test_logits_that_are_no_numbers_fail_their_request(name: str, first: int) -> None:
    """In its prefill, or in its first decode."""
    core = real_core(f"nan@{first}", control=Control(max_num_batched_tokens=8 if name == "chunk" else 64))
    siblings: Sequence[str] = ()
    sampling = SamplingParams(max_tokens=9, seed=1, ignore_eos=True)
    match name:
        case "greedy":
            sampling = greedy(9, **ENDLESS)
        case "logprobs":
            sampling = SamplingParams(max_tokens=9, logprobs=3, ignore_eos=True)
        case "forks":
            siblings = ["bad.1", "bad.2"]
        case "beams":
            sampling, siblings = SamplingParams(max_tokens=9, beam=BeamParams(2), ignore_eos=True), ["bad.1"]
        case "scored" | "chunk":
            sampling = SamplingParams(max_tokens=9, seed=1, prompt_logprobs=0, ignore_eos=True)
    core.add("bad", list(range(12)), sampling, siblings=siblings)
    core.add("good", list(range(12, 19)), greedy(4, **ENDLESS))
    told, _ = run(core)
    failed = {name: outputs[-1].error for name, outputs in told.items() if outputs[-1].finished == "error"}
    wanted = {"bad", *siblings} if name == "forks" and first == 1 else {"bad"}
    assert failed == dict.fromkeys(wanted, UNUSABLE_LOGITS)
    assert [output.finished for output in told["good"]][-1] == "length"
    assert len(told["good"]) == 4


def decoder_runner() -> ModelRunner:
    """Over torch's operators, whatever this CPU has."""
    resolved = resolve_model("tiny")
    decoder = Decoder(resolved.config, Weights(resolved.folder, torch.float32, torch.device("cpu")), 64)
    return ModelRunner(decoder, Sampler(resolved.eos_token_ids), 12, 4)


def prefill(name: str, tokens: range, table: range, **settings: Any) -> PlannedRow:
    sampling = SamplingParams(max_tokens=1, temperature=0, **settings)
    return PlannedRow(FixedRequest(name, tokens, len(tokens), table, sampling), "prefill", 0, len(tokens), True)


def test_a_prompt_whose_scores_are_no_numbers_fails_alone() -> None:
    runner = decoder_runner()
    logits = runner.model.logits

    def spoil(hidden: torch.Tensor) -> torch.Tensor:
        found = logits(hidden)
        return found if len(found) < 3 else found.index_fill(0, torch.tensor([4]), float("inf"))

    runner.model.logits = spoil  # type: ignore[method-assign]
    result = runner.compute(
        [prefill("scored", range(10), range(3), prompt_logprobs=1), prefill("plain", range(5), range(3, 5))]
    )
    assert (result.sampled.keys(), result.scored) == ({"plain"}, {})
    assert result.failed == {"scored": UNUSABLE_LOGITS}


def test_an_error_of_torchs_allocator_is_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 55)
    assert lacks_memory(caught.value)
    assert lacks_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert lacks_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not lacks_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not lacks_memory(RuntimeError("shape '[2]' is invalid for input of size 3"))


@pytest.mark.parametrize("fitting", [0, 3, 8])
def test_buffers_that_cannot_be_allocated_are_not_used(fitting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled step's buffers grow with it: the old ones are gone when there is no memory for the new ones."""
    runner, other = (real_core().runner for _ in range(2))
    assert isinstance(runner, ModelRunner)
    if not isinstance(runner.model, CPUDecoder):
        pytest.skip("this CPU has no compiled step")
    rows = [prefill(f"r{i}", range(i, i + 40), table=range(10 * i, 10 * i + 10)) for i in range(4)]
    expected = other.compute(rows)
    zeros, left = torch.zeros, fitting

    def limited(rows: int, columns: int, **settings: Any) -> torch.Tensor:
        nonlocal left
        left -= rows > 100
        return zeros(1 << 44 if left < 0 and rows > 100 else rows, columns, **settings)

    monkeypatch.setattr(torch, "zeros", limited)
    result = attempt(runner.compute, rows)
    assert left < 0
    assert (result.runs, result.lost) == (2, {})
    assert result.sampled == expected.sampled
