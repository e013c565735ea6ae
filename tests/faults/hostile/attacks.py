"""Hostile input amid a steady load of healthy packets: put in, counted, and what must hold afterwards."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import UUID

import orjson
from tests.faults.cast import AWAY
from tests.faults.deployment import Deployment
from tests.support.traffic import ScriptedWorker, make_idea, make_packet, publish_until_confirmed, until

from apc_agents.keys import AgentKey
from apc_bus import headers
from apc_client.registration import publish_changes
from apc_contracts import Packet, load_contract, seal

DOZENS = 24
"""Inputs of each case, and the fewest that prove anything."""
HANDLED_BEFORE, CONFIRMED_AFTER = 40, 40
HASHES = "SELECT coalesce(second_hash, sha256(raw)) AS hash FROM apc_log.packet_conflicts"
IN_STATE = (
    "SELECT DISTINCT packet_id FROM apc_log.packet_events WHERE to_state = $1 AND coalesce($2, recipient) = recipient"
)


def signing_contract(folder: Path) -> str:
    """Return a file with the packaged contract, and that every IDEA must be signed."""
    document = load_contract().file.model_dump(mode="json", by_alias=True, exclude_none=True)
    document["required"]["signature"] = ["IDEA"]
    path = folder / "contract.json"
    path.write_bytes(orjson.dumps(document))
    return str(path)


class Attack:
    """One case: gate and log writer as processes, workers, a load, and what is put in between.

    Args:
        deployment: where; nothing runs there yet.
        record: adds the line to the table of the run.
    """

    def __init__(self, deployment: Deployment, record: Callable[..., None]) -> None:
        self.deployment = deployment
        self.injected = 0
        self.bodies: list[bytes] = []
        """What was put in that is no packet of its sender."""
        self.key: AgentKey | None = None
        """With it red-1 signs what it sends, and the contract demands that every IDEA is signed."""
        self._record = record
        self._chance = random.Random(0)
        self._resources = AsyncExitStack()
        self._healthy: set[UUID] = set()
        self._ended_at = 0.0

    @asynccontextmanager
    async def amid_load(self) -> AsyncIterator[None]:
        """What happens in the context happens under load; leaving it drains."""
        deployment, settings = self.deployment, {}
        await deployment.open_session()
        if self.key is not None:
            await self.register("red-1", public_keys={self.key.key_id: self.key.public_key})
            settings = {"APC_CONTRACT": signing_contract(deployment.folder)}
        await deployment.serve("persister")
        await deployment.serve("orchestrator", **settings)
        async with deployment.working(), self._resources:
            async with deployment.sending(self._chance, self._send_healthy):
                await until(self._are_handled)
                yield
                self._ended_at = monotonic()
                await until(deployment.confirms.reach(CONFIRMED_AFTER))
            await deployment.drain()

    async def end(self, fault: str, **quarantined: int) -> None:
        """S1 to S8, every healthy packet handled, nothing else in quarantine than so many of each code; the line."""
        assert self.injected >= DOZENS, f"not exercised: {self.injected} injected"
        await self.deployment.check(quarantined=quarantined)
        assert self._healthy <= self.handled, "each healthy packet"
        self._record(fault, self.deployment, self._ended_at, injected=self.injected)

    def idea(self, sender: str = "red-1", to: str | tuple[str, ...] = "blue-1", **fields: Any) -> Packet:
        """Return a packet that nobody has sent yet; `fields` as `make_packet` takes them."""
        recipients = (to,) if isinstance(to, str) else to
        payload = fields.pop("payload", None) or make_idea("work")
        return make_packet(sender, payload, recipients, parent=self.deployment.opening, **fields)

    async def send(self, packet: Packet, **properties: Any) -> None:
        """Put a packet in that the gate gives its own row."""
        self.injected += 1
        await self.deployment.send(packet, **(self.signature(packet) | properties))

    async def put(self, packet: Packet, **properties: Any) -> None:
        """Put a message in that must get no row; `body` replaces the packet's bytes."""
        self.injected += 1
        publication = self.deployment.agents.publication(packet, **properties)
        self.bodies.append(publication.message.body)
        await publish_until_confirmed(self.deployment.bus, publication)

    def signature(self, packet: Packet) -> dict[str, Any]:
        """Return the properties of a message that its sender signs; none when it has no key."""
        if self.key is None or packet.sender.agent_id != "red-1":
            return {}
        return {"headers": {headers.SIGNATURE: self.key.sign(seal(packet))}}

    async def come_back(self) -> ScriptedWorker:
        """Return the one that was away works from now on."""
        worker = ScriptedWorker(self.deployment.bus, AWAY)
        self.deployment.workers[AWAY] = worker
        return await self._resources.enter_async_context(worker.working())

    async def register(self, agent: str, **fields: Any) -> None:
        """Register an agent of the cast again, with other fields."""
        change = self.deployment.agents.registration(agent).model_copy(update=fields)
        await publish_changes(self.deployment.bus, [change], 1)

    @property
    def handled(self) -> set[UUID]:
        """What any handler ran for."""
        return {packet_id for worker in self.deployment.workers.values() for packet_id in worker.effects}

    def told(self, code: str, packet_ids: Iterable[UUID], agent: str = "red-1") -> Callable[[], Awaitable[bool]]:
        """Return a condition: the gate has refused each of these to their sender, with this code."""
        wanted, nacks = set(packet_ids), self.deployment.workers[agent].nacks

        async def holds() -> bool:
            return wanted <= {packet_id for packet_id, said in nacks.items() if said == code}

        return holds

    def are_in(self, state: str, packet_ids: Iterable[UUID], recipient: str = "") -> Callable[[], Awaitable[bool]]:
        """Return a condition: by the log each of these has come to this state, for this recipient."""
        wanted = set(packet_ids)

        async def holds() -> bool:
            return wanted <= await self.in_state(state, recipient)

        return holds

    async def in_state(self, state: str, recipient: str | None = None) -> set[UUID]:
        """Return the packets that have come to this state, for any recipient or for this one."""
        return {row["packet_id"] for row in await self.deployment.pool.fetch(IN_STATE, state, recipient)}

    async def kept(self) -> Counter[bytes]:
        """Return the hashes of what is in quarantine."""
        return Counter(row["hash"] for row in await self.deployment.pool.fetch(HASHES))

    async def _send_healthy(self) -> None:
        packet = self.idea(to=self._chance.choice(("blue-1", "sentinel")))
        self._healthy.add(packet.packet_id)
        await self.deployment.send(packet, **self.signature(packet))

    async def _are_handled(self) -> bool:
        return len(self._healthy & self.handled) >= HANDLED_BEFORE
