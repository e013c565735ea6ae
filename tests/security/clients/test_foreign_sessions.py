"""A client that names the session of another: it starts, tells, answers, stops and reads nothing there."""

from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

import asyncpg
import pytest
from tests.orchestrator.conftest import House, house
from tests.orchestrator.judging.test_content import register
from tests.orchestrator.waiting.conftest import office
from tests.orchestrator.waiting.office import Office, asking
from tests.security.clients.test_keyed_starts import Order, team
from tests.security.database.conftest import Logins, logins
from tests.security.gate.rules import take_away
from tests.support.traffic.packets import SESSION

from apc_agents.emission import Draft
from apc_agents.typed import payload_of
from apc_cli.commands.session_control import signal_of
from apc_client import Client, ClientSession, SessionRefused
from apc_client.client import Attempt
from apc_client.registration import addition
from apc_client.run_names import RunNames
from apc_client.sending import send_packet
from apc_contracts.errors import InputUnusable
from apc_contracts.identity.registry import Registration
from apc_contracts.vocabulary import Right, RunPhase, Signal
from apc_contracts.wire.parsing import parse_packet
from apc_log.queries import get_session, list_agent_packets

__all__ = ["house", "logins", "office"]

RIVAL = Registration("rival", "agent.rival", "role", "library", rights=frozenset({Right.OPERATE}))
"""It may start sessions."""
OUTSIDER = Registration("sentinel", "agent.sentinel", "role", "watch")
ACCEPTED = "SELECT packet_id FROM apc_log.agent_packets WHERE session_id = $1 AND verdict = 'accepted'"


def client_of(house: House, agent: Registration, pool: asyncpg.Pool | None = None) -> Client:
    return Client(house.client(agent.broker_user), pool or house.pool, agent, 1)


Act = Callable[[House], Awaitable[object]]


async def starts_it_again(house: House) -> None:
    """The START would name other deciders and members."""
    client, attempt = client_of(house, RIVAL), Attempt(SESSION, uuid4(), uuid4())
    answer = await send_packet(client._bus, house.pool, client._opening(team(), attempt, RunNames()), 1)
    if answer.reason is not None:
        raise InputUnusable(answer.reason)


async def gives_it_an_input(house: House) -> None:
    rows = await list_agent_packets(house.pool, session_id=SESSION, packet_type="SIGNAL", limit=1)
    client, opening = client_of(house, OUTSIDER), parse_packet(rows[0].body)
    draft = Draft(payload_of(Order(number=1)), to="red-1", run_phase=RunPhase.EXECUTION, packet_id=uuid4())
    await client._send(None, client._builder.build(draft, opening, 1).packet)


async def answers_for_a_person(house: House) -> None:
    client = client_of(house, OUTSIDER)
    (question,) = await client.questions(SESSION)
    await client.answer(question.packet_id, approved=True, person="alice")


async def stops_it(house: House) -> None:
    row = await get_session(house.pool, SESSION)
    assert row is not None
    stop, bus = signal_of(row.document, Signal.STOP, OUTSIDER, "enough"), house.client(OUTSIDER.broker_user)
    answer = await send_packet(bus, house.pool, stop, 1)
    if answer.reason is not None:
        raise InputUnusable(answer.reason)


ACTS: dict[Act, tuple[str, str]] = {
    starts_it_again: ("opens_once", "NOT_AUTHORIZED"),
    gives_it_an_input: ("is_member", "NOT_AUTHORIZED"),
    answers_for_a_person: ("sender_is_authentic", "SENDER_MISMATCH"),
    stops_it: ("may_signal", "NOT_AUTHORIZED"),
}
"""Act -> the rule that refuses it, and its code."""


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
async def test_a_client_changes_nothing_in_a_foreign_session(
    monkeypatch: pytest.MonkeyPatch, office: Office, act: Act, is_guarded: bool
) -> None:
    rule, code = ACTS[act]
    if not is_guarded:
        take_away(monkeypatch, rule)
        take_away(monkeypatch, "is_member")  # no session has the outsider
    house = office.house
    async with house.gate():
        await office.begin(members=("red-1", "blue-1"))
        await office.change(addition(RIVAL))
        await register(house, team().documents["order/1"], "order/1")
        async with office.worker(asking()):
            await office.question()
        await house.quiet()
        before = await accepted(house)
        if is_guarded:
            with pytest.raises((SessionRefused, InputUnusable), match=code):
                await act(house)
        else:
            await act(house)
        await house.quiet()
        assert (await accepted(house) == before) is is_guarded


async def accepted(house: House) -> set[UUID]:
    return {row["packet_id"] for row in await house.pool.fetch(ACCEPTED, SESSION)}


async def reads_its_result(client: Client) -> None:
    await client.session(SESSION).outcome(timeout=10)


async def reads_its_packets(client: Client) -> None:
    session: ClientSession = client.session(SESSION)
    assert [one.packet_id async for one in session.events()]


async def reads_its_questions(client: Client) -> None:
    await client.questions(SESSION)


async def takes_it_for_its_own(client: Client) -> None:
    """A start under a key looks for the session of the key first."""
    await client.start(team(), Order(number=1), key="pr-4711")


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("read", [reads_its_result, reads_its_packets, reads_its_questions, takes_it_for_its_own])
async def test_a_client_with_an_agents_login_reads_no_session(
    office: Office, logins: Logins, read: Callable[[Client], Awaitable[None]], is_guarded: bool
) -> None:
    """Sessions are told by the log, which a login of an agent does not read."""
    house, pool = office.house, await logins.pool("m")
    async with house.gate():
        await office.begin()
        await office.change(addition(RIVAL))
        await register(house, team().documents["order/1"], "order/1")
        async with office.worker(asking()):
            (question,) = [await office.question()]
            await office.answer("alice", question)
            await office.decided()
        client = client_of(house, RIVAL, pool)
        if is_guarded:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await read(client)
            return
        login = f"agent.{logins.agent('m')}"
        await logins.admin.execute(f'GRANT apc_reader TO "{login}"')
        await read(client)
        await logins.admin.execute(f'REVOKE apc_reader FROM "{login}"')  # else nobody may delete the login
