"""A gate and a persister at work in one process, as the orchestrator's own tests have them."""

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tests.orchestrator.conftest import house, idea, packet, running, start
from tests.orchestrator.waiting.conftest import office

from apc_contracts.contract.contract import PACKAGED_CONTRACT

__all__ = ["house", "idea", "office", "packet", "running", "start"]


ContractWith = Callable[..., str]


@pytest.fixture
def contract_with(tmp_path: Path) -> ContractWith:
    """Writes the packaged contract with other limits; gives its path."""

    def write(**limits: Any) -> str:
        file = json.loads((files("apc_contracts") / PACKAGED_CONTRACT).read_text())
        for name, value in limits.items():
            file["limits"][name] = file["limits"][name] | value if isinstance(value, dict) else value
        path = tmp_path / "contract.json"
        path.write_text(json.dumps(file))
        return str(path)

    return write
