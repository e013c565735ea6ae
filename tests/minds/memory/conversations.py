"""Conversations and values to store."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from apc_minds.memory import (
    ConversationContext,
    ConversationMessage,
)

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


def talk(session_id: str = "s-1", *contents: str, summary: str | None = None, revision: int | None = None) -> Any:
    """Return a conversation of these messages."""
    return ConversationContext(
        session_id=session_id,
        messages=tuple(ConversationMessage(role="user", content=content, timestamp=NOON) for content in contents),
        metadata={} if summary is None else {"summary": summary},
        revision=revision,
    )
