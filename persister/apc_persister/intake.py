"""What the writer makes of the messages of a log queue: pure, so that fencing can be tested alone.

A message is read without the database (`read_message`); then, under the lock on the shard's head, each is weighed in
order (`BatchIntake.take`): an epoch opening, a batch that follows, a duplicate, a fenced batch, or a reason to stop.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from re import fullmatch
from uuid import UUID

import msgspec

from apc_bus.headers import UNREADABLE as UNREADABLE_PROPERTIES
from apc_bus.port import Delivery
from apc_bus.settings.services import ORCHESTRATOR_NAME
from apc_contracts.errors import PacketRefused
from apc_log.batch import (
    EPOCH_OPEN_TYPE,
    LOG_BATCH_TYPE,
    LOG_BATCH_VERSION,
    SIGNS_TYPE,
    ConflictEntry,
    Entry,
    EpochOpen,
    LogBatch,
    OpeningBatch,
    PacketEntry,
    RegistryEntry,
    SessionUpdate,
    SignsOfLifeReport,
    decode_batch,
    decode_epoch_open,
    decode_signs,
)
from apc_log.entries import Placed
from apc_persister.errors import BatchEndsWriter, BatchGap, BatchUnsupported, EpochUnknown, LogStopped, ShardMismatch

# Rows of packet_conflicts that the writer itself makes; each stands at the place of the entry that it replaces.

DUPLICATE_ID = "duplicate_id"
"""The packet's id is in the log already: the first row stands."""
DUPLICATE_EVENT = "duplicate_event"
"""A hop, lineage block, transition or registry change that the log has already."""
UNSTORABLE = "unstorable"
"""PostgreSQL refused the entry, for example a NUL in a text; `raw` is its MessagePack."""
FENCED = "fenced"
"""A batch of an orchestrator that had lost its shard; `raw` is the message."""
UNREADABLE = "unreadable"
"""A message of the log queue that is no batch; `raw` is its body."""

_MAX_REASON = 500


def duplicate_id(entry: PacketEntry, first_hash: bytes) -> ConflictEntry:
    """Build the entry that replaces a packet whose id is known."""
    same = "the same content" if first_hash == entry.packet_hash else "other content"
    return ConflictEntry(
        session_id=entry.session_id,
        packet_id=entry.packet_id,
        kind=DUPLICATE_ID,
        code=None,
        reason=f"the id is in the log already, with {same}",
        raw=entry.body,
        first_hash=first_hash,
        second_hash=entry.packet_hash,
        user_id=entry.user_id,
    )


def unstorable(entry: Entry | SessionUpdate, kind: str, error: Exception) -> ConflictEntry:
    """Build the entry that replaces one that cannot be stored. Its texts may be the culprit: they stay inside `raw`."""
    raw = msgspec.msgpack.Encoder(uuid_format="bytes").encode(entry)
    reason = f"{type(error).__name__}: {error}".replace("\0", "\\0")
    return ConflictEntry(
        session_id=None,
        packet_id=getattr(entry, "packet_id", None),
        kind=kind,
        code=None,
        reason=reason[:_MAX_REASON],
        raw=raw,
        first_hash=None,
        second_hash=sha256(raw).digest(),
        user_id=None,
    )


def whole_message(kind: str, reason: str, body: bytes) -> ConflictEntry:
    """Build the entry for a message of which no entry was taken."""
    return ConflictEntry(
        session_id=None,
        packet_id=None,
        kind=kind,
        code=None,
        reason=reason[:_MAX_REASON],
        raw=body,
        first_hash=None,
        second_hash=sha256(body).digest(),
        user_id=None,
    )


# Changes of the registry: what the log takes in must be readable, because view `agents` follows from it.


def check_changes(placed: Iterable[Placed]) -> None:
    """Raise ValueError when one of these entries is a change that breaks the contract."""
    for item in placed:
        if isinstance(item.entry, RegistryEntry):
            _check(item.entry)


def with_checked_changes(placed: Iterable[Placed]) -> list[Placed]:
    """Return the entries; a change that breaks the contract becomes a conflict at its place."""
    return [_checked(item) for item in placed]


def _checked(item: Placed) -> Placed:
    if isinstance(item.entry, RegistryEntry):
        try:
            _check(item.entry)
        except ValueError as error:
            return item._replace(entry=unstorable(item.entry, UNSTORABLE, error))
    return item


def _check(entry: RegistryEntry) -> None:
    # Rare, and the models of the contract take a while to import.
    from apc_contracts.identity.registry_change import parse_logged_change

    try:
        change = parse_logged_change(entry.change)
    except PacketRefused as error:
        raise ValueError(str(error)) from error
    if (change.change_id, change.subject) != (entry.change_id, entry.agent_id):
        raise ValueError("the change names another agent or another change than its entry")


Content = LogBatch | EpochOpen | SignsOfLifeReport | ConflictEntry | LogStopped

_NO_MESSAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What MessagePack that is none ends with: texts that are not UTF-8 and very deep values too."""


@dataclass(frozen=True, slots=True)
class Received:
    """A delivery and what it says.

    A ConflictEntry stands for a body that nobody can read, LogStopped for one that must not be passed over.
    """

    delivery: Delivery
    content: Content

    @property
    def entries(self) -> int:
        """How many entries it will take in the log."""
        return len(self.content.entries) if isinstance(self.content, LogBatch) else 1


def read_message(shard: int, delivery: Delivery) -> Received:
    """Decode a message of the log queue of this shard. Raises nothing."""
    if delivery.set_aside is not None:
        return Received(delivery, BatchEndsWriter(shard))
    message = delivery.message
    if UNREADABLE_PROPERTIES in message.headers:
        return Received(delivery, whole_message(UNREADABLE, "its AMQP properties cannot be read", message.body))
    return Received(delivery, _read(shard, message.type, message.body))


def _read(shard: int, message_type: str, body: bytes) -> Content:
    try:
        content = _decode(message_type, body)
    except _NO_MESSAGE as error:
        version = _version_of(body)
        if isinstance(version, int) and version != LOG_BATCH_VERSION:
            return BatchUnsupported(shard, version)
        return whole_message(UNREADABLE, str(error), body)
    if isinstance(content, ConflictEntry):
        return content
    if content.version != LOG_BATCH_VERSION:
        return BatchUnsupported(shard, content.version)
    if content.shard != shard:
        return ShardMismatch(shard, content.shard)
    return content


def _decode(message_type: str, body: bytes) -> LogBatch | EpochOpen | SignsOfLifeReport | ConflictEntry:
    if message_type == LOG_BATCH_TYPE:
        return decode_batch(body)
    if message_type == EPOCH_OPEN_TYPE:
        return decode_epoch_open(body)
    if message_type == SIGNS_TYPE:
        return decode_signs(body)
    return whole_message(UNREADABLE, f"unknown message type {message_type!r}".replace("\0", "\\0"), body)


def _version_of(body: bytes) -> object:
    """Return the first element, where a batch of any release says its version."""
    try:
        parts = msgspec.msgpack.decode(body)
    except _NO_MESSAGE:
        return None
    return parts[0] if isinstance(parts, list) and parts else None


@dataclass(slots=True)
class Head:
    """Where the log of a shard ends; one row of apc_log.shards."""

    shard: int
    epoch: int = 0
    holder: UUID | None = None
    batch_no: int = 0
    next_seq: int = 1
    bounded_seq: int = 0
    """Up to this entry the ranges of the sessions take every entry in."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One row of apc_log.shard_epochs: an epoch that was given, and the last batch before it."""

    epoch: int
    holder: UUID
    mark_epoch: int
    mark_batch_no: int
    orchestrator: str | None = None
    """Its name, if the opening said one that can be stored."""


@dataclass(slots=True)
class BatchIntake:
    """The content of one transaction, built message by message."""

    head: Head
    known: dict[UUID, Epoch]
    """Earlier epochs by holder: those that the messages ask for."""
    last_batch: dict[int, int]
    """epoch -> its last batch, for the older epochs that the messages name."""
    placed: list[Placed] = field(default_factory=list)
    opened: list[Epoch] = field(default_factory=list)
    sessions: dict[str, tuple[int, int, SessionUpdate]] = field(default_factory=dict)
    """session_id -> epoch, batch_no and the last row; an earlier one of the same transaction is overtaken."""
    contracts: set[bytes] = field(default_factory=set)
    """The contract files that the openings brought along."""
    signs: dict[str, datetime] = field(default_factory=dict)
    """agent_id -> its newest sign of life: no entry of the log."""
    duplicates: int = 0
    fenced: int = 0

    def take(self, received: Received, now: datetime) -> None:
        """Weigh the next message. Raises LogStopped, and has then changed nothing."""
        match received.content:
            case EpochOpen() as opening:
                self._open(opening)
            case LogBatch() as batch:
                self._take_batch(batch, received.delivery.message.body)
            case SignsOfLifeReport() as report:
                self.signs |= report.signs
            case ConflictEntry() as conflict:
                self.place([conflict], self.head.epoch, self.head.batch_no, now)
            case LogStopped() as error:
                raise error

    def place(self, entries: Iterable[Entry], epoch: int, batch_no: int, judged_at: datetime) -> None:
        """Give each entry the next number of the shard."""
        head = self.head
        shard = head.shard
        numbered = enumerate(entries, head.next_seq)
        before = len(self.placed)
        self.placed += [Placed((shard, seq, epoch, batch_no), judged_at, entry) for seq, entry in numbered]
        head.next_seq += len(self.placed) - before

    def _open(self, opening: EpochOpen) -> None:
        if opening.holder in self.known:
            self.duplicates += 1
            return
        if opening.contract:
            self.contracts.add(opening.contract)
        head = self.head
        name = opening.orchestrator if fullmatch(ORCHESTRATOR_NAME, opening.orchestrator) else None
        epoch = Epoch(head.epoch + 1, opening.holder, head.epoch, head.batch_no, name)
        self.known[opening.holder] = epoch
        self.last_batch[head.epoch] = head.batch_no
        self.opened.append(epoch)
        head.epoch, head.holder, head.batch_no = epoch.epoch, opening.holder, 0

    def _take_batch(self, batch: LogBatch, body: bytes) -> None:
        head = self.head
        if batch.epoch > head.epoch:
            raise EpochUnknown(head.shard, head.epoch, batch.epoch)
        last = head.batch_no if batch.epoch == head.epoch else self.last_batch.get(batch.epoch, 0)
        if batch.batch_no <= last:
            self.duplicates += 1
        elif batch.epoch < head.epoch:
            self._fence(batch, body)
        elif batch.batch_no > last + 1:
            raise BatchGap(head.shard, head.epoch, last + 1, batch.batch_no)
        else:
            head.batch_no = batch.batch_no
            if isinstance(batch, OpeningBatch):
                self.contracts.update(batch.contracts)
            self.place(batch.entries, batch.epoch, batch.batch_no, batch.judged_at)
            for row in batch.sessions:
                self.sessions[row.session_id] = (batch.epoch, batch.batch_no, row)

    def _fence(self, batch: LogBatch, body: bytes) -> None:
        self.fenced += 1
        reason = f"batch {batch.batch_no} of epoch {batch.epoch} came after epoch {self.head.epoch} was given"
        conflict = whole_message(FENCED, reason, body)
        self.place([conflict], self.head.epoch, self.head.batch_no, batch.judged_at)
