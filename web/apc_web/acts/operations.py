"""What an operator can do to a running system."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from apc_contracts.payloads.questions import AnswerOutcome
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.receipts import ReceiptKind
from apc_log.queries import DeliveryId


@dataclass(frozen=True, slots=True)
class ActResult:
    """What became of an act: a verdict or a state, and its details."""

    verdict: str
    detail: dict[str, Any]


class Acts(Protocol):
    """Acts of operators. `by` is the person who acts; None = the operator of this server.

    Each act waits until the log shows its effect. It raises InputUnusable when it is not possible, and ServiceAway when
    broker, gate or log do not answer.
    """

    async def why_not(self, by: str | None) -> str | None:
        """Return why somebody may not operate now, one sentence; None when they may."""
        ...

    async def voices(self, by: str | None) -> frozenset[str]:
        """Return the people in whose names somebody may answer."""
        ...

    async def settle(
        self, kind: ReceiptKind, deliveries: Sequence[DeliveryId], note: str | None, by: str | None
    ) -> ActResult:
        """Requeue or discard dead deliveries."""
        ...

    async def answer(self, packet_id: UUID, outcome: AnswerOutcome, note: str | None, person: str | None) -> ActResult:
        """Approve or deny what an agent asks people; `person` None = the only one asked whom this server speaks for."""
        ...

    async def signal(self, session_id: str, signal: Signal, reason: str | None, by: str | None) -> ActResult:
        """Pause, resume or stop a session."""
        ...
