"""The agents in Node.js and with aio-pika, which know the protocol from its page and the schemas alone."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from tests.integration.conftest import House
from tests.support.traffic import AGENTS, ScriptedAgents, make_idea, make_packet, make_start, until
from tests.support.traffic.packets import ROLE, Cast

from apc_agents.keys import make_key
from apc_bus.rabbit import apply_rabbit
from apc_bus.topology import build_topology
from apc_client.registration import publish_changes, register_contract, register_schemas
from apc_contracts import MessagePayload, Packet, SignalPayload, TaskSessionSpec, parse_packet
from apc_contracts.identity.ids import reply_id
from apc_contracts.payloads.by_type import AckPayload
from apc_contracts.vocabulary import PacketType, RunPhase, Signal

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
FOREIGNER = "Node.1"
"""With an upper-case letter and a dot: the words of routing keys are encoded, the names of queues are not."""
CAST: Cast = {**AGENTS, FOREIGNER: ("review", ())}

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNREACHABLE = re.compile(
    r"npm (?:error|ERR!) code (ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|EHOSTUNREACH|ETIMEDOUT)"
)
"""How npm says that it is not the installation that fails but the way to the registry."""
WITHOUT_OURS = """
import runpy, sys
class NothingOfOurs:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("apc_"):
            raise ImportError(f"{name} is ours")
sys.meta_path.insert(0, NothingOfOurs())
sys.path.insert(0, "")
runpy.run_path("agent.py", run_name="__main__")
"""
"""Runs the agent with aio-pika where nothing of this project can be imported."""


@dataclass(frozen=True)
class Foreign:
    """An agent that uses nothing of ours: its program, and the folder in which it runs."""

    program: tuple[str, ...]
    folder: Path


@pytest.fixture(scope="module", params=["node", "python"])
def foreign(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Foreign:
    """Return the agent in Node.js, or its twin in Python."""
    if request.param == "python":
        return Foreign((sys.executable, "-P", "-c", WITHOUT_OURS), EXAMPLES / "aio-pika-agent")
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no Node.js: neither node nor npm on the PATH")
    return Foreign(("node", "main.mjs"), installed(tmp_path_factory.mktemp("node") / "node-agent"))


def installed(folder: Path) -> Path:
    """Copy the example in Node.js with exactly the libraries of its lock file."""
    shutil.copytree(EXAMPLES / "node-agent", folder, ignore=shutil.ignore_patterns("node_modules"))
    # Few and short attempts: without a registry the answer is wanted in seconds.
    patience = (
        "--prefer-offline",
        "--fetch-retries=2",
        "--fetch-retry-mintimeout=500",
        "--fetch-retry-maxtimeout=2000",
    )
    install = ("npm", "ci", "--no-audit", "--no-fund", *patience)
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True)
    unreachable = UNREACHABLE.search(done.stderr)
    if done.returncode and unreachable:
        pytest.skip(f"the npm registry cannot be reached ({unreachable[1]}): no libraries for the example")
    assert done.returncode == 0, done.stderr
    return folder


@asynccontextmanager
async def running_agent(
    agent: Foreign, environment: Mapping[str, str], *, code: int = 0
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The agent as a process that has said its READY; it must end at SIGTERM, or before, with this exit code."""
    process = await asyncio.create_subprocess_exec(
        *agent.program, cwd=agent.folder, env=os.environ | environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert json.loads(await process.stdout.readline())["event"] == "ready"
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
    assert process.returncode == code


@pytest.fixture
async def running(house: House, amqp_vhost_url: str) -> AsyncIterator[House]:
    """A house in which the agent is registered and has its queues."""
    house.agents = ScriptedAgents(house.agents.bus, CAST)
    house.opening = make_start(cast=CAST, members=("sentinel", FOREIGNER))
    await apply_rabbit(amqp_vhost_url, build_topology(1, house.agents.queues))
    async with house.persister(), house.gate():
        await house.agents.register()
        yield house


def environment_of(amqp_url: str) -> dict[str, str]:
    """Return what the agent reads."""
    return {
        "APC_AMQP_URL": amqp_url,
        "APC_AGENT_ID": FOREIGNER,
        "APC_AGENT_ROLE": ROLE,
        "APC_AGENT_SWARM": CAST[FOREIGNER][0],
        "APC_SCHEMAS": str(ROOT / "contracts" / "schemas"),
    }


def read_own_schemas() -> dict[str, Any]:
    """Return the schemas beside the example."""
    names = ("change/1", "review/1")
    return {
        name: json.loads((EXAMPLES / "node-agent" / f"{name.partition('/')[0]}.schema.json").read_text())
        for name in names
    }


def opening_with_a_change(contract: str) -> tuple[Packet, Packet]:
    """Return the START of a session under a contract, and a change to review in it."""
    spec = TaskSessionSpec(contract=contract, members=("red-1", FOREIGNER), deciders=("red-1",))
    opening = make_packet("librarian", SignalPayload(signal=Signal.START, session=spec), cast=CAST, version="apc/1.1")
    change = MessagePayload(schema_id="change/1", content={"file": "a.py", "lines": ["x = 1", "y" * 121]})
    asked = make_packet(
        "librarian", change, (FOREIGNER,), cast=CAST, parent=opening, phase=RunPhase.EXECUTION, version="apc/1.1"
    )
    return opening, asked


@pytest.mark.long
async def test_it_answers_typed_content_in_a_session_of_1_1(
    running: House, foreign: Foreign, amqp_vhost_url: str
) -> None:
    """A MESSAGE in, a MESSAGE out; the gate has judged both by the schemas beside the example."""
    await register_schemas(running.agents.bus, running.pool, 1, read_own_schemas())
    opening, asked = opening_with_a_change("task")
    async with running_agent(foreign, environment_of(amqp_vhost_url)):
        await running.agents.publish(opening)
        await until(running.is_in("SESSION_OPEN"))
        await running.agents.publish(asked)
        await until(running.has_come_to("ARCHIVED", asked.packet_id, FOREIGNER))
        (delivery,) = await running.agents.receive("librarian")
    answer = parse_packet(delivery.message.body)
    said = answer.payload_as(MessagePayload)
    assert (answer.protocol_version, said.schema_id) == ("apc/1.1", "review/1")
    assert said.content == {"file": "a.py", "remarks": [{"line": 2, "text": "more than 120 characters"}]}
    verdict = "SELECT verdict FROM apc_log.agent_packets WHERE packet_id = $1"
    assert await running.pool.fetchval(verdict, answer.packet_id) == "accepted"


RULES = b"""\
name: short-lines
extends: task
rules:
  - name: no-remarks
    for: review/1
    require: size(content.remarks) == 0
    say: A review is sent when nothing is left to remark.
    remedy: Break the long lines.
"""


@pytest.mark.long
async def test_it_says_the_rule_and_the_remedy_of_a_refusal(
    running: House, foreign: Foreign, amqp_vhost_url: str
) -> None:
    """Its answer breaks a rule of the session's contract: its log says by the NACK which one, and what helps."""
    agents = running.agents
    await register_schemas(agents.bus, running.pool, 1, read_own_schemas())
    await register_contract(agents.bus, running.pool, 1, RULES, "short-lines.yml")
    opening, asked = opening_with_a_change("short-lines")
    async with running_agent(foreign, environment_of(amqp_vhost_url)) as process:
        await agents.publish(opening)
        await until(running.is_in("SESSION_OPEN"))
        await agents.publish(asked)
        assert process.stdout is not None
        async for line in process.stdout:
            said = json.loads(line)
            if said["event"] == "refused":
                break
    sentence = "RULE_FAILED at payload: A review is sent when nothing is left to remark."
    assert (said["rule"], said["remedy"], said["reason"]) == ("no-remarks", "Break the long lines.", sentence)


@pytest.mark.long
async def test_it_joins_and_answers_an_idea_with_a_claim(
    running: House, foreign: Foreign, amqp_vhost_url: str, tmp_path: Path
) -> None:
    key = make_key(tmp_path / "key.pem")
    registration = running.agents.registration(FOREIGNER, public_keys={key.key_id: key.public_key})
    await publish_changes(running.agents.bus, [registration], 1)
    environment = environment_of(amqp_vhost_url) | {"APC_AGENT_KEY_FILE": str(tmp_path / "key.pem")}
    async with running_agent(foreign, environment):
        await running.agents.publish(running.opening)
        await until(running.is_in("SESSION_OPEN"))
        idea = make_packet("red-1", make_idea(), (FOREIGNER,), cast=CAST, parent=running.opening, requires_ack=True)
        await running.agents.publish(idea, headers={"traceparent": TRACEPARENT})
        (delivery,) = await running.agents.receive("red-1")
        claim: Any = parse_packet(delivery.message.body)
        start, acknowledgement = await running.agents.receive("red-1", 2, urgent=True)
        await until(running.has_come_to("ARCHIVED", idea.packet_id, FOREIGNER))
    assert claim.packet_type is PacketType.CLAIM
    assert delivery.message.headers["traceparent"] == TRACEPARENT
    assert claim.packet_id == reply_id(idea.packet_id, FOREIGNER, 0), "derived, so that a second run makes it again"
    assert start.message.type == "SIGNAL"
    assert parse_packet(acknowledgement.message.body).payload_as(AckPayload).acked_packet_id == idea.packet_id
    assert claim.trace.parent_packet_id == idea.packet_id
    assert claim.trace.root_packet_id == running.opening.packet_id
    assert claim.proof_bundle.evidence_refs == (f"packet:{idea.packet_id}",)
    sent = await running.pool.fetch(
        "SELECT packet_type, cause_packet_id, facts ->> 'signature' AS signature FROM apc_log.agent_packets "
        "WHERE sender_agent_id = $1 ORDER BY seq",
        FOREIGNER,
    )
    assert [tuple(row) for row in sent] == [
        ("HEARTBEAT", None, "valid"),
        ("CLAIM", idea.packet_id, "valid"),
        ("ACK", idea.packet_id, "valid"),
    ]


@pytest.mark.long
async def test_it_ends_with_an_error_when_the_broker_takes_its_queue(
    running: House, foreign: Foreign, amqp_vhost_url: str
) -> None:
    """It does not reconnect: who starts it again has to see that it has failed."""
    async with running_agent(foreign, environment_of(amqp_vhost_url), code=1) as process:
        async with await aio_pika.connect(amqp_vhost_url) as connection:
            channel = await connection.channel()
            await channel.queue_delete(f"apc.agent.{FOREIGNER}.normal")
        await process.wait()
