"""A checkpoint that is not whole, or not the one config.json speaks of, is refused with the tensor's name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.loading.config import read_config
from engine.loading.errors import ModelError
from engine.loading.resolve import resolve_model
from engine.loading.weights import Weights
from engine.model import Decoder

CPU = torch.device("cpu")
DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(resolve_model("tiny").folder, tmp_path / "model")
    return tmp_path / "model"


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    return Decoder(read_config(folder), Weights(folder, dtype, CPU), 16)


def rewrite(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    tensors = load_file(folder / "model.safetensors") | changes
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")


def test_weights_are_cast(folder: Path) -> None:
    assert load(folder, torch.bfloat16).embedding.dtype == torch.bfloat16


def test_shards_are_found_through_their_index(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for shard, some in shards.items():
        save_file({name: tensors[name] for name in some}, folder / shard)
    save_file({"stray": torch.zeros(1)}, folder / "unlisted.safetensors")
    weight_map = {name: shard for shard, some in shards.items() for name in some}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(load(folder).norm, tensors["model.norm.weight"])
    assert "stray" not in Weights(folder, torch.float32, CPU)
    (folder / "two.safetensors").unlink()
    with pytest.raises(ModelError, match=r"two\.safetensors is missing"):
        load(folder)
    index.write_text("{}")
    with pytest.raises(ModelError, match="weight_map is missing"):
        load(folder)
    index.write_text('{"weight_map": {"a": ["one.safetensors"]}}')
    with pytest.raises(ModelError, match="weight_map must map"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({DOWN: None}, f"tensor {DOWN} is missing"),
        ({DOWN: torch.zeros(96, 7)}, rf"tensor {DOWN} has shape \[96, 7\], config.json asks for \[96, 192\]"),
        ({DOWN: torch.zeros(96, 192, dtype=torch.int8)}, f"tensor {DOWN} holds torch.int8"),
    ],
    ids=["missing", "shape", "dtype"],
)
def test_wrong_tensors(folder: Path, changes: dict[str, torch.Tensor | None], message: str) -> None:
    rewrite(folder, changes)
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_a_damaged_file_of_the_cache_can_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGED_TOP_CACHE", str(tmp_path))
    folder = resolve_model("tiny").folder
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=f"delete {folder} to have it made again"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 4, 5000])
def test_a_truncated_file(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match="not a whole safetensors file"):
        load(folder)


def test_other_formats_are_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"holds no \*\.safetensors"):
        load(folder)
