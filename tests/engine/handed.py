"""A request that was handed over, to begin tests with."""

from __future__ import annotations

from tests.engine.handing import Handing
from tests.engine.mirror import greedy

PROMPT = list(range(10, 28))  # 18 tokens: four blocks of 4 and a half
ENDLESS = {"ignore_eos": True}


def handed(both: Handing | None = None, siblings: int = 0, prompt: list[int] = PROMPT, **settings) -> Handing:
    """One request has been prefilled and handed over, and waits to be placed."""
    both = both or Handing()
    both.add(prompt, greedy(settings.pop("max_tokens", 8), **(ENDLESS | settings)), siblings)
    while not both.passing:
        both.step("p")
    return both


def statuses(both: Handing, side: str) -> dict[str, str]:
    return {state.request: state.status for state in both.folds[side].to_snapshot().requests}
