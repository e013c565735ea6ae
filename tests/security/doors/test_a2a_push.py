"""Push as a way into the network of the door: private addresses in every form, names that move, users in URLs."""

import socket
from collections.abc import Sequence
from typing import Any

import asyncpg
import httpx
import pytest
from a2a.types.a2a_pb2 import TaskPushNotificationConfig
from tests.doors.a2a.conftest import Behind, RpcError, behind, desk

from apc_a2a import push
from apc_a2a.push import PushHosts, is_public
from apc_contracts.errors import InputUnusable

__all__ = ["behind"]


async def public(host: str, port: int) -> Sequence[str]:
    return ["93.184.215.14"]


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "ff02::1",
        "fec0::1",
        "64:ff9b:1::7f00:1",
        "::127.0.0.1",
        "::ffff:0:127.0.0.1",
        "168.63.129.16",
        "192.0.0.192",
        "::ffff:168.63.129.16",
        "no address",
    ],
)
async def test_no_private_address_is_told(address: str) -> None:
    async def private(host: str, port: int) -> Sequence[str]:
        return ["93.184.215.14", address]

    assert not is_public(address)
    assert (await PushHosts(resolve=public).check("https://hooks.example/x")).address == "93.184.215.14"
    with pytest.raises(InputUnusable, match="no public address"):
        await PushHosts(resolve=private).check("https://hooks.example/x")
    with pytest.raises(InputUnusable, match="no public address"):
        await PushHosts(resolve=private).accept("https://hooks.example/x")
    assert await PushHosts(["hooks.example"], resolve=private).check("https://hooks.example/x")


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example/x",
        "ftp://hooks.example/x",
        "file:///etc/passwd",
        "https://user:password@hooks.example/x",
        "https://user@hooks.example/x",
        "https:///x",
        "https://hooks.example:port/x",
        "https://[::1/x",
        "https://" + "a" * 3_000,
        "",
    ],
)
async def test_a_url_that_is_none_of_a_receiver(url: str) -> None:
    hosts = PushHosts(resolve=public)
    with pytest.raises(InputUnusable):
        await hosts.check(url)
    with pytest.raises(InputUnusable):
        await hosts.accept(url)


async def test_numbers_that_the_resolver_reads_as_private_addresses() -> None:
    """2130706433, 0x7f.1 and 127.1 are the loopback address for the C library."""
    for host in ("2130706433", "0x7f.1", "127.1", "localhost"):
        try:
            found = [one[4][0] for one in socket.getaddrinfo(host, 443)]
        except OSError:
            found = []
        assert all(not is_public(str(one)) for one in found)
        with pytest.raises(InputUnusable):
            await PushHosts().check(f"https://{host}/x")


async def test_a_name_that_moves_between_check_and_connection_moves_nothing() -> None:
    """DNS rebinding: what was checked is what is connected to; the name is only in Host and in the certificate."""
    answers = iter([["93.184.215.14"], ["127.0.0.1"]])

    async def moving(host: str, port: int) -> Sequence[str]:
        return next(answers)

    hosts = PushHosts(resolve=moving)
    where = await hosts.check("https://hooks.example:8443/x?y=1")
    assert where.pinned == "https://93.184.215.14:8443/x?y=1"
    with pytest.raises(InputUnusable, match="no public address"):
        await hosts.check("https://hooks.example:8443/x?y=1")


async def test_each_send_checks_again_and_connects_to_what_it_checked(postgres_url: str) -> None:
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(302, headers={"Location": "http://169.254.169.254/"})

    answers = iter([["93.184.215.14"], ["10.0.0.1"]])

    async def moving(host: str, port: int) -> Sequence[str]:
        return next(answers)

    config = TaskPushNotificationConfig(url="https://hooks.example/x", token="t")
    async with (
        asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool,
        httpx.AsyncClient(transport=httpx.MockTransport(answer), follow_redirects=False) as http,
    ):
        pusher = push.Push(pool, b"k" * 32, PushHosts(resolve=moving))
        with pytest.raises(push.PushAway, match="the receiver answered 302"):
            await pusher._send(http, config, {})
        with pytest.raises(InputUnusable, match="no public address"):
            await pusher._send(http, config, {})
    (request,) = sent
    assert request.url.host == "93.184.215.14" and request.headers["host"] == "hooks.example"
    assert request.extensions["sni_hostname"] == "hooks.example"


async def test_a_door_refuses_private_receivers_at_every_place_that_takes_one(behind: Behind) -> None:
    async with behind(desk()) as running:
        ida = running.ida
        asked = await ida.send({"data": {"text": "a boat", "amount": 700}})
        for url in ("https://127.0.0.1:9/x", "http://example.com/x", "https://localhost/x"):
            with pytest.raises(RpcError) as refused:
                await ida.call("CreateTaskPushNotificationConfig", taskId=asked["id"], url=url)
            assert refused.value.code == -32602
            params: dict[str, Any] = {
                "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "apples"}]},
                "configuration": {"taskPushNotificationConfig": {"url": url}},
            }
            with pytest.raises(RpcError) as sent:
                await ida.call("SendMessage", **params)
            assert sent.value.code == -32602
        assert (await ida.call("ListTasks"))["totalSize"] == 1, "nothing was begun"
        assert await running.system.pool.fetchval("SELECT count(*) FROM apc_app.a2a_push") == 0
