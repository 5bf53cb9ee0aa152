"""The floor: the bare matrix products of the steps that the engine ran, as fast as torch makes them.

Per layer qkv, output, gate_up and down, each layer with weights of its own so that caches do not help, and the output
layer for the rows that were sampled. As in the engine, the last layer's products past its keys and values are made
for the sampled rows alone. `engine.linear` has the fastest way torch knows, on CPUs oneDNN's with weights packed
beforehand; a step of few tokens is made with one thread too, and the faster counts. No norms, no rotation, no
attention, no sampling.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from benchmarks.messages import Do, Run, Settings, StepShape
from engine.build import choose_device, choose_dtype
from engine.linear import Linear
from engine.loading.config import ModelConfig
from engine.loading.resolve import resolve_model

FEW_TOKENS = 32
MOST_PASSES, ENOUGH_SECONDS = 8, 0.4  # for a size of step: it ends with the first of the two


class Floor:
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        query = config.num_heads * config.head_dim
        shapes = {
            "qkv": (query + 2 * config.num_kv_heads * config.head_dim, hidden),
            "output": (hidden, query),
            "gate_up": (2 * inner, hidden),
            "down": (hidden, inner),
        }

        def product(rows: int, columns: int) -> Linear:
            return Linear(torch.randn(rows, columns, device=device).mul_(0.02).to(dtype))

        self.layers = [{name: product(*shape) for name, shape in shapes.items()} for _ in range(config.num_layers)]
        self.head = product(config.vocab_size, hidden)
        self._columns = {name: columns for name, (_, columns) in shapes.items()}
        self._dtype, self._device = dtype, device
        self._threads = torch.get_num_threads()

    def run(self, do: Do, say: Callable[[str], None]) -> Run:
        if not do.schedule:
            raise ValueError("the floor needs the schedule of a run")
        total, decode = 0.0, None
        parts = dict.fromkeys([*self._columns, "head"], 0.0)
        for i, shape in enumerate(do.schedule):
            one = self.step(shape)
            for name, seconds in one.items():
                parts[name] += seconds * shape.count
            total += sum(one.values()) * shape.count
            if shape.tokens == shape.sampled == 1:
                decode = sum(one.values())
            say(f"{i + 1} of {len(do.schedule)} sizes of steps")
        alone = len(do.work.prompts) == 1
        return Run(total, do.work.output_tokens, token_seconds=decode if alone else None, parts=parts)

    @torch.inference_mode()
    def step(self, shape: StepShape) -> dict[str, float]:
        """Seconds of the products of one step, by part: the pass with the median sum."""
        counts = {1, self._threads} if shape.tokens <= FEW_TOKENS else {self._threads}
        return min((self._median(shape, threads) for threads in counts), key=lambda one: sum(one.values()))

    def _median(self, shape: StepShape, threads: int) -> dict[str, float]:
        with _threads(threads):
            self._pass(shape, self.layers[-2:])  # makes what oneDNN keeps for this size: the last layer has another
            passes: list[dict[str, float]] = []
            until = time.perf_counter() + ENOUGH_SECONDS
            while len(passes) < min(MOST_PASSES, shape.count) and (not passes or time.perf_counter() < until):
                passes.append(self._pass(shape, self.layers))
        middle = statistics.median_low([sum(one.values()) for one in passes])
        return next(one for one in passes if sum(one.values()) == middle)

    def _pass(self, shape: StepShape, layers: list[dict[str, Linear]]) -> dict[str, float]:
        whole = self._inputs(shape.tokens)
        wanted = self._inputs(shape.sampled)
        spent = dict.fromkeys([*self._columns, "head"], 0.0)
        for layer in layers:
            for name, product in layer.items():
                last = layer is self.layers[-1] and name != "qkv"
                inputs = (wanted if last else whole)[name]
                if inputs.shape[0]:
                    spent[name] += self._timed(product, inputs)
        if shape.sampled:
            spent["head"] += self._timed(self.head, wanted["qkv"])
        return spent

    def _inputs(self, rows: int) -> dict[str, Tensor]:
        return {
            name: torch.ones(rows, columns, dtype=self._dtype, device=self._device)
            for name, columns in self._columns.items()
        }

    def _timed(self, product: Linear, inputs: Tensor) -> float:
        begun = time.perf_counter()
        product(inputs)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - begun


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make(settings: Settings) -> Floor:
    device = choose_device("auto")
    return Floor(resolve_model(settings.model).config, choose_dtype(settings.dtype, device), device)
