"""The pages of a service."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from apc_console.errors import InputUnusable
from apc_console.health import serve_health


@pytest.fixture
def port() -> int:
    """A port that nobody uses."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        number: int = taken.getsockname()[1]
        return number


async def ask(port: int, path: str) -> tuple[int, str]:
    """The status of a page, and what it says."""
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
    with serve_health(port, lambda: problems):
        assert await ask(port, "/healthz") == (200, "OK\n")
        assert await ask(port, "/readyz") == (503, "Service Unavailable\nshard 0 is not held\n")
        assert (await ask(port, "/startup"))[0] == 503
        problems.clear()
        assert await ask(port, "/readyz") == (200, "OK\n")
        problems.append("no broker node can be reached")
        assert (await ask(port, "/readyz"))[0] == 503
        assert (await ask(port, "/startup"))[0] == 200


async def test_a_service_whose_loop_is_blocked_is_not_ready(port: int) -> None:
    with ThreadPoolExecutor() as threads, serve_health(port, list):
        asked = threads.submit(_ask, port, "/readyz")
        status, said = asked.result()  # blocks this loop, as a handler does that never awaits
        assert status == 503 and "did not turn" in said
        assert (await ask(port, "/readyz"))[0] == 200


async def test_metrics_and_unknown_pages(port: int) -> None:
    with serve_health(port, list):
        assert (await ask(port, "/metrics"))[0] == 200
        assert (await ask(port, "/nothing"))[0] == 404


async def test_without_a_port_there_are_no_pages(port: int) -> None:
    with serve_health(None, list), socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0


async def test_a_taken_port_is_named(port: int) -> None:
    with serve_health(port, list):
        with pytest.raises(InputUnusable, match=str(port)), serve_health(port, list):
            pass
