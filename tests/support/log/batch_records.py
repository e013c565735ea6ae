"""Log batches as the source of a replay: what a database would give back, without one."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson

from apc_contracts.replay.entries import ENVELOPE_COLUMNS, Entry, RecordedHop, RecordedPacket, RecordedTransition
from apc_contracts.vocabulary import PRESENCE_SESSION
from apc_log.batch import CoordinationEntry, HopEntry, LogBatch, PacketEntry


class BatchRecords:
    """The entries of log batches of one shard, as `apc_log.queries.replay.Records`."""

    def __init__(self, batches: Sequence[LogBatch]) -> None:
        self.entries: dict[str, list[Entry]] = {}
        self._documents: dict[str, dict[str, Any]] = {}
        self.runs: dict[str, list[str]] = {}
        seq = 0
        for batch in batches:
            for entry in batch.entries:
                seq += 1
                place = {"shard": batch.shard, "seq": seq, "epoch": batch.epoch, "batch_no": batch.batch_no}
                if isinstance(entry, PacketEntry | HopEntry | CoordinationEntry):
                    recorded = _recorded(entry, place, batch.judged_at)
                    self.entries.setdefault(entry.session_id, []).append(recorded)
                if isinstance(entry, PacketEntry) and entry.session_id != PRESENCE_SESSION:
                    sessions = self.runs.setdefault(entry.run_id, [])
                    if entry.session_id not in sessions:
                        sessions.append(entry.session_id)
            for row in batch.sessions:
                self._documents[row.session_id] = orjson.loads(row.document)

    async def sessions(self, run_id: str) -> list[str]:
        return self.runs.get(run_id, [])

    async def document(self, session_id: str) -> Mapping[str, Any] | None:
        return self._documents.get(session_id)

    async def contract(self, contract_hash: bytes) -> bytes | None:
        return None

    async def batches(self, session_id: str) -> AsyncGenerator[list[Entry]]:
        batch: list[Entry] = []
        for entry in self.entries.get(session_id, ()):
            if batch and batch[-1].batch != entry.batch:
                yield batch
                batch = []
            batch.append(entry)
        if batch:
            yield batch


def _recorded(entry: PacketEntry | HopEntry | CoordinationEntry, place: dict[str, int], judged_at: datetime) -> Entry:
    if isinstance(entry, PacketEntry):
        return RecordedPacket(
            **place,
            packet_id=entry.packet_id,
            judged_at=judged_at,
            recipients=tuple(entry.recipients),
            cause_packet_id=entry.cause_packet_id,
            round=entry.round,
            step=entry.step,
            verdict=entry.verdict,
            refusal=None if entry.refusal is None else orjson.loads(entry.refusal),
            contract_hash=entry.contract_hash,
            facts=orjson.loads(entry.facts),
            user_id=entry.user_id,
            packet_hash=entry.packet_hash,
            body=entry.body,
            envelope={name: getattr(entry, name) for name in ENVELOPE_COLUMNS},
        )
    if isinstance(entry, HopEntry):
        return RecordedHop(
            **place,
            packet_id=entry.packet_id,
            recipient=entry.recipient,
            attempt=entry.attempt,
            from_state=entry.from_state,
            to_state=entry.to_state,
            events=entry.events,
            occurred_at=entry.occurred_at,
            actor=entry.actor,
            metadata=None if entry.metadata is None else orjson.loads(entry.metadata),
        )
    return RecordedTransition(
        **place,
        event=entry.event,
        from_state=entry.from_state,
        to_state=entry.to_state,
        round=entry.round,
        generation=entry.generation,
        step=entry.step,
        cause=entry.cause_packet_id,
        facts=orjson.loads(entry.facts),
    )
