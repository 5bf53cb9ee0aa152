"""Parameter counts against transformers' own models on `meta`, KV bytes against its cache and published figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engine.loading.errors import ModelError
from engine.sizing.families import FAMILIES, read_shape
from engine.sizing.memory import KV_BYTES, weigh
from engine.sizing.shape import ModelShape

CONFIGS = Path(__file__).parent / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json"))
GIB = 1 << 30


def raw(name: str) -> dict[str, Any]:
    return json.loads((CONFIGS / f"{name}.json").read_text())


def shape(name: str, **changes: Any) -> ModelShape:
    return read_shape(raw(name) | changes, "config.json", name)


def on_meta(config: dict[str, Any]) -> PreTrainedModel:
    text = config.get("text_config") or config
    known = {key: value for key, value in text.items() if key != "quantization_config"}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**known))


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_those_of_transformers(name: str) -> None:
    assert shape(name).parameters.total == on_meta(raw(name)).num_parameters()


def test_every_family_has_a_config() -> None:
    covered = {shape(name).model_type for name in NAMES}
    assert set(FAMILIES) - covered == {"kimi_k2"}  # deepseek_v3 by another name, which transformers does not know


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama-3-8b", {"attention_bias": True, "mlp_bias": True}),
        ("llama-3-8b", {"head_dim": 64}),
        ("gpt-neox-20b", {"tie_word_embeddings": True}),
        ("qwen3-8b", {"attention_bias": True}),
        ("qwen3-235b-a22b", {"decoder_sparse_step": 2, "mlp_only_layers": [3]}),
        ("glm-4.5-air", {"use_qk_norm": True, "first_k_dense_replace": 4}),
        ("deepseek-v3", {"attention_bias": True}),
        ("deepseek-v3", {"n_shared_experts": 3, "first_k_dense_replace": 0}),
        ("falcon-7b", {"bias": True, "parallel_attn": False}),
        ("falcon-7b", {"multi_query": False}),
        ("falcon-40b", {"num_ln_in_parallel_attn": 1}),
        ("gpt2", {"n_inner": 1000}),
        ("starcoder2-7b", {"use_bias": False}),
    ],
)
def test_a_config_may_say_otherwise(name: str, changes: dict[str, Any]) -> None:
    counted = shape(name, **changes).parameters.total
    assert counted == on_meta(raw(name) | changes).num_parameters() != shape(name).parameters.total


@pytest.mark.parametrize(
    ("name", "billions"),  # as their model cards say
    [("llama-3-70b", 70.6), ("mixtral-8x7b", 46.7), ("deepseek-v3", 671.0), ("deepseek-v2", 236), ("gemma-2-9b", 9.24),
     ("qwen3-235b-a22b", 235), ("gpt-oss-120b", 116.8), ("smollm2-135m", 0.1345), ("falcon-40b", 41.3)],
)  # fmt: skip
def test_parameters_are_those_that_are_published(name: str, billions: float) -> None:
    assert shape(name).parameters.total / 1e9 == pytest.approx(billions, rel=2e-3)


@pytest.mark.parametrize(
    "name",
    ["llama-3-70b", "mistral-7b-v0.1", "falcon-7b", "gemma-2b", "gemma-2-9b", "gemma-3-4b", "qwen3-8b",
     "gpt2", "opt-13b", "phi-3-mini-4k", "command-r7b", "glm-4-9b-0414", "olmo-2-7b", "starcoder2-7b"],
)  # fmt: skip
def test_kv_is_what_transformers_caches(name: str) -> None:
    model = on_meta(raw(name))
    with torch.device("meta"), torch.no_grad():
        cache = model(input_ids=torch.zeros((1, 1), dtype=torch.long), use_cache=True).past_key_values
    assert shape(name).kv_elements() == sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # "Insights into DeepSeek-V3" (arXiv 2505.09343), table 1
        ("deepseek-v3", 70_272),
        ("qwen2.5-72b", 327_680),
        ("llama-3.1-405b", 516_096),
        # "Efficient Memory Management for LLM Serving with PagedAttention" (arXiv 2309.06180), section 3: 800 KB
        ("opt-13b", 800 * 1024),
    ],
)
def test_kv_bytes_are_those_that_are_published(name: str, published: int) -> None:
    assert shape(name).kv_elements() * KV_BYTES["bf16"] == published


def test_kinds_of_attention() -> None:
    kinds = {"llama-3-70b": "GQA", "falcon-7b": "MQA", "gemma-2b": "MQA", "opt-13b": "MHA", "deepseek-v2-lite": "MLA"}
    assert {name: shape(name).attention for name in kinds} == kinds


def test_heads_are_split_over_devices_and_a_latent_is_not() -> None:
    assert [shape("llama-3-70b").kv_elements(n) for n in (1, 2, 8, 16)] == [163_840, 81_920, 20_480, 20_480]
    assert shape("deepseek-v3").kv_elements(8) == shape("deepseek-v3").kv_elements()


@pytest.mark.parametrize("name", NAMES)
def test_sliding_layers_are_those_of_transformers(name: str) -> None:
    text = raw(name).get("text_config") or raw(name)
    config = AutoConfig.for_model(**{key: value for key, value in text.items() if key != "quantization_config"})
    kinds = getattr(config, "layer_types", None)
    everywhere = config.num_hidden_layers if getattr(config, "sliding_window", None) else 0
    assert shape(name).sliding_layers == (kinds.count("sliding_attention") if kinds else everywhere)


def test_layers_that_slide_from_some_layer_on() -> None:
    sliding = shape("qwen2.5-7b", use_sliding_window=True, max_window_layers=20, sliding_window=4096)
    assert (sliding.sliding_layers, sliding.window) == (8, 4096)


@pytest.mark.parametrize(
    ("name", "bits", "gib"),
    [
        # vllm-project/vllm#12569: "Loading model weights took 67.7229 GB" for the w8a8 checkpoint (binary GB)
        ("llama-3-70b", 8, 67.7229),
        ("gpt-oss-120b", None, 60.8),  # its model card: 60.8 GiB in MXFP4
        ("llama-3-8b", None, 14.96),
    ],
)
def test_weights_are_those_that_servers_log(name: str, bits: int | None, gib: float) -> None:
    assert weigh(shape(name), bits, 1).bytes / GIB == pytest.approx(gib, rel=2e-3)


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4.15625),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
        ({"quant_method": "fp8"}, 8),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 128}}},
            },
            4.125,
        ),
        ({"quant_method": "something"}, None),
        ({"quant_method": "awq", "bits": "four"}, None),
        ("fp8", None),
    ],
)
def test_how_a_checkpoint_is_packed(config: Any, bits: float | None) -> None:
    quantization = shape("llama-3-8b", quantization_config=config).quantization
    assert quantization is not None
    assert quantization.bits == bits


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_missing_key_is_named(key: str) -> None:
    config = raw("llama-3-8b")
    del config[key]
    with pytest.raises(ModelError, match=f"config.json: {key} is missing"):
        read_shape(config, "config.json", "x")


@pytest.mark.parametrize("key", ["kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "n_routed_experts"])
def test_a_missing_key_of_mla_is_named(key: str) -> None:
    config = raw("deepseek-v3")
    del config[key]
    with pytest.raises(ModelError, match=f"{key} is missing"):
        read_shape(config, "config.json", "x")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mamba"}, "mamba is not known.*llama.*--kv-bytes-per-token"),
        ({"model_type": None}, "is not known"),
        ({"hidden_size": 0}, "hidden_size must be a whole number from 1"),
        ({"hidden_size": "big"}, "hidden_size must be .* not 'big'"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers must be .* 10,000"),
        ({"num_key_value_heads": 5}, "no multiple of num_key_value_heads"),
        ({"torch_dtype": "int3"}, "dtype must be one of"),
        ({"index_head_dim": 128}, "index_head_dim"),
        ({"num_attention_heads": 48}, r"head_dim is missing, .*hidden_size \(4096\) .*num_attention_heads \(48\)"),
    ],
)
def test_a_config_that_cannot_be_used(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        shape("llama-3-8b", **changes)
