"""The AMQP messages that the orchestrator sends (docs/specification/architecture.md section 3)."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from math import ceil

from apc_bus import headers
from apc_bus.port import HeaderValue, Message, Publication
from apc_bus.telemetry import NO_TRACE, TraceHeaders
from apc_bus.topology import (
    INTER_AGENT,
    LOG,
    RECEIPTS,
    RETRY,
    SUBSTRATE,
    host_key,
    is_urgent,
    retry_delay_ms,
    retry_key,
    routing_key,
)
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.identity.registry import Registration
from apc_contracts.packet import Packet
from apc_contracts.session.session import Session
from apc_contracts.vocabulary import SUBSTRATE_RECIPIENT
from apc_contracts.wire.parsing import ReceivedPacket, SealedPacket
from apc_contracts.wire.receipts import Receipt, ReceiptKind, encode_receipts
from apc_log.batch import (
    CONTENT_TYPE,
    EPOCH_OPEN_TYPE,
    LOG_BATCH_TYPE,
    LOG_BATCH_VERSION,
    SIGNS_TYPE,
    EpochOpen,
    LogBatch,
    SignsOfLifeReport,
    encode,
)
from apc_orchestrator.lease import Lease

MILLISECOND = timedelta(milliseconds=1)
SIGNS_IN_A_MESSAGE = 5_000
"""Agents in one report of signs of life; an id has at most 64 characters."""
LONGEST_SAID = 255
"""Characters of what is told of a dead letter: queue and reason, which a sender can have forged."""


def delivery(
    received: ReceivedPacket,
    attempt: int,
    session: Session,
    lease: Lease,
    batch_no: int,
    now: datetime,
    *,
    trace: TraceHeaders = NO_TRACE,
    sender: Registration | None = None,
) -> Message:
    """Return the message of an accepted packet, the same for every recipient, with the session's current state."""
    packet = received.packet
    return Message(
        body=received.body,
        message_id=str(packet.packet_id),
        type=str(packet.packet_type),
        correlation_id=str(packet.trace.root_packet_id),
        user_id=lease.user,
        expiration_ms=time_left_ms(packet, now),
        headers={
            headers.SHARD: lease.shard,
            headers.EPOCH: lease.epoch,
            headers.BATCH: batch_no,
            headers.MARK: lease.committed,
            headers.ATTEMPT: attempt,
            **state_headers(session),
            **_rights_header(sender),
            **trace,
        },
    )


def addressed(message: Message, packet: Packet, recipient: str, registry: Mapping[str, Registration]) -> Publication:
    """Return a delivery to one recipient, an agent's inbox or the substrate."""
    if recipient == SUBSTRATE_RECIPIENT:
        return Publication(SUBSTRATE, "", message)
    return Publication(INTER_AGENT, inbox_key(packet, registry[recipient]), message)


def postponed(
    packet: Packet, recipient: str, attempt: int, not_before: datetime, lease: Lease, now: datetime
) -> Publication:
    """Return a receipt to this orchestrator itself, for a delay queue.

    It comes out when the retry is due, or earlier for another round.
    """
    receipt = Receipt(
        packet_id=packet.packet_id,
        session_id=packet.trace.session_id,
        recipient=recipient,
        kind=ReceiptKind.RETRY_DUE,
        attempt=attempt,
        at=now,
    )
    delay = retry_delay_ms(ceil((not_before - now) / MILLISECOND))
    message_id = f"{packet.packet_id}/{recipient}/{attempt}/{lease.epoch}/{int(now.timestamp() * 1000)}"
    message = Message(
        body=encode_receipts([receipt]), message_id=message_id, type=headers.TYPE_RECEIPTS, user_id=lease.user
    )
    return Publication(RETRY, retry_key(delay, lease.shard), message)


def answer(
    sealed: SealedPacket,
    recipient: Registration,
    lease: Lease,
    session: Session | None,
    trace: TraceHeaders = NO_TRACE,
) -> Publication:
    """Return what answers the sender of a packet: a NACK, or an ACK that was asked for."""
    packet = sealed.packet
    fields: dict[str, HeaderValue] = {
        headers.SHARD: lease.shard,
        headers.EPOCH: lease.epoch,
        headers.ATTEMPT: 1,
        **trace,
    }
    message = Message(
        body=sealed.body,
        message_id=str(packet.packet_id),
        type=packet.packet_type.value,
        correlation_id=str(packet.trace.root_packet_id),
        user_id=lease.user,
        expiration_ms=packet.routing.ttl_ms,
        headers=fields | (state_headers(session) if session is not None else {}),
    )
    return Publication(INTER_AGENT, inbox_key(packet, recipient), message)


def log_batch(batch: LogBatch, lease: Lease, trace: TraceHeaders = NO_TRACE) -> Publication:
    """Return the message of a log batch; its id is the same when the same batch is published again."""
    return Publication(
        LOG,
        str(batch.shard),
        Message(
            body=encode(batch),
            message_id=f"{lease.holder}.{batch.batch_no}",
            type=LOG_BATCH_TYPE,
            user_id=lease.user,
            content_type=CONTENT_TYPE,
            headers=trace,
        ),
    )


def epoch_open(opening: EpochOpen, user: str) -> Publication:
    """Return the message that requests a shard."""
    return Publication(
        LOG,
        str(opening.shard),
        Message(
            body=encode(opening),
            message_id=f"{opening.holder}.open",
            type=EPOCH_OPEN_TYPE,
            user_id=user,
            content_type=CONTENT_TYPE,
        ),
    )


def signs_of_life(signs: Mapping[str, datetime], lease: Lease) -> Iterator[Publication]:
    """Yield reports of signs of life, each small enough for a message."""
    agents = sorted(signs)
    for first in range(0, len(agents), SIGNS_IN_A_MESSAGE):
        part = {agent_id: signs[agent_id] for agent_id in agents[first : first + SIGNS_IN_A_MESSAGE]}
        body = encode(SignsOfLifeReport(LOG_BATCH_VERSION, lease.shard, part))
        message = Message(body, str(new_packet_id()), SIGNS_TYPE, user_id=lease.user, content_type=CONTENT_TYPE)
        yield Publication(LOG, str(lease.shard), message)


def receipts(found: list[Receipt], shard: int, message_id: str, user: str) -> Publication:
    """Return receipts of the orchestrator itself, for the same queue as everyone's."""
    body = encode_receipts(found)
    message = Message(body=body, message_id=message_id, type=headers.TYPE_RECEIPTS, user_id=user)
    return Publication(RECEIPTS, str(shard), message)


def dead_input(letter: Message, queue: str, reason: str, shard: int, user: str) -> list[Publication]:
    """Return a dead-lettered input with its bytes for a shard: to be recorded, not judged.

    Receipts that rode on it, and properties that could not be read, follow as further bodies. A header as long as its
    sender could make it leaves no room for ours in the one frame that all headers share, and a broker refuses that.
    """
    said: dict[str, HeaderValue] = {
        headers.DIED_IN: queue[:LONGEST_SAID],
        headers.DIED_OF: reason[:LONGEST_SAID],
    }
    if letter.user_id is not None:
        said[headers.DIED_USER] = letter.user_id
    riding, properties = letter.headers.get(headers.RECEIPTS), letter.headers.get(headers.UNREADABLE)
    beside = [riding.encode() if isinstance(riding, str) else riding, properties]
    # Only the first has the id that an answer names.
    inputs = [(letter.body, said | {headers.DIED_ID: letter.message_id})]
    inputs += [(body, said) for body in beside if isinstance(body, bytes)]
    return [
        Publication(
            RECEIPTS,
            str(shard),
            Message(body, str(new_packet_id()), type=headers.TYPE_DEAD_INPUT, user_id=user, headers=about),
        )
        for body, about in inputs
    ]


def inbox_key(packet: Packet, recipient: Registration) -> str:
    """Return the routing key on apc.inter_agent of a packet to a recipient: to its queues, or to those of its host."""
    urgent = is_urgent(packet.packet_type, packet.routing.priority)
    if recipient.host is not None:
        return host_key(recipient.host, recipient.agent_id, urgent)
    return routing_key(packet.packet_type, recipient.swarm_id, recipient.agent_id, urgent)


def state_headers(session: Session) -> dict[str, HeaderValue]:
    """Return the headers that the SDK copies into its next packets."""
    state: dict[str, HeaderValue] = {
        headers.STATE_STEP: session.step,
        headers.PHASE: str(session.run_phase),
        headers.ROUND: session.round,
        headers.GENERATION: session.generation,
    }
    if session.work is not None:
        state[headers.CONTRACT] = session.work.contract
    return state


def _rights_header(sender: Registration | None) -> dict[str, HeaderValue]:
    if sender is None or sender.is_revoked or not sender.rights:
        return {}
    return {headers.RIGHTS: ",".join(sorted(sender.rights))}


def time_left_ms(packet: Packet, now: datetime) -> int:
    """Return the milliseconds until the packet expires, at least 1: broker TTL is garbage collection only."""
    return max(1, int((packet.expires - now).total_seconds() * 1000))
