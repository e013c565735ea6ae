"""Runs over one broker at once: each has a separate client, which ends with it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from tests.orchestrator.conftest import House, house
from tests.orchestrator.judging.test_content import register
from tests.security.clients.test_keyed_starts import KEY, Order, team

from apc_agents.typed import payload_of
from apc_client import Client, KeyConflict, SessionRefused, client
from apc_client import operator as operators
from apc_client.client import KeyedStart
from apc_client.registration import RunClient, registered_client
from apc_client.run_names import RunNames
from apc_client.sending import send_packet
from apc_contracts import MessagePayload
from apc_contracts.identity.registry import CLIENT, Registration
from apc_contracts.vocabulary import Right
from apc_log.registry import registered_agents

__all__ = ["house"]

OPENER = "SELECT document ->> 'opener' FROM apc_log.sessions WHERE session_id = $1"
OF_HAND = "client"
"""An operator whom a person has registered."""


@pytest.fixture
async def ready(house: House) -> AsyncIterator[House]:
    async with house.persister(), house.gate():
        of_hand = dict.fromkeys((OF_HAND, "rival"), ("clients", ("operate",)))
        await house.register(of_hand | {"red-1": ("red", ())})
        await register(house, team().documents["order/1"], "order/1")
        yield house


def client_of(house: House, run: RunClient) -> Client:
    return Client(house.client("operator"), house.pool, run.registration, 1, key=run.key, owner=CLIENT)


async def registered_ids(house: House) -> set[str]:
    return {one.agent_id for one in await registered_agents(house.pool)}


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_a_run_that_ends_revokes_nothing_but_its_own_client(
    monkeypatch: pytest.MonkeyPatch, ready: House, is_guarded: bool
) -> None:
    if not is_guarded:
        monkeypatch.setattr(operators, "new_client_id", lambda: OF_HAND)
    bus = ready.client("operator")
    async with registered_client(bus, ready.pool, 1) as first:
        async with registered_client(bus, ready.pool, 1) as second:
            await client_of(ready, second).start(team(), Order(number=1))
        left = {first.registration.agent_id, OF_HAND}
        if is_guarded:
            session = await client_of(ready, first).start(team(), Order(number=2))
            assert await opener_of(ready, session.session_id) == first.registration.agent_id
            assert left < await registered_ids(ready)
            assert second.registration.agent_id not in await registered_ids(ready)
        else:
            with pytest.raises(SessionRefused, match="UNKNOWN_SENDER"):
                await client_of(ready, first).start(team(), Order(number=2))
            assert left.isdisjoint(await registered_ids(ready))
    assert (OF_HAND in await registered_ids(ready)) is is_guarded


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_the_session_of_anothers_start_is_not_taken_for_ones_own(
    monkeypatch: pytest.MonkeyPatch, ready: House, is_guarded: bool
) -> None:
    """Who knows a key, and has the right to start sessions, opens the session of the key first."""
    if not is_guarded:
        monkeypatch.setattr(client, "is_by", lambda *_: True)
    rival = Registration("rival", "agent.rival", "role", "clients", rights=frozenset({Right.OPERATE}))
    theirs = Client(ready.client("agent.rival"), ready.pool, rival, 1, owner=CLIENT)
    await theirs.start(team(), Order(number=1), key=KEY)
    await the_key_is_in_use(ready, "by rival, which this broker user does not speak for", is_guarded)


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_the_input_of_another_is_not_taken_for_ones_own(
    monkeypatch: pytest.MonkeyPatch, ready: House, is_guarded: bool
) -> None:
    """Who knows a key, and is a member of the session, gives it an input before the client does."""
    if not is_guarded:
        monkeypatch.setattr(client, "is_by", lambda *_: True)
    async with registered_client(ready.client("operator"), ready.pool, 1) as first:
        await open_only(ready, first)
    member = Client(ready.client("agent.red-1"), ready.pool, Registration("red-1", "agent.red-1", "role", "red"), 1)
    await member._send(None, member._first(team(), order().payload, order().attempt(0), RunNames()))
    await the_key_is_in_use(ready, f"by {first.registration.agent_id}, and red-1 sent the input", is_guarded)


async def the_key_is_in_use(house: House, how: str, is_refused: bool) -> None:
    async with registered_client(house.client("operator"), house.pool, 1) as run:
        if is_refused:
            with pytest.raises(KeyConflict, match=how):
                await client_of(house, run).start(team(), Order(number=1), key=KEY)
        else:
            await client_of(house, run).start(team(), Order(number=1), key=KEY)


async def test_runs_share_the_keys_of_their_broker_user(ready: House) -> None:
    bus = ready.client("operator")
    async with registered_client(bus, ready.pool, 1) as first, registered_client(bus, ready.pool, 1) as second:
        sessions = await asyncio.gather(
            *(client_of(ready, run).start(team(), Order(number=1), key=KEY) for run in (first, second))
        )
    async with registered_client(bus, ready.pool, 1) as later:
        sessions.append(await client_of(ready, later).start(team(), Order(number=1), key=KEY))
        with pytest.raises(KeyConflict, match="was used for another input"):
            await client_of(ready, later).start(team(), Order(number=2), key=KEY)
    assert len({one.session_id for one in sessions}) == 1


async def test_the_key_of_a_run_that_ended_before_its_input_is_told(
    monkeypatch: pytest.MonkeyPatch, ready: House
) -> None:
    monkeypatch.setattr(client, "PATIENCE", timedelta(0))
    async with registered_client(ready.client("operator"), ready.pool, 1) as first:
        await open_only(ready, first)
    await the_key_is_in_use(ready, f"by {first.registration.agent_id}, whose run ended before it sent", True)


def order() -> KeyedStart:
    payload = payload_of(Order(number=1))
    assert isinstance(payload, MessagePayload)
    return KeyedStart(CLIENT, "orders", KEY, payload)


async def open_only(house: House, run: RunClient) -> None:
    """Send START alone, as release 0.1.0 did before it sent the input."""
    client = client_of(house, run)
    opening = client._opening(team(), order().attempt(0), RunNames())
    assert (await send_packet(client._bus, house.pool, opening, 1, run.key)).code is None


async def opener_of(house: House, session_id: str) -> str:
    return str(await house.pool.fetchval(OPENER, session_id))
