"""Detached Ed25519 signatures of packets, in the AMQP header `apc-signature`.

The header is `<key id>:<base64 of the 64-byte signature>`. The signed text binds the packet to its sender, its times
and its exact bytes; the prefix makes the signature invalid in any other context. Source: docs/specification/contract.md
section 2, RFC 8032.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Protocol

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from apc_contracts.errors import SignatureInvalid
from apc_contracts.packet import Endorsement, Packet

SIGNED_PREFIX = "apc-packet-v1"
ENDORSED_PREFIX = "apc-endorsement-v1"
PUBLIC_KEY_BYTES = 32


def private_key_of(pem: str) -> Ed25519PrivateKey:
    """Return the key in a PEM text (PKCS8, not encrypted). Raises ValueError, which says what is wrong."""
    try:
        # In an environment variable line ends often arrive as \n in two characters.
        key = load_pem_private_key(pem.replace("\\n", "\n").encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error).splitlines()[0]) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("it is of another kind")
    return key


def pem_of(key: Ed25519PrivateKey) -> bytes:
    """Return the PEM text (PKCS8, not encrypted) of a key."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class HashedPacket(Protocol):
    """A packet with the SHA-256 of its bytes: sealed by the sender or received."""

    @property
    def packet(self) -> Packet: ...
    @property
    def packet_hash(self) -> bytes: ...


def signed_text(hashed: HashedPacket) -> bytes:
    """Return the text to sign: prefix, packet_id, sender, created_at, expires_at, hex packet_hash, one per line.

    Times are in UTC as the packet writes them (`2026-02-19T07:50:00Z`, microseconds only if there are any); expires_at
    is the effective one: created_at + ttl_ms when the packet names none. No newline at the end.
    """
    packet = hashed.packet
    lines = (
        SIGNED_PREFIX,
        str(packet.packet_id),
        packet.sender.agent_id,
        _utc(packet.created_at),
        _utc(packet.expires),
        hashed.packet_hash.hex(),
    )
    return "\n".join(lines).encode()


def _utc(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


def sign(private_key: Ed25519PrivateKey, key_id: str, sealed: HashedPacket) -> str:
    """Return the value of the header `apc-signature` for a sealed packet.

    ```python
    from base64 import b64encode

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    public = {"clerk-1": b64encode(key.public_key().public_bytes_raw()).decode()}
    header = sign(key, "clerk-1", seal(packet))
    verify(header, public, read_packet(seal(packet).body))
    try:
        verify(header, public, seal(packet.model_copy(update={"confidence": 0.5})))
    except SignatureInvalid:
        pass
    ```
    """
    return f"{key_id}:{b64encode(private_key.sign(signed_text(sealed))).decode()}"


def verify(header: str, public_keys: Mapping[str, str], received: HashedPacket) -> None:
    """Check that a signature header is the sender's.

    Args:
        header: value of the AMQP header `apc-signature`.
        public_keys: the sender's registered keys: key id to base64 public key.
        received: the packet with the hash of its received bytes.

    Raises:
        SignatureInvalid: an unreadable header, an unknown key id, a wrong signature.
    """
    try:
        _verify(header, public_keys, signed_text(received))
    except InvalidSignature as error:
        raise SignatureInvalid(
            "the signature does not fit these bytes: sign exactly the bytes that are sent"
        ) from error


def endorsed_text(agent_id: str, payload_hash: str) -> bytes:
    """Return the text that an endorser signs: prefix, agent_id, hex payload_hash, one per line, no final newline."""
    return f"{ENDORSED_PREFIX}\n{agent_id}\n{payload_hash}".encode()


def endorse(private_key: Ed25519PrivateKey, key_id: str, agent_id: str, payload_hash: str) -> Endorsement:
    """Return a signed endorsement of a payload, for `proof_bundle.signatures`."""
    signature = b64encode(private_key.sign(endorsed_text(agent_id, payload_hash))).decode()
    return Endorsement(agent_id=agent_id, payload_hash=payload_hash, signature=f"{key_id}:{signature}")


def verify_endorsement(endorsement: Endorsement, public_keys: Mapping[str, str]) -> None:
    """Check that an endorsement is unsigned or its signature is the endorser's.

    Raises:
        SignatureInvalid: an unreadable signature, an unknown key id, a wrong signature.
    """
    if endorsement.signature is None:
        return
    try:
        _verify(endorsement.signature, public_keys, endorsed_text(endorsement.agent_id, endorsement.payload_hash))
    except InvalidSignature as error:
        raise SignatureInvalid("the signature does not fit agent_id and payload_hash: sign both") from error


def _verify(signature: str, public_keys: Mapping[str, str], text: bytes) -> None:
    """Check a signature of a text. Raises SignatureInvalid, and InvalidSignature when it is someone else's."""
    key_id, separator, encoded = signature.rpartition(":")
    if not separator:
        raise SignatureInvalid("the signature is not `<key id>:<base64>`: sign with a registered key")
    if key_id not in public_keys:
        raise SignatureInvalid("the signer has no key with this id: register it with `apc agent add --key`")
    read_public_key(public_keys[key_id]).verify(_decode(encoded, "signature"), text)


def new_private_key() -> Ed25519PrivateKey:
    """Return a fresh key from the system's randomness."""
    return Ed25519PrivateKey.generate()


def encode_public_key(private_key: Ed25519PrivateKey) -> str:
    """Return the base64 public key to register for this private key."""
    return b64encode(private_key.public_key().public_bytes_raw()).decode()


def read_public_key(encoded: str) -> Ed25519PublicKey:
    """Return the key in base64 text. Raises SignatureInvalid unless it is 32 bytes."""
    raw = _decode(encoded, "public key")
    if len(raw) != PUBLIC_KEY_BYTES:
        raise SignatureInvalid(f"an Ed25519 public key has {PUBLIC_KEY_BYTES} bytes, not {len(raw)}: give the raw key")
    return Ed25519PublicKey.from_public_bytes(raw)


def key_id_of(public_key: str) -> str:
    """Return a short name of a public key: the first 16 hex digits of its SHA-256."""
    return sha256(_decode(public_key, "public key")).hexdigest()[:16]


def _decode(text: str, what: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise SignatureInvalid(f"the {what} is not base64: encode its raw bytes") from error
