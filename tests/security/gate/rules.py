"""The gate without one of its rules: what the rule refuses is then accepted."""

from importlib import import_module
from typing import Any

import pytest

JUDGING = import_module("apc_contracts.admission.admit")


def take_away(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    """Judge without one rule."""
    plan = JUDGING.plan

    def without(*case: Any) -> Any:
        return tuple(one for one in plan(*case) if getattr(one, "__name__", "") != rule)

    monkeypatch.setattr(JUDGING, "plan", without)
