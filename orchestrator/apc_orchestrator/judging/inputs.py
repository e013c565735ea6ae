"""The content of a gate queue: packets, receipts and registry changes, told apart by AMQP type and exchange."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TypeGuard

from apc_bus import headers
from apc_bus.port import Delivery, HeaderValue, Message
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.registry import Kind, Registration
from apc_contracts.identity.registry_change import (
    AgentAdded,
    AgentRevoked,
    ContractAdded,
    SchemaAdded,
    parse_registry_change,
)
from apc_contracts.limits import DocumentLimits
from apc_contracts.vocabulary import ORCHESTRATOR, Right
from apc_contracts.wire.parsing import ReceivedPacket, read_packet
from apc_contracts.wire.receipts import OPERATOR_KINDS, Receipt, ReceiptKind, is_of_operator, parse_receipts
from apc_orchestrator.judging.registry import Registry

ReceiptGroup = tuple[Receipt, ...]
"""Receipts of one (session, packet, recipient, attempt) by one actor, in order."""


@dataclass(frozen=True, slots=True)
class DeadInput:
    """An input that the broker had confirmed and that was dead-lettered before a gate could judge it."""

    queue: str
    reason: str
    user_id: str | None
    message_id: str


Change = AgentAdded | AgentRevoked | SchemaAdded | ContractAdded
Input = ReceivedPacket | tuple[ReceiptGroup, ...] | Change | DeadInput | PacketRefused

PROBE_BODY = b"[]"
TYPE_RECEIPTS = headers.TYPE_RECEIPTS
OTHER_TYPES = frozenset({headers.TYPE_RECEIPTS, headers.TYPE_REGISTRY, headers.TYPE_DEAD_INPUT})
"""AMQP types of messages that hold no packet. Receipts ride on packets alone."""

ORCHESTRATOR_KINDS = frozenset(
    {
        ReceiptKind.RETRY_DUE,
        ReceiptKind.DEAD_LETTERED,
        ReceiptKind.VERIFICATION_PASS,
        ReceiptKind.VERIFICATION_FAIL,
    }
)


def read_input(delivery: Delivery, limits: DocumentLimits) -> Input:
    """Return the input in a delivery; an unreadable body is returned as its refusal, which is an input too."""
    message = delivery.message
    if headers.UNREADABLE in message.headers:
        message_says = "the AMQP properties cannot be read: send names and texts in UTF-8"
        return PacketRefused("MALFORMED", "$", message_says)
    try:
        if message.type == headers.TYPE_RECEIPTS:
            return tuple(_grouped(parse_receipts(message.body)))
        if message.type == headers.TYPE_REGISTRY:
            return parse_registry_change(message.body)
        if message.type == headers.TYPE_DEAD_INPUT:
            return _dead_input(message)
        return read_packet(message.body, limits)
    except PacketRefused as refused:
        return refused


def read_inputs(delivery: Delivery, limits: DocumentLimits) -> tuple[Input, ...]:
    """Return the inputs in a delivery in their order: the receipts that ride on a packet, then the packet.

    Receipts that cannot be read refuse the whole message, so that its sender hears of them.
    """
    found, message = read_input(delivery, limits), delivery.message
    riding = message.headers.get(headers.RECEIPTS)
    if riding is None or message.type in OTHER_TYPES:
        return (found,)
    try:
        return (_riding_receipts(riding), found)
    except PacketRefused as refused:
        return (refused,)


def session_ids(found: Input) -> Iterator[str]:
    """Yield the sessions that must be in memory before this input is judged."""
    if isinstance(found, ReceivedPacket):
        yield found.packet.trace.session_id
    elif isinstance(found, tuple):
        yield from {group[0].session_id for group in found}


def is_authentic(receipt: Receipt, user_id: str | None, registry: Registry, own_user: str) -> bool:
    """Return whether a receipt's broker user may send it (docs/specification/architecture.md section 2)."""
    if receipt.set_aside and receipt.kind is not ReceiptKind.DEAD_LETTERED:
        return False
    if receipt.kind in ORCHESTRATOR_KINDS or receipt.kind is ReceiptKind.EXPIRED:
        if user_id == own_user:
            return True
        if receipt.kind in ORCHESTRATOR_KINDS and not receipt.set_aside:
            return False
    if is_of_operator(receipt):
        return _may_operate(receipt.by, user_id, registry)
    if receipt.by is not None:
        return False
    recipient = registry.by_id.get(receipt.recipient)
    return recipient is not None and recipient.speaks_as(user_id)


def why_not_authentic(receipt: Receipt, user_id: str | None) -> str:
    """Return how the log says that a receipt does not count."""
    if receipt.by is not None and (receipt.kind in OPERATOR_KINDS or receipt.kind is ReceiptKind.EFFECT):
        return f"{receipt.kind} by {receipt.by}, who may not operate as the broker user {user_id}"
    return f"{receipt.kind} not from {receipt.recipient}"


def _may_operate(by: str | None, user_id: str | None, registry: Registry) -> bool:
    """Return whether a broker user may operate: in the name of `by`, or as one of its agents."""
    if by is not None:
        named = None if by == ORCHESTRATOR else registry.by_id.get(by)
        return _is_operator(named) and named.speaks_as(user_id)
    agents = (one for one in registry.by_id.values() if one.kind is Kind.AGENT and one.broker_user == user_id)
    return any(map(_is_operator, agents))


def _is_operator(one: Registration | None) -> TypeGuard[Registration]:
    return one is not None and not one.is_revoked and one.has(Right.OPERATE)


def is_receipts(message: Message) -> bool:
    """Return whether a message holds receipts rather than a packet."""
    return message.type == headers.TYPE_RECEIPTS


def is_probe(message: Message) -> bool:
    """Return whether a message is an empty array of receipts, by which an orchestrator learns that it is active."""
    return message.type == headers.TYPE_RECEIPTS and message.body == PROBE_BODY


def standby_of(probe: Message, user: str) -> str | None:
    """Return the name of the orchestrator that stands by, if one of this broker user says it: anybody may probe."""
    name = probe.headers.get(headers.STANDBY)
    return name if isinstance(name, str) and probe.user_id == user else None


def _dead_input(message: Message) -> DeadInput:
    values = message.headers
    user = values.get(headers.DIED_USER)
    return DeadInput(
        str(values.get(headers.DIED_IN, "")),
        str(values.get(headers.DIED_OF, "")),
        user if isinstance(user, str) else None,
        str(values.get(headers.DIED_ID, "")),
    )


def _riding_receipts(value: HeaderValue) -> tuple[ReceiptGroup, ...]:
    if not isinstance(value, str):
        raise PacketRefused("MALFORMED", "$", f"header {headers.RECEIPTS} is no text: send the JSON array as a string")
    try:
        return tuple(_grouped(parse_receipts(value.encode())))
    except PacketRefused as refused:
        message = f"header {headers.RECEIPTS}, {refused.path}: {refused.message}"
        raise PacketRefused(refused.code, "$", message) from refused


def _grouped(receipts: list[Receipt]) -> Iterator[ReceiptGroup]:
    for _, group in groupby(receipts, key=_delivery_of):
        yield tuple(group)


def _delivery_of(receipt: Receipt) -> tuple[object, ...]:
    is_verification = receipt.kind in (ReceiptKind.VERIFICATION_PASS, ReceiptKind.VERIFICATION_FAIL)
    delivery = receipt.session_id, receipt.packet_id, receipt.recipient, receipt.attempt
    # An entry about an effect is one hop, so a replay takes it as one input.
    return *delivery, receipt.by, is_verification, receipt.effect
