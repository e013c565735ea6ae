"""The process of a host, whose agents share one broker user, against agents of other hosts and those who judge it."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.orchestrator.conftest import House
from tests.orchestrator.registering.test_speaks import register
from tests.security.gate.rules import take_away

from apc_contracts import IdeaPayload, Packet
from apc_contracts.identity.registry import Registration
from apc_log.registry import read_registry
from apc_orchestrator.judging import registry

Build = Callable[..., Packet]
MINE: dict[str, Any] = {"broker_user": "host.h0", "host": "h0"}
OTHERS: dict[str, Any] = {"broker_user": "host.h1", "host": "h1"}
VERDICT = "SELECT coalesce(refusal_code, verdict) FROM apc_log.agent_packets WHERE packet_id = $1"
CONFLICT = "SELECT code FROM apc_log.packet_conflicts WHERE packet_id = $1"


async def verdict_of(house: House, sent: Packet) -> str:
    await house.quiet()
    code = await house.pool.fetchval(CONFLICT, sent.packet_id) or await house.pool.fetchval(VERDICT, sent.packet_id)
    return str(code)


async def registered(house: House, agent_id: str) -> Registration:
    return (await read_registry(house.pool))[agent_id]


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_a_host_does_not_speak_as_an_agent_of_another(
    running: House, packet: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    await register(running, "red-1", **MINE)
    await register(running, "blue-1", **OTHERS)
    if not is_guarded:
        take_away(monkeypatch, "sender_is_authentic")
    forged = packet("blue-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(forged, user="host.h0")
    assert await verdict_of(running, forged) == ("SENDER_MISMATCH" if is_guarded else "accepted")
    own = packet("red-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(own, user="host.h0")
    assert await verdict_of(running, own) == "accepted", "as its own agents it speaks"
    await running.handle("sentinel")


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_nobody_is_registered_as_the_judge_of_the_host_it_is_on(
    running: House, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """An agent with the broker user of the host would approve what its neighbours do."""
    if not is_guarded:
        monkeypatch.setattr(registry, "host_objection", lambda *_: None)
    await register(running, "red-1", **MINE)
    await register(running, "sentinel", **MINE, rights=("validate", "veto"))
    assert (await registered(running, "sentinel")).host == (None if is_guarded else "h0")
    await register(running, "blue-1", **MINE, rights=("decide",))
    assert (await registered(running, "blue-1")).host == (None if is_guarded else "h0")


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_no_agent_elsewhere_gets_the_broker_user_of_a_host(
    running: House, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """The process of the host would speak as that agent, whose packets are delivered elsewhere."""
    if not is_guarded:
        monkeypatch.setattr(registry, "host_objection", lambda *_: None)
    await register(running, "red-1", **MINE)
    await register(running, "blue-1", **OTHERS | {"broker_user": "host.h0"})
    user = (await registered(running, "blue-1")).broker_user
    assert user == ("agent.blue-1" if is_guarded else "host.h0")


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_an_agent_of_another_user_does_not_join_a_host(
    running: House, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """It would have packets delivered to an inbox that another process reads."""
    if not is_guarded:
        monkeypatch.setattr(registry, "host_objection", lambda *_: None)
    await register(running, "red-1", **MINE)
    await register(running, "blue-1", host="h0")
    assert (await registered(running, "blue-1")).host == (None if is_guarded else "h0")


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_nobody_speaks_for_an_agent_that_does_not_move(
    running: House, packet: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """An agent that moves has two broker users for a while: no other one than it had before."""
    if not is_guarded:
        monkeypatch.setattr(registry, "move_objection", lambda *_: None)
    await register(running, "blue-1", via=("host.h9",))
    forged = packet("blue-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(forged, user="host.h9")
    assert await verdict_of(running, forged) == ("SENDER_MISMATCH" if is_guarded else "accepted")
    await running.handle("sentinel")
