"""A project of `apc new` in pods of the chart, beside broker, database and object store. `make test-pods` runs it."""

import json
import os
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.deploy.conftest import Chart
from tests.deploy.pods.kube import NETWORK, Object, Pods, podman, podman_succeeds, secret
from tests.support.servers import S3Server
from tests.support.waiting import until

from apc_cli.commands.deploy import make_certificate
from apc_cli.commands.new import write_project
from apc_web.access import AccountRole, UserRecord, UsersDocument, hash_password

ROOT = Path(__file__).parents[3]
FIGURES = ROOT / "build/pods.json"
TEAM, AGENTS, IMAGE = "my-team", ("writer", "editor"), "my-team:0.1.0"
SERVERS = ("apc-pods-rabbitmq", "apc-pods-postgres")
PASSWORD = "a-password-of-a-test"
CONSOLE_PORT = 18443
collect_ignore_glob = [] if os.environ.get("APC_TEST_PODS") else ["test_*.py"]


def amqp(user: str) -> str:
    return f"amqp://{user}:{PASSWORD}@rabbitmq:5672/"


def database(user: str) -> str:
    return f"postgresql://{user}:{PASSWORD}@postgres:5432/apc"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project, with its image built."""
    made = write_project(TEAM, tmp_path_factory.mktemp("project"))
    subprocess.run(["docker", "build", "--tag", IMAGE, "."], cwd=made, check=True, capture_output=True)
    return made


def run_server(name: str, alias: str, image: str, files: dict[str, str], variables: dict[str, str]) -> None:
    """Run a container in the network; `files` maps a file here to its place inside."""
    volumes = [f"--volume={source}:{place}:ro" for source, place in files.items()]
    given = [f"--env={variable}={value}" for variable, value in variables.items()]
    network = f"--network={NETWORK}:alias={alias}"
    podman("run", "--detach", "--name", name, "--hostname", alias, network, *volumes, *given, image)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def servers() -> AsyncIterator[None]:
    """Broker and database, as an operator of Kubernetes would run them: containers in the same network."""
    podman("network", "create", "--ignore", NETWORK)
    broker = {
        f"{ROOT}/deploy/rabbitmq.conf": "/etc/rabbitmq/conf.d/20-apc.conf",
        f"{ROOT}/deploy/rabbitmq-advanced.config": "/etc/rabbitmq/advanced.config",
    }
    administrator = {"RABBITMQ_DEFAULT_USER": "apc", "RABBITMQ_DEFAULT_PASS": PASSWORD}
    run_server(SERVERS[0], "rabbitmq", "rabbitmq:4.2-management", broker, administrator)
    users = {f"{ROOT}/deploy/postgres-users.sh": "/docker-entrypoint-initdb.d/10-users.sh"}
    logins = {f"{name}_DB_PASSWORD": PASSWORD for name in ("GATE", "LOG_WRITER", "OPERATOR", "WEB", "DOOR")}
    superuser = {"POSTGRES_USER": "apc", "POSTGRES_DB": "apc", "POSTGRES_PASSWORD": PASSWORD}
    run_server(SERVERS[1], "postgres", "postgres:18", users, superuser | logins)
    ready = (
        # As root it would make the cookie first, and the server could not read it.
        ("--user=rabbitmq", SERVERS[0], "rabbitmq-diagnostics", "--quiet", "check_port_connectivity"),
        (SERVERS[1], "pg_isready", "--username", "apc", "--dbname", "apc", "--host", "127.0.0.1"),
    )
    try:
        for probe in ready:
            await until(partial(podman_succeeds, "exec", *probe), 120, pause_seconds=1)
        yield
    finally:
        podman("rm", "--force", "--time", "5", "--volumes", *SERVERS, is_expected_to_work=False)


def secrets(key: str, store: S3Server) -> Iterator[Object]:
    """The Secrets that docs/how-to/kubernetes.md lists."""
    passwords = {user: PASSWORD for user in ("topology", "orchestrator", "persister", "operator", "web", "door")}
    passwords |= {f"agent.{agent}": PASSWORD for agent in AGENTS}
    management = {"apc_management_url": f"http://apc:{PASSWORD}@rabbitmq:15672"}
    managed = management | {"apc_broker_passwords": json.dumps(passwords), "apc_database_url": database("apc_operator")}
    yield secret("apc-gate", apc_amqp_url=amqp("orchestrator"), apc_database_url=database("apc_gate"))
    yield secret("apc-log-writer", apc_amqp_url=amqp("persister"), apc_database_url=database("apc_log_writer"))
    yield secret("apc-log-key", **{"log-key.pem": key})
    keys = {"aws_access_key_id": store.account.access_key_id, "aws_secret_access_key": store.account.secret_access_key}
    yield secret("apc-artifacts-read", **keys)
    yield secret("apc-artifacts-write", **keys)
    yield secret("apc-migrate", apc_database_url=database("apc"))
    yield secret("apc-topology", apc_amqp_url=amqp("apc"), **managed)
    yield secret("apc-register", apc_amqp_url=amqp("operator"), apc_topology_url=amqp("topology"), **managed)
    record = UserRecord(role=AccountRole.OPERATOR, password=hash_password(PASSWORD))
    users = UsersDocument(users={"admin": record}).model_dump_json()
    yield secret("apc-web", apc_amqp_url=amqp("web"), apc_database_url=database("apc_web"), **{"users.json": users})
    pair = make_certificate(["localhost", "127.0.0.1"])
    yield secret("apc-web-tls", **{"tls.crt": pair.certificate.decode(), "tls.key": pair.key.decode()})
    for agent in AGENTS:
        yield secret(agent, apc_amqp_url=amqp(f"agent.{agent}"), apc_database_url=database(f"agent.{agent}"))


def values(store: S3Server) -> dict[str, Any]:
    """What the chart is given, beside ci/minimal.yaml."""
    gateway = podman("network", "inspect", NETWORK, "--format", "{{(index .Subnets 0).Gateway}}")
    port = store.account.endpoint.rpartition(":")[2]
    image = dict(zip(("repository", "tag"), IMAGE.split(":"), strict=True))
    workers = [
        {"name": one, "agentId": one, "agent": f"my_team.team:team:{one}", "secret": one, "image": image}
        for one in AGENTS
    ]
    return {
        "settings": {"APC_ARTIFACTS_ALLOW_HTTP": "true"},
        "broker": {"url": "amqp://rabbitmq:5672/"},
        "artifacts__url": f"s3://{store.BUCKET}/team",
        "artifacts__endpoint": f"http://{gateway}:{port}",
        "gate__replicas": 1,
        "logWriter__checkpointsUrl": "file:///var/lib/apc/checkpoints",
        "web": {"enabled": True, "secret": "apc-web", "hosts": ["localhost", "127.0.0.1"], "tlsSecret": "apc-web-tls"},
        "workers": workers,
    }


class Release:
    """The pods, what was measured of them, and the operator's command line beside them."""

    def __init__(self, pods: Pods, certificate: Path) -> None:
        self.pods = pods
        self.certificate = certificate
        self.figures: dict[str, Any] = {}

    def operate(self, *command: str, stdin: str = "") -> str:
        """Run `apc` as the operator, in a container of the team's image."""
        given = {"APC_AMQP_URL": amqp("operator"), "APC_DATABASE_URL": database("apc_operator"),
                 "APC_TOPOLOGY_URL": amqp("topology"),}  # fmt: skip
        settings = [f"--env={name}={value}" for name, value in given.items()]
        return podman("run", "--rm", "--interactive", f"--network={NETWORK}", *settings, IMAGE, *command, stdin=stdin)


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The log's signing key."""
    data = tmp_path_factory.mktemp("data")
    environment = {name: value for name, value in os.environ.items() if name != "APC_LOG_KEY"}
    command = [sys.executable, "-m", "apc_cli", "log", "key", "--create"]
    subprocess.run(command, env=environment | {"APC_DATA_DIR": str(data)}, check=True)
    return (data / "log-key.pem").read_text()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def release(
    chart: Chart, servers: None, folder: Path, key: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Release]:
    """Everything of the chart, started in the order in which Helm and Kubernetes would."""
    with S3Server(host="0.0.0.0") as store:
        given = list(secrets(key, store))
        certificate = tmp_path_factory.mktemp("certificate") / "tls.crt"
        [pair] = [one for one in given if one["metadata"]["name"] == "apc-web-tls"]
        certificate.write_bytes(b64decode(pair["data"]["tls.crt"]))
        pods = Pods(chart.render("minimal", **values(store)))
        made = Release(pods, certificate)
        try:
            began = time.monotonic()
            pods.keep(given)
            await _start_all(pods)
            made.figures["seconds until every pod is ready, one after the other"] = round(time.monotonic() - began, 1)
            yield made
        finally:
            pods.close()
            FIGURES.parent.mkdir(exist_ok=True)
            FIGURES.write_text(json.dumps(made.figures, indent=2) + "\n")
            sys.stdout.write(FIGURES.read_text())


async def _start_all(pods: Pods) -> None:
    for job in ("apc-migrate", "apc-topology"):
        await pods.finish(job)
    for service in ("apc-log-writer", "apc-gate", "apc-artifacts"):
        await pods.start(service)
    for job in [f"apc-register-{agent}-1" for agent in AGENTS]:
        await pods.finish(job)
    await pods.start("apc-web", "--publish", f"{CONSOLE_PORT}:8443")
    for agent in AGENTS:
        await pods.start(f"apc-{agent}")
