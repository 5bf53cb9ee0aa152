"""Whichever engines compute a request, greedy output is transformers' `generate`, token for token, in fp32."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.cluster.cluster import Cluster
from engine.cluster.protocol import ClusterControl
from engine.loading.resolve import resolve_model
from engine.sampling_params import SamplingParams
from tests.engine.cluster.clusters import TINY, Asked, MiB, running, settle, until

NEW_TOKENS = 10
N = 4
SEPARATED = ClusterControl(prefill=1, decode=1, local_prefill=8)
MODELS = ("tiny", pytest.param("smollm2-135m", marks=pytest.mark.model))


def prompts_of(vocabulary: int) -> list[list[int]]:
    """Some that begin alike, at a block's end and within one, some that are short, and one twice."""
    beginning = [(7 * i + 3) % (vocabulary - 100) + 50 for i in range(148)]
    tails = [[(13 * i + 5 * number) % (vocabulary - 100) + 50 for i in range(9 + 17 * number)] for number in range(4)]
    return [*(beginning + tail for tail in tails), tails[0], beginning + tails[1]]


def judged(name: str) -> list[tuple[list[int], list[int]]]:
    """Prompts, and what transformers says to each."""
    resolved = resolve_model(name)
    judge: Any = AutoModelForCausalLM.from_pretrained(resolved.folder, dtype=torch.float32)
    found = []
    for prompt in prompts_of(resolved.config.vocab_size):
        text = judge.generate(
            torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False
        )
        found.append((prompt, text[0, len(prompt) :].tolist()))
    return found


async def ask(cluster: Cluster, round: str, cases: list[tuple[list[int], list[int]]]) -> None:
    """All at once, every third four times over."""
    sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, min_tokens=NEW_TOKENS)
    asked = [
        Asked(cluster, f"{round}-{number}", prompt, sampling, N if number % 3 == 1 else 1)
        for number, (prompt, _) in enumerate(cases)
    ]
    answers = await asyncio.gather(*(one.tokens() for one in asked))
    for (_, expected), answer in zip(cases, answers, strict=True):
        assert answer == [expected] * len(answer), round
    await settle(cluster)


@pytest.mark.parametrize("name", MODELS)
async def test_separated_engines_answer_as_transformers_does(name: str) -> None:
    """One prefill worker, then two, with empty caches and with full ones; then the same engines colocated."""
    cases = judged(name)
    config = msgspec.structs.replace(TINY, model=name, kv_memory=2 * MiB if name == "tiny" else 64 * MiB)
    async with running(SEPARATED, config) as cluster:
        await ask(cluster, "1P1D", cases)
        handed_over = cluster.router_state().handed_over
        assert handed_over >= 4
        await ask(cluster, "again", cases)
        await cluster.change(msgspec.structs.replace(cluster.control, prefill=2))
        await until(lambda: [worker.phase for worker in cluster.workers] == ["ready"] * 3)
        await cluster.client.clear_cache()
        await ask(cluster, "2P1D", cases)
        assert cluster.router_state().handed_over > handed_over
        await cluster.change(msgspec.structs.replace(cluster.control, separate=False))
        await ask(cluster, "colocated", cases)
