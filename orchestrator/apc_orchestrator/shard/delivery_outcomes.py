"""The outcome of the gate's own deliveries: confirmed by the broker, or refused."""

from collections import deque
from datetime import datetime

import structlog

from apc_bus.telemetry import CountedWarning
from apc_contracts.vocabulary import SUBSTRATE_RECIPIENT
from apc_contracts.wire.receipts import Receipt, ReceiptKind
from apc_orchestrator.batch import Batch, Outgoing
from apc_orchestrator.errors import SessionUnloadable
from apc_orchestrator.judging.judge import Judge
from apc_orchestrator.shard.intake import InputIntake
from apc_orchestrator.shard.session_loader import SessionLoader

_log = structlog.get_logger("apc_orchestrator")


class Reports:
    """Collects reports while a batch is sent, and judges them with the next one."""

    def __init__(self, judge: Judge, loader: SessionLoader, intake: InputIntake) -> None:
        self._judge = judge
        self._loader = loader
        self._intake = intake
        self._waiting: deque[tuple[Outgoing, str | None]] = deque()
        self._undeliverable = CountedWarning(_log, "nack_undeliverable")

    def __len__(self) -> int:
        """Return the number of reports that wait for their session."""
        return len(self._waiting)

    def note(self, outgoing: Outgoing, failure: str | None) -> None:
        """Take the report of one delivery: None = confirmed, else the reason of the broker's refusal."""
        is_substrate = outgoing.recipient == SUBSTRATE_RECIPIENT
        if failure is not None and outgoing.packet_id is None:
            nack_id = outgoing.publication.message.message_id
            self._undeliverable.note(packet_id=nack_id, agent_id=outgoing.recipient, reason=failure)
        elif failure is not None or is_substrate:
            self._waiting.append((outgoing, failure))
            self._intake.wake()
        else:
            self._judge.confirm_delivery(outgoing)

    async def judge(self, batch: Batch) -> None:
        """Judge what was reported. The sessions may have been evicted meanwhile."""
        reports, self._waiting = self._waiting, deque()
        for outgoing, failure in reports:
            if outgoing.packet_id is None:
                continue
            try:
                session = await self._loader.load(outgoing.session_id)
            except SessionUnloadable:
                self._waiting.append((outgoing, failure))
                continue
            if session is None:
                continue
            if failure is None:
                self._judge.confirm_substrate(batch, session, outgoing.packet_id)
            else:
                self._judge.take_receipts(batch, session, (_failed(outgoing, failure, batch.now),))


def _failed(outgoing: Outgoing, failure: str, now: datetime) -> Receipt:
    """Return the receipt of a delivery that the broker refused."""
    assert outgoing.packet_id is not None
    return Receipt(
        packet_id=outgoing.packet_id,
        session_id=outgoing.session_id,
        recipient=outgoing.recipient,
        kind=ReceiptKind.DEAD_LETTERED,
        attempt=outgoing.attempt,
        at=now,
        error=failure,
    )
