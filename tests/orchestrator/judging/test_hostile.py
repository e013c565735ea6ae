"""Inputs made to stop a gate: it records them and goes on."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import orjson
import pytest
from tests.orchestrator.conftest import House

from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS
from apc_contracts import IdeaPayload, Packet
from apc_contracts.identity.registry_change import AgentRevoked, encode_registry_change
from apc_contracts.identity.signing import encode_public_key, new_private_key
from apc_contracts.session.emissions import timer
from apc_contracts.wire.receipts import Receipt, ReceiptKind, encode_receipts
from apc_orchestrator.judging.judge import Judge

Build = Callable[..., Packet]


async def send(house: House, user: str, kind: str, body: bytes) -> None:
    await house.client(user).publish(Publication(RECEIPTS, "0", Message(body, str(uuid4()), type=kind, user_id=user)))


async def goes_on(house: House, packet: Build, idea: IdeaPayload) -> None:
    sent = packet("red-1", idea, ("sentinel",), parent=house.opening)
    await house.publish(sent)
    await house.quiet()
    assert str(sent.packet_id) in {delivery.message.message_id for delivery in await house.read("sentinel")}


async def test_a_registry_change_just_below_the_bound(running: House, packet: Build, idea: IdeaPayload) -> None:
    key = encode_public_key(new_private_key())
    change = {"action": "add", "agent_id": "x", "broker_user": "x", "change_id": str(uuid4()), "role": "r"}
    fields = change | {"swarm_id": "s", "public_keys": {}}
    room = (256 * 1024 - len(orjson.dumps(fields)) - 5) // (len(key) + 71)
    keys = {f"{number:064d}": key for number in range(room)}
    body = orjson.dumps(fields | {"public_keys": keys})
    await send(running, "agent.red-1", headers.TYPE_REGISTRY, body + b" " * (256 * 1024 - len(body)))
    await goes_on(running, packet, idea)
    row = await running.pool.fetchrow("SELECT kind FROM apc_log.packet_conflicts")
    assert row["kind"] == "security"


async def test_receipts_for_many_unknown_sessions_are_kept_once(
    running: House, packet: Build, idea: IdeaPayload
) -> None:
    found = [
        Receipt(
            packet_id=uuid4(),
            session_id=f"s{n}",
            recipient="red-1",
            kind=ReceiptKind.OUTCOME,
            attempt=1,
            at=datetime.now(UTC),
        )
        for n in range(300)
    ]
    body = encode_receipts(found)
    await send(running, "agent.red-1", headers.TYPE_RECEIPTS, body)
    await goes_on(running, packet, idea)
    row = await running.pool.fetchrow(
        "SELECT count(*) AS rows, sum(length(raw)) AS bytes FROM apc_log.packet_conflicts"
    )
    assert row["rows"] == 300 and row["bytes"] < 2 * len(body)


async def test_a_revoked_operator_requeues_nothing(running: House, packet: Build, idea: IdeaPayload) -> None:
    sent = packet("red-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(sent)
    await running.quiet()
    await running.read("sentinel")
    await running.report("sentinel", sent.packet_id, "dead_lettered", user="orchestrator")
    change = AgentRevoked(change_id=uuid4(), agent_id="librarian")
    await send(running, "operator", headers.TYPE_REGISTRY, encode_registry_change(change))
    await running.report("sentinel", sent.packet_id, "requeue", user="agent.librarian")
    await running.quiet()
    assert not await running.read("sentinel")
    reason = await running.pool.fetchval("SELECT reason FROM apc_log.packet_conflicts")
    assert reason == "requeue not from sentinel"


@pytest.mark.long
async def test_an_input_that_the_gate_fails_on_is_set_aside(
    running: House, packet: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, poison = Judge.judge, packet("red-1", idea, ("sentinel",), parent=running.opening)

    def fail(self: Judge, batch: Any, received: Any, message: Any) -> None:
        if received.packet.packet_id == poison.packet_id:
            raise RuntimeError("a fault of the gate")
        judge(self, batch, received, message)

    monkeypatch.setattr(Judge, "judge", fail)
    body = await running.publish(poison)

    async def is_set_aside() -> bool:
        return bool(await running.pool.fetchval("SELECT count(*) FROM apc_log.packet_conflicts"))

    await running.until(is_set_aside, 60)
    await goes_on(running, packet, idea)
    row = await running.pool.fetchrow("SELECT kind, raw FROM apc_log.packet_conflicts")
    assert row is not None and tuple(row) == ("unjudgeable", body)


async def test_a_timer_that_the_gate_fails_on_does_not_stop_the_others(
    running: House, packet: Build, start: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_failed = asyncio.Event()

    def fail(session: Any, *given: Any) -> Any:
        if session.session_id == "faulty":
            has_failed.set()
            raise RuntimeError("a fault of the gate")
        return timer(session, *given)

    monkeypatch.setattr("apc_orchestrator.shard.timers.timer", fail)
    faulty = start(state_deadline_ms=50)
    trace = faulty.trace.model_copy(update={"session_id": "faulty"})
    await running.publish(faulty.model_copy(update={"trace": trace}))
    await asyncio.wait_for(has_failed.wait(), 10)
    await goes_on(running, packet, idea)
