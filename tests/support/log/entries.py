"""Entries of the log by hand, for tests and benchmarks."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

from apc_log.batch import CoordinationEntry, HopEntry, PacketEntry, SessionUpdate


def packet_entry(
    packet_id: UUID | None = None,
    *,
    session_id: str = "session-1",
    run_id: str = "run-1",
    task_id: str = "task-1",
    packet_type: str = "IDEA",
    run_phase: str = "RESEARCH",
    parent: PacketEntry | None = None,
    recipients: Sequence[str] = ("receiver-1",),
    refusal_code: str | None = None,
    text: str = "hello",
    payload: Mapping[str, Any] | None = None,
    size_bytes: int = 0,
) -> PacketEntry:
    """Return a packet as orchestrators log it: accepted, or refused with `refusal_code`; `size_bytes` pads its body.

    `payload` is in place of one with `text` alone.
    """
    packet_id = packet_id or uuid4()
    now = datetime.now(UTC)
    payload = {"text": text} if payload is None else payload
    body = _body(packet_id, packet_type, payload, size_bytes)
    return PacketEntry(
        packet_id=packet_id,
        packet_type=packet_type,
        channel="INTER_AGENT",
        run_phase=run_phase,
        session_id=session_id,
        run_id=run_id,
        task_id=task_id,
        root_packet_id=parent.root_packet_id if parent else packet_id,
        parent_packet_id=parent.packet_id if parent else None,
        cause_packet_id=parent.packet_id if parent else None,
        sender_agent_id="sender-1",
        sender_role="explorer",
        sender_swarm_id="swarm-1",
        recipients=list(recipients),
        generation=1,
        round=0,
        step=3,
        confidence=0.5,
        created_at=now,
        expires_at=now + timedelta(minutes=5),
        verdict="refused" if refusal_code else "accepted",
        refusal=_refusal(refusal_code) if refusal_code else None,
        contract_hash=b"c" * 32,
        facts=b'{"outstanding": 3}',
        body=body,
        packet_hash=sha256(body).digest(),
        payload_hash=sha256(json.dumps(payload).encode()).digest(),
        user_id="agent.sender-1",
        signature=None,
    )


def _body(packet_id: UUID, packet_type: str, payload: Mapping[str, Any], size_bytes: int) -> bytes:
    packet = {"packet_id": str(packet_id), "packet_type": packet_type, "payload": payload}
    return json.dumps({**packet, "metadata": {"pad": "x" * size_bytes}}).encode()


def _refusal(code: str) -> bytes:
    return json.dumps({"code": code, "rule": "rule", "path": "$", "message": "no"}).encode()


def hop(
    packet: PacketEntry,
    events: Sequence[str],
    from_state: str,
    to_state: str,
    recipient: str = "",
    attempt: int = 0,
    metadata: bytes | None = b'{"note": "scripted"}',
) -> HopEntry:
    """One hop of a packet, all its events now."""
    now = datetime.now(UTC)
    return HopEntry(
        session_id=packet.session_id,
        packet_id=packet.packet_id,
        recipient=recipient,
        attempt=attempt,
        from_state=from_state,
        to_state=to_state,
        events=list(events),
        occurred_at=[now] * len(events),
        actor=recipient or "orchestrator",
        metadata=metadata,
    )


def lifecycle(packet: PacketEntry) -> list[HopEntry]:
    """Return the three hops of a packet that goes through: routed, applied and archived, the last without metadata."""
    routed = hop(packet, ["emit", "schema_pass", "policy_pass", "route_selected"], "DRAFT", "ROUTED", attempt=1)
    hops = [routed]
    for recipient in packet.recipients:
        hops += [
            hop(packet, ["delivery_ack", "consumer_apply"], "ROUTED", "APPLIED", recipient, 1),
            hop(
                packet,
                ["verification_pass", "non_promotable_complete"],
                "APPLIED",
                "ARCHIVED",
                recipient,
                1,
                metadata=None,
            ),
        ]
    return hops


def coordination(cause: PacketEntry, step: int, event: str, from_state: str, to_state: str) -> CoordinationEntry:
    """Return a transition of the packet's session."""
    return CoordinationEntry(
        session_id=cause.session_id,
        round=0,
        generation=0,
        step=step,
        cause_packet_id=cause.packet_id,
        event=event,
        from_state=from_state,
        to_state=to_state,
        facts=b"{}",
    )


def session_row(
    session_id: str = "session-1", step: int = 0, state: str = "SESSION_OPEN", document: bytes = b"{}"
) -> SessionUpdate:
    """Return the state of a session of run-1."""
    return SessionUpdate(
        session_id=session_id,
        run_id="run-1",
        state=state,
        is_terminal=state in ("CLOSED", "HALTED"),
        round=0,
        generation=0,
        step=step,
        open_deliveries=1,
        document=document,
    )
