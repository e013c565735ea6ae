"""A gate that fails for a reason that nobody foresaw takes its shard again, and says why meanwhile."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.orchestrator.conftest import House

from apc_contracts import Packet
from apc_orchestrator import Orchestrator
from apc_orchestrator.judging.registry import Registry


async def test_a_gate_that_fails_is_begun_again(
    house: House, start: Callable[..., Packet], monkeypatch: pytest.MonkeyPatch
) -> None:
    load, failures = Registry.load, list[list[str]]()

    async def fail_twice(*given: Any, **named: Any) -> Registry:
        if len(failures) < 2:
            failures.append(gate.problems)
            raise KeyError("nobody foresaw this")
        return await load(*given, **named)

    monkeypatch.setattr(Registry, "load", fail_twice)
    async with house.persister(), house.gate() as gate:
        await house.until(lambda: _says(gate, "the gate of shard 0 has failed: 'nobody foresaw this'"))
        await house.open(start())
        assert gate.is_ready
    assert len(failures) == 2


async def _says(gate: Orchestrator, sentence: str) -> bool:
    return sentence in gate.problems
