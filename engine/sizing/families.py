"""config.json of the families that are known, as a `ModelShape`: parameters are counted, no weight is opened.

The counts are those of transformers' own classes; tests build these on torch's `meta` device and compare.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.loading.errors import ModelError
from engine.sizing.shape import ModelShape, Parameters, Quantization, grouped_bits

_MOST = 10**9  # of any size that a config could mean
_MOST_LAYERS = 10_000
# What these keys announce would be misjudged: the model is refused.
_UNKNOWN = {
    "index_head_dim": "it caches an index of sparse attention beside the latent",
    "num_kv_shared_layers": "its layers share their KV",
    "qk_layernorm": "normalised heads are not known for this family",
}
_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How the layers of one model_type differ from Llama's. A string is the key of the config that says it."""

    keys: dict[str, str] = field(default_factory=dict)  # a standard key to the family's own
    defaults: dict[str, Any] = field(default_factory=dict)  # what transformers takes for keys that are left out
    norms: int = 2  # per layer, each as wide as the model
    norm_bias: bool = False  # LayerNorm rather than RMSNorm
    gated: bool = True  # three MLP matrices, not two
    qkv_bias: str | bool = "attention_bias"
    output_bias: str | bool = "attention_bias"
    mlp_bias: str | bool = False
    head_norm: str | bool = False  # queries and keys are normalised, one head at a time
    wide_norm: str | bool = False  # the same, with a weight for each number of all heads
    positions: int | None = None  # learned ones: those that max_position_embeddings lacks
    tied: bool = False  # head and embedding, unless the config says otherwise
    full_every: int = 0  # every such layer is full, those between attend to a window
    experts: str | None = None  # the key with their number
    mla: bool = False


_PLAIN: dict[str, Any] = {"norm_bias": True, "gated": False, "qkv_bias": True, "output_bias": True, "mlp_bias": True}
_EIGHT_HEADS: dict[str, Any] = {"num_key_value_heads": 8}
_GPT2_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
}
_GEMMA3: dict[str, Any] = {
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
_ALL_BIASES: dict[str, Any] = {f"{part}_bias": "bias" for part in ("qkv", "output", "mlp")}
_DEEPSEEK = Family(experts="n_routed_experts", mla=True)
FAMILIES = {
    "cohere": Family(norms=1, tied=True, wide_norm="use_qk_norm"),
    "cohere2": Family(norms=1, tied=True, full_every=4),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "falcon": Family(norm_bias=True, gated=False, **_ALL_BIASES, tied=True),
    "gemma": Family(tied=True, defaults={"head_dim": 256}),
    "gemma2": Family(norms=4, tied=True, full_every=2, defaults={"head_dim": 256, "sliding_window": 4096}),
    "gemma3_text": Family(norms=4, tied=True, full_every=6, head_norm=True, defaults=_GEMMA3),
    "glm4": Family(norms=4, output_bias=False),
    "glm4_moe": Family(output_bias=False, head_norm="use_qk_norm", experts="n_routed_experts"),
    "gpt2": Family(**_PLAIN, keys=_GPT2_KEYS, positions=0, tied=True),
    "gpt_neox": Family(**_PLAIN),
    "gpt_oss": Family(full_every=2, experts="num_local_experts", defaults={"attention_bias": True}),
    "granite": Family(mlp_bias="mlp_bias"),
    "kimi_k2": _DEEPSEEK,
    "llama": Family(mlp_bias="mlp_bias"),
    "mistral": Family(qkv_bias=False, output_bias=False, defaults=_EIGHT_HEADS),
    "mixtral": Family(qkv_bias=False, output_bias=False, experts="num_local_experts", defaults=_EIGHT_HEADS),
    "olmo2": Family(wide_norm=True),
    "opt": Family(**_PLAIN, keys={"intermediate_size": "ffn_dim"}, positions=2, tied=True),
    "phi3": Family(qkv_bias=False, output_bias=False),
    "qwen2": Family(qkv_bias=True, output_bias=False),
    "qwen2_moe": Family(qkv_bias=True, output_bias=False, experts="num_experts"),
    "qwen3": Family(head_norm=True, defaults={"head_dim": 128}),
    "qwen3_moe": Family(head_norm=True, experts="num_experts"),
    "smollm3": Family(mlp_bias="mlp_bias", tied=True),
    "starcoder2": Family(
        norm_bias=True, gated=False, qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", tied=True,
        defaults={"use_bias": True},
    ),
}  # fmt: skip


def read_shape(raw: dict[str, Any], where: str, name: str) -> ModelShape:
    """What the config `raw`, found at `where`, says of its text model. Raises ModelError, which names the key."""
    notes: list[str] = []
    text = raw.get("text_config")
    if isinstance(text, dict):
        notes.append("only the text model is counted: what sees or hears is not in its config")
        outer = {key: value for key, value in raw.items() if key in ("dtype", "torch_dtype", "quantization_config")}
        raw = outer | text
    model_type = str(raw.get("model_type"))
    family = FAMILIES.get(model_type)
    if family is None:
        known = ", ".join(FAMILIES)
        raise ModelError(
            f"{where}: model_type {model_type} is not known; known are {known}. "
            "Others are sized by --kv-bytes-per-token and --weights instead of --model"
        )
    reader = _Reader(raw, where, family)
    for key, why in _UNKNOWN.items():
        if raw.get(key):
            raise ModelError(f"{where}: {key}: {why}; size it by --kv-bytes-per-token and --weights instead of --model")
    if raw.get("num_nextn_predict_layers"):
        notes.append("the layer that predicts several tokens is left out: it serves speculation alone")
    layers = reader.whole("num_hidden_layers", most=_MOST_LAYERS)
    heads, kv_heads = reader.heads()
    head_dim = reader.head_dim(heads)
    sliding, window = reader.sliding(layers)
    latent = reader.whole("kv_lora_rank") + reader.whole("qk_rope_head_dim") if family.mla else 0
    return ModelShape(
        name=name,
        model_type=model_type,
        num_heads=heads,
        kv_heads=(kv_heads,) * layers,
        key_dim=head_dim,
        value_dim=head_dim,
        latent_dim=latent,
        sliding_layers=sliding,
        window=window,
        max_context=reader.whole("max_position_embeddings", None),
        dtype=reader.dtype(),
        quantization=reader.quantization(),
        parameters=reader.parameters(layers, heads, kv_heads, head_dim),
        notes=tuple(notes),
    )


def _bits(bits: Any, group: Any, zero_point: bool) -> float | None:
    """Bits for each weight with what its group shares, or None where the config does not say them."""
    if type(bits) is not int or not 1 <= bits <= 16:
        return None
    if type(group) is not int or group <= 0:  # one scale for a row or for all: next to nothing
        return float(bits)
    return grouped_bits(bits, group) if zero_point else bits + 16 / group


class _Reader:
    """Typed access to one config, with errors that name the key, and the counting of its parameters."""

    def __init__(self, raw: dict[str, Any], where: str, family: Family) -> None:
        self.raw = raw
        self.where = where
        self.family = family

    def whole(self, key: str, default: int | None = -1, least: int = 1, most: int = _MOST) -> int:
        """A whole number; without a default, or one of the family, the key must be there. None becomes 0."""
        own = self.family.keys.get(key, key)
        value = self.raw.get(own)
        if value is None and own != key:
            value = self.raw.get(key)
        if value is None:
            value = self.family.defaults.get(key)
        if value is None:
            if default == -1:
                raise ModelError(f"{self.where}: {own} is missing")
            return default or 0
        if type(value) is not int or not least <= value <= most:
            raise ModelError(f"{self.where}: {own} must be a whole number from {least} to {most:,}, not {value!r}")
        return value

    def flag(self, key: str | bool) -> bool:
        if isinstance(key, bool):
            return key
        value = self.raw.get(key)
        return bool(self.family.defaults.get(key, False) if value is None else value)

    def heads(self) -> tuple[int, int]:
        """Heads of queries, and of keys and values."""
        heads = self.whole("num_attention_heads")
        if "new_decoder_architecture" in self.raw or "multi_query" in self.raw:  # Falcon
            grouped = self.flag("new_decoder_architecture")
            kv_heads = self.whole("num_kv_heads", heads) if grouped or not self.flag("multi_query") else 1
        else:
            kv_heads = self.whole("num_key_value_heads", heads)
        if heads % kv_heads:
            raise ModelError(
                f"{self.where}: num_attention_heads ({heads}) is no multiple of num_key_value_heads ({kv_heads})"
            )
        return heads, kv_heads

    def head_dim(self, heads: int) -> int:
        if self.family.mla:
            return self.whole("qk_nope_head_dim") + self.whole("qk_rope_head_dim")
        head_dim = self.whole("head_dim", 0)
        if head_dim:
            return head_dim
        hidden = self.whole("hidden_size")
        if hidden % heads:
            width, number = (self.family.keys.get(key, key) for key in ("hidden_size", "num_attention_heads"))
            raise ModelError(
                f"{self.where}: head_dim is missing, and {width} ({hidden}) is no multiple of {number} ({heads})"
            )
        return hidden // heads

    def dtype(self) -> str | None:
        dtype = self.raw.get("dtype") or self.raw.get("torch_dtype")
        if dtype is not None and dtype not in _DTYPES:
            raise ModelError(f"{self.where}: dtype must be one of {', '.join(_DTYPES)}, not {dtype!r}")
        return dtype

    def quantization(self) -> Quantization | None:
        """How the checkpoint is packed; its bits are None where that is not known."""
        config = self.raw.get("quantization_config")
        if not config:
            return None
        config = config if isinstance(config, dict) else {}
        method = str(config.get("quant_method"))
        if method in ("awq", "gptq"):
            return Quantization(method, _bits(config.get("bits"), config.get("group_size", 128), zero_point=True))
        if method == "compressed-tensors":
            groups = config.get("config_groups")
            weights = [group.get("weights") or {} for group in groups.values()] if isinstance(groups, dict) else []
            (only,) = weights if len(weights) == 1 else ({},)
            return Quantization(method, _bits(only.get("num_bits"), only.get("group_size"), zero_point=False))
        if method == "mxfp4":  # blocks of 32 share an 8-bit exponent
            return Quantization(method, 4 + 8 / 32, only_experts=True)
        return Quantization(method, {"fp8": 8.0, "fbgemm_fp8": 8.0}.get(method))

    def sliding(self, layers: int) -> tuple[int, int]:
        """How many layers attend to a window, and its tokens."""
        if "use_sliding_window" in self.raw and not self.raw["use_sliding_window"]:
            return 0, 0
        window = self.whole("sliding_window", 0)
        if not window:
            return 0, 0
        kinds = self.raw.get("layer_types")
        if isinstance(kinds, list):
            count = kinds.count("sliding_attention")
        elif "use_sliding_window" in self.raw:  # Qwen slides from a layer on
            count = max(0, layers - self.whole("max_window_layers", 28, least=0))
        else:
            every = self.whole("sliding_window_pattern", self.family.full_every)
            count = layers - layers // every if every else layers
        return (count, window) if count else (0, 0)

    def parameters(self, layers: int, heads: int, kv_heads: int, head_dim: int) -> Parameters:
        family, hidden, vocabulary = self.family, self.whole("hidden_size"), self.whole("vocab_size")
        norm = hidden * (2 if family.norm_bias else 1)
        embedding, small = vocabulary * hidden, norm
        if family.positions is not None:
            embedding += (self.whole("max_position_embeddings") + family.positions) * hidden
        if self.whole("word_embed_proj_dim", hidden) != hidden or self.raw.get("do_layer_norm_before") is False:
            raise ModelError(f"{self.where}: OPT-350m's own layout (word_embed_proj_dim) is not known")
        tied = self.raw.get("tie_word_embeddings", family.tied)
        attention, small_attention = self._mla(heads, hidden) if family.mla else (0, 0)
        if not family.mla:
            query, key_value = heads * head_dim, kv_heads * head_dim
            attention = 2 * hidden * (query + key_value)
            small_attention += (query + 2 * key_value) if self.flag(family.qkv_bias) else 0
            small_attention += hidden if self.flag(family.output_bias) else 0
            small_attention += 2 * head_dim if self.flag(family.head_norm) else 0
            small_attention += query + key_value if self.flag(family.wide_norm) else 0
        small += layers * (small_attention + self._norms() * norm)
        mlp, experts, small_mlp = self._mlp(layers, heads, hidden)
        return Parameters(
            embedding=embedding,
            head=0 if tied else vocabulary * hidden,
            attention=layers * attention,
            mlp=mlp,
            experts=experts,
            small=small + small_mlp,
        )

    def _norms(self) -> int:
        """Norms of a layer; Falcon has one for both halves, unless they are apart."""
        if self.raw.get("model_type") != "falcon":
            return self.family.norms
        if self.flag("new_decoder_architecture"):
            return self.whole("num_ln_in_parallel_attn", 2)
        return 1 if self.raw.get("parallel_attn", True) else 2

    def _mla(self, heads: int, hidden: int) -> tuple[int, int]:
        """Matrices, and norms with biases, of one layer of multi-head latent attention."""
        rank, rope = self.whole("kv_lora_rank"), self.whole("qk_rope_head_dim")
        nope, value = self.whole("qk_nope_head_dim"), self.whole("v_head_dim")
        query_rank, query = self.whole("q_lora_rank", 0), heads * (nope + rope)
        down = hidden * (rank + rope)
        up = rank * heads * (nope + value)
        output = heads * value * hidden
        small = rank + query_rank
        if self.flag("attention_bias"):
            small += (query_rank if query_rank else 0) + rank + rope + hidden
        queries = (hidden + query) * query_rank if query_rank else hidden * query
        return queries + down + up + output, small

    def _mlp(self, layers: int, heads: int, hidden: int) -> tuple[int, int, int]:
        """Over all layers: dense and shared matrices, those of routed experts, and what is small."""
        family = self.family
        matrices = 3 if family.gated else 2
        count = self.whole(family.experts) if family.experts else 0
        routed = self._routed(layers) if count else 0
        dense = layers - routed
        inner = self._inner(hidden) if dense or not self.raw.get("moe_intermediate_size") else 0
        mlp, small = dense * matrices * hidden * inner, 0
        if self.flag(family.mlp_bias):
            small += dense * ((matrices - 1) * inner + hidden)
        if not routed:
            return mlp, 0, small
        width = self.whole("moe_intermediate_size", inner)
        shared = self.whole("shared_expert_intermediate_size", 0)
        small += routed * (hidden * count + (hidden if shared else 0))  # the router, and the shared expert's gate
        shared += self.whole("n_shared_experts", 0, least=0) * width
        if self.raw.get("model_type") == "gpt_oss":  # biases of experts and router, and a sink for each head
            small += routed * (count * (2 * width + hidden) + count) + layers * heads
        return mlp + routed * 3 * hidden * shared, routed * 3 * hidden * width * count, small

    def _inner(self, hidden: int) -> int:
        """The width of a dense MLP; GPT-2 and Falcon take four times the model's where they say nothing."""
        if self.raw.get("model_type") == "falcon":
            return self.whole("ffn_hidden_size", 4 * hidden)
        if self.raw.get("model_type") == "gpt2":
            return self.whole("intermediate_size", 4 * hidden)
        return self.whole("intermediate_size")

    def _routed(self, layers: int) -> int:
        """Layers that have experts."""
        first = self.whole("first_k_dense_replace", 0, least=0)
        every = self.whole("decoder_sparse_step", 0) or self.whole("moe_layer_freq", 1)
        dense = self.raw.get("mlp_only_layers")
        dense = dense if isinstance(dense, list) else []
        if "decoder_sparse_step" in self.raw:
            return sum((layer + 1) % every == 0 and layer not in dense for layer in range(layers))
        return sum(layer >= first and layer % every == 0 and layer not in dense for layer in range(layers))
