"""The table of subjects' keys (apc_keys.subject_keys): outside the log, because a row must be destroyable."""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from apc_bus.settings import EncryptionSettings
from apc_log.body_encryption import MasterKey, SubjectKey
from apc_log.errors import BodyUnreadable

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
