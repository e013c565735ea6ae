"""`apc session explain` and `apc tail` of a session over a real log."""

import asyncio
import dataclasses
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import orjson
import pytest
from tests.support.apc_command import ApcCommand
from tests.support.log import LogBench, hop, lifecycle, packet_entry, session_row

from apc_contracts.contract.contract import task_contract
from apc_contracts.identity.registry_change import HostChanged, HostPresence, encode_registry_change
from apc_contracts.judging.verdict import REMEDIES
from apc_contracts.session.document import SessionDocument, TaskDocument, Work
from apc_contracts.vocabulary import RunPhase
from apc_log.batch import RegistryEntry
from apc_log.queries.agents import ALIVE_WITHIN, BY_HASH, OPEN, count_open_deliveries, list_registered
from apc_log.queries.surroundings import read_surroundings
from apc_log.registry import read_hosts
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.verification.log_ends import check_registry
from apc_persister.verification.verify import verify_shard


def document(**changes: Any) -> SessionDocument:
    now = datetime.now(UTC)
    fields: dict[str, Any] = {
        "session_id": "session-1",
        "run_id": "run-1",
        "task_id": "task-1",
        "opener": "lead",
        "contract_hash": "00",
        "start_packet_id": uuid4(),
        "opened_at": now,
        "swarms": {"alpha": ["reviewer-1"], "beta": ["reviewer-2"], "gamma": ["reviewer-3"]},
        "members": [],
        "task_ids": ["task-1"],
        "generation_limit": 1,
        "generation_deadline_ms": 1000,
        "state_deadline_ms": 1000,
        "max_rounds": 2,
        "veto_window_ms": 0,
        "budgets": {},
        "state": "DIFFERENTIATED_RESEARCH",
        "run_phase": RunPhase.RESEARCH,
        "deadlines": {"generation": now + timedelta(minutes=5)},
    }
    return SessionDocument(**fields | changes)


def added(agent: str, **fields: str) -> RegistryEntry:
    change_id = uuid4()
    change = {
        "change_id": str(change_id),
        "action": "add",
        "agent_id": agent,
        "broker_user": f"agent.{agent}",
        "role": "reviewer",
        "swarm_id": "alpha",
    }
    return RegistryEntry(change_id, agent, orjson.dumps(change | fields))


def host_change(host: str, presence: HostPresence) -> RegistryEntry:
    change = HostChanged(change_id=uuid4(), host=host, presence=presence)
    return RegistryEntry(change.change_id, change.subject, encode_registry_change(change))


def task_document(**changes: Any) -> SessionDocument:
    contract = task_contract()
    fields: dict[str, Any] = {
        "contract_hash": contract.hash.hex(),
        "state": "WORKING",
        "run_phase": RunPhase.EXECUTION,
        "deadlines": {},
    }
    shared = vars_of(document(**fields | changes))
    return TaskDocument(**shared, work=Work("task", ["editor"], [], 1, True))


def vars_of(base: SessionDocument) -> dict[str, Any]:
    return {one.name: getattr(base, one.name) for one in dataclasses.fields(base) if one.init}


async def explained(tmp_path: Path, postgres_url: str) -> Any:
    given = {"APC_DATABASE_URL": postgres_url}
    done = await asyncio.to_thread(ApcCommand(tmp_path), "session", "explain", "session-1", given=given)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_it_says_who_is_missing_and_what_is_on_its_way(
    bench: LogBench, postgres_url: str, tmp_path: Path
) -> None:
    sent = packet_entry(packet_type="TASK_IR", recipients=("reviewer-1", "reviewer-2"))
    routed = lifecycle(sent)[0]
    due = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    again = hop(
        sent,
        ["retry_scheduled"],
        "ROUTED",
        "ROUTED",
        "reviewer-1",
        2,
        orjson.dumps({"retry": {"delay_ms": 1, "due_at": due}, "error": "model is away"}),
    )
    died = hop(sent, ["dead_lettered"], "ROUTED", "DEAD_LETTERED", "reviewer-2", 1, b'{"error": "x", "ended": "y"}')
    died = msgspec.structs.replace(died, actor="orchestrator")
    await bench.gate.open()
    await bench.gate.log(
        [added("reviewer-1"), added("reviewer-2"), sent, routed, again, died],
        [session_row(state="DIFFERENTIATED_RESEARCH", document=document().encode())],
    )
    await bench.gate.hear("reviewer-1")
    await bench.write()
    told = await explained(tmp_path, postgres_url)
    sentences = [wait["sentence"] for wait in told["waits"]]
    assert told["standing"] == "DIFFERENTIATED_RESEARCH, round 1, generation 0"
    assert "of swarm alpha: reviewer-1, which is live; deadline" in sentences[0]
    assert "of swarm beta: reviewer-2, which is registered but never had a worker; deadline" in sentences[1]
    assert "of swarm gamma: reviewer-3, which is not registered" in sentences[2]
    assert len(sentences) == 3
    retry = f"On its way: a retry of reviewer-1 to handle TASK_IR {sent.packet_id} (attempt 2). It is delivered again"
    assert told["remarks"][0].startswith(retry) and "The last attempt: model is away." in told["remarks"][0]
    assert told["remarks"][1].startswith(
        f"reviewer-2 could not handle TASK_IR of sender-1 (packet {sent.packet_id}) in 1 attempt: x."
    )


async def test_a_task_names_its_open_deliveries_and_who_is_silent(
    bench: LogBench, postgres_url: str, tmp_path: Path
) -> None:
    """Not a SIGNAL of the orchestrator: nothing follows from it, and the task does not wait for it."""
    idea = packet_entry(packet_type="IDEA", recipients=("critic-1", "critic-2"))
    notice = msgspec.structs.replace(
        packet_entry(packet_type="SIGNAL", recipients=("critic-1",)), sender_agent_id="orchestrator"
    )
    agents = (added("critic-1"), added("critic-2"), added("editor"))
    sent = (idea, notice, lifecycle(idea)[0], lifecycle(notice)[0])
    await bench.gate.open()
    await bench.gate.hear("critic-1")
    await bench.gate.log([*agents, *sent], [session_row(state="WORKING", document=task_document().encode())])
    await bench.write()
    told = await explained(tmp_path, postgres_url)
    done, silent, live = (wait["sentence"] for wait in told["waits"])
    assert done.startswith("Waits for DECISION DONE of a decider: editor")
    assert re.fullmatch(
        rf"Waits for critic-2 to handle IDEA {idea.packet_id} \(attempt 1, open for \d+ s\): "
        r"critic-2, which is registered but never had a worker\.",
        silent,
    )
    assert re.search(r"critic-1 to handle IDEA .* critic-1, which is live \(last seen \d+ s ago\)\.$", live)
    assert "Start the missing workers" in told["waits"][1]["moves"]


async def test_a_task_with_many_open_deliveries_names_some_and_counts_the_others(
    bench: LogBench, postgres_url: str, tmp_path: Path
) -> None:
    idea = packet_entry(packet_type="IDEA", recipients=tuple(f"critic-{number}" for number in range(8)))
    await bench.gate.open()
    await bench.gate.log([idea, lifecycle(idea)[0]], [session_row(state="WORKING", document=task_document().encode())])
    await bench.write()
    told = await explained(tmp_path, postgres_url)
    assert sum("to handle IDEA" in wait["sentence"] for wait in told["waits"]) == 5
    assert told["remarks"][0].startswith("3 more deliveries are open: `apc packet trace --session-id session-1")


async def test_a_stalled_session_names_what_was_refused_last(
    bench: LogBench, postgres_url: str, tmp_path: Path
) -> None:
    sent = packet_entry(packet_type="TASK_IR")
    refused = [packet_entry(parent=sent, packet_type="CLAIM", refusal_code="PROOF_REQUIRED") for _ in range(3)]
    last = packet_entry(parent=sent, packet_type="DECISION", refusal_code="NOT_AUTHORIZED")
    held = msgspec.structs.replace(packet_entry(parent=sent, packet_type="IDEA"), verdict="held")
    metadata = orjson.dumps({"refusal": {"code": "LOOP_DETECTED", "path": "$", "message": "again"}})
    denied = hop(held, ["policy_fail"], "SCHEMA_VALIDATED", "REJECTED_POLICY", metadata=metadata)
    reason = "STALLED nothing is open; the last end: packet x at critic-2"
    ended = task_document(state="HALTED", halt_reason=reason)
    await bench.gate.open()
    await bench.gate.log([sent, *refused, last, held, denied], [session_row(state="HALTED", document=ended.encode())])
    await bench.write()
    told = await explained(tmp_path, postgres_url)
    assert told["standing"].startswith(f"HALTED: {reason}: for a minute no delivery, question or timer was open")
    assert told["remarks"][0] == (
        "The gate refused, the latest first: IDEA of sender-1 (LOOP_DETECTED), DECISION of sender-1 (NOT_AUTHORIZED), "
        "CLAIM of sender-1 (PROOF_REQUIRED, 3 times); `apc packet refused --session-id session-1` shows field and "
        "remedy."
    )


async def test_a_refusal_by_a_rule_is_told_in_its_words(bench: LogBench, postgres_url: str, tmp_path: Path) -> None:
    """Also when the session has closed."""
    ruled = {"code": "RULE_FAILED", "rule": "two-witnesses", "path": "$", "message": "Cite both investigators."}
    newest = orjson.dumps(ruled | {"remedy": "Cite both findings."})
    unknown = {"code": "EVIDENCE_UNKNOWN", "rule": "evidence_is_known", "path": "$", "message": "packet:x was refused"}
    sent = [
        msgspec.structs.replace(packet_entry(packet_type=kind, refusal_code="RULE_FAILED"), refusal=refusal)
        for kind, refusal in (
            ("DECISION", orjson.dumps(ruled)),
            ("DECISION", newest),
            ("MESSAGE", orjson.dumps(ruled | {"rule": "calm", "message": "Not at night"})),
            ("MESSAGE", orjson.dumps(unknown)),
        )
    ]
    closed = task_document(state="CLOSED")
    await bench.gate.open()
    await bench.gate.log(sent, [session_row(state="CLOSED", document=closed.encode())])
    await bench.write()
    told = await explained(tmp_path, postgres_url)
    assert told["standing"] == "CLOSED in round 1: it ended as planned, and nothing moves it any more"
    assert told["remarks"][:3] == [
        "The gate refused MESSAGE of sender-1 (EVIDENCE_UNKNOWN): packet:x was refused. Remedy: "
        f"{REMEDIES['EVIDENCE_UNKNOWN']}.",
        f"The gate refused MESSAGE of sender-1 (RULE_FAILED calm): Not at night. Remedy: {REMEDIES['RULE_FAILED']}.",
        "The gate refused DECISION of sender-1 (RULE_FAILED two-witnesses, 2 times): Cite both investigators. "
        "Remedy: Cite both findings.",
    ]


async def test_what_is_open_to_doubt_did_not_end_as_planned(bench: LogBench, postgres_url: str, tmp_path: Path) -> None:
    sent = packet_entry(packet_type="TASK_IR", recipients=("receiver-1", "receiver-2"))
    report, erased = (packet_entry(parent=sent, packet_type="ARTIFACT") for _ in range(2))
    died = hop(sent, ["dead_lettered"], "ROUTED", "DEAD_LETTERED", "receiver-1", 1, b'{"error": "x", "ended": "y"}')
    used = b'{"usage": {"tokens": 9}, "usage_refused": {"tokens": 8}, "ended": "y"}'
    spent = hop(sent, ["consumer_apply"], "ROUTED", "APPLIED", "receiver-2", 1, used)
    failed = [
        hop(packet, ["verification_fail"], "APPLIED", "REJECTED_POLICY", "receiver-1", 1, orjson.dumps({"error": why}))
        for packet, why in ((report, "no such bytes"), (erased, "erased"))
    ]
    closed = task_document(state="CLOSED")
    await bench.gate.open()
    await bench.gate.log(
        [sent, report, erased, died, spent, *failed], [session_row(state="CLOSED", document=closed.encode())]
    )
    await bench.write()
    told = await explained(tmp_path, postgres_url)
    doubts = [
        f"The verification of ARTIFACT {report.packet_id} of sender-1 failed: no such bytes.",
        f"receiver-1 could not handle TASK_IR of sender-1 (packet {sent.packet_id}) in 1 attempt: x. "
        f"Mend the cause, then `apc dead-letter requeue {sent.packet_id}` delivers it again; "
        "`apc dead-letter discard` gives it up.",
        "receiver-2 reported 9 tokens, of which 8 were refused as too large and not charged: task task-1 may have "
        "spent more than its budget shows.",
    ]
    assert told["standing"] == (
        "CLOSED in round 1: it ended, but what came of it is open to doubt, and nothing moves it any more"
    )
    assert told["remarks"][:3] == doubts
    given = {"APC_DATABASE_URL": postgres_url}
    result = await asyncio.to_thread(ApcCommand(tmp_path), "session", "result", "session-1", given=given)
    assert result.returncode == 0 and json.loads(result.stdout)["doubts"] == doubts
    assert result.stderr.splitlines() == [f"apc: the result is open to doubt: {doubt}" for doubt in doubts]


@pytest.mark.parametrize("state", ["WORKING", "HALTED"])
async def test_what_was_spent_beyond_the_budget_is_told(
    bench: LogBench, postgres_url: str, tmp_path: Path, state: str
) -> None:
    """Two deliveries of 100,000 tokens: the budget of 2,000 is charged with 1,000 for each."""
    sent = packet_entry(packet_type="TASK_IR", recipients=("receiver-1", "receiver-2"))
    used = b'{"usage": {"tokens": 100000}, "usage_refused": {"tokens": 99000}, "ended": "outcome"}'
    hops = [hop(sent, ["consumer_apply"], "ROUTED", "APPLIED", name, 1, used) for name in sent.recipients]
    spent = task_document(state=state, budgets={"tokens": 2000}, spent={"tokens": 2000}, halt_reason="STOP")
    await bench.gate.open()
    await bench.gate.log([sent, *hops], [session_row(state=state, document=spent.encode())])
    await bench.write()
    told = await explained(tmp_path, postgres_url)
    assert [one for one in told["remarks"] if "tokens" in one] == [
        f"{name} reported 100,000 tokens, of which 99,000 were refused as too large and not charged: task task-1 may "
        "have spent more than its budget shows."
        for name in sent.recipients
    ]
    given = {"APC_DATABASE_URL": postgres_url}
    shown = await asyncio.to_thread(ApcCommand(tmp_path), "session", "show", "session-1", "--json", given=given)
    (budget,) = json.loads(shown.stdout)["budgets"]
    assert (budget["spent"], budget["left"], budget["refused"]) == (2000, 0, 198000)


async def test_an_unknown_effect_is_settled_before_its_dead_letter_is_requeued(
    bench: LogBench, postgres_url: str, tmp_path: Path
) -> None:
    """The handler had waited: the effect belongs to the packet that started it, the dead letter is the answer."""
    first = packet_entry(packet_type="MESSAGE", recipients=("cashier",))
    answer = packet_entry(packet_type="SIGNAL", recipients=("cashier",), parent=first)
    unknown = {"key": "pay it", "claim": str(uuid4()), "entry": "unknown", "attempt": 1}
    effect = hop(first, ["effect_unknown"], "", "", "cashier", -1, orjson.dumps({"effect": unknown}))
    died = hop(answer, ["dead_lettered"], "ROUTED", "DEAD_LETTERED", "cashier", 1, b'{"error": "handler_error"}')
    await bench.gate.open()
    await bench.gate.log(
        [first, answer, effect, died], [session_row(state="WORKING", document=task_document().encode())]
    )
    await bench.write()
    told = await explained(tmp_path, postgres_url)
    settling, requeueing = [one for one in told["remarks"] if "cashier" in one and "apc " in one]
    assert f"`apc effect settle {first.packet_id} cashier 'pay it'` with `--result JSON` if it has" in settling
    assert settling.endswith(f"then `apc dead-letter requeue {answer.packet_id}`.")
    assert "Settle the effect of cashier first. Mend the cause, then" in requeueing


async def test_a_halted_session_says_what_becomes_of_its_dead_letters(
    bench: LogBench, postgres_url: str, tmp_path: Path
) -> None:
    sent = packet_entry(packet_type="TASK_IR")
    died = hop(sent, ["dead_lettered"], "ROUTED", "DEAD_LETTERED", "receiver-1", 1, b'{"error": "handler_error"}')
    halted = task_document(state="HALTED", halt_reason="HANDLER_FAILED x")
    await bench.gate.open()
    await bench.gate.log([sent, died], [session_row(state="HALTED", document=halted.encode())])
    await bench.write()
    told = await explained(tmp_path, postgres_url)
    assert told["remarks"][0] == (
        "1 dead letter is left, and work of a halted session cannot be requeued: `apc dead-letter discard --all "
        "--session session-1` gives up what is left."
    )


async def test_an_agent_that_works_is_heard_of(bench: LogBench) -> None:
    """As the gates report it; in its session also by what is newer than the report."""
    sent = packet_entry(recipients=("busy", "dead", "silent"))
    hops = [
        hop(sent, ["delivery_ack", "consumer_apply"], "ROUTED", "APPLIED", "busy", 1, b'{"ended": "outcome"}'),
        hop(sent, ["dead_lettered"], "ROUTED", "DEAD_LETTERED", "dead", 1, b'{"error": "delivery_limit"}'),
    ]
    await bench.gate.open()
    await bench.gate.log([added(name) for name in ("sender-1", "busy", "dead", "silent", "late")], [])
    await bench.gate.log([sent, *hops], [session_row()])
    await bench.gate.hear("sender-1")
    await bench.gate.hear("late", at=datetime.now(UTC) - ALIVE_WITHIN)
    await bench.write()
    listed = {one.agent_id: one for one in await list_registered(bench.pool)}
    assert {name for name, one in listed.items() if one.last_seen is not None} == {"sender-1", "late"}
    assert {name for name, one in listed.items() if one.is_alive(datetime.now(UTC))} == {"sender-1"}
    elsewhere = await read_surroundings(bench.pool, "another-session", timedelta(seconds=30))
    assert {name for name in listed if elsewhere.is_live(name)} == {"sender-1"}
    around = await read_surroundings(bench.pool, sent.session_id, timedelta(seconds=30))
    assert {name for name in listed if around.is_live(name)} == {"sender-1", "busy"}


async def test_an_agent_of_a_host_lives_as_long_as_its_host(bench: LogBench) -> None:
    """Or when it has spoken since: another process of it may be there."""
    await bench.gate.open()
    await bench.gate.log([added("desk", broker_user="host.h0", host="h0"), added("alone")])
    await bench.gate.hear("desk", at=datetime.now(UTC) - ALIVE_WITHIN)

    async def desk() -> tuple[bool | None, bool, bool]:
        await bench.write()
        (one,) = (one for one in await list_registered(bench.pool) if one.agent_id == "desk")
        around = await read_surroundings(bench.pool, "session", timedelta(seconds=30))
        return one.is_host_present, one.is_alive(datetime.now(UTC)), around.is_live("desk")

    assert await desk() == (None, False, False), "nobody has looked for its host"
    await bench.gate.log([host_change("h0", HostPresence.APPEARED)])
    assert await desk() == (True, True, True)
    await bench.gate.log([host_change("h0", HostPresence.GONE), host_change("h1", HostPresence.APPEARED)])
    assert await desk() == (False, False, False), "and at once"
    assert await read_hosts(bench.pool) == {"h0": False, "h1": True}
    await bench.gate.hear("desk", at=datetime.now(UTC) + timedelta(hours=1))
    assert await desk() == (None, True, True)
    (seen,) = (one.last_seen for one in await list_registered(bench.pool) if one.agent_id == "desk")
    assert seen is not None and seen <= datetime.now(UTC), "no clock of a gate reaches into the future"
    async with bench.pool.acquire() as connection:
        assert (await verify_shard(connection, 0, load_signer(bench.settings).public_key(0))).findings == []
        assert await check_registry(connection) == []
    assert await bench.count("packet_conflicts") == 0


async def test_open_deliveries_of_a_long_session_are_counted_in_one_pass(bench: LogBench) -> None:
    """The planner takes a running session for a short one, and would look through all of it for each of its packets."""
    sent = [packet_entry(recipients=("busy",)) for _ in range(200)]
    routed = [hop(one, ["emit", "route_selected"], "DRAFT", "ROUTED", attempt=1) for one in sent]
    ended = [
        hop(one, ["consumer_apply"], "ROUTED", "APPLIED", "busy", 1, b'{"ended": "outcome"}') for one in sent[:150]
    ]
    short = [packet_entry(session_id=f"short-{number}") for number in range(60)]
    others = [hops for one in short for hops in lifecycle(one)]
    ends = [msgspec.structs.replace(session_row(one.session_id, state="CLOSED"), open_deliveries=0) for one in short]
    await bench.gate.open()
    await bench.gate.log([*sent, *routed, *ended, *short, *others], [session_row(), *ends])
    await bench.write()
    await bench.pool.execute("ANALYZE apc_log.agent_packets, apc_log.packet_events, apc_log.sessions")

    assert await count_open_deliveries(bench.pool) == {"busy": 50}
    async with bench.pool.acquire() as connection, connection.transaction():
        await connection.execute(BY_HASH)
        plan = json.loads(await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {OPEN}"))[0]["Plan"]
    assert max(scans_of_a_table(plan)) == 1


def scans_of_a_table(node: dict[str, Any]) -> list[int]:
    """Return how often each part of a plan looked through a table."""
    below = [times for one in node.get("Plans", ()) for times in scans_of_a_table(one)]
    return [*below, node["Actual Loops"]] if "Relation Name" in node or "Subplan Name" in node else below


async def test_it_is_told_where_one_user_speaks_for_every_agent(bench: LogBench) -> None:
    lead, other, orchestrators = (packet_entry() for _ in range(3))
    other = msgspec.structs.replace(other, sender_agent_id="sender-2", user_id=lead.user_id)
    orchestrators = msgspec.structs.replace(orchestrators, sender_agent_id="orchestrator", user_id="orchestrator")
    await bench.gate.open()
    await bench.gate.log([added("sender-1"), added("sender-2"), lead, orchestrators], [session_row()])
    await bench.write()

    async def shared() -> str | None:
        return (await read_surroundings(bench.pool, "session-1", timedelta(seconds=1))).shared_user

    assert await shared() is None, "a single agent is nobody's like"
    await bench.gate.log([other], [session_row()])
    await bench.write()
    assert await shared() == lead.user_id
    await bench.gate.log([msgspec.structs.replace(packet_entry(), user_id="own")], [session_row()])
    await bench.write()
    assert await shared() is None


async def test_following_a_session_ends_with_it(bench: LogBench, postgres_url: str, tmp_path: Path) -> None:
    first, last = packet_entry(packet_type="TASK_IR"), packet_entry(packet_type="CLAIM")
    await bench.gate.open()
    await bench.gate.log([first], [session_row(document=document().encode())])
    await bench.write()
    following = ApcCommand(tmp_path).start("tail", "session-1", given={"APC_DATABASE_URL": postgres_url})
    try:
        assert following.stdout is not None
        line = await asyncio.to_thread(following.stdout.readline)
        assert json.loads(line)["packet_type"] == "TASK_IR"
        ended = session_row(state="CLOSED", document=document(state="CLOSED").encode())
        await bench.gate.log([last, packet_entry(session_id="session-2")], [ended])
        await bench.write()
        rest = await asyncio.to_thread(following.stdout.read)
        assert [json.loads(line)["packet_type"] for line in rest.splitlines()] == ["CLAIM"]
        assert await asyncio.to_thread(following.wait) == 0
    finally:
        following.kill()
        await asyncio.to_thread(following.communicate)
