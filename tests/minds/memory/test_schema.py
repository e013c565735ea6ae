"""The interface and the tables are those of the protocol."""

import inspect

import asyncpg
import pytest

from apc_minds.memory import BaseMemoryStore, InMemoryMemoryStore, PostgresMemoryStore

ARGUMENTS = {
    "store_conversation": ["session_id", "user_id", "conversation"],
    "retrieve_conversation": ["session_id"],
    "delete_conversation": ["session_id"],
    "list_conversations_for_user": ["user_id", "limit", "offset"],
    "store_agent_state": ["agent_id", "owner_id", "key", "state_data"],
    "retrieve_agent_state": ["agent_id", "owner_id", "key"],
    "delete_agent_state": ["agent_id", "owner_id", "key"],
    "get_all_agent_states": ["agent_id", "owner_id"],
}
TIME = "timestamp with time zone"
COLUMNS = {
    "conversation_history": {
        "session_id": "text",
        "user_id": "text",
        "created_at": TIME,
        "updated_at": TIME,
        "conversation_data": "jsonb",
        "version": "text",
        "revision": "bigint",
        "owner": "text",
        "search": "tsvector",
        "made_by": "text",
    },
    "agent_state_store": {
        "agent_id": "text",
        "owner_id": "text",
        "state_key": "text",
        "state_value": "jsonb",
        "created_at": TIME,
        "updated_at": TIME,
        "revision": "bigint",
        "owner": "text",
    },
}
KEYS = {
    "conversation_history": ["session_id", "owner", "made_by"],
    "agent_state_store": ["agent_id", "owner_id", "state_key", "owner"],
}
INDEXED = {
    "conversation_history": {"session_id", "user_id"},
    "agent_state_store": {"agent_id", "owner_id", "state_key"},
}


@pytest.mark.parametrize("store", [BaseMemoryStore, InMemoryMemoryStore, PostgresMemoryStore])
def test_the_eight_methods_have_the_arguments_of_the_protocol(store: type[BaseMemoryStore]) -> None:
    for name, arguments in ARGUMENTS.items():
        method = getattr(store, name)
        assert inspect.iscoroutinefunction(method)
        assert list(inspect.signature(method).parameters) == ["self", *arguments]
    defaults = inspect.signature(store.list_conversations_for_user).parameters
    assert (defaults["limit"].default, defaults["offset"].default) == (100, 0)


@pytest.mark.postgres
async def test_the_tables_have_the_columns_and_indexes_of_the_protocol(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        for table, wanted in COLUMNS.items():
            rows = await connection.fetch(
                "SELECT column_name, data_type FROM information_schema.columns "
                "WHERE table_schema = 'apc_app' AND table_name = $1",
                table,
            )
            assert wanted.items() <= {(row[0], row[1]) for row in rows}
            # The first column of each index, and the columns of the primary key.
            indexes = await connection.fetch(
                """
                SELECT indisprimary, array(
                    SELECT attname::text FROM unnest(indkey) WITH ORDINALITY AS at(number, place)
                    JOIN pg_attribute ON attrelid = indrelid AND attnum = number ORDER BY place) AS columns
                FROM pg_index WHERE indrelid = $1::regclass
                """,
                f"apc_app.{table}",
            )
            assert [row["columns"] for row in indexes if row["indisprimary"]] == [KEYS[table]]
            assert INDEXED[table] <= {row["columns"][0] for row in indexes}
    finally:
        await connection.close()
