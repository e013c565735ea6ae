"""Send acts to a system of the same user in another process, through the socket of its data folder."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from apc_bus.port import Publication, QueueDepth
from apc_client.acts.act_lines import (
    DEPTHS,
    INBOXES,
    LONGEST_LINE,
    NoAct,
    decode_depths,
    decode_line,
    encode_act,
    encode_line,
)
from apc_client.acts.act_socket import NAME, address_of, is_own_peer, socket_path, socket_problem
from apc_web.errors import InputUnusable, ServiceAway

PATIENCE_SECONDS = 5.0
"""To connect, and for each answer."""


class ActSender:
    """Publishes acts in a system of another process.

    Args:
        user: in whose name that system publishes.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, user: str) -> None:
        self._reader = reader
        self._writer = writer
        self._user = user

    @property
    def user(self) -> str:
        """The broker user in whose name that system publishes."""
        return self._user

    async def publish(self, publication: Publication) -> None:
        """Send one act and wait until that system has it. Raises InputUnusable, ServiceAway."""
        self._writer.write(encode_act(publication.message))
        error = (await _answer(self._reader)).get("error")
        if error is not None:
            raise InputUnusable(f"the system did not take it: {error}")

    async def depths(self) -> dict[str, QueueDepth]:
        """Return the depths of the queues of gates and log writers, by name. Raises ServiceAway."""
        self._writer.write(encode_line({"type": DEPTHS}))
        return decode_depths(await _answer(self._reader))

    async def inboxes(self, agents: Sequence[str]) -> dict[str, QueueDepth]:
        """Return the depth of both queues of each agent, by agent. Raises ServiceAway."""
        self._writer.write(encode_line({"type": INBOXES, "agents": list(agents)}))
        return decode_depths(await _answer(self._reader))


@asynccontextmanager
async def open_acts(folder: Path) -> AsyncIterator[ActSender]:
    """Yield a sender to the system of a data folder.

    Raises:
        InputUnusable: no system of ours takes acts there.
        ServiceAway: it does not answer.
    """
    problem = socket_problem(folder)
    if problem is not None:
        raise InputUnusable(problem)
    try:
        with address_of(socket_path(folder)) as address:
            async with asyncio.timeout(PATIENCE_SECONDS):
                reader, writer = await asyncio.open_unix_connection(address, limit=LONGEST_LINE)
    except (OSError, TimeoutError) as error:
        raise InputUnusable(f"no system runs over {folder}: start `apc up`, or set APC_AMQP_URL") from error
    try:
        if not is_own_peer(writer.get_extra_info("socket")):
            raise InputUnusable(f"{folder / NAME}: another user listens there: nothing is sent to it")
        user = (await _answer(reader)).get("user")
        if not isinstance(user, str):
            raise ServiceAway(f"what listens at {folder / NAME} is no system of this version")
        yield ActSender(reader, writer, user)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader) -> dict[str, object]:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return decode_line(await reader.readline())
    except (OSError, ValueError, TimeoutError, NoAct) as error:
        raise ServiceAway("the system does not answer: it ends, or is overloaded; try again") from error
