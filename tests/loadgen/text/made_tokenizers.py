"""Tokenizers of the kinds that models have, trained in a moment on a few words, and chat templates of their kinds."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from loadgen.text.vocabulary import candidates

SPECIALS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "[CLS]", "[SEP]"]
# How GPT-4's and Qwen's tokenizers split text: a space goes with the word behind it, digits and line breaks apart.
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def corpus() -> list[str]:
    """Lines of words, "the" and line breaks, so that words become tokens."""
    rng = random.Random(1)
    words = [*candidates(), *["the", "The"] * 200, "user", "assistant", "system"]
    lines = []
    for _ in range(40):
        rng.shuffle(words)
        lines.append(" ".join(words))
    return lines


def _with_special(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return tokenizer


def _around(tokenizer: Tokenizer, single: str) -> Tokenizer:
    special = [(name, tokenizer.token_to_id(name)) for name in single.split() if name.startswith(("<", "["))]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    return tokenizer


def _train_bpe(
    pre_tokenizer: pre_tokenizers.PreTokenizer | None, alphabet: bool = True, byte_fallback: bool = False
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=byte_fallback))
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return _with_special(tokenizer)


def gpt2() -> Tokenizer:
    """GPT-2: bytes, the space goes with the word behind it, nothing around."""
    tokenizer = _train_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def roberta() -> Tokenizer:
    """RoBERTa: as GPT-2, but a text begins with a space, and tokens stand before and after it."""
    tokenizer = _train_bpe(pre_tokenizers.ByteLevel(add_prefix_space=True))
    return _around(tokenizer, "<s> $A </s>")


def qwen() -> Tokenizer:
    """Qwen: GPT-4's way to split, nothing around."""
    split = pre_tokenizers.Split(Regex(CL100K), "isolated")
    return _train_bpe(
        pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    )


def llama3() -> Tokenizer:
    """Llama 3: as Qwen with a BOS."""
    return _around(qwen(), "<s> $A")


def llama2() -> Tokenizer:
    """Llama 2, as converted from SentencePiece: a space before every text, all spaces written as one sign, a BOS."""
    tokenizer = _train_bpe(pre_tokenizers.Metaspace(prepend_scheme="always"), alphabet=False)
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return _around(tokenizer, "<s> $A")


def mistral() -> Tokenizer:
    """Mistral: as Llama 2, the space only before the first part of a text."""
    tokenizer = _train_bpe(pre_tokenizers.Metaspace(prepend_scheme="first"), alphabet=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return _around(tokenizer, "<s> $A")


def gemma() -> Tokenizer:
    """Gemma: all spaces written as one sign, none put before, a BOS."""
    tokenizer = _train_bpe(pre_tokenizers.Metaspace(prepend_scheme="never"), alphabet=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    return _around(tokenizer, "<s> $A")


def t5() -> Tokenizer:
    """T5: the likeliest pieces, an end token."""
    signs = sorted({sign for word in candidates() for sign in word} | set("▁\nThe[]/"))
    pieces = [*SPECIALS, *signs, *(f"▁{word}" for word in [*candidates(), "the", "The"])]
    scores = {piece: -12.0 if len(piece) == 1 else -9.0 for piece in pieces}
    tokenizer = Tokenizer(models.Unigram(list(scores.items()), unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return _around(_with_special(tokenizer), "$A </s>")


def bert() -> Tokenizer:
    """BERT: no spaces, no case, a token at each end."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=3000, special_tokens=SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    return _around(_with_special(tokenizer), "[CLS] $A [SEP]")


def superwords() -> Tokenizer:
    """GPT-2's, with tokens for some pairs of words."""
    tokenizer = gpt2()
    pairs = zip(candidates()[:50:2], candidates()[1:50:2], strict=True)
    tokenizer.add_tokens([AddedToken(f" {first} {second}", normalized=False) for first, second in pairs])
    return tokenizer


def joined() -> Tokenizer:
    """Merges go over spaces as over letters: no word is sure to be a token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=4000, special_tokens=SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    return _with_special(tokenizer)


def letters() -> Tokenizer:
    """Every byte a token, as the engine's model `tiny` has it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _with_special(tokenizer)


KINDS: dict[str, Callable[[], Tokenizer]] = {
    kind.__name__: kind for kind in (gpt2, roberta, qwen, llama3, llama2, mistral, gemma, t5, bert, superwords, letters)
}
Messages = Sequence[Mapping[str, str]]


def chatml(messages: Messages) -> str:
    """Qwen's and SmolLM's template, with a system prompt of its own."""
    text = "<|im_start|>system\nthe house<|im_end|>\n"
    text += "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages)
    return text + "<|im_start|>assistant\n"


def trimmed(messages: Messages) -> str:
    """Llama 3's and Gemma's way: a content loses the spaces at its ends."""
    return chatml([{**one, "content": one["content"].strip()} for one in messages])


def inst(messages: Messages) -> str:
    """Llama 2's template."""
    return "".join(f"<s>[INST] {one['content'].strip()} [/INST]" for one in messages)


TEMPLATES: dict[str, Callable[[Messages], str]] = {kind.__name__: kind for kind in (chatml, trimmed, inst)}


class MadeTokenizer:
    """One of these as loadgen asks a tokenizer; without a template only the server could tell a chat's tokens."""

    def __init__(self, tokenizer: Tokenizer, template: Callable[[Messages], str] | None = None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self.calls = 0

    def ids(self, text: str, special: bool = True) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def chat_ids(self, content: str) -> list[int]:
        assert self._template is not None
        return self.ids(self._template([{"role": "user", "content": content}]), special=False)

    async def encode(self, text: str, *, special: bool) -> list[int]:
        self.calls += 1
        return self.ids(text, special)

    async def encode_chat(self, messages: Messages) -> list[int] | None:
        self.calls += 1
        return None if self._template is None else self.ids(self._template(messages), special=False)

    async def count(self, texts: Sequence[str]) -> list[int]:
        return [len(self.ids(text, special=False)) for text in texts]
