"""The API with acts, over a socket as `apc ui` beside an in-process system, and an agent that asks people."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from tests.orchestrator.conftest import House
from tests.orchestrator.waiting.office import Office
from tests.support.traffic.packets import make_packet
from tests.web.conftest import SERVER, TOKEN, WebBench, bench, house, idea, open_bench

from apc_bus.settings import BusSettings
from apc_cli.commands.ui import OperatorActs
from apc_client.local_acts import OPERATOR_USER, serve_acts
from apc_client.registration import LOG_PATIENCE, register_operator
from apc_contracts import IdeaPayload, Packet
from apc_web.app import make_app
from apc_web.guard import AccessGuard
from apc_web.pool import open_settler

__all__ = ["bench", "house", "idea"]


_IS_FOLLOWED = """
SELECT bool_and(followed.seq >= head.next_seq - 1) FROM apc_log.shards AS head
CROSS JOIN unnest(ARRAY['troubles', 'answers']) AS one(name)
JOIN apc_log.followed ON followed.shard = head.shard AND followed.projection = one.name
"""


@dataclass
class Desk:
    """A console whose holder acts, and the system behind it."""

    bench: WebBench
    office: Office
    sent: dict[str, Packet] = field(default_factory=dict)
    """What has died, by its id."""

    @property
    def house(self) -> House:
        return self.office.house

    async def get(self, path: str, status: int = 200, **parameters: Any) -> Any:
        """Return the JSON of a route, once the projections hold everything that is logged."""
        await self.house.until(self._is_followed)
        return await self.bench.get(path, status, **parameters)

    async def _is_followed(self) -> bool:
        return bool(await self.house.pool.fetchval(_IS_FOLLOWED))

    async def post(self, path: str, status: int = 200, **body: Any) -> Any:
        """Return the JSON that an act is answered with."""
        response = await self.bench.client.post(f"/api/v1{path}", json=body)
        assert response.status_code == status, response.text
        return response.json()

    async def die(self, idea: IdeaPayload, agent: str = "blue-1") -> Packet:
        """Let a delivery become a dead letter, with its attempt 1."""
        house = self.house
        sent = make_packet("red-1", idea, (agent,), parent=house.opening)
        await house.publish(sent)
        await house.quiet()
        await house.read(agent)
        await self.report(agent, sent, 1)
        self.sent[str(sent.packet_id)] = sent
        return sent

    async def report(self, agent: str, sent: Packet, attempt: int) -> None:
        """Say that a delivery has failed, as the recipient does."""
        await self.house.report(agent, sent.packet_id, "dead_lettered", user="orchestrator", attempt=attempt)
        await self.house.quiet()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="apc-desk-") as made:
        yield Path(made)


@asynccontextmanager
async def opened_desk(house: House, url: str, folder: Path, *, is_settler: bool = True) -> AsyncIterator[Desk]:
    """A desk at work; without `is_settler` its database user may not settle."""
    bus = house.client(OPERATOR_USER)
    async with house.persister(), house.gate(), open_bench(house, url) as bench, serve_acts(folder, bus, 1):
        settler = await open_settler(url, timedelta(seconds=10)) if is_settler else None
        acts = OperatorActs(house.pool, BusSettings(amqp_url=None, data_dir=folder), settler=settler)
        services = replace(bench.services, acts=acts, why_no_acts=None)
        transport = httpx.ASGITransport(AccessGuard(make_app(services), TOKEN))
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(transport=transport, base_url=SERVER, headers=headers, timeout=30) as client:
            yield Desk(replace(bench, services=services, client=client), Office(house))
        if settler is not None:
            settler.terminate()


@pytest.fixture
async def desk(house: House, postgres_url: str, folder: Path) -> AsyncIterator[Desk]:
    async with opened_desk(house, postgres_url, folder) as opened:
        yield opened


async def operating(desk: Desk) -> None:
    """Register the operator of the console."""
    await register_operator(desk.house.client(OPERATOR_USER), desk.house.pool, 1, None, LOG_PATIENCE)
