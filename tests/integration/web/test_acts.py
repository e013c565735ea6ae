"""The acts of the web console over RabbitMQ: pause, resume, requeue; the log shows the operator."""

import asyncio
from datetime import timedelta
from typing import Any

import httpx2 as httpx
import pytest
from tests.integration.conftest import House
from tests.support.traffic import SESSION

from apc_bus.settings import BusSettings
from apc_cli.commands.ui import OperatorActs
from apc_contracts import load_contract
from apc_web.app import make_app
from apc_web.live import Feed
from apc_web.pool import open_reader
from apc_web.route_services import Services

REQUEUES = "SELECT count(*) FROM apc_log.packet_transitions WHERE event = 'requeued'"


@pytest.mark.long
async def test_an_operator_acts_over_http(house: House, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APC_AMQP_URL", house.settings.amqp_url.get_secret_value())
    pool = await open_reader(postgres_url, timedelta(seconds=10))
    contract = load_contract()
    services = Services(
        pool=pool,
        state=pool,
        contract=contract,
        key_of=lambda shard: None,
        feed=Feed(pool, contract),
        is_embedded=False,
        acts=OperatorActs(pool, BusSettings()),
    )
    transport = httpx.ASGITransport(make_app(services))
    async with (
        house.persister(),
        house.gate(),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1", timeout=30) as client,
    ):
        await house.open_session()

        async def act(path: str, status: int = 200, **body: Any) -> Any:
            response = await client.post(path, json=body)
            assert response.status_code == status, response.text
            return response.json()

        assert (await act(f"/sessions/{SESSION}/pause", reason="lunch"))["detail"]["state"] == "paused in SESSION_OPEN"
        assert (await client.get(f"/sessions/{SESSION}")).json()["waits"][0]["kind"] == "paused"
        assert (await act(f"/sessions/{SESSION}/resume"))["detail"]["state"] == "SESSION_OPEN"
        await house.dead_letter("blue-1")
        (dead,) = (await client.get("/dead")).json()["items"]
        assert dead["words"].endswith("in 1 attempt: its handler failed.") and dead["can_requeue"]
        name = {key: dead[key] for key in ("packet_id", "session_id", "recipient")}

        answers = await asyncio.gather(
            *(client.post("/dead/requeue", json={"deliveries": [name], "note": note}) for note in ("mended", "me, too"))
        )

        assert 200 in {answer.status_code for answer in answers} <= {200, 409}, "two operators at the same time"
        done = next(answer.json() for answer in answers if answer.status_code == 200)
        assert done["detail"]["deliveries"][0]["state"] == "ROUTED" and done["detail"]["by"] == "librarian"
        assert await house.pool.fetchval(REQUEUES) == 1
        assert (await client.get("/dead")).json()["items"] == []
        again = await act("/dead/requeue", 409, deliveries=[name])
        assert again["code"] == "NOT_POSSIBLE" and "is not dead" in again["detail"]
        assert (await act("/sessions/elsewhere/stop", 404))["code"] == "NOT_FOUND"
        assert (await act("/dead/discard", 409, deliveries=[name], note="n" * 301))["code"] == "NOT_POSSIBLE"
        kept = await house.dead_letter("sentinel")
        assert (await client.get("/dead")).json()["items"][0]["can_requeue"]
        await act(f"/sessions/{SESSION}/stop", reason="enough")
        (dead,) = (await client.get("/dead")).json()["items"]
        assert (dead["packet_id"], dead["can_requeue"]) == (str(kept.packet_id), False)
        name = {key: dead[key] for key in ("packet_id", "session_id", "recipient")}
        halted = await act("/dead/requeue", 409, deliveries=[name])
        assert halted["code"] == "NOT_POSSIBLE" and "has halted (STOP by librarian)" in halted["detail"]
    pool.terminate()
