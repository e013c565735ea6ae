"""What a wait keeps of its handler's run: the packet, the calls and their outcomes, the states, what is asked."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson

from apc_agents.errors import AgentError
from apc_contracts.packet import Packet
from apc_contracts.wire.parsing import parse_packet, seal

MAX_WAITS = 64
MAX_RECORD_BYTES = 1 << 20


@dataclass(slots=True)
class Asked:
    """An ASK of a wait; `end` is its answer, or what it raised, as JSON; None while it is open."""

    packet: Packet
    ordinal: int
    end: dict[str, Any] | None = None


@dataclass(slots=True)
class RecordedCall:
    """One call of a run: its name, what it was called with, and its outcome as JSON.

    A wait has `asked` instead of an outcome. A call of a task that the handler has started has a `place`, which tells
    the pipelines of a handler apart (`apc_agents.waiting.journal`).
    """

    op: str
    subject: str
    outcome: dict[str, Any] | None = None
    asked: list[Asked] = field(default_factory=list)
    place: str | None = None

    @property
    def is_wait(self) -> bool:
        """Whether the handler waited here."""
        return bool(self.asked)


@dataclass(slots=True)
class WaitRecord:
    """A handler run that waits, or goes on. Its key is the packet that started it."""

    packet: Packet
    rights: tuple[str, ...]
    entries: list[RecordedCall] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    """ctx.state as each part of the run found it: before the first wait, between the waits."""
    tokens: int = 0
    cost: float = 0.0
    """What was reported of the run so far."""
    ack_ordinal: int | None = None
    """Of the ACK at the first wait; None when the packet asks for none."""
    seconds: float = 0.0
    """How long the runs took so far."""

    @property
    def asked(self) -> list[Asked]:
        """The ASKs of the wait that is open."""
        return self.entries[-1].asked

    def find(self, ask: UUID) -> Asked | None:
        """Return an ASK of the open wait."""
        return next((one for one in self.asked if one.packet.packet_id == ask), None)

    @property
    def is_answered(self) -> bool:
        """Whether the run can go on."""
        return all(one.end is not None for one in self.asked)

    def encode(self) -> bytes:
        """Return the JSON bytes. Raises AgentError beyond the bound."""
        body = orjson.dumps(
            {
                "packet": _text(self.packet),
                "rights": self.rights,
                "entries": [_entry_document(entry) for entry in self.entries],
                "states": self.states,
                "usage": [self.tokens, self.cost],
                "ack": self.ack_ordinal,
                "seconds": self.seconds,
            }
        )
        if len(body) > MAX_RECORD_BYTES:
            raise AgentError(
                f"the records of this handler run have {len(body)} bytes, the limit is {MAX_RECORD_BYTES}: "
                "wait earlier, or keep large values in ctx.artifacts"
            )
        return body


def decode_record(body: bytes) -> WaitRecord:
    """Return the record in JSON bytes."""
    found = orjson.loads(body)
    tokens, cost = found["usage"]
    return WaitRecord(
        packet=_packet(found["packet"]),
        rights=tuple(found["rights"]),
        entries=[_entry(one) for one in found["entries"]],
        states=found["states"],
        tokens=tokens,
        cost=cost,
        ack_ordinal=found["ack"],
        seconds=found.get("seconds", 0.0),
    )


def _entry_document(entry: RecordedCall) -> dict[str, Any]:
    document: dict[str, Any] = {"op": entry.op, "subject": entry.subject}
    if entry.is_wait:
        return document | {"asked": [[_text(one.packet), one.ordinal, one.end] for one in entry.asked]}
    if entry.place is not None:
        document["place"] = entry.place
    return document | {"outcome": entry.outcome}


def _entry(document: dict[str, Any]) -> RecordedCall:
    asked = [Asked(_packet(body), ordinal, end) for body, ordinal, end in document.get("asked", ())]
    return RecordedCall(document["op"], document["subject"], document.get("outcome"), asked, document.get("place"))


def _text(packet: Packet) -> str:
    return seal(packet).body.decode()


def _packet(text: str) -> Packet:
    return parse_packet(text.encode())
