"""The health of services and the alerts: from a log that a real gate judged, and from real queues."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.web.conftest import WebBench

from apc_bus.port import QueueDepth
from apc_bus.settings import BusSettings
from apc_bus.topology import gate_queue, log_queue
from apc_cli.commands.ui import QueueProbe
from apc_client.local_acts import serve_acts
from apc_log.queries.health import RecentWork
from apc_web import health, queue_looks
from apc_web.models import AgentSummary
from apc_web.queue_looks import CachedProbe


@pytest.fixture
async def probed(told: WebBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WebBench]:
    """A web server that looks at the queues of a running system, each time that it is asked."""
    monkeypatch.setattr(queue_looks, "KEPT_SECONDS", 0.0)
    folder = tmp_path / "data"
    folder.mkdir(0o700)
    probe = CachedProbe(QueueProbe(BusSettings(amqp_url=None, data_dir=folder)))
    object.__setattr__(told.services, "probe", probe)
    async with serve_acts(folder, told.house.client("operator"), 1):
        yield told


async def test_a_running_system_has_a_gate_and_a_log_writer(probed: WebBench) -> None:
    async def are_alive() -> bool:
        return bool((await probed.get("/system"))["alive"] == 4)

    await probed.house.until(are_alive)
    found = await probed.get("/system")
    assert found["is_complete"] and found["words"] == "every shard has a gate and a log writer"
    assert [(one["service"], one["state"], one["waiting"]) for one in found["services"]] == [
        ("gate", "running", 0),
        ("log_writer", "running", 0),
    ]
    gate, writer = found["services"]
    assert gate["delay_seconds"] is None and writer["delay_seconds"] >= 0
    assert (found["agents"], found["alive"]) == (4, 4), "they have just worked, and sent no HEARTBEAT"
    assert [one["name"] for one in found["alerts"]] == ["ApcDeadLetters"] * bool(found["alerts"])


async def test_a_server_that_reaches_no_queue_says_so_and_alerts_of_nothing_it_does_not_know(told: WebBench) -> None:
    found = await told.get("/system")
    assert not found["is_complete"] and found["words"] == "this server has no way to the queues"
    assert {one["state"] for one in found["services"]} == {"unknown"}
    assert not {one["name"] for one in found["alerts"]} & {"ApcShardWithoutGate", "ApcShardWithoutLogWriter"}


async def test_services_that_do_not_run_raise_alerts(bench: WebBench, tmp_path: Path) -> None:
    """Nothing was ever logged: the queues alone tell that nobody judges and nobody writes."""
    probe = CachedProbe(QueueProbe(BusSettings(amqp_url=None, data_dir=tmp_path)))
    object.__setattr__(bench.services, "probe", probe)
    async with serve_acts(tmp_path, bench.house.client("operator"), 1):
        found = await bench.get("/system")
    assert [(one["name"], one["severity"]) for one in found["alerts"]] == [
        ("ApcShardWithoutGate", "critical"),
        ("ApcShardWithoutLogWriter", "critical"),
    ]
    assert found["words"] == "no gate runs for shard 0; no log writer runs for shard 0"


def test_a_late_log_refusals_and_dead_letters_raise_alerts() -> None:
    work = RecentWork(shard=0, packets=100, refused=21, delay=7.2, dead=2)
    depths = {gate_queue(0): QueueDepth(20_000, 1), log_queue(0): QueueDepth(0, 1)}
    parts = [health._gate(work, depths), health._persister(work, depths)]
    alerts = [*health._of_services(parts), *health._of_work([work])]
    assert [(one.name, one.words) for one in alerts] == [
        ("ApcConsumerLag", "20,000 messages wait for the gate of shard 0"),
        ("ApcLogWrittenLate", "the log of shard 0 is written 7 s after the verdicts"),
        ("ApcDeadLetters", "2 deliveries died in the last 15 minutes"),
        ("ApcManyRefusals", "21 of the last 100 packets were refused (last 10 minutes)"),
    ]
    few = RecentWork(shard=0, packets=19, refused=19, delay=None, dead=0)
    assert not list(health._of_work([few])), "of few packets a share says nothing"


def test_a_host_that_is_gone_raises_an_alert_with_the_number_of_its_agents() -> None:
    fields: dict[str, Any] = {
        "role": "r",
        "swarm": "s",
        "rights": [],
        "handles": ["IDEA"],
        "broker_user": "host.h0",
        "keys": [],
    }
    fields |= {"kind": "agent", "is_revoked": False, "last_seen": None, "open_deliveries": 0, "most_open": 125}

    def agent(name: str, host: str | None, is_here: bool | None) -> AgentSummary:
        told = {"agent_id": name, "host": host, "is_host_present": is_here, "is_alive": bool(is_here), "quota": None}
        return AgentSummary.model_validate(fields | told)

    agents = [agent("a", "h0", False), agent("b", "h0", False), agent("c", "h1", True), agent("d", "h2", None)]
    (alert,) = health._of_hosts([*agents, agent("e", None, None)])
    assert (alert.name, alert.severity) == ("ApcHostGone", "critical")
    assert alert.words == "host h0 is gone, and with it 2 agents"


def test_clocks_that_differ_are_told_of_and_are_no_delay() -> None:
    work = RecentWork(shard=0, packets=1, refused=0, delay=-3_600.0, dead=0)
    writer = health._persister(work, {log_queue(0): QueueDepth(0, 1)})
    assert writer.delay_seconds == 0 and writer.words.endswith(
        "the clocks of gate and database differ by at least 3600 s"
    )


async def test_a_system_that_has_ended_is_told_of(told: WebBench, tmp_path: Path) -> None:
    probe = CachedProbe(QueueProbe(BusSettings(amqp_url=None, data_dir=tmp_path)))
    object.__setattr__(told.services, "probe", probe)
    found = await told.get("/system")
    assert not found["is_complete"] and found["words"].startswith("no system runs over ")
