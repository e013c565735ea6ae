"""Small segments in the place of the one that a fresh database has."""

import asyncpg


async def divide(connection: asyncpg.Connection, *, entries: int = 256, segments: int = 4, shard: int = 0) -> None:
    """Divide an empty shard into so many segments of so many entries each, a multiple of 256. Needs a superuser."""
    async with connection.transaction():
        # As the guard itself, which is looked at when it is done.
        await connection.execute("INSERT INTO apc_guard.maintenance (actor, reason) VALUES ('', 'a test')")
        tables = await connection.fetch(
            "DELETE FROM apc_guard.log_tables WHERE part_of IS NOT NULL AND relname ~ $1 RETURNING name", f"_{shard}_1$"
        )
        for (table,) in tables:
            await connection.execute(f"DROP TABLE {table}")
        await connection.execute("DELETE FROM apc_guard.segments WHERE shard = $1", shard)
        for first in range(1, entries * segments, entries):
            await connection.execute("SELECT apc_guard.open_segment($1, $2, $3)", shard, first, first + entries - 1)
