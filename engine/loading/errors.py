"""What goes wrong with a model, said to a person."""

from __future__ import annotations


class ModelError(Exception):
    """The model cannot be used; the message says which, why, and what would do."""


def shortened(name: str) -> str:
    """A name as a message can hold it."""
    return name if len(name) <= 100 else f"{name[:97]}..."
