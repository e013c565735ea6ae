"""A desk of two kinds of orders behind a door of A2A, in one process, and clients of two callers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel
from tests.support.waiting import until

from apc_a2a import A2AArtifact, A2AMessage, A2AReply
from apc_a2a.access import read_callers, with_token, write_callers
from apc_a2a.server import OpenDoor, Place, Served, listening, placed
from apc_agents import SUBSTRATE, Agent, HandlerContext, Role, Team, message
from apc_bus.settings import A2ASettings, BusSettings, DatabaseSettings
from apc_client import Callers
from apc_client.callers import add_caller
from apc_client.in_process import OPERATOR, EmbeddedSystem, run_embedded


@message("a2a-order/1")
class Order(BaseModel):
    text: str
    amount: int = 1


@message("a2a-receipt/1")
class OrderReceipt(BaseModel):
    text: str
    paid: int


class Address(BaseModel):
    street: str


def desk() -> Team:
    """Small orders are paid; larger ones need the caller's yes, and gifts an address."""
    clerk = Agent("clerk", role="clerk", swarm="shop")

    @clerk.on(Order)
    async def pay(order: Order, ctx: HandlerContext) -> None:
        text = f"paid for {order.text}"
        if order.text == "broken":
            raise ValueError("it is broken")
        if order.text == "gift":
            asked = await ctx.ask("Where to?", to=Role("caller"), timeout=timedelta(hours=1), returns=Address)
            text = "nowhere" if asked.answer is None else f"sent to {asked.answer.street}"
        elif order.amount > 100:
            approval = await ctx.ask(f"Pay {order.amount}?", to=Role("caller"), timeout=timedelta(hours=1))
            if not approval.approved:
                text = f"not paid: {approval.note}"
        await ctx.complete(OrderReceipt(text=text, paid=order.amount))

    return Team("desk", agents=[clerk], entry="clerk", input=Order)


def teller() -> Team:
    """Takes messages as they are."""
    teller = Agent("teller", role="teller", swarm="shop")

    @teller.on(A2AMessage)
    async def tell(said: A2AMessage, ctx: HandlerContext) -> None:
        text = str(said.parts[0].get("text", ""))
        if text == "no":
            await ctx.complete(A2AReply(parts=[{"text": "we do not"}], rejected=True))
            return
        if text == "hello":
            await ctx.complete(A2AReply(parts=[{"text": "hello too"}], as_message=True))
            return
        await ctx.emit(A2AArtifact(artifact_id="story", parts=[{"text": "Once "}], last=False), to=SUBSTRATE)
        await ctx.emit(A2AArtifact(artifact_id="story", parts=[{"text": "upon a time"}], append=True), to=SUBSTRATE)
        await ctx.complete(A2AReply(parts=[dict(said.parts[0])]))

    return Team("teller", agents=[teller], entry="teller", input=A2AMessage, messages=[A2AArtifact, A2AReply])


class RpcError(Exception):
    """An error of JSON-RPC."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code = error["code"]


@dataclass
class A2AClient:
    """A caller's HTTP client, with JSON-RPC."""

    http: httpx.AsyncClient

    async def call(self, method: str, **params: Any) -> Any:
        """Return the result. Raises RpcError."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await self.http.post("/a2a/jsonrpc", json=body)
        assert answer.status_code == 200, answer.text
        said = answer.json()
        if "error" in said:
            raise RpcError(said["error"])
        return said["result"]

    async def send(self, *parts: dict[str, Any], wait: bool = True, **fields: Any) -> Any:
        """Send a message; return the task or message."""
        found = await self.call(
            "SendMessage", message=made(*parts, **fields), configuration={"returnImmediately": not wait}
        )
        return found.get("task") or found["message"]

    async def task(self, task_id: str) -> Any:
        """Return a task."""
        return await self.call("GetTask", id=task_id)

    async def comes_to(self, task_id: str, state: str) -> Any:
        """Wait until a task has a state; return it."""
        seen: list[Any] = []

        async def has_come() -> bool:
            seen[:] = [await self.task(task_id)]
            return bool(state_of(seen[0]) == state)

        await until(has_come)
        return seen[0]


def made(*parts: dict[str, Any], message_id: str = "m-1", **fields: Any) -> dict[str, Any]:
    """Return a message of a user."""
    return {"messageId": message_id, "role": "ROLE_USER", "parts": list(parts), **fields}


def state_of(task: Any) -> str:
    """Return the state of a task, without its prefix."""
    return str(task["status"]["state"]).removeprefix("TASK_STATE_")


@dataclass
class Running:
    """A door that answers, and what it stands on."""

    system: EmbeddedSystem
    door: OpenDoor
    served: Served
    place: Place
    clients: dict[str, A2AClient]

    @property
    def ida(self) -> A2AClient:
        """The client of a caller."""
        return self.clients["ida"]

    @property
    def bob(self) -> A2AClient:
        """The client of another caller."""
        return self.clients["bob"]


@asynccontextmanager
async def door_at(
    served: Served, place: Place, tokens: dict[str, str]
) -> AsyncIterator[tuple[OpenDoor, dict[str, A2AClient]]]:
    """A door at its place, and a client for each token."""
    async with AsyncExitStack() as stack:
        door = await stack.enter_async_context(listening(served, place))
        stop = asyncio.Event()
        serving = asyncio.create_task(door.serve(stop))
        stack.push_async_callback(asyncio.wait, [serving])
        stack.callback(stop.set)
        clients = {
            name: A2AClient(
                await stack.enter_async_context(
                    httpx.AsyncClient(
                        base_url=door.url,
                        headers={"Authorization": f"Bearer {token}", "A2A-Version": "1.0"},
                        timeout=30,
                    )
                )
            )
            for name, token in {**tokens, "nobody": "no-token"}.items()
        }
        yield door, clients


Behind = Callable[..., Any]


@asynccontextmanager
async def system_of(url: str, folder: Path, *teams: Team) -> AsyncIterator[EmbeddedSystem]:
    """Everything but the door, with the callers ida and bob."""
    settings = BusSettings(amqp_url=None, data_dir=folder, contract=None, contracts=None)
    async with run_embedded(settings, DatabaseSettings.model_validate({"database_url": url})) as system:
        for team in teams:
            await system.register_schemas(team.documents)
            await system.start_agents(team.agents)
        bus = system.connect(OPERATOR)
        for name in ("ida", "bob"):
            await add_caller(bus, system.pool, 1, name)
        yield system


def make_tokens(file: Path) -> dict[str, str]:
    """Write tokens for ida and bob; return them."""
    tokens, document = {}, read_callers(file)
    for name in ("ida", "bob"):
        document, tokens[name] = with_token(document, name, "test")
    write_callers(file, document)
    return tokens


def served_of(system: EmbeddedSystem, team: Team) -> Served:
    """What a door over a system is made of."""
    return Served(team, Callers(system.connect(OPERATOR), system.pool, 1), system.pool, system.artifacts)


def place_of(folder: Path, **settings: Any) -> AbstractContextManager[Place]:
    """A place on a free port."""
    return placed(A2ASettings(**settings), folder, "127.0.0.1:0")


@pytest.fixture
def behind(postgres_url: str, tmp_path: Path) -> Behind:
    """Makes a running door of a team: `async with behind(team, a2a_most_tasks=2) as running:`."""

    @asynccontextmanager
    async def make(team: Team, **settings: Any) -> AsyncIterator[Running]:
        with place_of(tmp_path, **settings) as place:
            async with system_of(postgres_url, tmp_path, team) as system:
                served = served_of(system, team)
                async with door_at(served, place, make_tokens(place.callers_file)) as (door, clients):
                    yield Running(system, door, served, place, clients)

    return make
