"""Requests that one engine prefills and another goes on with are answered as by one engine, and as by transformers,
token for token, in fp32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.loading.resolve import resolve_model
from engine.protocol import Control
from engine.sampling_params import SamplingParams
from tests.engine.transfer.pools import Family, Pools, alone

NEW_TOKENS = 16
GREEDY = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0)
TINY: dict[str, Any] = {"model": "tiny", "kv_memory": 4 << 20}  # 512 blocks


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def shared_pools() -> Iterator[Pools]:
    pools = Pools(**TINY)
    yield pools
    pools.close()


@pytest.fixture
def pools(shared_pools: Pools) -> Pools:
    """With nothing cached and nothing told."""
    shared_pools.begin_anew()
    return shared_pools


def prompts_of(count: int, longest: int, seed: int) -> list[list[int]]:
    """Random ones; every third begins as an earlier one does."""
    random = np.random.default_rng(seed)
    prompts: list[list[int]] = []
    for i in range(count):
        prompt = random.integers(0, 250, int(random.integers(1, longest))).tolist()
        if i % 3 == 2:
            shared = prompts[int(random.integers(0, i))][: len(prompt) - 1]
            prompt[: len(shared)] = shared
        prompts.append(prompt)
    return prompts


def generated_by_transformers(name: str, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
    judge: Any = AutoModelForCausalLM.from_pretrained(resolve_model(name).folder, dtype=torch.float32)
    found = []
    for prompt in prompts:
        text = judge.generate(torch.tensor([prompt]), max_new_tokens=new_tokens, do_sample=False)
        found.append(text[0, len(prompt) :].tolist())
    return found


def test_tiny_answers_as_transformers_does(pools: Pools) -> None:
    """Twice: the second time either side has some of it in its prefix cache."""
    prompts = prompts_of(12, 300, seed=11)
    wanted = generated_by_transformers("tiny", prompts, NEW_TOKENS)
    for wave in range(2):
        for i, prompt in enumerate(prompts):
            pools.ask([f"{wave}/{i}"], prompt, GREEDY)
        tokens = pools.run()
        assert [tokens[f"{wave}/{i}"] for i in range(len(prompts))] == wanted
        pools.check_idle()
    received = [one for record in pools.decode.records for one in record.receiving]
    assert sum(one.cached_tokens > 0 and one.tokens > 0 for one in received) > 5
    assert pools.prefill.found_tokens > 0
    kinds = {row.kind for record in pools.decode.records for row in record.rows}
    assert kinds == {"decode"}, "nothing that was computed is computed again"


def test_a_prompt_that_is_cached_where_it_decodes_is_not_moved(pools: Pools) -> None:
    """Only its last block is: what is found comes in whole blocks."""
    prompt = prompts_of(1, 300, seed=3)[0] * 3
    for name in "ab":
        pools.ask([name], prompt, GREEDY)
        pools.run()
    first, second = (one for record in pools.decode.records for one in record.receiving)
    assert (first.cached_tokens, first.tokens) == (0, len(prompt))
    assert (second.cached_tokens, second.tokens) == (len(prompt) // 16 * 16, len(prompt) % 16)
    assert second.blocks == 1
    assert pools.tokens["a"] == pools.tokens["b"]
    pools.check_idle()


@pytest.mark.parametrize("length", [600, 592, 5], ids=["with a tail", "whole blocks", "one block"])
def test_siblings_answer_as_on_one_engine(pools: Pools, length: int) -> None:
    """Each draws with its own seed on either side; they share the blocks that came, and copy the tail."""
    prompt = np.random.default_rng(3).integers(0, 250, length).tolist()
    sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.9, top_p=0.95, seed=40, ignore_eos=True)
    family = Family(("a", "b", "c", "d"), tuple(prompt), sampling)
    pools.ask(family.names, prompt, sampling)
    tokens = pools.run()
    assert tokens == alone([family], **TINY)[0]
    assert len({tuple(answer) for answer in tokens.values()}) == 4
    (received,) = (one for record in pools.decode.records for one in record.receiving)
    assert received.tokens == length
    copied = sum(len(record.copies) for record in pools.decode.records)
    assert copied == (3 if length % 16 else 0)
    pools.check_idle()


def test_siblings_that_end_with_their_first_token_do_not_go_on(pools: Pools) -> None:
    """Whichever they are: the others keep their places, and so their seeds."""
    prompt = np.random.default_rng(4).integers(0, 250, 90).tolist()
    names = tuple(f"s{i}" for i in range(6))
    free = SamplingParams(max_tokens=12, temperature=1.2, seed=7, ignore_eos=True)
    firsts = {name: told[0] for name, told in alone([Family(names, tuple(prompt), free)], **TINY)[0].items()}
    for i, ending in enumerate(names):
        stop = (firsts[ending],)
        sampling = SamplingParams(max_tokens=12, temperature=1.2, seed=7, ignore_eos=True, stop_token_ids=stop)
        family = Family(tuple(f"{name}/{i}" for name in names), tuple(prompt), sampling)
        pools.ask(family.names, prompt, sampling)
        tokens = pools.run()
        wanted = alone([family], **TINY)[0]
        assert {name: tokens[name] for name in wanted} == wanted
        assert pools.outputs[f"{ending}/{i}"][-1].finished == "stop"
        assert len(wanted[f"{ending}/{i}"]) <= 1
    pools.check_idle()


def test_one_that_ends_with_its_first_token_is_not_offered(pools: Pools) -> None:
    pools.ask(["a"], [1, 2, 3], SamplingParams(max_tokens=1, temperature=0.0))
    pools.run()
    (told,) = pools.outputs["a"]
    assert (told.finished, told.offer) == ("length", None)
    assert not pools.decode.records
    pools.check_idle()


def test_seeds_logprobs_and_penalties_go_on(pools: Pools) -> None:
    prompts = prompts_of(8, 200, seed=5)
    requests = []
    for i, prompt in enumerate(prompts):
        sampling = SamplingParams(
            max_tokens=NEW_TOKENS,
            min_tokens=5,
            temperature=0.8,
            seed=100 + i,
            logprobs=3,
            frequency_penalty=0.5,
            presence_penalty=0.3,
            repetition_penalty=1.1,
            logit_bias={5: 2.0},
        )
        requests.append(Family((str(i),), tuple(prompt), sampling))
    wanted, told = alone(requests, **TINY)
    for family in requests:
        pools.ask(family.names, family.prompt, family.sampling)
    assert pools.run() == wanted
    for name, outputs in told.items():
        found = [output for output in pools.outputs[name] if output.token_id is not None]
        drawn = [output for output in outputs if output.token_id is not None]
        assert [output.finished for output in found[1:]] == [output.finished for output in drawn[1:]]
        for one, other in zip(found, drawn, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
            assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=1e-4)
    pools.check_idle()


@pytest.mark.parametrize("faults", [("transfer-error%2",), ("slow-transfer=0.004%1",)], ids=["fail", "slow"])
def test_what_does_not_come_is_computed_with_the_same_answers(faults: tuple[str, ...]) -> None:
    """Every second one fails; or all take longer than the lease."""
    slow = faults[0].startswith("slow")
    pools = Pools(**TINY, prefill={"lease_seconds": 0.002} if slow else {}, decode={"faults": faults})
    prompts = prompts_of(8, 300, seed=12)
    sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.9, seed=40, ignore_eos=True)
    requests = [Family((f"{i}", f"{i}+"), tuple(prompt), sampling) for i, prompt in enumerate(prompts)]
    for family in requests:
        pools.ask(family.names, family.prompt, family.sampling)
    assert pools.run() == alone(requests, **TINY)[0]
    pools.check_idle()
    errors = [one.error for record in pools.decode.records for one in record.transferred]
    assert len(errors) == len(prompts)
    lost = [error for error in errors if error]
    assert len(lost) == (8 if slow else 4)
    assert all(("the lease of prefill-0's blocks has ended" if slow else "InjectedError") in error for error in lost)
    pools.close()


def test_a_small_pool_makes_them_wait_and_answers_alike() -> None:
    """Where it decodes there is room for two or three: the others' blocks wait on the other side."""
    prompts = prompts_of(10, 300, seed=6)
    pools = Pools(**TINY, decode={"kv_memory": 50 * 8192, "control": Control(prefix_cache=False)})
    requests = [Family((str(i),), tuple(prompt), GREEDY) for i, prompt in enumerate(prompts)]
    for family in requests:
        pools.ask(family.names, family.prompt, family.sampling)
    assert pools.run() == alone(requests, **TINY)[0]
    waited = [record.queue.length for record in pools.decode.records]
    assert max(waited) > 3
    pools.check_idle()
    pools.close()


def test_engines_of_other_weights_do_not_take_each_others_kv() -> None:
    pools = Pools(**TINY, decode={"seed": 1})
    family = Family(("a",), tuple(range(100)), GREEDY)
    pools.ask(family.names, family.prompt, family.sampling)
    pools.run()
    (told,) = (one for record in pools.decode.records for one in record.transferred)
    assert told.error.startswith("prefill-0 has another model or layout than tiny, float32, blocks of 16, ")
    assert pools.decode.received_tokens == 0
    pools.check_idle()
    pools.close()


CHATS = ("What is the capital of France?", "Count from 1 to 10.")


@pytest.mark.model
def test_smollm2_answers_as_transformers_does() -> None:
    """With prefix hits on either side, as all chats begin alike; and with a sibling each, a greedy one."""
    tokenizer: Any = AutoTokenizer.from_pretrained(resolve_model("smollm2-135m").folder)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": chat}], add_generation_prompt=True, return_dict=False
        )
        for chat in CHATS
    ]
    wanted = generated_by_transformers("smollm2-135m", prompts, 8)
    pools = Pools(model="smollm2-135m", kv_memory=100 << 20, max_model_len=512)
    greedy = SamplingParams(max_tokens=8, temperature=0.0)
    for i, prompt in enumerate(prompts):
        pools.ask([f"{i}/{j}" for j in range(2)], prompt, greedy)
        tokens = pools.run()
        assert [tokens[f"{i}/{j}"] for j in range(2)] == [wanted[i]] * 2
    pools.check_idle()
    assert pools.prefill.found_tokens > 0
    assert sum(one.cached_tokens for record in pools.decode.records for one in record.receiving) > 0
    assert {row.kind for record in pools.decode.records for row in record.rows} == {"decode"}
    pools.close()
