"""What a door needs of the client: named callers, their sessions, cancel, live events, and the foreign message."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.support.waiting import until

from apc_agents import Agent, HandlerContext, Role, Team, message
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_client import Callers, Client, ClientSession, SessionHalted, SessionRefused, StartUnconfirmed, sending
from apc_client.callers import add_caller, caller_registrations, revoke_caller
from apc_client.in_process import OPERATOR, EmbeddedSystem, run_embedded
from apc_contracts.errors import InputUnusable, ServiceAway
from apc_contracts.payloads.by_type import MessagePayload, SignalPayload
from apc_contracts.vocabulary import Signal
from apc_log.heads import LogWatch


@message("door-order/1")
class DoorOrder(BaseModel):
    amount: int


@message("door-receipt/1")
class DoorReceipt(BaseModel):
    paid: int
    by: str


class Address(BaseModel):
    street: str


def team() -> Team:
    cashier = Agent("cashier", role="cashier", swarm="shop")

    @cashier.on(DoorOrder)
    async def pay(order: DoorOrder, ctx: HandlerContext) -> None:
        by = "nobody"
        if order.amount > 100:
            asked = await ctx.ask("Where to?", to=Role("caller"), timeout=timedelta(hours=1), returns=Address)
            by = "" if asked.answer is None else asked.answer.street
        await ctx.complete(DoorReceipt(paid=order.amount, by=by))

    return Team("shop", agents=[cashier], entry="cashier")


@pytest.fixture
async def system(postgres_url: str, tmp_path: Path) -> AsyncIterator[EmbeddedSystem]:
    settings = BusSettings(amqp_url=None, data_dir=tmp_path, contract=None, contracts=None)
    async with run_embedded(settings, DatabaseSettings.model_validate({"database_url": postgres_url})) as system:
        await system.register_schemas(team().documents)
        await system.start_agents(team().agents)
        yield system


@pytest.fixture
async def callers(system: EmbeddedSystem) -> Callers:
    bus = system.connect(OPERATOR)
    for name in ("ida", "bob"):
        await add_caller(bus, system.pool, 1, name)
    return Callers(bus, system.pool, 1)


async def test_a_caller_is_the_opener_under_one_name_and_sees_its_own_sessions(callers: Callers) -> None:
    ida, bob = await callers.client("ida"), await callers.client("bob")
    first = await ida.start(team(), DoorOrder(amount=1), run_id="trip-1")
    await first.result(timeout=30)
    second = await ida.start(team(), DoorOrder(amount=700), run_id="trip-1")
    third = await bob.start(team(), DoorOrder(amount=2))
    await third.result(timeout=30)
    status = await second.status()
    assert status is not None and (status.opener, status.run_id, status.is_terminal) == ("client-ida", "trip-1", False)
    page = await ida.sessions(limit=1)
    assert (page.total, [one.session_id for one in page.sessions]) == (2, [second.session_id])
    rest = await ida.sessions(limit=1, before=page.next)
    assert ([one.session_id for one in rest.sessions], rest.next) == ([first.session_id], None)
    assert (await ida.sessions(states=["CLOSED"])).total == (await ida.sessions(running=True)).total == 1
    assert (await ida.sessions(run_id="other")).total == 0
    assert (await ida.sessions(since=page.sessions[0].updated_at)).total == 1
    assert await bob.shares_run("trip-1") and not await ida.shares_run("trip-1")


async def test_a_caller_is_asked_for_information_and_the_foreign_message_is_kept(callers: Callers) -> None:
    ida = await callers.client("ida")
    foreign: dict[str, Any] = {"a2a": {"messageId": "m-1", "parts": [{"text": "seven hundred, please"}]}}
    session = await ida.start(team(), DoorOrder(amount=700), attached=foreign, metadata={"customer": 7})
    await until(lambda: _is_asked(ida, session))
    (question,) = await ida.questions(session.session_id)
    assert {"ida", "bob"} == set(question.may_answer) and question.answer_schema is not None
    said: dict[str, Any] = {"a2a": {"messageId": "m-2"}}
    await ida.answer(question.packet_id, approved=True, person="ida", answer=Address(street="Elm St"), attached=said)
    assert await session.result(DoorReceipt, timeout=30) == DoorReceipt(paid=700, by="Elm St")
    packets = [event.packet for event in await session.read() if event.packet is not None]
    (work,) = [one for one in packets if isinstance(one.payload, MessagePayload)]
    assert work.metadata == {"customer": 7, **foreign}
    (answer,) = [one for one in packets if _signal(one.payload) is Signal.ANSWER]
    assert answer.metadata == said and answer.sender.agent_id == "ida"
    with pytest.raises(InputUnusable, match="attached has 'customer', which is the name of a tag"):
        await ida.start(team(), DoorOrder(amount=1), attached={"customer": {}}, metadata={"customer": 7})


def _signal(payload: object) -> Signal | None:
    return payload.signal if isinstance(payload, SignalPayload) else None


async def _is_asked(client: Client, session: ClientSession) -> bool:
    return bool(await client.questions(session.session_id))


async def test_cancel_ends_a_session_once_it_is_logged(callers: Callers) -> None:
    ida = await callers.client("ida")
    session = await ida.start(team(), DoorOrder(amount=700))
    await session.cancel("changed my mind")
    assert await session.has_ended()
    with pytest.raises(SessionHalted, match="CANCEL by client-ida"):
        await session.result(timeout=30)
    with pytest.raises(SessionRefused, match="SESSION_TERMINAL") as refused:
        await session.cancel()
    assert refused.value.session_id == session.session_id
    with pytest.raises(InputUnusable, match="the log has no session 'nowhere'"):
        await ida.session("nowhere").cancel()
    with pytest.raises(InputUnusable, match="who only reads the log cancels nothing"):
        await ClientSession(ida._pool, session.session_id).cancel()


async def test_follow_goes_on_behind_a_position_and_many_share_one_reader(callers: Callers) -> None:
    ida = await callers.client("ida")
    session = await ida.start(team(), DoorOrder(amount=700))
    await until(lambda: _is_asked(ida, session))
    before = await session.read()
    followed = [asyncio.create_task(_rest(ida.session(session.session_id), before[-1])) for _ in range(20)]
    (question,) = await ida.questions(session.session_id)
    await ida.answer(question.packet_id, approved=True, person="ida", answer={"street": "Elm St"})
    rests = await asyncio.gather(*followed)
    every = [event.packet_id async for event in session.events()]
    assert all([event.packet_id for event in before] + rest == every for rest in rests)


async def _rest(session: ClientSession, last: object) -> list[object]:
    return [event.packet_id async for event in session.follow(getattr(last, "position"))]  # noqa: B009


async def test_one_reader_serves_all_who_follow_and_ends_with_them(system: EmbeddedSystem) -> None:
    watch = LogWatch(system.pool)
    await asyncio.gather(*(_followed(watch) for _ in range(50)))
    assert watch.followers == 0 and sum(watch.ends.values()) > 0
    await until(lambda: _readers() == 0)
    await asyncio.gather(_followed(watch), _followed(watch))


async def _followed(watch: LogWatch) -> None:
    with watch.followed():
        assert await watch.until_changed({}, patience=30)
        assert _readers() == 1


def _readers() -> int:
    return sum("LogWatch._read" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_a_revoked_caller_has_no_client_and_starts_nothing(system: EmbeddedSystem) -> None:
    bus = system.connect(OPERATOR)
    await add_caller(bus, system.pool, 1, "ida")
    await add_caller(bus, system.pool, 1, "ida")  # repeating it does no harm
    held = await Callers(bus, system.pool, 1).client("ida")
    await revoke_caller(bus, system.pool, 1, "ida")
    with pytest.raises(InputUnusable, match="'ida' is no caller of this door"):
        await Callers(bus, system.pool, 1).client("ida")
    with pytest.raises(SessionRefused, match="client-ida was revoked"):
        await held.start(team(), DoorOrder(amount=1))
    with pytest.raises(InputUnusable, match="there is no caller 'eve'"):
        await revoke_caller(bus, system.pool, 1, "eve")


async def test_a_start_without_a_verdict_in_time_names_its_session(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def come_too_late(*_: object) -> sending.GateAnswer:
        raise ServiceAway("no verdict in time")

    ida = await callers.client("ida")
    with monkeypatch.context() as patched:
        patched.setattr(sending, "answer_to", come_too_late)
        with pytest.raises(StartUnconfirmed) as unconfirmed:
            await ida.start(team(), DoorOrder(amount=1))
    late = ida.session(unconfirmed.value.session_id, team())
    assert await late.result(timeout=30) == DoorReceipt(paid=1, by="nobody")


async def test_names_that_no_caller_can_have(system: EmbeddedSystem) -> None:
    bus = system.connect(OPERATOR)
    with pytest.raises(InputUnusable, match="cashier is registered as cashier, and no caller"):
        await add_caller(bus, system.pool, 1, "cashier")
    with pytest.raises(InputUnusable, match="choose another name"):
        await add_caller(bus, system.pool, 1, "a b")
    with pytest.raises(InputUnusable, match="is the id of a run's client"):
        caller_registrations("5f0c2a91b3de", "door")


async def test_a_caller_comes_through_its_own_door_alone(system: EmbeddedSystem) -> None:
    bus = system.connect(OPERATOR)
    await add_caller(bus, system.pool, 1, "ida", "other-door")
    with pytest.raises(InputUnusable, match="'ida' is no caller of this door"):
        await Callers(bus, system.pool, 1).client("ida")
