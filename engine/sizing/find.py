"""`--model` of `paged-engine plan`: from a name to a `ModelShape`. Of a hub's model only config.json is fetched."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import msgspec

from engine.loading.cache import cache_folder, tell
from engine.loading.config import read_json
from engine.loading.errors import ModelError, shortened
from engine.loading.gguf_file import VERSION
from engine.loading.resolve import SMOLLM2, SMOLLM2_FILE, SMOLLM2_HUB_ID, SMOLLM2_PACKAGE, resolve_model
from engine.sizing.families import read_shape
from engine.sizing.gguf_header import read_gguf_shape
from engine.sizing.shape import ModelShape

ALLOWED = f"{SMOLLM2}, tiny, a config.json, a folder with one, a .gguf file, or a Hugging Face hub id (owner/name)"
CONFIG = "config.json"


def find_shape(name: str) -> ModelShape:
    """The shape of the model `name`. Raises ModelError."""
    if name == "tiny":
        return _from_config(resolve_model(name).folder / CONFIG, name)
    if name == SMOLLM2:
        return _smollm2()
    try:
        path = Path(name).expanduser()
        is_folder, is_file, is_there = path.is_dir(), path.is_file(), path.exists()
    except (OSError, RuntimeError) as error:  # RuntimeError: `~` of a user who does not exist
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"cannot look for the model {shortened(name)}: {reason}") from error
    if name and is_folder:
        return _from_config(path / CONFIG, path.resolve().name)
    if is_file:
        if path.suffix.lower() == ".gguf":
            return read_gguf_shape(path, path.stem)
        return _from_config(path, path.stem if path.name != CONFIG else path.resolve().parent.name)
    if name and is_there:
        what = "a pipe" if path.is_fifo() else "a socket" if path.is_socket() else "a device"
        raise ModelError(f"{shortened(name)} is {what}, not a file or folder; the model must be {ALLOWED}")
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or path.suffix in (".json", ".gguf"):
        raise ModelError(f"no such file or folder: {shortened(name)}")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return _from_config(_from_hub(name), name)
    raise ModelError(f"unknown model {shortened(name)!r}; it must be {ALLOWED}")


def _from_config(path: Path, name: str) -> ModelShape:
    return read_shape(read_json(path), str(path), name)


def _smollm2() -> ModelShape:
    """From the converted copy, else from the package's file, whose weights the engine takes to bfloat16."""
    copy = cache_folder() / "models" / f"{SMOLLM2}-v{VERSION}" / CONFIG
    if copy.is_file():
        return _from_config(copy, SMOLLM2)
    package = importlib.util.find_spec(SMOLLM2_PACKAGE)
    for place in (package.submodule_search_locations or []) if package else []:
        path = Path(place) / SMOLLM2_FILE
        if path.is_file():
            shape = read_gguf_shape(path, SMOLLM2)
            return msgspec.structs.replace(shape, model_type="llama", dtype="bfloat16", stored_bytes=None)
    return _from_config(_from_hub(SMOLLM2_HUB_ID), SMOLLM2)


def _from_hub(hub_id: str) -> Path:
    """The config of a hub's model: the cached copy if there is one."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        cached = try_to_load_from_cache(hub_id, CONFIG)
        if isinstance(cached, str):
            return Path(cached)
        tell(f"paged-engine: fetching {CONFIG} of {hub_id} from the Hugging Face hub")
        return Path(hf_hub_download(hub_id, CONFIG))
    except (OSError, HfHubHTTPError, HFValidationError, ValueError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"cannot fetch {CONFIG} of {hub_id} from the Hugging Face hub: {first_line}") from error
