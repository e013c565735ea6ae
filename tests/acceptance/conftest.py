"""The `apc` command in a folder of its own."""

from pathlib import Path

import pytest

from apc_console.testing import ApcCommand


@pytest.fixture
def apc(tmp_path: Path) -> ApcCommand:
    """Runs `apc` in the test's folder."""
    return ApcCommand(tmp_path)
