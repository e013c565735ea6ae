"""Bodies of packets as they were received: those that the log holds encrypted are opened while their key exists."""

from collections.abc import Sequence
from dataclasses import replace

import asyncpg
import orjson

from apc_bus.settings import EncryptionSettings
from apc_log.body_encryption import SubjectKey, is_sealed, key_id_of
from apc_log.queries.rows import PacketRow
from apc_log.subject_keys import KeyRing


async def opened_bodies(
    pool: asyncpg.Pool, rows: Sequence[PacketRow], ring: KeyRing | None = None
) -> tuple[PacketRow, ...]:
    """Read of these packets what was received: body, packet_hash, signature and refusal of each whose key exists.

    A body whose key was destroyed stays sealed, and so do all of them without a master key (`ring`, by default that of
    the settings). Raises BodyUnreadable when the keys were wrapped by another master key, or a body was altered.
    """
    sealed = {row.position: key_id_of(row.body) for row in rows if is_sealed(row.body)}
    if not sealed:
        return tuple(rows)
    ring = ring or KeyRing.of(EncryptionSettings())
    if ring is None:
        return tuple(rows)
    async with pool.acquire() as connection:
        keys = await ring.by_id(connection, sealed.values())
    return tuple(_opened(row, keys.get(sealed[row.position])) if row.position in sealed else row for row in rows)


def _opened(row: PacketRow, key: SubjectKey | None) -> PacketRow:
    if key is None:
        return row
    content = key.unseal_packet(row.body)
    refusal = None if content.refusal is None else orjson.loads(content.refusal)
    return replace(
        row, body=content.body, packet_hash=content.packet_hash, signature=content.signature, refusal=refusal
    )
