"""Sessions of the contract `task` through gate, log and replay, beside a session of the research contract.

The fixture `house` replays everything at the end of each test and compares the projections.
"""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from tests.orchestrator.conftest import House, make_brief
from tests.support.traffic.packets import SESSION, make_packet

from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS
from apc_contracts import (
    DecisionPayload,
    Packet,
    RetractionPayload,
    SignalPayload,
    new_packet_id,
    parse_packet,
)
from apc_contracts.payloads.by_type import Payload
from apc_contracts.payloads.session_signals import TaskSessionSpec
from apc_contracts.vocabulary import ORCHESTRATOR, CommitmentLevel, RunPhase, Signal
from apc_contracts.wire.receipts import SET_ASIDE, Receipt, ReceiptKind, encode_receipts

TRANSITIONS = "SELECT event, facts FROM apc_log.coordination_events WHERE session_id = $1 ORDER BY seq"
MEMBERS = ("red-1", "blue-1", "sentinel")


def open_task(session_id: str = SESSION, *, agent: str = "librarian", **spec: Any) -> Packet:
    """START of a task that red-1 decides, in the name of an agent."""
    fields: dict[str, Any] = {"contract": "task", "members": MEMBERS, "deciders": ("red-1",)} | spec
    payload = SignalPayload(signal=Signal.START, session=TaskSessionSpec(**fields))
    return make_packet(agent, payload, version="apc/1.1", session_id=session_id)


def work(agent: str, payload: Payload, to: tuple[str, ...] = (ORCHESTRATOR,), **fields: Any) -> Packet:
    return make_packet(agent, payload, to, phase=RunPhase.EXECUTION, **fields)


def decision(level: CommitmentLevel) -> DecisionPayload:
    return DecisionPayload(
        decision_id=f"d-{level}",
        recommendation="merge it",
        priority_distribution={},
        next_actions=(),
        commitment_level=level,
    )


def veto(reason: str = "a test is missing") -> SignalPayload:
    return SignalPayload(signal=Signal.VETO, reason=reason)


async def begin(house: House, opening: Packet) -> Packet:
    """Register the agents, open the session and send the opener's task."""
    await house.open(opening)
    task = work("librarian", make_brief(), ("red-1",), parent=opening)
    await house.publish(task)
    await house.quiet()
    return task


async def finish(house: House, parent: Packet, agent: str = "red-1") -> Packet:
    done = work(agent, decision(CommitmentLevel.DONE), parent=parent)
    await house.publish(done)
    await house.quiet()
    return done


async def events(house: House) -> list[str]:
    return [row["event"] for row in await house.pool.fetch(TRANSITIONS, SESSION)]


async def refusal_of(house: House, packet: Packet) -> tuple[str, str]:
    statement = "SELECT refusal FROM apc_log.agent_packets WHERE packet_id = $1 AND session_id = $2"
    found = json.loads(await house.pool.fetchval(statement, packet.packet_id, packet.trace.session_id))
    return found["code"], found["path"]


async def test_a_task_without_reviewers_ends_with_the_deciders_done(house: House) -> None:
    opening = open_task()
    async with house.persister(), house.gate():
        task = await begin(house, opening)
        assert await house.state() == "WORKING"
        done = await finish(house, task)
        assert await house.state() == "CLOSED"
        closing = (await house.pool.fetch(TRANSITIONS, SESSION))[-1]
        syncs = [parse_packet(one.message.body) for one in await house.read("blue-1")]
    facts = json.loads(closing["facts"])
    assert await events(house) == ["work_started", "work_done"]
    assert (facts["done"], facts["done_by"]) == (str(done.packet_id), "red-1")
    assert {sync.protocol_version for sync in syncs} == {"apc/1.1"}
    last: Any = syncs[-1].payload
    assert (last.session.contract, last.session.deciders, last.session.reviewers) == ("task", ("red-1",), ())


async def test_a_review_sends_the_work_back_and_lets_it_pass(house: House) -> None:
    """The round goes on with the next DONE; two approvals are needed, and the session survives a takeover."""
    opening = open_task(reviewers=("blue-1", "sentinel"), approvals=2)
    async with house.persister():
        async with house.gate():
            task = await begin(house, opening)
            first = await finish(house, task)
            assert await house.state() == "REVIEW"
            await house.publish(work("blue-1", veto(), parent=first))
            await house.quiet()
            assert await house.state() == "WORKING"
            second = await finish(house, task)
            await house.publish(work("blue-1", decision(CommitmentLevel.APPROVED), parent=second))
            await house.quiet()
            assert await house.state() == "REVIEW"
        async with house.gate():
            await house.publish(work("sentinel", decision(CommitmentLevel.APPROVED), parent=second))
            await house.quiet()
    assert await house.state() == "CLOSED"
    assert await events(house) == [
        "work_started",
        "review_requested",
        "review_failed",
        "review_requested",
        "review_passed",
    ]


async def test_a_failed_review_of_the_last_round_halts(house: House) -> None:
    async with house.persister(), house.gate():
        task = await begin(house, open_task(reviewers=("blue-1",), max_rounds=1))
        done = await finish(house, task)
        await house.publish(
            work("red-1", RetractionPayload(target_packet_id=done.packet_id, reason="a mistake"), parent=done)
        )
        await house.quiet()
        row = (await house.pool.fetch(TRANSITIONS, SESSION))[-1]
    assert await house.state() == "HALTED"
    assert json.loads(row["facts"])["reason"] == "REVIEW_FAILED the DONE was retracted by red-1"


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"deciders": ("nobody",)}, "payload.session.deciders[0]"),
        ({"deciders": ("role:ghost",)}, "payload.session.deciders"),
        ({"reviewers": ("red-1",)}, "payload.session.reviewers"),
        ({"reviewers": ("blue-1",), "approvals": 2}, "payload.session.reviewers"),
    ],
)
async def test_places_that_nobody_can_fill(house: House, spec: dict[str, Any], path: str) -> None:
    """A reviewer who decides does not count; roles resolve to members."""
    opening = open_task(**spec)
    async with house.persister(), house.gate():
        await house.open(opening)
    assert await refusal_of(house, opening) == ("NOT_AUTHORIZED", path)


async def test_a_start_that_names_what_is_not_there(house: House) -> None:
    absent, stranger = open_task("s-2", contract="tusk"), open_task("s-3", members=("red-1", "blu-1"))
    other = open_task("s-4", contract="apc-1.0")
    async with house.persister(), house.gate():
        await house.register()
        for one in (absent, stranger, other):
            await house.publish(one)
        await house.quiet()
        told = " ".join(packet.payload.reason for packet in await house.nacks("librarian"))
    assert await refusal_of(house, absent) == ("UNKNOWN_CONTRACT", "payload.session.contract")
    assert await refusal_of(house, stranger) == ("UNROUTABLE", "payload.session.members[1]")
    assert await refusal_of(house, other) == ("UNKNOWN_CONTRACT", "payload.session")
    assert "there is no contract 'tusk' here" in told and "similar: blue-1" in told


async def test_who_may_not_end_the_work(house: House) -> None:
    """Each act is refused at its place, and works for the one who may."""
    opening = open_task(reviewers=("role:role",), deciders=("red-1",))
    refused: dict[UUID, tuple[Packet, str]] = {}

    async def refuse(packet: Packet, path: str) -> None:
        refused[packet.packet_id] = packet, path
        await house.publish(packet)

    level = "payload.commitment_level"
    async with house.persister(), house.gate():
        await house.open(opening)
        await refuse(work("red-1", decision(CommitmentLevel.DONE), parent=opening), level)
        task = work("librarian", make_brief(), ("red-1",), parent=opening)
        await house.publish(task)
        await refuse(work("blue-1", decision(CommitmentLevel.DONE), parent=task), level)
        await refuse(work("blue-1", veto(), parent=task), "payload.signal")
        done = await finish(house, task)
        await refuse(work("red-1", decision(CommitmentLevel.DONE), parent=task), level)
        await refuse(work("blue-1", decision(CommitmentLevel.APPROVED), parent=task), "trace.parent_packet_id")
        await refuse(work("red-1", decision(CommitmentLevel.APPROVED), parent=done), "sender.agent_id")
        await refuse(work("red-1", veto(), parent=done), "sender.agent_id")
        await house.publish(work("blue-1", decision(CommitmentLevel.APPROVED), parent=done))
        await house.quiet()
    for packet, path in refused.values():
        assert await refusal_of(house, packet) == ("NOT_AUTHORIZED", path)
    assert await house.state() == "CLOSED"


@pytest.mark.parametrize(
    ("on_failure", "error", "set_aside", "state"),
    [
        ("halt", "handler_error", False, "HALTED"),
        ("halt", "delivery_limit", False, "HALTED"),
        ("halt", SET_ASIDE, False, "HALTED"),
        ("halt", "signal 11", True, "HALTED"),
        ("halt", "retry_limit 3 reached: the model is away", False, "HALTED"),
        ("halt", "overflow", False, "WORKING"),
        ("continue", "handler_error", False, "WORKING"),
    ],
)
async def test_a_handler_that_failed_permanently(
    house: House, on_failure: str, error: str, set_aside: bool, state: str
) -> None:
    async with house.persister(), house.gate():
        task = await begin(house, open_task(on_failure=on_failure))
        await house.report("red-1", task.packet_id, ReceiptKind.DELIVERY_ACK)
        receipt = Receipt(
            packet_id=task.packet_id,
            session_id=SESSION,
            recipient="red-1",
            kind=ReceiptKind.DEAD_LETTERED,
            attempt=1,
            at=datetime.now(UTC),
            error=error,
            set_aside=set_aside,
        )
        body = encode_receipts([receipt])
        message = Message(body, str(new_packet_id()), type=headers.TYPE_RECEIPTS, user_id="orchestrator")
        await house.client("orchestrator").publish(Publication(RECEIPTS, "0", message))
        await house.quiet()
    assert await house.state() == state
