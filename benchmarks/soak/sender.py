"""A sender as its own process: `python -m benchmarks.soak.sender AGENT FOLDER SEED`, until SIGTERM."""

import asyncio
import random
import signal
import sys
from pathlib import Path
from uuid import UUID

import orjson
from tests.support.traffic import Journal, ScriptedAgents, publish_until_confirmed

from apc_bus.rabbit import connect_rabbit
from apc_bus.settings import BusSettings
from apc_cli.system.running import run
from apc_contracts import Packet, parse_packet, seal
from benchmarks.soak.cast import CAST, next_packet

AT_ONCE = 4
PAUSE_SECONDS = 0.25
SESSIONS = "sessions.json"
"""The file with the START packets of the sessions."""


class Sender:
    """Publishes until each packet is confirmed; after a death what was not confirmed, under the same ids."""

    def __init__(self, agent: str, agents: ScriptedAgents, journal: Journal, sessions: list[Packet]) -> None:
        self._agent = agent
        self._agents = agents
        self._journal = journal
        self._sessions = sessions
        self._number = len(journal.confirmed) + len(journal.unconfirmed)

    async def send_again(self) -> None:
        """Send what the predecessor left without a confirm."""
        for packet_id, body in list(self._journal.unconfirmed.items()):
            await self._publish(packet_id, body)

    async def send(self, chance: random.Random, stop: asyncio.Event) -> None:
        """One packet after the other."""
        while not stop.is_set():
            packet = next_packet(self._agent, self._number, self._sessions, chance)
            self._number += 1
            body = seal(packet).body
            self._journal.tried(packet.packet_id, body)
            await self._publish(packet.packet_id, body)
            await asyncio.sleep(PAUSE_SECONDS)  # a load, not a flood

    async def _publish(self, packet_id: UUID, body: bytes) -> None:
        await publish_until_confirmed(self._agents.bus, self._agents.publication(parse_packet(body), body=body))
        self._journal.is_confirmed(packet_id)


async def main(agent: str, folder: Path, seed: str) -> None:
    """Send until SIGTERM; what is on its way then is confirmed first."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    sessions = [parse_packet(text.encode()) for text in orjson.loads((folder / SESSIONS).read_bytes())]
    journal = Journal(folder / f"{agent}.journal")
    bus = await connect_rabbit(BusSettings(), purpose=f"soak {agent}")
    sender = Sender(agent, ScriptedAgents(bus, CAST), journal, sessions)
    await sender.send_again()
    chances = [random.Random(f"{seed}/{agent}/{len(journal.confirmed)}/{number}") for number in range(AT_ONCE)]
    await asyncio.gather(*(sender.send(chance, stop) for chance in chances))
    await bus.close()
    journal.close()


if __name__ == "__main__":
    run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
