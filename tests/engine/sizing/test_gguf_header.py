"""The head of a GGUF file, against the gguf package that wrote or reads it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from engine.loading.errors import ModelError
from engine.loading.resolve import SMOLLM2_FILE, SMOLLM2_PACKAGE
from engine.sizing.gguf_header import read_gguf_shape

LAYERS, HIDDEN, VOCABULARY = 2, 64, 300


@pytest.fixture
def write(tmp_path: Path):
    """Writes a file with these fields over a plain Llama's; a field of None is left out."""

    def write(architecture: str = "llama", **fields: Any) -> Path:
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        plain = {"block_count": LAYERS, "embedding_length": HIDDEN, "attention.head_count": 4, "context_length": 512}
        for key, value in (plain | {name.replace("__", "."): value for name, value in fields.items()}).items():
            if isinstance(value, list):
                writer.add_array(f"{architecture}.{key}", value)
            elif value is not None:
                writer.add_uint32(f"{architecture}.{key}", value)
        writer.add_token_list([f"t{i}" for i in range(VOCABULARY)])
        writer.add_token_scores([0.5] * VOCABULARY)
        writer.add_tensor("token_embd.weight", np.zeros((VOCABULARY, HIDDEN), np.float16))
        writer.add_tensor("output_norm.weight", np.zeros(HIDDEN, np.float32))
        writer.add_tensor("output.weight", np.zeros((VOCABULARY, HIDDEN), np.float32))
        for layer in range(LAYERS):
            writer.add_tensor(f"blk.{layer}.attn_output.weight", np.zeros((HIDDEN, HIDDEN), np.float16))
            writer.add_tensor(f"blk.{layer}.ffn_up_exps.weight", np.zeros((3, 10, HIDDEN), np.float16))
            writer.add_tensor(f"blk.{layer}.ffn_up.weight", np.zeros((10, HIDDEN), np.float16))
            writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", np.zeros((3, HIDDEN), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def test_what_the_head_says(write: Any) -> None:
    shape = read_gguf_shape(write(attention__head_count_kv=2), "x")
    assert (shape.model_type, shape.attention, shape.kv_heads, shape.key_dim) == ("llama", "GQA", (2, 2), 16)
    assert (shape.max_context, shape.kv_elements()) == (512, 2 * LAYERS * 2 * 16)
    counts = shape.parameters
    assert (counts.embedding, counts.head) == (VOCABULARY * HIDDEN, VOCABULARY * HIDDEN)
    assert (counts.attention, counts.mlp) == (LAYERS * HIDDEN * HIDDEN, LAYERS * 10 * HIDDEN)
    assert (counts.experts, counts.small) == (LAYERS * 30 * HIDDEN, HIDDEN + LAYERS * 3 * HIDDEN)
    assert shape.stored_bytes == 2 * (counts.total - counts.head - counts.small) + 4 * (counts.head + counts.small)


def test_heads_for_each_layer_and_widths_of_their_own(write: Any) -> None:
    path = write(attention__head_count_kv=[4, 1], attention__key_length=24, attention__value_length=8)
    assert read_gguf_shape(path, "x").kv_elements() == (4 + 1) * (24 + 8)


def test_a_latent(write: Any) -> None:
    shape = read_gguf_shape(write("deepseek2", attention__kv_lora_rank=512, rope__dimension_count=64), "x")
    assert (shape.attention, shape.kv_elements()) == ("MLA", LAYERS * 576)


def test_no_tensor_is_needed(write: Any) -> None:
    path = write()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 1000])
    assert read_gguf_shape(path, "x").parameters.total > 0


@pytest.mark.parametrize("length", [0, 3, 10, 30, 500, 4000])
def test_a_head_that_is_cut_off(write: Any, length: int) -> None:
    path = write()
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ModelError, match=r"not a GGUF file with a whole head"):
        read_gguf_shape(path, "x")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"block_count": None}, "llama.block_count is missing"),
        ({"attention__head_count": None}, "head_count is missing"),
        ({"attention__head_count_kv": [1, 2, 3]}, "heads of 2 layers"),
        ({"ssm__state_size": 8}, "state instead of KV"),
        ({"attention__head_count": 5}, r"key_length is missing, .*embedding_length \(64\) .*head_count \(5\)"),
    ],
)
def test_a_head_that_cannot_be_used(write: Any, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_gguf_shape(write(**fields), "x")


@pytest.mark.model
def test_a_real_file() -> None:
    package = importlib.util.find_spec(SMOLLM2_PACKAGE)
    assert package is not None
    assert package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0]) / SMOLLM2_FILE
    shape = read_gguf_shape(path, "x")
    tensors = gguf.GGUFReader(path).tensors
    assert shape.parameters.total == sum(int(tensor.n_elements) for tensor in tensors) == 134_515_008
    assert shape.stored_bytes == sum(int(tensor.n_bytes) for tensor in tensors)
    assert shape.kv_elements() == 11_520
