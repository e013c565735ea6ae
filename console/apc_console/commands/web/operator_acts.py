"""The acts of the web console: the same functions as the command line, over the server's pool."""

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from apc_bus.settings import BusSettings
from apc_client.operator import acting_operator
from apc_client.sending import AnswerForm, answer_over
from apc_console.commands.dead_letter.dead_letters_control import settle_deliveries
from apc_console.commands.session.session_control import signal_over
from apc_console.connections.door import find_door
from apc_console.errors import InputUnusable, ServiceAway
from apc_contracts.payloads.questions import AnswerOutcome
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.receipts import ReceiptKind
from apc_log.queries import DeliveryId
from apc_log.registry import registered_people
from apc_web.route_services import ActResult


class OperatorActs:
    """Acts of people for whom this server's broker user speaks.

    Args:
        pool: reads the log.
        settings: the system; each act opens its own connection.
        operator: in whose name somebody acts who has no account; None = the person `operator`, or the first agent of
            the broker user with the right.
    """

    def __init__(self, pool: asyncpg.Pool, settings: BusSettings, operator: str | None = None) -> None:
        self._pool = pool
        self._settings = settings
        self._operator = operator

    async def why_not(self, by: str | None) -> str | None:
        """Return why somebody has no acts now: nobody listens, or they are not registered for them."""
        try:
            door = find_door(self._settings)
            await door.check()
            await acting_operator(self._pool, door.user, by or self._operator)
        except (InputUnusable, ServiceAway) as error:
            return str(error)
        return None

    async def voices(self, by: str | None) -> frozenset[str]:
        """Return the people in whose names somebody may answer; nobody while nobody listens."""
        try:
            user = find_door(self._settings).user
        except InputUnusable:
            return frozenset()
        able = {one.agent_id for one in await registered_people(self._pool) if one.speaks_as(user)}
        return frozenset(able if by is None else able & {by})

    async def settle(
        self, kind: ReceiptKind, deliveries: Sequence[DeliveryId], note: str | None, by: str | None
    ) -> ActResult:
        """Requeue or discard dead deliveries. Raises InputUnusable, ServiceAway, BusError."""
        door = find_door(self._settings)
        who = (await acting_operator(self._pool, door.user, by or self._operator)).agent_id
        rows = await settle_deliveries(self._pool, door, kind, deliveries, note, who)
        return ActResult("accepted", {"deliveries": rows, "by": who})

    async def answer(self, packet_id: UUID, outcome: AnswerOutcome, note: str | None, person: str | None) -> ActResult:
        """Approve or deny what an agent asks people. Raises InputUnusable, ServiceAway, BusError."""
        door = find_door(self._settings)
        if person is not None and person not in await self.voices(person):
            add = f"apc agent add {person} --person --role ROLE --via {door.user}"
            way = f"start `apc up --person {person}:ROLE`" if door.is_socket else f"`{add}`"
            raise InputUnusable(f"{person} is no registered person for whom the broker user {door.user} speaks: {way}")
        form = AnswerForm(packet_id, outcome, note, person)
        async with door.open() as bus:
            who = await answer_over(bus, self._pool, door.shards, form)
        return ActResult("accepted", {"outcome": outcome.value, "by": who})

    async def signal(self, session_id: str, signal: Signal, reason: str | None, by: str | None) -> ActResult:
        """Pause, resume or stop a session. Raises InputUnusable, ServiceAway, BusError."""
        door, named = find_door(self._settings), by or self._operator
        state, who = await signal_over(self._pool, door, session_id, signal, named, reason)
        return ActResult("accepted", {"state": state, "by": who})
