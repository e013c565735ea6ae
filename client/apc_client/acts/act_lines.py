"""What goes over the socket: one JSON object a line; first the system says who it is, then each act gets an answer."""

from collections.abc import Mapping

import orjson

from apc_bus import headers
from apc_bus.port import Message, QueueDepth
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.ids import new_packet_id, shard_of
from apc_contracts.limits import DEFAULT_LIMITS
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.vocabulary import PacketType, Signal
from apc_contracts.wire.parsing import read_packet
from apc_contracts.wire.receipts import OPERATOR_KINDS, Receipt, encode_receipts, parse_receipts

LONGEST_LINE = 512 * 1024
"""Bytes: a message of receipts has at most 64 KiB, a packet of a signal fewer."""
ACTS = frozenset({Signal.PAUSE, Signal.RESUME, Signal.STOP, Signal.ANSWER})
DEPTHS = "depths"
"""The line that asks for the depths of the queues of gates and log writers."""
INBOXES = "inboxes"
"""The line that asks for the depths of the queues of the agents that it names."""
_MOST_AGENTS = 1_000
Sent = tuple[str, int, Message]
"""Exchange's kind (`receipts` or a packet type), shard, message."""


class NoAct(Exception):
    """A line that is no act; says why."""


def encode_line(fields: dict[str, object]) -> bytes:
    """Return a line."""
    return orjson.dumps(fields) + b"\n"


def decode_line(line: bytes) -> dict[str, object]:
    """Return the object of a line. Raises NoAct."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise NoAct("the line is no JSON") from error
    if not isinstance(found, dict):
        raise NoAct("the line is no JSON object")
    return found


def encode_act(message: Message) -> bytes:
    """Return the line of a message to publish."""
    signature = message.headers.get(headers.SIGNATURE)
    return encode_line({"type": message.type, "body": message.body.decode(), "signature": signature})


def decode_act(line: bytes, user: str, shards: int) -> list[Sent]:
    """Return what to publish for a line: a signal of an operator, an answer of a person, or receipts of an operator.

    Raises NoAct for everything else.
    """
    found = decode_line(line)
    kind, body, signature = found.get("type"), found.get("body"), found.get("signature")
    if not isinstance(kind, str) or not isinstance(body, str) or not isinstance(signature, str | None):
        raise NoAct("type and body must be text")
    try:
        if kind == headers.TYPE_RECEIPTS:
            return _receipts(parse_receipts(body.encode()), user, shards)
        return [_signal(body.encode(), signature, user, shards)]
    except PacketRefused as refused:
        raise NoAct(f"{refused.code} at {refused.path}: {refused.message}") from refused


def question_of(line: bytes) -> tuple[str, list[str]] | None:
    """Return DEPTHS or INBOXES, and the agents that a question names; None for a line that asks nothing."""
    try:
        found = decode_line(line)
    except NoAct:
        return None
    agents = found.get("agents", [])
    if not isinstance(agents, list) or len(agents) > _MOST_AGENTS or not all(isinstance(one, str) for one in agents):
        return None
    kind = found.get("type")
    return (kind, agents) if kind in (DEPTHS, INBOXES) else None


def encode_depths(depths: Mapping[str, QueueDepth]) -> bytes:
    """Return the answer to such a line."""
    return encode_line({name: [one.messages, one.consumers] for name, one in depths.items()})


def decode_depths(found: Mapping[str, object]) -> dict[str, QueueDepth]:
    """Return the depths of an answer; what is none is left out."""
    return {
        name: QueueDepth(*one)
        for name, one in found.items()
        if isinstance(one, list) and len(one) == 2 and all(type(number) is int for number in one)
    }


def _receipts(receipts: list[Receipt], user: str, shards: int) -> list[Sent]:
    if not receipts or any(one.kind not in OPERATOR_KINDS for one in receipts):
        raise NoAct("only requeue and discard come this way")
    by_shard: dict[int, list[Receipt]] = {}
    for one in receipts:
        by_shard.setdefault(shard_of(one.session_id, shards), []).append(one)
    return [
        (
            headers.TYPE_RECEIPTS,
            shard,
            Message(encode_receipts(some), str(new_packet_id()), type=headers.TYPE_RECEIPTS, user_id=user),
        )
        for shard, some in by_shard.items()
    ]


def _signal(body: bytes, signature: str | None, user: str, shards: int) -> Sent:
    packet = read_packet(body, DEFAULT_LIMITS).packet
    payload = packet.payload
    if packet.packet_type is not PacketType.SIGNAL or not isinstance(payload, SignalPayload):
        raise NoAct("only signals come this way")
    if payload.signal not in ACTS:
        raise NoAct(f"{payload.signal} does not come this way")
    message = Message(
        body,
        str(packet.packet_id),
        type=packet.packet_type.value,
        correlation_id=str(packet.trace.root_packet_id),
        user_id=user,
        headers={} if signature is None else {headers.SIGNATURE: signature},
    )
    return packet.packet_type.value, shard_of(packet.trace.session_id, shards), message
