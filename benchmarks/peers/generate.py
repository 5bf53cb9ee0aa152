"""transformers' `generate`: static batches in the order of the requests, padded at the left to the longest prompt.

A batch runs until its longest answer is done; only what was asked for counts. The batch size is the best of those
that are tried: a few steps of the first batch are timed for each, and what the whole work would take is reckoned from
them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.messages import Do, Run, Settings
from benchmarks.peers.transformers_model import load
from benchmarks.works import Work

BATCH_SIZES = (4, 8, 16, 32, 64, 128)
TRIED_TOKENS = 6


class Clock:
    """A logits processor that changes nothing, and notes when tokens are made."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.times.append(time.perf_counter())
        return scores


class Generate:
    def __init__(self, model: Any) -> None:
        self.model = model
        self._best: dict[tuple[str, int, int], int] = {}  # batch size by work: a warm-up tells nothing of the whole

    def run(self, do: Do, say: Callable[[str], None]) -> Run:
        work = do.work
        kind = (work.name, len(work.prompts), max(work.outputs))
        if kind not in self._best:
            self._best[kind] = self.best_batch_size(work, say)
        size = self._best[kind]
        begun = time.perf_counter()
        clock = Clock()
        for start in range(0, len(work.prompts), size):
            self._batch(work.prompts[start : start + size], max(work.outputs[start : start + size]), clock)
            say(f"{min(start + size, len(work.prompts))} of {len(work.prompts)} requests, batches of {size}")
        seconds = time.perf_counter() - begun
        alone = len(work.prompts) == 1
        between = (clock.times[-1] - clock.times[0]) / (len(clock.times) - 1) if alone else None
        return Run(seconds, work.output_tokens, token_seconds=between, note=f"batches of {size}")

    def best_batch_size(self, work: Work, say: Callable[[str], None]) -> int:
        """The size for which the work takes least, by what prompts and steps of one batch take."""
        sizes = sorted({min(size, len(work.prompts)) for size in BATCH_SIZES})
        reckoned: dict[int, float] = {}
        for size in sizes if len(sizes) > 1 else ():
            say(f"trying batches of {size}")
            clock = Clock()
            begun = time.perf_counter()
            self._batch(work.prompts[:size], TRIED_TOKENS, clock)
            prompt, step = clock.times[0] - begun, (clock.times[-1] - clock.times[0]) / (TRIED_TOKENS - 1)
            batches = [work.outputs[start : start + size] for start in range(0, len(work.outputs), size)]
            reckoned[size] = sum(prompt * len(batch) / size + step * max(batch) for batch in batches)
        return min(reckoned, key=reckoned.__getitem__) if reckoned else sizes[0]

    @torch.inference_mode()
    def _batch(self, prompts: tuple[tuple[int, ...], ...], tokens: int, clock: Clock) -> None:
        longest = max(map(len, prompts))
        padding = [longest - len(prompt) for prompt in prompts]
        rows = [[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)]
        ids = torch.tensor(rows, device=self.model.device)
        mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding], device=self.model.device)
        made = self.model.generate(ids, attention_mask=mask, max_new_tokens=tokens, logits_processor=[clock])
        if made.shape[1] != longest + tokens:
            raise RuntimeError(f"generate made {made.shape[1] - longest} tokens, not {tokens}")


def make(settings: Settings) -> Generate:
    return Generate(load(settings))
