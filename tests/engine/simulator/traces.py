"""Small traces to simulate, and the settings to do it with."""

from __future__ import annotations

from typing import Any

from engine.protocol import Control
from engine.simulator.prediction import Prediction, Settings
from engine.simulator.runner import StepCost
from engine.simulator.simulate import Simulator
from engine.trace_lengths import TracedRequest

COST = StepCost(step=0.5, token=0.125, context=0.0625, move=0.25)  # exact in binary


def traced(arrival: float, output: int, *pieces: tuple[int, int], answer: int = -1, **more: Any) -> TracedRequest:
    return TracedRequest(arrival, sum(tokens for _, tokens in pieces), output, pieces, answer, **more)


def settings(requests: int, control: Control | None = None, **changes: Any) -> Settings:
    return Settings(
        **{
            "control": control or Control(),
            "block_size": 4,
            "num_blocks": None,
            "num_host_blocks": 0,
            "kv_bytes_per_token": 8,
            "max_model_len": 256,
            "cost": COST,
            "requests": requests,
            "check_invariants": True,
            **changes,
        }
    )


def simulate(*trace: TracedRequest, control: Control | None = None, **changes: Any) -> Prediction:
    """The prediction of a whole run, with the invariants checked after every step."""
    simulator = Simulator(trace, settings(changes.pop("requests", len(trace)), control, **changes))
    simulator.run()
    return simulator.prediction()
