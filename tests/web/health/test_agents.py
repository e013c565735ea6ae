"""The agents with what waits for them: from real queues, and from none."""

from pathlib import Path
from typing import Any

import pytest
from tests.orchestrator.registering.test_run_clients import CLIENT, register_client
from tests.support.traffic.packets import make_packet
from tests.web.conftest import WebBench
from tests.web.health.test_system_health import probed

from apc_bus.settings import BusSettings
from apc_cli.commands.ui import QueueProbe
from apc_contracts import SignalPayload
from apc_contracts.vocabulary import Signal
from apc_web import health
from apc_web.queue_looks import CachedProbe

__all__ = ["probed"]


async def _agents(bench: WebBench, **parameters: Any) -> tuple[Any, dict[str, Any]]:
    found = await bench.get("/agents", **parameters)
    return found, {one["agent_id"]: one for one in found["items"]}


async def test_what_waits_for_an_agent_is_counted_in_its_queues(probed: WebBench) -> None:
    _, before = await _agents(probed, queues=True)
    await probed.house.publish(make_packet("red-1", SignalPayload(signal=Signal.QUERY), ("sentinel",)))
    await probed.house.quiet()
    found, after = await _agents(probed, queues=True)
    assert found["is_complete"] and found["words"] is None
    assert after["sentinel"]["waiting"] == before["sentinel"]["waiting"] + 1
    assert after["sentinel"]["consumers"] == 0, "nobody reads"
    async with probed.house.client("agent.sentinel").subscribe("apc.agent.sentinel.normal"):
        _, read = await _agents(probed, queues=True)
    assert read["sentinel"]["consumers"] == 1


async def test_what_the_gate_lets_an_agent_do_is_told(probed: WebBench) -> None:
    _, found = await _agents(probed)
    one = found["sentinel"]
    assert one["most_open"] == 1_000 and one["quota"] == {"packets_per_second": 10_000.0, "burst": 10_000}
    assert one["waiting"] is None, "nobody asked for the queues"


async def test_queues_that_nobody_can_reach_are_unknown_and_never_empty(told: WebBench, tmp_path: Path) -> None:
    found, items = await _agents(told, queues=True)
    assert (found["is_complete"], found["words"]) == (False, "this server has no way to the queues")
    assert {one["waiting"] for one in items.values()} == {None}
    probe = CachedProbe(QueueProbe(BusSettings(amqp_url=None, data_dir=tmp_path)))
    object.__setattr__(told.services, "probe", probe)
    found, items = await _agents(told, queues=True)
    assert not found["is_complete"] and found["words"].startswith("no system runs over ")
    assert {one["consumers"] for one in items.values()} == {None}


async def test_an_agent_without_queues_is_unknown(probed: WebBench) -> None:
    probed.house.broker.delete_queue("apc.agent.sentinel.urgent")
    found, items = await _agents(probed, queues=True)
    assert not found["is_complete"] and found["words"].startswith("nobody knows the queues of sentinel: ")
    assert items["sentinel"]["waiting"] is None and items["red-1"]["waiting"] is not None


async def test_the_client_of_a_run_has_no_queues_to_look_at(probed: WebBench) -> None:
    await register_client(probed.house)
    await probed.house.quiet()
    found, items = await _agents(probed, queues=True)
    assert found["is_complete"] and found["words"] is None
    assert items[CLIENT]["waiting"] is None


async def test_more_agents_than_are_looked_at_are_told_of(probed: WebBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MOST_INBOXES", 1)
    found, items = await _agents(probed, queues=True)
    assert found["words"] == f"the queues of 1 of {len(items)} agents were looked at"
    assert sum(one["waiting"] is not None for one in items.values()) == 1
