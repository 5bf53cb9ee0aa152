"""Whatever the scheduler does, greedy output is transformers' `generate`, token for token, in fp32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.core import EngineCore
from engine.cpu_decoder import CPUDecoder, load_decoder
from engine.loading.resolve import ResolvedModel, resolve_model
from engine.loading.weights import Weights
from engine.model import Decoder
from engine.protocol import Allocation, Batching, Control, EngineInfo, Record
from engine.runner import ModelRunner
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams

BLOCK_SIZE = 16
MODES: tuple[tuple[Batching, Allocation], ...] = (
    ("continuous", "paged"),
    ("static", "reserved"),
    ("continuous", "reserved"),
    ("static", "paged"),
)
CHATS = (
    "What is the capital of France?",
    "Count from 1 to 10.",
    "Write one sentence about the sea.",
    "Why is the sky blue?",
    "Name three animals that live in the forest, and say in a few words what each of them eats in winter.",
    "Hello!",
    "Translate to French: good morning, how are you?",
    "What is 7 times 8?",
    "Give me a title for a story about a lost dog who finds its way home over the mountains.",
    "Explain what a computer is to a child of five years.",
)


class Oracle(NamedTuple):
    """A model with prompts, and what transformers generates for them."""

    resolved: ResolvedModel
    decoder: Decoder | CPUDecoder
    prompts: list[list[int]]
    expected: list[list[int]]
    new_tokens: int
    max_model_len: int

    @property
    def longest(self) -> int:
        """Blocks the largest request may need."""
        return -(-(max(map(len, self.prompts)) + self.new_tokens) // BLOCK_SIZE)

    @property
    def reservation(self) -> int:
        return -(-self.max_model_len // BLOCK_SIZE)


def make_oracle(name: str, prompts: list[list[int]], new_tokens: int) -> Oracle:
    resolved = resolve_model(name)
    judge: Any = AutoModelForCausalLM.from_pretrained(resolved.folder, dtype=torch.float32)
    expected = []
    for prompt in prompts:
        text = judge.generate(torch.tensor([prompt]), max_new_tokens=new_tokens, do_sample=False)
        expected.append(text[0, len(prompt) :].tolist())
    max_model_len = max(map(len, prompts)) + new_tokens
    decoder = load_decoder(resolved.config, Weights(resolved.folder, torch.float32, torch.device("cpu")), max_model_len)
    return Oracle(resolved, decoder, prompts, expected, new_tokens, max_model_len)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads gain little at these sizes, and wait for each other at length on a machine that is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tiny() -> Oracle:
    """50 prompts of 1 to 300 random tokens; every third begins as an earlier one does."""
    random = np.random.default_rng(11)
    prompts: list[list[int]] = []
    for i, length in enumerate([1, 300, *random.integers(1, 301, 48).tolist()]):
        prompt = random.integers(0, 259, length).tolist()
        if i % 3 == 2:
            shared = prompts[int(random.integers(0, i))][: length - 1]
            prompt[: len(shared)] = shared
        prompts.append(prompt)
    return make_oracle("tiny", prompts, new_tokens=40)


@pytest.fixture(scope="module")
def smollm2() -> Oracle:
    folder = resolve_model("smollm2-135m").folder
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": chat}], add_generation_prompt=True, return_dict=False
        )
        for chat in CHATS
    ]
    return make_oracle("smollm2-135m", prompts, new_tokens=24)


def serve(
    oracle: Oracle, control: Control, num_blocks: int, switches: Iterable[Control] = (), every: int = 3
) -> tuple[list[list[int]], list[Record], EngineCore]:
    """Generate for all prompts, two arriving each step; every `every` steps take the next of `switches`."""
    info = EngineInfo(
        model=oracle.resolved.name,
        dtype="float32",
        device="cpu",
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        kv_bytes_per_token=oracle.resolved.config.kv_bytes_per_token(4),
        max_model_len=oracle.max_model_len,
        version="test",
    )
    eos = oracle.resolved.eos_token_ids
    runner = ModelRunner(oracle.decoder, Sampler(eos), num_blocks, BLOCK_SIZE)
    core = EngineCore(runner, info, control, eos, check_invariants=True)
    sampling = SamplingParams(max_tokens=oracle.new_tokens, temperature=0)
    arrivals = iter(enumerate(oracle.prompts))
    coming: Iterator[Control] = iter(switches)
    generated: list[list[int]] = [[] for _ in oracle.prompts]
    records: list[Record] = []
    step = 0
    while True:
        for i, prompt in islice(arrivals, 2):
            core.add(str(i), prompt, sampling)
        if not core.has_work:
            break
        if step % every == every - 1:
            switched = next(coming, None)
            if switched is not None:
                core.set_control(switched)
        outputs, record = core.step()
        assert record is not None
        records.append(record)
        for output in outputs:
            if output.token_id is not None:
                generated[int(output.request)].append(output.token_id)
        step += 1
    return generated, records, core


def check(generated: Sequence[list[int]], oracle: Oracle) -> None:
    wrong = [i for i, text in enumerate(generated) if text != oracle.expected[i]]
    assert not wrong, f"prompt {wrong[0]}: {generated[wrong[0]]} is not {oracle.expected[wrong[0]]}"


def found_tokens(records: Sequence[Record]) -> int:
    sharing = records[-1].sharing
    return sharing.found_tokens + sharing.resumed_found_tokens


def check_modes(oracle: Oracle, mode: tuple[Batching, Allocation], prefix_cache: bool, budget: int) -> None:
    control = Control(*mode, prefix_cache=prefix_cache, max_num_batched_tokens=budget, max_num_seqs=16)
    generated, records, _ = serve(oracle, control, num_blocks=8 * oracle.reservation)
    check(generated, oracle)
    # A reservation is one run of blocks of its own: there is nothing to share.
    assert (prefix_cache and mode[1] == "paged") == (found_tokens(records) > 0)


def check_preempted(oracle: Oracle, control: Control) -> None:
    generated, records, core = serve(oracle, control, num_blocks=oracle.longest + 2)
    check(generated, oracle)
    assert core.counters.preemptions > 0
    assert core.counters.preemptions == sum(len(record.preempted) for record in records)


def check_switched(oracle: Oracle, num_blocks: int, every: int) -> None:
    controls = [
        Control(*mode, prefix_cache=prefix_cache, max_num_batched_tokens=budget, max_num_seqs=16)
        for mode, prefix_cache, budget in islice(
            zip(cycle(MODES), cycle((True, True, False)), cycle((64, 16, 512, 33, 2048)), strict=False), 60
        )
    ]
    generated, records, _ = serve(oracle, controls[-1], num_blocks, cycle(controls), every)
    check(generated, oracle)
    modes = [(r.control.batching, r.control.allocation) for r in records if r.rows]
    assert set(modes) == set(MODES)
    assert sum(a != b for a, b in pairwise(modes)) >= 8
    assert {row.kind for record in records for row in record.rows} == {"prefill", "decode", "held"}


@pytest.mark.parametrize("budget", [16, 100, 2048])
@pytest.mark.parametrize("prefix_cache", [True, False], ids=["prefix-cache", "no-prefix-cache"])
@pytest.mark.parametrize("mode", MODES, ids="-".join)
def test_tiny_generates_what_transformers_does(
    tiny: Oracle, mode: tuple[Batching, Allocation], prefix_cache: bool, budget: int
) -> None:
    check_modes(tiny, mode, prefix_cache, budget)


@pytest.mark.parametrize("chunked_prefill", [True, False], ids=["chunked", "whole"])
@pytest.mark.parametrize("prefix_cache", [True, False], ids=["prefix-cache", "no-prefix-cache"])
def test_tiny_survives_preemption(tiny: Oracle, prefix_cache: bool, chunked_prefill: bool) -> None:
    check_preempted(tiny, Control(prefix_cache=prefix_cache, chunked_prefill=chunked_prefill))


@pytest.mark.parametrize("every", [2, 5])
def test_tiny_survives_switching(tiny: Oracle, every: int) -> None:
    check_switched(tiny, 4 * tiny.reservation, every)


def test_tiny_survives_switching_in_a_small_pool(tiny: Oracle) -> None:
    check_switched(tiny, tiny.reservation + 3, 3)


@pytest.mark.model
@pytest.mark.parametrize(
    ("mode", "prefix_cache", "budget"),
    [
        (("continuous", "paged"), True, 2048),
        (("continuous", "paged"), False, 16),
        (("static", "reserved"), True, 64),
        (("static", "paged"), False, 512),
        (("continuous", "reserved"), True, 16),
    ],
    ids=str,
)
def test_smollm2_generates_what_transformers_does(
    smollm2: Oracle, mode: tuple[Batching, Allocation], prefix_cache: bool, budget: int
) -> None:
    check_modes(smollm2, mode, prefix_cache, budget)


@pytest.mark.model
def test_smollm2_survives_preemption(smollm2: Oracle) -> None:
    check_preempted(smollm2, Control())


@pytest.mark.model
def test_smollm2_survives_switching(smollm2: Oracle) -> None:
    check_switched(smollm2, 4 * smollm2.reservation, 3)
