"""Packets as docs/reference/protocol.md asks for them: ids (section 4), bytes (section 2), signatures (section 5)."""

import base64
import hashlib
import json
import os
import time
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

Document = dict[str, Any]

_ROOT = ("session_id", "run_id", "task_id", "root_packet_id")
_MOMENT = ("run_phase", "generation", "step")
UNKNOWN: Document = {"run_phase": "RESEARCH", "generation": 0, "step": 0}


def slot_of(session_id: str) -> str:
    """Return the routing key of everything that belongs to a session."""
    return str(zlib.crc32(session_id.encode()) % 256)


def new_id() -> str:
    """Return a UUID of version 7: milliseconds, then random bits."""
    random = int.from_bytes(os.urandom(10)) & ~(0xF << 76) & ~(0b11 << 62)
    return str(UUID(int=time.time_ns() // 1_000_000 << 80 | 7 << 76 | random | 0b10 << 62))


def expiry_of(packet: Document) -> datetime:
    """Return the moment from which on a packet must not start a handler."""
    if packet.get("expires_at"):
        return datetime.fromisoformat(packet["expires_at"])
    return datetime.fromisoformat(packet["created_at"]) + timedelta(milliseconds=packet["routing"]["ttl_ms"])


def build_root(actor: Document, trace: Document, draft: Document) -> Document:
    """Return a packet without a cause: the root of a tree."""
    packet_id = new_id()
    return _build(actor, {**trace, "root_packet_id": packet_id}, UNKNOWN, packet_id, draft)


def build_answer(actor: Document, cause: Document, ordinal: int, moment: Document, draft: Document) -> Document:
    """Return answer number `ordinal` to a packet; a handler that runs again makes the same id."""
    trace = {name: cause["trace"][name] for name in _ROOT} | {"parent_packet_id": cause["packet_id"]}
    packet_id = str(uuid5(UUID(cause["packet_id"]), f"{actor['agent_id']}/{ordinal}"))
    return _build(actor, trace, moment, packet_id, {"to": cause["sender"]["agent_id"], **draft})


def _build(actor: Document, trace: Document, moment: Document, packet_id: str, draft: Document) -> Document:
    others = {name: value for name, value in draft.items() if name not in ("type", "to", "ttl_ms")}
    return {
        "protocol_version": "apc/1.1" if draft["type"] == "MESSAGE" else "apc/1.0",
        "packet_id": packet_id,
        "packet_type": draft["type"],
        "channel": "INTER_AGENT",
        "run_phase": moment["run_phase"],
        "created_at": now(),
        "sender": actor,
        "recipients": [{"agent_id": draft["to"]}],
        "trace": {**trace, "generation": moment["generation"], "step": moment["step"]},
        "routing": {
            "delivery_mode": "DIRECT",
            "priority": 4,
            "ttl_ms": draft.get("ttl_ms", 600_000),
            "requires_ack": False,
        },
        "confidence": 1.0,
        "symbolic_keys": [],
        **others,
    }


def now() -> str:
    """Return the time in UTC, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seal(packet: Document) -> bytes:
    """Return the bytes that travel, made once: RFC 8785."""
    return rfc8785.dumps(packet)


class Key:
    """A private Ed25519 key in PEM, with the id under which `apc key register` makes it known."""

    def __init__(self, path: Path) -> None:
        key = load_pem_private_key(path.read_bytes(), password=None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(f"{path} is no Ed25519 key")
        self._key = key
        self._id = hashlib.sha256(key.public_key().public_bytes_raw()).hexdigest()[:16]

    def signature_of(self, packet: Document, body: bytes) -> str:
        """Return the value of the header `apc-signature`."""
        lines = (
            "apc-packet-v1",
            packet["packet_id"],
            packet["sender"]["agent_id"],
            _signed_time(datetime.fromisoformat(packet["created_at"])),
            _signed_time(expiry_of(packet)),
            hashlib.sha256(body).hexdigest(),
        )
        signature = self._key.sign("\n".join(lines).encode())
        return f"{self._id}:{base64.b64encode(signature).decode()}"


def _signed_time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


class Schemas:
    """The exported JSON Schemas: what is sent and what is received is checked against them."""

    def __init__(self, folder: Path) -> None:
        packet = json.loads((folder / "packet.schema.json").read_bytes())
        registry: Registry[Any] = Resource.from_contents(packet) @ Registry()
        self._by_type = {
            kind: Draft202012Validator({"$ref": f"{packet['$id']}{place}"}, registry=registry)
            for kind, place in packet["discriminator"]["mapping"].items()
        }
        self._receipts = Draft202012Validator(json.loads((folder / "receipts.schema.json").read_bytes()))

    def check_packet(self, packet: Document) -> None:
        """Raise ValidationError, which names the field, or KeyError when this is no packet of its type."""
        self._by_type[packet["packet_type"]].validate(packet)

    def check_receipts(self, receipts: list[Document]) -> None:
        """Raise ValidationError when these are no receipts."""
        self._receipts.validate(receipts)


class Sessions:
    """Where each session stands, by the headers of deliveries and by SYNC; the highest step wins."""

    def __init__(self) -> None:
        self._moments: dict[str, Document] = {}

    def of(self, session_id: str) -> Document:
        """Return the newest known run_phase, generation and step of a session."""
        return self._moments.get(session_id, UNKNOWN)

    def learn(self, packet: Document, headers: Document) -> None:
        """Take what a delivery says of its session."""
        session_id, payload = packet["trace"]["session_id"], packet["payload"]
        if "apc-state-step" in headers:
            found = (headers["apc-phase"], headers["apc-generation"], headers["apc-state-step"])
            self._keep(session_id, dict(zip(_MOMENT, found, strict=True)))
        is_sync = packet["packet_type"] == "SIGNAL" and payload["signal"] == "SYNC"
        if is_sync and packet["sender"]["agent_id"] == "orchestrator" and payload.get("session"):
            self._keep(session_id, {name: payload["session"][name] for name in _MOMENT})

    def _keep(self, session_id: str, moment: Document) -> None:
        if moment["step"] >= self.of(session_id)["step"]:
            self._moments[session_id] = moment


class Marks:
    """The marks of every shard: epoch and batch of the last batch that was committed before an epoch."""

    EPOCHS = 16

    def __init__(self) -> None:
        self._shards: dict[int, dict[int, tuple[int, ...]]] = {}

    def is_fenced(self, headers: Document) -> bool:
        """Return whether a batch that was never committed holds this delivery."""
        marks = self._shards.setdefault(headers["apc-shard"], {})
        epoch, batch = headers["apc-epoch"], headers["apc-batch"]
        marks.setdefault(epoch, tuple(map(int, headers["apc-mark"].split("."))))
        if len(marks) > self.EPOCHS:
            del marks[min(marks)]
        return any(newer > epoch and (epoch, batch) > mark for newer, mark in marks.items())
