"""A start under a key: its ids follow from the key, and a repeated one finds the session of the first."""

from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

import asyncpg
import orjson

from apc_client.errors import KeyConflict
from apc_client.sending import PATIENCE
from apc_client.waiting import until
from apc_contracts.identity.ids import keyed_id
from apc_contracts.payloads.by_type import MessagePayload
from apc_contracts.wire.parsing import parse_packet
from apc_log.body_encryption import is_sealed
from apc_log.queries.bodies import opened_bodies
from apc_log.queries.rows import PacketRow
from apc_log.queries.trace import list_agent_packets
from apc_web.errors import InputUnusable


@dataclass(frozen=True, slots=True)
class KeyedStart:
    """The ids of a start, and the input that its caller wants to send."""

    key: str
    session_id: str
    start_id: UUID
    input_id: UUID
    payload: MessagePayload

    @classmethod
    def of(cls, owner: str, team: str, key: str, payload: MessagePayload) -> Self:
        """Return the start that a key of this owner names."""
        ids = [keyed_id(owner, team, key, what) for what in ("session", "start", "input")]
        return cls(key, str(ids[0]), ids[1], ids[2], payload)

    async def is_done(self, pool: asyncpg.Pool, agent_id: str, user: str) -> bool:
        """Return whether the session is open and has this input; False when this agent has to send START or input.

        The START may be that of another client of the same broker user, whose run had the key before. It gets some
        seconds for its input, since nobody else may send it.

        Raises:
            KeyConflict: the key was used for another input, by another broker user, or by a run that ended too early.
            InputUnusable: the input cannot be decrypted.
        """
        start = await self._accepted(pool, self.start_id)
        if start is None:
            return False
        opener = start.sender_agent_id
        if not is_by(start, agent_id, user):
            raise self._conflict(f"by {opener}, which this broker user does not speak for")
        found: list[PacketRow] = []

        async def has_input() -> bool:
            row = await self._accepted(pool, self.input_id)
            found[:] = [row] if row is not None else []
            return bool(found)

        try:
            if not await has_input() and opener != agent_id:
                await until(has_input, PATIENCE)
        except TimeoutError:
            raise self._conflict(f"by {opener}, whose run ended before it sent the input") from None
        if found:
            await self._compare(pool, found[0], opener)
        return bool(found)

    async def _accepted(self, pool: asyncpg.Pool, packet_id: UUID) -> PacketRow | None:
        rows = await list_agent_packets(pool, session_id=self.session_id, packet_id=packet_id, limit=1)
        return rows[0] if rows and rows[0].verdict != "refused" else None

    async def _compare(self, pool: asyncpg.Pool, before: PacketRow, opener: str) -> None:
        if not is_by(before, opener):
            raise self._conflict(f"by {opener}, and {before.sender_agent_id} sent the input")
        (row,) = await opened_bodies(pool, [before])
        if is_sealed(row.body):
            raise InputUnusable(
                f"key {self.key!r} was used before, for session {self.session_id}, whose input is encrypted: set "
                "APC_SUBJECT_MASTER_KEY to compare it, or attach to the session by its id"
            )
        if _content(parse_packet(row.body).payload_as(MessagePayload)) != _content(self.payload):
            raise self._conflict("for another input")

    def _conflict(self, how: str) -> KeyConflict:
        return KeyConflict(f"key {self.key!r} was used {how}, in session {self.session_id}: choose another key")


def is_by(row: PacketRow, agent_id: str, user: str | None = None) -> bool:
    """Return whether an agent sent the packet, or another agent of this broker user."""
    return row.sender_agent_id == agent_id or (user is not None and row.user_id == user)


def _content(payload: MessagePayload) -> Any:
    return payload.schema_id, orjson.dumps(dict(payload.content), option=orjson.OPT_SORT_KEYS)
