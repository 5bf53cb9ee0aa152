"""What a soak asks of a server: random requests of every kind, and random settings. All of it follows from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

Leaving = Literal["stays", "disconnects", "is cancelled"]
PREFIXES = 24  # system prompts that requests share
ABORTED = 0.3  # of all requests; about two of three before their end, which makes 20 %
PLAIN = 0.55  # of requests ask for one plain answer


@dataclass(frozen=True)
class Asked:
    """One request, and whether its client leaves, or cancels it, after so many events (0: at once)."""

    number: int
    path: str
    body: dict[str, Any]
    leaving: Leaving
    after: int


def ask(number: int, seed: int) -> Asked:
    """Request `number` of a soak."""
    chance = random.Random(f"{seed}/{number}")
    chat = chance.random() < 0.4
    prefix = "x" * chance.randrange(8, 120) if chance.random() < 0.2 else _prefix(chance.randrange(PREFIXES))
    text = prefix + " ".join(str(chance.randrange(1000)) for _ in range(chance.randrange(1, 20)))
    body: dict[str, Any] = {"max_tokens": chance.randrange(1, 33)}
    if chance.random() < 0.7:
        body["ignore_eos"] = True
    body |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    kind = chance.random()
    if kind > PLAIN:
        body |= _special(chance, chat)
    if "use_beam_search" not in body and "best_of" not in body and "prompt_logprobs" not in body:
        body["stream"] = chance.random() < 0.6
    leaving: Leaving = "stays"
    if chance.random() < ABORTED:
        leaving = chance.choice(("disconnects", "is cancelled"))
        body["max_tokens"] = chance.randrange(16, 120)
        body["ignore_eos"] = True
    path = "/v1/chat/completions" if chat else "/v1/completions"
    return Asked(number, path, body, leaving, chance.choice((0, 0, 1, 2, 5, 9)))


def _prefix(which: int) -> str:
    return f"You are assistant {which}. " + f"Rule {which} is to be brief and true. " * (1 + which % 5)


def _special(chance: random.Random, chat: bool) -> dict[str, Any]:
    return chance.choice(
        (
            {"n": chance.randrange(2, 5), "seed": chance.randrange(100)},
            {"n": 2, "best_of": chance.randrange(2, 5)},
            {"use_beam_search": True, "n": chance.randrange(1, 4), "beam_width": 4},
            {"temperature": 0.0},
            {"stop": ["a", "bc", "\n"]},
            {"logprobs": True, "top_logprobs": 3} if chat else {"logprobs": 3},
            {"prompt_logprobs": 1},
            {"timeout": chance.choice((0.001, 0.05, 0.5))},
            {"cache_salt": f"salt {chance.randrange(4)}"},
            {"prefix_cache": False},
            {"priority": chance.randrange(5)},
            {"repetition_penalty": 1.2, "presence_penalty": 0.5, "logit_bias": {"65": 5.0}},
            {"min_tokens": 1, "stop_token_ids": [65, 66]},
        )
    )


def settings(chance: random.Random) -> dict[str, Any]:
    """A change of control: both modes, and one or two more."""
    change: dict[str, Any] = {
        "batching": chance.choice(("continuous", "continuous", "static")),
        "allocation": chance.choice(("paged", "paged", "reserved")),
    }
    others: dict[str, tuple[Any, ...]] = {
        "prefix_cache": (True, True, False),
        "chunked_prefill": (True, False),
        "max_num_seqs": (8, 32, 64),
        "max_num_batched_tokens": (64, 256, 512),
        "max_prefill_chunk": (0, 16, 100),
        "scheduling_policy": ("fcfs", "priority", "shortest_prefill", "fair"),
        "preempt": ("recompute", "swap", "auto"),
        "reserved_fit": ("first", "best"),
    }
    for name in chance.sample(sorted(others), 2):
        change[name] = chance.choice(others[name])
    return change
