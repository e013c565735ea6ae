"""What hostile agents send: each act makes one burst of messages, again and again."""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from tests.support.traffic import Cast, make_idea, make_packet, make_start

from apc_bus import headers
from apc_bus.port import HeaderValue, Message, Publication
from apc_bus.topology import INGRESS, RECEIPTS
from apc_contracts import Packet
from apc_contracts.identity.registry_change import AgentRevoked, encode_registry_change
from apc_contracts.packet import Lineage, ProofBundle
from apc_contracts.payloads.by_type import SignalPayload, TransferPayload, TransferPolicy
from apc_contracts.payloads.session_signals import SwarmSpec
from apc_contracts.vocabulary import Signal, TransferMode
from apc_contracts.wire.parsing import seal
from apc_contracts.wire.receipts import Receipt, ReceiptKind, encode_receipts

OPERATOR, SENDERS, COLLECTOR, MALLORY = "librarian", ("red-1", "blue-1"), "sentinel", "mallory"
CAST: Cast = {
    OPERATOR: ("library", ("operate",)),
    "red-1": ("red", ()),
    "blue-1": ("blue", ()),
    COLLECTOR: ("watch", ()),
    MALLORY: ("mob", ()),
}
DAY_MS = 86_400_000
BIG_BYTES = 1 << 20
NAMES = 4_000
"""Parents or references of one packet: about as many as fit into 256 KiB."""

Burst = Callable[[], list[Publication]]


def opening(session_id: str) -> Packet:
    """Return the START of a session that every agent of the cast takes part in."""
    swarms = tuple(SwarmSpec(swarm_id=CAST[one][0], agents=(one,)) for one in (*SENDERS, MALLORY))
    spec = {"swarms": swarms, "members": (COLLECTOR,), "generation_deadline_ms": DAY_MS, "state_deadline_ms": DAY_MS}
    return make_start(session_id, cast=CAST, **spec)


def ending(start: Packet) -> Packet:
    """Return the STOP of a session."""
    stop = SignalPayload(signal=Signal.STOP, reason="over")
    return make_packet(OPERATOR, stop, cast=CAST, parent=start, session_id=start.trace.session_id)


def work(sender: str, start: Packet, to: Sequence[str] = (COLLECTOR,), **fields: Any) -> Packet:
    """Return an IDEA in a session."""
    return make_packet(sender, make_idea(), to, cast=CAST, parent=start, session_id=start.trace.session_id, **fields)


class Acts:
    """The acts of one hostile broker user in the session that begins with `start`."""

    def __init__(self, user: str, start: Packet, seed: int) -> None:
        self._user = user
        self.start = start
        self._chance = random.Random(seed)
        self._repeated = work(MALLORY, start)
        self.bursts: dict[str, tuple[Burst, float]] = {
            "unreadable bodies": (self._unreadable, 0.5),
            "big unreadable bodies": (self._big, 2.0),
            "unknown sessions": (self._unknown_sessions, 0.25),
            "repeats": (self._repeats, 0.5),
            "refused in a session": (self._refused, 0.5),
            "many references": (self._many_references, 2.0),
            "many parents": (self._many_parents, 2.0),
            "new protocols": (self._new_protocols, 0.25),
            "ACKs asked for": (self._asks_for_acks, 0.5),
            "forged properties": (self._forged, 0.5),
            "forged receipts": (self._forged_receipts, 0.5),
        }
        """Name -> what makes a burst, and the seconds between two."""

    def _unreadable(self) -> list[Publication]:
        return [self._raw(os.urandom(self._chance.randrange(1, 4096))) for _ in range(20)]

    def _big(self) -> list[Publication]:
        return [self._raw(b"[" + os.urandom(1024) * (BIG_BYTES // 1024))]

    def _unknown_sessions(self) -> list[Publication]:
        return [
            self._of(make_packet(MALLORY, make_idea(), (COLLECTOR,), cast=CAST, session_id=f"nowhere-{uuid4()}"))
            for _ in range(40)
        ]

    def _repeats(self) -> list[Publication]:
        return [self._of(self._repeated)] * 20

    def _refused(self) -> list[Publication]:
        return [self._of(work(MALLORY, self.start, ("nobody",))) for _ in range(20)]

    def _many_references(self) -> list[Publication]:
        bundle = ProofBundle(evidence_refs=tuple(f"packet:{uuid4()}" for _ in range(NAMES)))
        return [self._of(work(MALLORY, self.start, proof_bundle=bundle))]

    def _many_parents(self) -> list[Publication]:
        return [self._of(self._transfer(tuple(f"protocol-{uuid4()}" for _ in range(NAMES))))]

    def _new_protocols(self) -> list[Publication]:
        return [self._of(self._transfer(())) for _ in range(20)]

    def _transfer(self, parents: tuple[str, ...]) -> Packet:
        protocol = f"protocol-{uuid4()}"
        payload = TransferPayload(
            protocol_id=protocol,
            from_swarm=CAST[MALLORY][0],
            to_swarm="red",
            sender_score=0.9,
            receiver_score=0.1,
            transfer_policy=TransferPolicy(mode=next(iter(TransferMode))),
        )
        lineage = Lineage(protocol_id=protocol, parent_protocol_ids=parents)
        session_id = self.start.trace.session_id
        return make_packet(
            MALLORY, payload, ("red-1",), cast=CAST, parent=self.start, session_id=session_id, lineage=lineage
        )

    def _asks_for_acks(self) -> list[Publication]:
        return [
            self._of(work(MALLORY, self.start, requires_ack=True, ack_timeout_ms=self._chance.randrange(1000, 60_000)))
            for _ in range(5)
        ]

    def _forged(self) -> list[Publication]:
        died: dict[str, HeaderValue] = {headers.DIED_IN: "apc.gate.0", headers.DIED_USER: "guest"}
        spoofed = seal(work("red-1", self.start)).body
        change = encode_registry_change(AgentRevoked(change_id=uuid4(), agent_id="red-1"))
        return [
            self._raw(spoofed),
            self._raw(b"{}", type=headers.TYPE_DEAD_INPUT, headers=died),
            Publication(RECEIPTS, "0", self._message(change, type=headers.TYPE_REGISTRY)),
            self._raw(spoofed, headers={"apc-cause": str(uuid4()), "traceparent": "x" * 1000, "CC": ["apc.log"]}),
        ]

    def _forged_receipts(self) -> list[Publication]:
        found = [
            Receipt(
                packet_id=uuid4(),
                session_id=self.start.trace.session_id,
                recipient=recipient,
                kind=ReceiptKind.OUTCOME,
                attempt=1,
                at=datetime.now(UTC),
            )
            for recipient in (MALLORY, COLLECTOR)
            for _ in range(10)
        ]
        return [Publication(RECEIPTS, "0", self._message(encode_receipts(found), type=headers.TYPE_RECEIPTS))]

    def _of(self, packet: Packet) -> Publication:
        message = self._message(seal(packet).body, message_id=str(packet.packet_id), type=packet.packet_type.value)
        return Publication(INGRESS, "0", message)

    def _raw(self, body: bytes, **fields: Any) -> Publication:
        return Publication(INGRESS, "0", self._message(body, **fields))

    def _message(self, body: bytes, **fields: Any) -> Message:
        return Message(body, fields.pop("message_id", str(uuid4())), user_id=self._user, **fields)


def session_names(prefix: str) -> Iterator[str]:
    """Yield a name for one session after the other."""
    number = 0
    while True:
        yield f"{prefix}-{number}"
        number += 1
