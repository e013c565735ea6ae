"""An agent's text that holds escape sequences does nothing to the terminal of the operator who reads it."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import orjson
import pytest
import structlog
from tests.support import command_forks
from tests.support.log import LogBench, ScriptedGate, coordination, hop, packet_entry, session_row
from tests.support.reference.commands import whole_command

from apc_agents.effects import EffectClaim, EffectId, PostgresEffectStore
from apc_agents.task_port import NewTask, TaskSpec
from apc_bus import telemetry
from apc_bus.database import open_pool
from apc_bus.in_memory import InMemoryBroker
from apc_contracts import ActionType, SecurityLevel
from apc_minds.memory import ConversationContext, ConversationMessage, PostgresMemoryStore
from apc_minds.tasks.postgres import PostgresTaskStore

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\x1b]52;c;cm0=\x07\rx\b\x7f\u202egnp\u2066[bold red]"
ACTS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\udc80-\udcff]|\r(?!\n)")
TERMINAL = Path(__file__).with_name("run_at_terminal.py")
SCHEDULE = """
INSERT INTO apc_app.schedules (agent_id, name, line, timezone, misfire, fired_until, next_at)
VALUES ($1, $1, $1, $1, 'once', now(), now())
"""
"""What an agent can write with its own login to the database."""
PACKET, TASK = UUID(int=1), UUID(int=2)
QUOTES = (
    "packet trace",
    "dead-letter list",
    "dead-letter show",
    "packet tree",
    "packet refused",
    "task show",
    "effect list",
    "memory show",
    "agent schedules",
)
"""Commands that certainly print what an agent wrote."""
IMPORTED = (
    *command_forks.IMPORTED,
    "apc_automl.model.model_file",
    "apc_automl.training.measuring",
    "apc_cli.api",
    "apc_cli.chat",
    "apc_cli.commands.ui",
    "apc_web.app",
    "uvicorn",
)
"""What is imported once, not in each fork: two thirds of the time of these commands."""

LINES: dict[str, Sequence[str]] = {
    "demo": (HOSTILE,),
    "new": (HOSTILE, "--kind", HOSTILE),
    "automl run": ("--data", f"{HOSTILE}.csv", "--target", HOSTILE),
    "automl report": ("--run-id", HOSTILE),
    "automl predict": ("--model", HOSTILE, "--data", HOSTILE, "--out", HOSTILE),
    "automl verify": (HOSTILE,),
    "up": ("--agent", HOSTILE),
    "worker": (HOSTILE,),
    "chat": ("--agent", HOSTILE),
    "tail": ("--limit", "2"),
    "asyncapi": ("--out", "-"),
    "migrate": (),
    "config": (),
    "doctor": (),
    "deploy init": ("--compose", HOSTILE),
    "packet validate": ("hostile.json",),
    "packet transfer-arbitrate": ("hostile.json", "--top-k", "2"),
    "packet trace": ("--run-id", "run-1"),
    "packet lineage-summary": (),
    "packet refused": (),
    "packet tree": (str(PACKET),),
    "packet replay": ("--run-id", "run-1", "--events"),
    "packet impact": (str(PACKET),),
    "packet retract": (str(PACKET), "--reason", HOSTILE, "--yes"),
    "log key": (),
    "log verify": ("--no-checkpoints",),
    "log checkpoint": (),
    "log prove": (str(PACKET),),
    "log consistency": ("1", "2"),
    "log export": ("--run-id", "run-1"),
    "log check": ("hostile.json",),
    "log erase": (HOSTILE, "--yes"),
    "log openlineage": ("--run-id", "run-1"),
    "protocol list": (),
    "arbitration list": (),
    "approval list": (),
    "approval show": (str(PACKET),),
    "approval approve": (str(PACKET), "--note", HOSTILE, "--yes"),
    "approval deny": (str(PACKET), "--note", HOSTILE, "--as", HOSTILE),
    "contract walk": ("packet_lifecycle", HOSTILE),
    "contract diagram": (HOSTILE,),
    "contract check": ("hostile.json",),
    "contract explain": (HOSTILE,),
    "contract new": (HOSTILE,),
    "contract register": ("hostile.json",),
    "contract list": (),
    "contract show": (HOSTILE,),
    "schema register": (HOSTILE, "hostile.json"),
    "schema list": (),
    "schema show": (HOSTILE,),
    "dead-letter list": (),
    "dead-letter show": (str(PACKET),),
    "dead-letter requeue": ("--all",),
    "dead-letter discard": (str(uuid4()),),
    "agent add": (HOSTILE, "--role", HOSTILE, "--swarm", HOSTILE),
    "agent revoke": (HOSTILE,),
    "agent list": (),
    "agent schedules": (),
    "agent show": (HOSTILE,),
    "key new": (HOSTILE,),
    "key show": (HOSTILE,),
    "key register": (HOSTILE,),
    "automl bench homogenization": ("--runs", HOSTILE),
    "automl bench priors": ("--runs", HOSTILE),
    "session list": (),
    "session show": ("session-1",),
    "session explain": (HOSTILE,),
    "session start": ("hostile.json",),
    "session pause": (HOSTILE,),
    "session resume": (HOSTILE,),
    "session stop": (HOSTILE,),
    "task list": (),
    "task show": (str(TASK),),
    "task cancel": (str(TASK), "--reason", HOSTILE),
    "task purge": ("--days", "1", "--yes"),
    "effect list": (),
    "effect settle": (str(PACKET), HOSTILE, HOSTILE, "--not-made"),
    "memory list": ("--user", "alice"),
    "memory show": ("s-1",),
    "memory export": ("--user", "alice"),
    "memory erase": ("--user", HOSTILE, "--yes"),
    "memory purge": ("--days", "1", "--yes"),
    "topology show": (),
    "topology apply": (),
    "topology export": ("--out", "-"),
    "serve orchestrator": (HOSTILE,),
    "serve persister": (HOSTILE,),
    "serve tiles": ("--listen", HOSTILE),
    "serve chat": ("--listen", HOSTILE),
    "serve web": ("--listen", HOSTILE),
    "ui": ("--run", HOSTILE, "--no-browser"),
}


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield every command with the line for it; one that has none gets a hostile text wherever it needs something."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from _commands(inner, (*path, name))
        return
    name = " ".join(path)
    needed = [given for one in command.params if one.required for given in (*one.opts[: _is_option(one)], HOSTILE)]
    yield name, LINES.get(name, needed or [HOSTILE])


def _is_option(parameter: Any) -> int:
    return int(parameter.param_type_name == "option")


@pytest.fixture
def hostile_database(postgres_url: str, memory_broker: InMemoryBroker) -> str:
    """A database whose log, tasks, effects and memory hold hostile texts."""
    asyncio.run(_fill(postgres_url, memory_broker))
    return postgres_url


async def _fill(url: str, broker: InMemoryBroker) -> None:
    pool = await open_pool(url)
    try:
        await _log(LogBench(ScriptedGate(broker.connect("orchestrator")), broker.connect("persister"), pool))
        task = TaskSpec(
            action_id="a-1",
            action=HOSTILE,
            type=ActionType.TOOL,
            params={"text": HOSTILE},
            security_level=SecurityLevel.USER,
        )
        await PostgresTaskStore(pool).add(NewTask(TASK, "builder-1", "s-1", task, ()))
        effect = EffectClaim(
            effect_id=EffectId(PACKET, "payer-1", HOSTILE),
            claim_id=uuid4(),
            session_id="session-1",
            worker=HOSTILE,
            expires_at=datetime.now(UTC) + timedelta(days=1),
        )
        await PostgresEffectStore(pool).claim(effect, timedelta(0))
        said = ConversationMessage(
            role="user", content=HOSTILE, timestamp=datetime.now(UTC), metadata={"note": HOSTILE}
        )
        talk = ConversationContext(session_id="s-1", messages=(said,), metadata={"summary": HOSTILE})
        await PostgresMemoryStore(pool, "apc").store_conversation("s-1", "alice", talk)
        await pool.execute(SCHEDULE, HOSTILE)
    finally:
        await pool.close()


async def _log(bench: LogBench) -> None:
    """A packet that died, one that was refused; every text that an agent chooses is hostile."""
    refusal = orjson.dumps({"code": "QUOTA_EXCEEDED", "rule": HOSTILE, "path": HOSTILE, "message": HOSTILE})
    fields = {"task_id": HOSTILE, "sender_agent_id": HOSTILE, "sender_role": HOSTILE, "sender_swarm_id": HOSTILE}
    sent = msgspec.structs.replace(packet_entry(PACKET, text=HOSTILE, recipients=(HOSTILE,)), user_id=HOSTILE, **fields)
    refused = msgspec.structs.replace(
        packet_entry(parent=sent, refusal_code="QUOTA_EXCEEDED"), refusal=refusal, **fields
    )
    routed = hop(sent, ["emit", "schema_pass", "policy_pass", "route_selected"], "DRAFT", "ROUTED", attempt=1)
    died = msgspec.structs.replace(
        hop(sent, ["retry_exhausted"], "ROUTED", "DEAD_LETTERED", HOSTILE, 1),
        metadata=orjson.dumps({"error": HOSTILE}),
    )
    began = coordination(sent, 1, "research_briefs_dispatched", "SESSION_OPEN", "DIFFERENTIATED_RESEARCH")
    await bench.gate.open()
    await bench.gate.log([sent, routed, died, refused, began], [session_row(document=orjson.dumps({"note": HOSTILE}))])
    await bench.write()


def _run(lines: Sequence[Sequence[str]], url: str, folder: Path, *options: str) -> dict[str, str]:
    """Return what each command shows at a terminal without colours, at which an escape sequence can only be foreign."""
    (folder / "hostile.json").write_text(json.dumps([{"packet_id": HOSTILE, HOSTILE: HOSTILE}], ensure_ascii=False))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("APC_")}
    given = {"APC_DATABASE_URL": url, "APC_AMQP_URL": "amqp://u:p@127.0.0.1:9/", "APC_BROKER_TIMEOUT": "1"}
    done = subprocess.run(
        [sys.executable, TERMINAL, *options],
        input=json.dumps({"imported": IMPORTED, "lines": lines}),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={**kept, **given, "TERM": "dumb", "COLUMNS": "300", "APC_DATA_DIR": str(folder / "data")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, str] = json.loads(done.stdout)
    return {" ".join(line[:2]): said["\0".join(line)] for line in lines}


@pytest.mark.long
@pytest.mark.timeout(400)
def test_no_command_shows_what_acts_on_a_terminal(hostile_database: str, tmp_path: Path) -> None:
    commands = dict(_commands(whole_command()))
    assert set(LINES) <= set(commands), "a command is gone: take its line out"
    shown = _run([[*name.split(), *line] for name, line in commands.items()], hostile_database, tmp_path)
    assert {name: ACTS.findall(text) for name, text in shown.items() if ACTS.search(text)} == {}
    assert [name for name, text in shown.items() if "Traceback" in text] == []


@pytest.mark.long
def test_without_the_guard_the_terminal_would_be_reached(hostile_database: str, tmp_path: Path) -> None:
    shown = _run([[*name.split(), *LINES[name]] for name in QUOTES], hostile_database, tmp_path, "--unguarded")
    assert {name: shown[name] for name in QUOTES if not ACTS.search(shown[name])} == {}


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_traceback_in_the_log_does_nothing_to_the_terminal(monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    """An exception often quotes what a handler was given; a service that runs at a terminal writes it there."""
    if not is_guarded:
        monkeypatch.setattr(telemetry, "_printable_traceback", structlog.dev.plain_traceback)
    renderer = telemetry._console_renderer(colors=False)
    try:
        raise ValueError(f"no price in {HOSTILE}")
    except ValueError:
        line = str(renderer(None, "error", {"event": "handler_failed", "exc_info": sys.exc_info()}))
    assert "ValueError: no price in" in line
    assert (ACTS.search(line) is None) is is_guarded


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_message_of_a_library_is_one_line(is_guarded: bool) -> None:
    """Else what it quotes could look like a line of the product."""
    event: dict[str, Any] = {"event": "no such host: x\n2026-01-01 [info] packet_committed"}
    shown = telemetry.make_printable(None, "warning", event) if is_guarded else event
    assert ("\n" not in telemetry._console_renderer(colors=False)(None, "warning", dict(shown))) is is_guarded
