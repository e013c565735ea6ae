"""The `apc` command in its own folder."""

from pathlib import Path

import pytest
from tests.support.apc_command import ApcCommand


@pytest.fixture
def apc(tmp_path: Path) -> ApcCommand:
    """Runs `apc` in the test's folder."""
    return ApcCommand(tmp_path)
