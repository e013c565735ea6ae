"""From bytes to a packet: the only parser (docs/specification/contract.md section 12).

The order is fixed: size, levels, strict JSON, nodes, then the schema. Every failure is a PacketRefused with one code,
one path and one sentence that names the remedy.
"""

import re
from collections.abc import Callable, Set
from functools import cache
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from apc_contracts.contract_model import (
    ARTIFACT_HASH_PATTERN,
    ID_PATTERN,
    PUBLIC_KEY_PATTERN,
    SCHEMA_PATTERN,
    SHA256_PATTERN,
    TIME_PATTERN,
    UUID_PATTERN,
)
from apc_contracts.errors import PacketRefused
from apc_contracts.limits import DEFAULT_LIMITS, DocumentLimits
from apc_contracts.packet import AnyPacket, Packet
from apc_contracts.payloads.by_type import Payload
from apc_contracts.vocabulary import PacketType, Signal
from apc_contracts.wire.canonical import canonical_json
from apc_contracts.wire.strict_json import read_strict_json

# Turn the first validation error into a refusal: a path into the sender's document and the remedy.

# A refusal travels in a NACK: a hostile key must not make it too large.
MAX_PATH_LENGTH = 200
MAX_MESSAGE_LENGTH = 400

# Parts of a location that are not in the document: the chosen member of a union.
_OBJECT_TAGS = frozenset({"Claim", "Falsifier", "Decision", "Constraint", "Evidence"})
_EVAL_TAGS = frozenset({"EVAL", "OPEN_EVAL"})
_SESSION_TAGS = frozenset({Signal.START, Signal.SYNC, "TASK"})

# The validator shows an enum's member as Python does: <PacketType.IDEA: 'IDEA'>.
_ENUM_MEMBER = re.compile(r"<[^<>]*: ('[^']*')>")

UNKNOWN_FIELD = "unknown field: remove it"
_MISSING = "required field is missing: add it"
_NO_OBJECT = "must be a JSON object"
_MENDING = {
    "missing": _MISSING,
    "union_tag_not_found": _MISSING,
    "extra_forbidden": UNKNOWN_FIELD,
    "model_type": _NO_OBJECT,
    "model_attributes_type": _NO_OBJECT,
    "mapping_type": _NO_OBJECT,
    "dict_type": _NO_OBJECT,
    "tuple_type": "must be a JSON array",
    "list_type": "must be a JSON array",
    "bool_type": "must be true or false",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "string_type": "must be a string",
}
_FORMS = {
    ID_PATTERN: "must be 1 to 64 of A-Z a-z 0-9 . _ : - and begin with a letter, a digit or _",
    UUID_PATTERN: "must be a UUID in lower case with hyphens, like 7f0c2f5d-0f76-4a4c-93d0-f0b2e2891730",
    TIME_PATTERN: "must be an RFC 3339 time with an offset, like 2026-02-19T07:50:00Z",
    SHA256_PATTERN: "must be a SHA-256 in 64 lower-case hex digits",
    SCHEMA_PATTERN: "must be the name and version of a schema, like finding/1",
    PUBLIC_KEY_PATTERN: "must be an Ed25519 public key: 32 bytes in base64",
    ARTIFACT_HASH_PATTERN: "must be `sha256:` and 64 lower-case hex digits",
}


_ONTOLOGY = ["payload", "formula_bundle", "var_ontology"]


def refusal_of(error: ValidationError, tags: Set[str] = frozenset(), *, has_metadata: bool = False) -> PacketRefused:
    """Return the refusal SCHEMA_INVALID for the first error; the message counts the others.

    `tags` are those of a tagged union at the top, which begin every location and are not in the document.
    `has_metadata`: the document is a packet, whose metadata accepts unknown fields.
    """
    (path, message), *others = mistakes_of(error, tags)
    if has_metadata and message == UNKNOWN_FIELD:
        message += ", or move it into metadata"
    if others:
        message += f" (and {len(others)} more)"
    return PacketRefused("SCHEMA_INVALID", path, message)


def mistakes_of(error: ValidationError, tags: Set[str] = frozenset()) -> list[tuple[str, str]]:
    """Return path and message of every error; at least one. `tags` as in `refusal_of`."""
    errors = error.errors(include_url=False, include_input=False)
    return [(_path(mistake, tags), _message(mistake)[:MAX_MESSAGE_LENGTH]) for mistake in errors]


def _message(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    if error["type"] == "string_pattern_mismatch":
        return _FORMS.get(context["pattern"], f"must match the pattern {context['pattern']}")
    if error["type"] == "union_tag_invalid":
        return "unknown value: use one of " + _ENUM_MEMBER.sub(r"\1", context["expected_tags"])
    if error["type"] in _MENDING:
        return _MENDING[error["type"]]
    return _ENUM_MEMBER.sub(r"\1", error["msg"]).replace("Input should be", "must be", 1)


def _path(error: ErrorDetails, tags: Set[str]) -> str:
    context: dict[str, Any] = error.get("ctx", {})
    path = ""
    for part in _place(error["loc"], tags):
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    if error["type"].startswith("union_tag"):
        path += "." + str(context["discriminator"]).strip("'")
    if error["type"] == "rule_broken" and context["path"]:
        path += "." + context["path"]
    return path.removeprefix(".")[:MAX_PATH_LENGTH] or "$"


def _place(location: tuple[int | str, ...], tags: Set[str]) -> list[int | str]:
    """Return the location without union tags and without the marker of a bad key."""
    parts = list(location)
    if parts and parts[0] in tags:
        del parts[0]
    if parts[:2] == ["payload", "objects"] and len(parts) > 3 and parts[3] in _OBJECT_TAGS:
        del parts[3]
    if parts[:2] == ["payload", "session"] and len(parts) > 2 and parts[2] in _SESSION_TAGS:
        del parts[2]
    if parts[:1] == ["payload"] and len(parts) > 1 and parts[1] in _EVAL_TAGS:
        del parts[1]
    if parts[:3] == _ONTOLOGY:  # a meaning is a text or an object, and pydantic names which
        del parts[4:]
    if parts and parts[-1] == "[key]":
        del parts[-1]
    return parts


# Serialise a packet once: the canonical bytes are the message body and never change.
#
# Source: docs/specification/contract.md section 2.


class SealedPacket(msgspec.Struct, frozen=True):
    """A packet with its bytes. `packet_hash` is the SHA-256 of `body`."""

    packet: Packet
    body: bytes
    packet_hash: bytes


def seal(packet: Packet, limits: DocumentLimits = DEFAULT_LIMITS) -> SealedPacket:
    """Return the packet's RFC 8785 bytes; optional fields that are None are left out.

    ```python
    sealed = seal(packet)
    assert sealed.body.startswith(b'{"channel":"INTER_AGENT"')
    ```

    Raises:
        PacketRefused: TOO_LARGE, TOO_DEEP or MALFORMED: what every receiver would refuse is never sent.
    """
    body = canonical_json(packet.model_dump(mode="json", exclude_none=True))
    read_strict_json(body, limits)
    return SealedPacket(packet, body, sha256(body).digest())


def payload_hash(payload: Payload) -> str:
    """Return the lower-case hex SHA-256 of the canonical payload, as endorsements in `proof_bundle` name it.

    ```python
    assert len(payload_hash(packet.payload)) == 64
    ```
    """
    return sha256(canonical_payload(payload)).hexdigest()


def canonical_payload(payload: Payload) -> bytes:
    """Return the RFC 8785 bytes of a payload; optional fields that are None are left out, times are in UTC."""
    return canonical_json(payload.model_dump(mode="json", exclude_none=True))


_TAGS = frozenset(PacketType)


@cache
def packet_validator() -> Callable[..., Packet]:
    """Return what validates a packet. It takes a tenth of a second to build: when the first packet is read, or now."""
    adapter: TypeAdapter[Packet] = TypeAdapter(AnyPacket)
    validate: Callable[..., Packet] = adapter.validator.validate_json
    return validate


class ReceivedPacket(msgspec.Struct, frozen=True):
    """A packet with the exact bytes it came in.

    Both hashes are SHA-256: `packet_hash` of the bytes, `payload_hash` of the canonical payload.
    """

    packet: Packet
    body: bytes
    packet_hash: bytes
    payload_hash: bytes


def parse_packet(body: bytes, limits: DocumentLimits = DEFAULT_LIMITS) -> Packet:
    """Return the packet in `body`, as one of the concrete classes.

    ```python
    assert parse_packet(seal(packet).body) == packet
    try:
        parse_packet(b'{"packet_type": 7}')
    except PacketRefused as error:
        assert (error.code, error.path) == ("SCHEMA_INVALID", "packet_type")
    ```

    Raises:
        PacketRefused: TOO_LARGE, TOO_DEEP, MALFORMED or SCHEMA_INVALID, the first that applies in the order
            of docs/specification/contract.md section 12.
    """
    read_strict_json(body, limits)
    return _validate(body)


def parse_checked_packet(body: bytes) -> Packet:
    """Return the packet in bytes that an orchestrator has read strictly already; only the schema is looked at again.

    A key that stands twice counts as its last, and no limit holds: use it only for what an orchestrator sent.

    Raises:
        PacketRefused: MALFORMED or SCHEMA_INVALID.
    """
    return _validate(body)


def read_packet(body: bytes, limits: DocumentLimits = DEFAULT_LIMITS) -> ReceivedPacket:
    """Return the packet as parse_packet does, with the hashes of the received bytes and of the canonical payload.

    ```python
    received = read_packet(seal(packet).body)
    assert received.packet == packet and received.packet_hash == seal(packet).packet_hash
    ```
    """
    tree = read_strict_json(body, limits)
    packet = _validate(body)
    # A null or a time may be written differently from how the model writes it: then the model's form counts.
    payload: dict[str, Any] = tree["payload"]
    canonical = canonical_payload(packet.payload) if _may_differ(body, payload) else canonical_json(payload)
    return ReceivedPacket(packet, body, sha256(body).digest(), sha256(canonical).digest())


def _may_differ(body: bytes, payload: dict[str, Any]) -> bool:
    return b"null" in body or "expected_response_by" in payload


def _validate(body: bytes) -> Packet:
    try:
        return validated(body, _validate_packet)
    except ValidationError as error:
        raise refusal_of(error, _TAGS, has_metadata=True) from error


def _validate_packet(body: bytes) -> Packet:
    # by_name would let JSON say `passed` where the contract says `pass`.
    return packet_validator()(body, strict=True, by_alias=True, by_name=False)


Read = TypeVar("Read")


def validated(body: bytes, validate: Callable[[bytes], Read]) -> Read:
    """Return what `validate` makes of strict JSON; an integer may be written with a fraction of zeros.

    4.0 is an integer for JSON Schema, and RFC 8785 writes it as 4: what fails is tried again in its canonical form.

    Raises ValidationError.
    """
    try:
        return validate(body)
    except ValidationError as error:
        if not _WHOLE_NUMBER.search(body):
            raise
        kinds = {one["type"] for one in error.errors(include_url=False, include_context=False, include_input=False)}
        if "int_type" not in kinds:
            raise
        return validate(canonical_json(orjson.loads(body)))


# Possessive, and begun at the first digit alone: linear in the bytes.
_WHOLE_NUMBER = re.compile(rb"(?<![0-9])[0-9]++(?:\.0++(?![0-9])|\.?+[0-9]*+[eE])")
"""A number with a fraction of zeros or with an exponent; strings may hold one too."""
