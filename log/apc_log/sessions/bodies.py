"""Reads stored bodies back: as they came, or encrypted under the key of a subject that was not erased."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from apc_log.body_encryption import SealedContent, SubjectKey, is_sealed, key_id_of
from apc_log.subject_keys import Connection, KeyRing, require


@dataclass(frozen=True, slots=True)
class Bodies:
    """The keys of some stored bodies, as far as they still exist."""

    keys: Mapping[UUID, SubjectKey]

    def content(self, stored: bytes) -> SealedContent | None:
        """Return what a sealed body holds; None when its subject was erased.

        Raises BodyUnreadable when it was altered.
        """
        key = self.keys.get(key_id_of(stored))
        return None if key is None else key.unseal_packet(stored)

    def received(self, stored: bytes) -> bytes | None:
        """Return the bytes as they were received; None when their subject was erased. Raises BodyUnreadable."""
        if not is_sealed(stored):
            return stored
        content = self.content(stored)
        return None if content is None else content.body


async def open_bodies(connection: Connection, ring: KeyRing | None, stored: Iterable[bytes | None]) -> Bodies:
    """Return the keys of those of these bodies that are sealed. Raises BodyUnreadable without the right master key."""
    ids = {key_id_of(body) for body in stored if body is not None and is_sealed(body)}
    return Bodies(await require(ring).by_id(connection, ids) if ids else {})
