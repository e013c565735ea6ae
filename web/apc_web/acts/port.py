"""What an operator can do to a running system."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from apc_contracts.vocabulary import Signal
from apc_contracts.wire.receipts import ReceiptKind
from apc_log.queries import DeliveryId


@dataclass(frozen=True, slots=True)
class ActResult:
    """What became of an act: a verdict or a state, and its details."""

    verdict: str
    detail: dict[str, Any]


class Acts(Protocol):
    """Acts of one operator. Each waits until the log shows its effect.

    Every method raises InputUnusable when the act is not possible, and ServiceAway when broker, gate or log do not
    answer.
    """

    async def settle(self, kind: ReceiptKind, deliveries: Sequence[DeliveryId], note: str | None) -> ActResult:
        """Requeue or discard dead deliveries."""
        ...

    async def signal(self, session_id: str, signal: Signal, reason: str | None) -> ActResult:
        """Pause, resume or stop a session."""
        ...
