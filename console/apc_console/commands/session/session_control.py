"""`apc session pause|resume|stop`: send an operator's SIGNAL, and print the gate's verdict."""

import asyncpg

from apc_bus.settings import BusSettings, OrchestratorSettings
from apc_client.direct_packet import direct_packet
from apc_client.operator import first_operator
from apc_client.sending import send_packet
from apc_console.connections.broker import broker_user, open_bus
from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable
from apc_contracts.contract.contract import load_contract
from apc_contracts.envelope.packet import Packet, Trace
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.identity.registry import Registration
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.payloads.session_signals import version_of
from apc_contracts.session import SessionDocument
from apc_contracts.vocabulary import ORCHESTRATOR, PROTOCOL_VERSION, RunPhase, Signal
from apc_log.queries import get_session

_WITHOUT_BROKER = (
    "set APC_AMQP_URL: a system without a broker listens to nobody outside its process "
    "(Ctrl-C ends it, and it goes on from the log at the next start)"
)


async def signal_session(session_id: str, signal: Signal, agent_id: str | None, reason: str | None) -> str:
    """Send the SIGNAL as a registered operator and wait for the verdict; return the state that follows.

    Raises:
        InputUnusable: there is no such session, nobody may send it, or the gate refuses.
        ServiceAway: broker, database or gate do not answer.
    """
    settings = BusSettings()
    require_broker(settings)
    async with open_log() as pool:
        return await signal_over(pool, settings, session_id, signal, agent_id, reason)


async def signal_over(
    pool: asyncpg.Pool, settings: BusSettings, session_id: str, signal: Signal, agent_id: str | None, reason: str | None
) -> str:
    """Send the SIGNAL and wait for the verdict, reading the log over this pool. Raises as `signal_session`."""
    row = await get_session(pool, session_id)
    if row is None:
        raise InputUnusable(f"the log holds no session {session_id!r}: `apc session list` shows them")
    operator = await first_operator(pool, broker_user(settings), agent_id)
    packet = signal_of(row.document, signal, operator, reason)
    async with open_bus(settings) as bus:
        answer = await send_packet(bus, pool, packet, settings.shards)
    if answer.reason is not None:
        raise InputUnusable(f"the gate refused {signal}: {answer.reason}")
    # The verdict and the session's state are written in one transaction.
    after = await get_session(pool, session_id)
    assert after is not None
    return "paused in " + after.document.state if after.document.paused_at is not None else after.document.state


def require_broker(settings: BusSettings) -> None:
    """Raise InputUnusable when no broker is configured."""
    if not settings.amqp_nodes:
        raise InputUnusable(_WITHOUT_BROKER)


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
    )
