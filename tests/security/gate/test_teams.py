"""Somebody opens, ends or joins the session of a team who must not."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.orchestrator.conftest import House
from tests.orchestrator.judging.test_content import FINDING, message, register
from tests.orchestrator.judging.test_task_sessions import MEMBERS, begin, decision, finish, open_task, veto, work
from tests.orchestrator.registering.test_speaks import register as speak_oldest
from tests.security.gate.rules import take_away
from tests.support.traffic.packets import SESSION

from apc_contracts import Packet, SignalPayload
from apc_contracts.payloads.by_type import Result
from apc_contracts.vocabulary import ORCHESTRATOR, CommitmentLevel, Signal

Act = Callable[[Any], Awaitable[Packet]]
VERDICT = """
SELECT refusal ->> 'code' AS code FROM apc_log.agent_packets WHERE packet_id = $1
UNION ALL SELECT code FROM apc_log.packet_conflicts WHERE packet_id = $1
"""
TEAM = MEMBERS[:2]


def start(agent: str = "librarian", **spec: Any) -> Packet:
    """START of a team's session, in the name of an agent; its sender decides."""
    return open_task(agent=agent, **({"members": TEAM, "deciders": ()} | spec))


async def by_an_agent_without_the_right(house: House) -> Packet:
    return await sent(house, start("red-1"))


async def in_the_clients_name_through_another_broker_user(house: House) -> Packet:
    return await sent(house, start(), user="agent.red-1")


async def with_the_gate_as_a_member(house: House) -> Packet:
    return await sent(house, start(members=(*TEAM, ORCHESTRATOR)))


async def with_a_member_whom_nobody_has_registered(house: House) -> Packet:
    return await sent(house, start(members=(*TEAM, "ghost")))


async def with_a_member_who_cannot_read_its_packets(house: House) -> Packet:
    await speak_oldest(house, "blue-1")
    return await sent(house, start())


async def with_a_stranger_as_the_decider(house: House) -> Packet:
    return await sent(house, start(deciders=("sentinel",)))


async def with_reviewers_who_all_decide(house: House) -> Packet:
    """The one who ends the work would approve it."""
    return await sent(house, start(deciders=("red-1",), reviewers=("red-1",)))


STARTS: dict[Act, tuple[str, str]] = {
    by_an_agent_without_the_right: ("may_signal", "NOT_AUTHORIZED"),
    in_the_clients_name_through_another_broker_user: ("sender_is_authentic", "SENDER_MISMATCH"),
    with_the_gate_as_a_member: ("spec_leaves_reserved_ids", "NOT_AUTHORIZED"),
    with_a_member_whom_nobody_has_registered: ("members_are_ready", "UNROUTABLE"),
    with_a_member_who_cannot_read_its_packets: ("members_are_ready", "UNROUTABLE"),
    with_a_stranger_as_the_decider: ("places_are_filled", "NOT_AUTHORIZED"),
    with_reviewers_who_all_decide: ("places_are_filled", "NOT_AUTHORIZED"),
}
"""Act -> the rule that refuses it, and its code."""


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("act", STARTS, ids=lambda act: act.__name__)
async def test_a_start_is_refused(monkeypatch: pytest.MonkeyPatch, house: House, act: Act, is_guarded: bool) -> None:
    rule, code = STARTS[act]
    if not is_guarded:
        take_away(monkeypatch, rule)
        take_away(monkeypatch, "is_routable")  # tells the members of the session that it has begun
    async with house.persister(), house.gate():
        await house.register()
        packet = await act(house)
    assert await house.pool.fetchval(VERDICT, packet.packet_id) == (code if is_guarded else None)
    opened = await house.pool.fetchval("SELECT count(*) FROM apc_log.sessions WHERE session_id = $1", SESSION)
    assert opened == (not is_guarded)


async def with_a_result_that_is_not_the_deciders(house: House) -> Packet:
    """The client takes the result of the DONE that closes the session."""
    forged = decision(CommitmentLevel.DONE).model_copy(
        update={"result": Result(schema_id="finding/1", content={"file": "none", "line": 0})}
    )
    return await sent(house, work("blue-1", forged, parent=house.opening, version="apc/1.1"))


async def with_a_message_from_outside(house: House) -> Packet:
    said = message(file="a.py", line=1)
    return await sent(house, work("sentinel", said, ("red-1",), parent=house.opening, version="apc/1.1"))


async def with_content_that_fits_no_schema(house: House) -> Packet:
    said = message(file="a.py", line="DROP TABLE")
    return await sent(house, work("blue-1", said, ("red-1",), parent=house.opening, version="apc/1.1"))


async def with_a_second_start(house: House) -> Packet:
    """It would name other deciders."""
    return await sent(house, start(deciders=("blue-1",)))


async def with_a_stop(house: House) -> Packet:
    stop = SignalPayload(signal=Signal.STOP, reason="enough")
    return await sent(house, work("blue-1", stop, parent=house.opening))


WORKING: dict[Act, tuple[str, str]] = {
    with_a_result_that_is_not_the_deciders: ("may_finish", "NOT_AUTHORIZED"),
    with_a_message_from_outside: ("is_member", "NOT_AUTHORIZED"),
    with_content_that_fits_no_schema: ("content_fits", "CONTENT_INVALID"),
    with_a_second_start: ("opens_once", "NOT_AUTHORIZED"),
    with_a_stop: ("may_signal", "NOT_AUTHORIZED"),
}


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("act", WORKING, ids=lambda act: act.__name__)
async def test_the_work_is_not_disturbed(
    monkeypatch: pytest.MonkeyPatch, house: House, act: Act, is_guarded: bool
) -> None:
    rule, code = WORKING[act]
    if not is_guarded:
        take_away(monkeypatch, rule)
    async with house.persister(), house.gate():
        await begin(house, open_task(members=TEAM))
        await register(house, FINDING)
        packet = await act(house)
    assert await house.pool.fetchval(VERDICT, packet.packet_id) == (code if is_guarded else None)
    # The session's own machine lets the DONE of a stranger close nothing either.
    assert await house.state() == ("HALTED" if act is with_a_stop and not is_guarded else "WORKING")


async def sent(house: House, packet: Packet, user: str | None = None) -> Packet:
    await house.publish(packet, user=user)
    await house.quiet()
    return packet


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize(
    ("agent", "rule"), [("red-1", "may_finish"), ("librarian", "may_finish"), ("red-1", "may_object")]
)
async def test_a_review_is_the_reviewers(
    monkeypatch: pytest.MonkeyPatch, house: House, agent: str, rule: str, is_guarded: bool
) -> None:
    """Who did the work, or opened the session, approves it or sends it back."""
    said = veto() if rule == "may_object" else decision(CommitmentLevel.APPROVED)
    if not is_guarded:
        take_away(monkeypatch, rule)
        take_away(monkeypatch, "may_signal")
    async with house.persister(), house.gate():
        done = await finish(house, await begin(house, open_task(members=TEAM, reviewers=("blue-1",))))
        assert await house.state() == "REVIEW"
        packet = await sent(house, work(agent, said, parent=done))
    assert await house.pool.fetchval(VERDICT, packet.packet_id) == ("NOT_AUTHORIZED" if is_guarded else None)
    assert not is_guarded or await house.state() == "REVIEW"
