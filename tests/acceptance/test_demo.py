"""`apc demo` as a user sees it: without a terminal, at one, and over RabbitMQ."""

import asyncio
import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest
from tests.support.apc_command import ApcCommand

from apc_bus.port import Message, Publication
from apc_bus.rabbit import connect_rabbit
from apc_bus.settings import BusSettings
from apc_bus.topology import INGRESS
from apc_cli.commands.demo import AUTOPILOT, YOU
from apc_log.registry import registered_people
from apc_persister.database.embedded import start_embedded

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

PAGE = Path(__file__).parents[2] / "docs/tutorial/demo.md"
SECONDS = 300
RULE = "two-witnesses: An action needs a finding of both investigators about its service."
CHANGES = re.compile(
    r"\d+\.\d s|[0-9a-f]{8}-[0-9a-f-]{27}|\d+ s\b|client-[0-9a-f]+|pid \d+|\d+ (?:entries|verdicts)|/\S*/\.apc"
)
"""What differs from run to run."""
ACTIONS = "SELECT verdict FROM apc_log.packets WHERE packet #>> '{payload,schema}' = 'action/1' ORDER BY seq"
ANSWERS = "SELECT packet #>> '{sender,agent_id}' FROM apc_log.packets WHERE packet #>> '{payload,signal}' = 'ANSWER'"


@dataclass(frozen=True, slots=True)
class Played:
    """A demo that has ended, and its folder."""

    apc: ApcCommand
    code: int
    said: str

    @property
    def words(self) -> str:
        """What it printed, in one line."""
        return " ".join(self.said.split())

    @property
    def done(self) -> list[str]:
        """What was done outside the bus."""
        found = list((self.apc.folder / ".apc").rglob("done.txt"))
        return found[0].read_text().splitlines() if found else []


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    """The demo without a terminal, in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="apc-demo-", ignore_cleanup_errors=True) as folder:
        apc = ApcCommand(Path(folder))
        done = apc("demo", timeout_seconds=SECONDS, given={"COLUMNS": "80"})
        yield Played(apc, done.returncode, done.stdout + done.stderr)


def at_terminal(apc: ApcCommand, typed: str, *options: str, early: str = "") -> Played:
    """Play at a terminal of 80 columns without a browser, and type this when the demo asks, and something before."""
    ours, theirs = pty.openpty()
    os.write(ours, early.encode())
    kept = {name: value for name, value in os.environ.items() if not name.startswith("APC_") and "DISPLAY" not in name}
    process = subprocess.Popen(
        [sys.executable, "-m", "apc_cli", "demo", *options],
        cwd=apc.folder,
        env={**kept, "COLUMNS": "80", "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    said = bytearray()
    while part := _read(ours):
        is_asked = b"Approve?" in said
        said += part
        if not is_asked and b"Approve?" in said:
            os.write(ours, typed.encode())
    os.close(ours)
    return Played(apc, process.wait(SECONDS), said.decode())


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def test_it_tells_a_refusal_an_approval_a_kill_and_a_proof(played: Played) -> None:
    assert played.code == 0, played.said
    for words in (
        RULE,
        "remedy: Cite both findings.",
        f"There is no terminal to ask at, so {AUTOPILOT} approves.",
        "killed the process of gate, bus, log writer and agents",
        "done.txt, outside the bus, has 1 line: rollback shop",
        "The log has this of it: effect rollback of fixer: claimed, made",
        "$ apc log verify",
        "verdicts of the gate recomputed: all the same",
        "http://127.0.0.1:8083/runs/",
    ):
        assert words in played.words, words
    assert played.done == ["rollback shop"]
    assert max(map(len, played.said.splitlines())) <= 80


def test_the_page_shows_what_it_prints(played: Played) -> None:
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert CHANGES.sub("…", " ".join(shown.split())) == CHANGES.sub("…", played.words)
    assert max(map(len, shown.splitlines())) <= 80


async def test_the_log_has_one_action_and_claims_no_person(played: Played) -> None:
    server = await start_embedded(played.apc.folder / ".apc")
    async with asyncpg.create_pool(server.url) as pool:
        verdicts = [row[0] for row in await pool.fetch(ACTIONS)]
        answered = [row[0] for row in await pool.fetch(ANSWERS)]
        people = {one.agent_id for one in await registered_people(pool)}
    await server.stop()
    assert verdicts == ["refused", "accepted"]
    assert answered == [AUTOPILOT]
    assert AUTOPILOT in people and YOU not in people


def test_the_lead_at_the_terminal_may_say_no(apc: ApcCommand) -> None:
    played = at_terminal(apc, "n\n")
    assert played.code == 0, played.said
    assert f"{YOU} → fixer denied" in played.words
    assert "Without an approval the fixer does nothing." in played.words
    assert "kill -9, right after" not in played.words
    assert played.done == []


def test_nobody_at_the_terminal_is_nobody_in_the_log(apc: ApcCommand) -> None:
    played = at_terminal(apc, "", "--patience", "1", early="y\n")
    assert played.code == 0, played.said
    assert f"Nobody has answered, so {AUTOPILOT} approves." in played.words
    assert "approved: nobody answered at the terminal within 1 s" in played.words
    assert played.done == ["rollback shop"]


async def test_over_rabbitmq_the_worker_of_one_agent_is_killed(apc: ApcCommand, amqp_vhost_url: str) -> None:
    given = {"APC_AMQP_URL": amqp_vhost_url, "COLUMNS": "80"}
    done = await asyncio.to_thread(apc, "demo", "--rabbitmq", timeout_seconds=SECONDS, given=given)
    played = Played(apc, done.returncode, done.stdout + done.stderr)
    output = "".join(file.read_text()[-3000:] for file in apc.folder.rglob("output.log"))
    assert played.code == 0, played.said + output
    assert re.search(r"killed the worker of fixer \(pid \d+\)", played.words)
    assert "done.txt, outside the bus, has 1 line: rollback shop" in played.words
    assert f"APC_DATA_DIR={apc.folder.resolve()}/.apc/demo-rabbitmq apc ui --run " in played.words

    settings = BusSettings.model_validate({"amqp_url": amqp_vhost_url})
    bus = await connect_rabbit(settings)
    await bus.publish(Publication(INGRESS, "0", Message(b"{}", "of-somebody-else", user_id=bus.user)))
    await bus.close()
    refused = await asyncio.to_thread(apc, "demo", "--rabbitmq", timeout_seconds=SECONDS, given=given)
    assert refused.returncode == 2
    assert "another system uses this virtual host of RabbitMQ" in refused.stderr
