"""One packet through gate, log writer and worker as processes: its ids in their log lines, and their metrics."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.agents.worker_process import PYTHONPATH
from tests.integration.conftest import House
from tests.support.servers.ports import free_ports
from tests.support.traffic import make_idea, make_packet, until

from apc_agents.keys import AgentKey, make_key
from apc_client.registration import publish_changes

SERVICES = {
    "persister": ("serve", "persister"),
    "orchestrator": ("serve", "orchestrator"),
    "worker": ("worker", "talking_agent:agent"),
}
CONTENT = "words-of-a-body-that-no-log-shows"
DOCUMENTED = re.compile(r"^\| `(apc_\w+)` \| \w+ \| ([\w, ]*)\|", re.MULTILINE)
Lines = list[dict[str, Any]]


class Processes:
    """The three services over the broker and the database of a house, at DEBUG, each with its pages."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("APC_")}
        self._environment = inherited | environment
        self._folder = folder
        self.ports = dict(zip(SERVICES, free_ports(len(SERVICES)), strict=True))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for name in SERVICES:
                await stack.enter_async_context(self._process(name))
            yield

    @asynccontextmanager
    async def _process(self, name: str) -> AsyncIterator[None]:
        given = self._environment | {"APC_HEALTH_PORT": str(self.ports[name])}
        with (self._folder / f"{name}.log").open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "apc_cli", *SERVICES[name],
                cwd=self._folder, env=given, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            yield
        finally:
            process.terminate()
            async with asyncio.timeout(60):
                assert await process.wait() == 0, self.text(name)

    def text(self, name: str) -> str:
        """Return all that a process has written."""
        return (self._folder / f"{name}.log").read_text()

    def lines(self, name: str) -> Lines:
        """Its lines, each a JSON object."""
        return [json.loads(line) for line in self.text(name).splitlines()]

    async def metrics(self, name: str) -> dict[str, set[str]]:
        """Return each metric of ours that a process has a value of, and its labels."""
        page = await asyncio.to_thread(_page, self.ports[name])
        return {
            family.name: {label for sample in family.samples for label in sample.labels} - {"le"}
            for family in text_string_to_metric_families(page)
            if family.name.startswith("apc_") and family.samples and not family.name.endswith("_created")
        }


def _page(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return bytes(answer.read()).decode()


@pytest.fixture
def key(tmp_path: Path) -> AgentKey:
    """What the agent signs with."""
    return make_key(tmp_path / "agent.pem")


@pytest.fixture
def processes(house: House, key: AgentKey, amqp_vhost_url: str, postgres_url: str, tmp_path: Path) -> Processes:
    given = {
        "APC_AMQP_URL": amqp_vhost_url,
        "APC_DATABASE_URL": postgres_url,
        "APC_LOG_LEVEL": "DEBUG",
        "APC_LOG_KEY": os.environ["APC_LOG_KEY"],
        "APC_CHECKPOINTS_URL": "memory:///",
        "APC_AGENT_KEY": (tmp_path / "agent.pem").read_text(),
        "PYTHONPATH": PYTHONPATH,
    }
    return Processes(given, tmp_path)


def about(lines: Lines, event: str, packet_id: str) -> dict[str, Any]:
    """Return the one line of an event about a packet."""
    (line,) = [line for line in lines if line["event"] == event and line.get("packet_id") == packet_id]
    return line


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_its_ids_are_in_the_lines_and_nothing_of_its_content(
    house: House, key: AgentKey, processes: Processes, tmp_path: Path
) -> None:
    agents = house.agents
    async with processes.running():
        await agents.register()
        signing = agents.registration("blue-1", public_keys={key.key_id: key.public_key})
        await publish_changes(agents.bus, [signing], 1)
        await agents.publish(house.opening)
        await until(house.is_in("SESSION_OPEN"), 60)
        sent = make_packet("red-1", make_idea(CONTENT), ("blue-1",), parent=house.opening)
        failing = make_idea(CONTENT).model_copy(update={"method_id": "fails"})
        failed = make_packet("red-1", failing, ("blue-1",), parent=house.opening)
        refused = make_packet("red-1", make_idea(CONTENT), ("nobody",), parent=house.opening)
        await agents.publish(sent, failed, refused)
        await until(house.has_come_to("ARCHIVED", sent.packet_id, "blue-1"), 60)
        await until(house.has_come_to("DEAD_LETTERED", failed.packet_id, "blue-1"), 60)
        await until(house.is_logged(refused.packet_id), 60)
        found = [await processes.metrics(name) for name in SERVICES]
    gate, log_writer, worker = (processes.lines(name) for name in ("orchestrator", "persister", "worker"))

    packet_id = str(sent.packet_id)
    ids = {"packet_id": packet_id, "session_id": sent.trace.session_id, "run_id": sent.trace.run_id}
    judged = about(gate, "packet_judged", packet_id)
    assert judged.items() >= (ids | {"agent_id": "red-1", "shard": 0, "epoch": 1, "verdict": "accepted"}).items()
    committed = about(log_writer, "packet_committed", packet_id)
    where = {"shard": 0, "epoch": 1, "batch": judged["batch"]}
    assert committed.items() >= (ids | where | {"agent_id": "red-1"}).items()
    assert any(line.items() >= where.items() for line in log_writer if line["event"] == "batch_committed")
    for event in ("idea_looked_at", "packet_ended"):
        assert about(worker, event, packet_id).items() >= (ids | {"agent_id": "blue-1", "attempt": 1}).items()
    (emitted,) = [line for line in worker if line["event"] == "packet_emitted" and line["cause"] == packet_id]
    assert emitted.items() >= (ids | {"agent_id": "blue-1", "packet_id": emitted["packet_id"]}).items()
    assert about(gate, "packet_judged", emitted["packet_id"])["agent_id"] == "blue-1"
    assert about(gate, "packet_judged", str(refused.packet_id))["code"] == "UNROUTABLE"
    failure = about(worker, "handler_failed", str(failed.packet_id))
    assert failure["session_id"] == sent.trace.session_id and failure["agent_id"] == "blue-1"

    written = "".join(processes.text(name) for name in SERVICES)
    secrets = [CONTENT, ":guest@", "BEGIN PRIVATE KEY"]
    for pem in (os.environ["APC_LOG_KEY"], (tmp_path / "agent.pem").read_text()):
        secrets += [line for line in pem.splitlines() if "-" not in line]
    assert [secret for secret in secrets if secret in written] == []

    documented = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text()
    table = {name: set(re.findall(r"\w+", labels)) for name, labels in DOCUMENTED.findall(documented)}
    exported = {name: labels for page in found for name, labels in page.items()}
    assert {name: table[name] for name in exported} == exported
    assert len(exported) > 20
