"""`apc packet impact` and `apc packet retract`: what rests on a packet, what it rests on, and its retraction."""

from dataclasses import asdict
from typing import Any
from uuid import UUID

import asyncpg

from apc_bus.settings import BusSettings, OrchestratorSettings
from apc_client.sending import direct_packet, send_packet
from apc_console.connections.broker import broker_user, open_bus
from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable
from apc_console.output.output import print_rows
from apc_contracts.contract.contract import Contract, load_contract
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.identity.registry import Registration
from apc_contracts.packet import Packet, Trace
from apc_contracts.payloads.by_type import RetractionPayload
from apc_contracts.text import numbered
from apc_contracts.vocabulary import ORCHESTRATOR, RunPhase
from apc_log.queries import PacketImpact, PacketRow, get_packet_grounds, get_packet_impact
from apc_log.registry import registered_agents

LEAST = ("seq", "shard", "run_phase", "round", "generation", "judged_at")
"""The first columns that a narrow terminal leaves out."""


async def print_impact(packet_id: UUID, session_id: str | None, *, as_json: bool) -> None:
    """Print what a retraction of this packet would mark stale. Raises InputUnusable when the log does not hold it."""
    async with open_log() as pool:
        _print(await _impact(pool, packet_id, session_id), as_json=as_json)


async def print_grounds(packet_id: UUID, session_id: str | None, *, as_json: bool) -> None:
    """Print what this packet rests on. Raises InputUnusable when the log does not hold it."""
    nothing = _contract().retraction.rests_on_nothing
    async with open_log() as pool:
        known = await get_packet_grounds(pool, packet_id, session_id=session_id, rests_on_nothing=nothing)
    if known is None:
        raise _unknown(packet_id, session_id)
    title = f"{packet_id} rests on {numbered(len(known.grounds), 'packet')}"
    rows: list[dict[str, Any]] = [asdict(row) for row in known.grounds]
    print_rows(rows, title=title, as_json=as_json, empty=f"{packet_id} rests on nothing", least=LEAST)


async def retract(
    packet_id: UUID,
    session_id: str | None,
    reason: str,
    replacement: UUID | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Send the RETRACTION as the packet's sender, wait for the verdict, and print what is stale now.

    Raises:
        InputUnusable: no such packet, a sender that cannot be spoken for, or the gate refuses.
        ServiceAway: broker, database or gate do not answer.
    """
    async with open_log() as pool:
        impact = await _impact(pool, packet_id, session_id, replacement)
        if not dry_run:
            settings = BusSettings()
            sender = await _sender(pool, impact.packet, broker_user(settings))
            packet = retraction_of(impact.packet, sender, reason, replacement)
            async with open_bus(settings) as bus:
                answer = await send_packet(bus, pool, packet, settings.shards)
            if answer.reason is not None:
                raise InputUnusable(f"the gate refused the RETRACTION: {answer.reason}")
            impact = await _impact(pool, packet_id, impact.packet.session_id, replacement)
        _print(impact, as_json=as_json)


def retraction_of(target: PacketRow, sender: Registration, reason: str, replacement: UUID | None) -> Packet:
    """Return the RETRACTION of a logged packet by its sender, to the orchestrator."""
    trace = Trace(
        session_id=target.session_id,
        run_id=target.run_id,
        task_id=target.task_id,
        root_packet_id=target.root_packet_id,
        parent_packet_id=target.packet_id,
        generation=target.generation,
        step=target.step,
    )
    return direct_packet(
        sender,
        RetractionPayload(target_packet_id=target.packet_id, reason=reason, replacement_packet_id=replacement),
        ORCHESTRATOR,
        trace,
        packet_id=new_packet_id(),
        run_phase=RunPhase(target.run_phase),
        ttl_ms=_contract().session.emission_ttl_ms,
    )


async def _impact(
    pool: asyncpg.Pool, packet_id: UUID, session_id: str | None, replacement: UUID | None = None
) -> PacketImpact:
    nothing = _contract().retraction.rests_on_nothing
    impact = await get_packet_impact(
        pool, packet_id, session_id=session_id, rests_on_nothing=nothing, replacement=replacement
    )
    if impact is None:
        raise _unknown(packet_id, session_id)
    return impact


def _unknown(packet_id: UUID, session_id: str | None) -> InputUnusable:
    where = f" in session {session_id}" if session_id else ""
    return InputUnusable(f"the log holds no packet {packet_id}{where}")


async def _sender(pool: asyncpg.Pool, target: PacketRow, user: str) -> Registration:
    """Return the packet's sender, if the user of APC_AMQP_URL may speak for it; the gate would refuse any other."""
    agent_id = target.sender_agent_id
    if agent_id == ORCHESTRATOR:
        raise InputUnusable(f"the orchestrator sent packet {target.packet_id}: it alone can take it back")
    sender = next((one for one in await registered_agents(pool) if one.agent_id == agent_id), None)
    if sender is None:
        raise InputUnusable(f"{agent_id}, who sent packet {target.packet_id}, is not registered: only it can retract")
    if sender.broker_user != user:
        raise InputUnusable(
            f"{agent_id} sent packet {target.packet_id} and alone can retract it: "
            f"log in to APC_AMQP_URL as its broker user {sender.broker_user}, not as {user}"
        )
    return sender


def _contract() -> Contract:
    """Return the contract that the gate judges by."""
    return load_contract(OrchestratorSettings().contract)


def _print(impact: PacketImpact, *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [asdict(row) for row in impact.resting]
    title = f"{numbered(len(rows), 'packet rests', 'packets rest')} on {impact.packet.packet_id}"
    empty = f"nothing rests on {impact.packet.packet_id}"
    print_rows(rows, title=title, as_json=as_json, empty=empty, least=LEAST)
