"""What every memory store promises of its search."""

import pytest
from tests.minds.memory.conversations import talk

from apc_minds.memory import (
    BaseMemoryStore,
    MemoryArgumentInvalid,
)


class MemorySearchSuite:
    """Each test has a `store` with its own owner."""

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
