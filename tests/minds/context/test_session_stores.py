"""A context session and its store: stores that fail, change or lose something, other windows, other writers."""

from typing import Any

import pytest
from tests.minds.context.test_context_session import SMALL, talk

from apc_minds.context import (
    ArchiveCorrupted,
    CompressionAudit,
    ContextSession,
    ContextStale,
    ContextState,
    ContextStoreError,
    InMemoryContextStore,
    SessionConfig,
    UnknownResource,
)

BROKEN = b'{"version": 1, "window": {"max_tokens": 9, "position": 4, "next_ordinal": 1, "turns": [], "linearity": {}}}'


class _Failing:
    """A summarizer, a store and a listener that are away."""

    async def summarize(self, text: str, max_tokens: int) -> str:
        raise ConnectionError("the model is away")

    async def listen(self, audit: CompressionAudit) -> None:
        raise ConnectionError("the log is away")


class _FullStore(InMemoryContextStore):
    async def put_turns(self, session_id: str, turns: Any) -> None:
        raise ConnectionError("the store is away")


@pytest.mark.parametrize(
    "options",
    [{"summarizer": _Failing()}, {"on_compression": _Failing().listen}, {"store": _FullStore()}],
    ids=["summarizer", "listener", "store"],
)
async def test_a_compression_that_fails_leaves_the_session_as_it_was(options: dict[str, Any]) -> None:
    session = ContextSession("s-1", config=SessionConfig(max_tokens=200, keep_recent=1), **options)
    await session.add_user_turn("go")
    await session.add_assistant_turn("Result: " + "it runs well. " * 25)
    before = (session.window, session.state, session.compressions)
    with pytest.raises(ConnectionError):
        await session.add_user_turn("and now? " * 25)
    assert (session.window, session.state, session.compressions) == before


async def test_a_store_that_changed_a_turn_is_found_out() -> None:
    store = InMemoryContextStore()
    session = ContextSession("s-1", store=store, config=SMALL)
    await talk(session, 0, 60)
    folded = next(iter(session.window.folded))
    before = session.window
    await store.put_turns("s-1", {folded: b'{"role": "user"}'})
    with pytest.raises(ArchiveCorrupted, match=folded):
        await session.expand()
    assert session.window == before


async def test_what_a_store_lost_stays_folded() -> None:
    store = InMemoryContextStore()
    session = ContextSession("s-1", store=store, config=SMALL)
    await talk(session, 0, 60)
    folded = tuple(session.window.folded)
    await store.delete_turns("s-1")
    result = await session.expand()
    assert (result.restored, result.missing) == ((), folded)
    with pytest.raises(UnknownResource, match="t999"):
        await session.expand(["t999"])


async def test_a_saved_session_opens_in_another_window() -> None:
    store = InMemoryContextStore()
    session = ContextSession("s-1", store=store, config=SMALL)
    await session.add_user_turn("x" * 4_000)
    await session.update_threshold(task_progress=0.5, error_rate=0.1)
    await session.save()
    smaller = await ContextSession.open("s-1", store=store, config=SessionConfig(max_tokens=1_200))
    assert (smaller.state, smaller.threshold) == (ContextState.PRESSURED, session.threshold)
    assert smaller.window.all_turns() == session.window.all_turns()


async def test_a_session_that_somebody_else_saved_is_stale() -> None:
    store = InMemoryContextStore()
    one, other = [ContextSession("s-1", store=store) for _ in range(2)]
    await one.add_user_turn("mine")
    assert await one.save() == 1
    with pytest.raises(ContextStale, match="revision 0"):
        await other.save()
    assert await one.save() == 2


@pytest.mark.parametrize(
    "document", [b"{}", b"[]", b"no JSON", b'{"version": 2}', b'{"version": 1, "state": "ODD"}', BROKEN]
)
async def test_a_document_that_is_no_session_is_refused(document: bytes) -> None:
    store = InMemoryContextStore()
    await store.save("s-1", document, 0)
    with pytest.raises(ContextStoreError, match="s-1"):
        await ContextSession.open("s-1", store=store)
