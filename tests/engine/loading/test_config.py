"""config.json as the hub's models write it, old and new, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.loading.config import ModelConfig, RopeConfig, read_config, read_eos_token_ids
from engine.loading.errors import ModelError

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1000,
    "rms_norm_eps": 1e-5,
}


def read(folder: Path, **changes: Any) -> ModelConfig:
    raw = {key: value for key, value in (LLAMA | changes).items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(raw))
    return read_config(folder)


def test_llama(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.head_dim, config.num_heads, config.num_kv_heads) == (8, 8, 2)
    assert not any((config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm))
    assert config.sliding_windows == (None,) * 4
    assert config.kv_bytes_per_token(2) == 2 * 4 * 2 * 8 * 2
    assert read(tmp_path, num_key_value_heads="absent").num_kv_heads == 8
    biased = read(tmp_path, attention_bias=True, mlp_bias=True)
    assert biased.qkv_bias
    assert biased.output_bias
    assert biased.mlp_bias


@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_dtype_under_both_names(tmp_path: Path, key: str) -> None:
    assert read(tmp_path, **{key: "bfloat16"}).dtype == "bfloat16"


def test_rope_of_older_and_newer_files_is_the_same(tmp_path: Path) -> None:
    scaled = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled |= {"original_max_position_embeddings": 100}
    old = read(tmp_path, rope_theta=5e5, rope_scaling=scaled | {"type": "llama3"})
    new = read(tmp_path, rope_parameters=scaled | {"rope_type": "llama3", "rope_theta": 5e5})
    assert old.rope == new.rope
    assert old.rope.kind == "llama3"
    assert (old.rope.theta, old.rope.factor, old.rope.original_max_position_embeddings) == (5e5, 8.0, 100)
    plain = read(tmp_path, rope_theta=77.0, rope_scaling=None)
    assert plain.rope == RopeConfig(theta=77.0, original_max_position_embeddings=1000)


def test_sliding_windows(tmp_path: Path) -> None:
    mistral = {"architectures": ["MistralForCausalLM"]}
    qwen2 = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 32, "max_window_layers": 3}
    kinds = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    assert read(tmp_path, **mistral).sliding_windows == (4096,) * 4
    assert read(tmp_path, **mistral, sliding_window=None).sliding_windows == (None,) * 4
    assert read(tmp_path, **mistral, sliding_window=9).sliding_windows == (9,) * 4
    assert read(tmp_path, **qwen2).sliding_windows == (None,) * 4
    assert read(tmp_path, **qwen2, use_sliding_window=True).sliding_windows == (None, None, None, 32)
    typed = read(tmp_path, **qwen2, use_sliding_window=True, layer_types=kinds)
    assert typed.sliding_windows == (None, 32, None, 32)


def test_families_differ_in_biases_and_norms(tmp_path: Path) -> None:
    qwen2 = read(tmp_path, architectures=["Qwen2ForCausalLM"])
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = read(tmp_path, architectures=["Qwen3ForCausalLM"])
    assert (qwen3.qkv_bias, qwen3.output_bias, qwen3.qk_norm, qwen3.head_dim) == (False, False, True, 128)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel; supported are Llama .*Mistral.*Qwen2.*Qwen3"),
        ({"architectures": "absent", "model_type": "t5"}, "unsupported architecture t5"),
        ({"architectures": "absent"}, "no architecture"),
        ({"hidden_size": "absent"}, "hidden_size is missing"),
        ({"hidden_size": "wide"}, "hidden_size must be a number, not 'wide'"),
        ({"vocab_size": 0}, "vocab_size must be a whole number of at least 1, not 0"),
        ({"hidden_size": 100, "head_dim": None}, r"hidden_size \(100\) is no multiple of num_attention_heads \(8\)"),
        ({"num_key_value_heads": 3}, r"\(8\) is no multiple of num_key_value_heads \(3\)"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantised weights"),
        ({"dtype": "int8"}, "dtype 'int8'"),
        ({"rope_scaling": {"type": "longrope", "factor": 2}}, "rope_type 'longrope'"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": "yes"}, "rope_parameters must be an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"vocab_size": float("inf")}, "vocab_size must be a finite number"),
        ({"hidden_size": float("nan")}, "hidden_size must be a finite number"),
        ({"hidden_size": 10**400}, "hidden_size must be a finite number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be a whole number from 1 to 10,000"),
        ({"rms_norm_eps": -1}, "rms_norm_eps must be above 0"),
        ({"rope_theta": 0}, "rope_theta must be above 0"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor must be above 0"),
        (
            {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 0}},
            "original_max_position_embeddings must be above 0",
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2, "attention_factor": "x"}},
            "attention_factor must be a number",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "layer_types": [["x"]] * 4},
            r"layer_types: \['x'\]",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "layer_types": ["x"] * 4},
            "layer_types: 'x'",
        ),
    ],
)
def test_what_is_refused_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read(tmp_path, **changes)
    assert str(tmp_path / "config.json") in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_a_config_that_is_no_object(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_config(tmp_path)


def test_eos_ids_of_the_generation_config_come_first(tmp_path: Path) -> None:
    assert read_eos_token_ids(tmp_path) == frozenset()
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    assert read_eos_token_ids(tmp_path) == {2}
    (tmp_path / "generation_config.json").write_text(json.dumps({"max_length": 5}))
    assert read_eos_token_ids(tmp_path) == {2}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert read_eos_token_ids(tmp_path) == {7, 8}


@pytest.mark.parametrize("ids", ["x", True, -1, 1.5, [1, "x"], {}])
def test_eos_ids_that_are_none(tmp_path: Path, ids: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": ids}))
    with pytest.raises(ModelError, match=r"config\.json: eos_token_id must be a token id or a list"):
        read_eos_token_ids(tmp_path)


def test_brackets_in_brackets_are_no_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    for reader in (read_config, read_eos_token_ids):
        with pytest.raises(ModelError, match="not valid JSON"):
            reader(tmp_path)
