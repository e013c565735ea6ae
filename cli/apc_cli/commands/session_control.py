"""`apc session pause|resume|stop`: send an operator's SIGNAL, and print the gate's verdict."""

from collections.abc import Mapping

import asyncpg
from pydantic import JsonValue

from apc_bus.settings import BusSettings, OrchestratorSettings
from apc_cli.connections import Door, find_door, open_log
from apc_cli.errors import InputUnusable
from apc_client.operator import acting_operator
from apc_client.sending import direct_packet, send_packet
from apc_contracts.contract.contract import load_contract
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.identity.registry import Registration
from apc_contracts.packet import Packet, Trace
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.payloads.session_signals import version_of
from apc_contracts.session.document import SessionDocument
from apc_contracts.vocabulary import ORCHESTRATOR, PROTOCOL_VERSION, RunPhase, Signal
from apc_log.queries import get_session


async def signal_session(session_id: str, signal: Signal, agent_id: str | None, reason: str | None) -> str:
    """Send the SIGNAL as a registered operator and wait for the verdict; return the state that follows.

    Raises:
        InputUnusable: there is no such session, nobody may send it, or the gate refuses.
        ServiceAway: broker, database or orchestrator do not answer.
    """
    door = find_door(BusSettings())
    async with open_log() as pool:
        state, _ = await signal_over(pool, door, session_id, signal, agent_id, reason)
        return state


async def signal_over(
    pool: asyncpg.Pool, door: Door, session_id: str, signal: Signal, named: str | None, reason: str | None
) -> tuple[str, str]:
    """Send the SIGNAL and wait for the verdict, reading the log over this pool; return the state, and who has acted.

    Raises as `signal_session`.
    """
    row = await get_session(pool, session_id)
    if row is None:
        raise InputUnusable(f"the log holds no session {session_id!r}: `apc session list` shows them")
    operator = await acting_operator(pool, door.user, named)
    packet = signal_of(row.document, signal, operator, reason)
    async with door.open() as bus:
        answer = await send_packet(bus, pool, packet, door.shards)
    if answer.reason is not None:
        raise InputUnusable(f"the gate refused {signal}: {answer.reason}")
    # The verdict and the session's state are written in one transaction.
    after = await get_session(pool, session_id)
    assert after is not None
    state = after.document.state
    return f"paused in {state}" if after.document.paused_at is not None else state, operator.agent_id


def signal_of(document: SessionDocument, signal: Signal, sender: Registration, reason: str | None) -> Packet:
    """Return a SIGNAL of an operator to a session that runs."""
    return operator_packet(
        sender,
        SignalPayload(signal=signal, reason=reason),
        session_id=document.session_id,
        run_id=document.run_id,
        task_id=document.task_id,
        run_phase=document.run_phase,
        step=document.step,
    )


def operator_packet(
    sender: Registration,
    payload: SignalPayload,
    *,
    session_id: str,
    run_id: str,
    task_id: str,
    run_phase: RunPhase,
    step: int = 0,
    metadata: Mapping[str, JsonValue] | None = None,
) -> Packet:
    """Return a SIGNAL of an operator to the orchestrator: a root packet, because it answers no packet."""
    packet_id = new_packet_id()
    trace = Trace(
        session_id=session_id,
        run_id=run_id,
        task_id=task_id,
        root_packet_id=packet_id,
        # The session may begin a new round meanwhile: generation 0 was opened in each.
        generation=0,
        step=step,
    )
    return direct_packet(
        sender,
        payload,
        ORCHESTRATOR,
        trace,
        packet_id=packet_id,
        run_phase=run_phase,
        ttl_ms=load_contract(OrchestratorSettings().contract).session.emission_ttl_ms,
        protocol_version=PROTOCOL_VERSION if payload.session is None else version_of(payload.session),
        metadata=metadata,
    )
