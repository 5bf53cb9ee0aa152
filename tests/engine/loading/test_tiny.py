"""`tiny` is a whole model: transformers reads it, its tokenizer keeps every text, its output varies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.loading.resolve import resolve_model
from engine.loading.tiny import SPECIAL_TOKENS, write_tiny


def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(resolve_model("tiny").folder)


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_a_token_is_a_byte(text: str) -> None:
    assume(not any(special in text for special in SPECIAL_TOKENS))
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert len(ids) == len(text.encode())
    assert TOKENIZER.decode(ids, clean_up_tokenization_spaces=False) == text


def test_special_tokens_and_chats() -> None:
    assert len(TOKENIZER) == 259
    assert TOKENIZER.encode("<|endoftext|><|im_start|><|im_end|>") == [256, 257, 258]
    chat = [{"role": "user", "content": "hi"}]
    text = TOKENIZER.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_the_seed_alone_decides_the_weights(tmp_path: Path) -> None:
    weights = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / name).mkdir()
        write_tiny(tmp_path / name, seed)
        weights.append(load_file(tmp_path / name / "model.safetensors"))
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    assert all((weights[0][name] != weights[2][name]).any() for name in weights[0])


def test_greedy_output_varies() -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(resolve_model("tiny").folder, dtype=torch.float32)
    outputs = []
    for text in ("Hello", "What is a block?", "12345"):
        ids = torch.tensor([TOKENIZER.encode(text)])
        outputs.append(model.generate(ids, max_new_tokens=30, min_new_tokens=30, do_sample=False)[0, -30:].tolist())
    assert all(len(set(output)) > 10 for output in outputs)
    assert len({tuple(output) for output in outputs}) == 3


TOKENIZER = tokenizer()
