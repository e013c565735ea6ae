"""Bodies encrypted per subject: AES-256-GCM, a key a subject, so that destroying the key destroys the text permanently.

A sealed body stands where the received bytes would: `00 "apc1"`, the key's id (16 bytes), a nonce (12), ciphertext
with tag. JSON never begins with a NUL, so both kinds can be told apart. Hashes that would confirm a guess of the text
are keyed as well (HMAC-SHA-256).
"""

import hmac
import os
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from uuid import UUID, uuid4

import asyncpg
import msgspec
from asyncpg.pool import PoolConnectionProxy
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from apc_bus.settings import EncryptionSettings
from apc_log.errors import BodyUnreadable

MARK = b"\x00apc1"
KEY_BYTES = 32
_NONCE_BYTES = 12
_HEAD_BYTES = len(MARK) + 16


class SealedContent(msgspec.Struct, frozen=True, array_like=True):
    """What a packet says and what would tell of it: everything that leaves the log with the subject's key."""

    body: bytes
    packet_hash: bytes
    payload_hash: bytes
    signature: str | None
    refusal: bytes | None
    """JSON, with path and message."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SealedContent)


@dataclass(frozen=True, slots=True)
class SubjectKey:
    """A subject's key; both keys that are used follow from its secret (HKDF, RFC 5869)."""

    key_id: UUID
    cipher: AESGCM
    digest_key: bytes

    def seal(self, plain: bytes) -> bytes:
        """Encrypt under a fresh nonce; the mark and the key's id are authenticated with it."""
        head, nonce = MARK + self.key_id.bytes, os.urandom(_NONCE_BYTES)
        return head + nonce + self.cipher.encrypt(nonce, plain, head)

    def seal_packet(self, content: SealedContent) -> bytes:
        """Encrypt a packet like `seal`."""
        return self.seal(_encoder.encode(content))

    def unseal(self, sealed: bytes) -> bytes:
        """Decrypt bytes. Raises BodyUnreadable when they are not what this key sealed."""
        head, rest = sealed[:_HEAD_BYTES], sealed[_HEAD_BYTES:]
        try:
            return self.cipher.decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], head)
        except (InvalidTag, ValueError) as error:
            raise BodyUnreadable(f"a body does not fit key {self.key_id}: it was altered") from error

    def unseal_packet(self, sealed: bytes) -> SealedContent:
        """Decrypt and decode a packet. Raises BodyUnreadable."""
        try:
            return _decoder.decode(self.unseal(sealed))
        except msgspec.DecodeError as error:
            raise BodyUnreadable(f"what key {self.key_id} sealed is no packet") from error

    def digest(self, plain_hash: bytes) -> bytes:
        """Return a hash that nobody without the key can compare with a guess; 32 bytes."""
        return hmac.digest(self.digest_key, plain_hash, "sha256")


def subject_key(key_id: UUID, secret: bytes) -> SubjectKey:
    """Derive both keys of a subject, one for bodies and one for digests, from its secret of 32 bytes."""

    def derive(purpose: bytes) -> bytes:
        return HKDF(SHA256(), KEY_BYTES, salt=key_id.bytes, info=b"apc " + purpose).derive(secret)

    return SubjectKey(key_id, AESGCM(derive(b"body")), derive(b"digest"))


def is_sealed(stored: bytes) -> bool:
    """Return whether these stored bytes are a sealed body."""
    return stored.startswith(MARK)


def key_id_of(sealed: bytes) -> UUID:
    """Return the id of the key that sealed it. Raises BodyUnreadable."""
    if len(sealed) < _HEAD_BYTES:
        raise BodyUnreadable("a sealed body is cut short")
    return UUID(bytes=sealed[len(MARK) : _HEAD_BYTES])


class MasterKey:
    """Wraps the subjects' secrets, so that the table that holds them is worth nothing alone."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise ValueError(f"a master key has {KEY_BYTES} bytes")
        self._cipher = AESGCM(secret)

    def new_secret(self) -> tuple[UUID, bytes]:
        """Return a fresh key's id and its wrapped secret."""
        key_id, nonce = uuid4(), os.urandom(_NONCE_BYTES)
        return key_id, nonce + self._cipher.encrypt(nonce, os.urandom(KEY_BYTES), key_id.bytes)

    def unwrap(self, key_id: UUID, wrapped: bytes) -> SubjectKey:
        """Decrypt a subject key. Raises BodyUnreadable when another master key wrapped it."""
        try:
            secret = self._cipher.decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], key_id.bytes)
        except (InvalidTag, ValueError) as error:
            raise BodyUnreadable(
                f"key {key_id} was wrapped by another master key: check APC_SUBJECT_MASTER_KEY"
            ) from error
        return subject_key(key_id, secret)


# The table of subjects' keys (apc_keys.subject_keys): outside the log, because a row must be destroyable.

_KEPT = 10_000
"""Unwrapped keys in memory; whether one still exists is asked of the table each time."""
_HELD = """
SELECT subject, key_id, wrapped FROM apc_keys.subject_keys WHERE subject = ANY($1::text[]) ORDER BY subject
FOR KEY SHARE
"""
_ADD = """
INSERT INTO apc_keys.subject_keys (subject, key_id, wrapped)
SELECT * FROM unnest($1::text[], $2::uuid[], $3::bytea[]) ON CONFLICT (subject) DO NOTHING
"""
_BY_ID = "SELECT key_id, wrapped FROM apc_keys.subject_keys WHERE key_id = ANY($1::uuid[])"

Connection = asyncpg.Connection | PoolConnectionProxy


class KeyRing:
    """Reads, makes and unwraps subjects' keys."""

    def __init__(self, master: MasterKey) -> None:
        self._master = master
        self._unwrapped: OrderedDict[UUID, SubjectKey] = OrderedDict()

    @classmethod
    def of(cls, settings: EncryptionSettings) -> "KeyRing | None":
        """Return the ring of these settings; None without a master key."""
        secret = settings.master_secret
        return None if secret is None else cls(MasterKey(secret))

    async def of_subjects(self, connection: Connection, subjects: Collection[str]) -> dict[str, SubjectKey]:
        """Return a key for every subject, made when it has none; they cannot be destroyed until the transaction ends.

        Raises BodyUnreadable when the master key is another one.
        """
        wanted = sorted(set(subjects))
        rows = await connection.fetch(_HELD, wanted)
        missing = sorted(set(wanted).difference(row["subject"] for row in rows))
        if missing:
            made = [self._master.new_secret() for _ in missing]
            await connection.execute(_ADD, missing, [key for key, _ in made], [wrapped for _, wrapped in made])
            rows += await connection.fetch(_HELD, missing)
        return {row["subject"]: self._unwrap(row["key_id"], row["wrapped"]) for row in rows}

    async def by_id(self, connection: Connection, key_ids: Iterable[UUID]) -> dict[UUID, SubjectKey]:
        """Return those of these keys that still exist. Raises BodyUnreadable when the master key is another one."""
        rows = await connection.fetch(_BY_ID, list(set(key_ids)))
        return {row["key_id"]: self._unwrap(row["key_id"], row["wrapped"]) for row in rows}

    def _unwrap(self, key_id: UUID, wrapped: bytes) -> SubjectKey:
        key = self._unwrapped.get(key_id)
        if key is None:
            key = self._unwrapped[key_id] = self._master.unwrap(key_id, wrapped)
            if len(self._unwrapped) > _KEPT:
                self._unwrapped.popitem(last=False)
        return key


def require(ring: KeyRing | None) -> KeyRing:
    """Return the ring. Raises BodyUnreadable when there is none."""
    if ring is None:
        raise BodyUnreadable("the log holds encrypted bodies: set APC_SUBJECT_MASTER_KEY")
    return ring
