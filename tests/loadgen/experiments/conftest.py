"""Lets the tests of this folder import its simulated runs, and the golden server."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[1]):  # the golden server is of all tests of loadgen
    sys.path.insert(0, str(folder))
