"""What shares blocks answers as what does not: beams as transformers' beam search, siblings as requests of their
own, and what was preempted as what never was. All on real models in fp32."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.core import EngineCore
from engine.cpu_decoder import load_decoder
from engine.loading.resolve import ResolvedModel, resolve_model
from engine.loading.weights import Weights
from engine.messages import BeamOutput
from engine.protocol import Control, EngineInfo, Preempt, Record
from engine.runner import ModelRunner
from engine.sampler import Sampler
from engine.sampling_params import BeamParams, SamplingParams

BLOCK_SIZE = 16
WIDTH = 4
PENALTIES = (0.6, 1.0, 2.0)
EARLY: tuple[Any, ...] = (False, True, "never")  # one for each penalty
QUESTIONS = (
    "What is the capital of France?",
    "Count from 1 to 10.",
    "Write one sentence about the sea.",
    "Why is the sky blue?",
    "Name three animals that live in the forest.",
    "Hello!",
    "Translate to French: good morning.",
    "What is 7 times 8?",
    "Give me a title for a story about a lost dog.",
    "Explain what a computer is to a child.",
    "Say yes or no.",
    "What colour is snow?",
    "Who wrote Hamlet?",
    "List two fruits.",
    "Is water wet?",
    "What comes after Monday?",
    "Name a river in Africa.",
    "How many legs has a spider?",
    "Complete: the early bird",
    "What is the opposite of hot?",
)


class Bench:
    """A model as our engine and as transformers run it."""

    def __init__(self, name: str) -> None:
        self.resolved: ResolvedModel = resolve_model(name)
        self.judge: Any = AutoModelForCausalLM.from_pretrained(self.resolved.folder, dtype=torch.float32)
        weights = Weights(self.resolved.folder, torch.float32, torch.device("cpu"))
        self.decoder = load_decoder(self.resolved.config, weights, 1024)

    def core(
        self, control: Control, num_blocks: int, num_host_blocks: int = 0, max_model_len: int = 1024
    ) -> EngineCore:
        info = EngineInfo(
            model=self.resolved.name,
            dtype="float32",
            device="cpu",
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            kv_bytes_per_token=self.resolved.config.kv_bytes_per_token(4),
            max_model_len=max_model_len,
            version="test",
            num_host_blocks=num_host_blocks,
        )
        eos = self.resolved.eos_token_ids
        runner = ModelRunner(self.decoder, Sampler(eos), num_blocks, BLOCK_SIZE, num_host_blocks)
        return EngineCore(runner, info, control, eos, check_invariants=True)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tiny() -> Bench:
    return Bench("tiny")


@pytest.fixture(scope="module")
def smollm2() -> Bench:
    return Bench("smollm2-135m")


def run(
    core: EngineCore, preempt_every: int = 0
) -> tuple[dict[str, list[int]], dict[str, tuple[BeamOutput, ...]], list[Record]]:
    tokens: dict[str, list[int]] = {}
    beams: dict[str, tuple[BeamOutput, ...]] = {}
    records = []
    while core.has_work:
        if preempt_every and core.scheduler.running and len(records) % preempt_every == preempt_every - 1:
            by: Preempt = "swap" if len(records) % (2 * preempt_every) < preempt_every else "recompute"
            core.set_control(msgspec.structs.replace(core.control, preempt=by))
            core.scheduler.preempt(core.scheduler.running[-1])
        outputs, record = core.step()
        assert record is not None
        records.append(record)
        for output in outputs:
            if output.token_id is not None:
                tokens.setdefault(output.request, []).append(output.token_id)
            if output.beams:
                beams[output.request] = output.beams
    assert core.pool.num_available == core.info.num_blocks
    return tokens, beams, records


def random_prompts(count: int, longest: int, seed: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 250, int(random.integers(1, longest))).tolist() for _ in range(count)]


def check_beams(bench: Bench, prompts: list[list[int]], ends: tuple[int, ...], new_tokens: int) -> list[BeamOutput]:
    """All searches of all prompts and penalties at once, some of them preempted, by swap and by recompute in turn."""
    control = Control(max_num_seqs=24, max_num_batched_tokens=256)
    core = bench.core(control, num_blocks=120, num_host_blocks=60)
    for i, prompt in enumerate(prompts):
        for penalty, early in zip(PENALTIES, EARLY, strict=True):
            name = f"{i}/{penalty}"
            beam = BeamParams(WIDTH, penalty, early)
            sampling = SamplingParams(max_tokens=new_tokens, temperature=0, stop_token_ids=ends, beam=beam)
            core.add(name, prompt, sampling, siblings=[f"{name}.{j}" for j in range(1, WIDTH)])
    _, found, records = run(core, preempt_every=4)
    assert any(record.copies for record in records)
    assert 0 < core.counters.swap_preemptions < core.counters.preemptions
    eos = sorted({*ends, *bench.resolved.eos_token_ids})
    for i, prompt in enumerate(prompts):
        for penalty, early in zip(PENALTIES, EARLY, strict=True):
            judged = bench.judge.generate(
                torch.tensor([prompt]),
                max_new_tokens=new_tokens,
                do_sample=False,
                num_beams=WIDTH,
                num_return_sequences=WIDTH,
                length_penalty=penalty,
                early_stopping=early,
                eos_token_id=eos,
                pad_token_id=eos[0],
                return_dict_in_generate=True,
                output_scores=True,
            )
            outputs = found[f"{i}/{penalty}"]
            for output, sequence, score in zip(outputs, judged.sequences, judged.sequences_scores, strict=True):
                wanted = sequence[len(prompt) :].tolist()[: len(output.token_ids)]
                assert list(output.token_ids) == wanted, f"prompt {i}, penalty {penalty}"
                assert output.score == pytest.approx(float(score), abs=1e-4)
    return [output for outputs in found.values() for output in outputs]


def test_beams_are_those_of_transformers_on_tiny(tiny):
    # Trap 16. Some tokens are made ends, or a random model would hardly ever end.
    outputs = check_beams(tiny, random_prompts(20, 120, seed=5), ends=tuple(range(0, 250, 10)), new_tokens=20)
    assert {output.finished for output in outputs} == {"stop", "length"}


@pytest.mark.model
def test_beams_are_those_of_transformers_on_smollm2(smollm2):
    """Four of the twenty questions; all of them with PAGED_TOP_LONG=1, which takes some minutes."""
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2.resolved.folder)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in (QUESTIONS if os.environ.get("PAGED_TOP_LONG") else QUESTIONS[:4])
    ]
    outputs = check_beams(smollm2, prompts, ends=(), new_tokens=12)
    assert {output.finished for output in outputs} == {"stop", "length"}


@pytest.mark.parametrize("chunk", [2048, 100])
def test_eight_siblings_prefill_once_and_answer_as_eight_requests(tiny, chunk):
    # Traps 18 and 20: 600 tokens are 37 full blocks of 16, and 8 tokens in a tail.
    prompt = np.random.default_rng(3).integers(0, 250, 600).tolist()
    sampling = SamplingParams(max_tokens=24, temperature=0.9, seed=40, ignore_eos=True)
    control = Control(max_num_batched_tokens=chunk)
    core = tiny.core(control, num_blocks=80)
    names = [f"c{i}" for i in range(8)]
    core.add(names[0], prompt, sampling, siblings=names[1:])
    tokens, _, records = run(core)
    prefilled = sum(row.tokens for record in records for row in record.rows if row.kind == "prefill")
    assert prefilled == 600
    held = [record.sharing for record in records if sum(row.kind == "decode" for row in record.rows) == 8]
    assert len(held) == 23
    for sharing in held[:8]:  # until the tails of 8 prompt tokens are full
        assert sharing.logical_blocks == 8 * 38
        assert sharing.physical_blocks == 37 + 8
    forked = next(record for record in records if any(row.kind == "fork" for row in record.rows))
    assert (forked.sharing.physical_blocks, forked.sharing.logical_blocks) == (38, 8 * 38)
    copied = [record.copies for record in records if record.copies]
    assert [len(copies) for copies in copied] == [7]  # in one step; the eighth writes the tail in place
    for i, name in enumerate(names):
        alone = tiny.core(control, num_blocks=80)
        seeded = SamplingParams(max_tokens=24, temperature=0.9, seed=40 + i, ignore_eos=True)
        alone.add("x", prompt, seeded)
        assert run(alone)[0]["x"] == tokens[name], name


def test_aborting_all_siblings_frees_every_block(tiny):
    core = tiny.core(Control(), num_blocks=80)
    names = [f"c{i}" for i in range(8)]
    core.add(names[0], list(range(200)) * 3, SamplingParams(max_tokens=24, seed=1), siblings=names[1:])
    for _ in range(4):
        core.step()
    assert len(core.scheduler.running) == 8
    for name in names:
        core.abort(name)
    assert core.pool.num_available == 80
    assert not core.scheduler.requests


@pytest.mark.parametrize("preempt", ["recompute", "swap", "auto"])
@pytest.mark.parametrize("size", [1.1, 1.5, 2.0])
def test_what_is_preempted_answers_as_undisturbed(tiny, preempt: Preempt, size: float):
    # Trap 8.
    prompts = random_prompts(8, 200, seed=9)
    sampling = SamplingParams(max_tokens=40, temperature=0.8, seed=6, ignore_eos=True)
    largest = -(-(max(map(len, prompts)) + 40) // BLOCK_SIZE)
    control = Control(preempt=preempt, max_num_seqs=8, max_num_batched_tokens=128)

    def serve(num_blocks: int, host: int) -> tuple[dict[str, list[int]], EngineCore]:
        core = tiny.core(control if host else Control(), num_blocks, host)
        for i, prompt in enumerate(prompts):
            core.add(str(i), prompt, sampling)
        return run(core)[0], core

    undisturbed, roomy = serve(500, 0)
    tokens, core = serve(int(size * largest), 200)
    assert roomy.counters.preemptions == 0 < core.counters.preemptions
    assert (core.counters.swapped_out_blocks > 0) == (preempt != "recompute")
    assert (core.counters.recomputed_tokens > 0) == (preempt == "recompute")
    assert tokens == undisturbed
    assert core.scheduler.kv.host.num_used == 0


def test_a_branch_goes_on_in_the_middle_of_anothers_block(tiny):
    """A second request extends a prompt that is still being answered: whole blocks are shared, the tail is copied."""
    core = tiny.core(Control(), num_blocks=80)
    trunk = np.random.default_rng(8).integers(0, 250, 37).tolist()
    greedy = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
    core.add("trunk", trunk, greedy)
    answer: list[int] = []
    while len(answer) < 7:
        outputs, _ = core.step()
        answer.extend(output.token_id for output in outputs if output.token_id is not None)
    branch = [*trunk, *answer[:5], (answer[5] + 1) % 250, 7]
    core.add("branch", branch, greedy)
    tokens, _, records = run(core)
    (joined,) = [joined for record in records for joined in record.joined if joined.request == "branch"]
    assert (joined.cached_tokens, joined.copied_tokens, joined.decoded_tokens) == (42, 10, 10)
    alone = tiny.core(Control(prefix_cache=False), num_blocks=80)
    alone.add("x", branch, greedy)
    assert run(alone)[0]["x"] == tokens["branch"]
