"""Tests share their cores as the programs do: threads that wait must not spin."""

from __future__ import annotations

import sys

from engine.threads import set_threads

if "torch" not in sys.modules:
    set_threads()
