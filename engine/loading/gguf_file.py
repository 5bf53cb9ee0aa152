"""From one GGUF file to a Hugging Face folder: safetensors, config.json and tokenizer, by transformers."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.loading.cache import made_once, tell
from engine.loading.config import SUPPORTED
from engine.loading.errors import ModelError
from engine.loading.gguf_blocks import FILE, write_blocks
from engine.loading.gguf_head import read_gguf_head

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader

# Part of the name of every converted folder: raise it when the conversion changes.
VERSION = 2
ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


def converted(path: Path, name: str | None = None) -> Path:
    """The cache's folder for a GGUF file, converted now if it is not there.

    Keyed by `name` if one is given, else by the file's path, size and time of change. Raises ModelError.
    """
    if name is None:
        if not path.is_file():
            raise ModelError(f"no such file: {path}")
        path = path.resolve()
        stat = path.stat()
        key = hashlib.sha256(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()).hexdigest()[:16]
        name = f"{path.stem}-{key}"
    return made_once(f"{name}-v{VERSION}", lambda folder: convert(path, folder))


def convert(path: Path, folder: Path) -> None:
    """Write `path` into `folder`, quantized matrices both as floats and as they are.

    Raises ModelError for a file that is corrupt or of another family.
    """
    metadata = _Metadata(path)
    tell(f"paged-engine: converting {path.name}, once (about half a minute)")
    if not sys.stderr.isatty():  # its bars belong on a terminal, not in a log
        os.environ.setdefault("TQDM_DISABLE", "1")
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with tempfile.TemporaryDirectory() as alone:  # what lies beside the file is not read, least of all as code
            (Path(alone) / path.name).symlink_to(path.resolve())
            source: dict[str, Any] = {"gguf_file": path.name, "trust_remote_code": False}
            tell("paged-engine: reading the tokenizer")
            tokenizer = AutoTokenizer.from_pretrained(alone, **source)
            metadata.mend_tokenizer(tokenizer)
            tokenizer.save_pretrained(folder)
            tell("paged-engine: reading the weights")
            model = AutoModelForCausalLM.from_pretrained(alone, dtype=torch.float32, **source)
    except (OSError, ValueError, KeyError, RuntimeError, NotImplementedError, ImportError) as error:
        raise ModelError(f"{path}: cannot be converted: {error}") from error
    tell("paged-engine: writing safetensors")
    dtype = metadata.stored_dtype()
    tied = bool(model.config.tie_word_embeddings)
    state = {name: tensor for name, tensor in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    heads = {model.config.num_attention_heads, model.config.num_key_value_heads}
    write_blocks(metadata.reader, metadata.architecture, state, heads, folder / FILE)
    state = {name: tensor.to(dtype).contiguous() for name, tensor in state.items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config.pop("_name_or_path", None)
    config |= {"architectures": [type(model).__name__], "dtype": str(dtype).removeprefix("torch.")}
    config["rope_parameters"] = metadata.rope_parameters(config.get("rope_parameters") or {})
    text = json.dumps(config, indent=2, default=str)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    tell("paged-engine: converted")


class _Metadata:
    """What the file says of itself that transformers does not take over."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        self.path = path
        read_gguf_head(path)  # which the package would believe whatever it says: lengths of 2**63, and run on them
        try:
            self.reader: GGUFReader = GGUFReader(path)
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
        except Exception as error:  # the reader raises whatever its parsing ran into
            raise ModelError(f"{path} is not a whole GGUF file: {error}") from error
        self.architecture = str(self.field("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            raise ModelError(f"{path}: unsupported architecture {self.architecture}; supported are {SUPPORTED}")
        end = max((int(t.data_offset) + int(t.n_bytes) for t in self.reader.tensors), default=0)
        if end == 0 or end > path.stat().st_size:
            raise ModelError(f"{path} is not a whole GGUF file: tensors are missing")

    def field(self, key: str) -> Any:
        """What a field says; None if it is not there. Raises ModelError if it is nothing that can be read."""
        field = self.reader.get_field(key)
        try:
            return None if field is None else field.contents()
        except Exception as error:  # as the reader itself
            raise ModelError(f"{self.path}: {key} cannot be read: {error}") from error

    def stored_dtype(self) -> torch.dtype:
        """The width the file's matrices have; bfloat16 for quantised ones.

        A quantised weight is known to 4 to 8 bits, and these models were published in bfloat16: rounding to
        it moves a weight far less than the quantisation did. It halves the disk and a cold start's reading.
        """
        import torch

        kinds = {t.tensor_type.name for t in self.reader.tensors if len(t.shape) > 1}
        if "F32" in kinds:
            return torch.float32
        return torch.float16 if "F16" in kinds else torch.bfloat16

    def rope_parameters(self, read: dict[str, Any]) -> dict[str, Any]:
        """RoPE scaling, which GGUF keeps in keys (linear, yarn) or as a tensor of factors (llama3)."""
        import numpy as np

        scaling = f"{self.architecture}.rope.scaling"
        kind, factor = self.field(f"{scaling}.type"), self.field(f"{scaling}.factor")
        original = self.field(f"{scaling}.original_context_length")
        if kind in ("linear", "yarn") and factor:
            mended = read | {"rope_type": kind, "factor": float(factor)}
            return mended | ({"original_max_position_embeddings": int(original)} if original else {})
        factors = next((t.data for t in self.reader.tensors if t.name == "rope_freqs.weight"), None)
        if factors is None:
            return read
        dimension, theta = 2 * len(factors), float(read.get("rope_theta", 10000.0))
        largest, original, low, high = float(factors.max()), 8192, 1.0, 4.0
        wavelength = 2 * math.pi * theta ** (np.arange(0, dimension, 2) / dimension)
        smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
        if not np.allclose(1 / ((1 - smooth) / largest + smooth), factors, rtol=1e-3):
            raise ModelError(f"{self.path}: rope_freqs.weight holds scaling factors of an unknown kind")
        return read | {
            "rope_type": "llama3",
            "factor": largest,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": original,
        }

    def mend_tokenizer(self, tokenizer: Any) -> None:
        """Set how text is split before BPE (transformers takes GPT-2's way for all), and the length limit.

        SmolLM's own tokenizer splits off every digit first: "  3" is two spaces and a digit, not two words.
        """
        from tokenizers import Regex, pre_tokenizers

        limit = self.field(f"{self.architecture}.context_length")
        if limit:
            tokenizer.model_max_length = int(limit)
        tokenizer.clean_up_tokenization_spaces = False
        patterns = {
            "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
            r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
            r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        }
        kind = self.field("tokenizer.ggml.pre")
        if kind == "smollm":
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Digits(individual_digits=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
                ]
            )
        elif kind in patterns:
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(patterns[kind]), behavior="isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            )
