"""The random model `tiny`: two Llama layers over bytes, made in a moment, for tests and trials.

Written as a Hugging Face folder without torch, so that transformers reads the very same weights.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 96, 2, 6, 2, 16, 192
VOCABULARY = 256 + len(SPECIAL_TOKENS)


def write_tiny(folder: Path, seed: int) -> None:
    """Fill `folder` with config.json, model.safetensors (float32) and the tokenizer's files."""
    save_file(_weights(seed), folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer().save(str(folder / "tokenizer.json"))
    eos = VOCABULARY - 1
    _write_json(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "intermediate_size": INTERMEDIATE,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": VOCABULARY - 2,
            "eos_token_id": eos,
            "pad_token_id": eos,
            "dtype": "float32",
        },
    )
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": 4096,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _weights(seed: int) -> dict[str, np.ndarray]:
    """Products keep the scale of their input, and attention and MLP outweigh the embedding they are added to.

    So the next token follows from the whole context, not from the last token alone: greedy text varies.
    """
    random = np.random.Generator(np.random.PCG64(seed))

    def matrix(rows: int, columns: int, gain: float) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * gain / math.sqrt(columns)).astype(np.float32)

    def norm() -> np.ndarray:
        return (1 + 0.1 * random.standard_normal(HIDDEN)).astype(np.float32)

    weights = {
        "model.embed_tokens.weight": random.standard_normal((VOCABULARY, HIDDEN)).astype(np.float32),
        "model.norm.weight": norm(),
        "lm_head.weight": matrix(VOCABULARY, HIDDEN, 2.0),
    }
    for layer in range(LAYERS):
        weights |= {
            f"model.layers.{layer}.{name}": value
            for name, value in {
                "input_layernorm.weight": norm(),
                "self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, HIDDEN, 1.5),
                "self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN, 1.5),
                "self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN, 1.0),
                "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_DIM, 3.0),
                "post_attention_layernorm.weight": norm(),
                "mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN, 1.5),
                "mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN, 1.5),
                "mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE, 2.0),
            }.items()
        }
    return weights


def _tokenizer() -> Tokenizer:
    """A token per byte, then the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS]
    tokenizer.add_special_tokens(special)
    return tokenizer


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
