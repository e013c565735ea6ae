"""The pages of a service."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from tests.support.servers.ports import free_ports
from tests.support.waiting import until

from apc_cli import health
from apc_cli.errors import InputUnusable
from apc_cli.health import serve_health


@pytest.fixture
def port() -> int:
    """A port that nobody uses."""
    return free_ports(1)[0]


async def ask(port: int, path: str) -> tuple[int, str]:
    """Return the status of a page, and what it says."""
    return await asyncio.to_thread(_ask, port, path)


def _ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_ready_is_what_holds_now_and_startup_what_held_once(port: int) -> None:
    problems = ["shard 0 is not held"]
    with serve_health("127.0.0.1", port, lambda: problems):
        assert await ask(port, "/healthz") == (200, "OK\n")
        assert await ask(port, "/readyz") == (503, "Service Unavailable\nshard 0 is not held\n")
        assert (await ask(port, "/startup"))[0] == 503
        problems.clear()
        assert await ask(port, "/readyz") == (200, "OK\n")
        problems.append("no broker node can be reached")
        assert (await ask(port, "/readyz"))[0] == 503
        assert (await ask(port, "/startup"))[0] == 200


async def test_a_service_whose_loop_is_blocked_is_not_ready(port: int) -> None:
    with ThreadPoolExecutor() as threads, serve_health("127.0.0.1", port, list):
        asked = threads.submit(_ask, port, "/readyz")
        status, said = asked.result()  # blocks this loop, as a handler does that never awaits
        assert status == 503 and "did not turn" in said
        assert (await ask(port, "/readyz"))[0] == 200


async def test_metrics_and_unknown_pages(port: int) -> None:
    with serve_health("127.0.0.1", port, list):
        assert (await ask(port, "/metrics"))[0] == 200
        assert (await ask(port, "/nothing"))[0] == 404


async def test_without_a_port_there_are_no_pages(port: int) -> None:
    with serve_health("127.0.0.1", None, list), socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0


async def test_a_taken_port_is_named(port: int) -> None:
    with serve_health("127.0.0.1", port, list):
        with pytest.raises(InputUnusable, match=str(port)), serve_health("127.0.0.1", port, list):
            pass


async def test_it_answers_to_the_names_of_this_machine_only(port: int) -> None:
    with serve_health("127.0.0.1", port, list):
        assert b" 200 " in await send(port, b"GET /healthz HTTP/1.1\r\nHost: localhost:1\r\n\r\n")
        for fields in (b"Host: evil.example\r\n", b"", b"Host: localhost\r\nHost: evil.example\r\n"):
            assert b" 421 " in await send(port, b"GET /metrics HTTP/1.1\r\n" + fields + b"\r\n")
    with serve_health("0.0.0.0", port, list):
        assert b" 200 " in await send(port, b"GET /metrics HTTP/1.1\r\nHost: orchestrator\r\n\r\n")


async def test_what_is_no_get_is_refused(port: int) -> None:
    with serve_health("127.0.0.1", port, list):
        assert b" 405 " in await send(port, b"POST /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 400 " in await send(port, b"\x16\x03\x01\r\n\r\n")
        assert await send(port, b"GET /" + b"x" * health.LONGEST_HEADER) == b""


async def test_slow_clients_are_cut_and_one_too_many_too(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MOST_CONNECTIONS", 3)
    with serve_health("127.0.0.1", port, list):
        threads = threading.active_count()
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert await send(port, b"") == b"", "the fourth is cut while three are open"
        assert threading.active_count() == threads
        for _, writer in slow:
            writer.close()
        await until_answered(port)
    monkeypatch.setattr(health, "EXCHANGE_SECONDS", 0.2)
    with serve_health("127.0.0.1", port, list):
        assert await send(port, b"GET /healthz HTTP/1.1\r\nHost: ") == b""


async def send(port: int, request: bytes) -> bytes:
    """Return what is answered until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def until_answered(port: int) -> None:
    """Wait until there is room for one more connection."""

    async def is_answered() -> bool:
        return b" 200 " in await send(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")

    await until(is_answered)
