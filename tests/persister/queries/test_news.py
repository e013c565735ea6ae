"""What was refused, and what happens, read from the log: packets, ended waits, conflicts, dead letters."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import orjson
import pytest
from tests.support.apc_command import ApcCommand
from tests.support.log import LogBench, coordination, hop, packet_entry, session_row

from apc_cli.commands.packet_replay import print_lines
from apc_cli.output.terminal import refusal_sentences
from apc_contracts.judging.verdict import CONFLICT_REMEDIES, REMEDIES
from apc_log.batch import ConflictEntry, PacketEntry
from apc_log.heads import read_ends
from apc_log.queries import ConflictRow, replay
from apc_log.queries.health import recent_work
from apc_log.queries.news import Passage, list_news, list_refused, passages

RULED: dict[str, Any] = {
    "code": "RULE_FAILED",
    "rule": "two-witnesses",
    "path": "payload.result",
    "message": "An action needs a finding of both investigators about its service.",
    "requires": 'authors("finding/1", "service") >= 2',
    "values": {"content.note": None, 'authors("finding/1", "service")': 1},
    "remedy": "Cite both findings as evidence.",
}
RULED_WORDS = [
    'two-witnesses requires: authors("finding/1", "service") >= 2',
    "content.note = nothing",
    'authors("finding/1", "service") = 1',
    "Remedy: Cite both findings as evidence.",
]


async def fill(bench: LogBench) -> dict[str, PacketEntry]:
    """Log a packet that went through, one refused, one held and then refused, three conflicts, and a dead letter."""
    sent = packet_entry(packet_type="TASK_IR")
    refused = packet_entry(parent=sent, refusal_code="UNROUTABLE")
    waited = msgspec.structs.replace(packet_entry(parent=sent, packet_type="TRANSFER"), verdict="held")
    denied = hop(
        waited,
        ["policy_fail"],
        "SCHEMA_VALIDATED",
        "REJECTED_POLICY",
        metadata=orjson.dumps({"refusal": {"code": "THROTTLE_TOP_K", "path": "payload.top_k", "message": "too many"}}),
    )
    died = hop(sent, ["retry_exhausted"], "ROUTED", "DEAD_LETTERED", "receiver-1", 1, b'{"error": "handler_error"}')
    conflicts = [
        ConflictEntry("session-1", sent.packet_id, "rerun", None, "another payload", b"x", None, None, "agent.b"),
        ConflictEntry(None, uuid4(), "unreadable", "MALFORMED", "no JSON", b"{", None, None, "agent.sender-1"),
        ConflictEntry("session-9", uuid4(), "refused", "DUPLICATE_CONFLICT", "taken", b"{}", None, None, None),
    ]
    moved = coordination(sent, 1, "research_briefs_dispatched", "SESSION_OPEN", "DIFFERENTIATED_RESEARCH")
    await bench.gate.open()
    await bench.gate.log([sent, refused, waited, moved], [session_row(step=1)])
    await bench.gate.log([denied, died, *conflicts], [session_row(step=1)])
    await bench.write()
    return {"sent": sent, "refused": refused, "waited": waited}


async def test_every_kind_of_refusal_is_found_and_only_these(bench: LogBench) -> None:
    packets = await fill(bench)
    whole = Passage(await read_ends(bench.pool))

    def told(rows: Any) -> list[tuple[Any, ...]]:
        return [(row.kind, row.code, row.field, row.was_held, row.packet_type) for row in rows]

    found = await list_refused(bench.pool, whole)
    assert sorted(told(found), key=str) == sorted(
        [
            ("refused", "UNROUTABLE", "$", False, "IDEA"),
            ("refused", "THROTTLE_TOP_K", "payload.top_k", True, "TRANSFER"),
            ("rerun", None, None, False, None),
            ("unreadable", "MALFORMED", None, False, None),
            ("refused", "DUPLICATE_CONFLICT", None, False, None),
        ],
        key=str,
    )
    assert packets["sent"].packet_id not in {row.packet_id for row in found if row.kind == "refused"}
    assert [row.at for row in found] == sorted(row.at for row in found), "oldest first"
    assert len(await list_refused(bench.pool, whole, limit=2)) == 2
    of_session = await list_refused(bench.pool, whole, session_id="session-1")
    assert {row.kind for row in of_session} == {"refused", "rerun"} and len(of_session) == 3
    assert {row.sender for row in await list_refused(bench.pool, whole, agent_id="sender-1")} == {"sender-1"}
    assert await list_refused(bench.pool, whole, session_id="'; DROP TABLE apc_log.shards; --") == []


async def test_the_next_passage_has_only_what_was_added(bench: LogBench) -> None:
    await fill(bench)
    seen = passages(bench.pool, poll=timedelta(milliseconds=10))
    first = await anext(seen)
    assert len(await list_refused(bench.pool, first)) == 5
    later = asyncio.ensure_future(anext(seen))
    await bench.gate.log([packet_entry(refusal_code="EXPIRED")])
    await bench.write()
    passage = await asyncio.wait_for(later, 20)
    assert [row.code for row in await list_refused(bench.pool, passage)] == ["EXPIRED"]
    await seen.aclose()


async def test_news_are_what_a_person_wants_to_see(bench: LogBench) -> None:
    await fill(bench)
    whole = Passage(await read_ends(bench.pool))
    news = await list_news(bench.pool, whole)
    assert sorted(row.what for row in news) == sorted(
        ["accepted", "refused", "held", "session", "refused", "dead letter", "rerun", "unreadable", "refused"]
    )
    (dead,) = [row for row in news if row.what == "dead letter"]
    assert (dead.packet_type, dead.recipients, dead.reason) == ("TASK_IR", ["receiver-1"], "handler_error")
    assert {row.what for row in await list_news(bench.pool, whole, packet_type="TRANSFER")} == {"held", "refused"}
    assert len(await list_news(bench.pool, whole, agent_id="receiver-1")) == 4
    assert all(row.session_id == "session-1" for row in await list_news(bench.pool, whole, session_id="session-1"))
    assert await list_news(bench.pool, whole.next(whole.until)) == []


async def test_a_replay_has_the_conflicts_of_its_sessions(bench: LogBench) -> None:
    await fill(bench)
    conflicts = [row async for row in replay(bench.pool, "run-1") if isinstance(row, ConflictRow)]
    assert [(row.conflict, row.session_id, row.user_id) for row in conflicts] == [("rerun", "session-1", "agent.b")]


async def test_the_commands_name_field_and_remedy(bench: LogBench, postgres_url: str, tmp_path: Path) -> None:
    packets = await fill(bench)
    apc = ApcCommand(tmp_path)

    async def run(*arguments: str) -> Any:
        done = await asyncio.to_thread(apc, *arguments, given={"APC_DATABASE_URL": postgres_url})
        assert done.returncode == 0, done.stderr
        return done

    listed = json.loads((await run("packet", "refused", "--agent", "sender-1")).stdout)
    (unroutable,) = [one for one in listed if one["code"] == "UNROUTABLE"]
    assert unroutable["packet_id"] == str(packets["refused"].packet_id)
    assert unroutable["remedy"] == REMEDIES["UNROUTABLE"]
    (rerun,) = [one for one in json.loads((await run("packet", "refused")).stdout) if one["kind"] == "rerun"]
    assert rerun["remedy"] == CONFLICT_REMEDIES["rerun"]
    assert refusal_sentences(None, None, "other", "rerun") == ["other", f"Remedy: {CONFLICT_REMEDIES['rerun']}"]
    lines = (await run("tail", "--last", "50", "--limit", "9")).stdout.splitlines()
    assert [json.loads(line)["what"] for line in lines].count("refused") == 3
    traced = await run("packet", "trace", "--packet-id", str(packets["sent"].packet_id))
    assert (
        "apc: rerun: packet" in traced.stderr
        and f"another payload. Remedy: {CONFLICT_REMEDIES['rerun']}" in traced.stderr
    )
    ghost = await asyncio.to_thread(
        apc, "packet", "refused", "--agent", "ghost", given={"APC_DATABASE_URL": postgres_url}
    )
    assert (ghost.returncode, ghost.stderr) == (
        2,
        "apc: --agent: no agent 'ghost' was ever registered: `apc agent list` shows who was\n",
    )
    unknown = await asyncio.to_thread(apc, "tail", "no-such", given={"APC_DATABASE_URL": postgres_url})
    assert (unknown.returncode, unknown.stderr) == (
        2,
        "apc: the log holds no session 'no-such': `apc session list` shows them\n",
    )


async def test_heartbeats_that_expired_bury_no_other_refusal_and_count_for_no_alert(
    bench: LogBench, postgres_url: str, tmp_path: Path
) -> None:
    """After an outage of the gate there are many; other refused HEARTBEATs count and are printed as everything is."""
    late = [packet_entry(packet_type="HEARTBEAT", refusal_code="EXPIRED") for _ in range(30)]
    strange = packet_entry(packet_type="HEARTBEAT", refusal_code="UNKNOWN_SENDER")
    expired = packet_entry(packet_type="CLAIM", refusal_code="EXPIRED")
    await bench.gate.open()
    await bench.gate.log([packet_entry(), expired, strange, *late], [session_row()])
    await bench.write()
    apc = ApcCommand(tmp_path)

    async def run(*options: str) -> tuple[list[tuple[str, str]], str]:
        given = {"APC_DATABASE_URL": postgres_url}
        done = await asyncio.to_thread(apc, "packet", "refused", *options, given=given)
        assert done.returncode == 0, done.stderr
        return [(one["packet_type"], one["code"]) for one in json.loads(done.stdout)], done.stderr

    (work,) = [one for one in await recent_work(bench.pool) if one.packets]
    few, said = await run()
    everything, silence = await run("--heartbeats", "--limit", "100")
    assert (work.packets, work.refused) == (3, 2)
    assert few == [("CLAIM", "EXPIRED"), ("HEARTBEAT", "UNKNOWN_SENDER")]
    assert said == "apc: 30 HEARTBEATs that expired are left out: --heartbeats prints them too\n"
    assert (len(everything), silence) == (32, "")


async def test_the_words_of_a_rule_win_wherever_a_refusal_is_shown(
    bench: LogBench, postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On arrival, and when it is refused after it was held."""
    refused = msgspec.structs.replace(packet_entry(refusal_code="RULE_FAILED"), refusal=orjson.dumps(RULED))
    waited = msgspec.structs.replace(packet_entry(packet_type="MESSAGE"), verdict="held")
    metadata = orjson.dumps({"refusal": RULED})
    denied = hop(waited, ["policy_fail"], "SCHEMA_VALIDATED", "REJECTED_POLICY", metadata=metadata)
    await bench.gate.open()
    await bench.gate.log([refused, waited, denied], [session_row(step=1)])
    await bench.write()

    async def listed(*arguments: str) -> list[dict[str, Any]]:
        done = await asyncio.to_thread(ApcCommand(tmp_path), *arguments, given={"APC_DATABASE_URL": postgres_url})
        return [json.loads(done.stdout)] if done.stdout[:1] == "{" else json.loads(done.stdout)

    for row in await listed("packet", "refused"):
        assert (row["refusal"], row["remedy"]) == (RULED, RULED["remedy"])
        shown = refusal_sentences(row["code"], row["field"], row["reason"], row["kind"], row["refusal"])
        assert shown == [f"payload.result: {RULED['message']}", *RULED_WORDS]
    whole = Passage(await read_ends(bench.pool))
    assert [row.refusal for row in await list_news(bench.pool, whole) if row.what == "refused"] == [RULED, RULED]
    await print_lines(replay(bench.pool, "run-1"), with_events=False)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    at = [number for number, line in enumerate(lines) if RULED["message"] in line]
    assert [lines[number + 1 : number + 5] for number in at] == [RULED_WORDS, RULED_WORDS]
    (traced, _) = await listed("packet", "trace")
    assert traced["refusal"] == RULED
