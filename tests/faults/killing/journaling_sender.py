"""A sender as its own process: `journaling_sender.py LOAD JOURNAL`.

It publishes the bodies of the load, a JSON list of texts, that its journal does not have as confirmed.
"""

import asyncio
import sys
from pathlib import Path

import orjson
from tests.support.traffic import Journal, ScriptedAgents, publish_until_confirmed

from apc_bus.rabbit import connect_rabbit
from apc_bus.settings import BusSettings
from apc_contracts import parse_packet

AT_ONCE = 8


async def main(load: list[str], journal: Journal) -> None:
    """Publish some at once, each until it is confirmed."""
    waiting = [text.encode() for text in reversed(load)]
    bus = await connect_rabbit(BusSettings(), purpose="sender")
    agents = ScriptedAgents(bus)

    async def send() -> None:
        while waiting:
            body = waiting.pop()
            packet = parse_packet(body)
            if packet.packet_id in journal.confirmed:
                continue
            journal.tried(packet.packet_id, body)
            await publish_until_confirmed(bus, agents.publication(packet, body=body))
            journal.is_confirmed(packet.packet_id)

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    await bus.close()


if __name__ == "__main__":
    asyncio.run(main(orjson.loads(Path(sys.argv[1]).read_bytes()), Journal(Path(sys.argv[2]))))
