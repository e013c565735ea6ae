"""A verification that a gate did not finish is finished by the next one, though nobody sends anything."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from apc_bus.artifacts import ArtifactStore
from apc_contracts import ArtifactPayload, Packet, SignalPayload, TaskIrPayload
from apc_contracts.task_ir import IrConstraint, IrHeader
from apc_contracts.vocabulary import PacketType, Signal

Build = Callable[..., Packet[Any]]
OPEN = "SELECT sum(open_deliveries) FROM apc_log.sessions"


def brief_of(packet: Build, opening: Packet[Any], agent: str) -> Packet[Any]:
    """A research brief of the librarian, of keys that no other has."""
    header = IrHeader(task_id="task-1", run_id="run-1", swarm_id="library", dialect_id="d", dialect_hash="h")
    constraint = IrConstraint(id="c", constraint_kind="QUALITY", expression="best")
    payload = TaskIrPayload(ir_header=header, objects=(constraint,))
    return packet("librarian", payload, (agent,), parent=opening, keys=(agent,))


async def discover(house: Any, packet: Build, opening: Packet[Any]) -> None:
    """Bring the session to DISCOVERY; every delivery so far has its end."""
    await house.register()
    await house.publish(opening)
    for agent in ("red-1", "blue-1"):
        await house.publish(brief_of(packet, opening, agent))
        await house.publish(packet(agent, SignalPayload(signal=Signal.SYNC), parent=opening))
    await house.quiet()
    await house.handle_all()


async def test_a_verification_outlives_its_gate(house: Any, packet: Build, start: Build, tmp_path: Path) -> None:
    opening, store = start(), house.artifacts
    payload = ArtifactPayload(
        artifact_id="m",
        artifact_kind="MODEL_SNAPSHOT",
        artifact_uri="file:///m",
        artifact_hash=await store.put(b"model"),
    )
    sent = packet("red-1", payload, ("sentinel",), parent=opening, phase="DISCOVERY")
    house.artifacts = ArtifactStore.open(tmp_path / "artifacts", max_bytes=1)
    async with house.persister():
        async with house.gate():
            await discover(house, packet, opening)
            await house.publish(sent)
            await house.quiet()
            assert [one.packet_type for one in await house.handle("sentinel")] == [PacketType.ARTIFACT]

            async def is_applied() -> bool:
                return bool(await house.state_of(sent) == "APPLIED")

            await house.until(is_applied)
            assert await house.pool.fetchval(OPEN) == 0, "nothing is on its way that could wake the session"
        house.artifacts = store
        async with house.gate():

            async def is_archived() -> bool:
                return bool(await house.state_of(sent) == "ARCHIVED")

            await house.until(is_archived)
