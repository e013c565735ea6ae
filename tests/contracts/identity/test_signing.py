"""A signature holds for one packet of one sender and for nothing else."""

import json
from base64 import b64encode

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from apc_contracts import SignatureInvalid, parse_packet, read_packet, seal, sign, verify
from apc_contracts.identity.signing import (
    encode_public_key,
    endorse,
    key_id_of,
    new_private_key,
    read_public_key,
    signed_text,
    verify_endorsement,
)

from ..conftest import PACKET_ID, Documents

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
KEYS = {"k1": encode_public_key(KEY)}


def test_what_is_signed(document: Documents) -> None:
    sealed = seal(parse_packet(json.dumps(document()).encode()))
    assert signed_text(sealed).decode().split("\n") == [
        "apc-packet-v1",
        PACKET_ID,
        "builder-1",
        "2026-02-19T07:50:00Z",
        "2026-02-19T07:51:00Z",
        sealed.packet_hash.hex(),
    ]


def test_the_receiver_verifies_what_the_sender_sealed(document: Documents) -> None:
    sealed = seal(parse_packet(json.dumps(document()).encode()))
    header = sign(KEY, "k1", sealed)
    assert header.startswith("k1:")
    verify(header, KEYS, read_packet(sealed.body))
    verify(sign(KEY, "team:k1", sealed), {"team:k1": KEYS["k1"]}, read_packet(sealed.body))


def test_a_signature_does_not_fit_another_packet(document: Documents) -> None:
    received = read_packet(json.dumps(document()).encode())
    header = sign(KEY, "k1", received)
    for change in (
        {"packet_id": "0190a5f2-1111-7222-8333-444455556666"},
        {"created_at": "2026-02-19T07:50:00.000001Z"},
        {"confidence": 0.75},
    ):
        other = document() | change
        other["trace"]["root_packet_id"] = other["packet_id"]
        with pytest.raises(SignatureInvalid, match="does not fit"):
            verify(header, KEYS, read_packet(json.dumps(other).encode()))
    with pytest.raises(SignatureInvalid, match="does not fit"):
        verify(header, KEYS, replace(received, packet_hash=bytes(32)))
    with pytest.raises(SignatureInvalid, match="does not fit"):
        verify(header, {"k1": encode_public_key(new_private_key())}, received)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("", "is not `<key id>:<base64>`"),
        ("k1", "is not `<key id>:<base64>`"),
        ("k2:AAAA", "no key with this id"),
        ("k1:?", "signature is not base64"),
        ("k1:é", "signature is not base64"),
        ("k1:AAAA", "does not fit"),
        ("k1:", "does not fit"),
    ],
)
def test_headers_that_prove_nothing(idea: bytes, header: str, message: str) -> None:
    with pytest.raises(SignatureInvalid, match=message):
        verify(header, KEYS, read_packet(idea))


def test_public_keys() -> None:
    assert read_public_key(KEYS["k1"]).public_bytes_raw() == KEY.public_key().public_bytes_raw()
    assert len(key_id_of(KEYS["k1"])) == 16
    with pytest.raises(SignatureInvalid, match="32 bytes, not 31"):
        read_public_key(b64encode(bytes(31)).decode())
    with pytest.raises(SignatureInvalid, match="not base64"):
        read_public_key("=")


def test_an_endorsement_holds_for_one_agent_and_one_payload() -> None:
    one, other = "a" * 64, "b" * 64
    given = endorse(KEY, "k1", "sentinel-1", one)
    assert given.signature is not None and given.signature.startswith("k1:")
    verify_endorsement(given, KEYS)
    verify_endorsement(given.model_copy(update={"signature": None, "agent_id": "anybody"}), {})
    for changed in ({"agent_id": "sentinel-2"}, {"payload_hash": other}):
        with pytest.raises(SignatureInvalid, match="does not fit"):
            verify_endorsement(given.model_copy(update=changed), KEYS)
    with pytest.raises(SignatureInvalid, match="no key with this id"):
        verify_endorsement(given, {"k2": KEYS["k1"]})
    with pytest.raises(SignatureInvalid, match="is not `<key id>:<base64>`"):
        verify_endorsement(given.model_copy(update={"signature": "abc"}), KEYS)
