"""What a GGUF file has in blocks is kept bit for bit, in the order of rows that the decoder wants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.loading.errors import ModelError
from engine.loading.gguf_blocks import FILE, to_blocks
from engine.loading.resolve import resolve_model
from engine.loading.tiny import HEADS, HIDDEN, INTERMEDIATE, KV_HEADS
from engine.loading.weights import Weights
from kernels.cpu_quantized_tile import pack_blocks
from tests.engine.loading.test_gguf_file import interleaved, write_gguf
from tests.kernels.unpacked import unpack_blocks

FORMATS = {
    "attn_q": "Q4_1",
    "attn_k": "Q4_0",
    "attn_v": "Q8_0",
    "ffn_gate": "Q4_1",
    "ffn_down": "Q5_0",
    "token_embd": "Q8_0",
}
LAYER = "model.layers.1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model `tiny` with its matrices in FORMATS, converted."""
    base = tmp_path_factory.mktemp("gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGED_TOP_CACHE", str(base / "cache"))
        write_gguf(base / "model.gguf", formats=FORMATS)
        yield resolve_model(str(base / "model.gguf")).folder


def open_weights(folder: Path) -> Weights:
    return Weights(folder, torch.float32, torch.device("cpu"))


def test_blocks_are_kept_of_those_formats_alone(folder: Path) -> None:
    kept = load_file(folder / FILE)
    places = {
        "self_attn.q_proj": "q4_1",
        "self_attn.k_proj": "q4_0",
        "self_attn.v_proj": "q8_0",
        "mlp.gate_proj": "q4_1",
    }
    expected = {f"model.layers.{i}.{place}.weight.{kind}" for i in range(2) for place, kind in places.items()}
    assert kept.keys() == expected | {"model.embed_tokens.weight.q8_0"}
    weights = open_weights(folder)
    assert weights.has_four_bits
    assert weights.blocks(f"{LAYER}.mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)) is None


@pytest.mark.parametrize(
    ("place", "format", "heads"),
    [
        ("self_attn.q_proj", "Q4_1", HEADS),
        ("self_attn.k_proj", "Q4_0", KV_HEADS),
        ("self_attn.v_proj", "Q8_0", None),
        ("mlp.gate_proj", "Q4_1", None),
    ],
)
def test_the_files_bytes_come_back_from_the_packed_weight(
    folder: Path, place: str, format: str, heads: int | None
) -> None:
    name = f"{LAYER}.{place}.weight"
    original = load_file(resolve_model("tiny").folder / "model.safetensors")[name].numpy()
    kind = gguf.GGMLQuantizationType[format]
    stored = gguf.quantize(original if heads is None else interleaved(original, heads), kind)
    blocks = open_weights(folder).blocks(name, original.shape)
    assert blocks is not None
    again = unpack_blocks(pack_blocks(blocks))
    rows = to_ggml(again, format)
    np.testing.assert_array_equal(rows if heads is None else interleaved(rows, heads), stored)
    # and they stand for what transformers reads
    np.testing.assert_array_equal(again.weight().numpy(), load_file(folder / "model.safetensors")[name].numpy())


def to_ggml(blocks: Any, format: str) -> np.ndarray:
    """The bytes of ggml's format, written here from its description alone."""
    values = blocks.values.view(blocks.rows, -1, 32).numpy()
    scale = blocks.scale.numpy()[:, :, None].view(np.uint8)
    if format == "Q8_0":
        parts = [scale, (values.astype(np.int16) - 128).astype(np.int8).view(np.uint8)]
    else:
        nibbles = values[:, :, :16] | (values[:, :, 16:] << 4)
        minimum = blocks.minimum.numpy()[:, :, None]
        if format == "Q4_0":
            np.testing.assert_array_equal(minimum, blocks.scale.numpy()[:, :, None] * np.float16(-8))
        parts = [scale, minimum.view(np.uint8), nibbles] if format == "Q4_1" else [scale, nibbles]
    return np.concatenate(parts, axis=2).reshape(blocks.rows, -1)


@pytest.mark.parametrize("format", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_stand_for_the_numbers_that_ggml_reads(format: str) -> None:
    kind = gguf.GGMLQuantizationType[format]
    raw = gguf.quantize(np.random.default_rng(1).standard_normal((5, 96)).astype(np.float32), kind)
    raw[0, :2] = (0xFF, 0x03)  # a scale below float16's normal numbers
    blocks = to_blocks(torch.from_numpy(raw), format.lower(), 96)
    np.testing.assert_array_equal(blocks.weight().numpy(), gguf.dequantize(raw, kind))


def test_blocks_of_another_shape_are_refused(folder: Path, tmp_path: Path) -> None:
    name = f"{LAYER}.mlp.gate_proj.weight"
    save_file({f"{name}.q4_1": torch.zeros(3, 60, dtype=torch.uint8)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=rf"tensor {name}\.q4_1 is not uint8 \[192, 60\]"):
        open_weights(tmp_path).blocks(name, (INTERMEDIATE, HIDDEN))


@pytest.mark.model
def test_smollm2_keeps_every_matrix_of_the_file() -> None:
    model = resolve_model("smollm2-135m")
    config, weights = model.config, open_weights(model.folder)
    kept = [name for name in load_file(model.folder / FILE) if name.endswith("q4_1")]
    assert len(kept) == 7 * config.num_layers
    for name, shape in (
        ("model.embed_tokens", (config.vocab_size, config.hidden_size)),
        ("model.layers.7.mlp.down_proj", (config.hidden_size, config.intermediate_size)),
        ("model.layers.7.self_attn.k_proj", (config.num_kv_heads * config.head_dim, config.hidden_size)),
    ):
        blocks = weights.blocks(f"{name}.weight", shape)
        assert blocks is not None
        # The floats beside them are these, rounded to bfloat16.
        assert torch.equal(blocks.weight().bfloat16().float(), weights.get(f"{name}.weight", shape))
