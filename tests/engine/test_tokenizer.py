"""Prompts and ids are those of transformers, without transformers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.chat_template import ChatTemplateError
from engine.loading.resolve import resolve_model
from engine.tokenizer import Tokenizer, TokenizerError

CHATS = [
    [{"role": "user", "content": "What is 2 < 3 & 4?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "h\u00e9llo \N{SNOWMAN}"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "  c\n\n"},
    ],
]


def copy_of_tiny(folder: Path, template: object) -> Path:
    source = resolve_model("tiny").folder
    for path in source.glob("tokenizer*.json"):
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("model", ["tiny", pytest.param("smollm2-135m", marks=pytest.mark.model)])
def test_chats_are_those_of_transformers(model: str) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = resolve_model(model).folder
    ours, theirs = Tokenizer(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    for chat in CHATS:
        for generation in (True, False):
            options = {"add_generation_prompt": generation}
            expected = theirs.apply_chat_template(chat, tokenize=False, **options)
            assert ours.render_chat(chat, **options) == expected
            assert ours.encode_chat(chat, **options) == theirs.encode(expected, add_special_tokens=False)


def test_text_there_and_back() -> None:
    tokenizer = Tokenizer(resolve_model("tiny").folder)
    text = "na\u00efve \N{SNOWMAN}"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.token_text(tokenizer.encode("a")[0]) == "a"
    assert tokenizer.vocab_size == 259


def test_what_templates_may_use(tmp_path: Path) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'tool' %}{% continue %}{% endif %}\n"
        "    {% generation %}{{ m['content'] | tojson }}{% endgeneration %}{% endfor %}\n"
        "{{ strftime_now('%Y') | length }}{{ mood }}"
    )
    tokenizer = Tokenizer(copy_of_tiny(tmp_path, [{"name": "default", "template": template}]))
    chat = [{"role": "tool", "content": "x"}, {"role": "user", "content": "<\u00e9>"}]
    assert tokenizer.render_chat(chat, variables={"mood": "!"}) == '<|im_start|>"<\u00e9>"4!'


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "refused"),
        ("{{ messages.__class__.__mro__ }}", "refused"),
        ("{{ 1 / 0 }}", "refused"),
        (None, "no chat template"),
    ],
)
def test_templates_that_fail(tmp_path: Path, template: str | None, words: str) -> None:
    tokenizer = Tokenizer(copy_of_tiny(tmp_path, template))
    with pytest.raises(ChatTemplateError, match=words):
        tokenizer.encode_chat(CHATS[0])


def test_missing_and_corrupt_files(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="cannot read"):
        Tokenizer(tmp_path)
    copy_of_tiny(tmp_path, None)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json"):
        Tokenizer(tmp_path)
    copy_of_tiny(tmp_path, None)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(TokenizerError, match="cannot read"):
        Tokenizer(tmp_path)


def test_texts_that_are_one_word_each_are_not_remembered_for_ever() -> None:
    """Ten thousand words of 250 characters took 100 MiB and more of the library's own cache."""
    code = (
        "import random; from engine.loading.resolve import resolve_model; from engine.tokenizer import Tokenizer;"
        "tokenizer = Tokenizer(resolve_model('tiny', 0).folder); chance = random.Random(1);"
        "size = lambda: int(open('/proc/self/statm').read().split()[1]) * 4096 // 2**20;"
        "word = lambda: ''.join(chance.choice('0123456789abcdef') for _ in range(250));"
        "tokenizer.encode(word()); before = size();"
        "[tokenizer.encode(word()) for _ in range(10_000)]; print(size() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) < 60
