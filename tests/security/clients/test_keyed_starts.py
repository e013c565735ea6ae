"""Somebody knows the key of a client's start, and so the ids of what the client is going to send."""

from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel
from tests.orchestrator.conftest import House, house, idea
from tests.orchestrator.judging.test_content import register
from tests.support.traffic.packets import make_packet

from apc_agents import Agent, HandlerContext, Team, message
from apc_client import Client, SessionRefused
from apc_contracts import IdeaPayload
from apc_contracts.errors import InputUnusable
from apc_contracts.identity.ids import keyed_id
from apc_contracts.identity.registry import Registration
from apc_contracts.vocabulary import Right
from apc_log.queries import questions
from apc_orchestrator.judging import verdicts

__all__ = ["house", "idea"]

KEY = "pr-4711"
FOR_ALL = questions._REFUSALS.replace("AND user_id = $2", "AND $2 <> ''")
"""The statement that takes whatever claimed the packet_id for the answer."""


@message("order/1")
class Order(BaseModel):
    number: int


def team() -> Team:
    agent = Agent("red-1", role="role", swarm="red")

    @agent.on(Order)
    async def take(order: Order, ctx: HandlerContext) -> None: ...

    return Team("orders", agents=[agent], entry="red-1")


def client(house: House) -> Client:
    librarian = Registration("librarian", "agent.librarian", "role", "library", rights=frozenset({Right.OPERATE}))
    return Client(house.client("agent.librarian"), house.pool, librarian, 1)


@pytest.fixture
async def ready(house: House) -> AsyncIterator[House]:
    async with house.persister(), house.gate():
        await house.register()
        await register(house, team().documents["order/1"], "order/1")
        yield house


def named(what: str) -> Any:
    return keyed_id("librarian", "orders", KEY, what)


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("what", ["start", "input"])
async def test_the_ids_of_a_start_cannot_be_occupied(
    monkeypatch: pytest.MonkeyPatch, ready: House, idea: IdeaPayload, what: str, is_guarded: bool
) -> None:
    """A refused packet takes its id: anyone who comes first would refuse the packet of the id's owner."""
    if not is_guarded:
        monkeypatch.setattr(verdicts, "is_key_of_another", lambda *_: False)
    squatting = make_packet("blue-1", idea, packet_id=named(what), session_id=str(named("session")))
    await ready.publish(squatting)
    await ready.quiet()
    if is_guarded:
        session = await client(ready).start(team(), Order(number=1), key=KEY)
        again = await client(ready).start(team(), Order(number=1), key=KEY)
        assert again.session_id == session.session_id == str(named("session"))
    elif what == "start":
        session = await client(ready).start(team(), Order(number=1), key=KEY)
        assert session.session_id != str(named("session")), "driven away to the next attempt"
    else:
        with pytest.raises(SessionRefused, match="DUPLICATE_CONFLICT"):
            await client(ready).start(team(), Order(number=1), key=KEY)


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_the_refusal_of_another_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, ready: House, idea: IdeaPayload, is_guarded: bool
) -> None:
    """What takes no id is recorded with the id that it claimed."""
    if not is_guarded:
        monkeypatch.setattr(questions, "_REFUSALS", FOR_ALL)
    forged = make_packet("librarian", idea, packet_id=named("start"), session_id=str(named("session")))
    await ready.publish(forged, user="agent.blue-1")
    await ready.quiet()
    if is_guarded:
        await client(ready).start(team(), Order(number=1), key=KEY)
    else:
        with pytest.raises(SessionRefused, match="SENDER_MISMATCH"):
            await client(ready).start(team(), Order(number=1), key=KEY)


async def test_a_start_whose_input_was_refused_is_not_taken_for_started(house: House) -> None:
    async with house.persister(), house.gate():
        await house.register()  # the agents, and no schema
        for _ in range(2):
            with pytest.raises(SessionRefused, match="CONTENT_INVALID"):
                await client(house).start(team(), Order(number=1), key=KEY)


async def test_an_encrypted_input_cannot_be_compared_without_the_key(
    monkeypatch: pytest.MonkeyPatch, house: House
) -> None:
    monkeypatch.setenv("APC_SUBJECT_MASTER_KEY", b64encode(b"k" * 32).decode())
    monkeypatch.setenv("APC_ENCRYPT_BODIES", "true")
    async with house.persister(), house.gate():
        await house.register()
        await register(house, team().documents["order/1"], "order/1")
        session = await client(house).start(team(), Order(number=1), key=KEY)
        with monkeypatch.context() as without:
            without.delenv("APC_SUBJECT_MASTER_KEY")
            without.delenv("APC_ENCRYPT_BODIES")
            with pytest.raises(InputUnusable, match="set APC_SUBJECT_MASTER_KEY to compare it, or attach") as refused:
                await client(house).start(team(), Order(number=1), key=KEY)
        assert session.session_id in str(refused.value)
        assert (await client(house).start(team(), Order(number=1), key=KEY)).session_id == session.session_id
