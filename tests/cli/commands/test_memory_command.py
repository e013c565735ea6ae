"""`apc memory`, as an operator runs it: owners apart, one line for each mistake."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.support.apc_command import ApcCommand

from apc_bus.database import open_pool
from apc_cli.commands.memory import (
    erase_user,
    export,
    list_,
    print_conversation,
    print_states,
    purge_older,
)
from apc_cli.errors import InputUnusable
from apc_minds.memory import (
    ConversationContext,
    ConversationMessage,
    MemoryArgumentInvalid,
    MemoryStoreError,
    PostgresMemoryStore,
    UnknownSession,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
async def pool(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncpg.Pool]:
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)
    pool = await open_pool(postgres_url)
    yield pool
    await pool.close()


async def fill(pool: asyncpg.Pool, owner: str, user: str, prefix: str) -> PostgresMemoryStore:
    """Two conversations of a user, a state of one of them, a state of the user."""
    store = PostgresMemoryStore(pool, owner)
    for number, text in enumerate(("the pump leaks", "the valve is new")):
        session_id = f"{prefix}-{number}"
        message = ConversationMessage(role="user", content=text, timestamp=NOON, metadata={"sender_id": user})
        talk = ConversationContext(session_id=session_id, messages=(message,), metadata={"summary": text})
        await store.store_conversation(session_id, user, talk)
    await store.store_agent_state(f"fitter-{owner}", f"{prefix}-0", "notes", {"units": "metric"})
    await store.store_agent_state(f"fitter-{owner}", user, "likes", ["tea"])
    return store


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


async def test_conversations_are_listed_found_and_shown(pool: asyncpg.Pool, capsys: pytest.CaptureFixture[str]) -> None:
    await fill(pool, "apc", "alice", "s")
    await fill(pool, "acme", "alice", "t")
    await list_("apc", "alice", None, limit=10, offset=0, as_json=False)
    listed = printed(capsys)
    assert [one["session_id"] for one in listed] == ["s-1", "s-0"]
    assert "content" not in str(listed) and listed[0]["message_count"] == 1
    await list_("apc", "alice", None, limit=1, offset=1, as_json=True)
    assert printed(capsys) == listed[1:]
    await list_("apc", "alice", "pum*", limit=10, offset=0, as_json=True)
    assert [one["session_id"] for one in printed(capsys)] == ["s-0"]
    await print_conversation("apc", "s-0", as_json=True)
    shown = printed(capsys)
    assert (shown["messages"][0]["content"], shown["revision"]) == ("the pump leaks", 1)
    await print_states("apc", "s-0", "fitter-apc", as_json=True)
    assert printed(capsys) == {"notes": {"units": "metric"}}
    await list_("acme", "alice", None, limit=10, offset=0, as_json=True)
    assert [one["session_id"] for one in printed(capsys)] == ["t-1", "t-0"]


async def test_a_user_is_exported_and_erased_and_the_others_stay(
    pool: asyncpg.Pool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    await fill(pool, "apc", "alice", "s")
    bob, foreign = await fill(pool, "apc", "bob", "b"), await fill(pool, "acme", "alice", "t")
    await export("apc", "alice", tmp_path / "out" / "alice.jsonl")
    assert "4 records of user alice" in capsys.readouterr().err
    records = [json.loads(line) for line in (tmp_path / "out" / "alice.jsonl").read_text().splitlines()]
    assert [record["kind"] for record in records] == ["conversation"] * 2 + ["agent_state"] * 2
    states = {record["key"]: record["state"] for record in records[2:]}
    assert states == {"likes": ["tea"], "notes": {"units": "metric"}}
    await erase_user("apc", "alice", as_json=True)
    assert printed(capsys) == {"conversations": 2, "agent_states": 2}
    await export("apc", "alice", None)
    assert "0 records" in capsys.readouterr().err
    assert len(await bob.list_conversations_for_user("bob")) == 2
    assert len([record async for record in foreign.export_user("alice")]) == 4


async def test_what_nobody_has_written_for_long_is_purged(
    pool: asyncpg.Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    await fill(pool, "apc", "alice", "s")
    await fill(pool, "acme", "alice", "t")
    for table, old in (("conversation_history", "session_id LIKE '%-0'"), ("agent_state_store", "state_key = 'notes'")):
        await pool.execute(f"UPDATE apc_app.{table} SET updated_at = now() - interval '40 days' WHERE {old}")
    for days, gone in ((50, 0), (30, 1)):
        await purge_older("apc", days, as_json=True)
        assert printed(capsys) == {"conversations": gone, "agent_states": gone}
    assert await pool.fetchval("SELECT count(*) FROM apc_app.conversation_history WHERE owner = 'acme'") == 2


async def test_what_is_not_there_or_no_id_is_named(pool: asyncpg.Pool) -> None:
    await fill(pool, "acme", "alice", "t")
    long, listed = "x" * 600, list_
    mistakes: list[tuple[Any, type[MemoryStoreError | InputUnusable], str]] = [
        (print_conversation("apc", "t-0", as_json=True), UnknownSession, "unknown session 't-0'"),
        (print_states("apc", "t-0", "fitter-acme", as_json=True), InputUnusable, "nothing of agent"),
        (
            print_conversation("apc", long, as_json=True),
            MemoryArgumentInvalid,
            "session_id: it has 600 bytes",
        ),
        (listed(long, "u", None, limit=1, offset=0, as_json=True), MemoryArgumentInvalid, "owner: it has 600 bytes"),
        (listed("apc", "u", "...", limit=1, offset=0, as_json=True), MemoryArgumentInvalid, "query: it has 0 words"),
        (export("apc", "u", Path("/dev/null/x")), InputUnusable, "cannot write /dev/null/x"),
    ]
    for call, error, words in mistakes:
        with pytest.raises(error, match=words):
            await call


async def test_the_command_asks_and_a_mistake_is_one_line(
    pool: asyncpg.Pool, apc: ApcCommand, postgres_url: str
) -> None:
    store = await fill(pool, "alice", "alice", "s")

    async def run(*arguments: str, stdin: str = "") -> Any:
        given = {"APC_DATABASE_URL": postgres_url}
        return await asyncio.to_thread(apc, "memory", *arguments, stdin=stdin, given=given)

    asked = await run("erase", "--owner", "alice", stdin="n\n")
    assert asked.returncode != 0 and "Permanently delete all that 'alice' keeps of user 'alice'?" in asked.stdout
    assert len(await store.list_conversations_for_user("alice")) == 2
    for arguments, words in ((("show", "nobody"), "unknown session 'nobody'"), (("purge", "--yes"), "--days")):
        failed = await run(*arguments)
        assert failed.returncode == 2
        assert words in failed.stderr and len(failed.stderr.splitlines()) == 1
