"""The decoders' logits equal transformers' in fp32, for each family and each kind of RoPE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from engine.cpu_decoder import CPUDecoder
from engine.loading.config import read_config
from engine.loading.resolve import resolve_model
from engine.loading.weights import Weights
from engine.model import Decoder, layer_caches
from engine.plan import FixedRequest, PlannedRow
from engine.runner import flatten
from engine.sampling_params import SamplingParams
from kernels import cpu_float_tile
from kernels.attention import AttentionMetadata

BLOCK_SIZE, NUM_BLOCKS = 4, 64
CPU = torch.device("cpu")
COMMON: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, **parameters}}


CASES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**COMMON),
    "llama-biases-tied": LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama-one-layer": LlamaConfig(**{**COMMON, "num_hidden_layers": 1}),
    "llama-head-dim": LlamaConfig(**COMMON, head_dim=16),
    "llama-theta": LlamaConfig(**COMMON, **rope(rope_type="default", rope_theta=500000.0)),
    "llama-linear": LlamaConfig(**COMMON, **rope(rope_type="linear", factor=2.5)),
    "llama-dynamic": LlamaConfig(**COMMON, **rope(rope_type="dynamic", factor=2.0)),
    "llama-llama3": LlamaConfig(**COMMON, **rope(**LLAMA3)),
    "llama-yarn": LlamaConfig(**COMMON, **rope(**YARN)),
    "llama-yarn-tuned": LlamaConfig(
        **COMMON, **rope(**YARN, beta_fast=16.0, beta_slow=2.0, mscale=0.7, mscale_all_dim=1.3)
    ),
    "llama-yarn-attention-factor": LlamaConfig(**COMMON, **rope(**YARN, attention_factor=0.8, truncate=False)),
    "mistral": MistralConfig(**COMMON, head_dim=8, sliding_window=None),
    "mistral-sliding": MistralConfig(**COMMON, head_dim=8, sliding_window=7),
    "qwen2": Qwen2Config(**COMMON),
    "qwen2-sliding": Qwen2Config(**COMMON, use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "qwen3": Qwen3Config(**COMMON, head_dim=16),
    "qwen3-bias": Qwen3Config(**COMMON, head_dim=8, attention_bias=True, tie_word_embeddings=True),
}


def save_random(config: PreTrainedConfig, folder: Path) -> Any:
    """A random model of this configuration, biases and norms included, saved and kept."""
    torch.manual_seed(7)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif "norm" in name:
                parameter.normal_(1, 0.3)
    model.save_pretrained(folder)
    return model


@pytest.fixture(params=[Decoder, CPUDecoder])
def decoder(request: pytest.FixtureRequest) -> type[Decoder] | type[CPUDecoder]:
    """Either of them; machines without the vectors for a compiled step have only the first."""
    if request.param is CPUDecoder and not cpu_float_tile.multiplies(torch.float32):
        pytest.skip("this processor has no compiled step")
    return request.param


class Fed:
    """Feeds chunks of several sequences to a decoder, over block tables scattered through the pool."""

    def __init__(self, decoder: Any, folder: Path, prompts: list[list[int]], seed: int = 0) -> None:
        config = read_config(folder)
        self.model = decoder(config, Weights(folder, torch.float32, CPU), config.max_position_embeddings)
        self.caches = layer_caches(self.model.allocate_kv(NUM_BLOCKS, BLOCK_SIZE))
        self.prompts = prompts
        blocks = np.random.default_rng(seed).permutation(NUM_BLOCKS).tolist()
        self.tables = [[blocks.pop() for _ in range(-(-len(p) // BLOCK_SIZE))] for p in prompts]

    def step(self, chunks: list[tuple[int, int, int]]) -> torch.Tensor:
        """Feed (sequence, start, count); logits of every fed row."""
        sampling = SamplingParams(max_tokens=1)
        rows = [
            PlannedRow(
                FixedRequest(str(i), self.prompts[i], 1, self.tables[i], sampling), "prefill", start, count, True
            )
            for i, start, count in chunks
        ]
        tokens, positions, metadata, _ = flatten(rows, BLOCK_SIZE, CPU)
        return self.model.forward(tokens, positions, metadata, self.caches, torch.arange(len(tokens))).clone()


def random_prompts(vocabulary: int) -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random.integers(0, vocabulary, n).tolist() for n in (61, 1, 23, 40)]


def check(decoder: Any, model: Any, folder: Path, prompts: list[list[int]], tolerance: float) -> None:
    with torch.inference_mode():
        expected = [model(torch.tensor([p])).logits[0] for p in prompts]

    whole = Fed(decoder, folder, prompts).step([(i, 0, len(p)) for i, p in enumerate(prompts)])
    torch.testing.assert_close(whole, torch.cat(expected), atol=tolerance, rtol=tolerance)

    # Chunks of 5, then one token at a time from position 11 on; every step holds all sequences that have some left.
    fed = Fed(decoder, folder, prompts, seed=1)
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    done = [0] * len(prompts)
    while any(n < len(p) for n, p in zip(done, prompts, strict=True)):
        chunks = []
        for i, prompt in enumerate(prompts):
            count = min(5 if done[i] < 10 else 1, len(prompt) - done[i])
            if count:
                chunks.append((i, done[i], count))
        logits = fed.step(chunks)
        for (i, _, count), part in zip(chunks, logits.split([c for _, _, c in chunks]), strict=True):
            found[i].append(part)
            done[i] += count
    for parts, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.cat(parts), wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_transformers(name: str, decoder: Any, tmp_path: Path) -> None:
    model = save_random(CASES[name], tmp_path)
    check(decoder, model, tmp_path, random_prompts(COMMON["vocab_size"]), 1e-4)


def test_logits_of_tiny_equal_transformers(decoder: Any) -> None:
    folder = resolve_model("tiny").folder
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    check(decoder, model, folder, random_prompts(259), 1e-4)


@pytest.mark.model
def test_logits_of_smollm2_equal_transformers(decoder: Any) -> None:
    folder = resolve_model("smollm2-135m").folder
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    check(decoder, model, folder, random_prompts(49152), 2e-4)


def test_only_sampled_rows_reach_the_logits(decoder: Any, tmp_path: Path) -> None:
    save_random(CASES["llama"], tmp_path)
    prompts = random_prompts(COMMON["vocab_size"])
    fed = Fed(decoder, tmp_path, prompts)
    every = fed.step([(0, 0, 20), (2, 0, 23)])
    rows = [
        PlannedRow(
            FixedRequest(str(i), prompts[i], 1, fed.tables[i], SamplingParams(max_tokens=1)), "prefill", 0, n, True
        )
        for i, n in ((0, 20), (2, 23))
    ]
    tokens, positions, metadata, last_rows = flatten(rows, BLOCK_SIZE, CPU)
    some = fed.model.forward(tokens, positions, metadata, fed.caches, last_rows)
    torch.testing.assert_close(some, every[[19, 42]], atol=1e-5, rtol=1e-5)
    none = fed.model.forward(tokens, positions, metadata, fed.caches, last_rows[:0])
    assert none.shape == (0, COMMON["vocab_size"])


def test_a_held_row_changes_no_cache(decoder: Any, tmp_path: Path) -> None:
    save_random(CASES["llama"], tmp_path)
    prompts = random_prompts(COMMON["vocab_size"])
    fed = Fed(decoder, tmp_path, prompts)
    expected = fed.step([(0, 0, 61)])[-1:]
    before = [tensor.clone() for pair in fed.caches for tensor in pair]
    row = PlannedRow(
        FixedRequest("0", prompts[0], 1, fed.tables[0], SamplingParams(max_tokens=1)), "held", 60, 1, False
    )
    tokens, positions, metadata, last_rows = flatten([row], BLOCK_SIZE, CPU)
    logits = fed.model.forward(tokens, positions, metadata, fed.caches, last_rows)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    after = [tensor for pair in fed.caches for tensor in pair]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def one_row(fed: Fed, count: int) -> tuple[torch.Tensor, torch.Tensor, AttentionMetadata]:
    """A step of the first prompt's first `count` tokens."""
    request = FixedRequest("0", fed.prompts[0], 1, fed.tables[0], SamplingParams(max_tokens=1))
    return flatten([PlannedRow(request, "prefill", 0, count, True)], BLOCK_SIZE, CPU)[:3]


def test_rows_may_be_wanted_in_any_order_and_twice(decoder: Any, tmp_path: Path) -> None:
    save_random(CASES["llama"], tmp_path)
    fed = Fed(decoder, tmp_path, random_prompts(COMMON["vocab_size"]))
    every = fed.step([(0, 0, 12)])

    def apart(values: torch.Tensor) -> torch.Tensor:
        return torch.stack((values, values * 0), dim=1)[:, 0]  # not contiguous

    wanted = apart(torch.arange(11, -1, -1).repeat(2))  # more than there are tokens
    tokens, positions, metadata = one_row(fed, 12)
    found = fed.model.forward(apart(tokens), apart(positions), metadata, fed.caches, wanted)
    torch.testing.assert_close(found, every[wanted], atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not cpu_float_tile.multiplies(torch.float32), reason="this processor has no compiled step")
def test_a_compiled_step_reads_nothing_outside_its_tables(tmp_path: Path) -> None:
    save_random(CASES["llama"], tmp_path)
    fed = Fed(CPUDecoder, tmp_path, random_prompts(COMMON["vocab_size"]))
    tokens, positions, metadata = one_row(fed, 5)
    wanted, caches = torch.tensor([4]), fed.caches

    def run(*arguments: Any) -> None:
        fed.model.forward(*arguments)

    with pytest.raises(ValueError, match="token_ids must be from 0 to 96, got 97"):
        run(tokens * 0 + 97, positions, metadata, caches, wanted)
    with pytest.raises(ValueError, match="positions must be from 0 to 127, got -1"):
        run(tokens, positions - 1, metadata, caches, wanted)
    with pytest.raises(ValueError, match="wanted_rows must be from 0 to 4, got 5"):
        run(tokens, positions, metadata, caches, wanted + 1)
    with pytest.raises(TypeError, match=r"positions must be int64, got torch.int32"):
        run(tokens, positions.int(), metadata, caches, wanted)
    with pytest.raises(ValueError, match="must be as many"):
        run(tokens[:4], positions, metadata, caches, wanted - 1)
    with pytest.raises(ValueError, match="caches for 3 layers, not 2"):
        run(tokens, positions, metadata, caches[:2], wanted)
    with pytest.raises(ValueError, match=r"caches must be torch.float32 \[num_blocks, 2, 4, 8\]"):
        run(tokens, positions, metadata, [(k.bfloat16(), v) for k, v in caches], wanted)
    with pytest.raises(ValueError, match=r"outside 0\.\.2"):
        run(tokens, positions, metadata, [(k[:3], v[:3]) for k, v in caches], wanted)
