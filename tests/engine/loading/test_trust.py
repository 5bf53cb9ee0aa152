"""A model is data: none of its files is run, and none leads out of its folder by its own word."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.loading.config import read_config
from engine.loading.errors import ModelError
from engine.loading.resolve import resolve_model
from engine.loading.weights import Weights
from engine.tokenizer import Tokenizer

CPU = torch.device("cpu")
CODE = """
from pathlib import Path
Path({marker!r}).write_text("run")
"""
AUTO_MAP = {
    "AutoConfig": "modeling.Config",
    "AutoModelForCausalLM": "modeling.Model",
    "AutoTokenizer": ["modeling.Tokenizer", "modeling.Tokenizer"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    for path in resolve_model("tiny").folder.iterdir():
        (made / path.name).write_bytes(path.read_bytes())
    return made


def weights(folder: Path) -> Weights:
    return Weights(folder, torch.float32, CPU)


def with_code(folder: Path, marker: Path) -> None:
    """As hub models carry code: a module, and files that name it as what to load them with."""
    for name in ("modeling.py", "configuration.py", "tokenization.py"):
        (folder / name).write_text(CODE.format(marker=str(marker)))
    for name in ("config.json", "tokenizer_config.json"):
        path = folder / name
        known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**known, "auto_map": AUTO_MAP, "trust_remote_code": True}))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_pickles_are_not_read(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(ModelError, match=rf"no \*\.safetensors; {name} is a pickle.*convert it to safetensors or GGUF"):
        weights(folder)
    with pytest.raises(ModelError, match=r"neither a folder nor a \.gguf file"):
        resolve_model(str(folder / name))


def test_a_pickle_in_disguise_is_none(folder: Path, tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "run"),)

    torch.save({"x": Runs()}, folder / "model.safetensors")
    with pytest.raises(ModelError, match="not a whole safetensors file"):
        weights(folder)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "name",
    ["../other.safetensors", "/other.safetensors", "sub/one.safetensors", "..", "", "model.bin", "./model.safetensors"],
)
def test_an_index_leads_nowhere_else(folder: Path, name: str) -> None:
    save_file(load_file(folder / "model.safetensors"), folder.parent / "other.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(ModelError, match=r"weight_map must name \*\.safetensors of its own folder"):
        weights(folder)


def test_links_are_followed_as_the_hubs_cache_has_them(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "blob")
    (folder / "model.safetensors").symlink_to("../blob")
    assert "model.norm.weight" in weights(folder)


def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(ModelError, match=r"config\.json is no file"):
        resolve_model(str(folder))


def test_code_that_comes_with_a_model_is_not_run(folder: Path, tmp_path: Path) -> None:
    with_code(folder, tmp_path / "marker")
    model = resolve_model(str(folder))
    Tokenizer(model.folder).encode("a")
    assert "model.norm.weight" in weights(model.folder)
    assert read_config(model.folder).architecture == "LlamaForCausalLM"
    assert not (tmp_path / "marker").exists()


def test_code_beside_a_gguf_file_is_not_run(tmp_path: Path) -> None:
    with_code(tmp_path, tmp_path / "marker")
    code = (
        "import sys; from pathlib import Path; from test_gguf_file import write_gguf; "
        "from engine.loading.resolve import resolve_model; "
        "path = Path(sys.argv[1]) / 'model.gguf'; write_gguf(path); print(resolve_model(str(path)).config.num_layers)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(__file__).parent,
        env={
            **os.environ,
            "PAGED_TOP_CACHE": str(tmp_path / "cache"),
            "PYTHONPATH": f"{Path(__file__).parents[3]}",
            "HF_HUB_OFFLINE": "1",
        },
        input="y\n" * 9,  # to whoever asks whether it may be run
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "2\n", done.stderr
    assert not (tmp_path / "marker").exists()
