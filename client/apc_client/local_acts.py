"""Acts of an operator on a system in another process of the same user, through the socket of its data folder."""

import asyncio
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import orjson

from apc_bus import headers
from apc_bus.errors import BusError, QueueMissing
from apc_bus.port import Bus, Message, Publication, QueueDepth
from apc_bus.telemetry import get_logger
from apc_bus.topology import INGRESS, RECEIPTS, gate_queue, inbox_queue, log_queue
from apc_contracts.errors import InputUnusable, PacketRefused, ServiceAway
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.limits import DEFAULT_LIMITS
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.vocabulary import PacketType, Signal
from apc_contracts.wire.parsing import read_packet
from apc_contracts.wire.receipts import Receipt, encode_receipts, is_of_operator, parse_receipts

OPERATOR_USER = "operator"
"""The broker user in whose name an in-process system publishes what comes through it."""
NAME = "acts.sock"
"""In the data folder."""
_LONGEST_PATH = 100
"""Bytes: the kernel takes some 108 in the address of a socket."""
_WAITING = 16
"""Connections that wait to be taken."""
_PEER = struct.Struct("3i")


# The socket: a path in the data folder that only its owner may use.


def socket_path(folder: Path) -> Path:
    """Return the absolute path of the socket of a data folder."""
    return folder.absolute() / NAME


def remove_socket(folder: Path) -> None:
    """Remove the socket of a data folder; idempotent. Raises OSError."""
    socket_path(folder).unlink(missing_ok=True)


def socket_problem(folder: Path) -> str | None:
    """Return why no act can go through the socket of a data folder; None when one may try."""
    path = folder / NAME
    try:
        status = path.lstat()
    except OSError:
        return f"no system runs over {folder}, or it takes no acts: start `apc up`, or set APC_AMQP_URL"
    if not stat.S_ISSOCK(status.st_mode):
        return f"{path} is no socket: remove it"
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        return f"{path} belongs to another user or is open to others: nothing is sent to it"
    return None


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """Yield an address of the socket that the kernel takes: of a long path by a descriptor of its folder.

    Raises InputUnusable where that does not work, OSError when there is no such folder.
    """
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    if not Path("/proc/self/fd").is_dir():
        raise InputUnusable(f"{path}: a path of a socket has at most {_LONGEST_PATH} bytes: set a shorter APC_DATA_DIR")
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)


def bind_socket(folder: Path) -> socket.socket:
    """Return a listening socket of mode 0600 in this folder; what a dead system left there is replaced.

    The caller is the only system of the folder. Raises InputUnusable when something else has the name, OSError.
    """
    path = socket_path(folder)
    try:
        status = path.lstat()
    except FileNotFoundError:
        pass
    else:
        if not (stat.S_ISSOCK(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            raise InputUnusable(f"{path} is no socket: remove it")
        path.unlink()
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address_of(path) as address:
            mask = os.umask(0o177)  # the file has its mode from its beginning
            try:
                bound.bind(address)
            finally:
                os.umask(mask)
        bound.listen(_WAITING)
    except BaseException:
        bound.close()
        raise
    bound.setblocking(False)
    return bound


def is_own_peer(connected: socket.socket) -> bool:
    """Return whether the process at the other end runs as our user, or root; True where the system does not tell."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    _, user, _ = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, option, _PEER.size))
    return user in (os.geteuid(), 0)


# What goes over the socket: one JSON object a line; first the system says who it is, then each act gets an answer.

LONGEST_LINE = 512 * 1024
"""Bytes: a message of receipts has at most 64 KiB, a packet of a signal fewer."""
ACTS = frozenset({Signal.PAUSE, Signal.RESUME, Signal.STOP, Signal.ANSWER})
DEPTHS = "depths"
"""The line that asks for the depths of the queues of orchestrators and persisters."""
INBOXES = "inboxes"
"""The line that asks for the depths of the queues of the agents that it names."""
_MOST_AGENTS = 1_000
Sent = tuple[str, int, Message]
"""Exchange's kind (`receipts` or a packet type), shard, message."""


class NoAct(Exception):
    """A line that is no act; says why."""


def encode_line(fields: dict[str, object]) -> bytes:
    """Return these fields as a line of JSON, which ends with a newline."""
    return orjson.dumps(fields) + b"\n"


def decode_line(line: bytes) -> dict[str, object]:
    """Return the fields of a line of JSON. Raises NoAct."""
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise NoAct("the line is no JSON") from error
    if not isinstance(fields, dict):
        raise NoAct("the line is no JSON object")
    return fields


def encode_act(publication: Publication) -> bytes:
    """Return the line of a message to publish."""
    message, shard = publication.message, int(publication.routing_key)
    signature = message.headers.get(headers.SIGNATURE)
    return encode_line({"type": message.type, "body": message.body.decode(), "signature": signature, "shard": shard})


def decode_act(line: bytes, user: str, shards: int) -> Sent:
    """Return what to publish for a line: a signal of an operator, an answer of a person, or receipts of an operator.

    Raises NoAct for everything else.
    """
    fields = decode_line(line)
    kind, body, signature = fields.get("type"), fields.get("body"), fields.get("signature")
    if not isinstance(kind, str) or not isinstance(body, str) or not isinstance(signature, str | None):
        raise NoAct("type and body must be text")
    shard = fields.get("shard")
    if type(shard) is not int or not 0 <= shard < shards:
        raise NoAct(f"shard must be a number from 0 to {shards - 1}")
    try:
        if kind == headers.TYPE_RECEIPTS:
            return _receipts(parse_receipts(body.encode()), user, shard)
        return _signal(body.encode(), signature, user, shard)
    except PacketRefused as refused:
        raise NoAct(f"{refused.code} at {refused.path}: {refused.message}") from refused


def question_of(line: bytes) -> tuple[str, list[str]] | None:
    """Return DEPTHS or INBOXES, and the agents that a question names; None for a line that asks nothing."""
    try:
        fields = decode_line(line)
    except NoAct:
        return None
    agents = fields.get("agents", [])
    if not isinstance(agents, list) or len(agents) > _MOST_AGENTS or not all(isinstance(one, str) for one in agents):
        return None
    kind = fields.get("type")
    return (kind, agents) if kind in (DEPTHS, INBOXES) else None


def encode_depths(depths: Mapping[str, QueueDepth]) -> bytes:
    """Return the line that answers a question for depths."""
    return encode_line({name: [one.messages, one.consumers] for name, one in depths.items()})


def decode_depths(answer: Mapping[str, object]) -> dict[str, QueueDepth]:
    """Return the depths in an answer; entries that are no depths are left out."""
    return {
        name: QueueDepth(*one)
        for name, one in answer.items()
        if isinstance(one, list) and len(one) == 2 and all(type(number) is int for number in one)
    }


def _receipts(receipts: list[Receipt], user: str, shard: int) -> Sent:
    if not receipts or not all(map(is_of_operator, receipts)):
        raise NoAct("only requeues, discards and settled effects come this way")
    message = Message(encode_receipts(receipts), str(new_packet_id()), type=headers.TYPE_RECEIPTS, user_id=user)
    return headers.TYPE_RECEIPTS, shard, message


def _signal(body: bytes, signature: str | None, user: str, shard: int) -> Sent:
    packet = read_packet(body, DEFAULT_LIMITS).packet
    payload = packet.payload
    if packet.packet_type is not PacketType.SIGNAL or not isinstance(payload, SignalPayload):
        raise NoAct("only signals come this way")
    if payload.signal not in ACTS:
        raise NoAct(f"{payload.signal} does not come this way")
    message = Message(
        body,
        str(packet.packet_id),
        type=packet.packet_type.value,
        correlation_id=str(packet.trace.root_packet_id),
        user_id=user,
        headers={} if signature is None else {headers.SIGNATURE: signature},
    )
    return packet.packet_type.value, shard, message


# How many messages wait for agents, and how many consumers their queues have.


async def inbox_depths(bus: Bus, agents: Mapping[str, str | None]) -> dict[str, QueueDepth]:
    """Return agent -> depth of its two queues together; an agent without queues is left out. Raises BusError.

    Args:
        agents: agent -> its host, whose queues it shares; None = it has its own.
    """
    depths: dict[str, QueueDepth] = {}
    of_hosts: dict[str, QueueDepth | None] = {}
    for agent_id, host in agents.items():
        if host is None or host not in of_hosts:
            depth = await _inbox_depth(bus, agent_id, host)
            if host is not None:
                of_hosts[host] = depth
        else:
            depth = of_hosts[host]
        if depth is not None:
            depths[agent_id] = depth
    return depths


async def _inbox_depth(bus: Bus, agent_id: str, host: str | None) -> QueueDepth | None:
    try:
        urgent, normal = [await bus.depth(inbox_queue(agent_id, host, is_urgent)) for is_urgent in (True, False)]
    except QueueMissing:
        return None
    return QueueDepth(urgent.messages + normal.messages, max(urgent.consumers, normal.consumers))


# The end that sends acts: a command, or the web console.

ANSWER_SECONDS = 5.0
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
        self._writer.write(encode_act(publication))
        error = (await _answer(self._reader)).get("error")
        if error is not None:
            raise InputUnusable(f"the system did not take it: {error}")

    async def depths(self) -> dict[str, QueueDepth]:
        """Return the depths of the queues of orchestrators and persisters, by name. Raises ServiceAway."""
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
            async with asyncio.timeout(ANSWER_SECONDS):
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
        async with asyncio.timeout(ANSWER_SECONDS):
            return decode_line(await reader.readline())
    except (OSError, ValueError, TimeoutError, NoAct) as error:
        raise ServiceAway("the system does not answer: it ends, or is overloaded; try again") from error


# The end that takes acts, and publishes them in this system as its operator.

MOST_CONNECTIONS = 32
"""At the same time; further ones are closed at once."""
PATIENCE_SECONDS = 10.0
"""How long a client may be silent."""
_log = get_logger("apc_client")


class ActServer:
    """Answers the connections of one socket.

    Args:
        bus: connected as the operator of the system; the gate judges what comes through it.
        shards: of the system.
    """

    def __init__(self, bus: Bus, shards: int) -> None:
        self._bus = bus
        self._shards = shards
        self._connections: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one more connection."""
        if len(self._connections) >= MOST_CONNECTIONS or not is_own_peer(writer.get_extra_info("socket")):
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def close(self) -> None:
        """End every connection."""
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(encode_line({"user": self._bus.user, "shards": self._shards}))
            while True:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await writer.drain()
                    line = await reader.readline()
                if not line.endswith(b"\n"):
                    return
                question = question_of(line)
                if question is not None:
                    writer.write(encode_depths(await self._depths(*question)))
                else:
                    writer.write(encode_line({"error": await self._act(line)}))
        except (OSError, ValueError, TimeoutError):
            return  # it left, was silent, or sent a line without an end
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _depths(self, kind: str, agents: list[str]) -> dict[str, QueueDepth]:
        if kind == INBOXES:
            return await inbox_depths(self._bus, dict.fromkeys(agents))
        names = [queue(shard) for shard in range(self._shards) for queue in (gate_queue, log_queue)]
        return {name: await self._bus.depth(name) for name in names}

    async def _act(self, line: bytes) -> str | None:
        """Publish an act; return why not, None when it cannot be lost any more."""
        try:
            kind, shard, message = decode_act(line, self._bus.user, self._shards)
            exchange = RECEIPTS if kind == headers.TYPE_RECEIPTS else INGRESS
            await self._bus.publish(Publication(exchange, str(shard), message))
        except (NoAct, BusError) as error:
            return str(error)
        return None


@asynccontextmanager
async def serve_acts(folder: Path, bus: Bus, shards: int) -> AsyncIterator[None]:
    """Take acts through the socket of a data folder while the context is open.

    Where there can be no socket, a warning says so and the system goes on without acts.
    """
    server = ActServer(bus, shards)
    try:
        bound = bind_socket(folder)
        listening = await asyncio.start_unix_server(server.accept, sock=bound, limit=LONGEST_LINE)
    except (OSError, InputUnusable) as error:
        _log.warning("no_acts", folder=str(folder), reason=str(error))
        yield
        return
    try:
        yield
    finally:
        listening.close()
        await server.close()
        remove_socket(folder)
