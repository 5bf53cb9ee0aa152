"""What these tests share: servers as a watcher saw them, and their panels as text."""

from __future__ import annotations

import pytest

from tests.tui.panels_server import watched


@pytest.fixture(scope="session")
def ours():
    return watched.ours()
