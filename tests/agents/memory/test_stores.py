"""What every memory store promises: one suite, over memory and over Postgres, also as role apc_agent."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apc_agents.memory import (
    MAX_MESSAGE_BYTES,
    BaseMemoryStore,
    ConversationContext,
    ConversationInvalid,
    ConversationMessage,
    DatabaseMemoryStore,
    InMemoryMemoryStore,
    MemoryArgumentInvalid,
    MemoryUnavailable,
    OwnerForeign,
    Removed,
    StaleRevision,
    ValueInvalid,
)
from apc_bus.database import open_pool

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(-1e9, 1e9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)
CONVERSATIONS = st.builds(
    ConversationContext,
    session_id=st.just("s-1"),
    messages=st.lists(
        st.builds(
            ConversationMessage,
            role=TEXT,
            content=TEXT,
            timestamp=st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
            metadata=st.dictionaries(TEXT, JSON, max_size=3),
        ),
        max_size=4,
    ).map(tuple),
    metadata=st.dictionaries(TEXT, JSON, max_size=3),
    agent_participants=st.lists(TEXT, max_size=3).map(tuple),
)
FEW = settings(
    max_examples=25,
    deadline=None,
    # One test, inherited by each store; a store may keep what an example left behind.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)


class Colour(IntEnum):
    """An integer, which JSON keeps as one."""

    RED = 1


def talk(session_id: str = "s-1", *contents: str, summary: str | None = None, revision: int | None = None) -> Any:
    """Return a conversation of these messages."""
    return ConversationContext(
        session_id=session_id,
        messages=tuple(ConversationMessage(role="user", content=content, timestamp=NOON) for content in contents),
        metadata={} if summary is None else {"summary": summary},
        revision=revision,
    )


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

    @pytest.mark.parametrize(
        ("value", "path"),
        [
            (object(), "$"),
            ({"a": [1, {"b": {1, 2}}]}, "$.a[1].b"),
            ({"at": NOON}, "$.at"),
            ({"id": UUID(int=1)}, "$.id"),
            ({"raw": b"bytes"}, "$.raw"),
            ({1: "a"}, "$"),
            ([1, float("nan")], "$[1]"),
            ({"big": 2**63}, "$.big"),
            ({"nul": "a\x00b"}, "$.nul"),
            (["\ud800"], "$[0]"),
        ],
    )
    async def test_a_value_that_is_not_json_is_refused_with_its_path(
        self, store: BaseMemoryStore, value: Any, path: str
    ) -> None:
        await store.store_agent_state("a-1", "u-1", "k", "kept")
        with pytest.raises(ValueInvalid) as refused:
            await store.store_agent_state("a-1", "u-1", "k", value)
        assert refused.value.path == path
        assert await store.load_agent_state("a-1", "u-1", "k") == ("kept", 1)

    async def test_a_value_inside_itself_is_refused(self, store: BaseMemoryStore) -> None:
        knot: list[Any] = []
        knot.append(knot)
        with pytest.raises(ValueInvalid, match="levels"):
            await store.store_agent_state("a-1", "u-1", "k", knot)

    @pytest.mark.parametrize(
        ("change", "error", "path"),
        [
            (
                {
                    "messages": (
                        ConversationMessage(role="user", content="x" * (MAX_MESSAGE_BYTES + 1), timestamp=NOON),
                    )
                },
                ConversationInvalid,
                "messages[0].content",
            ),
            (
                {"messages": (ConversationMessage(role="user", content="\x00", timestamp=NOON),)},
                ValueInvalid,
                "messages[0].content",
            ),
            (
                {"messages": (ConversationMessage(role="user", content="", timestamp=NOON, metadata={"x": [b""]}),)},
                ValueInvalid,
                "messages[0].metadata.x[0]",
            ),
            ({"metadata": {"at": NOON}}, ValueInvalid, "metadata.at"),
            ({"session_id": "s-2"}, ConversationInvalid, "session_id"),
            ({"agent_participants": ("a\x00",)}, ValueInvalid, "agent_participants[0]"),
        ],
    )
    async def test_a_conversation_that_cannot_be_stored_changes_nothing(
        self,
        store: BaseMemoryStore,
        change: dict[str, Any],
        error: type[ValueInvalid | ConversationInvalid],
        path: str,
    ) -> None:
        kept = talk("s-1", "kept")
        await store.store_conversation("s-1", "u-1", kept)
        with pytest.raises(error) as refused:
            await store.store_conversation("s-1", "u-1", kept.model_copy(update=change))
        assert getattr(refused.value, "path", None) == path
        assert await store.retrieve_conversation("s-1") == talk("s-1", "kept", revision=1)

    async def test_what_is_no_conversation_is_refused(self, store: BaseMemoryStore) -> None:
        with pytest.raises(ConversationInvalid, match="it is dict"):
            await store.store_conversation("s-1", "u-1", {"session_id": "s-1"})  # type: ignore[arg-type]
        assert await store.retrieve_conversation("s-1") is None

    @pytest.mark.parametrize("wrong", ["", "x" * 513, "a\x00", 7, None])
    async def test_an_id_that_is_none_is_refused(self, store: BaseMemoryStore, wrong: Any) -> None:
        calls: list[Callable[[], Any]] = [
            lambda: store.retrieve_conversation(wrong),
            lambda: store.delete_conversation(wrong),
            lambda: store.list_conversations_for_user(wrong),
            lambda: store.store_agent_state("a-1", wrong, "k", 1),
            lambda: store.retrieve_agent_state(wrong, "u-1", "k"),
            lambda: store.store_conversation("s-1", wrong, talk("s-1")),
            lambda: store.erase_user(wrong),
        ]
        for call in calls:
            with pytest.raises(MemoryArgumentInvalid):
                await call()

    async def test_a_search_finds_all_words_in_messages_and_summary(self, store: BaseMemoryStore) -> None:
        await store.store_conversation("s-1", "u-1", talk("s-1", "The PUMP leaks.", "größer", summary="valves"))
        await store.store_conversation("s-2", "u-1", talk("s-2", "The pump's motor is loud"))
        await store.store_conversation("s-3", "u-2", talk("s-3", "pump"))

        async def found(query: str, **page: int) -> list[str]:
            return [one["session_id"] for one in await store.search_conversations("u-1", query, **page)]

        assert await found("pump") == ["s-2", "s-1"]
        assert await found("pump", limit=1, offset=1) == ["s-1"]
        assert await found("leaks Pump") == ["s-1"]
        assert await found("VALVES GRÖSSER") == ["s-1"]
        assert await found("mot*") == ["s-2"]
        assert await found("mot") == []
        assert await found("pump & ! 'loud'") == ["s-2"]
        await store.store_conversation("s-2", "u-1", talk("s-2", "another subject"))
        assert await found("motor") == []
        for query in ("", "!?", "a " * 21):
            with pytest.raises(MemoryArgumentInvalid):
                await store.search_conversations("u-1", query)

    @pytest.mark.parametrize(
        ("query", "sessions"),
        [
            ("leaks", ["s-1", "s-2"]),
            ("LEAKING", ["s-1", "s-2"]),
            ("cafe", ["s-3"]),
            ("CAFÉ", ["s-3"]),
            ("retries", ["s-4"]),
            ("max_retries", ["s-4"]),
            ("maxRetries", ["s-4"]),
            ("東京", ["s-5"]),
            ("京都", ["s-5"]),
            ("北京", []),
            ('"pump leaks"', ["s-1"]),
            ('"leaks pump"', []),
            ("pump -valve", ["s-1"]),
            ("coffee OR 東京", ["s-5", "s-3"]),
            ("leak* -pump", []),
            ("studies", ["s-6"]),
            ("study", ["s-6"]),
            ("pump studies", []),
            ("it's", ["s-6"]),
        ],
    )
    async def test_a_search_finds_the_same_in_the_same_order(
        self, store: BaseMemoryStore, query: str, sessions: list[str]
    ) -> None:
        said = {
            "s-1": ["The pump leaks, and it leaks badly.", "The pump leaks again."],
            "s-2": ["The old valve beside the pump has a leak."],
            "s-3": ["Coffee in the Café Central"],
            "s-4": ["set maxRetries to five"],
            "s-5": ["東京都の天気"],
            "s-6": ["It's a study."],
        }
        for session_id, texts in said.items():
            await store.store_conversation(session_id, "u-1", talk(session_id, *texts))
        found = await store.search_conversations("u-1", query)
        assert [one["session_id"] for one in found] == sessions
        assert all(0 < one["rank"] and one["excerpt"] for one in found)

    async def test_an_excerpt_shows_where_the_words_stand(self, store: BaseMemoryStore) -> None:
        long = "nothing of interest " * 30 + "here the gasket broke " + "and nothing more " * 30
        await store.store_conversation("s-1", "u-1", talk("s-1", "a gasket", long))
        (found,) = await store.search_conversations("u-1", "gasket broke")
        assert "the gasket broke" in found["excerpt"] and len(found["excerpt"]) <= 162

    async def test_the_language_of_the_search_is_a_setting(
        self, store: BaseMemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.store_conversation("s-1", "u-1", talk("s-1", "Die Pumpen laufen"))
        for language, count in (("none", 0), ("german", 1)):
            monkeypatch.setenv("APC_LANGUAGE", language)
            assert len(await store.search_conversations("u-1", "pumpe")) == count

    @pytest.mark.parametrize("query", ["-pump", "pump OR -valve", '"', "OR"])
    async def test_a_query_that_names_nothing_is_refused(self, store: BaseMemoryStore, query: str) -> None:
        with pytest.raises(MemoryArgumentInvalid):
            await store.search_conversations("u-1", query)

    async def test_a_conversation_of_many_words_can_be_stored(self, store: BaseMemoryStore) -> None:
        words = [
            " ".join(f"word{number:06}" for number in range(start, start + 20_000)) for start in (0, 20_000, 40_000)
        ]
        await store.store_conversation("s-1", "u-1", talk("s-1", *words))
        assert await store.search_conversations("u-1", "word059999")
        assert await store.search_conversations("u-1", "word019999") == [], "its newest messages come first"

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


class TestInMemoryMemoryStore(MemoryStoreSuite):
    @pytest.fixture
    def store(self) -> BaseMemoryStore:
        return InMemoryMemoryStore()


@pytest.mark.postgres
class TestDatabaseMemoryStore(MemoryStoreSuite):
    """As the superuser that `apc up` is in its own Postgres: no policy holds it, the statements do."""

    @pytest.fixture
    async def store(self, postgres_url: str) -> AsyncIterator[BaseMemoryStore]:
        pool = await open_pool(postgres_url, max_size=2)
        yield DatabaseMemoryStore(pool, "tests")
        await pool.close()

    async def test_a_store_that_is_away_says_so(self, postgres_url: str) -> None:
        pool = await open_pool(postgres_url)
        store = DatabaseMemoryStore(pool)
        await pool.close()
        with pytest.raises(MemoryUnavailable):
            await store.retrieve_conversation("s-1")
        with pytest.raises(MemoryUnavailable):
            await store.store_agent_state("a-1", "u-1", "k", 1)


@pytest.mark.postgres
class TestDatabaseMemoryStoreAsAgent(MemoryStoreSuite):
    """As role apc_agent, which row-level security holds."""

    @pytest.fixture
    async def store(self, postgres_url: str) -> AsyncIterator[BaseMemoryStore]:
        pool = await asyncpg.create_pool(postgres_url, min_size=1, max_size=2, server_settings={"role": "apc_agent"})
        yield DatabaseMemoryStore(pool, "tests")
        await pool.close()


@pytest.mark.postgres
class TestRowLevelSecurity:
    """What somebody with the database connection of an agent, but without its store, gets to see."""

    @pytest.fixture
    async def connection(self, postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
        pool = await open_pool(postgres_url)
        store = DatabaseMemoryStore(pool, "mine")
        await store.store_conversation("s-1", "u-1", talk("s-1", "secret"))
        await store.store_agent_state("a-1", "u-1", "k", "secret")
        await pool.close()
        connection = await asyncpg.connect(postgres_url)
        await connection.execute("SET SESSION AUTHORIZATION apc_agent")
        yield connection
        await connection.close()

    @pytest.mark.parametrize("owner", [None, "", "other"])
    async def test_nobody_reads_or_writes_across_owners(
        self, connection: asyncpg.Connection, owner: str | None
    ) -> None:
        if owner is not None:
            await connection.execute("SELECT set_config('apc.owner', $1, false)", owner)
        for table in ("conversation_history", "agent_state_store"):
            assert await connection.fetch(f"SELECT * FROM apc_app.{table}") == []
            assert await connection.execute(f"UPDATE apc_app.{table} SET revision = 9") == "UPDATE 0"
            assert await connection.execute(f"DELETE FROM apc_app.{table}") == "DELETE 0"
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await connection.execute(
                "INSERT INTO apc_app.agent_state_store (agent_id, owner_id, state_key, state_value, owner) "
                "VALUES ('a-1', 'u-1', 'j', '1', 'mine')"
            )
        await connection.execute("SELECT set_config('apc.owner', 'mine', false)")
        for table in ("conversation_history", "agent_state_store"):
            assert await connection.fetchval(f"SELECT revision FROM apc_app.{table}") == 1
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await connection.execute("UPDATE apc_app.agent_state_store SET owner = 'other'")

    async def test_an_agent_cannot_lift_the_policies(self, connection: asyncpg.Connection) -> None:
        for statement in (
            "ALTER TABLE apc_app.conversation_history DISABLE ROW LEVEL SECURITY",
            "DROP POLICY owners ON apc_app.agent_state_store",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
        await connection.execute("SET row_security = off")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await connection.fetch("SELECT * FROM apc_app.conversation_history")
