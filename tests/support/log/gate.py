"""An orchestrator by script: it numbers and publishes real batches and judges nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID, uuid4

from apc_bus.port import Bus, Message, Publication
from apc_bus.topology import LOG
from apc_log.batch import (
    CONTENT_TYPE,
    EPOCH_OPEN_TYPE,
    LOG_BATCH_TYPE,
    LOG_BATCH_VERSION,
    SIGNS_TYPE,
    Entry,
    EpochOpen,
    LogBatch,
    SessionUpdate,
    SignsOfLifeReport,
    encode,
)


@dataclass(slots=True)
class ScriptedGate:
    """Numbers batches as an orchestrator does and publishes them to the log queue of its shard."""

    bus: Bus
    shard: int = 0
    epoch: int = 0
    batch_no: int = 0
    holder: UUID = field(default_factory=uuid4)

    async def open(self) -> None:
        """Take the shard with a fresh holder. The epoch is what one orchestrator after another gets."""
        self.holder = uuid4()
        self.epoch, self.batch_no = self.epoch + 1, 0
        await self.publish(encode(EpochOpen(LOG_BATCH_VERSION, self.shard, self.holder)), EPOCH_OPEN_TYPE)

    async def log(self, entries: Sequence[Entry], sessions: Sequence[SessionUpdate] = ()) -> LogBatch:
        """Publish the next batch."""
        self.batch_no += 1
        batch = self.batch(entries, sessions)
        await self.publish(encode(batch), LOG_BATCH_TYPE)
        return batch

    async def hear(self, *agents: str, at: datetime | None = None) -> None:
        """Report that these agents were heard of, by default just now."""
        signs = dict.fromkeys(agents, at or datetime.now(UTC))
        await self.publish(encode(SignsOfLifeReport(LOG_BATCH_VERSION, self.shard, signs)), SIGNS_TYPE)

    def batch(self, entries: Sequence[Entry], sessions: Sequence[SessionUpdate] = ()) -> LogBatch:
        """Return a batch with the present number."""
        return LogBatch(
            LOG_BATCH_VERSION,
            self.shard,
            self.epoch,
            self.batch_no,
            datetime.now(UTC),
            list(entries),
            list(sessions),
        )

    async def publish(self, body: bytes, message_type: str) -> None:
        """Publish any body to the log queue."""
        message = Message(body, message_id=str(uuid4()), type=message_type, content_type=CONTENT_TYPE)
        await self.bus.publish(Publication(LOG, str(self.shard), message))
