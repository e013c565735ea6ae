"""The lifecycle of a packet for one recipient: the names of its machine, its moves, its progress.

It is moved by a verdict (`verdicts`), by receipts (`receipts`), by a new attempt (`rerouting`), and, once it is
applied, by the gate itself (`completion`). Source: docs/specification/contract.md section 8.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from apc_contracts.admission.rules.routing import asks_role, is_ask, with_role
from apc_contracts.contract.contract import Contract
from apc_contracts.identity.registry import CLIENT, Registration
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import MessagePayload
from apc_contracts.session.session import OpenPacket, Progress, Session
from apc_contracts.session.session_effects import Effects, Hop
from apc_contracts.vocabulary import (
    ALL_RECIPIENTS,
    CONTROL_TYPES,
    ORCHESTRATOR,
    SUBSTRATE_RECIPIENT,
    Channel,
    PacketType,
)

Record = dict[str, Any]
"""JSON object of the log."""

LIFECYCLE = "packet_lifecycle"
ADMITTED = ["emit", "schema_pass", "policy_pass", "route_selected"]
HANDED_OVER = ["delivery_ack", "consumer_apply"]
ADVANCE = ("ROUTED", "DEAD_LETTERED", "DELIVERED", "APPLIED", "SUPERSEDED", "VERIFIED", "PROMOTED", "ARCHIVED")
"""How far a delivery has come, in the order of the diagram (docs/specification/contract.md section 8).

The log ranks them alike.
"""


def move(
    opened: OpenPacket,
    recipient: str,
    progress: Progress,
    events: list[str],
    now: datetime,
    effects: Effects,
    contract: Contract,
    *,
    remark: Record | None = None,
) -> None:
    """Take the events of one of the gate's own hops; `remark` is the hop's metadata."""
    before, machine = progress.state, contract.machine(LIFECYCLE)
    for event in events:
        progress.state = machine.step(progress.state, event)
    packet_id = opened.packet.packet_id
    times = [now] * len(events)
    hop = Hop(packet_id, recipient, progress.attempt, before, progress.state, events, times, ORCHESTRATOR, remark)
    effects.hops.append(hop)


def end_delivery(session: Session, opened: OpenPacket, recipient: str, effects: Effects) -> None:
    """Stop counting the delivery as outstanding."""
    progress = opened.recipients[recipient]
    if not progress.is_open:
        return
    progress.is_open = False
    effects.ended.append(recipient)
    effects.ended_senders.append(opened.packet.sender.agent_id)
    left = session.outstanding[recipient] - 1
    if left:
        session.outstanding[recipient] = left
    else:
        del session.outstanding[recipient]


def overall_state(states: Sequence[str]) -> str:
    """Return a routed packet's state: the least advanced recipient's. Rejected and expired ones do not count."""
    advancing = [state for state in states if state in ADVANCE]
    return min(advancing, key=ADVANCE.index) if advancing else min(states, default="ROUTED")


# Who a packet goes to: `_all` expanded from the session's members and the registry.


def handles(registration: Registration, packet_type: PacketType) -> bool:
    """Return whether an agent takes packets of this type; every agent takes the control types."""
    return packet_type in CONTROL_TYPES or packet_type in registration.handles


def _takes(registration: Registration, packet: Packet) -> bool:
    payload = packet.payload
    if isinstance(payload, MessagePayload) and not registration.accepts(payload.schema_id):
        return False
    return handles(registration, packet.packet_type)


def ends_at_gate(packet: Packet) -> bool:
    """Return whether a packet has the form of one that ends at the gate, if its recipient is the client of a run."""
    first, is_control = packet.recipients[0], packet.packet_type in CONTROL_TYPES
    is_direct = packet.channel is Channel.INTER_AGENT and len(packet.recipients) == 1
    return is_control and is_direct and first.agent_id.startswith(f"{CLIENT}-") and not is_ask(packet)


def resolve_recipients(packet: Packet, session: Session, registry: Mapping[str, Registration]) -> tuple[str, ...]:
    """Return the agent_ids a packet is delivered to, in a fixed order; the sender of a BROADCAST is left out.

    A BROADCAST that no member handles goes to the orchestrator alone: it is never UNROUTABLE, and it comes to an end.
    So does what a client of a run is told, because the client reads the log.
    """
    first = packet.recipients[0]
    if asks_role(packet):
        return with_role(packet, registry, session)
    if first.agent_id != ALL_RECIPIENTS:
        named = registry.get(first.agent_id)
        if named is not None and named.is_run_client and ends_at_gate(packet):
            return (ORCHESTRATOR,)
        return tuple(recipient.agent_id for recipient in packet.recipients)
    found = []
    for agent_id in sorted(session.members):
        registration = registry.get(agent_id)
        if registration is None or registration.is_revoked or agent_id in (packet.sender.agent_id, ORCHESTRATOR):
            continue
        if not registration.has_inbox:
            continue
        is_meant = first.swarm_id in (None, registration.swarm_id) and first.role in (None, registration.role)
        if is_meant and _takes(registration, packet):
            found.append(agent_id)
    return tuple(found) or (ORCHESTRATOR,)


# What a repeat does: deliveries of the packet that may still be missing are sent again, and no others.
#
# A delivery that the broker has confirmed is in the inbox until it ends: another one would only fill the inbox. This is
# the gate's memory of one epoch and not part of the log; a new lease holder delivers again.


def confirm_delivery(opened: OpenPacket, recipient: str, attempt: int) -> None:
    """Note that the broker has confirmed this delivery."""
    progress = opened.recipients.get(recipient)
    if progress is not None and progress.attempt == attempt:
        progress.confirmed = attempt


def confirm_all(session: Session) -> None:
    """Note that every delivery of the session that is in flight was confirmed before."""
    for opened in session.open.values():
        for progress in opened.recipients.values():
            progress.confirmed = progress.attempt


def deliveries_to_repeat(opened: OpenPacket, now: datetime, interval: timedelta) -> Iterator[tuple[str, Progress]]:
    """Yield the recipients that a repeat is delivered to: open, not confirmed, and once per interval."""
    for recipient, progress in opened.recipients.items():
        is_missing = progress.is_open and progress.confirmed != progress.attempt and recipient != SUBSTRATE_RECIPIENT
        if not is_missing or (progress.repeated_at is not None and now - progress.repeated_at < interval):
            continue
        progress.repeated_at = now
        yield recipient, progress
