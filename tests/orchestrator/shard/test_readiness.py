"""/readyz is about what this process could serve: one that stands by for a shard is ready, one that fails is not."""

from tests.orchestrator.conftest import House

from apc_orchestrator import Orchestrator

PROBE = 0.05
"""Seconds in which a probe comes to the active gate."""


async def test_a_gate_is_ready_while_another_holds_its_shard(house: House) -> None:
    async with house.persister():
        async with house.gate(probe_seconds=PROBE) as active:
            await house.until(lambda: held(active))
            async with house.gate(probe_seconds=PROBE) as second:
                assert second.problems == ["shard 0 is not held"], "before it knows that another one holds it"
                await house.until(lambda: ready(second))
                assert active.is_ready and not second.shards[0].is_active
        async with house.gate(probe_seconds=PROBE) as third:
            await house.until(lambda: held(third))
            assert third.is_ready


async def test_a_gate_that_is_next_and_cannot_take_the_shard_is_not_ready(house: House) -> None:
    """Nobody writes the log: the shard is its own, and it does not get the lease."""
    async with house.gate(probe_seconds=PROBE) as waiting:

        async def has_asked() -> bool:
            return bool((await house.client("operator").depth("apc.log.0")).messages)

        await house.until(has_asked)
        assert waiting.problems == ["shard 0 is not held"]


async def held(gate: Orchestrator) -> bool:
    return gate.shards[0].is_active


async def ready(gate: Orchestrator) -> bool:
    return gate.is_ready
