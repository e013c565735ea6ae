"""Compose files as Docker merges them: first `extends`, then one file over the other.

`docker compose config` says the same (`make test-compose` compares); this needs no Docker.
"""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

Model = dict[str, Any]
_REPLACED = {"command", "entrypoint", "test"}
"""Lists that a later file replaces; all others it adds to."""


def read_compose(files: Sequence[Path]) -> Model:
    """Return services, secrets, networks and volumes of these files; all paths count from the first one's folder."""
    folder, merged = files[0].parent, Model()
    for file in files:
        content: Model = yaml.safe_load(file.read_text())
        services = {name: _extended(service, folder) for name, service in content.get("services", {}).items()}
        merged = dict(_merge(merged, content | {"services": services}))
    return merged


def _extended(service: Model, folder: Path) -> Model:
    own = dict(service)
    extends = own.pop("extends", None)
    if extends is None:
        return own
    base: Model = yaml.safe_load((folder / extends["file"]).read_text())["services"][extends["service"]]
    return dict(_merge(_extended(base, folder), own))


def _merge(base: Any, more: Any, name: str = "") -> Any:
    if isinstance(base, dict) and isinstance(more, dict):
        merged = {key: _merge(base[key], value, key) if key in base else value for key, value in more.items()}
        return deepcopy(base) | merged
    if isinstance(base, list) and isinstance(more, list) and name not in _REPLACED:
        return [*base, *(one for one in more if one not in base)]
    return deepcopy(more)
