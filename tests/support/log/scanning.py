"""Every byte that a database holds in its tables, to look for what must not be there."""

from io import BytesIO

from apc_log.heads import AnyConnection

_TABLES = """
SELECT nspname, relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relkind IN ('r', 'm') AND nspname !~ '^pg_(catalog|toast)' AND nspname <> 'information_schema'
"""


async def bytes_of_tables(connection: AnyConnection) -> bytes:
    """Return all rows of all tables in binary form: texts, jsonb and bytea stand in it as they are."""
    found = BytesIO()
    for schema, table in await connection.fetch(_TABLES):
        await connection.copy_from_table(table, schema_name=schema, output=found, format="binary")
    return found.getvalue()
