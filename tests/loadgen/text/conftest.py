"""Lets the tests of this folder import the tokenizers that are made beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
