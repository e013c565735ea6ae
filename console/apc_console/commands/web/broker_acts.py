"""The acts of the web console: the same functions as the command line, over the server's pool."""

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from apc_bus.settings import BusSettings
from apc_client.answering import AnswerForm, answer_over
from apc_console.commands.dead_letter.dead_letters_control import settle_deliveries
from apc_console.commands.session.session_control import signal_over
from apc_console.connections.broker import broker_user, open_bus
from apc_console.errors import InputUnusable
from apc_contracts.payloads.questions import AnswerOutcome
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.receipts import ReceiptKind
from apc_log.queries import DeliveryId
from apc_log.registry import registered_people
from apc_web.acts.operations import ActResult


class BrokerActs:
    """Acts of the registered operator of this server's broker user.

    Args:
        pool: reads the log.
        settings: the broker; each act opens its own connection.
        operator: the agent in whose name signals are sent; None = the first operator of the broker user.
    """

    def __init__(self, pool: asyncpg.Pool, settings: BusSettings, operator: str | None = None) -> None:
        self._pool = pool
        self._settings = settings
        self._operator = operator

    async def settle(
        self, kind: ReceiptKind, deliveries: Sequence[DeliveryId], note: str | None, by: str | None
    ) -> ActResult:
        """Requeue or discard dead deliveries. Raises InputUnusable, ServiceAway, BusError."""
        rows = await settle_deliveries(self._pool, self._settings, kind, deliveries, await self._said(note, by))
        return ActResult("accepted", {"deliveries": rows})

    async def answer(self, packet_id: UUID, outcome: AnswerOutcome, note: str | None, person: str | None) -> ActResult:
        """Approve or deny what an agent asks people. Raises InputUnusable, ServiceAway, BusError."""
        if person is not None:
            await self._check(person)
        form = AnswerForm(packet_id, outcome, note, person)
        async with open_bus(self._settings) as bus:
            who = await answer_over(bus, self._pool, self._settings.shards, form)
        return ActResult("accepted", {"outcome": outcome.value, "by": who})

    async def signal(self, session_id: str, signal: Signal, reason: str | None, by: str | None) -> ActResult:
        """Pause, resume or stop a session. Raises InputUnusable, ServiceAway, BusError."""
        state = await signal_over(
            self._pool, self._settings, session_id, signal, self._operator, await self._said(reason, by)
        )
        return ActResult("accepted", {"state": state})

    async def _said(self, note: str | None, by: str | None) -> str | None:
        """Return what the log keeps of an act: who did it, and why."""
        if by is None:
            return note
        await self._check(by)
        return f"{by}: {note}" if note else by

    async def _check(self, person: str) -> None:
        """Raise InputUnusable for somebody who is no registered person whom this server may speak for."""
        user = broker_user(self._settings)
        if not any(one.agent_id == person and one.speaks_as(user) for one in await registered_people(self._pool)):
            raise InputUnusable(
                f"{person} is no registered person for whom the broker user {user} speaks: "
                f"`apc agent add {person} --person --role operator --via {user}`"
            )
