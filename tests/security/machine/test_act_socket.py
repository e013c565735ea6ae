"""Somebody reaches a running system through the socket of its data folder who must not, or sends what is no act."""

import asyncio
import os
import pwd
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from tests.security.strangers import STRANGER, as_stranger
from tests.support.traffic.packets import make_idea, make_packet, make_start

from apc_bus.in_memory import InMemoryBroker
from apc_bus.port import Message, Publication
from apc_bus.settings import BusSettings
from apc_bus.topology import RECEIPTS, build_topology, gate_queue
from apc_cli.connections import find_door
from apc_client import local_acts
from apc_client.local_acts import (
    LONGEST_LINE,
    MOST_CONNECTIONS,
    NAME,
    bind_socket,
    open_acts,
    serve_acts,
    socket_problem,
)
from apc_contracts import SignalPayload
from apc_contracts.errors import InputUnusable
from apc_contracts.identity.registry_change import AgentRevoked, encode_registry_change
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.parsing import seal

PATIENCE = 30.0
ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect(sys.argv[1])
    print(asked.recv(100).decode())
"""
STOP = make_packet("librarian", SignalPayload(signal=Signal.STOP), parent=make_start())


@pytest.fixture
def folder() -> Iterator[Path]:
    """A data folder that others may enter: what guards the socket is its own."""
    path = Path(tempfile.mkdtemp(prefix="apc-acts-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def broker(folder: Path) -> AsyncIterator[InMemoryBroker]:
    """A system that takes acts; nobody judges them."""
    broker = InMemoryBroker(build_topology(1, []))
    async with serve_acts(folder, broker.connect("operator"), 1):
        yield broker


async def arrived(broker: InMemoryBroker) -> int:
    return (await broker.connect("operator").depth(gate_queue(0))).messages


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_unix_connection(str(folder / NAME))
    try:
        yield reader, writer
    finally:
        writer.close()


async def say(folder: Path, line: bytes) -> Any:
    """Send a line; return what the system answers, None when it hangs up."""
    async with connected(folder) as (reader, writer), asyncio.timeout(PATIENCE):
        await reader.readline()
        try:
            writer.write(line)
            await writer.drain()
            answer = await reader.readline()
        except ConnectionError:
            return None
        return orjson.loads(answer) if answer else None


def line_of(kind: str, body: bytes) -> bytes:
    return orjson.dumps({"type": kind, "body": body.decode(), "signature": None, "shard": 0}) + b"\n"


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_another_user_of_the_machine_is_not_let_in(
    folder: Path, broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    if not is_guarded:
        (folder / NAME).chmod(0o666)
        monkeypatch.setattr(local_acts, "is_own_peer", lambda _: True)
    asked = await asyncio.to_thread(as_stranger, "/usr/bin/python3", "-c", ASK, str(folder / NAME))
    assert ("operator" in asked.stdout) is not is_guarded
    assert ("Permission" in asked.stderr) is is_guarded


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_a_mode_that_somebody_opened_lets_no_other_user_in(
    folder: Path, broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    (folder / NAME).chmod(0o666)
    if not is_guarded:
        monkeypatch.setattr(local_acts, "is_own_peer", lambda _: True)
    asked = await asyncio.to_thread(as_stranger, "/usr/bin/python3", "-c", ASK, str(folder / NAME))
    assert ("operator" in asked.stdout) is not is_guarded


def stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    path.chmod(0o600)


def open_to_others(path: Path) -> None:
    stale(path)
    path.chmod(0o666)


def of_another_user(path: Path) -> None:
    stale(path)
    os.chown(path, pwd.getpwnam(STRANGER).pw_uid, -1)


def link_to_another(path: Path) -> None:
    stale(path.with_name("other"))
    path.symlink_to(path.with_name("other"))


def plain_file(path: Path) -> None:
    path.write_text("x")


PLANTED: dict[Callable[[Path], None], str] = {
    open_to_others: "belongs to another user or is open to others",
    of_another_user: "belongs to another user or is open to others",
    link_to_another: "is no socket",
    plain_file: "is no socket",
    stale: "no system runs over",
}
"""What stands in the place of the socket -> what is said instead of sending an act to it."""


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
async def test_no_act_is_sent_to_what_is_not_ones_own_socket(
    folder: Path, plant: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(folder / NAME)
    with pytest.raises(InputUnusable, match=PLANTED[plant]):
        async with find_door(BusSettings(amqp_url=None, data_dir=folder)).open():
            raise AssertionError("it was opened")
    with monkeypatch.context() as unguarded:
        unguarded.setattr(local_acts, "socket_problem", lambda _: None)
        path = folder / NAME
        listened = path.with_name("other") if path.is_symlink() else path
        listened.unlink()
        broker = InMemoryBroker(build_topology(1, []))
        server = local_acts.ActServer(broker.connect("operator"), 1)
        async with await asyncio.start_unix_server(server.accept, str(listened)), open_acts(folder) as sender:
            assert sender.user == "operator", "what listens there would get the act"


@pytest.mark.parametrize("plant", [stale, link_to_another, open_to_others], ids=lambda plant: plant.__name__)
def test_a_start_takes_the_place_of_a_dead_socket_and_follows_no_link(
    folder: Path, plant: Callable[[Path], None]
) -> None:
    plant(folder / NAME)
    with bind_socket(folder):
        assert not (folder / NAME).is_symlink() and (folder / NAME).stat().st_mode & 0o777 == 0o600
        assert socket_problem(folder) is None
    if plant is link_to_another:
        assert (folder / "other").is_socket(), "what the link led to is as it was"


def test_a_file_of_somebody_is_not_removed_for_a_socket(folder: Path) -> None:
    plain_file(folder / NAME)
    with pytest.raises(InputUnusable, match="is no socket: remove it"):
        bind_socket(folder)
    assert (folder / NAME).read_text() == "x"


NO_ACTS: dict[str, bytes] = {
    "an empty line": b"\n",
    "garbage": b"\xff\x00{[\n",
    "no object": b"[1]\n",
    "no text": b'{"type": 1, "body": []}\n',
    "deep": b'{"type": ' + b"[" * 100_000 + b"\n",
    "no shard": line_of("SIGNAL", seal(STOP).body).replace(b'"shard":0', b'"shard":null'),
    "a shard that is none": line_of("SIGNAL", seal(STOP).body).replace(b'"shard":0', b'"shard":1'),
    "a shard before the first": line_of("SIGNAL", seal(STOP).body).replace(b'"shard":0', b'"shard":-1'),
    "a packet that is none": line_of("SIGNAL", b"{}"),
    "a packet of an agent": line_of("IDEA", seal(make_packet("red-1", make_idea(), parent=make_start())).body),
    "a session": line_of("SIGNAL", seal(make_start()).body),
    "an end of a delivery": line_of(
        "receipts",
        orjson.dumps(
            [
                {
                    "packet_id": str(STOP.packet_id), "session_id": "s-1", "recipient": "red-1", "kind": "outcome",
                    "attempt": 1, "at": "2026-11-21T09:30:00.120Z",
                }
            ]
        ),
    ),
    "a change of the registry": line_of(
        "registry", encode_registry_change(AgentRevoked(change_id=uuid4(), agent_id="red-1"))
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_ACTS)
async def test_only_acts_come_this_way(
    folder: Path, broker: InMemoryBroker, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = await say(folder, NO_ACTS[case])
    assert answer["error"] and await arrived(broker) == 0
    assert (await say(folder, line_of("SIGNAL", seal(STOP).body)))["error"] is None
    assert await arrived(broker) == 1, "an act arrives, also after what was none"
    with monkeypatch.context() as unguarded:
        unguarded.setattr(local_acts, "decode_act", lambda line, user, shards: ("receipts", 0, _message(line, user)))
        await say(folder, NO_ACTS[case])
        assert await arrived(broker) == 2


def _message(line: bytes, user: str) -> Message:
    return Message(line, str(uuid4()), type="receipts", user_id=user)


async def test_a_line_without_an_end_is_cut(
    folder: Path, broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await say(folder, b"x" * (2 * LONGEST_LINE)) is None
    assert (await say(folder, line_of("SIGNAL", seal(STOP).body)))["error"] is None
    with monkeypatch.context() as unguarded:
        unguarded.setattr(local_acts, "LONGEST_LINE", 1 << 30)
        other = folder / "other"
        other.mkdir()
        async with serve_acts(other, broker.connect("operator"), 1):
            assert (await say(other, b"x" * (1 << 20) + b"\n"))["error"] == "the line is no JSON"


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_many_connections_do_not_pile_up(
    folder: Path, broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    if not is_guarded:
        monkeypatch.setattr(local_acts, "MOST_CONNECTIONS", 1 << 20)
    opened = [await asyncio.open_unix_connection(str(folder / NAME)) for _ in range(MOST_CONNECTIONS)]
    async with asyncio.timeout(PATIENCE):
        for reader, _ in opened:
            assert b"operator" in await reader.readline()
        async with connected(folder) as (reader, _):
            try:
                said = await reader.readline()
            except ConnectionError:
                said = b""
    assert (said == b"") is is_guarded
    for _, writer in opened:
        writer.close()
    async with asyncio.timeout(PATIENCE):
        while await _is_full(folder):
            await asyncio.sleep(0.01)


async def _is_full(folder: Path) -> bool:
    try:
        return (await say(folder, line_of("SIGNAL", seal(STOP).body)))["error"] is not None
    except (ConnectionError, TypeError):
        return True


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_who_says_nothing_is_cut(
    folder: Path, broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    monkeypatch.setattr(local_acts, "PATIENCE_SECONDS", 0.1 if is_guarded else 3600)
    async with connected(folder) as (reader, _):
        await reader.readline()
        if is_guarded:
            assert await asyncio.wait_for(reader.readline(), PATIENCE) == b""
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.readline(), 0.5)


async def test_what_is_published_is_the_operators(folder: Path, broker: InMemoryBroker) -> None:
    """Whatever user a client names, the system publishes as its operator: the gate judges that."""
    async with open_acts(folder) as sender:
        forged = Message(seal(STOP).body, str(STOP.packet_id), type="SIGNAL", user_id="orchestrator")
        await sender.publish(Publication(RECEIPTS, "0", forged))
    async with broker.connect("orchestrator").subscribe(gate_queue(0)) as inbox:
        (delivery,) = await inbox.receive()
    assert delivery.message.user_id == "operator"
