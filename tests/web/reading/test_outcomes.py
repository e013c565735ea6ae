"""What came of a session: result, approvals, failures, states; and what a decision rests on."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from pydantic import BaseModel
from tests.web.conftest import SERVER, TOKEN

from apc_agents import Agent, HandlerContext, Role, Team, message
from apc_client import SessionHalted, TeamTestClient
from apc_contracts import load_contract
from apc_web.app import make_app
from apc_web.guard import AccessGuard
from apc_web.live import Feed
from apc_web.pool import open_reader
from apc_web.route_services import Services


@message("order/1")
class Order(BaseModel):
    item: str
    euros: float


@message("paid/1")
class Paid(BaseModel):
    receipt: str


def shop() -> Team:
    clerk = Agent("clerk", role="clerk", swarm="shop")
    till = Agent("till", role="till", swarm="shop")

    @clerk.on(Order)
    async def check(order: Order, ctx: HandlerContext) -> None:
        if order.item == "nothing":
            raise KeyError("item")
        await ctx.ask("Pay?", to=Role("manager"), timeout=timedelta(hours=1), about=order)
        await ctx.emit(order, to="till")

    @till.on(Order)
    async def pay(order: Order, ctx: HandlerContext) -> Paid:
        return Paid(receipt=await ctx.once("transfer", _transfer))

    @clerk.on(Paid)
    async def close(paid: Paid, ctx: HandlerContext) -> None:
        await ctx.complete(paid)

    return Team("shop", agents=[clerk, till], entry="clerk", input=Order)


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[Callable[[str], Awaitable[Any]]]:
    """Give what reads the API over a log."""
    pool = await open_reader(url, timedelta(seconds=10))
    contract = load_contract()
    services = Services(
        pool=pool,
        state=pool,
        contract=contract,
        key_of=lambda _: None,
        feed=Feed(pool, contract),
        is_embedded=False,
    )
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(AccessGuard(make_app(services), TOKEN)),
        base_url=SERVER,
        headers={"Authorization": f"Bearer {TOKEN}"},
    )

    async def get(path: str) -> Any:
        response = await client.get(f"/api/v1{path}")
        assert response.status_code == 200, response.text
        return response.json()

    async with client:
        yield get
    pool.terminate()


async def _transfer() -> str:
    return "r-1"


async def test_a_result_names_who_approved_it_and_what_it_rests_on(postgres_url: str, tmp_path: Path) -> None:
    people = {"alice": "manager"}
    async with TeamTestClient(shop(), people=people, database_url=postgres_url, folder=tmp_path) as client:
        session = await client.start(Order(item="tea", euros=80))
        await client.answer(session, approved=True, note="go")
        await session.result(timeout=30)
        async with reading(postgres_url) as get:
            detail = await get(f"/sessions/{session.session_id}")
            packet = await get(f"/packets/{detail['result']['packet_id']}")
            evidence = await get(f"/packets/{detail['result']['packet_id']}/evidence")

    assert [one["name"] for one in detail["entered"]] == ["SESSION_OPEN", "WORKING", "CLOSED"]
    assert detail["coordinator"] == "task" and detail["failures"] == [] and detail["doubts"] == []
    assert [(one["agent_id"], one["swarm"]) for one in detail["members"]][1:] == [("clerk", "shop"), ("till", "shop")]
    result = detail["result"]
    assert (result["schema_id"], result["content"], result["sender"]) == ("paid/1", {"receipt": "r-1"}, "clerk")
    assert result["line"] == "paid/1: receipt r-1" == packet["line"]
    (approval,) = detail["approvals"]
    assert [approval[name] for name in ("by", "outcome", "note", "asked")] == ["alice", "approved", "go", "Pay?"]
    assert [one["line"] for one in evidence["packets"]][-2:] == ["order/1: item tea, euros 80", "paid/1: receipt r-1"]
    assert [one["is_direct"] for one in evidence["packets"]][-1] is True
    assert [(one["by"], one["outcome"]) for one in evidence["approvals"]] == [("alice", "approved")]
    assert [(one["agent_id"], one["key"], one["state"]) for one in evidence["effects"]] == [
        ("till", "transfer", "made")
    ]


async def test_a_halted_session_says_why_where_and_what_was_good(postgres_url: str, tmp_path: Path) -> None:
    async with TeamTestClient(shop(), database_url=postgres_url, folder=tmp_path) as client:
        session = await client.start(Order(item="nothing", euros=1))
        with pytest.raises(SessionHalted, match="KeyError"):
            await session.result(timeout=30)
        async with reading(postgres_url) as get:
            detail = await get(f"/sessions/{session.session_id}")

    (failure,) = detail["failures"]
    assert failure["is_halted"] and failure["recipient"] == "clerk" and failure["handled"] == "order/1"
    assert (failure["exception_type"], failure["exception"]) == ("KeyError", "KeyError: 'item'")
    assert failure["sentence"].startswith("clerk could not handle MESSAGE order/1 of ")
    assert failure["line"] == "order/1: item nothing, euros 1"
    assert [one["name"] for one in detail["entered"]] == ["SESSION_OPEN", "WORKING", "HALTED"]
    assert detail["result"] is None
