"""What goes wrong, in groups: taken from every table of entries, counted over a time, acknowledged and open again."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import orjson
import pytest
from msgspec.structs import replace
from tests.support.apc_command import ApcCommand
from tests.support.log import LogBench, hop, packet_entry
from tests.support.log.tampering import disable_guards

from apc_log.batch import RegistryEntry
from apc_log.queries.troubles import (
    GROUPS,
    IssueKey,
    TroubleFilters,
    acknowledge,
    list_acknowledgements,
    list_issues,
    list_troubles,
    troubles_behind,
)
from apc_persister.follower import Follower, empty_projections

UNROUTABLE = {"code": "UNROUTABLE", "rule": "is_routable", "path": "recipients[0]", "message": "ghost is unknown"}
JUDGED_AT = "UPDATE apc_log.agent_packets SET judged_at = ($1::timestamptz[])[seq]"
NOTE = "the new release mends it"


def within(**changes: Any) -> TroubleFilters:
    now = datetime.now(UTC)
    return TroubleFilters(now - timedelta(hours=1), now + timedelta(minutes=1), **changes)


def refused(sender: str = "red-1", **refusal: str) -> Any:
    said = UNROUTABLE | refusal
    entry = replace(packet_entry(refusal_code=said["code"]), sender_agent_id=sender)
    return replace(entry, refusal=orjson.dumps(said))


def failed(agent: str = "red-1", message: str = "KeyError: 'customer_id'") -> Any:
    payload = {"error_code": "HANDLER_ERROR", "message": message, "retryable": False}
    return replace(packet_entry(packet_type="ERROR", payload=payload), sender_agent_id=agent)


@pytest.fixture
async def filled(bench: LogBench) -> AsyncIterator[LogBench]:
    """Two refusals of one code and one of another, a failure, its dead letter, a failed verification."""
    await bench.gate.open()
    sent = packet_entry()
    await bench.gate.log(
        [
            refused(),
            refused("blue-1"),
            refused(code="SCHEMA_INVALID", rule="", path="payload.text", message="is missing"),
            sent,
            failed(),
            hop(sent, ["dead_lettered"], "DELIVERED", "DEAD_LETTERED", "red-1", metadata=b'{"error": "handler_error"}'),
            hop(sent, ["verification_fail"], "APPLIED", "REJECTED_POLICY", "blue-1", metadata=b'{"error": "no hash"}'),
        ]
    )
    await bench.write()
    yield bench


@pytest.mark.parametrize(
    ("since_s", "until_s", "bins"), [(0, 1200, 24), (7, 1111, 3), (60, 600, 9), (60, 66, 1), (0, 9, 2)]
)
async def test_whole_minutes_and_single_troubles_add_up(bench: LogBench, since_s: int, until_s: int, bins: int) -> None:
    await bench.gate.open()
    begin = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=30)
    times = [begin + timedelta(seconds=7.3 * number) for number in range(170)] + [begin + timedelta(seconds=60)]
    await bench.gate.log([refused(f"red-{number % 3}") for number in range(len(times))])
    await bench.write()
    await disable_guards(bench.pool)
    async with bench.pool.acquire() as connection, connection.transaction():
        await connection.execute(JUDGED_AT, times)
        await empty_projections(connection)
    await Follower(bench.pool).catch_up()
    since, until = begin + timedelta(seconds=since_s), begin + timedelta(seconds=until_s)
    meant = [at for at in times if since <= at < until]
    [found] = await list_issues(bench.pool, TroubleFilters(since, until), "code", bins=bins)
    assert (found.count, found.first_at, found.last_at) == (len(meant), min(meant), max(meant))
    part = (until - since) / bins
    assert found.bins == tuple(sum((at - since) // part == place for at in meant) for place in range(bins))
    await bench.pool.execute("UPDATE apc_log.followed SET seq = 0")
    await Follower(bench.pool).catch_up()
    [again] = await list_issues(bench.pool, TroubleFilters(since, until), "code", bins=bins)
    assert again == found, "each trouble counts once"


async def test_everything_that_goes_wrong_is_counted(filled: LogBench) -> None:
    found = await list_issues(filled.pool, within(), "code", bins=2)
    assert {(one.key.kind, one.key.code, one.key.rule, one.count, one.agents) for one in found} == {
        ("refusal", "UNROUTABLE", None, 2, 2),
        ("refusal", "SCHEMA_INVALID", None, 1, 1),
        ("failure", "HANDLER_ERROR", "KeyError", 1, 1),
        ("dead_letter", "HANDLER_ERROR", None, 1, 1),
        ("verification", "VERIFICATION_FAILED", None, 1, 1),
    }
    assert found[0].count == 2 and all(sum(one.bins) == one.count for one in found)
    assert await troubles_behind(filled.pool) == 0


@pytest.mark.parametrize("by", GROUPS)
async def test_each_grouping_counts_each_trouble_once(filled: LogBench, by: Any) -> None:
    assert sum(one.count for one in await list_issues(filled.pool, within(), by)) == 6
    narrow = await list_issues(filled.pool, within(kinds=("refusal",), agent_id="red-1"), by)
    assert sum(one.count for one in narrow) == 2


async def test_a_trouble_says_what_the_log_says(filled: LogBench) -> None:
    found = await list_troubles(filled.pool, within())
    said = {(one.kind, one.message) for one in found}
    assert {("failure", "KeyError: 'customer_id'"), ("refusal", "ghost is unknown"), ("verification", "no hash")} < said
    assert [one.seq for one in found] == sorted((one.seq for one in found), reverse=True)
    first = await list_troubles(filled.pool, within(), limit=2)
    rest = await list_troubles(filled.pool, within(), after=(first[-1].at, first[-1].shard, first[-1].seq))
    assert [*first, *rest] == found


@pytest.mark.parametrize("message", ["Smith & Sons: unknown", "9: x", "a" * 200 + ": x", "", "KeyError('x')"])
async def test_what_is_no_exception_is_not_taken_for_one(bench: LogBench, message: str) -> None:
    await bench.gate.open()
    await bench.gate.log([failed(message=message)])
    await bench.write()
    (one,) = await list_issues(bench.pool, within())
    assert one.key == IssueKey("failure", "HANDLER_ERROR", "")


async def test_without_texts_exceptions_and_fields_are_not_told_apart(filled: LogBench) -> None:
    hidden = within(hides_texts=True)
    for by in GROUPS:
        keys = [one.key for one in await list_issues(filled.pool, hidden, by)]
        assert not any(key.field for key in keys) and not any(key.rule for key in keys if key.kind == "failure")
    assert not await list_issues(filled.pool, within(hides_texts=True, rule="KeyError"))
    assert await list_issues(filled.pool, within(rule="KeyError")), "a reader finds it"


async def person(bench: LogBench, *, rights: tuple[str, ...] = ("operate",)) -> None:
    change_id = uuid4()
    change = {
        "change_id": str(change_id), "action": "add", "agent_id": "olga", "broker_user": "operator", "role": "operator",
        "swarm_id": "people", "rights": rights,
    }  # fmt: skip
    await bench.gate.log([RegistryEntry(change_id, "olga", orjson.dumps(change))])
    await bench.write()


async def test_an_acknowledged_issue_opens_again(filled: LogBench) -> None:
    await person(filled)
    (known, *_) = await list_issues(filled.pool, within())
    assert known.is_open and known.key.code == "UNROUTABLE"
    await acknowledge(filled.pool, known.key, NOTE, "olga", known.last_at)

    by_code = {one.key.code: one for one in await list_issues(filled.pool, within(kinds=("refusal",)))}
    assert not by_code["UNROUTABLE"].is_open and by_code["SCHEMA_INVALID"].is_open
    found = by_code["UNROUTABLE"].acknowledged
    assert found is not None and (found.by, found.note, found.seen_until) == ("olga", NOTE, known.last_at)
    by_rule = {one.key.rule: one for one in await list_issues(filled.pool, within(kinds=("refusal",)), "rule")}
    assert not by_rule["is_routable"].is_open, "what the acknowledgement covers is known in every grouping"
    assert [one.key.code for one in await list_issues(filled.pool, within(kinds=("refusal",)), is_open=True)] == [
        "SCHEMA_INVALID"
    ]

    await filled.gate.log([refused("green-1")])
    await filled.write()
    (again, *_) = await list_issues(filled.pool, within(kinds=("refusal",)))
    assert (again.key.code, again.count, again.is_open) == ("UNROUTABLE", 3, True)
    assert again.acknowledged == found


async def test_an_acknowledgement_is_an_entry_that_nobody_alters(filled: LogBench) -> None:
    await person(filled)
    await acknowledge(filled.pool, IssueKey("refusal", "UNROUTABLE"), NOTE, "olga", datetime.now(UTC))
    (one,) = await list_acknowledgements(filled.pool)
    assert one.login == await filled.pool.fetchval("SELECT session_user")
    for attack in ("UPDATE apc_log.log_events SET actor = 'x'", "DELETE FROM apc_log.log_events"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="append-only"):
            await filled.pool.execute(attack)


BAD: dict[str, tuple[dict[str, Any], str, str, timedelta]] = {
    "no note": ({"kind": "refusal"}, "", "olga", timedelta()),
    "a long note": ({"kind": "refusal"}, "n" * 301, "olga", timedelta()),
    "no kind": ({"code": "X"}, NOTE, "olga", timedelta()),
    "another column": ({"kind": "refusal", "by": "eve"}, NOTE, "olga", timedelta()),
    "no text": ({"kind": "refusal", "code": {"a": 1}}, NOTE, "olga", timedelta()),
    "the future": ({"kind": "refusal"}, NOTE, "olga", timedelta(days=1)),
    "nobody": ({"kind": "refusal"}, NOTE, "mallory", timedelta()),
}


@pytest.mark.parametrize("what", BAD)
async def test_the_database_takes_no_other_acknowledgement(filled: LogBench, what: str) -> None:
    await person(filled)
    issue, note, who, ahead = BAD[what]
    call = "SELECT apc_guard.record_acknowledgement($1::text::jsonb, $2, $3, $4)"
    with pytest.raises((asyncpg.InvalidParameterValueError, asyncpg.InsufficientPrivilegeError)):
        await filled.pool.execute(call, orjson.dumps(issue).decode(), note, who, datetime.now(UTC) + ahead)
    assert await list_acknowledgements(filled.pool) == []


async def test_who_may_not_operate_acknowledges_nothing(filled: LogBench) -> None:
    await person(filled, rights=())
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="olga is not registered with the right to operate"):
        await acknowledge(filled.pool, IssueKey("refusal", "UNROUTABLE"), NOTE, "olga", datetime.now(UTC))


async def test_the_terminal_shows_the_same_groups(filled: LogBench, postgres_url: str, tmp_path: Path) -> None:
    apc = partial(ApcCommand(tmp_path), given={"APC_DATABASE_URL": postgres_url})
    done = await asyncio.to_thread(apc, "issue", "list", "--since", "1h", "--json")
    listed = [(one["kind"], one["code"], one["count"], one["is_open"]) for one in orjson.loads(done.stdout)]
    assert listed[0] == ("refusal", "UNROUTABLE", 2, True) and len(listed) == 5
    done = await asyncio.to_thread(apc, "packet", "refused", "--since", "1h", "--group-by", "agent", "--json")
    assert [(one["agent_id"], one["count"]) for one in orjson.loads(done.stdout)] == [("red-1", 2), ("blue-1", 1)]
    for given in (("--group-by", "colour"), ("--since", "yesterdayish")):
        refused = await asyncio.to_thread(apc, "issue", "list", *given)
        assert refused.returncode == 2 and given[1] in refused.stderr
