"""`apc session`, as an operator runs it beside the services."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import House
from tests.support.apc_command import ApcCommand
from tests.support.traffic import SESSION, make_idea, make_packet, make_start, until

from apc_contracts import TaskIrPayload
from apc_contracts.contract.contract import task_contract
from apc_contracts.payloads.session_signals import Budgets
from apc_contracts.payloads.task_ir import ConstraintKind, IrConstraint, IrHeader


def brief() -> TaskIrPayload:
    header = IrHeader(task_id="task-2", run_id="run-1", swarm_id="library", dialect_id="d", dialect_hash="h")
    budget = IrConstraint(id="b", constraint_kind=ConstraintKind.BUDGET, expression="packets=4")
    return TaskIrPayload(ir_header=header, objects=(budget,))


async def test_an_operator_starts_a_session_and_a_wrong_name_is_refused_first(
    house: House, postgres_url: str, tmp_path: Path
) -> None:
    apc = ApcCommand(tmp_path)
    given = {"APC_AMQP_URL": house.settings.amqp_url.get_secret_value(), "APC_DATABASE_URL": postgres_url}
    spec: dict[str, Any] = {
        "swarms": [{"swarm_id": "red", "agents": ["red-1"]}, {"swarm_id": "blue", "agents": ["bleu-1"]}],
        "members": ["nobody-like-it"],
        "generation_limit": 1,
        "generation_deadline_ms": 60000,
        "state_deadline_ms": 60000,
    }

    async def start(document: Any, *options: str) -> Any:
        return await asyncio.to_thread(apc, "session", "start", "-", *options, stdin=json.dumps(document), given=given)

    async with house.persister(), house.gate():
        await house.open_session()
        unknown = await start(spec, "--session-id", "s-2")
        broken = await start(spec | {"generation_limit": "one"})
        spec["swarms"][1]["agents"], spec["members"] = ["blue-1"], []
        started = await start(spec, "--session-id", "s-2")
        again = await start(spec, "--session-id", "s-2")
    assert unknown.returncode == 2
    assert unknown.stderr == (
        "apc: START was not sent: swarms[1].agents[0]: agent bleu-1 is not registered: do you mean blue-1?; "
        "members[0]: agent nobody-like-it is not registered. `apc agent add` registers an agent\n"
    )
    assert broken.stderr.startswith("apc: - is no SessionSpec: generation_limit: must be a valid integer")
    assert (started.returncode, started.stdout) == (0, "s-2\n"), started.stderr
    assert again.returncode == 2 and "the gate refused START: " in again.stderr and "Remedy: " in again.stderr


async def test_an_operator_starts_a_task_and_is_told_what_it_waits_for(
    house: House, postgres_url: str, tmp_path: Path
) -> None:
    apc = ApcCommand(tmp_path)
    given = {"APC_AMQP_URL": house.settings.amqp_url.get_secret_value(), "APC_DATABASE_URL": postgres_url}

    async def start(*members: str) -> Any:
        spec = json.dumps({"contract": "task", "members": members, "deciders": ["red-1"]})
        return await asyncio.to_thread(apc, "session", "start", "-", "--session-id", "s-3", stdin=spec, given=given)

    async with house.persister(), house.gate():
        await house.open_session()
        absent, started = await start("red-1", "red-9"), await start("red-1")
        said = await asyncio.to_thread(apc, "session", "explain", "s-3", given=given)
    assert "members[1]: agent red-9 is not registered: do you mean red-1?" in absent.stderr
    assert (started.returncode, started.stdout) == (0, "s-3\n"), started.stderr
    assert "the opener's TASK_IR or MESSAGE" in said.stdout, said.stderr


@pytest.mark.long
async def test_a_client_starts_sessions_and_has_no_inbox(house: House, postgres_url: str, tmp_path: Path) -> None:
    """What a session tells its opener would wait in an inbox that nobody reads."""
    apc = ApcCommand(tmp_path)
    given = {"APC_AMQP_URL": house.settings.amqp_url.get_secret_value(), "APC_DATABASE_URL": postgres_url}

    async def run(*arguments: str, stdin: str = "") -> Any:
        done = await asyncio.to_thread(apc, *arguments, stdin=stdin, given=given)
        assert done.returncode == 0, done.stderr
        return done

    async with house.persister(), house.gate():
        await run("agent", "add", "client-starter", "--role", "client", "--swarm", "clients", "--rights", "operate")
        await run("agent", "add", "red-1", "--role", "worker", "--swarm", "red", "--speaks", "apc/1.0,apc/1.1")
        spec = json.dumps({"contract": "task", "members": ["red-1"], "deciders": ["red-1"]})
        await run("session", "start", "-", "--session-id", "s-4", stdin=spec)
        sender = await house.pool.fetchval("SELECT sender_agent_id FROM apc_log.agent_packets WHERE session_id = 's-4'")
        queues = [row["queue"] for row in json.loads((await run("topology", "show")).stdout)]
    assert sender == "client-starter"
    assert [name for name in queues if "red-1" in name]
    assert not [name for name in queues if "client-starter" in name]


TEAM = """
from apc_agents import Agent, Team
lead = Agent("lead", role="lead", swarm="desk")
team = Team("desk", agents=[lead], entry="lead", contract="strict.json")
"""


@pytest.mark.long
async def test_a_team_is_registered_with_its_contract(house: House, postgres_url: str, tmp_path: Path) -> None:
    apc = ApcCommand(tmp_path)
    given = {"APC_AMQP_URL": house.settings.amqp_url.get_secret_value(), "APC_DATABASE_URL": postgres_url}
    (tmp_path / "strict.json").write_text(json.dumps(json.loads(task_contract().body) | {"name": "strict"}))
    (tmp_path / "desk_of_strict.py").write_text(TEAM)
    async with house.persister(), house.gate():
        await house.open_session()
        added = await asyncio.to_thread(apc, "agent", "add", "desk_of_strict:team", given=given)
        listed = await asyncio.to_thread(apc, "contract", "list", "--json", given=given)
    assert added.stdout == "agent lead is registered\ncontract strict is registered\n", added.stderr
    assert [one["contract"] for one in json.loads(listed.stdout)] == ["strict"]


@pytest.mark.long
async def test_an_operator_looks_at_a_session_and_moves_it(house: House, postgres_url: str, tmp_path: Path) -> None:
    apc = ApcCommand(tmp_path)
    given = {"APC_AMQP_URL": house.settings.amqp_url.get_secret_value(), "APC_DATABASE_URL": postgres_url}

    async def run(*arguments: str) -> Any:
        return await asyncio.to_thread(apc, "session", *arguments, given=given)

    house.opening = make_start(budgets=Budgets(packets=10, wall_ms=3_600_000))
    asked = make_packet("librarian", brief(), ("red-1",), parent=house.opening, requires_ack=True)
    held = make_packet("red-1", make_idea(), ("blue-1",), parent=house.opening)
    async with house.persister(), house.gate():
        await house.open_session()
        await house.agents.publish(asked)
        await until(house.is_logged(asked.packet_id))
        paused = await run("pause", SESSION, "--reason", "lunch")
        assert paused.stdout == f"PAUSE accepted: session {SESSION} is paused in SESSION_OPEN\n", paused.stderr
        await house.agents.publish(held)
        await until(house.is_logged(held.packet_id))
        shown = json.loads((await run("show", SESSION)).stdout)
        listed = json.loads((await run("list", "--running")).stdout)
        resumed = await run("resume", SESSION)
        assert resumed.stdout == f"RESUME accepted: session {SESSION} is SESSION_OPEN\n"
        refused = await run("pause", SESSION, "--as", "red-1")
        stopped = await run("stop", SESSION)
        assert stopped.stdout == f"STOP accepted: session {SESSION} is HALTED\n"
        too_late = await run("resume", SESSION)
        missing = await run("stop", "elsewhere")
        assert json.loads((await run("list", "--running")).stdout) == []
        (ended,) = json.loads((await run("list")).stdout)
    assert listed == [{key: shown["session"][key] for key in listed[0]}]
    assert (shown["session"]["is_paused"], shown["session"]["state"]) == (True, "SESSION_OPEN")
    packets = [row for row in shown["budgets"] if row["resource"] == "packets"]
    assert packets == [
        {"task": "", "resource": "packets", "limit": 10, "spent": 2, "left": 4, "refused": 0},
        {"task": "task-2", "resource": "packets", "limit": 4, "spent": 0, "left": 4, "refused": 0},
    ]
    (time,) = [row for row in shown["budgets"] if row["resource"] == "wall_ms"]
    assert 0 < time["left"] <= 3_600_000
    assert [(row["packet_id"], row["missing"]) for row in shown["pending_acks"]] == [(str(asked.packet_id), ["red-1"])]
    assert [row["packet_id"] for row in shown["held"]] == [str(held.packet_id)]
    assert {row["agent_id"] for row in shown["members"] if row["is_live"]} >= {"red-1", "blue-1", "librarian"}
    for failed, words in (
        (refused, "red-1 has no right to operate"),
        (too_late, "the gate refused RESUME: SESSION_TERMINAL at trace.session_id"),
        (missing, "the log holds no session 'elsewhere'"),
    ):
        assert failed.returncode == 2 and words in failed.stderr and len(failed.stderr.splitlines()) == 1
    assert ended["why_halted"] == "STOP by librarian"


@pytest.mark.long
async def test_commands_take_the_end_of_an_id_that_lists_print(house: House, postgres_url: str, tmp_path: Path) -> None:
    apc = ApcCommand(tmp_path)
    given = {"APC_AMQP_URL": house.settings.amqp_url.get_secret_value(), "APC_DATABASE_URL": postgres_url}
    first, second = "01a2269c-bc5b-7b5f-a12c-f7a3e6f47aff", "01a2269c-bc5b-7b5f-a12c-07a3e6f47aff"
    spec = {
        "swarms": [{"swarm_id": "red", "agents": ["red-1"]}],
        "generation_limit": 1,
        "generation_deadline_ms": 60000,
        "state_deadline_ms": 60000,
    }

    async def run(*arguments: str, stdin: str = "") -> Any:
        return await asyncio.to_thread(apc, *arguments, stdin=stdin, given=given)

    async with house.persister(), house.gate():
        await house.open_session()
        for session_id in (first, second):
            opened = await run("session", "start", "-", "--session-id", session_id, stdin=json.dumps(spec))
            assert opened.returncode == 0, opened.stderr
        told = [
            await run("session", "explain", end) for end in ("f7a3e6f47aff", "…f7a3e6f47aff", "F7A3E6F47AFF", first)
        ]
        several = await run("session", "explain", "…7a3e6f47aff")
        none = await run("session", "explain", "…00000000")
        listed = await run(
            "session", "list", "--run-id", json.loads((await run("session", "list")).stdout)[0]["run_id"]
        )
        start = json.loads((await run("packet", "trace", "--session-id", "f7a3e6f47aff")).stdout)[0]
        timeline = await run("packet", "tree", f"…{start['packet_id'][-12:]}")
        stopped = await run("session", "stop", "f7a3e6f47aff")
    assert {json.loads(one.stdout)["session_id"] for one in told} == {first}
    assert several.returncode == none.returncode == 2
    assert several.stderr == f"apc: …7a3e6f47aff is the end of {second} and {first}: give one whole\n"
    assert none.stderr == "apc: the log holds no session whose id ends with 00000000\n"
    assert json.loads(listed.stdout) and json.loads(timeline.stdout)["packets"][0]["packet_id"] == start["packet_id"]
    assert f"session {first} is HALTED" in stopped.stdout, stopped.stderr
