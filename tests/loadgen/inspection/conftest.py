"""Lets the tests of this folder import what makes their sessions, and finds the real traces."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

REAL_TRACES = Path(__file__).parents[4] / "shared" / "traces"


def real_trace(name: str) -> Path:
    path = REAL_TRACES / name
    if not path.exists():
        pytest.skip(f"{path} is not there: real traces are beside the repository, not in it")
    return path


@pytest.fixture
def mooncake() -> Path:
    return real_trace("mooncake_conversation_trace.jsonl")


@pytest.fixture
def azure() -> Path:
    return real_trace("AzureLLMInferenceTrace_conv.csv")
