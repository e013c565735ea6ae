"""What decides in the database which rows the log takes, besides the guard: constraints, defaults, triggers, policies.

Nobody can change rows of the log, but its owner can keep rows out of it in a maintenance: by a CHECK, a unique index, a
trigger. So what stands in the catalog is compared with what the migrations of this release make.
"""

import asyncio
from dataclasses import dataclass

from apc_log.connection import AnyConnection
from apc_persister.database.migrate import migrations_folder

FILE = "objects.txt"
"""In the folder of the migrations: what a fresh database of this release has, a line each, sorted."""
_OBJECTS = """
WITH log_table AS (
    SELECT oid, relname, relrowsecurity FROM pg_class
    WHERE relnamespace = 'apc_log'::regnamespace AND relkind IN ('r', 'p')
)
SELECT format('%s: constraint %s %s', relname, conname, pg_get_constraintdef(con.oid))
FROM log_table JOIN pg_constraint AS con ON conrelid = log_table.oid WHERE contype <> 'n' -- PostgreSQL 18: NOT NULL
UNION ALL
SELECT format('%s: column %s is not null', relname, attname)
FROM log_table JOIN pg_attribute ON attrelid = log_table.oid WHERE attnum > 0 AND attnotnull AND NOT attisdropped
UNION ALL
SELECT format('%s: column %s has the value %s', relname, attname, pg_get_expr(adbin, adrelid))
FROM log_table JOIN pg_attrdef ON adrelid = log_table.oid JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum
UNION ALL
SELECT format('%s: index %s', relname, pg_get_indexdef(indexrelid))
FROM log_table JOIN pg_index ON indrelid = log_table.oid
WHERE (indisunique OR indexprs IS NOT NULL OR indpred IS NOT NULL)
  AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
UNION ALL
SELECT format('%s: trigger %s', relname, pg_get_triggerdef(pg_trigger.oid))
FROM log_table JOIN pg_trigger ON tgrelid = log_table.oid WHERE NOT tgisinternal
UNION ALL
SELECT format('%s: rule %s', relname, rulename) FROM log_table JOIN pg_rewrite ON ev_class = log_table.oid
UNION ALL
SELECT format('%s: policy %s', relname, polname) FROM log_table JOIN pg_policy ON polrelid = log_table.oid
UNION ALL
SELECT format('%s: row level security', relname) FROM log_table WHERE relrowsecurity
"""


@dataclass(frozen=True, slots=True)
class Additions:
    """How the log's tables differ from those of this release."""

    added: tuple[str, ...]
    missing: tuple[str, ...]


async def read_objects(connection: AnyConnection) -> set[str]:
    """Return what decides which rows the log's tables take, a line each."""
    async with connection.transaction(readonly=True):
        # Names outside of the search path come with their schema, whatever the user has set.
        await connection.execute("SET LOCAL search_path = pg_catalog")
        return {" ".join(row[0].split()) for row in await connection.fetch(_OBJECTS)}


async def read_additions(connection: AnyConnection) -> Additions:
    """Compare a database of this release's schema with what its migrations make."""
    text = await asyncio.to_thread((migrations_folder() / FILE).read_text, encoding="utf-8")
    expected, found = set(text.splitlines()), await read_objects(connection)
    return Additions(tuple(sorted(found - expected)), tuple(sorted(expected - found)))
