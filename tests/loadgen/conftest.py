"""Lets the tests of this folder import its golden server, and play whole runs against it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from runs import Runner


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)
