"""What every memory store promises: one suite, over memory and over Postgres, also as role apc_agent."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any

import asyncpg
import pytest
from hypothesis import given
from tests.minds.memory.conversations import CONVERSATIONS, FEW, JSON, talk
from tests.minds.memory.refusal_suite import MemoryRefusalSuite
from tests.minds.memory.search_suite import MemorySearchSuite

from apc_bus.database import open_pool
from apc_minds.memory import (
    BaseMemoryStore,
    ConversationContext,
    InMemoryMemoryStore,
    MemoryArgumentInvalid,
    MemoryUnavailable,
    OwnerForeign,
    PostgresMemoryStore,
    Removed,
    StaleRevision,
    ValueInvalid,
)


class Colour(IntEnum):
    """An integer, which JSON keeps as one."""

    RED = 1


class MemoryStoreSuite:
    """Each test has a `store` with its own owner, over whatever `store.for_owner` shares."""

    @FEW
    @given(conversation=CONVERSATIONS)
    async def test_a_conversation_comes_back_as_it_was(
        self, store: BaseMemoryStore, conversation: ConversationContext
    ) -> None:
        await store.store_conversation("s-1", "u-1", conversation)
        found = await store.retrieve_conversation("s-1")
        assert found is not None
        assert found.revision is not None
        assert found == conversation.model_copy(update={"revision": found.revision})

    @FEW
    @given(value=JSON)
    async def test_a_value_comes_back_as_it_was(self, store: BaseMemoryStore, value: Any) -> None:
        await store.store_agent_state("a-1", "u-1", "k", value)
        assert await store.retrieve_agent_state("a-1", "u-1", "k") == value

    async def test_what_is_not_there_is_none(self, store: BaseMemoryStore) -> None:
        assert await store.retrieve_conversation("nobody") is None
        assert await store.retrieve_agent_state("a-1", "u-1", "k") is None
        assert await store.load_agent_state("a-1", "u-1", "k") is None
        assert await store.get_all_agent_states("a-1", "u-1") == {}
        assert await store.list_conversations_for_user("nobody") == []

    async def test_what_is_changed_outside_does_not_change_the_store(self, store: BaseMemoryStore) -> None:
        value = {"list": [1]}
        await store.store_agent_state("a-1", "u-1", "k", value)
        value["list"].append(2)
        found = await store.retrieve_agent_state("a-1", "u-1", "k")
        assert found == {"list": [1]}
        found["list"].append(3)
        assert await store.retrieve_agent_state("a-1", "u-1", "k") == {"list": [1]}

    async def test_deleting_is_idempotent(self, store: BaseMemoryStore) -> None:
        await store.store_conversation("s-1", "u-1", talk("s-1", "hello"))
        await store.store_agent_state("a-1", "u-1", "k", 1)
        for _ in range(2):
            assert await store.delete_conversation("s-1") is True
            assert await store.delete_agent_state("a-1", "u-1", "k") is True
            assert await store.retrieve_conversation("s-1") is None
            assert await store.retrieve_agent_state("a-1", "u-1", "k") is None

    async def test_agent_states_are_apart_by_agent_owner_and_key(self, store: BaseMemoryStore) -> None:
        for place in (("a-1", "u-1", "k"), ("a-2", "u-1", "k"), ("a-1", "u-2", "k"), ("a-1", "u-1", "j")):
            await store.store_agent_state(*place, "/".join(place))
        assert await store.get_all_agent_states("a-1", "u-1") == {"j": "a-1/u-1/j", "k": "a-1/u-1/k"}
        await store.delete_agent_state("a-1", "u-1", "k")
        assert await store.get_all_agent_states("a-1", "u-1") == {"j": "a-1/u-1/j"}
        assert await store.retrieve_agent_state("a-2", "u-1", "k") == "a-2/u-1/k"
        assert await store.retrieve_agent_state("a-1", "u-2", "k") == "a-1/u-2/k"

    async def test_several_states_are_written_read_and_deleted_at_once(self, store: BaseMemoryStore) -> None:
        await store.store_agent_states("a-1", "u-1", {"x/1": 1, "x/2": 2, "x%": 3, "y": 4})
        assert await store.get_agent_states("a-1", "u-1", ["y", "x/2", "none"]) == {"x/2": 2, "y": 4}
        assert await store.delete_agent_states("a-1", "u-1", "x/") == 2
        assert await store.get_all_agent_states("a-1", "u-1") == {"x%": 3, "y": 4}
        with pytest.raises(ValueInvalid):
            await store.store_agent_states("a-1", "u-1", {"y": 5, "z": object()})
        assert await store.get_all_agent_states("a-1", "u-1") == {"x%": 3, "y": 4}

    async def test_several_states_are_written_all_or_none(self, store: BaseMemoryStore) -> None:
        other = store.for_owner(f"{store.owner}-other")
        await other.store_agent_state("a-1", "u-1", "y", "theirs")
        await store.store_agent_state("a-1", "u-1", "x", "mine")
        with pytest.raises(ValueInvalid):
            await store.store_agent_states("a-1", "u-1", {"z": 1, "y": 2, "x": object()})
        assert await store.get_all_agent_states("a-1", "u-1") == {"x": "mine"}
        assert await other.get_all_agent_states("a-1", "u-1") == {"y": "theirs"}
        await store.store_agent_states("a-1", "u-1", {})
        await store.store_agent_states("a-1", "u-1", {"z": 1, "x": None})
        assert await store.load_agent_state("a-1", "u-1", "x") == (None, 2)
        assert await store.get_all_agent_states("a-1", "u-1") == {"x": None, "z": 1}

    async def test_a_listing_pages_through_metadata_and_has_no_messages(self, store: BaseMemoryStore) -> None:
        for number in range(5):
            summary = "s" * 600 if number else None
            await store.store_conversation(f"s-{number}", "u-1", talk(f"s-{number}", "secret", "2", summary=summary))
        await store.store_conversation("s-0", "u-1", talk("s-0", "secret"))
        await store.store_conversation("s-9", "u-2", talk("s-9", "other"))
        listed = await store.list_conversations_for_user("u-1")
        assert [one["session_id"] for one in listed] == ["s-0", "s-4", "s-3", "s-2", "s-1"]
        assert listed[0].keys() == {
            *("session_id", "user_id", "created_at", "last_updated"),
            *("summary", "message_count", "version", "revision"),
        }
        assert [(one["summary"], one["message_count"], one["revision"]) for one in listed[:2]] == [
            (None, 1, 2),
            ("s" * 500, 2, 1),
        ]
        assert datetime.fromisoformat(listed[0]["created_at"]) < datetime.fromisoformat(listed[0]["last_updated"])
        assert "secret" not in str(listed)
        paged = [await store.list_conversations_for_user("u-1", limit=2, offset=offset) for offset in (0, 2, 4, 6)]
        assert [one for page in paged for one in page] == listed
        pages: list[tuple[Any, Any]] = [
            (0, 0),
            (1001, 0),
            (1, -1),
            (1, 2**31),
            ("5", 0),
            (True, 0),
            (5, 1.5),
            (5, None),
        ]
        for limit, offset in pages:
            with pytest.raises(MemoryArgumentInvalid, match=r"limit|offset"):
                await store.list_conversations_for_user("u-1", limit, offset)

    async def test_without_a_revision_the_last_writer_wins(self, store: BaseMemoryStore) -> None:
        for content in ("first", "second", "third"):
            await store.store_conversation("s-1", "u-1", talk("s-1", content))
        found = await store.retrieve_conversation("s-1")
        assert found == talk("s-1", "third", revision=3)

    async def test_a_revision_compares_and_sets(self, store: BaseMemoryStore) -> None:
        await store.store_conversation("s-1", "u-1", talk("s-1", "first", revision=0))
        await store.store_conversation("s-1", "u-1", talk("s-1", "second", revision=1))
        for stale in (0, 1, 3):
            with pytest.raises(StaleRevision) as refused:
                await store.store_conversation("s-1", "u-1", talk("s-1", "lost", revision=stale))
            assert (refused.value.revision, refused.value.current) == (stale, 2)
        with pytest.raises(StaleRevision):
            await store.store_conversation("s-2", "u-1", talk("s-2", "never there", revision=1))
        assert await store.retrieve_conversation("s-2") is None
        assert await store.retrieve_conversation("s-1") == talk("s-1", "second", revision=2)

    async def test_a_state_has_a_revision_too(self, store: BaseMemoryStore) -> None:
        assert await store.save_agent_state("a-1", "u-1", "k", 1, 0) == 1
        assert await store.save_agent_state("a-1", "u-1", "k", 2, 1) == 2
        await store.store_agent_state("a-1", "u-1", "k", 3)
        for stale in (0, 1, 2, 4):
            with pytest.raises(StaleRevision):
                await store.save_agent_state("a-1", "u-1", "k", "lost", stale)
        with pytest.raises(StaleRevision):
            await store.save_agent_state("a-1", "u-1", "none", "lost", 1)
        assert await store.load_agent_state("a-1", "u-1", "k") == (3, 3)
        assert await store.get_all_agent_states("a-1", "u-1") == {"k": 3}

    async def test_owners_do_not_meet(self, store: BaseMemoryStore) -> None:
        """The same ids in two tenants are two rows: each reads, changes and deletes its own."""
        other = store.for_owner(f"{store.owner}-other")
        await store.store_conversation("s-1", "u-1", talk("s-1", "mine"))
        await store.store_agent_state("a-1", "u-1", "k", "mine")
        assert await other.retrieve_conversation("s-1") is None
        assert await other.list_conversations_for_user("u-1") == []
        assert await other.search_conversations("u-1", "mine") == []
        assert await other.get_all_agent_states("a-1", "u-1") == {}
        assert [record async for record in other.export_user("u-1")] == []
        await other.store_conversation("s-1", "u-2", talk("s-1", "theirs", revision=0))
        await other.store_conversation("s-1", "u-2", talk("s-1", "theirs too"))
        assert await other.save_agent_state("a-1", "u-1", "k", "theirs", 0) == 1
        await other.store_agent_state("a-1", "u-1", "k", "theirs too")
        assert await other.retrieve_conversation("s-1") == talk("s-1", "theirs too", revision=2)
        assert await other.load_agent_state("a-1", "u-1", "k") == ("theirs too", 2)
        assert await other.search_conversations("u-2", "mine") == []
        await other.delete_conversation("s-1")
        await other.delete_agent_state("a-1", "u-1", "k")
        assert await other.delete_agent_states("a-1", "u-1", "k") == 0
        assert await other.erase_user("u-1") == Removed(0, 0)
        assert await other.forget_before(datetime.now(UTC) + timedelta(days=1)) == Removed(0, 0)
        assert await store.retrieve_conversation("s-1") == talk("s-1", "mine", revision=1)
        assert await store.load_agent_state("a-1", "u-1", "k") == ("mine", 1)

    async def test_a_conversation_does_not_change_its_user(self, store: BaseMemoryStore) -> None:
        await store.store_conversation("s-1", "u-1", talk("s-1", "mine"))
        for revision in (None, 0, 1):
            with pytest.raises(OwnerForeign):
                await store.store_conversation("s-1", "u-2", talk("s-1", "stolen", revision=revision))
        assert await store.retrieve_conversation("s-1") == talk("s-1", "mine", revision=1)

    async def test_retention_forgets_what_nobody_has_written_since(self, store: BaseMemoryStore) -> None:
        await store.store_conversation("s-1", "u-1", talk("s-1", "old"))
        await store.store_agent_state("a-1", "u-1", "k", "old")
        await store.store_conversation("s-2", "u-1", talk("s-2", "new"))
        moment = datetime.fromisoformat((await store.list_conversations_for_user("u-1"))[0]["last_updated"])
        assert await store.forget_before(moment) == Removed(1, 1)
        assert await store.forget_before(moment) == Removed(0, 0)
        assert [one["session_id"] for one in await store.list_conversations_for_user("u-1")] == ["s-2"]
        with pytest.raises(MemoryArgumentInvalid, match="offset"):
            await store.forget_before(datetime(2026, 1, 1))
        with pytest.raises(MemoryArgumentInvalid, match="moment"):
            await store.forget_before("2026-01-01")  # type: ignore[arg-type]

    async def test_a_user_can_be_exported_and_erased(self, store: BaseMemoryStore) -> None:
        await store.store_conversation("s-1", "u-1", talk("s-1", "mine"))
        await store.store_agent_state("a-1", "u-1", "k", "of the user")
        await store.store_agent_state("a-1", "s-1", "k", "of the session")
        await store.store_conversation("s-2", "u-2", talk("s-2", "another's"))
        await store.store_agent_state("a-1", "s-2", "k", "another's")
        exported = [record async for record in store.export_user("u-1")]
        assert [record.get("state") for record in exported] == [None, "of the session", "of the user"]
        assert ConversationContext.from_document(exported[0]["conversation"]) == talk("s-1", "mine")
        assert exported[0].keys() == {"kind", "created_at", "last_updated", "revision", "conversation"}
        assert exported[1].keys() == {
            *("kind", "agent_id", "owner_id", "key"),
            *("created_at", "last_updated", "revision", "state"),
        }
        assert await store.erase_user("u-1") == Removed(1, 2)
        assert [record async for record in store.export_user("u-1")] == []
        assert await store.erase_user("u-1") == Removed(0, 0)
        assert await store.retrieve_conversation("s-2") == talk("s-2", "another's", revision=1)
        assert await store.retrieve_agent_state("a-1", "s-2", "k") == "another's"


class TestInMemoryMemoryStore(MemoryStoreSuite, MemoryRefusalSuite, MemorySearchSuite):
    @pytest.fixture
    def store(self) -> BaseMemoryStore:
        return InMemoryMemoryStore()


@pytest.mark.postgres
class TestPostgresMemoryStore(MemoryStoreSuite, MemoryRefusalSuite, MemorySearchSuite):
    """As the superuser that `apc up` is in its own Postgres: no policy holds it, the statements do."""

    @pytest.fixture
    async def store(self, app_database_url: str) -> AsyncIterator[BaseMemoryStore]:
        pool = await open_pool(app_database_url, max_size=2)
        yield PostgresMemoryStore(pool, "tests")
        await pool.close()

    async def test_a_store_that_is_away_says_so(self, app_database_url: str) -> None:
        pool = await open_pool(app_database_url)
        store = PostgresMemoryStore(pool)
        await pool.close()
        with pytest.raises(MemoryUnavailable):
            await store.retrieve_conversation("s-1")
        with pytest.raises(MemoryUnavailable):
            await store.store_agent_state("a-1", "u-1", "k", 1)


@pytest.mark.postgres
class TestPostgresMemoryStoreAsAgent(MemoryStoreSuite, MemoryRefusalSuite, MemorySearchSuite):
    """As role apc_agent, which row-level security holds."""

    @pytest.fixture
    async def store(self, app_database_url: str) -> AsyncIterator[BaseMemoryStore]:
        pool = await asyncpg.create_pool(
            app_database_url, min_size=1, max_size=2, server_settings={"role": "apc_agent"}
        )
        yield PostgresMemoryStore(pool, "tests")
        await pool.close()
