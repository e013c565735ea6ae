"""A bundle of `apc log export` as the source of a replay: no database, on whatever machine it was copied to.

It is taken as it stands: whether it is genuine, `apc log check` says.
"""

from base64 import b64decode
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

import orjson

from apc_contracts.replay.entries import ENVELOPE_COLUMNS, Entry, RecordedHop, RecordedPacket, RecordedTransition
from apc_contracts.vocabulary import PRESENCE_SESSION
from apc_log.body_encryption import is_sealed
from apc_log.errors import BundleUnreadable
from apc_log.offline_verifier import BUNDLE, COLUMNS

_PLACE = ("shard", "seq", "epoch", "batch_no")
_UUIDS = frozenset({"root_packet_id", "parent_packet_id", "cause_packet_id", "packet_id"})
_TIMES = frozenset({"created_at", "expires_at", "judged_at"})


class BundleRecords:
    """The entries of a run, from the lines of its bundle. Raises BundleUnreadable for anything else."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._sessions: dict[str, list[Entry]] = {}
        self._contracts: dict[bytes, bytes] = {}
        self.run_id = ""
        try:
            self._read(iter(lines))
        except (KeyError, ValueError, TypeError, IndexError, AttributeError, StopIteration) as error:
            raise BundleUnreadable(f"this is no bundle of `apc log export`: {error!r}") from error

    async def sessions(self, run_id: str) -> list[str]:
        """Return the sessions of the run, in the order in which they began; none of another run."""
        return list(self._sessions) if run_id == self.run_id else []

    async def document(self, session_id: str) -> Mapping[str, Any] | None:
        """Return a bundle holds entries alone, no projection."""
        return None

    async def contract(self, contract_hash: bytes) -> bytes | None:
        """Return the contract file with this hash."""
        return self._contracts.get(contract_hash)

    async def batches(self, session_id: str) -> AsyncGenerator[list[Entry]]:
        """Yield the entries of a session, those of one log batch at a time."""
        batch: list[Entry] = []
        for entry in self._sessions[session_id]:
            if batch and batch[-1].batch != entry.batch:
                yield batch
                batch = []
            batch.append(entry)
        yield batch

    def _read(self, lines: Any) -> None:
        head = orjson.loads(next(lines))
        if head["format"] != BUNDLE:
            raise ValueError(f"format {head['format']!r}")
        self.run_id = head["run_id"]
        bodies = [text.encode() for text in head["contracts"]]
        self._contracts = {sha256(body).digest(): body for body in bodies}
        for line in lines:
            item = orjson.loads(line)
            if "entry" in item:
                self._add(*orjson.loads(item["entry"]), body=item.get("body"))

    def _add(self, kind: str, version: int, shard: int, seq: int, *columns: Any, body: str | None) -> None:
        recorded = _READERS.get(kind)
        if recorded is None:
            return
        values = dict(zip(COLUMNS[kind, version], columns, strict=True)) | {"shard": shard, "seq": seq}
        if values["session_id"] != PRESENCE_SESSION:
            self._sessions.setdefault(values["session_id"], []).append(recorded(values, body))


def _packet(values: dict[str, Any], body: str | None) -> RecordedPacket:
    read = {name: _value(name, value) for name, value in values.items()}
    stored = None if body is None else b64decode(body, validate=True)
    names = ("packet_id", "judged_at", "cause_packet_id", "round", "step", "verdict", "refusal", "facts", "user_id")
    return RecordedPacket(
        **{name: read[name] for name in (*_PLACE, *names)},
        recipients=tuple(values["recipients"]),
        contract_hash=bytes.fromhex(values["contract_hash"]),
        packet_hash=bytes.fromhex(values["packet_hash"]),
        body=None if stored is None or is_sealed(stored) else stored,
        envelope={name: read[name] for name in ENVELOPE_COLUMNS},
    )


def _hop(values: dict[str, Any], _body: str | None) -> RecordedHop:
    names = ("recipient", "attempt", "from_state", "to_state", "events", "actor", "metadata")
    return RecordedHop(
        **{name: values[name] for name in (*_PLACE, *names)},
        packet_id=UUID(values["packet_id"]),
        occurred_at=[datetime.fromisoformat(at) for at in values["occurred_at"]],
    )


def _transition(values: dict[str, Any], _body: str | None) -> RecordedTransition:
    names = ("event", "from_state", "to_state", "round", "generation", "step", "facts")
    return RecordedTransition(
        **{name: values[name] for name in (*_PLACE, *names)}, cause=UUID(values["cause_packet_id"])
    )


def _value(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _UUIDS:
        return UUID(value)
    return datetime.fromisoformat(value) if name in _TIMES else value


_READERS: Mapping[str, Callable[[dict[str, Any], str | None], Entry]] = {
    "packet": _packet,
    "hop": _hop,
    "coordination": _transition,
}
