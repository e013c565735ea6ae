"""One suite for every context store; and a long session that a database gives back byte for byte."""

from collections.abc import AsyncIterator

import pytest

from apc_bus.database import open_pool
from apc_minds.context import (
    ContextSession,
    ContextStale,
    ContextStore,
    Folding,
    InMemoryContextStore,
    MemoryContextStore,
    SessionConfig,
)
from apc_minds.memory import InMemoryMemoryStore, PostgresMemoryStore

SMALL = SessionConfig(max_tokens=2_000)
BYTES = '{"b": "größer 🐝 \\u0000 \\ud800", "a" :1.0}'.encode()
"""Nothing that JSONB would keep as it is: order, blanks, numbers, escapes."""


class ContextStoreSuite:
    """What a ContextStore promises."""

    async def test_nothing_was_kept_yet(self, store: ContextStore) -> None:
        assert await store.load("s-1") is None
        assert await store.get_turns("s-1", ["t1"]) == {}
        await store.delete_turns("s-1")
        await store.put_turns("s-1", {})

    async def test_a_document_comes_back_byte_for_byte_with_its_revision(self, store: ContextStore) -> None:
        assert await store.save("s-1", b"{}", 0) == 1
        assert await store.save("s-1", BYTES, 1) == 2
        assert await store.load("s-1") == (BYTES, 2)
        assert await store.load("s-2") is None

    @pytest.mark.parametrize("revision", [0, 1, 3])
    async def test_a_stale_revision_is_refused(self, store: ContextStore, revision: int) -> None:
        await store.save("s-1", b"{}", 0)
        await store.save("s-1", BYTES, 1)
        with pytest.raises(ContextStale):
            await store.save("s-1", b'{"lost":true}', revision)
        assert await store.load("s-1") == (BYTES, 2)

    async def test_turns_come_back_byte_for_byte(self, store: ContextStore) -> None:
        await store.save("s-1", b"{}", 0)
        await store.put_turns("s-1", {"t1": b"1", "t2": b"2"})
        await store.put_turns("s-1", {"t2": BYTES, "t3": b"3"})
        await store.put_turns("s-2", {"t1": b"other"})
        assert await store.get_turns("s-1", ["t2", "t1", "gone"]) == {"t1": b"1", "t2": BYTES}
        await store.delete_turns("s-1")
        assert await store.get_turns("s-1", ["t1", "t2", "t3"]) == {}
        assert await store.get_turns("s-2", ["t1"]) == {"t1": b"other"}
        assert await store.load("s-1") == (b"{}", 1)

    async def test_a_session_of_200_turns_comes_back_byte_for_byte(self, store: ContextStore) -> None:
        session, came = ContextSession("chat-1", store=store, config=SMALL), dict[str, bytes]()
        for number in range(0, 200, 2):
            if number == 100:
                await session.save()
                session = await ContextSession.open("chat-1", store=store, config=SMALL)
            for turn in (
                await session.add_user_turn(f"Message {number}: " + "please look at the pump again, größer? " * 4),
                await session.add_assistant_turn(f"Answer {number}: " + 'it "leaks" \\ \n as before. ' * 6),
            ):
                came[turn.resource_id] = turn.to_bytes()
            assert session.window.total_tokens <= 2_000
        await session.save()
        again = await ContextSession.open("chat-1", store=store, config=SMALL)
        assert (again.window, again.state, again.render()) == (session.window, session.state, session.render())
        assert {fold.how for fold in again.window.folded.values()} == {Folding.DROPPED, Folding.PAGED}
        assert (await again.expand()).missing == ()
        assert {turn.resource_id: turn.to_bytes() for turn in again.window.all_turns()} == came


class TestInMemoryContextStore(ContextStoreSuite):
    @pytest.fixture
    def store(self) -> ContextStore:
        return InMemoryContextStore()


class TestMemoryContextStore(ContextStoreSuite):
    @pytest.fixture
    def store(self) -> ContextStore:
        return MemoryContextStore(InMemoryMemoryStore(), "a-1")


@pytest.mark.postgres
class TestMemoryContextStoreInPostgres(ContextStoreSuite):
    @pytest.fixture
    async def store(self, postgres_url: str) -> AsyncIterator[ContextStore]:
        pool = await open_pool(postgres_url, max_size=2)
        yield MemoryContextStore(PostgresMemoryStore(pool), "a-1")
        await pool.close()
