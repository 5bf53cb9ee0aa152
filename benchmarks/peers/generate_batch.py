"""transformers' continuous batching, what `generate_batch` runs: its manager, with each request's own length."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from transformers import ContinuousBatchingConfig

from benchmarks.messages import Do, Run, Settings
from benchmarks.peers.transformers_model import load

PAGE_SIZE = 16  # tokens, as this engine's blocks
MAX_BATCH_TOKENS = 512  # as this engine's default
NEVER = -1  # an end token that does not exist


class GenerateBatch:
    """`kv_tokens` is the room for keys and values."""

    def __init__(self, model: Any, kv_tokens: int) -> None:
        self.model = model
        self.config = ContinuousBatchingConfig(
            page_size=PAGE_SIZE, num_blocks=kv_tokens // PAGE_SIZE, max_batch_tokens=MAX_BATCH_TOKENS
        )

    def run(self, do: Do, say: Callable[[str], None]) -> Run:
        work = do.work
        finished: list[Any] = []
        with self.model.continuous_batching_context_manager(continuous_batching_config=self.config) as manager:
            begun = time.perf_counter()
            for prompt, length in zip(work.prompts, work.outputs, strict=True):
                manager.add_request(list(prompt), max_new_tokens=length, eos_token_id=NEVER, record_timestamps=True)
            while len(finished) < len(work.prompts):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    finished.append(result)
                elif result is None and not manager.is_running():
                    raise RuntimeError("transformers' continuous batching ended by itself")
                say(f"{len(finished)} of {len(work.prompts)} requests")
            seconds = time.perf_counter() - begun
        errors = [result.error for result in finished if result.error]
        if errors:
            raise RuntimeError(errors[0])
        made = sum(len(result.generated_tokens) for result in finished)
        if made != work.output_tokens:
            raise RuntimeError(f"generate_batch made {made:,} tokens, not {work.output_tokens:,}")
        times = finished[0].timestamps
        between = (times[-1] - times[0]) / (len(times) - 1) if len(work.prompts) == 1 and len(times or ()) > 1 else None
        return Run(seconds, made, token_seconds=between)


def make(settings: Settings) -> GenerateBatch:
    model = load(settings)
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * model.dtype.itemsize
    return GenerateBatch(model, settings.kv_memory // per_token)
