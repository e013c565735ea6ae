"""A verification that a gate did not finish is finished by the next one, though nobody sends anything."""

from collections.abc import Callable
from pathlib import Path

from tests.orchestrator.conftest import House

from apc_bus.artifacts import ArtifactStore
from apc_bus.errors import ArtifactError
from apc_contracts import ArtifactPayload, Packet
from apc_contracts.vocabulary import PacketType

Build = Callable[..., Packet]
OPEN = "SELECT sum(open_deliveries) FROM apc_log.sessions"


class Away(ArtifactStore):
    """A store that does not answer."""

    async def check(self, artifact_hash: str) -> None:
        raise ArtifactError("away")


async def test_a_verification_outlives_its_gate(house: House, packet: Build, start: Build, tmp_path: Path) -> None:
    opening, store = start(), house.artifacts
    payload = ArtifactPayload(
        artifact_id="m",
        artifact_kind="MODEL_SNAPSHOT",
        artifact_uri="file:///m",
        artifact_hash=await store.put(b"model"),
    )
    sent = packet("red-1", payload, ("sentinel",), parent=opening, phase="DISCOVERY")
    house.artifacts = Away(tmp_path / "artifacts")
    async with house.persister():
        async with house.gate():
            await house.discover(opening)
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
