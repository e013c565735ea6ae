"""Nobody fakes who is here: neither that a host appeared or is gone, nor that another agent gave a sign of life."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from tests.orchestrator.conftest import House
from tests.orchestrator.registering.test_speaks import register
from tests.security.gate.rules import take_away
from tests.support.traffic import make_idea
from tests.support.traffic.packets import make_packet

from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS
from apc_contracts import HeartbeatPayload, Packet, ReceiptKind, Signal
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.registry import Registration
from apc_contracts.identity.registry_change import (
    HostChanged,
    HostPresence,
    encode_registry_change,
    parse_logged_change,
    parse_registry_change,
)
from apc_contracts.vocabulary import PRESENCE_SESSION
from apc_log.queries.agents import list_registered, read_signs
from apc_log.registry import read_hosts
from apc_orchestrator.judging import inputs, memory
from apc_orchestrator.judging.registry import Registry

JUDGED = "SELECT judged_at FROM apc_log.agent_packets WHERE packet_id = $1"
NEVER = datetime(1, 1, 1, tzinfo=UTC)
SAID = "SELECT kind, code FROM apc_log.packet_conflicts ORDER BY seq"
MINE: dict[str, Any] = {"broker_user": "host.h0", "host": "h0"}
OTHERS: dict[str, Any] = {"broker_user": "host.h1", "host": "h1"}


def beat(agent: str) -> Packet:
    return make_packet(agent, HeartbeatPayload(signal=Signal.HEARTBEAT), session_id=PRESENCE_SESSION)


async def heard(house: House, *agents: str) -> set[str]:
    """Wait until these agents are heard of; return all who are, without those who opened the session."""

    async def are_heard() -> bool:
        return set(agents) <= (await read_signs(house.pool)).keys()

    await house.until(are_heard)
    return set(await read_signs(house.pool))


@pytest.mark.parametrize("user", ["host.h1", "agent.blue-1", "operator"])
@pytest.mark.parametrize("is_guarded", [False, True])
async def test_nobody_sends_that_a_host_appeared(
    house: House, monkeypatch: pytest.MonkeyPatch, user: str, is_guarded: bool
) -> None:
    """Not even the operator: the gate alone says it, of what the broker says."""
    if not is_guarded:
        monkeypatch.setattr(inputs, "parse_registry_change", parse_logged_change)
        monkeypatch.setattr(Registry, "apply", lambda *_: True)
    forged = HostChanged(change_id=uuid4(), host="h0", presence=HostPresence.APPEARED)
    body = encode_registry_change(forged)
    message = Message(body, str(uuid4()), type=headers.TYPE_REGISTRY, user_id=user)
    async with house.persister(), house.gate():
        await house.register()
        await register(house, "sentinel", **MINE)
        await house.client(user).publish(Publication(RECEIPTS, "0", message))
        await house.quiet()
        is_taken = not is_guarded and user == "operator"
        assert await read_hosts(house.pool) == ({"h0": True} if is_taken else {})
        (desk,) = (one for one in await list_registered(house.pool) if one.agent_id == "sentinel")
        assert desk.is_host_present is (True if is_taken else None)
        assert len(await house.pool.fetch(SAID)) == (0 if is_taken else 1)
    with pytest.raises(PacketRefused, match="action"):
        parse_registry_change(body)


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_nobody_gives_a_sign_of_life_of_another(
    house: House, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """The host h0 sends a HEARTBEAT as an agent of h1: what is refused is no sign of life."""
    if not is_guarded:
        take_away(monkeypatch, "sender_is_authentic")
    async with house.persister(), house.gate():
        await house.register()
        await register(house, "red-1", **MINE)
        await register(house, "blue-1", **OTHERS)
        await house.publish(beat("blue-1"), user="host.h0")
        await house.publish(beat("red-1"), user="host.h0")
        assert await heard(house, "red-1") == ({"red-1"} if is_guarded else {"red-1", "blue-1"})


@pytest.mark.parametrize(
    ("user", "kind"), [("agent.blue-1", ReceiptKind.DELIVERY_ACK), ("orchestrator", ReceiptKind.DEAD_LETTERED)]
)
@pytest.mark.parametrize("is_guarded", [False, True])
async def test_what_others_say_of_a_delivery_is_no_sign_of_life_of_its_recipient(
    running: House, monkeypatch: pytest.MonkeyPatch, user: str, kind: ReceiptKind, is_guarded: bool
) -> None:
    """Neither a receipt in its name, nor what the gate says: a dead agent would live on its dead letters."""
    monkeypatch.setattr(memory, "REPORT_INTERVAL", timedelta(0))
    sent = make_packet("red-1", make_idea(), ("sentinel",), parent=running.opening)
    await running.publish(sent)
    await running.quiet()
    before = await signs_after(running, "red-1", sent)
    if not is_guarded:
        monkeypatch.setattr(Registration, "speaks_as", lambda *_: True)
    await running.report("sentinel", sent.packet_id, kind, user=user)
    await running.quiet()
    other = make_packet("blue-1", make_idea(), ("red-1",), parent=running.opening)
    await running.publish(other)
    after = await signs_after(running, "blue-1", other)
    assert (after["sentinel"] == before["sentinel"]) is is_guarded
    monkeypatch.undo()
    await running.handle_all()


async def signs_after(house: House, agent: str, sent: Packet) -> dict[str, datetime]:
    """Wait until the report has this packet of the agent; return all signs."""

    async def is_reported() -> bool:
        at = await house.pool.fetchval(JUDGED, sent.packet_id)
        return at is not None and (await read_signs(house.pool)).get(agent, NEVER) >= at

    await house.until(is_reported)
    return await read_signs(house.pool)
