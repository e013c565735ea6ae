"""What no memory store takes: each refusal names its place, and nothing is changed."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tests.minds.memory.conversations import NOON, talk

from apc_minds.memory import (
    MAX_MESSAGE_BYTES,
    BaseMemoryStore,
    ConversationInvalid,
    ConversationMessage,
    MemoryArgumentInvalid,
    ValueInvalid,
)


class MemoryRefusalSuite:
    """Each test has a `store` with its own owner."""

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
