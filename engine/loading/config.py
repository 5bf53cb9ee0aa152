"""A model's config.json, read and checked without torch or transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.loading.errors import ModelError

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]
FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_LARGEST = 1e18  # of any number that a model could mean
_MOST_LAYERS = 10_000
SUPPORTED = "Llama (also SmolLM2), Mistral, Qwen2 and Qwen3"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding; the names are those of transformers' `rope_parameters`."""

    kind: RopeKind = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the decoder is made of. `sliding_windows` has an entry per layer: its width in tokens or None."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_windows: tuple[int | None, ...]
    dtype: str  # as stored: bfloat16, float16 or float32

    def kv_bytes_per_token(self, element_size: int) -> int:
        """Bytes of keys and values one token keeps over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_size


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; ModelError if it is missing or is none."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise ModelError(f"{path} is no file")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # the last: brackets in brackets in brackets
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return value


def read_config(folder: Path) -> ModelConfig:
    """Parse `config.json`; ModelError names the key that is missing or not supported."""
    return _Reader(folder / "config.json").model()


def read_eos_token_ids(folder: Path) -> frozenset[int]:
    """The end-of-text ids: those of generation_config.json if it names any, else of config.json.

    Raises ModelError if they are no token ids.
    """
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if path.is_file():
            ids = read_json(path).get("eos_token_id")
            if ids is None or ids == []:
                continue
            ids = ids if isinstance(ids, list) else [ids]
            if not all(type(i) is int and i >= 0 for i in ids):
                raise ModelError(f"{path}: eos_token_id must be a token id or a list of them")
            return frozenset(ids)
    return frozenset()


class _Reader:
    """Typed access to one config.json, with errors that name the key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raw = read_json(path)

    def fail(self, problem: str) -> ModelError:
        return ModelError(f"{self.path}: {problem}")

    def number(self, source: dict[str, Any], key: str, default: float | None = None) -> float:
        value = source.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.fail(f"{key} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(f"{key} must be a number, not {value!r}")
        if not abs(value) <= _LARGEST:  # NaN is not, either
            raise self.fail(f"{key} must be a finite number, at most {_LARGEST:.0e}")
        return float(value)

    def positive(self, source: dict[str, Any], key: str, default: float | None = None) -> float:
        value = self.number(source, key, default)
        if value <= 0:
            raise self.fail(f"{key} must be above 0, not {value:g}")
        return value

    def size(self, key: str, default: int | None = None, most: int | None = None) -> int:
        value = self.number(self.raw, key, default)
        if value != int(value) or value < 1 or (most is not None and value > most):
            allowed = "of at least 1" if most is None else f"from 1 to {most:,}"
            raise self.fail(f"{key} must be a whole number {allowed}, not {value:g}")
        return int(value)

    def model(self) -> ModelConfig:
        raw = self.raw
        architectures = raw.get("architectures") or []
        architecture = architectures[0] if isinstance(architectures, list) and architectures else None
        family = FAMILIES.get(str(architecture))
        if family is None:
            named = architecture or raw.get("model_type") or "no architecture"
            raise self.fail(f"unsupported architecture {named}; supported are {SUPPORTED}")
        if raw.get("quantization_config"):
            raise self.fail("quantised weights are not supported; take the float checkpoint or a .gguf file")
        if raw.get("hidden_act", "silu") != "silu":
            raise self.fail(f"hidden_act {raw['hidden_act']!r} is not supported; it must be silu")
        hidden_size, num_heads = self.size("hidden_size"), self.size("num_attention_heads")
        num_kv_heads = self.size("num_key_value_heads", num_heads)
        default_head_dim = 128 if family == "qwen3" else max(1, hidden_size // num_heads)
        if raw.get("head_dim") is None and family != "qwen3" and hidden_size % num_heads:
            raise self.fail(f"hidden_size ({hidden_size}) is no multiple of num_attention_heads ({num_heads})")
        head_dim = self.size("head_dim", default_head_dim)
        if num_heads % num_kv_heads:
            raise self.fail(f"num_attention_heads ({num_heads}) is no multiple of num_key_value_heads ({num_kv_heads})")
        if head_dim % 2:
            raise self.fail(f"head_dim must be even, not {head_dim}")
        attention_bias = bool(raw.get("attention_bias", False)) and family in ("llama", "qwen3")
        max_positions = self.size("max_position_embeddings")
        num_layers = self.size("num_hidden_layers", most=_MOST_LAYERS)
        return ModelConfig(
            architecture=str(architecture),
            vocab_size=self.size("vocab_size"),
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            intermediate_size=self.size("intermediate_size"),
            rms_norm_eps=self.positive(raw, "rms_norm_eps", 1e-6),
            max_position_embeddings=max_positions,
            rope=self.rope(max_positions),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=family == "qwen2" or attention_bias,
            output_bias=attention_bias,
            mlp_bias=bool(raw.get("mlp_bias", False)) and family == "llama",
            qk_norm=family == "qwen3",
            sliding_windows=self.sliding_windows(family, num_layers),
            dtype=self.dtype(),
        )

    def dtype(self) -> str:
        dtype = self.raw.get("dtype") or self.raw.get("torch_dtype") or "float32"
        if dtype not in ("float32", "float16", "bfloat16"):
            raise self.fail(f"dtype {dtype!r} is not supported; it must be bfloat16, float16 or float32")
        return str(dtype)

    def sliding_windows(self, family: str, num_layers: int) -> tuple[int | None, ...]:
        """Mistral slides in every layer; Qwen only if told to, and then from layer `max_window_layers` on."""
        full: tuple[int | None, ...] = (None,) * num_layers
        if family == "llama" or self.raw.get("sliding_window", 4096) is None:
            return full
        if family == "mistral":
            return (self.size("sliding_window", 4096),) * num_layers
        if not self.raw.get("use_sliding_window", False):
            return full
        width = self.size("sliding_window", 4096)
        layer_types = self.raw.get("layer_types")
        if layer_types is None:
            first = int(self.number(self.raw, "max_window_layers", 28))
            return tuple(width if layer >= first else None for layer in range(num_layers))
        if not isinstance(layer_types, list) or len(layer_types) != num_layers:
            raise self.fail(f"layer_types must list {num_layers} kinds")
        kinds = {"sliding_attention": width, "full_attention": None}
        unknown = [kind for kind in layer_types if not isinstance(kind, str) or kind not in kinds]
        if unknown:
            raise self.fail(f"layer_types: {unknown[0]!r} is not supported")
        return tuple(kinds[kind] for kind in layer_types)

    def rope(self, max_positions: int) -> RopeConfig:
        """transformers 5 writes `rope_parameters`; before it was `rope_theta` and `rope_scaling`."""
        scaled = self.raw.get("rope_parameters") or self.raw.get("rope_scaling") or {}
        if not isinstance(scaled, dict):
            raise self.fail("rope_parameters must be an object")
        kind: Any = scaled.get("rope_type") or scaled.get("type") or "default"
        theta = self.positive(scaled, "rope_theta", self.positive(self.raw, "rope_theta", 10000.0))
        if any(self.number(place, "partial_rotary_factor", 1.0) != 1.0 for place in (scaled, self.raw)):
            raise self.fail("partial_rotary_factor other than 1 is not supported")
        if kind not in ("default", "linear", "dynamic", "llama3", "yarn"):
            raise self.fail(f"rope_type {kind!r} is not supported; it must be default, linear, dynamic, llama3 or yarn")
        original = self.positive(
            scaled,
            "original_max_position_embeddings",
            self.positive(self.raw, "original_max_position_embeddings", max_positions),
        )
        factor = 1.0
        if kind != "default":
            derived = max_positions / original if kind == "yarn" and scaled.get("factor") is None else None
            factor = self.positive(scaled, "factor", derived)
        attention_factor = None
        if scaled.get("attention_factor") is not None:
            attention_factor = self.number(scaled, "attention_factor")
        return RopeConfig(
            kind=kind,
            theta=theta,
            factor=factor,
            original_max_position_embeddings=int(original),
            low_freq_factor=self.positive(scaled, "low_freq_factor", 1.0),
            high_freq_factor=self.positive(scaled, "high_freq_factor", 4.0),
            beta_fast=self.positive(scaled, "beta_fast", 32.0),
            beta_slow=self.positive(scaled, "beta_slow", 1.0),
            mscale=self.number(scaled, "mscale", 0.0),
            mscale_all_dim=self.number(scaled, "mscale_all_dim", 0.0),
            attention_factor=attention_factor,
            truncate=bool(scaled.get("truncate", True)),
        )
