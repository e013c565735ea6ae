"""The deployment of the cluster run, set up by the commands of docs/how-to/operations.md, each process its own user."""

import asyncio
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import orjson
from tests.faults.cluster.processes import APC, ROOT, ClusterProcess, End
from tests.faults.cluster.servers import DEPLOY, Servers
from tests.support.servers.ports import free_ports
from tests.support.waiting import until

SHARDS = 4
CREW = "tests.faults.cluster.crew"
LEAD, HOSTED = "agent.lead", "host.crew"
USERS = ("topology", "orchestrator", "persister", "operator", "web", LEAD, HOSTED)
"""Of the broker."""
GATE, WRITER, WORKER, HOST = "gate", "log-writer", "worker", "host"
SAID = {GATE: "apc_gate_shards_held", WRITER: "apc_log_entries_total", HOST: "apc_worker_packets_total"}
"""The metric of each kind that tells who works: of gates how much it is, of the others that it grows."""
COMMAND_SECONDS = 600
"""A command may be slow on a busy machine; how fast they are is measured elsewhere."""
READY_SECONDS = 120.0
SCRAPE_APART_SECONDS = 1.0


@dataclass
class ClusterSystem:
    """The processes of a deployment and how to reach it. `folder` holds their logs, the log's key and checkpoints."""

    servers: Servers
    folder: Path
    admin: asyncpg.Pool
    """Connections of the database's superuser."""
    processes: dict[str, ClusterProcess] = field(default_factory=dict)
    passwords: dict[str, str] = field(default_factory=lambda: {user: secrets.token_hex(12) for user in USERS})

    def of(self, *kinds: str) -> list[ClusterProcess]:
        """Return the processes whose name begins with one of these."""
        return [process for name, process in self.processes.items() if name.startswith(kinds)]

    @property
    def services(self) -> list[ClusterProcess]:
        """Every process but the driver."""
        return self.of(GATE, WRITER, WORKER, HOST)

    @property
    def ends(self) -> list[End]:
        """Return how processes have ended by themselves."""
        return [end for process in self.processes.values() for end in process.ends]

    @property
    def operator_settings(self) -> dict[str, str]:
        """The settings of the operator's commands and of the driver."""
        return self._settings("operator", "apc_operator") | {
            "APC_TOPOLOGY_URL": self.servers.nodes[0].url(user="topology", password=self.passwords["topology"]),
            "APC_MANAGEMENT_URL": self.servers.management_url,
            "APC_BROKER_PASSWORDS": orjson.dumps(self.passwords).decode(),
        }

    async def apc(self, *arguments: str, settings: Mapping[str, str], may_fail: bool = False) -> tuple[int, str]:
        """Run a command of `apc` to its end; return its exit code and what it said."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("APC_", "PYTEST"))}
        environment = inherited | {"PYTHONPATH": str(ROOT)} | dict(settings)
        done = await asyncio.to_thread(
            subprocess.run, [str(APC), *arguments], cwd=self.folder, env=environment,
            capture_output=True, text=True, timeout=COMMAND_SECONDS,
        )  # fmt: skip
        said = done.stdout[-4000:] + done.stderr[-4000:]
        assert done.returncode == 0 or may_fail, f"apc {' '.join(arguments)} ended with {done.returncode}: {said}"
        return done.returncode, said

    async def active(self, kind: str) -> ClusterProcess:
        """Return the process that works, as its metrics say: the gate with most shards, or who is busy."""
        candidates = self.of(kind)

        async def counted() -> list[float]:
            return [await process.metric(SAID[kind]) or 0 for process in candidates]

        found: list[ClusterProcess] = []

        async def is_told() -> bool:
            before = [0.0] * len(candidates) if kind == GATE else await counted()
            await asyncio.sleep(0 if kind == GATE else SCRAPE_APART_SECONDS)
            gains = [late - early for late, early in zip(await counted(), before, strict=True)]
            found[:] = [candidates[gains.index(max(gains))]] if max(gains) > 0 else []
            return bool(found)

        await until(is_told, READY_SECONDS, pause_seconds=0.2)
        return found[0]

    async def start(self, processes: Iterable[ClusterProcess]) -> None:
        """Start these processes, unless they run."""
        await asyncio.gather(*(process.start() for process in processes))

    async def set_up(self) -> None:
        """Make schema, logins, topology, broker users, registrations; start every process but the driver."""
        superuser = f"postgresql://postgres@/apc?host={self.servers.postgres.folder}&port={self.servers.postgres_port}"
        await self._make_logins()
        await self.apc("migrate", settings={"APC_DATABASE_URL": superuser})
        await self.apc("log", "key", "--create", settings=self._common)
        operating = self.operator_settings
        as_administrator = operating | {"APC_AMQP_URL": self.servers.cluster.url()}
        del as_administrator["APC_TOPOLOGY_URL"]
        await self.apc("topology", "apply", settings=as_administrator)
        self._make_processes()
        await self.start(self.of(GATE, WRITER))
        await until(self._is_served, READY_SECONDS)
        add = ("agent", "add")
        starter = ("client-starter", "--role", "client", "--swarm", "clients", "--rights", "operate")
        await self.apc(*add, *starter, "--broker-user", "operator", settings=operating)
        await self.apc(*add, f"{CREW}:lead", settings=operating)
        await self.apc(*add, "--host", "crew", f"{CREW}:hand", settings=operating)
        await asyncio.to_thread(self.servers.cluster.persist_declarations)
        members = await asyncio.to_thread(self.servers.cluster.members)
        assert set(members.values()) == {len(self.servers.nodes)}, f"every queue has to be on every node: {members}"
        await self.start(self.of(WORKER, HOST))
        await until(self._workers_are_ready, READY_SECONDS)

    @property
    def _common(self) -> dict[str, str]:
        return {"APC_SHARDS": str(SHARDS), "APC_DATA_DIR": str(self.folder), "CREW_NOTES": str(self.folder)}

    def _amqp(self, user: str) -> str:
        return self.servers.cluster.url(user=user, password=self.passwords[user])

    def _settings(self, broker_user: str, login: str) -> dict[str, str]:
        password = self.passwords.setdefault(login, secrets.token_hex(12))
        database = self.servers.database_url(login, password)
        return self._common | {"APC_AMQP_URL": self._amqp(broker_user), "APC_DATABASE_URL": database}

    async def _make_logins(self) -> None:
        """Run the script that ships, as the image of Postgres does."""
        logins = {"GATE": "apc_gate", "LOG_WRITER": "apc_log_writer", "OPERATOR": "apc_operator"}
        given = {
            f"{name}_DB_PASSWORD": self.passwords.setdefault(user, secrets.token_hex(12))
            for name, user in logins.items()
        }
        postgres = self.servers.postgres
        given |= {"PGHOST": str(postgres.folder), "PGPORT": str(self.servers.postgres_port), "POSTGRES_DB": "apc"}
        environment = os.environ | given | {"PATH": f"{postgres.binaries}:{os.environ['PATH']}"}
        done = await asyncio.to_thread(
            subprocess.run, ["sh", str(DEPLOY / "postgres-users.sh")], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    def _make_processes(self) -> None:
        gate = self._settings("orchestrator", "apc_gate") | {"APC_OPERATOR_USER": "operator"}
        writer = self._settings("persister", "apc_log_writer")
        for number in (1, 2):
            self._make(f"{GATE}-{number}", ("serve", "orchestrator"), gate)
            self._make(f"{WRITER}-{number}", ("serve", "persister"), writer)
            self._make(f"{WORKER}-{number}", ("worker", f"{CREW}:lead"), self._settings(LEAD, LEAD))
            hosting = ("serve", "agents", "--host", "crew", f"{CREW}:hand")
            self._make(f"{HOST}-{number}", hosting, self._settings(HOSTED, HOSTED))

    def _make(self, name: str, arguments: tuple[str, ...], settings: dict[str, str]) -> None:
        (port,) = free_ports(1)
        settings = settings | {"APC_HEALTH_PORT": str(port)}
        self.processes[name] = ClusterProcess(name, (str(APC), *arguments), self.folder, settings)

    async def add_driver(self, rate: float) -> ClusterProcess:
        """Start the driver."""
        command = (sys.executable, "-m", "tests.faults.cluster.driver", str(self.folder), str(rate))
        driver = ClusterProcess("driver", command, self.folder, self._settings("operator", "apc_operator"))
        self.processes[driver.name] = driver
        await driver.start()
        return driver

    async def _is_served(self) -> bool:
        return bool(await self.admin.fetchval("SELECT count(*) FROM apc_log.shards WHERE epoch > 0") == SHARDS)

    async def _workers_are_ready(self) -> bool:
        return None not in [await worker.metric("apc_bus_consumers_live") for worker in self.of(WORKER, HOST)]


@asynccontextmanager
async def cluster_system(servers: Servers, folder: Path) -> AsyncIterator[ClusterSystem]:
    """Set a deployment up; leaving the context ends every process of it."""
    async with AsyncExitStack() as stack:
        connection = await asyncpg.connect(servers.postgres.url)
        await connection.execute("CREATE DATABASE apc")
        await connection.close()
        url = servers.postgres.url.replace("@/postgres?", "@/apc?")
        admin = await asyncpg.create_pool(url, min_size=0, max_size=2)
        stack.callback(admin.terminate)
        system = ClusterSystem(servers, folder, admin)
        stack.push_async_callback(_close, system)
        began = time.monotonic()
        await system.set_up()
        print(f"the deployment serves after {time.monotonic() - began:.0f} s", flush=True)
        yield system


async def _close(system: ClusterSystem) -> None:
    await asyncio.gather(*(process.close() for process in system.processes.values()))
