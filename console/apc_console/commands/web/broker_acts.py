"""The acts of the web console: the same functions as `apc dead-letter` and `apc session`, over the server's pool."""

from collections.abc import Sequence

import asyncpg

from apc_bus.settings import BusSettings
from apc_console.commands.dead_letter.dead_letters_control import settle_deliveries
from apc_console.commands.session.session_control import signal_over
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.receipts import ReceiptKind
from apc_log.queries import DeliveryId
from apc_web.acts.port import ActResult


class BrokerActs:
    """Acts of the registered operator of this server's broker user.

    Args:
        pool: reads the log.
        settings: the broker; each act opens a connection of its own.
    """

    def __init__(self, pool: asyncpg.Pool, settings: BusSettings) -> None:
        self._pool = pool
        self._settings = settings

    async def settle(self, kind: ReceiptKind, deliveries: Sequence[DeliveryId], note: str | None) -> ActResult:
        """Requeue or discard dead deliveries. Raises InputUnusable, ServiceAway, BusError."""
        rows = await settle_deliveries(self._pool, self._settings, kind, deliveries, note)
        return ActResult("accepted", {"deliveries": rows})

    async def signal(self, session_id: str, signal: Signal, reason: str | None) -> ActResult:
        """Pause, resume or stop a session. Raises InputUnusable, ServiceAway, BusError."""
        state = await signal_over(self._pool, self._settings, session_id, signal, None, reason)
        return ActResult("accepted", {"state": state})
