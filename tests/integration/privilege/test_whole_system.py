"""The whole system under users of least privilege: a packet from end to end, and agents that are revoked meanwhile."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

import aio_pika
import asyncpg
import pytest
from aio_pika.exceptions import AMQPError
from tests.integration.privilege.broker_probes import may_open
from tests.integration.privilege.system import CAST, System, system
from tests.support.traffic import make_idea, make_packet, make_start, until

from apc_contracts import Packet, parse_packet
from apc_contracts.payloads.session_signals import SwarmSpec

__all__ = ["system"]
TIMES_HANDLED = (
    "SELECT (state_value #>> '{state,answered}')::int FROM apc_app.agent_state_store WHERE agent_id = 'gamma'"
)
REFUSED = re.compile(r"user 'agent\.gamma' - invalid credentials")
FIRST_ATTEMPTS, LATER_ATTEMPTS = 30, 6
ATTEMPTS_A_MINUTE = 120
"""Of a worker whose user is gone, once its pauses have grown; a hot loop makes thousands."""


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.timeout(300)
async def test_a_system_of_least_privilege(system: System, postgres_url: str, exercised: Callable[..., None]) -> None:
    """Matrix row 41, and what the rights are there for."""
    database = await asyncpg.connect(postgres_url)
    try:
        packets = await a_packet_goes_round(system, database)
        await copies_are_refused(system, database)
        taken, seconds = await a_hostile_agent_is_cut_off(system)
        exercised(
            "rights taken away while it publishes",
            packets=len(packets),
            injected=taken,
            lost=len(packets) - await count_accepted(database, packets),
            doubled=await database.fetchval(TIMES_HANDLED) - 1,
            recovery_seconds=seconds,
        )
    finally:
        await database.close()


async def count_accepted(database: asyncpg.Connection, packets: Sequence[UUID]) -> int:
    """Return how many of these packets the log has as accepted."""
    query = "SELECT count(*) FROM apc_log.agent_packets WHERE packet_id = ANY($1) AND verdict = 'accepted'"
    return int(await database.fetchval(query, packets))


async def a_packet_goes_round(system: System, database: asyncpg.Connection) -> list[UUID]:
    """START, IDEA to the worker, its answer: through the gate and into the log, each as its own user."""
    swarms = (SwarmSpec(swarm_id="red", agents=("gamma",)), SwarmSpec(swarm_id="blue", agents=("delta",)))
    opening = make_start(cast=CAST, swarms=swarms, members=("librarian",))
    async with system.playing("librarian") as agents:
        await agents.publish(opening)
        idea = make_packet("librarian", make_idea(), ("gamma",), cast=CAST, parent=opening)
        await agents.publish(idea)
        (delivery,) = await agents.receive("librarian")
    answer: Packet = parse_packet(delivery.message.body)
    assert (answer.sender.agent_id, answer.trace.parent_packet_id) == ("gamma", idea.packet_id)
    assert delivery.message.user_id == "orchestrator", "what an agent gets comes from the gate"

    packets = [opening.packet_id, idea.packet_id, answer.packet_id]

    async def is_logged() -> bool:
        return await count_accepted(database, packets) == len(packets)

    await until(is_logged)
    assert await database.fetchval("SELECT count(*) FROM apc_app.agent_state_store") == 1, "kept by apc_agent"
    return packets


async def copies_are_refused(system: System, database: asyncpg.Connection) -> None:
    """What the broker lets through and the gate must not: CC, no user_id, another agent's name. BCC reaches nobody."""
    key = "idea.red.gamma"
    async with system.playing("delta") as agents:
        sent = [make_packet("delta", make_idea(), ("librarian",), cast=CAST, session_id="s-2") for _ in range(4)]
        await agents.publish(sent[0], headers={"CC": [key]})
        await agents.publish(sent[1], headers={"BCC": [key, "1"]})
        await agents.publish(sent[2], user_id=None)
        forged = make_packet("gamma", make_idea(), ("librarian",), cast=CAST, session_id="s-2")
        await agents.publish(forged)
    refused = [sent[0].packet_id, sent[2].packet_id, forged.packet_id]

    async def are_refused() -> bool:
        query = "SELECT count(*) FROM apc_log.packet_conflicts WHERE packet_id = ANY($1) AND code = 'SENDER_MISMATCH'"
        return bool(await database.fetchval(query, refused) == 3)

    await until(are_refused)
    handled = "SELECT count(*) FROM apc_log.packet_events WHERE recipient = 'gamma' AND packet_id = ANY($1)"
    everything = [*refused, sent[1].packet_id]
    assert await database.fetchval(handled, everything) == 0, "nothing of it has come to gamma"


async def a_hostile_agent_is_cut_off(system: System) -> tuple[int, float]:
    """Publishing without a pause while it is revoked: nothing is taken after the command, and it cannot come back.

    Returns how many publishes were taken, and the seconds from the command to the last of them.
    """
    bad = {"APC_MANAGEMENT_URL": system.broker.management_url("guest", "wrong")}
    refused = await asyncio.to_thread(system.apc, "agent", "revoke", "delta", given=system.as_operator | bad)
    assert refused.returncode == 2, "what is left is said"
    assert "Left: broker user agent.delta: " in refused.stderr and "refuses user 'guest'" in refused.stderr
    accepted: list[float] = []
    url = system.agent_url("delta")
    connection = await aio_pika.connect(url)
    ingress = await (await connection.channel()).get_exchange("apc.ingress", ensure=False)

    async def hammer() -> None:
        while True:
            await ingress.publish(aio_pika.Message(b"{", user_id="agent.delta", message_id="m"), "0", mandatory=False)
            accepted.append(time.monotonic())

    hammering = asyncio.create_task(hammer())
    await until(lambda: len(accepted) >= 100)
    began = time.monotonic()
    revoked = await system.run("agent", "revoke", "delta")
    ended = time.monotonic()
    assert revoked.returncode == 0, revoked.stderr
    assert "broker user agent.delta is deleted, its connections are closed" in revoked.stderr
    with pytest.raises((AMQPError, OSError, RuntimeError)):
        await asyncio.wait_for(hammering, 10)
    after = sum(moment > ended for moment in accepted)
    print(f"\n{len(accepted)} publishes; the last {ended - accepted[-1]:.2f} s before the command ended; {after} after")
    assert after == 0
    assert not await may_open(url), "it cannot come back"
    with suppress(AMQPError, OSError, RuntimeError):
        await connection.close()
    again = await system.run("agent", "revoke", "delta")
    assert again.returncode == 0 and "is gone already" in again.stderr
    assert "agent.delta" not in system.passwords
    return len(accepted), accepted[-1] - began


@pytest.mark.broker
@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_a_worker_whose_user_is_deleted_says_so_and_waits(system: System, exercised: Callable[..., None]) -> None:
    """Row 42 of the fault matrix: it tries again with back-off and jitter, without end; it does not spin."""
    node = system.broker.node

    def attempts() -> int:
        return len(REFUSED.findall(node.log()))

    async def have_been(count: int) -> None:
        async def holds() -> bool:
            return attempts() >= count

        await until(holds, 300)

    assert attempts() == 0
    revoked = await system.run("agent", "revoke", "gamma")
    assert revoked.returncode == 0, revoked.stderr
    await have_been(1)
    began = time.monotonic()
    await have_been(FIRST_ATTEMPTS)
    settled = time.monotonic()
    await have_been(FIRST_ATTEMPTS + LATER_ATTEMPTS)
    ended = time.monotonic()
    rate = 60 * LATER_ATTEMPTS / (ended - settled)
    exercised("a worker whose user is deleted", injected=attempts())
    print(f"\n{FIRST_ATTEMPTS} attempts in {settled - began:.1f} s, then {rate:.0f} a minute")
    assert rate <= ATTEMPTS_A_MINUTE
    assert system.processes["worker system_swarm:gamma"].poll() is None, "it goes on once it has a user again"
    said = system.stop()["worker system_swarm:gamma"]
    assert "refuses user 'agent.gamma' or its password" in said
