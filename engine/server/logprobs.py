"""Log-probabilities as JSON has them: of prompts as vLLM tells them, and labels that keep tokens apart."""

from __future__ import annotations

from typing import Any

from engine.server.generation import Prompt
from engine.tokenizer import Tokenizer

LOWEST_LOGPROB = -9999.0  # JSON has no infinity


def finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


def label(tokenizer: Tokenizer, token_id: int) -> str:
    """A token as text; one that is part of a character as its bytes, or keys would fall together."""
    data = tokenizer.table[token_id]
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def prompt_logprobs(tokenizer: Tokenizer, prompt: Prompt, count: int) -> list[dict[str, Any] | None]:
    """For each token of the prompt its own log-probability and those of the `count` likeliest, by token id.

    vLLM's shape: nothing for the first token, which nothing comes before. `rank` 1 is the likeliest.
    """
    entries: list[dict[str, Any] | None] = [None]
    for token_id, score in zip(prompt.token_ids[1:], prompt.scores, strict=False):
        ranked = [(token_id, score.logprob, score.rank)]
        ranked += [
            (other, logprob, rank)
            for rank, (other, logprob) in enumerate(score.top[:count], start=1)
            if other != token_id
        ]
        entries.append(
            {
                str(one): {"logprob": finite(logprob), "rank": rank, "decoded_token": tokenizer.token_text(one)}
                for one, logprob, rank in ranked
            }
        )
    return entries
