"""Loads the modules of examples/ from their files."""

import importlib.util
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[3] / "examples"


def load(folder: str, module: str) -> Any:
    """Return the module in a folder of examples/, freshly loaded."""
    spec = importlib.util.spec_from_file_location(module, EXAMPLES / folder / f"{module}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
