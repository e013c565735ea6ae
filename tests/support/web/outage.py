"""A database that goes away and comes back, for the web server alone."""

import asyncpg

_CLOSE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'apc-web' AND datname = current_setting('apc.closed')
"""


async def allow_connections(pool: asyncpg.Pool, url: str, *, allowed: bool) -> None:
    """Let nobody connect to the pool's database any more, or everybody again; the web server's connections end."""
    name = await pool.fetchval("SELECT current_database()")
    beside = await asyncpg.connect(url, database="postgres")  # nobody can close the database that they are in
    try:
        await beside.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS {allowed}')
        if not allowed:
            await beside.execute(f"SET apc.closed = '{name}'")
            await beside.execute(_CLOSE)
    finally:
        await beside.close()
