"""One suite for every state store; and what a handler's state survives."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from apc_agents import InMemoryStateStore, PostgresStateStore, StateInvalid, StateStale, StateStore, StateUnavailable
from apc_agents.handling.state import SavedAnswer, SavedState
from apc_bus.database import open_pool


class StateStoreSuite:
    """What a StateStore promises."""

    async def test_nothing_was_saved_yet(self, store: StateStore) -> None:
        assert await store.load("a-1", "s-1") is None

    async def test_a_saved_document_is_read_back_with_its_revision(self, store: StateStore) -> None:
        assert await store.save("a-1", "s-1", SavedState(b'{"state": {"best": 0.25}}', 0)) == 1
        assert await store.save("a-1", "s-1", SavedState(b'{"state": {"best": 0.5}}', 1)) == 2
        loaded = await store.load("a-1", "s-1")
        assert loaded == (b'{"state": {"best": 0.5}}', 2)

    async def test_documents_are_apart_by_agent_and_session(self, store: StateStore) -> None:
        for agent_id, session_id in (("a-1", "s-1"), ("a-1", "s-2"), ("a-2", "s-1")):
            await store.save(agent_id, session_id, SavedState(f'"{agent_id}{session_id}"'.encode(), 0))
        assert await store.load("a-1", "s-2") == (b'"a-1s-2"', 1)

    @pytest.mark.parametrize("revision", [0, 1, 3])
    async def test_a_stale_revision_is_refused(self, store: StateStore, revision: int) -> None:
        await store.save("a-1", "s-1", SavedState(b"{}", 0))
        await store.save("a-1", "s-1", SavedState(b'{"kept": true}', 1))
        with pytest.raises(StateStale):
            await store.save("a-1", "s-1", SavedState(b'{"kept": false}', revision))
        assert await store.load("a-1", "s-1") == (b'{"kept": true}', 2)

    async def test_the_first_save_wins(self, store: StateStore) -> None:
        await store.save("a-1", "s-1", SavedState(b"{}", 0))
        with pytest.raises(StateStale):
            await store.save("a-1", "s-1", SavedState(b"[]", 0))

    async def test_text_outside_ascii_stays(self, store: StateStore) -> None:
        document = '{"note": "größer ≥ 🐝"}'.encode()
        await store.save("a-1", "s-1", SavedState(document, 0))
        assert await store.load("a-1", "s-1") == (document, 1)

    async def test_answers_are_kept_once_and_by_packet(self, store: StateStore) -> None:
        packet_id, answers = uuid4(), [SavedAnswer(uuid4(), uuid4(), b"{}") for _ in range(2)]
        for number, answer in enumerate(answers):
            own = replace(answer, packet_id=packet_id, body=f'{{"text": "größer {number}"}}'.encode())
            for _ in range(2):
                await store.save_answer("a-1", "s-1", own)
            await store.save_answer("a-1", "s-1", answer)
        found = await store.load_answers("a-1", "s-1", packet_id)
        assert sorted(found) == [f'{{"text": "größer {number}"}}'.encode() for number in (0, 1)]
        assert await store.load_answers("a-2", "s-1", packet_id) == await store.load_answers("a-1", "s-2", packet_id)
        assert await store.load("a-1", "s-1") is None, "the state is as it was"


class TestMemoryStateStore(StateStoreSuite):
    @pytest.fixture
    def store(self) -> StateStore:
        return InMemoryStateStore()


@pytest.mark.postgres
class TestPostgresStateStore(StateStoreSuite):
    @pytest.fixture
    async def store(self, postgres_url: str) -> AsyncIterator[StateStore]:
        pool = await open_pool(postgres_url)
        yield PostgresStateStore(pool)
        await pool.close()

    async def test_what_postgres_cannot_store_is_refused(self, store: StateStore) -> None:
        with pytest.raises(StateInvalid):
            await store.save("a-1", "s-1", SavedState(b'{"text": "\\u0000"}', 0))

    async def test_old_answers_are_forgotten_and_nothing_else(self, store: StateStore) -> None:
        answer = SavedAnswer(uuid4(), uuid4(), b"{}")
        await store.save("a-1", "s-1", SavedState(b"{}", 0))
        await store.save_answer("a-1", "s-1", answer)
        for age, kept in ((timedelta(hours=1), [b"{}"]), (timedelta(0), [])):
            await store.forget_answers("a-1", age)
            assert await store.load_answers("a-1", "s-1", answer.packet_id) == kept
        assert await store.load("a-1", "s-1") == (b"{}", 1)

    async def test_a_store_that_is_away_says_so(self, postgres_url: str) -> None:
        pool = await open_pool(postgres_url)
        store = PostgresStateStore(pool)
        await pool.close()
        with pytest.raises(StateUnavailable):
            await store.load("a-1", "s-1")
        with pytest.raises(StateUnavailable):
            await store.save("a-1", "s-1", SavedState(b"{}", 0))
