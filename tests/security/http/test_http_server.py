"""A foreign page, a slow client and a crowd get nothing of a service over HTTP, and take nothing from others."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp
from tests.support.waiting import until

from apc_web.http import HttpLimits, make_server

QUICK = HttpLimits(connections=3, header_seconds=0.3, body_seconds=0.3, write_seconds=0.3)
PATIENT = HttpLimits(header_seconds=60, body_seconds=60, write_seconds=60)
PATIENCE = 30.0
POST = "POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


async def _echo(request: Request) -> Response:
    return PlainTextResponse(await request.body() or b"hello")


async def _flood(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 16)
            await asyncio.sleep(0)

    return StreamingResponse(parts())


def _app() -> ASGIApp:
    return Starlette(routes=[Route("/echo", _echo, methods=["GET", "POST"]), Route("/flood", _flood)])


@asynccontextmanager
async def _serving(server: uvicorn.Server) -> AsyncIterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await asyncio.wait_for(running, PATIENCE)
        listening.close()


def _guarded(limits: HttpLimits) -> uvicorn.Server:
    return make_server(_app(), "127.0.0.1", 0, limits=limits, graceful_seconds=1)


def _unguarded() -> uvicorn.Server:
    return uvicorn.Server(uvicorn.Config(_app(), log_config=None, timeout_graceful_shutdown=1))


async def _ask(port: int, *fields: str, method: str = "GET", body: str = "") -> int:
    """Return the status of a request with these header fields."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = (f"{method} /echo HTTP/1.1", *fields, f"Content-Length: {len(body)}", "Connection: close", "", body)
    writer.write("\r\n".join(lines).encode())
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()
    return int(answer.split()[1])


HOST = "Host: 127.0.0.1:8080"
FOREIGN = {
    "a name that was pointed here": (("Host: evil.example",), "GET", "", 421),
    "an address with a name behind it": (("Host: [::1].evil.example",), "GET", "", 421),
    "a name behind an address": (("Host: 127.0.0.1.evil.example",), "GET", "", 421),
    "an address as a user": (("Host: 127.0.0.1:80@evil.example",), "GET", "", 421),
    "a port that is none": (("Host: 127.0.0.1:x",), "GET", "", 421),
    "two names": ((HOST, "Host: evil.example"), "GET", "", 400),
    "no name": ((), "GET", "", 400),
    "a page of another origin": ((HOST, "Origin: https://evil.example"), "POST", "{}", 403),
    "a page without an origin": ((HOST, "Origin: null"), "POST", "{}", 403),
    "two origins": ((HOST, "Origin: http://127.0.0.1:8080", "Origin: https://evil.example"), "GET", "", 403),
    "an origin with a name behind it": ((HOST, "Origin: http://127.0.0.1:8080.evil.example"), "GET", "", 403),
    "another port": ((HOST, "Origin: http://127.0.0.1:9999", "Content-Type: application/json"), "POST", "{}", 403),
    "a form": ((HOST, "Content-Type: application/x-www-form-urlencoded"), "POST", "a=b", 415),
    "text": ((HOST, "Content-Type: text/plain"), "POST", "{}", 415),
    "two types": ((HOST, "Content-Type: application/json", "Content-Type: text/plain"), "POST", "{}", 415),
    "a type of another name": ((HOST, "Content-Type: application/json-seq"), "POST", "{}", 415),
    "no type": ((HOST,), "POST", "{}", 415),
}


@pytest.mark.parametrize(("fields", "method", "body", "status"), FOREIGN.values(), ids=FOREIGN)
async def test_what_a_foreign_page_can_send_is_refused(
    fields: tuple[str, ...], method: str, body: str, status: int
) -> None:
    async with _serving(_guarded(PATIENT)) as port:
        assert await _ask(port, *fields, method=method, body=body) == status
    if status != 400:  # that one is uvicorn's own
        async with _serving(_unguarded()) as port:
            assert await _ask(port, *fields, method=method, body=body) == 200


@pytest.mark.parametrize(
    "fields",
    [
        (HOST,),
        ("Host: localhost",),
        ("Host: LOCALHOST:1",),
        ("Host: [::1]:8080",),
        (HOST, "Origin: http://127.0.0.1:8080"),
        (HOST, "Content-Type: application/json; charset=utf-8"),
    ],
)
async def test_what_our_own_frontend_sends_is_answered(fields: tuple[str, ...]) -> None:
    async with _serving(_guarded(PATIENT)) as port:
        assert await _ask(port, *fields) == 200
        assert await _ask(port, *fields, "Content-Type: application/json", method="POST", body="{}") == 200


SLOW = {
    "a client that sends nothing": "",
    "half a header": "GET /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nX-",
    "half a body": f"{POST}Content-Length: 10\r\n\r\n123",
    "half a body behind a request": f"GET /echo HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n{POST}Content-Length: 9\r\n\r\n1",
    "an endless body": f"{POST}Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
}


@pytest.mark.parametrize("sent", SLOW.values(), ids=SLOW)
async def test_a_slow_client_is_cut(sent: str) -> None:
    async with _serving(_guarded(QUICK)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent.encode())
        await _until_cut(reader)
        writer.close()
        assert await _ask(port, HOST) == 200
    async with _serving(_unguarded()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent.encode())
        with pytest.raises(TimeoutError):  # nothing happens at all: without the guard the client stays
            await asyncio.wait_for(_until_cut(reader), 3 * QUICK.header_seconds)
        writer.close()


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_a_client_that_does_not_read_is_cut(is_guarded: bool) -> None:
    async with _serving(_guarded(QUICK) if is_guarded else _unguarded()) as port:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, b"GET /flood HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        if not is_guarded:
            await asyncio.sleep(3 * QUICK.write_seconds)  # nothing happens at all: there is no condition to wait for
            assert await _can_send(client), "without the guard it stays"
            client.close()
            return
        others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        # Both are cut, and the flood too: only then is there room for as many connections as are allowed.
        for reader, writer in others:
            await _until_cut(reader)
            writer.close()

        async def is_cut() -> bool:
            return not await _can_send(client)

        await until(is_cut, PATIENCE)
        client.close()


async def test_one_client_too_many_is_cut_and_the_others_are_served() -> None:
    limits = HttpLimits(connections=3, header_seconds=60)
    async with _serving(_guarded(limits)) as port:
        open_ones = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _, writer in open_ones:
            writer.write(b"GET /echo HTTP/1.1\r\n")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await _until_cut(reader)
        writer.close()
        for reader, writer in open_ones:
            writer.write(b"Host: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert (await asyncio.wait_for(reader.read(), PATIENCE)).startswith(b"HTTP/1.1 200")
            writer.close()
    async with _serving(_unguarded()) as port:
        waiting = [await asyncio.open_connection("127.0.0.1", port) for _ in range(limits.connections)]
        assert await _ask(port, HOST) == 200, "without the guard one more is served"
        for _, writer in waiting:
            writer.close()


async def _until_cut(reader: asyncio.StreamReader) -> None:
    """Wait until the server has ended the connection."""
    async with asyncio.timeout(PATIENCE):
        try:
            while await reader.read(1 << 16):
                pass
        except ConnectionError:
            pass


async def _can_send(client: socket.socket) -> bool:
    try:
        await asyncio.get_running_loop().sock_sendall(client, b"x")
    except OSError:
        return False
    return True
