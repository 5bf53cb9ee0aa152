"""A GGUF file becomes the folder it was made from: same weights, RoPE and tokenizer; a broken one is refused."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from engine.loading.config import read_config
from engine.loading.errors import ModelError
from engine.loading.resolve import resolve_model
from engine.loading.tiny import HEAD_DIM, HEADS, HIDDEN, INTERMEDIATE, KV_HEADS, LAYERS, VOCABULARY

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LLAMA3_FACTOR, LLAMA3_ORIGINAL, THETA = 8.0, 8192, 500000.0


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGED_TOP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        _, _, layer, place = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[place]}.weight"
    return f"{NAMES[stem]}.weight"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF's Llama keeps a head's rotating pairs side by side."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def write_gguf(
    path: Path,
    tokenizer_kind: str = "smollm",
    dtype: Any = np.float32,
    rope: str | None = None,
    formats: Mapping[str, str] | None = None,
) -> dict[str, torch.Tensor]:
    """The model `tiny` as a GGUF file with the tokenizer `tokenizer_kind`; returns its weights.

    `formats` names ggml's format of the matrices whose GGUF names end so.
    """
    folder = resolve_model("tiny").folder
    weights = load_file(folder / "model.safetensors")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(THETA)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = [*sorted(vocabulary, key=vocabulary.__getitem__), "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens[vocabulary["ÿ"]] = "ee"  # the reader wants a merge; no UTF-8 text holds the byte that gives way
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokenizer_kind)
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3] * 3)
    writer.add_token_merges(["e e"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    for name, tensor in weights.items():
        array = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            array = interleaved(array, HEADS if "q_proj" in name else KV_HEADS)
        stored = gguf_name(name)
        chosen = next((kind for end, kind in (formats or {}).items() if stored.endswith(f"{end}.weight")), None)
        if chosen is not None:
            kind = gguf.GGMLQuantizationType[chosen]
            writer.add_tensor(stored, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored, array.astype(dtype if array.ndim > 1 else np.float32))
    if rope == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)
    elif rope is not None:
        wavelength = 2 * math.pi * THETA ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        smooth = np.clip((LLAMA3_ORIGINAL / wavelength - 1) / 3, 0, 1)
        factors = (1 / ((1 - smooth) / LLAMA3_FACTOR + smooth)).astype(np.float32)
        writer.add_tensor("rope_freqs.weight", factors if rope == "llama3" else factors[::-1].copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


@pytest.mark.parametrize(
    ("dtype", "stored"), [(np.float32, torch.float32), (np.float16, torch.float16)], ids=["F32", "F16"]
)
def test_weights_come_out_as_they_went_in(tmp_path: Path, dtype: Any, stored: torch.dtype) -> None:
    weights = write_gguf(tmp_path / "model.gguf", dtype=dtype)
    model = resolve_model(str(tmp_path / "model.gguf"))
    found = load_file(model.folder / "model.safetensors")
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name].to(stored)) for name in weights)
    assert model.config.dtype == str(stored).removeprefix("torch.")
    assert (model.config.num_heads, model.config.num_kv_heads, model.config.head_dim) == (6, 2, 16)
    assert model.config.rope.theta == THETA
    assert model.eos_token_ids == {258}
    read_config(model.folder)


def test_a_file_is_converted_again_only_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path)
    first = resolve_model(str(path)).folder
    made = (first / "model.safetensors").stat().st_mtime_ns
    assert resolve_model(str(path)).folder == first
    assert (first / "model.safetensors").stat().st_mtime_ns == made
    os.utime(path, ns=(1, 1))
    assert resolve_model(str(path)).folder != first


@pytest.mark.parametrize(
    ("kind", "pieces"),
    [
        ("smollm", ["a", "ĠĠ", "2", "0", "2", "4"]),
        ("qwen2", ["a", "Ġ", "Ġ", "2", "0", "2", "4"]),
        ("llama-bpe", ["a", "Ġ", "Ġ", "202", "4"]),
    ],
)
def test_text_is_split_as_the_model_was_taught(tmp_path: Path, kind: str, pieces: list[str]) -> None:
    write_gguf(tmp_path / "model.gguf", kind)
    tokenizer: Any = AutoTokenizer.from_pretrained(resolve_model(str(tmp_path / "model.gguf")).folder)
    split = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  2024")
    assert [piece for piece, _ in split] == pieces
    assert tokenizer.decode(tokenizer.encode("naïve 日本 12")) == "naïve 日本 12"
    assert tokenizer.model_max_length == 4096


def test_rope_scaling_is_taken_over(tmp_path: Path) -> None:
    write_gguf(tmp_path / "linear.gguf", rope="linear")
    rope = resolve_model(str(tmp_path / "linear.gguf")).config.rope
    assert (rope.kind, rope.factor, rope.theta) == ("linear", 4.0, THETA)
    write_gguf(tmp_path / "llama3.gguf", rope="llama3")
    rope = resolve_model(str(tmp_path / "llama3.gguf")).config.rope
    assert (rope.kind, rope.factor, rope.original_max_position_embeddings) == ("llama3", 8.0, 8192)
    write_gguf(tmp_path / "other.gguf", rope="other")
    with pytest.raises(ModelError, match=r"rope_freqs\.weight holds scaling factors of an unknown kind"):
        resolve_model(str(tmp_path / "other.gguf"))


def test_broken_files_are_refused_and_leave_nothing(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path)
    whole = path.read_bytes()
    for broken in (b"", b"GGUF", b"not a model at all, but long enough to be read", whole[:2000], whole[:-5000]):
        path.write_bytes(broken)
        with pytest.raises(ModelError, match=r"model\.gguf is not a (whole GGUF file|GGUF file with a whole head)"):
            resolve_model(str(path))
    folders = [p.name for p in (cache / "models").iterdir() if p.is_dir() and p.name.startswith("model")]
    assert folders == []


def test_another_architecture_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "falcon.gguf", "falcon")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"unsupported architecture falcon; supported are Llama"):
        resolve_model(str(tmp_path / "falcon.gguf"))
