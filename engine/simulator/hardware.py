"""What a step costs a device of which two figures are known, by a model's shape: the roofline (Williams et al., 2009).

A step reads all weights and the KV of its rows' contexts, and computes its tokens; the slower of the two is its time.
"""

from __future__ import annotations

import msgspec

from engine.simulator.runner import StepWork
from engine.sizing.memory import KV_BYTES, SizingError, kv_dtype, weigh
from engine.sizing.shape import ModelShape


class Roofline(msgspec.Struct, frozen=True):
    """Seconds of a step: overhead + the greater of bytes / memory_bandwidth and operations / flops.

    `flops` (a second) and `memory_bandwidth` (bytes a second) are what is reached, not what a data sheet promises.
    Operations of each computed token, of each drawn one (the head), and of each pair that attention looks at.
    """

    flops: float
    memory_bandwidth: float
    overhead: float  # seconds of every step
    weight_bytes: int
    kv_bytes: int  # of a token
    token_operations: float
    draw_operations: float
    pair_operations: float

    @property
    def move(self) -> float:
        """A slot is read and written."""
        return 2 * self.kv_bytes / self.memory_bandwidth

    def seconds(self, work: StepWork) -> float:
        """Without moves."""
        nbytes = self.weight_bytes + self.kv_bytes * (work.context + work.computed)
        operations = (
            self.token_operations * work.computed
            + self.draw_operations * work.drawn
            + self.pair_operations * work.pairs
        )
        return self.overhead + max(nbytes / self.memory_bandwidth, operations / self.flops)


def kv_bytes_per_token(shape: ModelShape) -> int:
    """Over all layers, in the type that the config has."""
    return shape.kv_elements() * KV_BYTES[kv_dtype(shape, "auto")]


def roofline(shape: ModelShape, flops: float, memory_bandwidth: float, overhead: float) -> Roofline:
    """A multiplication and an addition for each weight. Layers that slide are taken to attend to everything.

    Raises SizingError for models of which the shape does not say what a token computes.
    """
    parameters = shape.parameters
    if parameters.experts or shape.latent_dim:
        what = "experts: how many of them compute a token" if parameters.experts else "latents: what they compute"
        raise SizingError(f"--model: {shape.name} has {what} is not known here; give --step-seconds and the like")
    return Roofline(
        flops=flops,
        memory_bandwidth=memory_bandwidth,
        overhead=overhead,
        weight_bytes=weigh(shape, None, 1).bytes,
        kv_bytes=kv_bytes_per_token(shape),
        token_operations=2.0 * (parameters.attention + parameters.mlp + parameters.small),
        draw_operations=2.0 * (parameters.head or parameters.embedding),
        pair_operations=2.0 * shape.num_layers * shape.num_heads * (shape.key_dim + shape.value_dim),
    )
