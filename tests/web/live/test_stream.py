"""The live stream over HTTP: nothing is missed, nothing comes twice."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import asyncpg
import httpx2 as httpx
from tests.support.traffic.packets import make_packet
from tests.support.web.outage import allow_connections
from tests.web.conftest import TOKEN, WebBench

from apc_contracts import SignalPayload
from apc_contracts.vocabulary import Signal
from apc_web.app import make_app
from apc_web.guard import AccessGuard
from apc_web.http import make_server
from apc_web.live import Feed

SESSION = "s-1"
PATIENCE = 30.0
Event = tuple[str, str, dict[str, object]]


@asynccontextmanager
async def _served(bench: WebBench) -> AsyncIterator[httpx.AsyncClient]:
    server = make_server(AccessGuard(make_app(bench.services), TOKEN), "127.0.0.1", 0, graceful_seconds=1)
    listening = socket.create_server(("127.0.0.1", 0))
    running = asyncio.create_task(server.serve(sockets=[listening]))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/api/v1"
    try:
        async with httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE
        ) as client:
            yield client
    finally:
        server.should_exit = True
        await asyncio.wait_for(running, PATIENCE)
        listening.close()


async def _events(response: httpx.Response) -> AsyncIterator[Event]:
    """Yield event, id and data of a stream."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if name in ("event", "id", "data"):
            fields[name] = value
        elif not line and fields:
            yield fields["event"], fields["id"], json.loads(fields["data"])
            fields = {}


async def test_a_stream_resumes_without_gap_or_repeat(told: WebBench) -> None:
    async with _served(told) as client:
        async with client.stream("GET", "/stream", params={"session_id": SESSION}) as response:
            events = _events(response)
            kind, first_id, data = await anext(events)
            assert (kind, data["items"]) == ("entries", [])
            await told.house.publish(make_packet("red-1", SignalPayload(signal=Signal.QUERY)))
            kind, last_id, live = await anext(events)
            assert kind == "entries" and live["items"]
        await told.house.publish(make_packet("blue-1", SignalPayload(signal=Signal.QUERY)))
        await told.house.quiet()
        end = await told.house.pool.fetchval("SELECT next_seq - 1 FROM apc_log.shards")
        expected = await told.house.pool.fetch(
            "SELECT seq FROM apc_log.agent_packets UNION SELECT seq FROM apc_log.packet_events "
            "UNION SELECT seq FROM apc_log.coordination_events ORDER BY seq"
        )
        seen: list[int] = []
        position = json.dumps({"0": 0})
        async with client.stream("GET", "/stream", headers={"Last-Event-ID": position}) as response:
            async for _, event_id, data in _events(response):
                items = data["items"]
                assert isinstance(items, list)
                seen += [one["seq"] for one in items]
                if json.loads(event_id)["0"] >= end:
                    break
        assert seen == [row["seq"] for row in expected]
        resumed: list[int] = []
        async with client.stream("GET", "/stream", headers={"Last-Event-ID": last_id}) as response:
            async for _, event_id, data in _events(response):
                items = data["items"]
                assert isinstance(items, list)
                resumed += [one["seq"] for one in items]
                if json.loads(event_id)["0"] >= end:
                    break
        reached = json.loads(last_id)["0"]
        assert json.loads(first_id)["0"] < reached
        assert resumed == [seq for seq in seen if seq > reached]


async def test_a_client_of_another_log_is_told_to_reload(told: WebBench) -> None:
    async with (
        _served(told) as client,
        client.stream("GET", "/stream", params={"since": '{"0":999999999}'}) as response,
    ):
        kind, _, data = await anext(_events(response))

    assert kind == "reset"
    heads = data["heads"]
    assert isinstance(heads, dict) and 0 < heads["0"] < 999_999_999


async def test_a_stream_without_a_database_is_refused_before_it_begins(bench: WebBench) -> None:
    async with asyncpg.create_pool("postgresql://127.0.0.1:1/away", min_size=0) as away:
        feed = Feed(away, bench.services.contract)
        async with _served(replace(bench, services=replace(bench.services, feed=feed))) as client:
            response = await client.get("/stream")
    assert (response.status_code, response.json()["code"]) == (503, "DATABASE_AWAY")


async def test_streams_of_different_wishes_get_different_events(told: WebBench) -> None:
    async with _served(told) as client:
        async with (
            client.stream("GET", "/stream", params={"session_id": "no-such-session"}) as nothing,
            client.stream("GET", "/stream") as everything,
            client.stream("GET", "/stream", params={"session_id": SESSION}) as one,
        ):
            streams = [_events(response) for response in (everything, one)]
            for events in (_events(nothing), *streams):
                await anext(events)
            await told.house.publish(make_packet("red-1", SignalPayload(signal=Signal.QUERY)))
            for events in streams:
                _, _, data = await anext(events)
                items = data["items"]
                assert isinstance(items, list)
                assert {item["session_id"] for item in items} == {SESSION}


async def test_a_stream_tells_that_the_database_went_and_that_it_came_back(told: WebBench, postgres_url: str) -> None:
    async with _served(told) as client, client.stream("GET", "/stream") as response:
        events = _events(response)
        await anext(events)
        await allow_connections(told.house.pool, postgres_url, allowed=False)
        try:
            gone = await anext(events)
        finally:
            await allow_connections(told.house.pool, postgres_url, allowed=True)
        back = await anext(events)
        await told.house.publish(make_packet("red-1", SignalPayload(signal=Signal.QUERY)))
        kind, _, data = await anext(events)
    assert [(one[0], one[2]) for one in (gone, back)] == [
        ("state", {"is_readable": False}),
        ("state", {"is_readable": True}),
    ]
    assert gone[1] == back[1], "no entry is skipped"
    assert kind == "entries" and data["items"]
